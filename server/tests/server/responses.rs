//! `/v1/responses`: items, events, tools, and what is rejected.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::{
    support::{MODEL, Server},
    written_calls,
};

const PATH: &str = "/v1/responses";

fn function(name: &str) -> Value {
    json!({ "type": "function", "name": name, "parameters": { "type": "object" } })
}

async fn respond(server: &Server, body: &Value) -> Value {
    let answer = server.post_to(PATH, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

/// The events of a stream, each with the name that its `event` line has.
pub(crate) async fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let text = server.post_to(path, body.to_string()).await.text;
    let blocks = text.split("\n\n").filter(|block| !block.trim().is_empty() && !block.starts_with(':'));
    blocks
        .map(|block| {
            let line = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let data: Value = serde_json::from_str(line("data").unwrap()).unwrap();
            assert_eq!(line("event"), data["type"].as_str(), "{block}");
            data
        })
        .collect()
}

/// Without ids and times, which differ between answers.
fn plain(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.retain(|name, _| !["id", "call_id", "created_at", "completed_at"].contains(&name.as_str()));
            members.values_mut().for_each(|member| *member = plain(member.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = plain(item.take())),
        _ => {}
    }
    value
}

/// The output, streamed and not; checks that the events build it.
async fn output(server: &Server, body: &Value) -> Value {
    let whole = respond(server, body).await;
    let events = events(server, PATH, body).await;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    let last = &events[events.len() - 1]["response"];
    assert_eq!(plain(last["output"].clone()), plain(whole["output"].clone()));
    for (index, item) in last["output"].as_array().unwrap().iter().enumerate() {
        let of = |kind: &str| {
            let kind = json!(format!("response.{kind}"));
            let found = events.iter().filter(move |event| event["type"] == kind && event["output_index"] == index);
            found.cloned().collect::<Vec<_>>()
        };
        let joined = |kind: &str| of(kind).iter().map(|event| event["delta"].as_str().unwrap()).collect::<String>();
        assert_eq!(of("output_item.added").len(), 1);
        assert_eq!(&of("output_item.done")[0]["item"], item);
        match item["type"].as_str().unwrap() {
            "message" => assert_eq!(joined("output_text.delta"), item["content"][0]["text"].as_str().unwrap()),
            "reasoning" => assert_eq!(joined("reasoning_text.delta"), item["content"][0]["text"].as_str().unwrap()),
            "function_call" => {
                assert_eq!(joined("function_call_arguments.delta"), item["arguments"].as_str().unwrap());
            }
            kind => assert_eq!(joined("custom_tool_call_input.delta"), item["input"].as_str().unwrap(), "{kind}"),
        }
    }
    whole
}

#[tokio::test]
async fn response_has_the_shape_of_openai_and_is_not_stored() {
    let server = Server::start();
    let body = json!({ "model": MODEL, "input": "hi", "max_output_tokens": 5, "store": true, "ignore_eos": true });
    let answer = respond(&server, &body).await;
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&answer["object"], &answer["store"]), (&json!("response"), &json!(false)));
    assert_eq!(
        (&answer["status"], &answer["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let item = &answer["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("incomplete"))
    );
    assert_eq!(answer["usage"]["output_tokens"], 5);
    // The same prompt as a chat.
    let chat = server.chat(json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 5 })).await;
    assert_eq!(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn thoughts_texts_and_calls_are_items_in_their_order() {
    let text = "<think>\nI look.\n</think>\n\nOne moment. <tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\":1}}\n</tool_call>";
    let server = written_calls::server("<tool_call>", "x", text);
    let hosted = json!({ "type": "web_search" });
    let with_a = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let now = json!({ "type": "function", "name": "now", "parameters": with_a });
    let body = json!({
        "input": "x", "tools": [now, hosted], "temperature": 0,
        "include": ["reasoning.encrypted_content"], "reasoning": { "summary": "auto" },
    });
    let answer = output(&server, &body).await;
    let [thought, message, call] = &answer["output"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!(thought["content"][0], json!({ "type": "reasoning_text", "text": "I look." }));
    assert_eq!(thought["summary"][0], json!({ "type": "summary_text", "text": "I look." }));
    assert!(thought["encrypted_content"].is_string());
    assert_eq!(message["content"][0]["text"], "One moment.");
    assert_eq!(
        (&call["type"], &call["name"], &call["arguments"]),
        (&json!("function_call"), &json!("now"), &json!("{\"a\":1}"))
    );
    assert_eq!(answer["status"], "completed");
    // A tool that this server does not run is missing from the echo.
    assert_eq!(answer["tools"], json!([now]));
}

#[tokio::test]
async fn custom_tools_have_their_input_as_text() {
    let text = "<tool_call>{\"name\": \"run\", \"arguments\": {\"input\": \"ls \\\"a\\\"\"}}</tool_call>";
    let server = written_calls::server("<tool_call>", "x", text);
    let custom = json!({ "type": "custom", "name": "run", "description": "Runs." });
    let answer = output(&server, &json!({ "input": "x", "tools": [custom], "temperature": 0 })).await;
    let call = &answer["output"][0];
    assert_eq!((&call["type"], &call["input"]), (&json!("custom_tool_call"), &json!("ls \"a\"")));
}

/// The model sees one list of names, and the client its own.
#[tokio::test]
async fn tools_of_a_namespace_are_called_by_their_own_names() {
    let with_a = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
    let find = json!({ "type": "function", "name": "find", "parameters": with_a });
    let run = json!({ "type": "custom", "name": "run" });
    let tools = json!([
        { "type": "namespace", "name": "crm", "description": "Customers.", "tools": [find, run] },
        { "type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [find] },
    ]);
    for (called, namespace, name, arguments) in [
        ("crm__find", "crm", "find", "{\"a\": 1}"),
        ("crm__run", "crm", "run", "{\"input\": \"ls\"}"),
        ("mcp__files__find", "mcp__files__", "find", "{\"a\": 1}"),
    ] {
        let text = format!("<tool_call>\n{{\"name\": \"{called}\", \"arguments\": {arguments}}}\n</tool_call>");
        let server = written_calls::server("<tool_call>", "x", &text);
        for choice in ["auto", "required"] {
            let body = json!({
                "input": "x", "tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "temperature": 0,
            });
            let answer = output(&server, &body).await;
            let call = &answer["output"][0];
            assert_eq!((&call["namespace"], &call["name"]), (&json!(namespace), &json!(name)), "{answer}");
            assert_eq!(answer["tools"], tools);
            for event in events(&server, PATH, &body).await {
                if event["type"] == "response.function_call_arguments.done" {
                    assert_eq!(event["name"], name);
                }
            }
        }
    }
    // Back in the prompt, and named by the choice.
    let server = Server::start();
    let call = |more: Value| {
        let mut call = json!({ "type": "function_call", "call_id": "1", "arguments": "{}" });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "x" });
    let count = async |call: Value| {
        let body = json!({ "input": [{ "role": "user", "content": "x" }, call, output], "max_output_tokens": 1 });
        respond(&server, &body).await["usage"]["input_tokens"].clone()
    };
    let joined = count(call(json!({ "name": "crm__find" }))).await;
    assert_eq!(count(call(json!({ "name": "find", "namespace": "crm" }))).await, joined);
    for (choice, status) in [("find", StatusCode::OK), ("crm__find", StatusCode::OK), ("lost", StatusCode::BAD_REQUEST)]
    {
        let choice = json!({ "type": "function", "name": choice });
        let body = json!({ "input": "x", "tools": tools, "tool_choice": choice, "max_output_tokens": 1 });
        assert_eq!(server.post_to(PATH, body.to_string()).await.status, status, "{choice}");
    }
    let twice = json!([{ "type": "namespace", "name": "crm", "tools": [find, find] }]);
    let answer = server.post_to(PATH, json!({ "input": "x", "tools": twice }).to_string()).await;
    assert_eq!(answer.json()["error"]["param"], "tools[0].tools[1].name", "{}", answer.text);
}

#[tokio::test]
async fn input_tokens_counts_the_prompt_of_a_response() {
    let server = Server::start();
    let tool = function("f");
    for body in [
        json!({ "input": "hi" }),
        json!({ "model": MODEL, "input": [{ "role": "user", "content": "x" }], "instructions": "y", "tools": [tool] }),
    ] {
        let counted = server.post_to("/v1/responses/input_tokens", body.to_string()).await;
        let mut body = body;
        body["max_output_tokens"] = json!(1);
        let n_input = respond(&server, &body).await["usage"]["input_tokens"].clone();
        assert_eq!(counted.json(), json!({ "object": "response.input_tokens", "input_tokens": n_input }));
    }
    let unknown = json!({ "model": "gpt-5", "input": "x" }).to_string();
    assert_eq!(server.post_to("/v1/responses/input_tokens", unknown).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_text_without_thoughts_and_marks() {
    let joined = |entries: &Value| -> String {
        entries.as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap()).collect()
    };
    for (prompt, written, said) in [
        ("x", "The end.\n", "The end.\n"),
        ("x", "<think>\nt\n</think>\n\nThe end.", "The end."),
        ("x<think>\n", "t</think>The end.", "The end."),
        ("x<think>\n", "t\n</think>\nThe <b> \n\n end.", "The <b> \n\n end."),
    ] {
        for server in [
            written_calls::server("</think>", prompt, written),
            written_calls::server_of_tokens("</think>", prompt, written),
        ] {
            let body = json!({
                "input": "x", "temperature": 0, "top_logprobs": 1, "include": ["message.output_text.logprobs"],
            });
            let answer = output(&server, &body).await;
            let items = answer["output"].as_array().unwrap();
            let part = &items[items.len() - 1]["content"][0];
            assert_eq!((&part["text"], joined(&part["logprobs"])), (&json!(said), said.to_owned()), "{written}");
            let events = events(&server, PATH, &body).await;
            let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
            assert_eq!(deltas.map(|event| joined(&event["logprobs"])).collect::<String>(), said, "{written}");
        }
    }
}

#[tokio::test]
async fn thoughts_travel_back_through_encrypted_content() {
    let server = Server::start();
    let count = async |input: Value| {
        respond(&server, &json!({ "input": input, "max_output_tokens": 1 })).await["usage"]["input_tokens"].clone()
    };
    let user = json!({ "role": "user", "content": "x" });
    let items = [
        json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "a" }] }),
        json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" }),
        json!({ "type": "function_call_output", "call_id": "1", "output": [{ "type": "input_text", "text": "42" }] }),
        json!({ "type": "custom_tool_call", "call_id": "2", "name": "g", "input": "y" }),
        json!({ "type": "custom_tool_call_output", "call_id": "2", "output": "z" }),
    ];
    let foreign = json!({ "type": "reasoning", "summary": [], "encrypted_content": "gAAAA" });
    let without = [[user.clone()].as_slice(), &items].concat();
    let with = [[user, foreign].as_slice(), &items].concat();
    // A thought of another server is left out.
    assert_eq!(count(json!(with)).await, count(json!(without)).await);
}

#[tokio::test]
async fn wrong_requests_are_rejected_with_their_path() {
    let server = Server::start();
    let cases = [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "screenshot" }] }), "input[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "tools": [{ "type": "namespace", "name": "x" }] }), "tools[0].tools"),
        (
            json!({ "tools": [{ "type": "namespace", "name": "x", "tools": [{ "type": "mcp" }] }] }),
            "tools[0].tools[0].type",
        ),
        (json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }), "input[0].content[0].type"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_json", "data": {} }] }] }),
            "input[0].content[0].type",
        ),
        (json!({ "input": [{ "type": "function_call_output", "call_id": "9", "output": "x" }] }), "input[0].call_id"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "background": true }), "background"),
        (json!({ "prompt": { "id": "x" } }), "prompt"),
        (json!({ "include": ["everything"] }), "include"),
        (json!({ "tools": [{ "type": "teleport" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].name"),
        (json!({ "tools": [function("f")], "tool_choice": { "type": "function", "name": "g" } }), "tool_choice"),
        (json!({ "tools": [{ "type": "web_search" }], "tool_choice": { "type": "web_search" } }), "tool_choice"),
        (json!({ "tools": [{ "type": "web_search" }], "tool_choice": "required" }), "tool_choice"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "x" } } }), "text.format.schema"),
        (json!({ "reasoning": { "effort": "some" } }), "reasoning.effort"),
        (json!({ "metadata": { "a": 1 } }), "metadata.a"),
        (json!({ "n": 2 }), "n"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
    ];
    for (more, param) in cases {
        let mut body = json!({ "input": "x" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post_to(PATH, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        answer.error();
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.text);
    }
}
