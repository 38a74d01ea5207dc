//! `GET /metrics`: its values, and Prometheus' text format.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use hearth_engine::{EngineOptions, Speculation};
use hearth_server::api::{router::app, wire::state::AppState};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::support::{Answer, MODEL, OPTIONS, Server, engine, is_idle, metric, request_to};

#[tokio::test]
async fn metrics_count_served_requests_and_are_documented() {
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
        "vllm:request_prefill_time_seconds_count{L} 3",
        "vllm:request_decode_time_seconds_count{L} 3",
        "vllm:request_inference_time_seconds_count{L} 3",
        "vllm:request_time_per_output_token_seconds_count{L} 3",
        "vllm:request_params_max_tokens_sum{L} 19",
        "vllm:request_params_n_bucket{L,le=\"1\"} 3",
        "vllm:request_max_num_generation_tokens_sum{L} 12",
        "vllm:request_prompt_tokens_sum{L} 4",
        "vllm:request_generation_tokens_bucket{L,le=\"2\"} 1",
        "vllm:num_preemptions_total{L} 0",
        "vllm:prefix_cache_hits_total{L} 0",
        concat!("hearth_build_info{L,device=\"CPU\",dtype=\"f32\",version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "vllm:cache_config_info{L,block_size=\"16\",cache_dtype=\"f32\",num_gpu_blocks=\"2048\"} 1",
    ] {
        let line = line.replace('L', &labels).replace(&format!("{labels}OSS"), "LOSS");
        assert!(answer.text.lines().any(|found| found == line), "{line} is not in\n{}", answer.text);
    }
    // Every sample belongs to a family with one `# TYPE` line.
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
    // docs/serving/monitoring.md lists exactly these families, and those that exist only with adapters.
    let (_, list) = include_str!("../../../docs/serving/monitoring.md").split_once("### List of metrics").unwrap();
    let (list, _) = list.split_once("\n## ").unwrap();
    let is_metric = |word: &&str| ["http_", "vllm:", "hearth_"].iter().any(|start| word.starts_with(start));
    let documented: BTreeSet<&str> = list.split('`').filter(is_metric).collect();
    assert!(
        families.is_subset(&documented),
        "not in docs/serving/monitoring.md: {:?}",
        families.difference(&documented)
    );
    let unknown: Vec<_> = documented.difference(&families).filter(|name| !name.contains("lora_")).collect();
    assert!(unknown.is_empty(), "only in docs/serving/monitoring.md: {unknown:?}");
}

/// A beam search returns all tokens at its end, so they have no latencies.
#[tokio::test]
async fn choices_count_as_one_request_and_beams_have_no_token_latencies() {
    let server = Server::start();
    let get = |name: &str| metric(&server.engine, name);
    let several = json!({ "prompt": "x", "n": 3, "max_tokens": 4, "ignore_eos": true });
    let beams =
        json!({ "prompt": "y", "n": 2, "best_of": 3, "max_tokens": 5, "ignore_eos": true, "use_beam_search": true });
    for (body, [n_tokens, n_first, n_later, n_answers]) in [(several, [12, 3, 9, 3]), (beams, [22, 3, 9, 5])] {
        server.complete(body).await;
        server.wait_for(is_idle).await;
        assert_eq!(get("generation_tokens_total"), f64::from(n_tokens));
        assert_eq!(get("time_to_first_token_seconds_count"), f64::from(n_first));
        assert_eq!(get("inter_token_latency_seconds_count"), f64::from(n_later));
        assert_eq!(get("request_time_per_output_token_seconds_count"), f64::from(n_first));
        assert_eq!(get("request_decode_time_seconds_count"), f64::from(n_answers));
        assert_eq!(get("request_params_n_sum"), f64::from(n_answers));
    }
    assert_eq!(get("request_params_n_count"), 2.0);
    assert_eq!(get("request_max_num_generation_tokens_sum"), 4.0 + 5.0);
    assert_eq!(get("request_params_max_tokens_sum"), 3.0 * 4.0 + 2.0 * 5.0);
    assert!(get("request_decode_time_seconds_sum") > 0.0);
}

#[tokio::test]
async fn disconnected_request_is_counted_as_abort() {
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

/// Also the choices that would have forked at the end of prefill.
#[tokio::test]
async fn each_choice_of_a_request_that_ends_in_prefill_is_an_abort() {
    let server = Server::start();
    let late = json!({ "prompt": vec![97; 8000], "n": 3, "deadline_ms": 1 });
    assert_eq!(server.post(late.to_string()).await.status, StatusCode::GATEWAY_TIMEOUT);
    server.wait_for(is_idle).await;
    let left = json!({ "prompt": vec![98; 8000], "n": 4, "max_tokens": 100, "ignore_eos": true });
    tokio::select! {
        _ = server.complete(left) => panic!("not so fast"),
        () = server.wait_for(|stats| stats.running > 0) => {}
    }
    server.wait_for(is_idle).await;
    let text = server.get("/metrics").await.text;
    assert!(text.contains("finished_reason=\"abort\"} 7"), "{text}");
}

/// Each metric family of a scrape: its type, its own labels, and its buckets.
fn families(text: &str) -> Vec<String> {
    let mut families: BTreeMap<&str, (&str, BTreeSet<&str>, Vec<&str>)> = BTreeMap::new();
    let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    families.extend(heads.map(|(name, kind)| (name, (kind, BTreeSet::new(), Vec::new()))));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.strip_suffix('}').unwrap().split_once('{').unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let name = if families.contains_key(name) { name } else { base };
        let (_, names, bounds) = families.get_mut(name).unwrap();
        for (label, value) in labels.split("\",").map(|label| label.split_once("=\"").unwrap()) {
            match label {
                "model_name" | "engine" => {}
                "le" if bounds.contains(&value.trim_end_matches('"')) => {}
                "le" => bounds.push(value.trim_end_matches('"')),
                label => _ = names.insert(label),
            }
        }
    }
    let lines = families.into_iter().map(|(name, (kind, labels, bounds))| {
        let mut line = format!("{name} {kind}");
        if !labels.is_empty() {
            line = format!("{line} {}", labels.into_iter().collect::<Vec<_>>().join(","));
        }
        if bounds.is_empty() { line } else { format!("{line} | {}", bounds.join(" ")) }
    });
    lines.collect()
}

/// Dashboards and routers depend on these names.
#[tokio::test]
async fn metric_types_labels_and_buckets_match_the_golden_file() {
    let golden: Vec<&str> = include_str!("../golden/metrics.txt").lines().collect();
    for speculation in [Speculation::PromptLookup { n_tokens: 2 }, Speculation::Off] {
        let server = Server::with_options(EngineOptions { speculation, ..OPTIONS });
        server.complete(json!({ "prompt": "x", "max_tokens": 2 })).await;
        let found = families(&server.get("/metrics").await.text);
        if speculation == Speculation::Off {
            // A family without samples is announced all the same.
            let unlabelled = |line: &str| line.strip_suffix(" position").unwrap_or(line).to_owned();
            assert_eq!(found, golden.iter().map(|line| unlabelled(line)).collect::<Vec<_>>());
        } else {
            assert_eq!(found, golden);
        }
    }
}

/// The number of requests with these labels.
fn n_requests(scrape: &Answer, handler: &str, method: &str, code: &str) -> f64 {
    let class = format!("{}xx", &code[..1]);
    let labels = format!("{{code=\"{code}\",handler=\"{handler}\",method=\"{method}\",status=\"{class}\"}} ");
    let start = format!("http_requests_total{labels}");
    scrape.text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or(0.0)
}

#[tokio::test]
async fn http_requests_are_counted_by_route_method_and_status() {
    let engine = engine(OPTIONS);
    let server = Server { state: AppState::loading(MODEL), engine: engine.clone() };
    let fine = json!({ "prompt": "x", "max_tokens": 1 });
    assert_eq!(server.post(fine.to_string()).await.status, StatusCode::SERVICE_UNAVAILABLE);
    server.state.set_engine(engine);
    let send = |method: &str, path: &str| {
        server.send(Request::builder().method(method).uri(path).body(Body::empty()).unwrap())
    };
    server.complete(fine.clone()).await;
    server.stream(fine).await;
    server.post("{").await;
    server.post(json!({ "prompt": "x", "model": "another" }).to_string()).await;
    server.post_to("/v1/embeddings", json!({ "input": "" }).to_string()).await;
    // Unknown paths and methods do not become labels.
    for path in ["/nowhere", "/nowhere/else", "/v1/completions/x", "/%22%0a"] {
        assert_eq!(send("GET", path).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(send("BREW", "/nowhere").await.status, StatusCode::NOT_FOUND);
    send("GET", &format!("/v1/models/{MODEL}")).await;
    send("GET", "/v1/models/another/one").await;
    send("DELETE", "/v1/completions").await;
    send("HEAD", "/health").await;

    let scrape = server.get("/metrics").await;
    for (handler, method, code, expected) in [
        ("/v1/completions", "POST", "503", 1.0),
        ("/v1/completions", "POST", "200", 2.0),
        ("/v1/completions", "POST", "400", 1.0),
        ("/v1/completions", "POST", "404", 1.0),
        ("/v1/completions", "DELETE", "405", 1.0),
        ("/v1/embeddings", "POST", "400", 1.0),
        ("none", "GET", "404", 4.0),
        ("none", "other", "404", 1.0),
        ("/v1/models/{*id}", "GET", "200", 1.0),
        ("/v1/models/{*id}", "GET", "404", 1.0),
        ("/health", "HEAD", "200", 1.0),
    ] {
        assert_eq!(n_requests(&scrape, handler, method, code), expected, "{handler} {code}\n{}", scrape.text);
    }
    let lines = |start: &str| scrape.text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(lines("http_requests_total"), 11, "{}", scrape.text);
    assert!(!["nowhere", "BREW", "another"].iter().any(|made_up| scrape.text.contains(made_up)), "{}", scrape.text);
    for (handler, method, n) in [("/v1/completions", "POST", 5), ("none", "GET", 4)] {
        let line = format!("http_request_duration_seconds_count{{handler=\"{handler}\",method=\"{method}\"}} {n}");
        assert!(scrape.text.lines().any(|found| found == line), "{line} is not in\n{}", scrape.text);
    }
    // A scrape is counted once it has ended.
    assert_eq!(n_requests(&server.get("/metrics").await, "/metrics", "GET", "200"), 1.0);
}

#[tokio::test]
async fn disconnects_before_or_during_the_response_count_as_499() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "max_tokens": 8000, "ignore_eos": true });
    tokio::select! {
        _ = server.complete(body) => panic!("not so fast"),
        () = server.wait_for(|stats| stats.running == 1) => {}
    }
    let counted = async || {
        let scrape = server.get("/metrics").await;
        ["499", "200"].map(|code| n_requests(&scrape, "/v1/completions", "POST", code))
    };
    let streamed = |max_tokens: usize| {
        let body = json!({ "prompt": "x", "max_tokens": max_tokens, "ignore_eos": true, "stream": true });
        app(server.state.clone()).oneshot(request_to("/v1/completions").body(Body::from(body.to_string())).unwrap())
    };
    let mut response = streamed(8000).await.unwrap();
    assert!(response.body_mut().frame().await.unwrap().is_ok());
    assert_eq!(counted().await, [1.0, 0.0], "counted at the end");
    drop(response);
    assert_eq!(counted().await, [2.0, 0.0]);
    streamed(3).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(counted().await, [2.0, 1.0]);
}
