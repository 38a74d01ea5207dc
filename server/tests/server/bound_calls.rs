//! Calls that a model begins under `auto`: from the mark on they follow the family's form and the function's schema.
//!
//! The model writes a given text first and then, in place of text, noise: it says nothing of calls by itself.

use axum::http::StatusCode;
use hearth_model::gpt::Gpt;
use serde_json::{Value, json};

use crate::{
    position_models::{self, D_MODEL, MAX_SEQ_LEN},
    structured::check,
    support::{CHAT, EOS, Server, VOCAB_SIZE, tokenizer},
    tools::{fold, message, tool},
};

/// A dimension that no token uses: the same at all positions of noise.
const COMMON: usize = D_MODEL - 1;

/// A family of models: a text that makes a template have its form, the opening of a call of `first`, and how calls end.
struct Family {
    sign: &'static str,
    /// What the model writes to begin a call.
    opening: &'static str,
    /// The mark at which a call begins, and the one after which it is over. Without it, the arguments are the end.
    marks: (&'static str, Option<&'static str>),
    /// Whether strings in arguments end only with a mark that noise does not write.
    has_raw_strings: bool,
    /// Whether a call may begin after other text.
    is_marked: bool,
}

const fn family(sign: &'static str, opening: &'static str, closing: Option<&'static str>) -> Family {
    Family { sign, opening, marks: (opening, closing), has_raw_strings: false, is_marked: true }
}

const FAMILIES: [Family; 22] = [
    family("<tool_call>", "<tool_call>", Some("</tool_call>")),
    family("[ARGS]", "[TOOL_CALLS]", None),
    family("[TOOL_CALLS]", "[TOOL_CALLS]", None),
    family("<|tool_call|>", "<|tool_call|>", None),
    family("<|/tool_call|>", "<|tool_call|>", Some("<|/tool_call|>")),
    family("<|python_tag|>", "<|python_tag|>", None),
    Family { is_marked: false, ..family("<|python_tag|>", "{\"name\": \"first\"", None) },
    Family { is_marked: false, ..family("[func_name1(", "[first(", Some(")]")) },
    family("<tool_calls>", "<tool_calls>", Some("</tool_calls>")),
    Family { has_raw_strings: true, ..family("<function=<parameter=", "<tool_call>", Some("</tool_call>")) },
    Family { has_raw_strings: true, ..family("<seed:tool_call>", "<seed:tool_call>", Some("</seed:tool_call>")) },
    Family { has_raw_strings: true, ..family("<arg_key><arg_value>", "<tool_call>", Some("</tool_call>")) },
    Family { has_raw_strings: true, ..family("</arg_key><arg_value>", "<tool_call>", Some("</tool_call>")) },
    Family {
        has_raw_strings: true,
        ..family("<function name=\"<param name=\"", "<function name=\"", Some("</function>"))
    },
    family("<|tool_call_start|>", "<|tool_call_start|>", Some("<|tool_call_end|>")),
    family("<|tool_call_start|>```python", "<|tool_call_start|>", Some("<|tool_call_end|>")),
    family("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>```json", DEEPSEEK.0, Some(DEEPSEEK.1)),
    family("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>", DEEPSEEK.0, Some(DEEPSEEK.1)),
    family("<|channel|>to=functions.", "<|channel|>commentary to=functions.", None),
    family("<|START_ACTION|>", "<|START_ACTION|>", Some("<|END_ACTION|>")),
    Family { has_raw_strings: true, ..family("<|tool_call>call:", "<|tool_call>", Some("<tool_call|>")) },
    family("<function_calls>", "<function_calls>", Some("</function_calls>")),
];

const DEEPSEEK: (&str, &str) =
    ("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>");

/// Forty schemas of arguments: two or three parameters each, of which some may be left out.
fn schemas(has_raw_strings: bool) -> Vec<Value> {
    let kinds = [
        json!({ "type": "integer", "minimum": -5, "maximum": 120 }),
        json!({ "enum": ["red", "green", "blue sky"] }),
        json!({ "type": "boolean" }),
        json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "maxItems": 3 }),
        json!({ "type": ["integer", "null"], "minimum": 0, "maximum": 9 }),
        json!({
            "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"],
            "additionalProperties": false,
        }),
        json!({ "const": "only" }),
        json!({ "type": "string", "maxLength": 6 }),
        json!({ "type": "array", "items": { "type": "string", "maxLength": 3 }, "minItems": 1, "maxItems": 2 }),
        json!({ "anyOf": [{ "type": "string", "maxLength": 4 }, { "type": "null" }] }),
    ];
    let kinds = if has_raw_strings { &kinds[..7] } else { &kinds[..] };
    let schema = |at: usize| {
        let names = ["alpha", "b_2", "city"];
        let n = 2 + at % 2;
        let own = names.iter().take(n).enumerate();
        let properties: serde_json::Map<String, Value> =
            own.map(|(place, name)| ((*name).to_owned(), kinds[(at * 3 + place * 4) % kinds.len()].clone())).collect();
        let required = if at.is_multiple_of(3) { &names[..1] } else { &names[..n] };
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    };
    (0..40).map(schema).collect()
}

fn tools(schemas: &[Value], at: usize) -> Vec<Value> {
    vec![tool("first", &schemas[at % schemas.len()]), tool("second-2", &schemas[(at + 7) % schemas.len()])]
}

/// A model that writes `begun` after a prompt of `n_prompt` tokens, and then printable noise, in which quotation marks,
/// closing brackets and the end are more likely.
fn writer(begun: &str, n_prompt: usize) -> Gpt {
    let is_text = |token: usize| (32..127).contains(&token) || token == EOS as usize;
    let mut state = 7u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let positions = |values: &mut [f32]| {
        for position in n_prompt - 1..MAX_SEQ_LEN {
            let row = &mut values[position * D_MODEL..][..D_MODEL];
            match begun.as_bytes().get(position + 1 - n_prompt).copied() {
                Some(byte) => row[usize::from(byte)] = 1.0,
                None => {
                    row.iter_mut().for_each(|value| *value = noise());
                    row[COMMON] = 4.0;
                }
            }
        }
    };
    let head = |values: &mut [f32]| {
        for token in 0..VOCAB_SIZE {
            values[token * D_MODEL + COMMON] = match u8::try_from(token) {
                Ok(b'"' | b'}' | b']' | b')') => 0.4,
                _ if token == EOS as usize => 0.3,
                _ if is_text(token) => 0.0,
                _ => -4.0,
            };
        }
    };
    position_models::gpt(positions, head)
}

const PROMPT: &str = "x";

/// A server of a model with this template that begins each answer with `begun`.
fn server(sign: &str, begun: &str) -> Server {
    let template = format!("{{# {sign} #}}{{% if tools %}}{{% endif %}}{PROMPT}");
    position_models::server(template, writer(begun, 1))
}

fn body(tools: &[Value], seed: usize) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "x" }], "tools": tools, "seed": seed, "temperature": 1,
        "max_tokens": 400, "return_token_ids": true,
    })
}

/// An answer: the model's own text, the content, the calls, and whether it is whole.
struct Answered {
    raw: String,
    content: String,
    calls: Vec<Value>,
    is_whole: bool,
}

async fn answer(server: &Server, body: Value) -> Answered {
    let choice = server.chat(body.clone()).await["choices"][0].take();
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    let tokenizer = tokenizer();
    let bytes: Vec<u8> = ids.iter().filter(|id| **id != EOS).flat_map(|&id| tokenizer.token_bytes(id)).collect();
    let whole = message(&choice);
    assert_eq!(fold(&server.stream_chat(body).await), whole);
    let (message, reason) = whole;
    Answered {
        raw: String::from_utf8_lossy(&bytes).into_owned(),
        content: message["content"].as_str().unwrap().to_owned(),
        calls: message["calls"].as_array().unwrap().clone(),
        is_whole: reason != "length",
    }
}

/// Checks that calls name one of the tools and follow its schema.
fn check_calls(calls: &[Value], tools: &[Value], raw: &str) {
    for call in calls {
        let function = tools.iter().map(|tool| &tool["function"]).find(|own| own["name"] == call["name"]).unwrap();
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        check(&function["parameters"], &arguments, &function["parameters"])
            .unwrap_or_else(|error| panic!("{error} in {raw}"));
    }
}

/// The text behind the first `closing` that is not in a string between quotation marks.
fn behind<'a>(closing: &str, text: &'a str) -> Option<&'a str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, char) in text.char_indices() {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        if !is_quoted && let Some(rest) = text[at..].strip_prefix(closing) {
            return Some(rest);
        }
    }
    None
}

/// The text between the calls of an answer, and the number of calls or groups of them that were begun. `None` if the last
/// one is not over.
fn outside(family: &Family, raw: &str) -> Option<(String, usize)> {
    let (opening, closing) = family.marks;
    let (mut text, mut rest, mut n_begun) = (String::new(), raw, 0);
    while let Some((before, after)) =
        rest.split_once(opening).filter(|(before, _)| family.is_marked || n_begun == 0 && before.is_empty())
    {
        text += before;
        n_begun += 1;
        rest = match closing {
            Some(closing) => behind(closing, after)?,
            None => {
                let from = if family.is_marked { after.find(['{', '['].as_slice())? } else { 0 };
                let from = if family.sign == "[ARGS]" { after.find('{')? } else { from };
                let json = if family.is_marked { &after[from..] } else { raw };
                let mut values = serde_json::Deserializer::from_str(json).into_iter::<serde::de::IgnoredAny>();
                values.next()?.ok()?;
                &json[values.byte_offset()..]
            }
        };
    }
    Some((text + rest, n_begun))
}

fn without_blanks(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Answers of noise to `n` requests with each of the openings, under `auto`. Returns the number of calls.
async fn begun_calls(n: usize) -> (usize, usize) {
    let (mut n_answers, mut n_calls) = (0, 0);
    for family in &FAMILIES {
        let schemas = schemas(family.has_raw_strings);
        let middle = format!("I look it up. {}", family.opening);
        let begun = if family.is_marked { ["", family.opening, &middle] } else { ["", family.opening, family.opening] };
        for (place, begun) in begun.into_iter().enumerate() {
            let server = server(family.sign, begun);
            for seed in 0..n {
                let tools = tools(&schemas, seed * 3 + place);
                let mut body = body(&tools, seed);
                if seed % 3 == 2 {
                    body["parallel_tool_calls"] = json!(false);
                }
                let found = answer(&server, body).await;
                n_answers += 1;
                n_calls += found.calls.len();
                let raw = &found.raw;
                check_calls(&found.calls, &tools, raw);
                assert!(raw.starts_with(begun), "{raw}");
                let Some((text, n_begun)) = outside(family, raw) else {
                    assert!(!found.is_whole, "{raw}");
                    continue;
                };
                // All that is no call is content, and all that was begun is a call.
                assert_eq!(without_blanks(&found.content), without_blanks(&text), "{raw}");
                assert!(found.calls.len() >= n_begun && (n_begun > 0 || place == 0), "{raw}");
                assert!(seed % 3 != 2 || found.calls.len() <= 1, "{raw}");
            }
        }
    }
    (n_answers, n_calls)
}

#[tokio::test]
async fn calls_that_are_begun_under_auto_follow_their_schemas_whatever_the_model_writes() {
    let (n_answers, n_calls) = begun_calls(4).await;
    println!("{n_answers} answers, {n_calls} calls");
    assert!(n_calls >= n_answers / 2, "{n_answers} answers, {n_calls} calls");
}

#[tokio::test]
#[ignore = "takes minutes: the same with 10,000 answers"]
async fn calls_that_are_begun_follow_their_schemas_in_ten_thousand_answers() {
    let (n_answers, n_calls) = begun_calls(167).await;
    println!("{n_answers} answers, {n_calls} calls");
    assert!(n_answers >= 10_000 && n_calls >= 2000, "{n_answers} answers, {n_calls} calls");
}

#[tokio::test]
async fn required_and_named_calls_are_in_the_form_of_the_family() {
    let mut n_calls = 0;
    for family in &FAMILIES {
        let schemas = schemas(family.has_raw_strings);
        let server = server(family.sign, "");
        for seed in 0..4 {
            let tools = tools(&schemas, seed * 5);
            let mut body = body(&tools, seed);
            let named = json!({ "type": "function", "function": { "name": "second-2" } });
            body["tool_choice"] = if seed % 2 == 0 { json!("required") } else { named };
            let found = answer(&server, body).await;
            if found.is_whole {
                check_calls(&found.calls, &tools, &found.raw);
                assert!(!found.calls.is_empty() && found.content.is_empty(), "{}", found.raw);
                assert!(seed % 2 == 0 || found.calls.len() == 1 && found.calls[0]["name"] == "second-2");
                n_calls += found.calls.len();
            }
        }
    }
    println!("{n_calls} calls");
    assert!(n_calls >= 40, "{n_calls} calls");
}

#[tokio::test]
async fn text_that_names_no_function_is_not_bound_in_forms_without_marks() {
    for (sign, text) in [
        ("<|python_tag|>", "{\"name\": \"Alice\", \"age\": 3}"),
        ("<|python_tag|>", "See: {\"name\": \"first\", 7}"),
        ("[func_name1(", "[firstly, (a)]"),
        ("[func_name1(", "See [first(x)"),
        ("<tool_call>", "{\"name\": \"first\", 7}"),
    ] {
        let server = server(sign, text);
        let found = answer(&server, body(&tools(&schemas(false), 0), 1)).await;
        assert!(found.raw.starts_with(text) && found.calls.is_empty(), "{}", found.raw);
        assert_eq!(without_blanks(&found.content), without_blanks(&found.raw));
    }
}

#[tokio::test]
async fn keywords_that_a_form_cannot_hold_are_refused_only_for_strict_functions() {
    let server = server("<function=<parameter=", "");
    let pattern = json!({
        "type": "object", "properties": { "a": { "type": "string", "pattern": "^x+$" } }, "required": ["a"],
        "additionalProperties": false,
    });
    let mut strict = body(&[tool("first", &pattern)], 0);
    server.chat(strict.clone()).await;
    strict["tools"][0]["function"]["strict"] = json!(true);
    let refused = server.post_to(CHAT, strict.to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.json()["error"]["param"], "tools[0].function.parameters.properties.a.pattern");
}
