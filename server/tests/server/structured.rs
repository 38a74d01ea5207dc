//! Structured output: a finished answer always has the requested form.

use axum::http::StatusCode;
use hearth_engine::EngineOptions;
use hearth_model::{
    system::device::{DeviceChoice, choose},
    weights::model_dir::{LoadOptions, load},
};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};
use tokio::{runtime::Runtime, time::timeout};

use crate::support::{CHAT, EOS, MODEL, OPTIONS, Server, TEST_TIMEOUT, fold, is_idle, metric, wait_for};

/// Schemas with the keywords that clients use most. Strings are short, so that a random model finishes them.
pub(crate) fn schemas() -> Vec<Value> {
    vec![
        json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 12 },
                "age": { "type": "integer", "minimum": 0, "maximum": 120 },
                "address": {
                    "type": "object",
                    "properties": { "city": { "type": "string", "maxLength": 8 }, "zip": { "type": ["string", "null"], "maxLength": 5 } },
                    "required": ["city"],
                    "additionalProperties": false,
                },
            },
            "required": ["name", "age", "address"],
            "additionalProperties": false,
        }),
        json!({
            "type": "array",
            "minItems": 1,
            "maxItems": 4,
            "items": { "enum": ["red", "gr\u{fc}n", 3, null, "\u{1F600}", ["x"], "say \"hi\""] },
        }),
        json!({
            "type": "object",
            "properties": {
                "score": { "type": "number", "exclusiveMinimum": -1, "maximum": 2.5 },
                "flags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
                "kind": { "const": "a\u{e9}b" },
                "note": { "type": "string", "maxLength": 6 },
            },
            "required": ["score", "kind"],
            "additionalProperties": false,
        }),
        json!({
            "$defs": {
                "leaf": { "type": "string", "maxLength": 4 },
                "tree": {
                    "type": "object",
                    "properties": { "value": { "$ref": "#/$defs/leaf" }, "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/end" }] } },
                    "required": ["value", "next"],
                    "additionalProperties": false,
                },
                "end": { "type": "object", "properties": { "n": { "type": "integer", "minimum": -5, "maximum": 5 } }, "required": ["n"], "additionalProperties": false },
            },
            "$ref": "#/$defs/tree",
        }),
        json!({
            "anyOf": [
                { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"], "additionalProperties": false },
                { "type": "array", "items": { "type": "integer", "minimum": 10, "maximum": 99 }, "minItems": 2, "maxItems": 2 },
                { "type": "string", "maxLength": 5 },
            ],
        }),
    ]
}

/// Validates a value against a schema with the keywords used here; the error says what does not match.
pub(crate) fn check(schema: &Value, value: &Value, root: &Value) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{value} is not {what} of {schema}"));
    if let Some(reference) = schema["$ref"].as_str() {
        check(root.pointer(&reference[1..]).unwrap(), value, root)?;
    }
    if let Some(options) = schema["anyOf"].as_array()
        && !options.iter().any(|option| check(option, value, root).is_ok())
    {
        return fail("anyOf");
    }
    if let Some(options) = schema["enum"].as_array()
        && !options.contains(value)
    {
        return fail("enum");
    }
    if !schema["const"].is_null() && schema["const"] != *value {
        return fail("const");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => Vec::new(),
    };
    let is_kind = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => value.is_number(),
    };
    if !kinds.is_empty() && !kinds.iter().any(is_kind) {
        return fail("type");
    }
    if let Some(number) = value.as_f64() {
        let bound = |name: &str| schema[name].as_f64();
        let is_within = bound("minimum").is_none_or(|least| number >= least)
            && bound("maximum").is_none_or(|most| number <= most)
            && bound("exclusiveMinimum").is_none_or(|least| number > least);
        if !is_within {
            return fail("within the bounds");
        }
    }
    if let Some(text) = value.as_str()
        && schema["maxLength"].as_u64().is_some_and(|most| text.chars().count() > most as usize)
    {
        return fail("maxLength");
    }
    if let Some(items) = value.as_array() {
        let n = items.len() as u64;
        if schema["minItems"].as_u64().is_some_and(|least| n < least)
            || schema["maxItems"].as_u64().is_some_and(|most| n > most)
        {
            return fail("the number of items");
        }
        items.iter().try_for_each(|item| check(&schema["items"], item, root))?;
    }
    if let Some(members) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !members.contains_key(name.as_str().unwrap()) {
                return fail("required");
            }
        }
        for (name, member) in members {
            match schema["properties"].get(name) {
                Some(schema) => check(schema, member, root)?,
                None if schema["additionalProperties"] == false => return fail("additionalProperties"),
                None => {}
            }
        }
    }
    Ok(())
}

fn response_format(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "answer", "strict": true, "schema": schema } })
}

/// Checks a hundred answers for each schema at a high temperature. Returns how many were finished.
async fn answers_follow_their_schemas(server: &Server, max_tokens: usize) -> usize {
    let mut n_finished = 0;
    for schema in schemas() {
        for seed in 0..5 {
            let body = json!({
                "messages": [{ "role": "user", "content": "Answer in JSON." }],
                "response_format": response_format(&schema),
                "n": 20, "seed": seed, "temperature": 1.5, "max_tokens": max_tokens,
            });
            let answer = server.chat(body).await;
            for choice in answer["choices"].as_array().unwrap() {
                if choice["finish_reason"] == "length" {
                    continue;
                }
                assert_eq!(choice["finish_reason"], "stop");
                let text = choice["message"]["content"].as_str().unwrap();
                let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
                check(&schema, &value, &schema).unwrap();
                n_finished += 1;
            }
        }
    }
    n_finished
}

#[tokio::test]
async fn finished_answers_follow_their_json_schema() {
    let n_finished = answers_follow_their_schemas(&Server::start(), 300).await;
    assert!(n_finished > 450, "{n_finished} of 500 came to their end");
}

#[tokio::test]
async fn smollm2_finished_answers_follow_their_json_schema() {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2=DIR to the Hugging Face dir of SmolLM2-135M-Instruct to run");
        return;
    };
    let load = move || {
        let device = choose(DeviceChoice::Cpu)?.device;
        load(dir.as_ref(), &LoadOptions { device, dtype: None })
    };
    let options = EngineOptions { max_batch_size: 20, max_batch_tokens: 128, kv_cache_tokens: Some(8192), ..OPTIONS };
    let engine = Engine::start(load, options).unwrap();
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let n_finished = answers_follow_their_schemas(&server, 120).await;
    assert!(n_finished > 450, "{n_finished} of 500 came to their end");
}

#[tokio::test]
async fn streamed_answers_equal_unstreamed_ones_under_each_constraint() {
    let server = Server::start();
    let lark = "start: \"a\" (\"b\" | \"\u{e9}\")+ \"z\"";
    let constraints = [
        json!({ "response_format": response_format(&schemas()[0]) }),
        json!({ "structured_outputs": { "json": schemas()[1] } }),
        json!({ "structured_outputs": { "regex": "[a-f\u{65e5}]{3,9}!" }, "stop": ["fa"] }),
        json!({ "structured_outputs": { "choice": ["the", "then", "\"a\\ b\"\n"] }, "logprobs": 2 }),
        json!({ "structured_outputs": { "grammar": lark } }),
        json!({ "guided_choice": ["one", "two"], "logit_bias": { "262": 50 } }),
    ];
    for (seed, constraint) in constraints.iter().cycle().take(24).enumerate() {
        let mut body =
            json!({ "prompt": ["x", "the hand"], "n": 2, "seed": seed, "max_tokens": 60, "temperature": 1.3 });
        body.as_object_mut().unwrap().extend(constraint.as_object().unwrap().clone());
        let whole = server.complete(body.clone()).await;
        assert_eq!(json!(fold(&server.stream(body).await)), whole["choices"], "{constraint}");
    }
}

#[tokio::test]
async fn finished_answers_satisfy_each_kind_of_constraint() {
    let server = Server::start();
    type Check = fn(&str) -> bool;
    let is_json_object: Check = |text| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    let is_date: Check = |text| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() == 2
            && parts.iter().zip([4, 2]).all(|(part, n)| part.len() == n && part.bytes().all(|b| b.is_ascii_digit()))
    };
    let is_choice: Check = |text| ["yes", "yes please", "\u{65e5}\u{672c} \"x\""].contains(&text);
    let is_sum: Check =
        |text| text.split('+').all(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    let choices = json!(["yes", "yes please", "\u{65e5}\u{672c} \"x\""]);
    // More than the parser's limit of alternatives in a rule.
    let numbers: Vec<String> = (0..3000).map(|number| format!("number {number}")).collect();
    let is_number: Check = |text| {
        text.strip_prefix("number ").is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number < 3000))
    };
    let cases: [(Value, Check); 11] = [
        (json!({ "guided_choice": numbers }), is_number),
        (json!({ "response_format": { "type": "json_object" } }), is_json_object),
        (json!({ "structured_outputs": { "json_object": true } }), is_json_object),
        (json!({ "structured_outputs": { "json": "{\"type\": \"object\"}" } }), is_json_object),
        (json!({ "structured_outputs": { "regex": r"^\d{4}-[\d]{2}$" }, "grammar": "" }), is_date),
        // As vLLM's clients write out all members.
        (
            json!({ "structured_outputs": {
                "json": null, "regex": r"^\d{4}-[\d]{2}$", "choice": null, "grammar": null, "json_object": null,
                "disable_fallback": false, "disable_any_whitespace": false, "disable_additional_properties": false,
                "whitespace_pattern": null, "structural_tag": null, "_backend": null, "_backend_was_auto": false,
            } }),
            is_date,
        ),
        (json!({ "guided_regex": "[0-9]{4}-[0-9]{2}" }), is_date),
        (json!({ "structured_outputs": { "choice": choices } }), is_choice),
        (json!({ "guided_choice": choices }), is_choice),
        (
            json!({ "structured_outputs": { "grammar": "start: NUMBER (\"+\" NUMBER){0,2}\nNUMBER: /[0-9]{1,3}/" } }),
            is_sum,
        ),
        (json!({ "guided_grammar": "start: NUMBER\nNUMBER: /[0-9]{1,3}/" }), is_sum),
    ];
    for (constraint, is_right) in cases {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "x" }], "n": 10, "seed": 3, "temperature": 1.5, "max_tokens": 200,
            "return_token_ids": true, "skip_special_tokens": false,
        });
        body.as_object_mut().unwrap().extend(constraint.as_object().unwrap().clone());
        let answer = server.chat(body).await;
        let mut n_finished = 0;
        for choice in answer["choices"].as_array().unwrap() {
            let ids = choice["token_ids"].as_array().unwrap();
            assert!(!ids[..ids.len() - 1].contains(&json!(EOS)), "a special token within the text: {choice}");
            if choice["finish_reason"] == "stop" {
                let text = choice["message"]["content"].as_str().unwrap();
                assert!(is_right(text), "{constraint}: {text:?}");
                n_finished += 1;
            }
        }
        assert!(n_finished > 0, "{constraint}");
    }
}

#[tokio::test]
async fn json_object_with_a_schema_follows_the_schema() {
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] });
    let body = json!({
        "prompt": "x", "response_format": { "type": "json_object", "schema": schema }, "n": 4, "max_tokens": 200, "seed": 1,
        "temperature": 1.5,
    });
    for choice in Server::start().complete(body).await["choices"].as_array().unwrap() {
        let value: Value = serde_json::from_str(choice["text"].as_str().unwrap()).unwrap();
        assert!(value["ok"].is_boolean() && value.as_object().is_some_and(|members| members.len() == 1), "{value}");
    }
}

#[tokio::test]
async fn constrained_answer_ends_with_length_if_cut_and_stop_if_complete() {
    let server = Server::start();
    let complete = |body: Value| {
        let server = &server;
        async move { server.complete(body).await["choices"][0].clone() }
    };
    let choice = json!({ "choice": ["abcdefgh"] });
    let cut = complete(json!({ "prompt": "x", "structured_outputs": choice, "max_tokens": 3 })).await;
    assert_eq!((&cut["text"], &cut["finish_reason"]), (&json!("abc"), &json!("length")));
    // The answer is complete with the last token that `max_tokens` allows.
    let whole = complete(json!({ "prompt": "x", "structured_outputs": choice, "max_tokens": 8 })).await;
    assert_eq!((&whole["text"], &whole["finish_reason"]), (&json!("abcdefgh"), &json!("stop")));
    // The constraint does not apply to the echo, and log-probabilities are raw.
    let body = json!({
        "prompt": "xy", "structured_outputs": choice, "max_tokens": 9, "echo": true, "logprobs": 0,
        "include_stop_str_in_output": true, "skip_special_tokens": false,
    });
    let echoed = complete(body).await;
    assert_eq!(echoed["text"], "xyabcdefgh");
    let logprobs = echoed["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(logprobs[2..].iter().any(|logprob| logprob.as_f64().unwrap() < -0.1), "{logprobs:?}");
    // A stop string may end an answer that is not JSON.
    let stopped = json!({ "prompt": "x", "structured_outputs": choice, "max_tokens": 9, "stop": ["de"] });
    assert_eq!(complete(stopped).await["text"], "abc");
    let best = json!({ "prompt": "x", "structured_outputs": { "regex": "[ab]{3}" }, "best_of": 4, "seed": 1 });
    assert_eq!(complete(best).await["text"].as_str().unwrap().len(), 3);
}

/// Some clients serialize all fields of their types: unset fields are null, also those that are unknown to this server.
#[tokio::test]
async fn null_members_of_request_objects_count_as_absent() {
    let server = Server::start();
    let regex = json!({ "regex": "[ab]{3}", "json": null, "disable_fallback": null, "structural_tag": null });
    let body = json!({ "prompt": "x", "max_tokens": 9, "structured_outputs": regex });
    assert_eq!(server.complete(body).await["choices"][0]["text"].as_str().unwrap().len(), 3);
    let unknown = json!({ "prompt": "x", "structured_outputs": { "regex": "a", "structural_tag": "x" } });
    let refused = server.post(unknown.to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.error().contains("got `structural_tag`"), "{}", refused.error());
    let none = server.post(json!({ "prompt": "x", "structured_outputs": { "regex": null } }).to_string()).await;
    assert!(none.error().contains("got none"), "{}", none.text);

    let message = json!({
        "role": "user", "content": [{ "type": "text", "text": "x", "cache_control": null }], "name": null,
        "tool_calls": null, "tool_call_id": null, "refusal": null, "audio": null,
    });
    let function = json!({ "name": "f", "description": null, "parameters": null, "strict": null, "other": null });
    let described = json!({ "name": "x", "schema": {}, "strict": null, "description": null, "other": null });
    for fields in [
        json!({ "stream_options": { "include_usage": null, "continuous_usage_stats": null, "other": null } }),
        json!({ "response_format": { "type": "text", "json_schema": null, "other": null } }),
        json!({ "response_format": { "type": "json_object", "json_schema": null } }),
        json!({ "response_format": { "type": "json_schema", "json_schema": described, "other": null } }),
        json!({ "tools": [{ "type": "function", "function": function, "other": null }], "tool_choice": "required" }),
        json!({ "tools": null, "tool_choice": null, "parallel_tool_calls": null }),
        json!({ "chat_template_kwargs": { "other": null }, "modalities": null, "logit_bias": null }),
    ] {
        let mut body = json!({ "messages": [message], "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.chat(body).await;
    }
}

#[tokio::test]
async fn preemption_does_not_change_constrained_answers() {
    let body = json!({
        "prompt": ["one", "two", "three", "four", "five", "six"], "seed": 5, "temperature": 1.5, "max_tokens": 60,
        "structured_outputs": { "regex": "([a-f]{3}-){11}[a-f]" },
    });
    let roomy = Server::start().complete(body.clone()).await;
    let tight = Server::with_options(EngineOptions { kv_cache_tokens: Some(16 * 12), ..OPTIONS });
    let answer = tight.complete(body).await;
    assert_eq!(answer["choices"], roomy["choices"]);
    assert!(metric(&tight.engine, "num_preemptions_total") > 0.0, "the test shows too little");
    wait_for(&tight.engine, is_idle).await;
}

#[tokio::test]
async fn invalid_constraints_are_rejected_with_the_field_path() {
    let server = Server::start();
    let schema = |schema: Value| json!({ "response_format": response_format(&schema) });
    let whole = "response_format.json_schema.schema";
    let choice = json!({ "choice": ["a"] });
    let cases = [
        (json!({ "response_format": { "type": "xml" } }), "response_format.type", "got `\"xml\"`"),
        (json!({ "response_format": "json" }), "response_format", "an object"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema", "Missing required"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": {} } } }),
            "response_format.json_schema.name",
            "Missing required",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a b", "schema": {} } } }),
            "response_format.json_schema.name",
            "`^[a-zA-Z0-9_-]+$`",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a" } } }),
            whole,
            "Missing required",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a", "strict": 1, "schema": {} } } }),
            "response_format.json_schema.strict",
            "true or false",
        ),
        (schema(json!({ "type": "thing" })), whole, "thing"),
        (
            schema(json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "type": "int" } } } })),
            "response_format.json_schema.schema.properties.a.items",
            "int",
        ),
        (
            schema(json!({ "properties": { "a": { "anyOf": [{ "type": "null" }, { "pattern": "(" }] } } })),
            "response_format.json_schema.schema.properties.a.anyOf.1.pattern",
            "lacks a `)`",
        ),
        (schema(json!({ "$ref": "#/$defs/gone" })), whole, "gone"),
        (
            schema(
                json!({ "properties": { "a": { "type": "array", "items": { "type": "string" }, "uniqueItems": true } } }),
            ),
            "response_format.json_schema.schema.properties.a.uniqueItems",
            "cannot be enforced",
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": { "minimum": "a" } } }),
            "response_format.schema.minimum",
            "must be a number",
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": 1 } }),
            "response_format.schema",
            "a JSON Schema",
        ),
        (
            json!({ "response_format": { "type": "text", "schema": {} } }),
            "response_format.schema",
            "only allowed with the `type` `json_object`",
        ),
        (
            json!({ "response_format": { "type": "json_object", "json_schema": { "name": "a", "schema": {} } } }),
            "response_format.json_schema",
            "only allowed with the `type` `json_schema`",
        ),
        (schema(json!({ "enum": [] })), whole, ""),
        (json!({ "structured_outputs": {} }), "structured_outputs", "got none"),
        (json!({ "structured_outputs": { "xml": 1 } }), "structured_outputs", "got `xml`"),
        (json!({ "structured_outputs": { "regex": "a(" } }), "structured_outputs.regex", ""),
        (json!({ "structured_outputs": { "regex": "" } }), "structured_outputs.regex", "empty"),
        (
            json!({ "structured_outputs": { "grammar": "start: <[262]> \"a\"" } }),
            "structured_outputs.grammar",
            "no text",
        ),
        (json!({ "structured_outputs": { "regex": 3 } }), "structured_outputs.regex", "a string"),
        (json!({ "structured_outputs": { "choice": [] } }), "structured_outputs.choice", "at least one"),
        (json!({ "structured_outputs": { "choice": ["a", 1] } }), "structured_outputs.choice", "an array of strings"),
        (json!({ "structured_outputs": { "json": "{" } }), "structured_outputs.json", "JSON Schema"),
        (
            json!({ "structured_outputs": { "json": r#"{"enum": [{"a": 1, "a": 2}]}"# } }),
            "structured_outputs.json.enum[0].a",
            "got it twice",
        ),
        (json!({ "structured_outputs": { "grammar": "start: (" } }), "structured_outputs.grammar", "1("),
        (json!({ "guided_json": { "type": "thing" } }), "guided_json", "thing"),
        // Too many values, as JSON and as text, which is not parsed to its end.
        (
            json!({ "structured_outputs": { "json": { "enum": vec![0; 20_000] } } }),
            "structured_outputs.json",
            "`structured_outputs.json` must have at most 20000 values, got more",
        ),
        (
            json!({ "structured_outputs": { "json": json!({ "enum": vec![[0]; 40_000] }).to_string() } }),
            "structured_outputs.json",
            "`structured_outputs.json` must have at most 20000 values, got more",
        ),
        // Only one constraint is allowed.
        (
            json!({ "structured_outputs": { "json": {}, "regex": "a" } }),
            "structured_outputs.regex",
            "`structured_outputs.json`",
        ),
        (
            json!({ "structured_outputs": choice, "response_format": { "type": "json_object" } }),
            "structured_outputs.choice",
            "`response_format`",
        ),
        (json!({ "structured_outputs": choice, "guided_regex": "a" }), "guided_regex", "`structured_outputs.choice`"),
        // Parameters that also decide how the answer continues or ends.
        (json!({ "structured_outputs": choice, "min_tokens": 1 }), "min_tokens", "`structured_outputs`"),
        (json!({ "structured_outputs": choice, "ignore_eos": true }), "ignore_eos", "`structured_outputs`"),
        (json!({ "structured_outputs": choice, "stop_token_ids": [3] }), "stop_token_ids", "`structured_outputs`"),
        (json!({ "structured_outputs": choice, "bad_words": ["a"] }), "bad_words", "`structured_outputs`"),
        (
            json!({ "structured_outputs": choice, "allowed_token_ids": [3] }),
            "allowed_token_ids",
            "`structured_outputs`",
        ),
        (json!({ "structured_outputs": choice, "use_beam_search": true }), "use_beam_search", "`structured_outputs`"),
    ];
    for (mut body, param, message) in cases {
        body["messages"] = json!([{ "role": "user", "content": "x" }]);
        body["max_tokens"] = json!(4);
        let answer = server.post_to(CHAT, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{body}: {}", answer.error());
        assert!(answer.error().len() < 1500 && !answer.error().contains("backtrace"), "{}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.error());
    }
}

/// Each answer has a time limit, and the runtime does not wait for work in progress when it ends: a grammar that is
/// compiled for ever fails the test and does not hang it.
#[test]
fn hostile_grammars_answer_200_or_400_and_serving_continues() {
    let runtime = Runtime::new().unwrap();
    let outcome = runtime.block_on(runtime.spawn(answer_hostile_grammars()));
    runtime.shutdown_background();
    outcome.unwrap();
}

async fn answer_hostile_grammars() {
    let server = Server::start();
    let nested = |depth: usize, open: &str, close: &str| open.repeat(depth) + "1" + &close.repeat(depth);
    let deep_schema = nested(60, "{\"items\":", "}").replace('1', "{}");
    let huge: Vec<String> = (0..200_000).map(|index| format!("v{index}")).collect();
    let wide: Vec<String> = (0..3000).map(|index| format!("value {index}")).collect();
    let doubling: serde_json::Map<String, Value> = (0..40)
        .map(|index| (format!("d{index}"), json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", index + 1) }, { "$ref": format!("#/$defs/d{}", index + 1) }] })))
        .chain([("d40".to_owned(), json!({ "type": "object" }))])
        .collect();
    let constraints = [
        json!({ "regex": "(a{1000}){1000}" }),
        json!({ "regex": "((a|b)*c){500}((a|b)*d){500}" }),
        json!({ "regex": format!("(a|b)*a(a|b){{{}}}", 30) }),
        json!({ "regex": nested(150, "(", ")") }),
        json!({ "regex": nested(5000, "(", ")") }),
        json!({ "regex": r"\w{1,5000}x" }),
        json!({ "json": deep_schema }),
        json!({ "json": { "enum": huge } }),
        json!({ "json": { "enum": wide } }),
        json!({ "json": { "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" } }),
        json!({ "json": { "$defs": { "a": { "allOf": [{ "$ref": "#/$defs/a" }] } }, "$ref": "#/$defs/a" } }),
        json!({ "json": { "$defs": doubling, "$ref": "#/$defs/d0" } }),
        json!({ "json": { "type": "array", "minItems": 10_000, "maxItems": 10_000, "items": { "type": "array", "minItems": 10_000 } } }),
        json!({ "json": { "x-guidance": { "lenient": true, "key_separator": "=" }, "type": "object" } }),
        json!({ "choice": huge }),
        json!({ "grammar": format!("start: {}", nested(5000, "(", ")")) }),
        json!({ "grammar": "start: start start | \"a\"" }),
        json!({ "grammar": "start: a a a a a a\na: b b b b b b b b\nb: c c c c c c c c\nc: d d d d d d d\nd: \"x\"?" }),
        json!({ "grammar": "start: <[262]> \"a\"" }),
        json!({ "grammar": "start: \"a\"{100000}" }),
        json!({ "grammar": "start: /(?s:.*)/ \"a\" /(?s:.*)/" }),
    ];
    for constraint in constraints {
        let shown: String = constraint.to_string().chars().take(80).collect();
        let body =
            json!({ "prompt": "x", "structured_outputs": constraint, "max_tokens": 12, "seed": 1, "temperature": 1.5 });
        let answer = timeout(TEST_TIMEOUT, server.post(body.to_string()));
        let answer = answer.await.unwrap_or_else(|_| panic!("{shown}: no answer in {TEST_TIMEOUT:?}"));
        assert!(
            answer.status == StatusCode::OK || answer.status == StatusCode::BAD_REQUEST,
            "{shown}: {}",
            answer.text
        );
        let told: String = answer.text.chars().take(200).collect();
        println!("{shown}\n  -> {} {told}", answer.status);
        let next = timeout(TEST_TIMEOUT, server.complete(json!({ "prompt": "x", "max_tokens": 1 })));
        assert!(next.await.is_ok(), "{shown}: the next request has no answer in {TEST_TIMEOUT:?}");
    }
    wait_for(&server.engine, is_idle).await;
}
