//! One span per request in OTLP's JSON format, received by a collector in the test.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, Request, StatusCode, Uri, header},
    routing::post,
};
use hearth_server::{
    api::{guard::options::ApiOptions, wire::state::AppState},
    telemetry::{
        exporter::{ExportOptions, Exporter},
        sampler::TraceSampler,
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};

use crate::{
    live_server::Live,
    support::{Answer, CHAT, MODEL, OPTIONS, Server, TEST_TIMEOUT, engine, is_idle},
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector that passes received documents to the test.
struct Collector {
    address: SocketAddr,
    documents: mpsc::UnboundedReceiver<(HeaderMap, Value)>,
    n_rejected: Arc<AtomicUsize>,
}

impl Collector {
    /// Rejects the first `n` documents with 503.
    async fn rejecting(n: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, documents) = mpsc::unbounded_channel();
        let n_rejected = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_rejected);
        let take = async move |uri: Uri, headers: HeaderMap, body: Bytes| {
            assert_eq!(
                (uri.path(), &headers[header::CONTENT_TYPE]),
                ("/v1/traces", &"application/json".parse().unwrap())
            );
            if counter.load(Ordering::Relaxed) < n {
                counter.fetch_add(1, Ordering::Relaxed);
                return (StatusCode::SERVICE_UNAVAILABLE, "");
            }
            sender.send((headers, serde_json::from_slice(&body).unwrap())).unwrap();
            (StatusCode::OK, "{}")
        };
        tokio::spawn(axum::serve(listener, Router::new().fallback(post(take))).into_future());
        Self { address, documents, n_rejected }
    }

    async fn start() -> Self {
        Self::rejecting(0).await
    }

    fn exporter(&self) -> Exporter {
        exporter(self.address)
    }

    /// The spans of the next document, whose resource and scope are checked.
    async fn spans(&mut self) -> Vec<Span> {
        let (headers, document) =
            timeout(TEST_TIMEOUT, self.documents.recv()).await.expect("a document comes").unwrap();
        assert_eq!(headers["x-tenant"], "hearth tests");
        let [resource] = &document["resourceSpans"].as_array().unwrap()[..] else { panic!("{document}") };
        let of_resource = attributes(&resource["resource"]);
        assert_eq!(of_resource["service.name"], "hearth-of-the-test");
        assert_eq!(of_resource["service.version"], env!("CARGO_PKG_VERSION"));
        let [scope] = &resource["scopeSpans"].as_array().unwrap()[..] else { panic!("{document}") };
        assert_eq!(scope["scope"]["name"], "hearth-server");
        scope["spans"].as_array().unwrap().iter().map(Span::checked).collect()
    }

    async fn span(&mut self) -> Span {
        let mut spans = self.spans().await;
        assert_eq!(spans.len(), 1, "{spans:?}");
        spans.pop().unwrap()
    }
}

fn exporter(address: SocketAddr) -> Exporter {
    let options = ExportOptions {
        endpoint: format!("http://{address}/v1/traces"),
        headers: vec![("x-tenant".parse().unwrap(), "hearth tests".parse().unwrap())],
        certificate: None,
        resource: [("service.name", "hearth-of-the-test"), ("service.version", env!("CARGO_PKG_VERSION"))]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        sampler: TraceSampler::default(),
        delay: Duration::from_millis(1),
    };
    Exporter::start(options).unwrap()
}

/// A received span.
#[derive(Debug)]
struct Span {
    json: Value,
    attributes: BTreeMap<String, Value>,
}

impl Span {
    /// A span, after checking what the specification requires of every span.
    fn checked(json: &Value) -> Self {
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        for (name, len) in [("traceId", 32), ("spanId", 16)] {
            let id = json[name].as_str().unwrap();
            assert!(id.len() == len && is_hex(id) && id.bytes().any(|byte| byte != b'0'), "{json}");
        }
        // SPAN_KIND_SERVER.
        assert_eq!(json["kind"], 2);
        let nanos = |name: &str| json[name].as_str().unwrap().parse::<u64>().unwrap();
        let (start, end) = (nanos("startTimeUnixNano"), nanos("endTimeUnixNano"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!(start < end && end <= now && now - start < 3_600_000_000_000, "{json}");
        Self { attributes: attributes(json), json: json.clone() }
    }

    /// An attribute that must be there.
    fn number(&self, name: &str) -> f64 {
        self.attributes[name].as_f64().unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}

/// Attributes by name, from the form `{"key": .., "value": {"..Value": ..}}`.
fn attributes(of: &Value) -> BTreeMap<String, Value> {
    let value = |value: &Value| {
        let (kind, content) = value.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "stringValue" | "doubleValue" | "boolValue" => content.clone(),
            // 64-bit numbers are strings in protobuf's JSON.
            "intValue" => json!(content.as_str().unwrap().parse::<i64>().unwrap()),
            "arrayValue" => {
                content["values"].as_array().unwrap().iter().map(|text| text["stringValue"].clone()).collect()
            }
            _ => panic!("{value}"),
        }
    };
    let pairs = of["attributes"].as_array().unwrap().iter();
    pairs.map(|pair| (pair["key"].as_str().unwrap().to_owned(), value(&pair["value"]))).collect()
}

/// A server whose spans go to `exporter`.
fn server(exporter: &Exporter) -> Server {
    let engine = engine(OPTIONS);
    let options = ApiOptions { spans: Some(exporter.sender()), ..ApiOptions::default() };
    let state = AppState::loading_with(MODEL, options);
    state.set_engine(engine.clone());
    Server { engine, state }
}

async fn ask(server: &Server, path: &str, traceparent: &str, body: &Value) -> Answer {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json").header("tracestate", "vendor=1");
    server.send(request.header("traceparent", traceparent).body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn each_request_exports_a_child_span_of_its_traceparent() {
    let mut collector = Collector::start().await;
    let exporter = collector.exporter();
    let server = server(&exporter);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let secret = "a secret that no span tells";
    let completion = json!({ "prompt": secret, "max_tokens": 5, "ignore_eos": true, "n": 2, "temperature": 0.7, "seed": 1, "user": secret });
    let mut streamed = completion.clone();
    streamed["stream"] = json!(true);
    let chat =
        json!({ "messages": [{ "role": "user", "content": secret }], "max_completion_tokens": 5, "ignore_eos": true });
    let embedding = json!({ "input": secret });
    for (path, body, operation, n_out) in [
        ("/v1/completions", &completion, "text_completion", Some(10)),
        ("/v1/completions", &streamed, "text_completion", Some(10)),
        (CHAT, &chat, "chat", Some(5)),
        ("/v1/embeddings", &embedding, "embeddings", None),
    ] {
        let answer = ask(&server, path, &parent, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let span = collector.span().await;
        let Span { json, attributes } = &span;
        assert_eq!((&json["traceId"], &json["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
        assert_ne!(json["spanId"], PARENT);
        assert_eq!((&json["traceState"], &json["flags"]), (&json!("vendor=1"), &json!(0x301)));
        assert_eq!((&json["name"], &json["status"]), (&json!(format!("{operation} {MODEL}")), &json!({})));
        assert_eq!(attributes["gen_ai.operation.name"], operation);
        assert_eq!(attributes["gen_ai.request.model"], MODEL);
        assert_eq!((&attributes["http.response.status_code"], &attributes["url.path"]), (&json!(200), &json!(path)));
        assert_eq!(attributes["hearth.request_id"], answer.header("x-request-id"));
        assert!(span.number("gen_ai.usage.input_tokens") >= 20.0);
        assert!(!json.to_string().contains("secret"), "{json}");
        let Some(n_out) = n_out else { continue };
        assert_eq!(span.number("gen_ai.usage.output_tokens"), f64::from(n_out));
        assert_eq!(attributes["gen_ai.usage.completion_tokens"], attributes["gen_ai.usage.output_tokens"]);
        assert_eq!(attributes["gen_ai.response.finish_reasons"], json!(["length"]));
        assert_eq!(span.number("gen_ai.request.max_tokens"), 5.0);
        let [queue, prefill, decode, ttft, all] =
            ["time_in_queue", "time_in_model_prefill", "time_in_model_decode", "time_to_first_token", "e2e"]
                .map(|name| span.number(&format!("gen_ai.latency.{name}")));
        assert!(prefill > 0.0 && decode > 0.0 && ttft >= queue + prefill && queue + prefill + decode <= all, "{json}");
    }
    let streams = ask(&server, "/v1/completions", &parent, &streamed).await;
    let id = crate::support::events(&streams.text)[0]["id"].clone();
    let span = collector.span().await;
    assert_eq!(
        (&span.attributes["gen_ai.response.id"], &span.attributes["gen_ai.request.stream"]),
        (&id, &json!(true))
    );
    assert_eq!((span.number("gen_ai.request.choice.count"), span.number("gen_ai.request.temperature")), (2.0, 0.7));
}

#[tokio::test]
async fn malformed_traceparent_starts_a_trace_and_unsampled_exports_none() {
    let mut collector = Collector::start().await;
    let exporter = collector.exporter();
    let server = server(&exporter);
    let body = json!({ "prompt": "x", "max_tokens": 1 });
    for malformed in ["", "00-xyz", &format!("00-{}-{PARENT}-01", "0".repeat(32)), &format!("ff-{TRACE}-{PARENT}-01")] {
        ask(&server, "/v1/completions", malformed, &body).await;
        let Span { json, .. } = collector.span().await;
        assert!(json["traceId"] != TRACE && json.get("parentSpanId").is_none(), "{malformed}: {json}");
        assert_eq!((&json["flags"], json.get("traceState")), (&json!(1), None));
    }
    // Health checks and unsampled traces export no span, so the next span is that of the last request.
    server.get("/health").await;
    ask(&server, "/v1/completions", &format!("00-{TRACE}-{PARENT}-00"), &body).await;
    server.get("/v1/models").await;
    let span = collector.span().await;
    assert_eq!((&span.json["name"], &span.attributes["url.path"]), (&json!("GET"), &json!("/v1/models")));
}

#[tokio::test]
async fn span_status_is_an_error_only_for_server_failures() {
    let mut collector = Collector::start().await;
    let exporter = collector.exporter();
    let server = server(&exporter);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    // The client's own.
    ask(&server, "/v1/completions", &parent, &json!({ "prompt": "x", "temperature": 9 })).await;
    let span = collector.span().await;
    assert_eq!((&span.json["status"], span.number("http.response.status_code")), (&json!({}), 400.0));
    assert_eq!(span.attributes.get("error.type"), None);
    // The deadline passes before the answer, and in a stream.
    let late = json!({ "prompt": vec![97; 4000], "max_tokens": 4000, "ignore_eos": true, "deadline_ms": 1 });
    assert_eq!(ask(&server, "/v1/completions", &parent, &late).await.status, StatusCode::GATEWAY_TIMEOUT);
    let span = collector.span().await;
    assert_eq!(span.json["status"], json!({ "code": 2, "message": "504" }));
    assert_eq!(span.attributes["error.type"], "504");
    let mut late_stream = late.clone();
    late_stream["stream"] = json!(true);
    ask(&server, "/v1/completions", &parent, &late_stream).await;
    let span = collector.span().await;
    assert_eq!(span.json["status"], json!({ "code": 2, "message": "timeout_error" }));
    assert_eq!(span.attributes["gen_ai.response.finish_reasons"], json!(["timeout_error"]));
    // The span of an unknown path is named by its method only.
    server.get("/any/thing").await;
    assert_eq!(collector.span().await.json["name"], "GET");
}

#[tokio::test]
async fn disconnected_client_exports_a_cancelled_span() {
    let mut collector = Collector::start().await;
    let exporter = collector.exporter();
    let live = Live::with(|api, _| api.spans = Some(exporter.sender())).await;
    for stream in [false, true] {
        let body = json!({ "prompt": "x", "max_tokens": 8000, "ignore_eos": true, "stream": stream });
        let mut connection = live.post(&body).await;
        if stream {
            connection.first_event().await;
        } else {
            live.server.wait_for(|stats| stats.running == 1).await;
        }
        drop(connection);
        live.server.wait_for(is_idle).await;
        let span = collector.span().await;
        assert_eq!(span.attributes["gen_ai.response.finish_reasons"], json!(["cancelled"]));
        assert_eq!(span.json["status"], json!({}));
        assert_eq!(span.attributes.contains_key("http.response.status_code"), stream);
        if stream {
            assert!((1.0..8000.0).contains(&span.number("gen_ai.usage.output_tokens")));
        }
    }
}

/// The span of a timed-out embedding has the same attributes as that of a completion.
#[tokio::test]
async fn timed_out_embedding_span_has_a_finish_reason() {
    let mut collector = Collector::start().await;
    let exporter = collector.exporter();
    let server = server(&exporter);
    for (path, field) in [("/v1/embeddings", "input"), ("/v1/completions", "prompt")] {
        let late = json!({ field: vec![97; 8000], "deadline_ms": 1 });
        assert_eq!(server.post_to(path, late.to_string()).await.status, StatusCode::GATEWAY_TIMEOUT);
        let attributes = collector.span().await.attributes;
        assert_eq!(attributes.get("gen_ai.response.finish_reasons"), Some(&json!(["timeout_error"])), "{path}");
        assert_eq!(attributes["error.type"], "504");
    }
}

#[tokio::test]
async fn busy_collector_is_retried_and_shutdown_flushes_spans() {
    let mut collector = Collector::rejecting(2).await;
    let exporter = collector.exporter();
    let server = server(&exporter);
    server.get("/v1/models").await;
    collector.span().await;
    assert_eq!(collector.n_rejected.load(Ordering::Relaxed), 2);
    for _ in 0..700 {
        server.get("/v1/models").await;
    }
    assert!(tokio::task::spawn_blocking(move || exporter.finish(TEST_TIMEOUT)).await.unwrap());
    let mut n_spans = 0;
    while let Ok((_, document)) = collector.documents.try_recv() {
        n_spans += document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len();
    }
    assert_eq!(n_spans, 700);
}

#[tokio::test]
async fn silent_collector_does_not_delay_requests() {
    // It accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let exporter = exporter(listener.local_addr().unwrap());
    let server = server(&exporter);
    // More requests than the span queue holds.
    for _ in 0..3000 {
        assert_eq!(server.get("/v1/models").await.status, StatusCode::OK);
    }
    server.complete(json!({ "prompt": "x", "max_tokens": 3 })).await;
    assert_eq!(format!("{:?}", exporter.sender()), "2048 spans");
    assert!(!tokio::task::spawn_blocking(move || exporter.finish(Duration::from_millis(1))).await.unwrap());
}
