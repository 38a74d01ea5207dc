//! Streamed answers: the same text as unstreamed ones, over real sockets, with clients that leave and servers that stop.

use std::time::Duration;

use axum::{body::Body, http::StatusCode};
use hearth_server::{
    api::router::app,
    serve::{Ended, ServeError},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::{
    live_server::{Live, post},
    support::{MAX_SEQ_LEN, MODEL, OPTIONS, Server, events, is_idle, model, request_to, short_gpt},
};

/// A request that runs longer than any test: 128 choices of 8,192 tokens.
fn endless() -> Value {
    json!({ "prompt": "x", "max_tokens": MAX_SEQ_LEN, "n": 128, "ignore_eos": true })
}

#[tokio::test]
async fn streamed_multibyte_character_is_held_back_until_complete() {
    let server = Server::start();
    // The bias and the penalty make the model generate 0xe6, 0x97, 0xa5: the bytes of 日.
    let body = json!({
        "prompt": "x", "max_tokens": 3, "temperature": 0, "repetition_penalty": 100,
        "logit_bias": { "230": 100, "151": 99, "165": 98 },
    });
    let texts: Vec<Value> = server.stream(body).await.iter().map(|event| event["choices"][0]["text"].clone()).collect();
    assert_eq!(texts, ["日", ""]);
    // Cut by `max_tokens` within the character.
    let body = json!({ "prompt": "x", "max_tokens": 1, "logit_bias": { "230": 100 } });
    let texts: Vec<Value> = server.stream(body).await.iter().map(|event| event["choices"][0]["text"].clone()).collect();
    assert_eq!(texts, ["\u{fffd}"]);
}

#[tokio::test]
async fn streamed_completion_has_the_openai_shape() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "max_tokens": 4, "logit_bias": { "97": 100 } });
    let streamed = server.stream(body.clone()).await;
    let texts: Vec<&str> = streamed.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts.concat(), "aaaa");
    assert!(texts.len() >= 4, "one event per token");
    for event in &streamed {
        assert_eq!(event["id"], streamed[0]["id"]);
        assert_eq!((&event["object"], &event["model"]), (&json!("text_completion"), &json!(MODEL)));
        assert!(event.get("usage").is_none());
    }
    let (last, others) = streamed.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(others.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));

    let mut with_usage = body;
    with_usage["stream_options"] = json!({ "include_usage": true });
    let streamed = server.stream(with_usage).await;
    let (last, others) = streamed.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({ "prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5, "prompt_tokens_details": { "cached_tokens": 0 } })
    );
    assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)));
}

#[tokio::test]
async fn streamed_completion_has_sse_headers() {
    let server = Server::start();
    let answer = server.post(json!({ "prompt": "x", "stream": true }).to_string()).await;
    assert_eq!(answer.header("content-type"), "text/event-stream; charset=utf-8");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    events(&answer.text);
}

#[tokio::test]
async fn dropping_the_response_body_frees_requests_and_pages() {
    let server = Server::start();
    let mut body = endless();
    body["stream"] = json!(true);
    let request = request_to("/v1/completions");
    let response =
        app(server.state.clone()).oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    server.wait_for(|stats| stats.running > 1 && stats.waiting > 0).await;
    drop(body);
    server.wait_for(is_idle).await;
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

#[tokio::test]
async fn disconnect_during_a_stream_frees_requests_and_pages() {
    let live = Live::start().await;
    let mut connection = live.post(&streamed(endless())).await;
    connection.first_event().await;
    drop(connection);
    live.server.wait_for(is_idle).await;
}

#[tokio::test]
async fn disconnect_before_an_unstreamed_answer_frees_requests_and_pages() {
    let live = Live::start().await;
    let connection = live.post(&endless()).await;
    live.server.wait_for(|stats| stats.running > 0).await;
    drop(connection);
    live.server.wait_for(is_idle).await;
}

#[tokio::test]
async fn client_that_does_not_read_its_stream_does_not_block_others() {
    let live = Live::start().await;
    let mut idle = endless();
    idle["n"] = json!(1);
    let _unread = live.post(&streamed(idle)).await;
    live.server.wait_for(|stats| stats.running == 1).await;
    let other = live.post(&json!({ "prompt": "y", "max_tokens": 50, "ignore_eos": true })).await;
    let answer = other.all().await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn draining_finishes_running_streams_and_then_closes_the_port() {
    let live = Live::start().await;
    let body = json!({ "prompt": "x", "max_tokens": 300, "ignore_eos": true });
    let mut connection = live.post(&streamed(body)).await;
    connection.first_event().await;
    live.signals.send(()).await.unwrap();
    let text = connection.all().await;
    assert!(text.contains("data: [DONE]"), "{text}");
    assert!(text.contains("\"finish_reason\":\"length\""));
    let address = live.address;
    assert_eq!(live.ended().await.unwrap(), Ended::Drained);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn draining_answers_new_requests_with_503_and_finishes_begun_ones() {
    let live = Live::start().await;
    let request = post(r#"{ "prompt": "x", "max_tokens": 1 }"#);
    // Requests that are in flight because their bodies are incomplete.
    let in_flight = [
        request.clone(),
        request.replace("/v1/completions", "/tokenize"),
        post(r#"{ "tokens": [1] }"#).replace("/v1/completions", "/detokenize"),
        post(r#"{ "input": "x" }"#).replace("/v1/completions", "/v1/inspect"),
    ];
    let mut waiting = Vec::new();
    for request in &in_flight {
        let (begun, rest) = request.split_at(request.len() - 3);
        let mut client = live.connect().await;
        client.send(begun.as_bytes()).await;
        waiting.push((client, rest));
    }
    live.assert_serves().await;
    live.signals.send(()).await.unwrap();
    let told = async |request: &str| {
        let mut late = live.connect().await;
        late.send(request.as_bytes()).await;
        late.all().await
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    while !told(&get("/ready")).await.starts_with("HTTP/1.1 503 ") {}
    for (request, status) in [(&get("/health"), 200), (&get("/metrics"), 200), (&get("/ready"), 503), (&request, 503)] {
        let answer = told(request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        // The connection is closed, too.
        assert!(answer.contains("connection: close"), "{answer}");
        for part in ["the server is shutting down", "retry-after: 5"] {
            assert_eq!(answer.contains(part), status == 503, "{answer}");
        }
    }
    // Requests whose heads arrived before the shutdown are answered.
    for (mut client, rest) in waiting {
        client.send(rest.as_bytes()).await;
        let answer = client.all().await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(live.ended().await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn second_shutdown_signal_ends_running_requests_with_an_error() {
    let live = Live::start().await;
    let mut four = endless();
    four["n"] = json!(4);
    let mut connection = live.post(&streamed(four.clone())).await;
    connection.first_event().await;
    let unstreamed = live.post(&four).await;
    live.server.wait_for(|stats| stats.running == 8).await;
    live.signals.send(()).await.unwrap();
    live.signals.send(()).await.unwrap();
    assert_eq!(live.ended().await.unwrap(), Ended::CutShort);
    // Interrupted requests receive an error.
    for answer in [connection.all().await, unstreamed.all().await] {
        assert!(answer.contains("the server is shutting down"), "{answer:.300}");
        assert!(answer.contains("unavailable_error"), "{answer:.300}");
        let status = if answer.contains("text/event-stream") { "HTTP/1.1 200" } else { "HTTP/1.1 503" };
        assert!(answer.starts_with(status), "{answer:.300}");
    }
}

#[tokio::test]
async fn draining_is_cut_short_after_the_drain_timeout() {
    let live = Live::with(|_, serve| serve.drain_timeout = Duration::from_millis(1)).await;
    let mut connection = live.post(&streamed(endless())).await;
    connection.first_event().await;
    live.signals.send(()).await.unwrap();
    assert_eq!(live.ended().await.unwrap(), Ended::CutShort);
}

#[tokio::test]
async fn request_whose_body_is_incomplete_when_draining_ends_gets_503() {
    let live = Live::with(|_, serve| serve.drain_timeout = Duration::from_millis(1)).await;
    let request = post(r#"{ "prompt": "x", "max_tokens": 1 }"#);
    let request = request.replace("content-length", "expect: 100-continue\r\ncontent-length");
    let mut client = live.connect().await;
    client.send(&request.as_bytes()[..request.len() - 3]).await;
    // The server waits for the body.
    client.until("HTTP/1.1 100 ").await;
    live.signals.send(()).await.unwrap();
    let answer = client.all().await;
    assert!(answer.contains("HTTP/1.1 503 ") && answer.contains("the server is shutting down"), "{answer}");
    assert_eq!(live.ended().await.unwrap(), Ended::CutShort);
}

#[tokio::test]
async fn inference_failure_ends_every_request_with_an_error_and_the_server() {
    use hearth_engine::{
        EngineOptions,
        request::{EngineRequest, ModelLimits, RequestParts, StopConditions},
        tenant::TenantId,
    };
    use hearth_model::{decode::sampling::SamplingParams, weights::model_dir::LoadedModel};
    use hearth_server::engine::Engine;
    // With the usual KV cache, pages run out after 4,096 tokens per request, and preemption would change the counts of
    // running and waiting requests before this test reads them.
    const LONG: usize = 1 << 18;
    let model = || Ok(LoadedModel { gpt: short_gpt(LONG), ..model() });
    let engine = Engine::start(model, EngineOptions { kv_cache_tokens: Some(LONG), ..OPTIONS }).unwrap();
    let live = Live::over(engine, |_, _| {}).await;
    let [mut one, mut six] = [endless(), endless()];
    (one["max_tokens"], six["max_tokens"]) = (json!(LONG), json!(LONG));
    (one["n"], six["n"]) = (json!(1), json!(6));
    let mut streaming = live.post(&streamed(one.clone())).await;
    streaming.first_event().await;
    let unstreamed = live.post(&six).await;
    let leaving = live.post(&one).await;
    // Every place is taken.
    live.server.wait_for(|stats| stats.running == 8).await;
    let queued = [live.post(&streamed(one.clone())).await, live.post(&one).await];
    live.server.wait_for(|stats| stats.waiting == 2).await;
    // This request was validated for a larger vocabulary, so it panics in the embedding. It is the next to start, but not
    // before one of the others ends: it comes from the same address as they, and so no place is taken from them.
    let wrong = ModelLimits {
        vocab_size: 100_000,
        max_seq_len: 100,
        max_batch_size: 1,
        n_pages: 10,
        is_recurrent: false,
        is_encoder: false,
        max_source_len: 0,
    };
    let stop = StopConditions { max_tokens: 1, ..StopConditions::default() };
    let sampling = SamplingParams::greedy();
    let tenant = TenantId::of_address(live.address.ip());
    let prompt_ids = [99_999].into();
    let parts = RequestParts { prompt_ids, sampling, stop, tenant, priority: -100, ..RequestParts::default() };
    let _poison = live.server.engine.submit(vec![EngineRequest::new(parts, &wrong).unwrap()]).unwrap();
    live.server.wait_for(|stats| stats.waiting == 3).await;
    drop(leaving);
    let [queued_stream, queued_whole] = queued;
    for stream in [streaming, queued_stream] {
        let text = stream.all().await;
        let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
        let error: Value = serde_json::from_str(last).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("inference failed"), "{error}");
    }
    for whole in [unstreamed, queued_whole] {
        let text = whole.all().await;
        assert!(text.starts_with("HTTP/1.1 5") && text.contains("inference failed"), "{text}");
    }
    assert_eq!(live.server.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(matches!(live.ended().await, Err(ServeError::Inference(_))));
}
