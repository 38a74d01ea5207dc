//! Streamed answers: the same text as unstreamed ones, over real sockets, with clients that leave and servers that stop.

use std::{io::ErrorKind, time::Duration};

use axum::{
    body::Body,
    http::{Request, header},
};
use hearth_server::{
    api::{router::app, state::AppState},
    engine::EngineOptions,
    serve::{Ended, ServeError, serve},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tower::ServiceExt;

use crate::support::{MAX_SEQ_LEN, MODEL, OPTIONS, PATIENCE, Server, engine, events, fold, is_idle};

/// More tokens than this machine makes in the time that a test waits: 128 choices of 8,000 tokens.
fn endless() -> Value {
    json!({ "prompt": "x", "max_tokens": MAX_SEQ_LEN, "n": 128, "ignore_eos": true })
}

#[tokio::test]
async fn streamed_deltas_concatenate_to_the_unstreamed_answer() {
    let server = Server::start();
    let mut n_stopped = 0;
    // The random model writes random bytes, so texts are full of characters that tokens cut in two.
    for seed in 0..40 {
        let stops = [json!(null), json!("a"), json!(["\u{fffd}\u{fffd}", "th"]), json!(["e", "\n\n", "é"])];
        let body = json!({
            "prompt": (["the é end", "日本語", "x"][seed % 3]),
            "seed": seed,
            "temperature": 1.0 + (seed % 2) as f32 / 2.0,
            "max_tokens": 1 + seed * 2,
            "stop": stops[seed % 4],
            "n": 1 + seed % 3,
            "echo": seed % 5 == 0,
            "logprobs": if seed % 2 == 0 { json!(3) } else { json!(null) },
        });
        let whole = server.complete(body.clone()).await;
        let streamed = server.stream(body.clone()).await;
        assert_eq!(json!(fold(&streamed)), whole["choices"], "{body}");
        n_stopped += usize::from(whole["choices"][0]["finish_reason"] == "stop");
    }
    assert!((5..40).contains(&n_stopped), "{n_stopped} stopped: the test shows too little");
    server.wait_for(is_idle).await;
}

#[tokio::test]
async fn a_character_is_held_back_until_it_is_whole() {
    let server = Server::start();
    // A bias and a penalty write 0xe6, 0x97, 0xa5 in turn: the bytes of 日.
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
async fn a_stream_has_openais_shape() {
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
async fn headers_of_a_stream() {
    let server = Server::start();
    let answer = server.post(json!({ "prompt": "x", "stream": true }).to_string()).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    events(&answer.text);
}

#[tokio::test]
async fn dropping_the_body_frees_everything() {
    let server = Server::start();
    let mut body = endless();
    body["stream"] = json!(true);
    let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    let response =
        app(server.state.clone()).oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    server.wait_for(|stats| stats.running > 1 && stats.waiting > 0).await;
    drop(body);
    server.wait_for(is_idle).await;
}

/// A server on a port of its own.
struct Live {
    server: Server,
    address: std::net::SocketAddr,
    signals: mpsc::Sender<()>,
    ended: JoinHandle<Result<Ended, ServeError>>,
}

impl Live {
    async fn start() -> Self {
        Self::with_options(OPTIONS, PATIENCE).await
    }

    async fn with_options(options: EngineOptions, drain_timeout: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = engine(options);
        let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
        let (signals, receiver) = mpsc::channel(2);
        let ended = tokio::spawn(serve(listener, server.state.clone(), receiver, drain_timeout));
        Self { server, address, signals, ended }
    }

    /// A connection on which a request was sent.
    async fn post(&self, body: &Value) -> Connection {
        let body = body.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let mut connection =
            Connection { stream: TcpStream::connect(self.address).await.unwrap(), received: Vec::new() };
        connection.send(format!("{head}{body}").as_bytes()).await;
        connection
    }

    async fn ended(self) -> Result<Ended, ServeError> {
        timeout(PATIENCE, self.ended).await.expect("the server ends").unwrap()
    }
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

/// A client's end of a connection.
struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    async fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.stream.writable().await.unwrap();
            match self.stream.try_write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    /// Takes in what has arrived; `false` at the end.
    async fn receive(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            self.stream.readable().await.unwrap();
            match self.stream.try_read(&mut buffer) {
                Ok(n) => {
                    self.received.extend_from_slice(&buffer[..n]);
                    return n > 0;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    async fn first_event(&mut self) {
        while !self.text().contains("\ndata: ") {
            assert!(self.receive().await, "no event: {}", self.text());
        }
    }

    /// Everything, once the server has closed the connection.
    async fn all(mut self) -> String {
        let to_the_end = async { while self.receive().await {} };
        timeout(PATIENCE, to_the_end).await.expect("the answer ends");
        self.text()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }
}

#[tokio::test]
async fn a_client_gone_in_mid_stream_frees_everything() {
    let live = Live::start().await;
    let mut connection = live.post(&streamed(endless())).await;
    connection.first_event().await;
    drop(connection);
    live.server.wait_for(is_idle).await;
}

#[tokio::test]
async fn a_client_gone_before_an_unstreamed_answer_frees_everything() {
    let live = Live::start().await;
    let connection = live.post(&endless()).await;
    live.server.wait_for(|stats| stats.running > 0).await;
    drop(connection);
    live.server.wait_for(is_idle).await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_up_nobody() {
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
async fn draining_finishes_what_is_in_flight_and_takes_nothing_new() {
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
async fn a_second_signal_ends_at_once() {
    let live = Live::start().await;
    let mut connection = live.post(&streamed(endless())).await;
    connection.first_event().await;
    live.signals.send(()).await.unwrap();
    live.signals.send(()).await.unwrap();
    assert_eq!(live.ended().await.unwrap(), Ended::CutShort);
}

#[tokio::test]
async fn draining_has_a_time_limit() {
    let live = Live::with_options(OPTIONS, Duration::from_millis(1)).await;
    let mut connection = live.post(&streamed(endless())).await;
    connection.first_event().await;
    live.signals.send(()).await.unwrap();
    assert_eq!(live.ended().await.unwrap(), Ended::CutShort);
}

#[tokio::test]
async fn failed_inference_ends_streams_with_an_error_and_then_the_server() {
    use hearth_model::sampling::SamplingParams;
    use hearth_server::engine::request::{GenerateRequest, ModelLimits, RequestParts, StopConditions};

    let live = Live::start().await;
    let mut one = endless();
    one["n"] = json!(1);
    let mut connection = live.post(&streamed(one)).await;
    connection.first_event().await;
    // A request checked against another model's limits panics in the embedding.
    let wrong = ModelLimits { vocab_size: 100_000, max_seq_len: 100, max_batch_size: 1, n_pages: 10 };
    let stop = StopConditions { max_tokens: 1, ..StopConditions::default() };
    let sampling = SamplingParams::greedy();
    let parts = RequestParts { prompt_ids: vec![99_999], sampling, stop, ..RequestParts::default() };
    let _poison = live.server.engine.submit(vec![GenerateRequest::new(parts, &wrong).unwrap()]).unwrap();
    let text = connection.all().await;
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("inference failed"), "{error}");
    assert!(matches!(live.ended().await, Err(ServeError::Inference(_))));
}
