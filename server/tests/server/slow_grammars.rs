//! Very ambiguous grammars, whose tokens take longer and longer: they delay only their own request, and give the
//! answers of an unambiguous grammar for the same texts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, http::StatusCode};
use hearth_engine::{EngineOptions, Speculation};
use hearth_server::api::router::app;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{EOS, OPTIONS, Server, TEST_TIMEOUT, is_idle, request_to, wait_for};

/// Letters from a to h, ambiguously: after 100 letters a token takes some 20 ms.
const SLOW: &str = "start: s\ns: s s | s s s | /[a-h]/";
/// The same texts, unambiguously.
const QUICK: &str = "start: s\ns: s t | t\nt: /[a-h]/";

fn body(grammar: &str, max_tokens: usize) -> Value {
    json!({
        "prompt": "x", "structured_outputs": { "grammar": grammar }, "max_tokens": max_tokens, "temperature": 1.5,
        "seed": 5, "logit_bias": { EOS.to_string(): -100 }, "return_token_ids": true,
    })
}

/// Streams an answer and counts its events, until the task is aborted.
fn stream(server: &Server, mut body: Value) -> (tokio::task::JoinHandle<()>, Arc<AtomicUsize>) {
    body["stream"] = json!(true);
    let request = request_to("/v1/completions");
    let request = request.body(Body::from(body.to_string())).unwrap();
    let (app, n_events) = (app(server.state.clone()), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&n_events);
    let task = tokio::spawn(async move {
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            let text = frame.into_data().map(|data| String::from_utf8_lossy(&data).into_owned()).unwrap_or_default();
            counter.fetch_add(text.matches("data: ").count(), Ordering::SeqCst);
        }
    });
    (task, n_events)
}

async fn reach(n_events: &AtomicUsize, n: usize) {
    let reached = tokio::time::timeout(TEST_TIMEOUT, async {
        while n_events.load(Ordering::SeqCst) < n {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(reached.await.is_ok(), "{n_events:?} of {n} events");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_grammar_does_not_delay_other_requests() {
    let server = Server::start();
    let (slow, n_events) = stream(&server, body(SLOW, 1000));
    reach(&n_events, 120).await;
    let before = n_events.load(Ordering::SeqCst);
    // If each step waited for both, the slow one would come as far as the quick one.
    let quick = server.complete(body(QUICK, 100)).await;
    let meanwhile = n_events.load(Ordering::SeqCst) - before;
    assert_eq!(quick["usage"]["completion_tokens"], 100);
    assert!(meanwhile < 50, "{meanwhile} slow tokens beside 100 quick ones");
    // The slow request continues, and frees everything when its client disconnects.
    reach(&n_events, before + meanwhile + 5).await;
    slow.abort();
    wait_for(&server.engine, is_idle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_grammar_gives_the_answers_of_an_equivalent_quick_one() {
    let lookup = EngineOptions { speculation: Speculation::PromptLookup { n_tokens: 3 }, ..OPTIONS };
    let cramped = EngineOptions { kv_cache_tokens: Some(16 * 40), ..OPTIONS };
    for options in [OPTIONS, lookup, cramped] {
        let server = Server::with_options(options);
        let with = |grammar, also: Value| {
            let mut body = body(grammar, 130);
            body.as_object_mut().unwrap().extend(also.as_object().unwrap().clone());
            server.complete(body)
        };
        for also in [json!({ "n": 2, "prompt": ["x", "yz"] }), json!({ "logprobs": 2, "stop": ["hhh"] })] {
            let (quick, slow) = (with(QUICK, also.clone()).await, with(SLOW, also.clone()).await);
            assert_eq!(slow["choices"], quick["choices"], "{also}");
        }
        // Answers of various lengths that end when the grammar is complete.
        let until_dot = |grammar: &str| grammar.replace("start: s", "start: s \".\"");
        for seed in 0..6 {
            let with = async |grammar: &str| {
                let mut body = body(&until_dot(grammar), 140);
                body["seed"] = json!(seed);
                body["logit_bias"]["13"] = json!(-8);
                server.complete(body).await
            };
            let (quick, slow) = (with(QUICK).await, with(SLOW).await);
            println!("{} {}", quick["choices"][0]["finish_reason"], quick["usage"]["completion_tokens"]);
            assert_eq!(slow["choices"], quick["choices"]);
        }
        wait_for(&server.engine, is_idle).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_ends_a_request_waiting_for_its_slow_grammar() {
    let server = Server::start();
    let mut late = body(SLOW, 1000);
    late["deadline_ms"] = json!(2000);
    let answer = server.post(late.to_string()).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT, "{}", answer.text);
    wait_for(&server.engine, is_idle).await;
}
