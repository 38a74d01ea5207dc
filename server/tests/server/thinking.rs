//! Thoughts in chosen answers of a model that writes a given text, byte by byte.

use axum::http::StatusCode;
use hearth_model::text::tokenizer::EncodeOptions;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    support::{CHAT, Server, tokenizer},
    tools::tool,
    written_calls::{answer, server, server_of_tokens},
};

const SCHEMA: &str = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"], \
                      \"additionalProperties\": false}";

fn plain() -> Value {
    json!({ "tools": null })
}

fn with(mut more: Value) -> Value {
    more["tools"] = Value::Null;
    more
}

fn structured() -> Value {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    with(json!({ "response_format": format, "max_tokens": 200 }))
}

fn expected(reasoning: &str, content: &str, reason: &str) -> (Value, Value) {
    let mut message = json!({ "content": content, "calls": [] });
    if !reasoning.is_empty() {
        message["reasoning"] = json!(reasoning);
    }
    (message, json!(reason))
}

/// Number of tokens of thoughts, streamed and not.
async fn n_reasoning_tokens(server: &Server, more: Value) -> u64 {
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let whole = server.chat(body.clone()).await["usage"].clone();
    body["stream_options"] = json!({ "include_usage": true });
    assert_eq!(server.stream_chat(body).await.last().unwrap()["usage"], whole);
    whole["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap()
}

/// A sign of a family's template, the end of its prompt, and what the model writes: `{T}` thinking, then `{A}`.
const FAMILIES: [(&str, &str, &str); 19] = [
    // Qwen 3, SmolLM3 and OLMo 3 write the mark themselves or find it in the prompt.
    ("</think>", "x", "<think>\n{T}\n</think>\n\n{A}"),
    ("</think>", "x<think>\n", "{T}\n</think>\n\n{A}"),
    ("</think>", "x<think>\n", "\n{T}</think>{A}"),
    // DeepSeek's distillates.
    ("<think>", "x<think>\n", "{T}\n</think>\n\n{A}"),
    ("<think>", "x", "<think>\n{T}\n</think>\n{A}"),
    // Phi 4 reasoning, GLM, MiniCPM, LFM2.
    ("<think>", "x", "<think>{T}</think>{A}"),
    ("<think>", "x", "\n<think>{T}</think>\n{A}"),
    // Granite 3.2 and 3.3.
    ("Here is my thought process:", "x", "Here is my thought process:\n\n{T}\n\nHere is my response:\n\n{A}"),
    ("Here is my thought process:", "x", "Here's my thought process: {T} Here's my response: {A}"),
    ("<response>", "x", "<think>{T}</think><response>{A}</response>"),
    ("<answer>", "x", "<think>\n{T}\n</think>\n<answer>\n{A}\n</answer>"),
    ("[THINK]", "x", "[THINK]{T}[/THINK]{A}"),
    ("<|channel>", "x", "<|channel>thought\n{T}\n<channel|>{A}"),
    (
        "<|channel|>analysis",
        "x<|start|>assistant",
        "<|channel|>analysis<|message|>{T}<|end|><|start|>assistant<|channel|>final<|message|>{A}",
    ),
    (
        "<|channel|>analysis",
        "x<|start|>assistant",
        "<|channel|>analysis<|message|>{T}<|end|><|start|>assistant<|channel|>final<|message|>{A}<|return|>",
    ),
    ("<|START_THINKING|>", "x", "<|START_THINKING|>{T}<|END_THINKING|><|START_RESPONSE|>{A}<|END_RESPONSE|>"),
    ("<seed:think>", "x", "<seed:think>{T}</seed:think>{A}"),
    ("◁think▷", "x", "◁think▷{T}◁/think▷{A}"),
    ("<thought>", "x<thought>\n", "{T}\n</thought>\n\n{A}"),
];

#[tokio::test]
async fn thoughts_of_each_family_are_apart_from_the_content_streamed_and_whole() {
    let (thought, content) = ("I think: `x` é <tag>.\n\nSo 3 < 4.", "Yes, 3 < 4 [é].\n\n- a\n- b");
    for (sign, prompt, text) in FAMILIES {
        let text = text.replace("{T}", thought).replace("{A}", content);
        let found = answer(&server(sign, prompt, &text), plain()).await;
        assert_eq!(found, expected(thought, content, "stop"), "{text}");
    }
}

#[tokio::test]
async fn tokens_of_thoughts_are_counted_in_the_usage() {
    for (prompt, text, n_tokens) in [
        ("x", "<think>\nabc\n</think>\n\nde", 5),
        ("x<think>\n", "abc</think>de", 3),
        ("x", "abc", 0),
        ("x<think>\n", "abc", 3),
    ] {
        assert_eq!(n_reasoning_tokens(&server("</think>", prompt, text), json!({})).await, n_tokens, "{text}");
    }
}

#[tokio::test]
async fn budget_allows_exactly_its_tokens_and_then_the_answer_begins() {
    let thought = "a".repeat(300);
    let n_closing = tokenizer().encode("\n</think>\n\n", EncodeOptions::RENDERED).unwrap().len();
    for (prompt, opening) in [("x<think>\n", ""), ("x", "<think>")] {
        let server = server("</think>", prompt, &format!("{opening}{thought}"));
        for n_tokens in [0, 1, 7, 64] {
            for name in ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"] {
                let more = json!({ name: n_tokens, "max_tokens": 100 });
                let (message, reason) = answer(&server, with(more.clone())).await;
                let n_answer = 100 - n_tokens - opening.len() - n_closing;
                let expected = expected(&"a".repeat(n_tokens), &"a".repeat(n_answer), "length");
                assert_eq!((message, reason), expected, "{name} {n_tokens}");
                assert_eq!(n_reasoning_tokens(&server, more).await, n_tokens as u64);
            }
        }
        // -1 is no limit.
        let (message, _) = answer(&server, with(json!({ "thinking_token_budget": -1, "max_tokens": 100 }))).await;
        assert_eq!(message["content"], "");
    }
}

#[tokio::test]
async fn budget_leaves_an_answer_that_follows_its_schema_alone_and_in_a_batch() {
    let server = server("</think>", "x<think>\n", &"a".repeat(300));
    let body = |n_tokens: usize, seed: u64| {
        let mut body = structured();
        body["messages"] = json!([{ "role": "user", "content": "x" }]);
        body["thinking_token_budget"] = json!(n_tokens);
        (body["seed"], body["temperature"]) = (json!(seed), json!(1.5));
        (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(2));
        body
    };
    let requests: Vec<Value> = (0..8).map(|at| body(at * 9, at as u64)).collect();
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(server.chat(request.clone()).await["choices"].clone());
    }
    let mut together = JoinSet::new();
    for (at, request) in requests.into_iter().enumerate() {
        let server = Server { state: server.state.clone(), engine: server.engine.clone() };
        together.spawn(async move { (at, server.chat(request).await) });
    }
    for (at, together) in together.join_all().await {
        let alone = &alone[at];
        assert_eq!(*alone, together["choices"]);
        assert_eq!(together["usage"]["completion_tokens_details"]["reasoning_tokens"], at * 9);
        let content = alone[0]["message"]["content"].as_str().unwrap();
        let answer: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content:?}"));
        assert!(answer["a"].is_number(), "{answer}");
    }
}

#[tokio::test]
async fn structure_binds_the_answer_and_not_the_thought() {
    let json = "{\"a\": 1}";
    for (sign, prompt, text) in FAMILIES {
        if text.starts_with('\n') && prompt == "x"
            || text.contains(": {T}")
            || ["<response>", "<answer>"].contains(&sign)
        {
            // The grammar has no white space before the mark and the answer, and no marks around the answer.
            continue;
        }
        let mut more = structured();
        if sign.starts_with("Here") {
            // Such words may also begin an answer, so the request must say that the model thinks.
            more["chat_template_kwargs"] = json!({ "thinking": true });
        }
        let text = text.replace("{T}", "~no JSON").replace("{A}", json);
        let found = answer(&server_of_tokens(sign, prompt, &text), more).await;
        assert_eq!(found, expected("~no JSON", json, "stop"), "{text}");
    }
    // Without a thought, and after an empty one in the prompt.
    for prompt in ["x", "x<think>\n\n</think>\n\n"] {
        let found = answer(&server("</think>", prompt, json), structured()).await;
        assert_eq!(found, expected("", json, "stop"), "{prompt}");
    }
    // No thought is begun where none belongs.
    let (message, _) = answer(&server("</think>", "x<think>\n\n</think>\n\n", "<think>a"), structured()).await;
    assert!(message["content"].as_str().unwrap().starts_with('{') && message.get("reasoning").is_none(), "{message}");
}

#[tokio::test]
async fn thought_that_the_model_does_not_close_is_closed_before_an_answer_with_a_structure() {
    let (message, reason) = answer(&server("</think>", "x<think>\n", "abc"), structured()).await;
    assert_eq!((&message["reasoning"], &reason), (&json!("abc"), &json!("stop")), "{message}");
    let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(content["a"].is_number(), "{content}");
}

#[tokio::test]
async fn required_calls_bind_the_answer_and_not_the_thought() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let empty = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    for (prompt, text) in [
        ("x", format!("<think>\nNo {call}.\n</think>\n\n{call}")),
        ("x<think>\n", format!("No {call}.\n</think>\n\n{call}")),
        ("x<think>\n", format!("No {call}.</think>{call}")),
    ] {
        for choice in [json!("required"), json!({ "type": "function", "function": { "name": "now" } })] {
            let mut more = json!({ "tools": [tool("now", &empty)], "tool_choice": choice, "max_tokens": 300 });
            more["parallel_tool_calls"] = json!(false);
            let (message, reason) = answer(&server("<tool_call></think>", prompt, &text), more).await;
            assert_eq!(message["calls"], json!([{ "name": "now", "arguments": "{}" }]), "{message}");
            assert_eq!(message["reasoning"], format!("No {call}."), "{text}");
            assert_eq!((&message["content"], reason), (&json!(""), json!("tool_calls")));
        }
    }
}

#[tokio::test]
async fn stop_strings_bind_the_answer_and_not_the_thought() {
    let stops = with(json!({ "stop": ["\n\n", "STOP"] }));
    for (prompt, opening) in [("x<think>\n", ""), ("x", "<think>\n")] {
        let text = format!("{opening}a\n\nSTOP b\n</think>\n\nc STOP d");
        let found = answer(&server("</think>", prompt, &text), stops.clone()).await;
        assert_eq!(found, expected("a\n\nSTOP b", "c ", "stop"));
    }
}

#[tokio::test]
async fn budget_without_a_thinking_template_is_an_error() {
    let server = server("", "x", "abc");
    for name in ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"] {
        let body = json!({ "messages": [{ "role": "user", "content": "x" }], name: 5 });
        let answer = server.post_to(CHAT, body.to_string()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(name)));
        assert!(answer.error().contains("no marks of thoughts"), "{}", answer.text);
        // No limit is no error.
        let body = json!({ "messages": [{ "role": "user", "content": "x" }], name: -1 });
        assert_eq!(server.post_to(CHAT, body.to_string()).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn parameters_of_thinking_are_checked_and_reported_where_they_have_no_effect() {
    let server = server("</think>", "x", "abc");
    let user = json!([{ "role": "user", "content": "x" }]);
    for (more, param) in [
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "reasoning_effort": 3 }), "reasoning_effort"),
        (json!({ "thinking_token_budget": -2 }), "thinking_token_budget"),
        (json!({ "thinking_token_budget": "5" }), "thinking_token_budget"),
        (json!({ "thinking_token_budget": 5, "reasoning_budget": 6 }), "reasoning_budget"),
        (json!({ "thinking_token_budget": 5, "use_beam_search": true, "n": 2 }), "thinking_token_budget"),
        (json!({ "reasoning_format": "x" }), "reasoning_format"),
    ] {
        let mut body = json!({ "messages": user });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post_to(CHAT, body.to_string()).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{more}"
        );
    }
    let body = json!({ "messages": user, "reasoning_effort": "low" });
    let answer = server.post_to(CHAT, body.to_string()).await;
    assert!(answer.header("x-ignored-params").contains("reasoning_effort"), "{:?}", answer.headers);
}

#[tokio::test]
async fn thoughts_can_be_left_out_or_left_in_the_content() {
    let text = "<think>\na\n</think>\n\nb";
    let server = server("</think>", "x", text);
    for (more, reasoning, content) in [
        (json!({}), "a", "b"),
        (json!({ "reasoning_format": "deepseek" }), "a", "b"),
        (json!({ "reasoning_format": "parsed" }), "a", "b"),
        (json!({ "reasoning_format": "none" }), "", text),
        (json!({ "reasoning_format": "hidden" }), "", "b"),
        (json!({ "include_reasoning": false }), "", "b"),
    ] {
        assert_eq!(answer(&server, with(more.clone())).await, expected(reasoning, content, "stop"), "{more}");
    }
}

/// A mark of a thought in a string of the answer neither frees the answer from its grammar nor counts as a thought.
#[tokio::test]
async fn marks_of_thoughts_in_an_answer_that_follows_a_grammar_are_its_text() {
    let text = json!({ "type": "string" });
    let note = json!({ "type": "object", "properties": { "text": text }, "required": ["text"], "additionalProperties": false });
    let sign = "<function=<parameter=</think>";
    let call = "<tool_call>\n<function=note>\n<parameter=text>\na\n<think>\nb\n</parameter>\n</function>\n</tool_call>";
    for (prompt, thought, n_thought) in
        [("x", "", 0), ("x", "<think>\nc\n</think>\n\n", 3), ("x<think>\n", "c\n</think>\n\n", 2)]
    {
        let server = server(sign, prompt, &format!("{thought}{call}"));
        // Under `auto` the budget ends no thought within a call, which goes on for more than these tokens behind its mark.
        for (choice, budget) in [("required", -1), ("auto", -1), ("auto", 20)] {
            let more = json!({
                "tools": [tool("note", &note)], "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 300,
                "thinking_token_budget": budget,
            });
            let (message, reason) = answer(&server, more.clone()).await;
            let arguments = message["calls"][0]["arguments"].as_str().unwrap_or_default();
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
            assert_eq!((&arguments, &reason), (&json!({ "text": "a\n<think>\nb" }), &json!("tool_calls")), "{message}");
            assert_eq!(message["calls"].as_array().unwrap().len(), 1, "{message}");
            assert_eq!(message["reasoning"], if thought.is_empty() { Value::Null } else { json!("c") }, "{message}");
            assert_eq!(n_reasoning_tokens(&server, more).await, n_thought);
        }
    }
    let text = "a\n<think>\nbbc";
    let server = server("</think>", "x", text);
    let more = with(json!({ "structured_outputs": { "regex": "a\n<think>\nb+c" } }));
    assert_eq!(answer(&server, more.clone()).await, expected("", text, "stop"));
    assert_eq!(n_reasoning_tokens(&server, more).await, 0);
}

/// Calls are watched for exactly where the text is no thought.
#[tokio::test]
async fn calls_are_bound_outside_of_thoughts_whatever_is_quoted() {
    let five = json!({ "enum": ["5"] });
    let schema = json!({ "type": "object", "properties": { "city": five }, "required": ["city"], "additionalProperties": false });
    let wrong = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": 5}}</tool_call>";
    let more = json!({
        "tools": [tool("weather", &schema)], "tool_choice": "auto", "parallel_tool_calls": false, "max_tokens": 300,
    });
    // The end of a thought that is quoted in it does not end it.
    for thought in ["He wrote \"</think>\" and ", "As `</think>` is no end: ", "<think> "] {
        let text = format!("{thought}{wrong}\n</think>\n\nhello");
        let found = answer(&server("<tool_call></think>", "x<think>\n", &text), more.clone()).await;
        assert_eq!(found, expected(format!("{thought}{wrong}").trim(), "hello", "stop"));
    }
    // The beginning of a thought in a block of code or within a line begins none; nor does one in a call.
    for text in ["```\n<think>\n```\n", "See <think> here: ", "", "<think>\nb\n</think>\n"] {
        let found = answer(&server("<tool_call></think>", "x", &format!("{text}{wrong}")), more.clone()).await;
        let (message, reason) = found;
        let arguments = message["calls"][0]["arguments"].as_str().unwrap_or_default();
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        assert_eq!((&arguments, &reason), (&json!({ "city": "5" }), &json!("tool_calls")), "{message}");
        let content = if text.starts_with('<') { "" } else { text.trim_end() };
        assert_eq!(message["content"], content, "{message}");
    }
}
