//! The endpoints of the tokenizer, called as lm-eval and vLLM's clients do.

use axum::http::StatusCode;
use hearth_model::text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::support::{CHAT_TEMPLATE, EOS, MAX_SEQ_LEN, MODEL, Server, VOCAB_SIZE, tokenizer};

async fn post(server: &Server, path: &str, body: Value) -> Value {
    let answer = server.post_to(path, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn tokenize_and_detokenize_match_the_tokenizer() {
    let server = Server::start();
    let text = "the é end<|end|>";
    let ids = tokenizer().encode(text, EncodeOptions::PROMPT).unwrap();
    for prefix in ["", "/v1"] {
        let body = json!({ "model": MODEL, "prompt": text, "add_special_tokens": false, "return_token_strs": true });
        let encoded = post(&server, &format!("{prefix}/tokenize"), body).await;
        assert_eq!((&encoded["tokens"], &encoded["count"]), (&json!(ids), &json!(ids.len())));
        assert_eq!(encoded["max_model_len"], MAX_SEQ_LEN);
        assert_eq!(encoded["token_strs"][0], "the");
        let decoded = post(&server, &format!("{prefix}/detokenize"), json!({ "tokens": ids })).await;
        assert_eq!(decoded, json!({ "prompt": text }));
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "x" }], "add_generation_prompt": false });
    let rendered = tokenizer().encode("[user]x<|end|>", EncodeOptions::RENDERED).unwrap();
    assert_eq!(post(&server, "/tokenize", chat).await["tokens"], json!(rendered));
    assert_eq!(post(&server, "/tokenize", json!({ "prompt": "" })).await["count"], 0);
}

#[tokio::test]
async fn tokenizer_info_reports_special_tokens_template_and_vocab_size() {
    let server = Server::start();
    let info = server.get("/tokenizer_info").await.json();
    assert_eq!((&info["eos_token"], &info["bos_token"]), (&json!("<|end|>"), &Value::Null));
    assert_eq!((&info["chat_template"], &info["vocab_size"]), (&json!(CHAT_TEMPLATE), &json!(VOCAB_SIZE)));
    assert_eq!(server.get("/v1/tokenizer_info").await.json(), info);
}

#[tokio::test]
async fn invalid_tokenize_and_detokenize_requests_name_the_parameter() {
    let server = Server::start();
    let cases = [
        ("/tokenize", json!({}), "prompt", "`prompt` is required"),
        ("/tokenize", json!({ "prompt": [1] }), "prompt", "a string"),
        ("/tokenize", json!({ "prompt": "x", "messages": [] }), "prompt", "`messages`"),
        ("/tokenize", json!({ "messages": [] }), "messages", "at least one"),
        ("/detokenize", json!({}), "tokens", "required"),
        ("/detokenize", json!({ "tokens": "x" }), "tokens", "an array of token ids"),
        ("/detokenize", json!({ "tokens": [EOS + 1] }), "tokens", "below 263"),
    ];
    for (path, body, param, message) in cases {
        let answer = server.post_to(path, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.error().contains(message), "{body}: {}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    let unknown = server.post_to("/tokenize", json!({ "model": "gpt-9", "prompt": "x" }).to_string()).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}
