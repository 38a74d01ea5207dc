use super::*;

#[test]
fn tool_call_format_is_detected_from_the_chat_template() {
    // Lines of the models' templates, shortened.
    for (source, format) in [
        (r#"{{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}"#, &HERMES),
        (r#"{{- "[TOOL_CALLS] [" }}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}"#, &MISTRAL),
        (r#"{{- "[TOOL_CALLS][" }}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}"#, &MISTRAL),
        (r#"{{- "[TOOL_CALLS]" + tool['function']['name'] + "[ARGS]" + arguments }}"#, &MISTRAL_NAMED),
        (r#"{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments|tojson }}"#, &MISTRAL_NAMED),
        ("respond only with <|tool_call|> followed by a JSON list of tools used.", &GRANITE),
        (r#"{{- 'Respond in the format {"name": name, "parameters": dictionary}.' }}"#, &LLAMA),
        (r#"{{- "<|python_tag|>" + tool_call.name + ".call(" }}"#, &LLAMA),
        (r#"use the format [func_name1(params_name1=params_value1, ...), func_name2(params)]"#, &LLAMA_PYTHON),
        (r#"{{- '<tool_call>\n<function=' + tool_call.name + '>\n' }}{{- '<parameter=' + name }}"#, &QWEN_CODER),
        (r#"<seed:tool_call>\n<function={{ name }}>\n<parameter={{ x }}>"#, &SEED_OSS),
        ("{{ '<tool_call>' + tc.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>", &GLM),
        (r#"{{- '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>"#, &GLM_DENSE),
        (r#"{{- "<|tool_call_start|>[" + calls | join(", ") + "]<|tool_call_end|>" }}"#, &LFM2),
        (r#"{{- "<|tool_list_start|>[" }}"#, &LFM2),
        (r#"{{ '<|tool_call_start|>\n```python\n' }}{{ name + '(' }}{{ '\n```\n<|tool_call_end|>' }}"#, &MINICPM),
        (r#"{{- '<function name="' ~ tool_call.name ~ '">' }}{{- '<param name="' ~ name ~ '">' }}"#, &MINICPM_XML),
        (r#"{%- set system_prompt = system_prompt + "List of tools: [" -%}"#, &LFM2),
        (r#"{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + '\n```json'}}"#, &DEEPSEEK),
        (r#"{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'}}"#, &DEEPSEEK_NAMED),
        (r#"{{- "<|start|>assistant to=" }}{{- "functions." + name + "<|channel|>" }} to=functions."#, &GPT_OSS),
        (r#"<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "x", "parameters": {}}]"#, &COHERE),
        (r#"{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}"#, &PHI),
        (r#"{{- '<|tool_call>call:' + function['name'] + '{' -}}"#, &GEMMA),
        (r#"{{- '<start_function_call>call:' + function['name'] + '{' -}}"#, &FUNCTION_GEMMA),
        ("<function_calls>{{ calls }}</function_calls>", &OLMO),
        ("<tool_calls>[{{ calls }}]</tool_calls>", &HUNYUAN),
        ("{{ message.tool_calls }}", &ANY),
    ] {
        assert_eq!(CallFormat::of_template(source), format, "{source}");
    }
}

/// The marks that the grammar writes are the ones that the parser looks for.
#[test]
fn written_tool_calls_start_and_end_with_the_marks_of_their_format() {
    for format in FORMATS {
        let call = format.written(&[("f".into(), "{}".into())]);
        let is_marked = format.openings.iter().any(|mark| call.starts_with(mark));
        assert!(is_marked || (format.bare != Bare::None && call.starts_with(['{', '['])), "{call}");
        let is_optional = format.bare == Bare::Python || *format == GPT_OSS;
        assert!(is_optional || format.closing.is_none_or(|mark| call.ends_with(mark)), "{call}");
        assert!(format.head().contains(format.first()) || format.bare != Bare::None, "{call}");
    }
}

#[test]
fn fresh_tool_call_ids_have_the_form_of_their_format() {
    for format in FORMATS {
        let id = format.fresh_id();
        assert_ne!(id, format.fresh_id());
        match format.ids {
            Ids::Prefixed => assert!(id.starts_with("call_"), "{id}"),
            Ids::Nine => {
                assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            }
        }
    }
}
