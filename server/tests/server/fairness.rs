//! One client's queue beside the requests of others: by API key, and by address where there are none.

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use hearth_engine::{EngineOptions, tenant::TenantId};
use hearth_server::api::{
    guard::{api_keys::ApiKeys, options::ApiOptions},
    wire::state::AppState,
};
use serde_json::{Value, json};

use crate::support::{Answer, MODEL, OPTIONS, Server, engine, request_to};

/// A server, with API keys or without.
fn server(options: EngineOptions, keys: &[&str]) -> Server {
    let engine = engine(options);
    let options = ApiOptions { keys: ApiKeys::new(keys.iter().copied()).unwrap(), ..ApiOptions::default() };
    let state = AppState::loading_with(MODEL, options);
    state.set_engine(engine.clone());
    Server { state, engine }
}

/// Who sends requests: a key, or an address.
#[derive(Clone, Copy)]
enum By {
    Key(&'static str),
    Address(&'static str),
}

impl By {
    fn request(self, body: &Value) -> Request<Body> {
        let request = request_to("/v1/completions");
        let request = match self {
            Self::Key(key) => request.header(header::AUTHORIZATION, format!("Bearer {key}")),
            Self::Address(address) => request.extension(TenantId::of_address(address.parse().unwrap())),
        };
        request.body(Body::from(body.to_string())).unwrap()
    }

    async fn send(self, server: &Server, body: &Value) -> Answer {
        server.send(self.request(body)).await
    }
}

fn answers(n: usize, max_tokens: usize) -> Value {
    json!({ "prompt": "once upon a time", "n": n, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 1.0 })
}

fn n_steps(server: &Server) -> usize {
    let page = server.engine.metrics_text(MODEL).unwrap();
    let line = page.lines().find(|line| line.starts_with("vllm:iteration_tokens_total_count")).unwrap();
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize
}

#[tokio::test]
async fn two_tokens_of_another_client_do_not_wait_behind_2048_answers() {
    let by_key = (By::Key("sk-one"), By::Key("sk-two"), vec!["sk-one", "sk-two"]);
    let by_address = (By::Address("10.0.0.1"), By::Address("2001:db8::1"), Vec::new());
    for (greedy, modest, keys) in [by_key, by_address] {
        let server = server(OPTIONS, &keys);
        let mut queue = answers(128, 500);
        queue["prompt"] = json!(vec!["once upon a time"; 16]);
        let queued = greedy.send(&server, &queue);
        let measured = async {
            let mut stats = server.engine.stats();
            stats.wait_for(|stats| stats.running == OPTIONS.max_batch_size && stats.waiting > 1000).await.unwrap();
            for _ in 0..3 {
                let before = n_steps(&server);
                // A worse priority than the others have orders its own requests only.
                let mut body = answers(1, 2);
                body["priority"] = json!(9);
                let answer = modest.send(&server, &body).await;
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
                let n_steps = n_steps(&server) - before;
                // The scheduler's own tests count them. Steps of a tiny model are so short that some tens pass while the
                // request is read and its answer written; a single answer of the other client takes 500.
                assert!(n_steps < 400, "{n_steps} steps");
            }
        };
        tokio::select! {
            answer = queued => panic!("{} {}", answer.status, answer.text),
            () = measured => {}
        }
    }
}

#[tokio::test]
async fn full_queue_of_one_client_leaves_places_for_others() {
    let server = server(EngineOptions { max_queue: 8, max_batch_size: 2, ..OPTIONS }, &["sk-one", "sk-two"]);
    let (greedy, modest) = (By::Key("sk-one"), By::Key("sk-two"));
    let long = answers(8, 8000);
    let queued = greedy.send(&server, &long);
    let checked = async {
        // Two run, so that six places are taken for as long as these take.
        server.engine.stats().wait_for(|stats| stats.running == 2).await.unwrap();
        assert_eq!(greedy.send(&server, &answers(3, 1)).await.status, StatusCode::TOO_MANY_REQUESTS);
        // More than are left, but within the places that are kept for others.
        assert_eq!(modest.send(&server, &answers(4, 2)).await.status, StatusCode::OK);
        assert_eq!(modest.send(&server, &answers(9, 2)).await.status, StatusCode::BAD_REQUEST, "more than the queue");
    };
    tokio::select! {
        answer = queued => panic!("{} {}", answer.status, answer.text),
        () = checked => {}
    }
}
