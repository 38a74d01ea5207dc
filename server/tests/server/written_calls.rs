//! Tool calls in chosen answers: a model that writes a given text, byte by byte.

use hearth_model::{TokenId, text::tokenizer::EncodeOptions};
use serde_json::{Value, json};

use crate::{
    position_models::{self, D_MODEL},
    support::{EOS, Server, tokenizer},
    tools::{fold, message, tool},
};

/// A word that is written nowhere. With `bad_words`, calls under `auto` are not bound: the model writes them as it likes.
const NEVER: &str = "\u{7f}";

/// A server of a model with this template, whose prompts are all `prompt`, that writes `text` byte by byte.
pub(crate) fn server(sign: &str, prompt: &str, text: &str) -> Server {
    let ids: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
    server_of(sign, prompt, &ids)
}

/// The same for text in its usual tokens.
pub(crate) fn server_of_tokens(sign: &str, prompt: &str, text: &str) -> Server {
    server_of(sign, prompt, &tokenizer().encode(text, EncodeOptions::RENDERED).unwrap())
}

fn server_of(sign: &str, prompt: &str, ids: &[TokenId]) -> Server {
    // Quoted: a line feed at the end of a template is not written.
    let quoted = Value::from(prompt);
    let template = format!("{{# {sign} #}}{{% if tools %}}{{% endif %}}{{{{ {quoted} }}}}");
    let n_prompt = tokenizer().encode(prompt, EncodeOptions::RENDERED).unwrap().len();
    let positions = |values: &mut [f32]| {
        for (position, &token) in (n_prompt - 1..).zip(ids.iter().chain([&EOS])) {
            values[position * D_MODEL + token as usize] = 1.0;
        }
    };
    position_models::server(template, position_models::gpt(positions, |_| {}))
}

/// The message and the finish reason of an answer, streamed and not.
pub(crate) async fn answer(server: &Server, more: Value) -> (Value, Value) {
    let tools = json!([tool("now", &json!({ "type": "object" })), tool("weather", &json!({ "type": "object" }))]);
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": tools, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    if body["tools"].is_array() && body.get("tool_choice").is_none() {
        body["bad_words"] = json!([NEVER]);
    }
    let whole = message(&server.chat(body.clone()).await["choices"][0]);
    assert_eq!(fold(&server.stream_chat(body).await), whole);
    whole
}

/// Thoughts within the content.
fn within() -> Value {
    json!({ "reasoning_format": "none" })
}

fn expected(content: &str, calls: &[(&str, &str)], reason: &str) -> (Value, Value) {
    let calls: Vec<Value> =
        calls.iter().map(|(name, arguments)| json!({ "name": name, "arguments": arguments })).collect();
    (json!({ "content": content, "calls": calls }), json!(reason))
}

/// A string that makes a template have a format, and the format's call of `now` without arguments.
const FORMATS: [(&str, &str); 6] = [
    ("<tool_call>", "<tool_call>\n{\"name\": \"now\"}\n</tool_call>"),
    ("[ARGS]", "[TOOL_CALLS]now[ARGS]"),
    ("[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": null}]"),
    ("<|tool_call|>", "<|tool_call|>[{\"name\": \"now\", \"arguments\": \"\"}]"),
    ("<|python_tag|>", "<|python_tag|>{\"name\": \"now\", \"parameters\": null}"),
    ("<|python_tag|>", "{\"name\": \"now\"}"),
];

#[tokio::test]
async fn calls_without_arguments_are_seen_with_the_text_around_them() {
    for (sign, call) in FORMATS {
        let alone = answer(&server(sign, "x", call), json!({})).await;
        assert_eq!(alone, expected("", &[("now", "{}")], "tool_calls"), "{call}");
        let text = format!("I look.\n\n{call}");
        let after_text = answer(&server(sign, "x", &text), json!({})).await;
        assert_eq!(after_text, expected("I look.", &[("now", "{}")], "tool_calls"), "{call}");
    }
    let around = "Before. <tool_call>{\"name\": \"now\"}</tool_call> After.";
    let around = answer(&server("<tool_call>", "x", around), json!({})).await;
    assert_eq!(around, expected("Before.  After.", &[("now", "{}")], "tool_calls"));
}

#[tokio::test]
async fn calls_in_a_thought_are_text_also_if_the_prompt_opens_it() {
    for (sign, call) in FORMATS {
        for [open, close] in [["<think>", "</think>"], ["[THINK]", "[/THINK]"]] {
            let thought = format!("{open}\n{call}");
            assert_eq!(answer(&server(sign, "x", &thought), within()).await, expected(&thought, &[], "stop"));
            let rest = format!("a\n{call}\n{close}");
            let text = format!("{rest}\n\n{call}");
            for prompt in [format!("x{open}"), format!("x{open}\n")] {
                let opened = answer(&server(sign, &prompt, &text), within()).await;
                assert_eq!(opened, expected(&rest, &[("now", "{}")], "tool_calls"), "{prompt}");
            }
        }
    }
}

#[tokio::test]
async fn answer_that_continues_an_open_thought_is_text_until_it_is_closed() {
    let call = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let template = "{# <tool_call> #}{% if tools %}{% endif %}{% if messages | length > 1 %}{{ messages[1].content }}\
                    {% endif %}{% if add_generation_prompt %}a{% endif %}";
    for (begun, is_open) in [("<think>b", true), ("<think>b</think>c", false), ("b", false)] {
        // A message with a thought follows the generation prompt.
        let prompt = if begun == "b" { begun.to_owned() } else { format!("a{begun}") };
        let server = server("", &prompt, &format!("{call}</think>{call}"));
        let messages = json!([{ "role": "user", "content": "q" }, { "role": "assistant", "content": begun }]);
        let mut more = json!({ "messages": messages, "continue_final_message": true, "chat_template": template });
        more["reasoning_format"] = json!("none");
        let (content, n_calls) = if is_open { (format!("{call}</think>"), 1) } else { ("</think>".into(), 2) };
        let found = answer(&server, more).await;
        assert_eq!(found, expected(&content, &vec![("now", "{}"); n_calls], "tool_calls"), "{begun}");
    }
}

/// Answers that parsers of other servers throw away: calls that are cut off, malformed, or followed by an open thought.
#[tokio::test]
async fn no_text_of_an_answer_is_lost_to_the_call_parser() {
    let call = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    let arguments = "{\"city\": \"Oslo\"}";
    for text in [
        "a <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
        "<tool_call>{\"name\": \"storm\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}</tool_call>",
        "int main() { return 0; }\n{\n}",
        "<tool_call>",
    ] {
        let found = answer(&server("<tool_call>", "x", text), json!({})).await;
        assert_eq!(found, expected(text, &[], "stop"), "{text}");
    }
    for (text, content) in [
        (format!("{call}\n<think>"), "<think>"),
        (format!("<think>\na\n</think>\n\nI look.\n{call}"), "<think>\na\n</think>\n\nI look."),
        (format!("{call}\n<tool_call>{{\"name\": \"wea"), "<tool_call>{\"name\": \"wea"),
    ] {
        let found = answer(&server("<tool_call>", "x", &text), within()).await;
        assert_eq!(found, expected(content, &[("weather", arguments)], "tool_calls"), "{text}");
    }
    // Cut by `max_tokens`, in each byte of the call.
    let server = server("<tool_call>", "x", call);
    for max_tokens in 1..call.len() {
        let found = answer(&server, json!({ "max_tokens": max_tokens })).await;
        let is_whole = max_tokens >= call.len() - "</tool_call>".len();
        let calls = [("weather", arguments)];
        let cut = if is_whole { expected("", &calls, "length") } else { expected(&call[..max_tokens], &[], "length") };
        // A part of the closing mark is text.
        let part = call[..max_tokens].rsplit('<').next().filter(|part| is_whole && call[..max_tokens].ends_with(part));
        let content = part.filter(|part| part.starts_with('/') || part.is_empty()).map(|part| format!("<{part}"));
        let cut = content.map_or(cut, |content| expected(&content, &calls, "length"));
        assert_eq!(found, cut, "{max_tokens}");
    }
}
