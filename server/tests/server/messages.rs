//! Anthropic's messages: blocks, events, tools, token counts, and errors in its shape.

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use hearth_model::text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::{
    responses::events,
    support::{MAX_SEQ_LEN, MODEL, Server, request_to, tokenizer},
    written_calls,
};

const PATH: &str = "/v1/messages";

fn tool(name: &str) -> Value {
    json!({ "name": name, "input_schema": { "type": "object" } })
}

fn body(more: &Value) -> Value {
    let mut body = json!({ "max_tokens": 200, "messages": [{ "role": "user", "content": "x" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A message that must succeed; checks that the events of the stream build it.
async fn message(server: &Server, more: &Value) -> Value {
    let body = body(more);
    let answer = server.post_to(PATH, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let whole = answer.json();
    let events = events(server, PATH, &body).await;
    let mut built = events[0]["message"].clone();
    let mut inputs: Vec<String> = Vec::new();
    for event in &events[1..] {
        let at = event["index"].as_u64().unwrap_or(0) as usize;
        let append = |block: &mut Value, name: &str| {
            block[name] = json!(block[name].as_str().unwrap().to_owned() + event["delta"][name].as_str().unwrap());
        };
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                built["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => match event["delta"]["type"].as_str().unwrap() {
                "text_delta" => append(&mut built["content"][at], "text"),
                "thinking_delta" => append(&mut built["content"][at], "thinking"),
                "signature_delta" => append(&mut built["content"][at], "signature"),
                _ => inputs[at].push_str(event["delta"]["partial_json"].as_str().unwrap()),
            },
            "content_block_stop" if !inputs[at].is_empty() => {
                built["content"][at]["input"] = serde_json::from_str(&inputs[at]).unwrap();
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    built[name] = event["delta"][name].clone();
                }
            }
            _ => {}
        }
    }
    assert_eq!(events[events.len() - 1]["type"], "message_stop");
    let without_ids = |mut message: Value| {
        message["content"].as_array_mut().unwrap().iter_mut().for_each(|block| block["id"] = Value::Null);
        (message["content"].clone(), message["stop_reason"].clone(), message["stop_sequence"].clone())
    };
    assert_eq!(without_ids(built), without_ids(whole.clone()));
    whole
}

#[tokio::test]
async fn message_has_the_shape_of_anthropic() {
    let server = Server::start();
    let answer =
        message(&server, &json!({ "model": MODEL, "max_tokens": 5, "temperature": 0, "ignore_eos": true })).await;
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    assert_eq!(answer["usage"]["output_tokens"], 5);
    // `system` is a message, and blocks may have `cache_control`.
    let system = json!([{ "type": "text", "text": "s", "cache_control": { "type": "ephemeral" } }]);
    let answer = server.post_to(PATH, body(&json!({ "system": system, "max_tokens": 1 })).to_string()).await;
    assert_eq!(answer.header("x-ignored-params"), "");
    let chat = json!({ "messages": [{ "role": "system", "content": "s" }, { "role": "user", "content": "x" }], "max_tokens": 1 });
    let usage = &answer.json()["usage"];
    let n_input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(server.chat(chat).await["usage"]["prompt_tokens"], n_input);
}

#[tokio::test]
async fn thoughts_texts_and_calls_are_blocks_in_their_order() {
    let text = "<think>\nI look.\n</think>\n\nOne moment. <tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\":1}}\n</tool_call>";
    let server = written_calls::server("<tool_call>", "x", text);
    let with_a = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let now = json!({ "name": "now", "input_schema": with_a });
    let tools = json!([now, { "type": "web_search_20250305", "name": "web_search" }]);
    let answer = message(&server, &json!({ "tools": tools, "temperature": 0 })).await;
    let [thought, said, call] = &answer["content"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&thought["type"], &thought["thinking"]), (&json!("thinking"), &json!("I look.")));
    assert_eq!((&said["type"], &said["text"]), (&json!("text"), &json!("One moment.")));
    assert_eq!((&call["type"], &call["name"], &call["input"]), (&json!("tool_use"), &json!("now"), &json!({ "a": 1 })));
    assert_eq!(answer["stop_reason"], "tool_use");
    // The signature stands for a thought that is not shown.
    let omitted = json!({ "tools": tools, "temperature": 0, "thinking": { "type": "adaptive", "display": "omitted" } });
    let omitted = message(&server, &omitted).await;
    assert_eq!(
        (&omitted["content"][0]["thinking"], &omitted["content"][0]["signature"]),
        (&json!(""), &thought["signature"])
    );
}

#[tokio::test]
async fn thinking_budget_allows_exactly_its_tokens_and_then_the_text_begins() {
    let n_closing = tokenizer().encode("\n</think>\n\n", EncodeOptions::RENDERED).unwrap().len();
    for (prompt, opening) in [("x<think>\n", ""), ("x", "<think>")] {
        let server = written_calls::server("</think>", prompt, &format!("{opening}{}", "a".repeat(300)));
        for n_tokens in [1, 7, 64] {
            let thinking = json!({ "type": "enabled", "budget_tokens": n_tokens });
            let answer = message(&server, &json!({ "thinking": thinking, "max_tokens": 100, "temperature": 0 })).await;
            let [thought, said] = &answer["content"].as_array().unwrap()[..] else { panic!("{answer}") };
            assert_eq!(thought["thinking"], "a".repeat(n_tokens), "{answer}");
            assert_eq!(said["text"], "a".repeat(100 - n_tokens - opening.len() - n_closing), "{answer}");
            assert_eq!(
                (&answer["stop_reason"], &answer["usage"]["output_tokens"]),
                (&json!("max_tokens"), &json!(100))
            );
        }
    }
    // A template without thoughts, where the limit would have no effect.
    let server = written_calls::server("", "x", "abc");
    let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": 5 } });
    let answer = server.post_to(PATH, body(&thinking).to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(
        answer.json()["error"]["message"].as_str().unwrap().contains("`thinking.budget_tokens`"),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn stop_sequence_is_named_and_prefill_is_continued() {
    let server = written_calls::server("", "x", "one two");
    let answer = message(&server, &json!({ "stop_sequences": [" t"], "temperature": 0 })).await;
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(" t")));
    assert_eq!(answer["content"][0]["text"], "one");
}

#[tokio::test]
async fn count_tokens_counts_the_prompt_of_a_message() {
    let server = Server::start();
    let call = json!({ "type": "tool_use", "id": "1", "name": "f", "input": { "a": 1 } });
    let result = json!({ "type": "tool_result", "tool_use_id": "1", "content": [{ "type": "text", "text": "42" }] });
    let messages = json!([
        { "role": "user", "content": "x" },
        { "role": "assistant", "content": [{ "type": "thinking", "thinking": "t", "signature": "s" }, call] },
        { "role": "user", "content": [result, { "type": "text", "text": "y" }] },
    ]);
    let counted = server.post_to("/v1/messages/count_tokens", json!({ "messages": messages }).to_string()).await.json();
    let usage =
        message(&server, &json!({ "messages": messages, "max_tokens": 1, "temperature": 0 })).await["usage"].clone();
    let n_input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, json!({ "input_tokens": n_input }));
}

#[tokio::test]
async fn results_that_are_errors_say_so_in_the_prompt() {
    let server = Server::start();
    let count = async |result: Value| {
        let mut result = result;
        (result["type"], result["tool_use_id"]) = (json!("tool_result"), json!("1"));
        let call = json!({ "type": "tool_use", "id": "1", "name": "f", "input": {} });
        let messages = json!([
            { "role": "user", "content": "x" }, { "role": "assistant", "content": [call] },
            { "role": "user", "content": [result] },
        ]);
        let body = json!({ "messages": messages }).to_string();
        server.post_to("/v1/messages/count_tokens", body).await.json()["input_tokens"].as_u64().unwrap()
    };
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    for (marked, plain) in [
        (json!({ "content": "no file", "is_error": true }), "Error: no file"),
        (json!({ "content": text("no file"), "is_error": true }), "Error: no file"),
        (json!({ "content": "error: no file", "is_error": true }), "error: no file"),
        (json!({ "is_error": true }), "Error"),
        (json!({ "content": "no file", "is_error": false }), "no file"),
    ] {
        let count = (count(marked.clone()).await, count(json!({ "content": plain })).await);
        assert_eq!(count.0, count.1, "{marked}");
    }
}

#[tokio::test]
async fn wrong_requests_are_rejected_in_the_shape_of_anthropic() {
    let server = Server::start();
    let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    let orphan = json!([{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "9" }] }]);
    let cases = [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "robot", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": image }), "messages[0].content[0].type"),
        (json!({ "messages": orphan }), "messages[0].content[0].tool_use_id"),
        (json!({ "tools": [{ "type": "teleport", "name": "x" }] }), "tools[0].type"),
        (json!({ "tools": [{ "name": "f" }] }), "tools[0].input_schema"),
        (json!({ "tools": [tool("f")], "tool_choice": { "type": "tool", "name": "g" } }), "tool_choice"),
        (
            json!({
                "tools": [{ "type": "web_search_20250305", "name": "web_search" }],
                "tool_choice": { "type": "tool", "name": "web_search" },
            }),
            "tool_choice",
        ),
        (json!({ "thinking": { "type": "enabled" } }), "thinking.budget_tokens"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 200 } }), "max_tokens"),
        (json!({ "output_config": { "format": { "type": "yaml" } } }), "output_config.format.type"),
        (json!({ "stop_sequences": [""] }), "stop_sequences"),
        (json!({ "temperature": 3 }), "temperature"),
    ];
    for (more, name) in cases {
        let answer = server.post_to(PATH, body(&more).to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{more}");
        let json = answer.json();
        assert_eq!((&json["type"], &json["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert!(json["error"]["message"].as_str().unwrap().contains(name), "{name}: {json}");
    }
    // Agents read these words, and shorten the conversation.
    let long = json!([{ "role": "user", "content": "x".repeat(MAX_SEQ_LEN) }]);
    let message =
        server.post_to(PATH, body(&json!({ "messages": long })).to_string()).await.json()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(
        message.starts_with("prompt is too long: ") && message.contains(&format!(" tokens > {MAX_SEQ_LEN} maximum\n"))
    );
    let unknown = server.post_to(PATH, body(&json!({ "model": "claude-9" })).to_string()).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["type"]), (StatusCode::NOT_FOUND, &json!("not_found_error")));
    // Errors before the body is read, too.
    let broken = server.send(request_to(PATH).body(Body::from("{")).unwrap()).await;
    assert_eq!((broken.status, &broken.json()["type"]), (StatusCode::BAD_REQUEST, &json!("error")));
    let lost = Request::get("/v1/nothing").header("anthropic-version", "2023-06-01").body(Body::empty()).unwrap();
    assert_eq!(server.send(lost).await.json()["error"]["type"], "not_found_error");
}

#[tokio::test]
async fn models_are_listed_in_the_shape_of_the_client() {
    let server = Server::start();
    let asked = Request::get("/v1/models").header("anthropic-version", "2023-06-01").body(Body::empty()).unwrap();
    let list = server.send(asked).await.json();
    assert_eq!((&list["data"][0]["type"], &list["data"][0]["id"]), (&json!("model"), &json!(MODEL)));
    assert_eq!(server.get("/v1/models").await.json()["object"], "list");
}
