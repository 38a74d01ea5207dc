//! Raw texts with calls as the models of each family write them, after the published templates.

use serde_json::json;

use super::{
    super::call_format::{
        COHERE, CallFormat, DEEPSEEK, DEEPSEEK_NAMED, FUNCTION_GEMMA, GEMMA, GLM, GLM_DENSE, GPT_OSS, HUNYUAN, LFM2,
        LLAMA_PYTHON, MINICPM, MINICPM_XML, OLMO, PHI, QWEN_CODER, SEED_OSS,
    },
    tests::check,
    *,
};

fn parser(format: &'static CallFormat) -> ToolParser {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" }, "days": { "type": "integer" }, "exact": { "type": "boolean" },
            "places": { "type": "array", "items": { "type": "string" } },
        },
    });
    let functions = [
        Function { name: "weather".into(), parameters: weather },
        Function { name: "now".into(), parameters: json!({ "type": "object", "properties": {} }) },
    ];
    ToolParser::searching(format, functions.into(), Calls::Several)
}

/// A family's texts: of a call of `weather` with several arguments and one of `now` without, both together, and one that is
/// cut off.
struct Texts {
    format: &'static CallFormat,
    weather: &'static str,
    now: &'static str,
    both: &'static str,
    cut: &'static str,
}

const CITY: &str = "S\u{e3}o \"Paulo\" {<b>}";

fn texts() -> Vec<Texts> {
    vec![
        Texts {
            format: &QWEN_CODER,
            weather: "<tool_call>\n<function=weather>\n<parameter=city>\n$CITY\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=places>\n[\"a\", \"b\"]\n</parameter>\n</function>\n</tool_call>",
            now: "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            both: "<tool_call>\n<function=weather>\n<parameter=city>\n\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            cut: "<tool_call>\n<function=weather>\n<parameter=city>\nParis",
        },
        Texts {
            format: &SEED_OSS,
            weather: "<seed:tool_call>\n<function=weather>\n<parameter=city>$CITY</parameter>\n<parameter=days>3</parameter>\n<parameter=exact>true</parameter>\n<parameter=places>[\"a\", \"b\"]</parameter>\n</function>\n</seed:tool_call>",
            now: "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
            both: "<seed:tool_call>\n<function=weather>\n<parameter=city></parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
            cut: "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</par",
        },
        Texts {
            format: &GLM,
            weather: "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>$CITY</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>places</arg_key>\n<arg_value>[\"a\", \"b\"]</arg_value>\n</tool_call>",
            now: "<tool_call>now\n</tool_call>",
            // Without line breaks, as from 4.7 on.
            both: "<tool_call>weather<arg_key>city</arg_key><arg_value></arg_value></tool_call><tool_call>now</tool_call>",
            cut: "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris",
        },
        Texts {
            format: &GLM_DENSE,
            weather: "<tool_call>weather<arg_key>city</arg_key><arg_value>$CITY</arg_value><arg_key>days</arg_key><arg_value>3</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value><arg_key>places</arg_key><arg_value>[\"a\", \"b\"]</arg_value></tool_call>",
            now: "<tool_call>now</tool_call>",
            both: "<tool_call>weather<arg_key>city</arg_key><arg_value></arg_value></tool_call><tool_call>now</tool_call>",
            cut: "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris",
        },
        Texts {
            format: &MINICPM_XML,
            weather: "<function name=\"weather\"><param name=\"city\"><![CDATA[$CITY]]></param><param name=\"days\">3</param><param name=\"exact\">true</param><param name=\"places\">[\"a\", \"b\"]</param></function>",
            now: "<function name=\"now\"></function>",
            both: "<function name=\"weather\"><param name=\"city\"></param></function>\n<function name=\"now\"></function>",
            cut: "<function name=\"weather\"><param name=\"city\">Paris",
        },
        Texts {
            format: &LFM2,
            weather: "<|tool_call_start|>[weather(city='S\u{e3}o \"Paulo\" {<b>}', days=3, exact=True, places=[\"a\", \"b\"])]<|tool_call_end|>",
            now: "<|tool_call_start|>[now()]<|tool_call_end|>",
            both: "<|tool_call_start|>[weather(city=\"\"), now()]<|tool_call_end|>",
            cut: "<|tool_call_start|>[weather(city=\"Paris)",
        },
        Texts {
            format: &LLAMA_PYTHON,
            weather: "[weather(city=\"S\u{e3}o \\\"Paulo\\\" {<b>}\", days=3, exact=True, places=[\"a\", 'b'])]",
            now: "[now()]",
            both: "[weather(city=''), now()]",
            cut: "[weather(city=\"Paris\"",
        },
        Texts {
            format: &OLMO,
            weather: "<function_calls>weather(city=\"S\u{e3}o \\\"Paulo\\\" {<b>}\", days=3, exact=True, places=[\"a\", \"b\"])</function_calls>",
            now: "<function_calls>\nnow()\n</function_calls>",
            both: "<function_calls>weather(city=\"\")\nnow()</function_calls>",
            cut: "<function_calls>weather(city=\"Paris\"",
        },
        Texts {
            format: &MINICPM,
            weather: "<|tool_call_start|>\n```python\nweather(city=\"S\u{e3}o \\\"Paulo\\\" {<b>}\", days=3, exact=True, places=[\"a\", \"b\"])\n```\n<|tool_call_end|>",
            now: "<|tool_call_start|>\n```python\nnow()\n```\n<|tool_call_end|>",
            both: "<|tool_call_start|>\n```python\nweather(city=\"\")\nnow()\n```\n<|tool_call_end|>",
            cut: "<|tool_call_start|>\n```python\nweather(city=\"Paris\"",
        },
        Texts {
            format: &DEEPSEEK,
            weather: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n$JSON\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            now: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            both: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            cut: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Par",
        },
        Texts {
            format: &DEEPSEEK_NAMED,
            weather: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>$JSON<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            now: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            both: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            cut: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\"",
        },
        Texts {
            format: &GPT_OSS,
            weather: "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>$JSON<|call|>",
            now: " to=functions.now<|channel|>commentary json<|message|>{}",
            both: "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"\"}<|call|><|start|>assistant<|channel|>commentary to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
            cut: "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": ",
        },
        Texts {
            format: &COHERE,
            weather: "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": $JSON}\n]<|END_ACTION|>",
            now: "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
            both: "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
            cut: "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\"",
        },
        Texts {
            format: &PHI,
            weather: "<|tool_call|>[{\"name\": \"weather\", \"arguments\": $JSON}]<|/tool_call|>",
            now: "functools[{\"name\": \"now\", \"arguments\": {}}]",
            both: "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"\"}}, {\"name\": \"now\", \"arguments\": {}}]",
            cut: "<|tool_call|>[{\"name\": \"weather\", \"arguments\": ",
        },
        Texts {
            format: &HUNYUAN,
            weather: "<tool_calls>[{\"name\": \"weather\", \"arguments\": $JSON}]</tool_calls>",
            now: "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
            both: "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"\"}}, {\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
            cut: "<tool_calls>[{\"name\": \"weather\", \"arguments\": {",
        },
        Texts {
            format: &GEMMA,
            weather: "<|tool_call>call:weather{city:<|\"|>$CITY<|\"|>,days:3,exact:true,places:[<|\"|>a<|\"|>,<|\"|>b<|\"|>]}<tool_call|>",
            now: "<|tool_call>call:now{}<tool_call|>",
            both: "<|tool_call>call:weather{city:<|\"|><|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>",
            cut: "<|tool_call>call:weather{city:<|\"|>Paris}",
        },
        Texts {
            format: &FUNCTION_GEMMA,
            weather: "<start_function_call>call:weather{city:<escape>$CITY<escape>,days:3,exact:true,places:[<escape>a<escape>,<escape>b<escape>]}<end_function_call>",
            now: "<start_function_call>call:now{}<end_function_call>",
            both: "<start_function_call>call:weather{city:<escape><escape>}<end_function_call><start_function_call>call:now{}<end_function_call>",
            cut: "<start_function_call>call:weather{city:<escape>Par",
        },
    ]
}

/// The arguments of `weather`.
fn arguments() -> String {
    format!("{{\"city\": {}, \"days\": 3, \"exact\": true, \"places\": [\"a\", \"b\"]}}", Value::from(CITY))
}

#[test]
fn calls_of_each_family_are_parsed_at_any_chunk_split() {
    let arguments = arguments();
    for Texts { format, weather, now, both, cut } in texts() {
        let parser = parser(format);
        let weather = weather.replace("$CITY", CITY).replace("$JSON", &arguments);
        check(&parser, &weather, "", &[("weather", &arguments)]);
        check(&parser, now, "", &[("now", "{}")]);
        check(&parser, both, "", &[("weather", r#"{"city": ""}"#), ("now", "{}")]);
        check(&parser, cut, cut, &[]);
        if format.bare == Bare::None {
            check(&parser, &format!("I look.\n\n{weather}"), "I look.", &[("weather", &arguments)]);
            let [mark, other] = [format.first(), &weather.replace("weather", "storm")];
            check(&parser, &format!("a {mark} b"), &format!("a {mark} b"), &[]);
            check(&parser, other, other, &[]);
        }
    }
}

#[test]
fn closing_tags_that_a_model_leaves_out_at_the_end_are_not_missed() {
    let parameter = "<parameter=days>\n3\n</parameter>\n";
    for text in [
        format!("<tool_call>\n<function=weather>\n{parameter}</function>"),
        format!("<tool_call>\n<function=weather>\n{parameter}"),
        format!("<function=weather>\n{parameter}</function>\n</tool_call>"),
    ] {
        check(&parser(&QWEN_CODER), &text, "", &[("weather", "{\"days\": 3}")]);
    }
    let glm = "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>";
    check(&parser(&GLM), glm, "", &[("weather", "{\"days\": 3}")]);
}

#[test]
fn tags_in_values_are_text_until_the_closing_one() {
    let code = "fn f() -> Vec<u8> {\n    \"</tool_call><function=now>\"\n}";
    let text =
        format!("<tool_call>\n<function=weather>\n<parameter=city>\n{code}\n</parameter>\n</function>\n</tool_call>");
    check(&parser(&QWEN_CODER), &text, "", &[("weather", &format!("{{\"city\": {}}}", Value::from(code)))]);
}
