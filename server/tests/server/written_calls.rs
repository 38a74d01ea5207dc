//! Tool calls in chosen answers: a model that writes a given text, byte by byte.

use hearth_model::{TokenId, text::tokenizer::EncodeOptions};
use serde_json::{Value, json};

use crate::{
    position_models::{self, D_MODEL},
    support::{CHAT, EOS, Server, tokenizer},
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

/// gpt-oss ends a turn with a mark that may also be before another call.
#[tokio::test]
async fn mark_after_the_last_required_call_does_not_force_another() {
    let call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>";
    for is_parallel in [true, false] {
        for choice in [json!("required"), json!("auto"), json!({ "type": "function", "function": { "name": "now" } })] {
            let more = json!({ "tool_choice": choice, "parallel_tool_calls": is_parallel, "max_tokens": 300 });
            let found = answer(&server("<|channel|>to=functions.", "x", call), more).await;
            assert_eq!(found, expected("", &[("now", "{}")], "tool_calls"), "{choice}");
        }
    }
    let two = format!("{call}<|start|>assistant{call}");
    let more = json!({ "tool_choice": "required", "max_tokens": 300 });
    let found = answer(&server("<|channel|>to=functions.", "x", &two), more).await;
    assert_eq!(found, expected("", &[("now", "{}"); 2], "tool_calls"));
}

#[tokio::test]
async fn only_allowed_tools_are_called_and_all_are_described() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    let server = server("<tool_call>", "x", call);
    let choice = |mode: &str, names: &[&str]| {
        let of = |name: &&str| json!({ "type": "function", "function": { "name": name } });
        let tools: Vec<Value> = names.iter().map(of).collect();
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
    };
    for mode in ["auto", "required"] {
        for (names, called) in [(&["now"][..], "now"), (&["now", "weather"], "weather")] {
            let more = json!({ "tool_choice": choice(mode, names), "parallel_tool_calls": false, "max_tokens": 200 });
            let (message, _) = answer(&server, more).await;
            let calls = message["calls"].as_array().unwrap();
            // Forced away from its text, the model writes white space between the braces.
            assert_eq!((calls.len(), &calls[0]["name"]), (1, &json!(called)), "{mode} {names:?}: {message}");
        }
    }
    // With none, what looks like a call is text.
    let more = json!({ "tool_choice": choice("auto", &[]), "max_tokens": 200 });
    assert_eq!(answer(&server, more).await, expected(call, &[], "stop"));
    let function = |more: Value| {
        let tools = json!([tool("now", &json!({ "type": "object" }))]);
        json!({ "messages": [{ "role": "user", "content": "x" }], "tools": tools, "tool_choice": more })
    };
    for (choice, param) in [
        (choice("auto", &["storm"]), "tool_choice.allowed_tools.tools[0]"),
        (choice("required", &[]), "tool_choice.allowed_tools.tools"),
        (choice("any", &["now"]), "tool_choice.allowed_tools.mode"),
        (json!({ "type": "allowed_tools" }), "tool_choice.allowed_tools.mode"),
    ] {
        let answer = server.post_to(CHAT, function(choice).to_string()).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.text);
    }
}
