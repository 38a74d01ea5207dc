//! Many requests of all kinds at once: every one is answered, rightly, and nothing is left behind.
//!
//! `HEARTH_SOAK=100000 cargo test --release --workspace --test server soak -- --nocapture` runs it at length and looks at
//! the memory too.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use hearth_server::{api::router::app, engine::EngineOptions};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{OPTIONS, Server, fold, is_idle, metric};

const N_REQUESTS: usize = 400;
const N_CLIENTS: usize = 24;

/// Requests of mixed lengths and kinds.
fn bodies() -> Vec<Value> {
    let one = |index: usize| {
        let words = "the hand and the other one in her land ".repeat(index % 7 + 1);
        let mut body = json!({
            "prompt": format!("{} {words}", if index.is_multiple_of(3) { "once" } else { "then" }),
            "max_tokens": 1 + index * 5 % 37,
            "temperature": if index.is_multiple_of(2) { 0.0 } else { 0.9 },
            "seed": index,
        });
        match index % 8 {
            1 => body["n"] = json!(3),
            2 => body["logprobs"] = json!(2),
            3 => body["stop"] = json!(["e", "\n"]),
            4 => body["priority"] = json!(index % 3),
            5 => (body["echo"], body["logprobs"]) = (json!(true), json!(1)),
            6 => {
                (body["use_beam_search"], body["best_of"]) = (json!(true), json!(3));
                body["prompt"] = json!("the other hand");
            }
            _ => {}
        }
        body
    };
    (0..32).map(one).collect()
}

const MALFORMED: [&str; 5] =
    ["", "{\"prompt\": [", r#"{"prompt": "x", "n": -1}"#, r#"{"prompt": [99999]}"#, r#"{"prompt": "x", "seed": "s"}"#];

fn post(body: String) -> Request<Body> {
    let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body)).unwrap()
}

/// Resident memory in pages of the system, where it tells.
fn resident_pages() -> Option<f64> {
    std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soak_leaves_nothing_behind() {
    let n_requests = std::env::var("HEARTH_SOAK").map_or(N_REQUESTS, |n| n.parse().expect("HEARTH_SOAK is a number"));
    // 20 pages: enough for one of each kind, not for all that run, so that some are preempted.
    let options = EngineOptions { max_queue: 1024, kv_cache_tokens: Some(20 * 16), ..OPTIONS };
    let server = Arc::new(Server::with_options(options));
    let bodies = Arc::new(bodies());
    let mut expected = Vec::new();
    for body in bodies.iter() {
        expected.push(server.complete(body.clone()).await["choices"].clone());
    }
    let expected = Arc::new(expected);
    let next = Arc::new(AtomicUsize::new(0));
    let memory = Arc::new(std::sync::Mutex::new(Vec::new()));
    let clients = (0..N_CLIENTS).map(|_| {
        let (server, bodies, expected) = (Arc::clone(&server), Arc::clone(&bodies), Arc::clone(&expected));
        let (next, memory) = (Arc::clone(&next), Arc::clone(&memory));
        tokio::spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= n_requests {
                    break;
                }
                // Not at every one: the record would be what grows.
                if index.is_multiple_of(64) && index >= n_requests / 2 {
                    memory.lock().unwrap().extend(resident_pages());
                }
                // 7 and 32 have no factor in common: every kind of body meets every kind of client.
                let which = index * 7 % bodies.len();
                one(&server, index, &bodies[which], &expected[which]).await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("every request is answered as it should be");
    }
    server.wait_for(is_idle).await;
    assert!(metric(&server.engine, "num_preemptions_total") > 0.0, "the test shows too little");
    let memory = memory.lock().unwrap();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let (first, last) = (mean(&memory[..memory.len() / 4]), mean(&memory[memory.len() * 3 / 4..]));
    println!(
        "{n_requests} requests: resident memory {:+.2} % over the second half, {} preemptions",
        (last / first - 1.0) * 100.0,
        metric(&server.engine, "num_preemptions_total")
    );
    // The allocator goes on warming up for the first tens of thousands of requests.
    assert!(n_requests < 100_000 || last < first * 1.02, "resident memory grew from {first} to {last} pages");
}

async fn one(server: &Server, index: usize, body: &Value, expected: &Value) {
    if index % 10 == 3 {
        let answer = server.post(MALFORMED[index / 10 % MALFORMED.len()]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        answer.error();
    } else if index % 5 == 1 {
        let mut body = body.clone();
        (body["stream"], body["ignore_eos"], body["max_tokens"]) =
            (json!(index.is_multiple_of(2)), json!(true), json!(80));
        let response = app(server.state.clone()).oneshot(post(body.to_string()));
        if index.is_multiple_of(2) {
            // In mid-stream.
            let mut body = response.await.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
        } else {
            // Before there is an answer: in the queue or somewhere in the engine.
            tokio::select! {
                _ = response => {}
                () = yields(index % 100) => {}
            }
        }
    } else if index.is_multiple_of(2) {
        assert_eq!(json!(fold(&server.stream(body.clone()).await)), *expected, "{body}");
    } else {
        assert_eq!(server.complete(body.clone()).await["choices"], *expected, "{body}");
    }
}

/// Lets others run some times.
async fn yields(n: usize) {
    for _ in 0..n {
        tokio::task::yield_now().await;
    }
}
