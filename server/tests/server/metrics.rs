//! `GET /metrics`: that it says what happened, in words that Prometheus reads.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use hearth_server::api::state::AppState;
use serde_json::json;

use crate::support::{MODEL, Server, is_idle, metric};

#[tokio::test]
async fn metrics_tell_what_happened() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "max_tokens": 5, "ignore_eos": true });
    server.complete(body.clone()).await;
    server.stream(body).await;
    let stops = json!({ "prompt": "xy", "max_tokens": 9, "logit_bias": { "97": 100 }, "stop": "aa" });
    server.complete(stops).await;
    server.wait_for(is_idle).await;
    let answer = server.get("/metrics").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let labels = format!("model_name=\"{MODEL}\",engine=\"0\"");
    for line in [
        "vllm:num_requests_running{L} 0",
        "vllm:num_requests_waiting{L} 0",
        "vllm:kv_cache_usage_perc{L} 0",
        "vllm:prompt_tokens_total{L} 4",
        "vllm:generation_tokens_total{L} 12",
        "vllm:request_success_total{L,finished_reason=\"length\"} 2",
        "vllm:request_success_total{L,finished_reason=\"stop\"} 1",
        "vllm:request_success_total{L,finished_reason=\"abort\"} 0",
        "vllm:time_to_first_token_seconds_count{L} 3",
        "vllm:inter_token_latency_seconds_count{L} 9",
        "vllm:e2e_request_latency_seconds_count{L} 3",
        "vllm:request_queue_time_seconds_count{L} 3",
        "vllm:request_prompt_tokens_sum{L} 4",
        "vllm:request_generation_tokens_bucket{L,le=\"2\"} 1",
        "vllm:num_preemptions_total{L} 0",
        "vllm:prefix_cache_hits_total{L} 0",
        "vllm:cache_config_info{L,block_size=\"16\",cache_dtype=\"f32\",num_gpu_blocks=\"2048\"} 1",
    ] {
        let line = line.replace('L', &labels).replace(&format!("{labels}OSS"), "LOSS");
        assert!(answer.text.lines().any(|found| found == line), "{line} is not in\n{}", answer.text);
    }
    // Every sample belongs to a family that was announced, once.
    let mut families = BTreeSet::new();
    for line in answer.text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(head.split(' ').next().unwrap()), "{head} twice");
        } else if !line.starts_with('#') {
            let name = line.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(families.contains(name) || families.contains(base), "{line}");
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        }
    }
}

#[tokio::test]
async fn clients_that_leave_are_counted() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "max_tokens": 8000, "ignore_eos": true });
    tokio::select! {
        _ = server.complete(body) => panic!("not so fast"),
        () = server.wait_for(|stats| stats.running == 1) => {}
    }
    server.wait_for(is_idle).await;
    let text = server.get("/metrics").await.text;
    assert!(text.contains("finished_reason=\"abort\"} 1"), "{text}");
    assert_eq!(metric(&server.engine, "kv_cache_usage_perc"), 0.0);
    let loading = Server { state: AppState::loading(MODEL), engine: server.engine.clone() };
    assert_eq!(loading.get("/metrics").await.status, StatusCode::SERVICE_UNAVAILABLE);
}
