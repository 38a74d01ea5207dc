//! `/v1/inspect` on the tiny model: its answers agree with those of other endpoints, and invalid requests are rejected.

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use burn::tensor::Device;
use hearth_engine::Models;
use hearth_model::{
    config::{Experts, GptConfig},
    weights::model_dir::LoadedModel,
};
use hearth_server::{
    api::{guard::options::ApiOptions, wire::state::AppState},
    engine::Engine,
};
use serde_json::{Value, json};

use crate::support::{MODEL, OPTIONS, Server, config, engine, gpt_of, model};

const PATH: &str = "/v1/inspect";

async fn inspect(server: &Server, body: Value) -> Value {
    let answer = server.post_to(PATH, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[tokio::test]
async fn inspect_predictions_equal_prompt_logprobs() {
    let server = Server::start();
    let found = inspect(&server, json!({ "input": "inspect me", "top_logprobs": 3 })).await;
    let body = json!({ "prompt": "inspect me", "max_tokens": 1, "prompt_logprobs": 3 });
    let expected = server.complete(body).await["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
    let tokens = found["tokens"].as_array().unwrap();
    assert_eq!((tokens.len(), found["predictions"].as_array().unwrap().len()), (expected.len(), expected.len()));
    assert_eq!(
        (&found["model"], &found["attention"], &found["logit_lens"]),
        (&json!(MODEL), &Value::Null, &Value::Null)
    );
    assert_eq!((&tokens[0]["logprob"], &tokens[0]["rank"]), (&Value::Null, &Value::Null));
    for (position, token) in tokens.iter().enumerate().skip(1) {
        let of_token = &expected[position][token["id"].to_string()];
        assert!((number(&token["logprob"]) - number(&of_token["logprob"])).abs() < 1e-4, "{token} and {of_token}");
        assert_eq!(token["rank"], of_token["rank"]);
        // The predictions after the previous token.
        for top in found["predictions"][position - 1]["top_logprobs"].as_array().unwrap() {
            let listed = &expected[position][top["id"].to_string()];
            assert!((number(&top["logprob"]) - number(&listed["logprob"])).abs() < 1e-4, "{top} and {listed}");
        }
    }
}

#[tokio::test]
async fn inspect_of_messages_has_the_token_ids_of_tokenize() {
    let server = Server::start();
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let expected = server.post_to("/tokenize", body.to_string()).await.json()["tokens"].clone();
    let found = inspect(&server, body).await;
    let ids: Vec<_> = found["tokens"].as_array().unwrap().iter().map(|token| token["id"].clone()).collect();
    assert_eq!(json!(ids), expected);
}

#[tokio::test]
async fn inspect_returns_the_requested_attention_maps_and_lens_layers() {
    let server = Server::start();
    let body = json!({
        "input": [1, 2, 3, 4],
        "attention": { "layers": [1], "heads": [2, 0] },
        "logit_lens": { "layers": [0, 2], "top": 1 },
    });
    let found = inspect(&server, body).await;
    let attention = &found["attention"];
    assert_eq!(attention["shape"], json!([1, 2, 4, 4]));
    assert_eq!((&attention["layers"], &attention["heads"]), (&json!([1]), &json!([2, 0])));
    let data = BASE64_STANDARD.decode(attention["data"].as_str().unwrap()).unwrap();
    assert_eq!(data.len(), 2 * 16 * 2);
    // The first token attends to itself alone: 1.0, then zeros.
    assert_eq!(data[..8], [0, 0x3c, 0, 0, 0, 0, 0, 0]);
    let lens = &found["logit_lens"];
    assert_eq!(lens["layers"], json!([0, 2]));
    let last = lens["predictions"][1].as_array().unwrap();
    for (position, top) in last.iter().enumerate() {
        assert_eq!(top[0]["id"], found["predictions"][position]["top_logprobs"][0]["id"], "after the last block");
    }
    let all = inspect(&server, json!({ "input": "x", "attention": {}, "logit_lens": {} })).await;
    let (n_layers, n_heads) = (all["layer_count"].as_u64().unwrap(), all["head_count"].as_u64().unwrap());
    assert_eq!(all["attention"]["shape"], json!([n_layers, n_heads, 1, 1]));
    assert_eq!(all["logit_lens"]["layers"].as_array().unwrap().len() as u64, n_layers + 1);
}

#[tokio::test]
async fn invalid_inspect_requests_are_rejected_naming_the_parameter() {
    let server = Server::start();
    let long: Vec<u32> = vec![1; 513];
    let cases = [
        (json!({}), "input", "`input` is required"),
        (json!({ "input": ["a", "b"] }), "input", "`input` must be one text"),
        (json!({ "input": [] }), "input", "`input` must be"),
        (json!({ "input": "x", "messages": [] }), "input", "`input` cannot be combined with `messages`"),
        (json!({ "input": [9999] }), "input", "`input` has token id 9999"),
        (
            json!({ "input": "x", "top_logprobs": 21 }),
            "top_logprobs",
            "`top_logprobs` must be a whole number from 0 to 20",
        ),
        (
            json!({ "input": "x", "attention": { "layers": [99] } }),
            "attention.layers",
            "`attention.layers` must be numbers below",
        ),
        (
            json!({ "input": "x", "attention": { "heads": "all" } }),
            "attention.heads",
            "`attention.heads` must be an array",
        ),
        (
            json!({ "input": "x", "logit_lens": { "layers": [-1] } }),
            "logit_lens.layers",
            "`logit_lens.layers` must be an array",
        ),
    ];
    for (body, param, message) in cases {
        let answer = server.post_to(PATH, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().starts_with(message), "{body}: {}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    // Too many tokens, or so many bytes that there must be too many tokens: the longest token has 7 bytes.
    let text = "x".repeat(7 * 512 + 1);
    let chat = |content: &str| json!({ "messages": [{ "role": "user", "content": content }] });
    let many_tokens = chat(&"x".repeat(600));
    let n_tokens = server.post_to("/tokenize", many_tokens.to_string()).await.json()["count"].to_string();
    for (body, param, given) in [
        (json!({ "input": long }), "input", "513"),
        (json!({ "input": text }), "input", "3585 bytes, which are more"),
        (many_tokens, "messages", n_tokens.as_str()),
        // `[user]`, `<|end|>` and `[assistant]`.
        (chat(&text), "messages", "3609 bytes, which are more"),
    ] {
        let answer = server.post_to(PATH, body.to_string()).await;
        assert_eq!(answer.json()["error"]["param"], param);
        assert_eq!(
            answer.error(),
            format!(
                "the text must have at most 512 tokens to be inspected, got {given}\n\
                 hint: the server's `--max-inspect-tokens` sets the limit"
            )
        );
    }
}

#[tokio::test]
async fn inspect_says_which_experts_are_chosen_and_how_often() {
    let mixture = Experts { dense_layers: vec![0], ..Experts::plain(5, 2, 16) };
    let config = GptConfig { experts: Some(mixture), ..config() };
    let n_layers = config.n_layers;
    let load = move || Ok(Models::from(LoadedModel { gpt: gpt_of(&config, &Device::flex(), 0.0), ..model() }));
    let engine = Engine::start(load, OPTIONS).unwrap();
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let found = inspect(&server, json!({ "input": [1, 2, 3, 4], "experts": {} })).await["experts"].clone();
    assert_eq!((&found["layers"], &found["expert_count"]), (&json!((1..n_layers).collect::<Vec<_>>()), &json!(5)));
    for layer in 0..n_layers - 1 {
        let mut counts = vec![0; 5];
        for token in 0..4 {
            let chosen = found["chosen"][layer][token].as_array().unwrap();
            chosen.iter().for_each(|expert| counts[expert.as_u64().unwrap() as usize] += 1);
            let weights = found["weights"][layer][token].as_array().unwrap();
            assert_eq!((chosen.len(), weights.len()), (2, 2));
            assert!((weights.iter().map(number).sum::<f64>() - 1.0).abs() < 1e-5, "{weights:?}");
        }
        assert_eq!(found["counts"][layer], json!(counts));
    }
    let dense = server.post_to(PATH, json!({ "input": "x", "experts": { "layers": [0] } }).to_string()).await;
    assert_eq!(dense.error(), "`experts.layers` must be layers with experts, got 0, which has none");
    let without = inspect(&Server::start(), json!({ "input": "x", "experts": {} })).await;
    assert_eq!(without["experts"], Value::Null);
}

#[tokio::test]
async fn inspect_answers_404_when_it_is_disabled() {
    let options = ApiOptions { max_inspect_tokens: None, ..ApiOptions::default() };
    let (state, engine) = (AppState::loading_with(MODEL, options), engine(OPTIONS));
    state.set_engine(engine.clone());
    let answer = Server { engine, state }.post_to(PATH, json!({ "input": "x" }).to_string()).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.error(), "`/v1/inspect` is turned off on this server\nhint: start it without `--no-inspect`");
}
