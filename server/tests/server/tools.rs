//! Tools: how they are rendered into the prompt, which calls the grammar enforces, and how calls are parsed.

use std::path::Path;

use axum::http::StatusCode;
use hearth_model::{
    text::{
        chat::ChatTemplate,
        tokenizer::{EncodeOptions, Tokenizer},
    },
    weights::model_dir::LoadedModel,
};
use hearth_server::engine::Engine;
use serde_json::{Value, json};

use crate::{
    structured::{check, schemas},
    support::{CHAT, EOS, OPTIONS, Server, model, tokenizer, tokenizer_files},
};

/// Chat templates of the model families, shortened.
const HERMES: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools> like <tool_call>{% endif %}{% for message in \
    messages %}[{{ message.role }}]{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>\
    {{ call.function.arguments | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}[assistant]";
const LLAMA: &str = "{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}{% if not tools is defined %}\
    {% set tools = none %}{% endif %}{% if tools %}{{ tools | tojson }} Respond with {\"name\": .., \"parameters\": ..}{% endif %}\
    {% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]";
const MISTRAL: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for message in \
    messages %}{% if message.tool_calls %}[TOOL_CALLS][{% for call in message.tool_calls %}{% if call.id|length != 9 %}\
    {{ raise_exception('9 letters') }}{% endif %}{{ call.function | tojson }}{% endfor %}]{% else %}[INST]\
    {{ message.content }}[/INST]{% endif %}{% endfor %}";
const MISTRAL_NAMED: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for message \
    in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name + \
    '[ARGS]' }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}";
const GRANITE: &str = "{% if tools %}respond only with <|tool_call|> followed by a JSON list {{ tools | tojson }}{% endif %}\
    {% for message in messages %}[{{ message.role }}]{{ message.content }}<|end|>{% endfor %}[assistant]";
const NO_SYSTEM: &str = "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}\
    {% endif %}[{{ message.role }}]{{ message.content }}{% endfor %}";
/// Renders earlier calls in its own format, with arguments as strings, and does not render tools.
const CALLS_ONLY: &str = "{% for message in messages %}[{{ message.role }}]{% if message.content is none %}{% for call in \
    message.tool_calls %}<call>{{ call.function.name + call.function.arguments }}</call>{% endfor %}{% else %}{{ message.content }}{% endif %}{% endfor %}";
const OTHER: &str = "{% if tools %}[AVAILABLE]{{ tools | tojson }}{% endif %}{{ messages[0].content }}";

fn server(template: &'static str) -> Server {
    server_with(template, tokenizer())
}

fn server_with(template: &'static str, tokenizer: Tokenizer) -> Server {
    let load = move || {
        let chat_template = Some(ChatTemplate::new(template, Path::new("chat_template.jinja"))?);
        Ok(LoadedModel { chat_template, tokenizer, ..model() })
    };
    let engine = Engine::start(load, OPTIONS).unwrap();
    Server::trusting_templates(engine)
}

/// The token `and`, which a mark replaces in the vocabulary.
const MARK: u32 = EOS - 1;

/// A tokenizer with a mark as a special token.
fn tokenizer_with(mark: &str) -> Tokenizer {
    let [json, config] = tokenizer_files();
    let mut json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["model"]["vocab"].as_object_mut().unwrap().shift_remove("and"), Some(json!(MARK)));
    assert_eq!(json["model"]["merges"].as_array_mut().unwrap().pop(), Some(json!("an d")));
    let tokens = json["added_tokens"].as_array_mut().unwrap();
    let mut token = tokens[0].clone();
    (token["id"], token["content"]) = (json!(MARK), json!(mark));
    tokens.insert(0, token);
    Tokenizer::from_json(json.to_string().as_bytes(), Some(&config), Path::new("tokenizer.json")).unwrap()
}

fn user() -> Value {
    json!([{ "role": "user", "content": "x" }])
}

pub(crate) fn tool(name: &str, parameters: &Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } })
}

fn two_tools() -> Value {
    json!([tool("first", &schemas()[0]), tool("second-2", &schemas()[2])])
}

/// Whether this is the id of a call: in OpenAI's form, or nine letters and digits, as Mistral's templates require.
fn is_id(id: &Value) -> bool {
    let id = id.as_str().unwrap();
    id.starts_with("call_") || (id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Folds the events of one choice into its message and finish reason, and checks OpenAI's rules for deltas.
pub(crate) fn fold(events: &[Value]) -> (Value, Value) {
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<Value>::new(), Value::Null);
    let mut reasoning = String::new();
    for (at, event) in events.iter().enumerate() {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        assert_eq!(delta.get("role").is_some(), at == 0, "{event}");
        assert_eq!(reason, Value::Null, "nothing follows the end");
        reason = choice["finish_reason"].clone();
        content += delta["content"].as_str().unwrap_or_default();
        assert_eq!(delta.get("reasoning"), delta.get("reasoning_content"));
        reasoning += delta["reasoning"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(is_id(&call["id"]) && call["type"] == "function", "{call}");
                assert_eq!(call["function"]["arguments"], "");
                calls.push(json!({ "name": call["function"]["name"], "arguments": "" }));
            } else {
                assert_eq!(index + 1, calls.len());
                assert!(
                    call.get("id").is_none() && call.get("type").is_none() && call["function"].get("name").is_none()
                );
                let so_far = calls[index]["arguments"].as_str().unwrap().to_owned();
                calls[index]["arguments"] = json!(so_far + call["function"]["arguments"].as_str().unwrap());
            }
        }
    }
    (read_message(&reasoning, &content, &calls), reason)
}

/// A message with its reasoning, if there is any.
fn read_message(reasoning: &str, content: &str, calls: &[Value]) -> Value {
    let mut message = json!({ "content": content, "calls": calls });
    if !reasoning.is_empty() {
        message["reasoning"] = json!(reasoning);
    }
    message
}

/// The message and finish reason of an unstreamed choice.
pub(crate) fn message(choice: &Value) -> (Value, Value) {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    assert!(calls.is_empty() || message["content"] != "", "no content is null beside calls");
    let calls: Vec<Value> = calls.into_iter().map(|mut call| call["function"].take()).collect();
    let content = message["content"].as_str().unwrap_or_default();
    assert_eq!(message.get("reasoning"), message.get("reasoning_content"));
    let reasoning = message["reasoning"].as_str().unwrap_or_default();
    (read_message(reasoning, content, &calls), choice["finish_reason"].clone())
}

/// Checks that every call names one of the tools, with arguments that follow its schema; returns the number of calls.
fn check_calls(calls: &Value) -> usize {
    let calls = calls.as_array().unwrap();
    for call in calls {
        let tools = two_tools();
        let tool = tools.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == call["name"]).unwrap();
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        let schema = &tool["function"]["parameters"];
        check(schema, &arguments, schema).unwrap();
    }
    calls.len()
}

#[tokio::test]
async fn required_tool_calls_follow_their_schemas_and_stream_equally() {
    // How many of 16 answers the tiny model completes depends on the text around its calls.
    for (template, at_least) in [
        (HERMES, 12),
        (LLAMA, 12),
        (OTHER, 12),
        (crate::support::CHAT_TEMPLATE, 12),
        (MISTRAL, 6),
        (MISTRAL_NAMED, 6),
        (GRANITE, 6),
    ] {
        let server = server(template);
        let mut n_calls = 0;
        for seed in 0..16 {
            let named = json!({ "type": "function", "function": { "name": "second-2" } });
            let choice = if seed % 2 == 0 { json!("required") } else { named };
            let body = json!({
                "messages": user(), "tools": two_tools(), "tool_choice": choice, "seed": seed, "temperature": 1.5,
                "max_tokens": 400, "parallel_tool_calls": seed % 4 == 0,
            });
            let whole = message(&server.chat(body.clone()).await["choices"][0]);
            assert_eq!(fold(&server.stream_chat(body).await), whole, "seed {seed}");
            let (message, reason) = whole;
            if reason == "tool_calls" {
                let n = check_calls(&message["calls"]);
                assert!(n >= 1 && (seed % 4 == 0 || n == 1));
                assert_eq!(message["content"], "");
                assert!(seed % 2 == 0 || message["calls"][0]["name"] == "second-2");
                n_calls += n;
            } else {
                assert_eq!(reason, "length");
            }
        }
        assert!(n_calls >= at_least, "{n_calls} calls");
    }
}

#[tokio::test]
async fn tool_call_marks_are_generated_as_special_tokens() {
    for (template, mark) in [(MISTRAL, "[TOOL_CALLS]"), (MISTRAL_NAMED, "[ARGS]"), (GRANITE, "<|tool_call|>")] {
        let server = server_with(template, tokenizer_with(mark));
        let mut n_calls = 0;
        for seed in 0..8 {
            let body = json!({
                "messages": user(), "tools": [tool("f", &json!({ "type": "object", "additionalProperties": false }))],
                "tool_choice": "required", "parallel_tool_calls": false, "seed": seed, "temperature": 1.5,
                "max_tokens": 200, "return_token_ids": true,
            });
            let choice = server.chat(body.clone()).await["choices"][0].take();
            let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
            assert_eq!(ids.iter().filter(|id| **id == MARK).count(), 1, "{template}: {ids:?}");
            assert_eq!(fold(&server.stream_chat(body).await), message(&choice), "seed {seed}");
            for call in choice["message"]["tool_calls"].as_array().unwrap() {
                assert!(call["function"]["name"] == "f" && is_id(&call["id"]), "{call}");
                assert_eq!(call["id"].as_str().unwrap().len() == 9, template != GRANITE, "{call}");
                n_calls += 1;
            }
        }
        assert!(n_calls > 0);
    }
}

#[tokio::test]
async fn special_token_mark_starts_a_call_in_place_of_a_schema_answer() {
    let server = server_with(MISTRAL, tokenizer_with("[TOOL_CALLS]"));
    for (bias, reason) in [(100.0, "tool_calls"), (-100.0, "stop")] {
        let body = json!({
            "messages": user(), "tools": [tool("f", &json!({ "type": "object", "additionalProperties": false }))],
            "parallel_tool_calls": false, "response_format": { "type": "json_schema", "json_schema": {
                "name": "a", "schema": { "type": "object", "additionalProperties": false },
            } },
            "logit_bias": { MARK.to_string(): bias }, "max_tokens": 200, "seed": 1,
        });
        let whole = message(&server.chat(body.clone()).await["choices"][0]);
        assert_eq!(whole.1, reason, "{whole:?}");
        assert_eq!(fold(&server.stream_chat(body).await), whole);
    }
}

/// Parameters with a keyword that cannot be enforced.
fn different_texts() -> Value {
    json!({ "type": "object", "properties": {
        "a": { "type": "array", "items": { "type": "string", "maxLength": 2 }, "maxItems": 2, "uniqueItems": true },
    } })
}

#[tokio::test]
async fn keywords_that_cannot_be_enforced_are_passed_over_in_tools_that_are_not_strict() {
    let server = server(HERMES);
    let body = json!({
        "messages": user(), "tools": [tool("f", &different_texts())], "tool_choice": "required",
        "parallel_tool_calls": false, "max_tokens": 200, "seed": 1,
    });
    let choice = server.chat(body).await["choices"][0].clone();
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{arguments}");
}

#[tokio::test]
async fn function_without_parameters_is_called_with_an_empty_object() {
    let server = server(HERMES);
    for parameters in [json!({ "type": "object", "properties": {} }), json!({ "type": "object" }), json!({})] {
        for seed in 0..3 {
            let body = json!({
                "messages": user(), "tools": [tool("f", &parameters)], "tool_choice": "required", "temperature": 1.5,
                "parallel_tool_calls": false, "max_tokens": 100, "seed": seed,
            });
            let choice = server.chat(body).await["choices"][0].clone();
            let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({}), "{parameters}");
        }
    }
}

#[tokio::test]
async fn generated_tool_call_id_is_accepted_in_the_next_request() {
    let server = server(MISTRAL);
    let tools = json!([tool("f", &json!({ "type": "object", "additionalProperties": false }))]);
    let body = json!({
        "messages": user(), "tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 200,
        "seed": 1,
    });
    let asked = server.chat(body).await["choices"][0]["message"].take();
    let id = asked["tool_calls"][0]["id"].clone();
    let messages = json!([user()[0], asked, { "role": "tool", "tool_call_id": id, "content": "r" }]);
    server.chat(json!({ "messages": messages, "tools": tools, "max_tokens": 1 })).await;
}

#[tokio::test]
async fn response_schema_with_tools_gives_valid_answers_or_valid_calls() {
    for template in [HERMES, LLAMA] {
        let server = server(template);
        let (mut n_calls, mut n_answers) = (0, 0);
        let schema = &schemas()[4];
        for seed in 0..40 {
            let body = json!({
                "messages": user(), "tools": two_tools(), "seed": seed, "temperature": 1.8, "max_tokens": 400,
                "response_format": { "type": "json_schema", "json_schema": { "name": "a", "schema": schema } },
                // Biases on `<`, `{` and `n` shift the output from answers to calls as the seed grows.
                "logit_bias": { "60": f64::from(seed) / 2.0, "123": 6.0, "110": f64::from(seed) / 2.0 },
            });
            let whole = message(&server.chat(body.clone()).await["choices"][0]);
            assert_eq!(fold(&server.stream_chat(body).await), whole, "seed {seed}");
            let (message, reason) = whole;
            if reason == "tool_calls" {
                n_calls += check_calls(&message["calls"]);
            } else if reason == "stop" {
                let value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
                check(schema, &value, schema).unwrap();
                n_answers += 1;
            }
        }
        assert!(n_calls > 0 && n_answers > 0, "{n_calls} calls, {n_answers} answers");
    }
}

#[tokio::test]
async fn chat_templates_receive_tools_calls_and_results() {
    let prompt = async |template: &'static str, messages: Value, tools: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 1, "return_token_ids": true });
        if !tools.is_null() {
            body["tools"] = tools;
        }
        let ids = server(template).chat(body).await["prompt_token_ids"].clone();
        let ids: Vec<u32> = serde_json::from_value(ids).unwrap();
        let options = hearth_model::text::tokenizer::DecodeOptions { skip_special_tokens: false };
        let text = tokenizer().decode(&ids, options);
        assert_eq!(tokenizer().encode(&text, EncodeOptions::RENDERED).unwrap(), ids);
        text
    };
    let one = json!([tool("f", &json!({ "type": "object" }))]);
    let listed =
        r#"[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]"#;
    assert!(prompt(HERMES, user(), one.clone()).await.starts_with(&format!("<tools>{listed}</tools>")));
    let call =
        |arguments: &str| json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": arguments } });
    let history = json!([
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": null, "tool_calls": [call("{\"a\": 1}"), call("{}")] },
        { "role": "tool", "tool_call_id": "1", "content": "r1" },
        { "role": "tool", "tool_call_id": "2", "content": "r2" },
    ]);
    // A template that renders calls gets the arguments as an object.
    let text = prompt(HERMES, history.clone(), one.clone()).await;
    assert!(
        text.contains("[assistant]<tool_call>{\"a\": 1}</tool_call><tool_call>{}</tool_call><|end|>[tool]r1"),
        "{text}"
    );
    // A template that renders calls but not tools writes earlier calls itself. If the request has tools, they are
    // rendered as text in the format that the model is to use for new ones.
    let text = prompt(CALLS_ONLY, history.clone(), Value::Null).await;
    assert_eq!(text, "[user]q[assistant]<call>f{\"a\": 1}</call><call>f{}</call>[tool]r1[tool]r2");
    let text = prompt(CALLS_ONLY, history.clone(), one.clone()).await;
    assert!(text.contains("[assistant]<tool_call>\n{\"name\": \"f\", ") && !text.contains("<call>"), "{text}");
    let text = prompt(crate::support::CHAT_TEMPLATE, history, one.clone()).await;
    assert!(text.starts_with("[system]You can call the functions"), "{text}");
    assert!(text.contains("<tools>\n{\"type\":\"function\","), "{text}");
    let said =
        "[user]q<|end|>[assistant]<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>";
    assert!(text.contains(said), "{text}");
    let results =
        "[user]<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response><|end|>[assistant]";
    assert!(text.ends_with(results), "{text}");
    // The text of arguments is kept as the client sent it; if it is not a JSON object, it is rendered as a string. No
    // text is no arguments.
    for (arguments, written) in [
        ("", "{}"),
        ("{\"b\":  123456789012345678901234}", "{\"b\":  123456789012345678901234}"),
        ("{\"b\": ", "\"{\\\"b\\\": \""),
        ("7", "\"7\""),
    ] {
        let history = json!([
            { "role": "assistant", "content": null, "tool_calls": [call(arguments)] },
            { "role": "user", "content": "q" },
        ]);
        let text = prompt(crate::support::CHAT_TEMPLATE, history, one.clone()).await;
        let said = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {written}}}\n</tool_call>");
        assert!(text.contains(&said), "{text}");
    }
    let system = json!([{ "role": "system", "content": "s" }, { "role": "user", "content": "q" }]);
    let text = prompt(crate::support::CHAT_TEMPLATE, system, one).await;
    assert!(text.starts_with("[system]s\n\nYou can call"), "{text}");
    let text = prompt(NO_SYSTEM, user(), json!([tool("f", &json!({}))])).await;
    assert!(text.starts_with("[user]You can call") && text.ends_with("</tool_call>\n\nx"), "{text}");
}

#[tokio::test]
async fn invalid_tool_requests_are_rejected_with_the_field_path() {
    let server = server(HERMES);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let tools = |tools: Value| json!({ "tools": tools });
    let f = || named("f");
    let forced = |parameters: Value| json!({ "tools": [tool("f", &parameters)], "tool_choice": "required" });
    let cases = [
        (tools(json!(1)), "tools", "an array"),
        (tools(json!([1])), "tools[0]", "must be an object"),
        (tools(json!([{ "function": {} }])), "tools[0].type", "Missing required"),
        (tools(json!([{ "type": "web_search" }])), "tools[0].type", "`function`"),
        (tools(json!([{ "type": "function" }])), "tools[0].function", "Missing required"),
        (tools(json!([{ "type": "function", "function": {} }])), "tools[0].function.name", "Missing required"),
        (tools(json!([f(), named("a b")])), "tools[1].function.name", "`^[a-zA-Z0-9_-]+$`"),
        (tools(json!([named(&"x".repeat(65))])), "tools[0].function.name", "maximum length 64"),
        (tools(json!([named("")])), "tools[0].function.name", "empty string"),
        (tools(json!([f(), f()])), "tools[1].function.name", "unique"),
        (
            tools(json!([{ "type": "function", "function": { "name": "f", "parameters": 1 } }])),
            "tools[0].function.parameters",
            "an object",
        ),
        (forced(json!({ "type": "string" })), "tools[0].function.parameters", "`type: \"object\"`"),
        (
            forced(json!({ "type": "object", "properties": { "a": { "type": "int" } } })),
            "tools[0].function.parameters.properties.a",
            "int",
        ),
        (
            tools(
                json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": different_texts() } }]),
            ),
            "tools[0].function.parameters.properties.a.uniqueItems",
            "cannot be enforced",
        ),
        (json!({ "tools": [f()], "tool_choice": "any" }), "tool_choice", "`required`"),
        (json!({ "tools": [f()], "tool_choice": named("g") }), "tool_choice", "not found in `tools`"),
        (
            json!({ "tools": [f()], "tool_choice": { "type": "function" } }),
            "tool_choice.function.name",
            "Missing required",
        ),
        (json!({ "tool_choice": "required" }), "tool_choice", "only allowed when `tools`"),
        (json!({ "tool_choice": "auto" }), "tool_choice", "only allowed when `tools`"),
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice", "only allowed when `tools`"),
        (json!({ "parallel_tool_calls": false }), "parallel_tool_calls", "only allowed when `tools`"),
        (
            json!({ "tools": [f()], "tool_choice": "required", "response_format": { "type": "json_object" } }),
            "response_format",
            "`tool_choice`",
        ),
        (json!({ "tools": [f()], "guided_regex": "a" }), "guided_regex", "`tools`"),
        (json!({ "messages": [{ "role": "tool", "content": "r" }] }), "messages[0].tool_call_id", "Missing required"),
        (json!({ "messages": [{ "role": "assistant", "tool_calls": 1 }] }), "messages[0].tool_calls", "an array"),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{}] }] }),
            "messages[0].tool_calls[0].function.name",
            "Missing",
        ),
    ];
    for (mut body, param, message) in cases {
        if body.get("messages").is_none() {
            body["messages"] = user();
        }
        body["max_tokens"] = json!(2);
        let answer = server.post_to(CHAT, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{body}: {}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.error());
    }
    // `none` leaves the tools out of the prompt, and an empty or null list is no list. A template may write calls in a form
    // that is not known.
    for body in [
        json!({ "tools": [f()], "tool_choice": "auto", "chat_template": OTHER }),
        json!({ "tools": [f()], "tool_choice": "none" }),
        json!({ "tools": [], "tool_choice": "none" }),
        json!({ "tools": [], "tool_choice": "auto" }),
        json!({ "tools": [], "tool_choice": "auto", "parallel_tool_calls": false }),
        json!({ "tools": [], "parallel_tool_calls": true }),
        json!({ "tools": null }),
    ] {
        let mut body = body;
        body["messages"] = user();
        body["max_tokens"] = json!(2);
        let answer = server.chat(body).await;
        assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    }
}
