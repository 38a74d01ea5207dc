//! `suffix`: the model fills in the text between prompt and suffix, if its vocabulary has tokens for that.

use std::path::Path;

use axum::http::StatusCode;
use hearth_engine::EngineStats;
use hearth_model::{
    text::tokenizer::{EncodeOptions, Tokenizer},
    weights::model_dir::LoadedModel,
};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};

use crate::support::{MAX_SEQ_LEN, MODEL, OPTIONS, Server, fold, is_idle, model, tokenizer_files};

const PREFIX: u32 = 259;
const SUFFIX: u32 = 260;
const MIDDLE: u32 = 261;

/// The tiny model's tokenizer, with StarCoder's special tokens in place of `er`, `an` and `and`.
fn tokenizer() -> Tokenizer {
    let [json, config] = tokenizer_files();
    let mut json: Value = serde_json::from_slice(&json).unwrap();
    let special = [("<fim_prefix>", PREFIX), ("<fim_suffix>", SUFFIX), ("<fim_middle>", MIDDLE)];
    for (at, (token, (content, id))) in ["er", "an", "and"].into_iter().zip(special).enumerate() {
        assert_eq!(json["model"]["vocab"].as_object_mut().unwrap().remove(token), Some(json!(id)));
        let added = json!({
            "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        });
        // Added tokens are ordered by id.
        json["added_tokens"].as_array_mut().unwrap().insert(at, added);
    }
    json["model"]["merges"].as_array_mut().unwrap().truncate(3);
    Tokenizer::from_json(json.to_string().as_bytes(), Some(&config), Path::new("tokenizer.json")).unwrap()
}

fn server() -> Server {
    let engine = Engine::start(|| Ok(LoadedModel { tokenizer: tokenizer(), ..model() }), OPTIONS).unwrap();
    Server { state: AppState::ready(MODEL, engine.clone()), engine }
}

#[tokio::test]
async fn suffix_builds_the_fill_in_the_middle_prompt_of_the_model() {
    let server = server();
    let ids = |text: &str| tokenizer().encode(text, EncodeOptions::TEXT).unwrap();
    let body = json!({
        "prompt": ["def the(", ids("x = ")], "suffix": ")\n<fim_middle>", "max_tokens": 6, "temperature": 0,
        "ignore_eos": true, "return_token_ids": true, "logprobs": 1,
    });
    let filled = server.complete(body.clone()).await;
    for (choice, before) in filled["choices"].as_array().unwrap().iter().zip(["def the(", "x = "]) {
        // A special token written in the suffix is plain text.
        let expected = [&[PREFIX], ids(before).as_slice(), &[SUFFIX], &ids(")\n<fim_middle>"), &[MIDDLE]].concat();
        assert_eq!(choice["prompt_token_ids"], json!(expected));
        let same = json!({ "prompt": expected, "max_tokens": 6, "temperature": 0, "ignore_eos": true });
        assert_eq!(server.complete(same).await["choices"][0]["text"], choice["text"]);
    }
    let n_prompt: usize = filled["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["prompt_token_ids"].as_array().unwrap().len())
        .sum();
    assert_eq!(filled["usage"]["prompt_tokens"], n_prompt);
    assert_eq!(json!(fold(&server.stream(body).await))[0]["text"], filled["choices"][0]["text"]);
    // A model that generates a fill-in-the-middle token has finished.
    let ends = json!({ "prompt": "x", "suffix": "y", "logit_bias": { (PREFIX.to_string()): 100 } });
    let ended = server.complete(ends.clone()).await;
    let choice = &ended["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"], &choice["stop_reason"]),
        (&json!(""), &json!("stop"), &Value::Null)
    );
    let mut plain = ends;
    plain["suffix"] = json!("");
    assert_eq!(server.complete(plain).await["choices"][0]["finish_reason"], "length", "an empty suffix is none");
    server.wait_for(|stats: &EngineStats| is_idle(stats)).await;
}

#[tokio::test]
async fn suffix_is_rejected_without_fim_tokens_or_with_echo_or_truncation() {
    let (knows, knows_not) = (server(), Server::start());
    let cases = [
        (&knows_not, json!({}), "trained to fill in the middle"),
        (&knows, json!({ "echo": true }), "cannot be combined with `echo`"),
        (&knows, json!({ "truncate_prompt_tokens": 3 }), "cannot be combined with `truncate_prompt_tokens`"),
    ];
    for (server, mut body, message) in cases {
        body["prompt"] = json!("x");
        body["suffix"] = json!("y");
        let answer = server.post(body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.error().contains(message), "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], "suffix");
    }
}

#[tokio::test]
async fn infill_endpoint_has_the_prompt_and_the_answer_of_llama_cpp() {
    let server = server();
    let ids = |text: &str| tokenizer().encode(text, EncodeOptions::TEXT).unwrap();
    let body = json!({
        "input_prefix": "def the(", "input_suffix": ")\n<fim_middle>", "prompt": "x, ", "n_predict": 6, "temperature": 0,
        "ignore_eos": true, "input_extra": [{ "filename": "a.py", "text": "in = 1", "time": 3 }], "return_tokens": true,
        "cache_prompt": true, "samplers": ["top_k", "infill", "temperature"],
    });
    let answer = server.post_to("/infill", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    assert_eq!(answer.header("x-ignored-params"), "");
    let whole = answer.json();
    // The model has no token for files: they are snippets. A special token written in a text is plain text.
    let files = ids("\n\n--- snippet ---\n\nin = 1");
    let parts: [&[u32]; 7] =
        [&files, &[PREFIX], &ids("def the("), &[SUFFIX], &ids(")\n<fim_middle>"), &[MIDDLE], &ids("x, ")];
    let same = json!({
        "prompt": parts.concat(), "max_tokens": 6, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    });
    let same = server.complete(same).await["choices"][0].clone();
    assert_eq!((&whole["content"], &whole["tokens"]), (&same["text"], &same["token_ids"]));
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["truncated"]),
        (&json!(true), &json!("limit"), &json!(false))
    );
    assert_eq!((&whole["tokens_predicted"], &whole["tokens_evaluated"]), (&json!(6), &json!(parts.concat().len())));
    assert!(whole["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0);
    // Streamed: the same text, and the last event has the rest.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let text = server.post_to("/infill", streamed.to_string()).await.text;
    let events: Vec<Value> =
        text.lines().filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap())).collect();
    let (last, pieces) = events.split_last().unwrap();
    let joined: String = pieces.iter().map(|piece| piece["content"].as_str().unwrap()).collect();
    assert_eq!((json!(joined), &last["content"]), (whole["content"].clone(), &json!("")));
    assert!(pieces.iter().all(|piece| piece["stop"] == false && piece.get("timings").is_none()));
    assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("limit")));
    // Editors ask for some members by path, and warm the cache up with no tokens at all.
    let mut some = body.clone();
    some["response_fields"] = json!(["content", "timings/prompt_n", "nothing"]);
    let some = server.post_to("/infill", some.to_string()).await.json();
    assert_eq!(some.as_object().unwrap().keys().collect::<Vec<_>>(), ["content", "timings/prompt_n"]);
    assert_eq!(some["content"], whole["content"]);
    let mut none = body.clone();
    none["n_predict"] = json!(0);
    let none = server.post_to("/infill", none.to_string()).await.json();
    assert_eq!((&none["content"], &none["tokens_predicted"]), (&json!(""), &json!(0)));
    let mut stopped = body;
    stopped["stop"] = json!([whole["content"].as_str().unwrap().chars().next().unwrap()]);
    let stopped = server.post_to("/infill", stopped.to_string()).await.json();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &stopped["stopping_word"]));
}

#[tokio::test]
async fn infill_endpoint_rejects_what_it_cannot_do_by_name() {
    let (knows, knows_not) = (server(), Server::start());
    let cases = [
        (&knows_not, json!({}), "input_prefix", "trained to fill in the middle"),
        (&knows, json!({ "input_prefix": null }), "input_prefix", "Missing required parameter"),
        (&knows, json!({ "input_suffix": 3 }), "input_suffix", "a string"),
        (&knows, json!({ "prompt": ["x"] }), "prompt", "a string"),
        (&knows, json!({ "input_extra": ["x"] }), "input_extra[0]", "an object"),
        (&knows, json!({ "input_extra": [{ "filename": "x" }] }), "input_extra[0].text", "Missing"),
        (&knows, json!({ "n_predict": -2 }), "n_predict", "from 0 up"),
        (&knows, json!({ "n_predict": 1, "max_tokens": 2 }), "n_predict", "the same limit"),
        (&knows, json!({ "n": 2 }), "n", "not supported by this endpoint"),
        (&knows, json!({ "grammar": "root ::= x" }), "grammar", "not supported"),
        (&knows, json!({ "samplers": ["infill", "best"] }), "samplers", "best"),
    ];
    for (server, more, param, message) in cases {
        let mut body = json!({ "input_prefix": "x", "input_suffix": "y" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post_to("/infill", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
}

/// Where a prompt cannot be cut, no hint names the parameter that would cut it.
#[tokio::test]
async fn long_texts_have_a_hint_that_the_endpoint_can_follow() {
    let server = server();
    let long = "x".repeat(MAX_SEQ_LEN + 1);
    let question = json!({ "type": "predicate", "instructions": "x" });
    for (path, body) in [
        ("/infill", json!({ "input_prefix": long, "input_suffix": "y" })),
        ("/infill", json!({ "input_prefix": "x".repeat(MAX_SEQ_LEN - 1), "input_suffix": "y" })),
        ("/v1/completions", json!({ "prompt": long, "suffix": "y" })),
        ("/v1/decisions", json!({ "input": long, "questions": [question] })),
    ] {
        let answer = server.post_to(path, body.to_string()).await;
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded", "{path}");
        assert!(answer.error().ends_with("\nhint: shorten the text"), "{path}: {}", answer.error());
    }
    let answer = server.post_to("/v1/completions", json!({ "prompt": long }).to_string()).await;
    assert!(answer.error().contains("hint: `truncate_prompt_tokens`"), "{}", answer.error());
}
