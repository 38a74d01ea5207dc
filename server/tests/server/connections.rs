//! Clients that are slow, hostile, unauthorized or gone: each gets an error or a closed connection, and the next
//! request is answered. Also TLS and limits of connections.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, Request, StatusCode, header},
};
use hearth_server::{
    api::{
        guard::{api_keys::ApiKeys, options::ApiOptions},
        wire::state::AppState,
    },
    serve::Ended,
    tls,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use crate::{
    live_server::{Live, post},
    support::{MAX_SEQ_LEN, MODEL, OPTIONS, Server, TEST_TIMEOUT, engine, is_idle},
};

/// A timeout that a test waits for.
const SHORT_TIMEOUT: Duration = Duration::from_millis(50);

/// A server with settings of its own.
pub(crate) fn with_options(set: impl FnOnce(&mut ApiOptions)) -> Server {
    let mut options = ApiOptions::default();
    set(&mut options);
    let engine = engine(OPTIONS);
    let state = AppState::loading_with(MODEL, options);
    state.set_engine(engine.clone());
    Server { engine, state }
}

#[tokio::test]
async fn api_key_is_required_except_for_page_health_and_metrics() {
    let server = with_options(|options| options.keys = ApiKeys::new(["sk-one", "sk-two"]).unwrap());
    let get = |path: &str, authorization: &[u8]| {
        let request = Request::get(path).header(header::AUTHORIZATION, HeaderValue::from_bytes(authorization).unwrap());
        server.send(request.body(Body::empty()).unwrap())
    };
    for good in ["Bearer sk-one", "bearer sk-two", "Bearer  sk-two "] {
        assert_eq!(get("/v1/models", good.as_bytes()).await.status, StatusCode::OK, "{good}");
    }
    for bad in [
        &b"Bearer sk-three"[..],
        b"Bearer sk-on",
        b"Bearer sk-one2",
        b"Bearer ",
        b"Basic sk-one",
        b"sk-one",
        b"Bearer \xff",
    ] {
        let answer = get("/v1/models", bad).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
        assert!(!answer.error().contains("sk-"), "{}", answer.text);
        assert!(answer.header("x-request-id").starts_with("req-"));
    }
    for path in ["/v1/models", "/tokenize", "/v1/nowhere", "/tokenizer_info"] {
        assert_eq!(server.get(path).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    for open in ["/", "/main.js", "/style.css", "/health", "/ready", "/metrics"] {
        assert_eq!(server.get(open).await.status, StatusCode::OK, "{open}");
    }
}

#[tokio::test]
async fn printable_x_request_id_is_kept_and_others_are_replaced() {
    let server = Server::start();
    let id_of = |given: &[u8]| {
        let request = Request::get("/health").header("x-request-id", HeaderValue::from_bytes(given).unwrap());
        let answer = server.send(request.body(Body::empty()).unwrap());
        async { answer.await.header("x-request-id").to_owned() }
    };
    assert_eq!(id_of(b"trace/7-a.b").await, "trace/7-a.b");
    assert_eq!(id_of(&[b'a'; 128]).await, "a".repeat(128));
    for unfit in [&[b'a'; 129][..], b"", b"two words", b"caf\xc3\xa9", b"tab\tbed"] {
        assert!(id_of(unfit).await.starts_with("req-"), "{unfit:?}");
    }
}

#[tokio::test]
async fn slow_heads_slow_bodies_and_idle_connections_are_closed() {
    let live = Live::with(|api, serve| {
        api.body_timeout = SHORT_TIMEOUT;
        serve.timeouts.head = SHORT_TIMEOUT;
        serve.timeouts.idle = SHORT_TIMEOUT;
    })
    .await;
    // Sends nothing; stops in the middle of a head; stays idle after an answer.
    let silent = live.connect().await;
    let mut half = live.connect().await;
    half.send(b"POST /v1/completions HTTP/1.1\r\nhost: te").await;
    let mut kept = live.connect().await;
    kept.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(silent.all().await, "");
    let text = half.all().await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    let text = kept.all().await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("{\"status\":\"ok\"}"), "{text}");
    // Stops in the body.
    let mut body = live.connect().await;
    body.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"pro").await;
    let text = body.all().await;
    assert!(text.starts_with("HTTP/1.1 408") && text.contains("the body must arrive within"), "{text}");
    live.assert_serves().await;
}

#[tokio::test]
async fn request_head_sent_in_small_pieces_hits_the_header_timeout() {
    let live = Live::with(|_, serve| serve.timeouts.head = SHORT_TIMEOUT).await;
    let mut slow = live.connect().await;
    slow.send(b"GET /health HTTP/1.1\r\n").await;
    let drops = async {
        // Each piece arrives well within the timeout, all together do not.
        while let Err(_) | Ok(true) = timeout(SHORT_TIMEOUT / 10, slow.receive()).await {
            if slow.stream.try_write(b"x: y\r\n").is_err() {
                break;
            }
        }
    };
    timeout(TEST_TIMEOUT, drops).await.expect("the connection is closed");
    live.assert_serves().await;
}

#[tokio::test]
async fn idle_keep_alive_connection_outlives_the_header_timeout() {
    let live = Live::with(|_, serve| serve.timeouts.head = SHORT_TIMEOUT).await;
    let mut kept = live.connect().await;
    for round in 1..=3 {
        kept.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        while kept.text().matches("{\"status\":\"ok\"}").count() < round {
            assert!(kept.receive().await, "closed after {}", kept.text());
        }
        // Once a later connection without a head is closed, the header timeout has passed for this one, too.
        assert_eq!(live.connect().await.all().await, "");
    }
}

#[tokio::test]
async fn long_answer_is_not_cut_by_header_body_or_idle_timeout() {
    let live = Live::with(|api, serve| {
        api.body_timeout = SHORT_TIMEOUT;
        serve.timeouts.head = SHORT_TIMEOUT;
        serve.timeouts.idle = SHORT_TIMEOUT;
    })
    .await;
    let body = json!({ "prompt": "x", "max_tokens": 3000, "ignore_eos": true });
    let answer = live.post(&body).await.all().await;
    assert!(answer.contains("\"completion_tokens\":3000"), "{answer:.200}");
}

#[tokio::test]
async fn malformed_http_is_rejected_and_the_server_keeps_serving() {
    let live = Live::start().await;
    let flood: String = (0..5000).map(|number| format!("x-{number}: y\r\n")).collect();
    let cases: [(&str, Vec<u8>, &[&str]); 10] = [
        ("many headers", format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{flood}\r\n").into(), &["431", ""]),
        ("a large header", format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)).into(), &["431", ""]),
        (
            "a long path",
            format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(1 << 20)).into(),
            &["414", "431", ""],
        ),
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), &["400", ""]),
        ("no headers end", b"nonsense\r\n\r\n".to_vec(), &["400", ""]),
        (
            "two lengths",
            b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
            &["400", ""],
        ),
        (
            "chunks that are none",
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"
                .to_vec(),
            &["400"],
        ),
        ("nested brackets", post(&"[".repeat(7 << 20)).into(), &["400"]),
        ("nested brackets, too many", post(&"[".repeat(10 << 20)).into(), &["413", ""]),
        (
            "bytes that are no text",
            [post(&"x".repeat(9)).strip_suffix(&"x".repeat(9)).unwrap().as_bytes(), b"{\"p\": \"\xff\xfe"].concat(),
            &["400"],
        ),
    ];
    for (what, bytes, expected) in cases {
        let mut connection = live.connect().await;
        let sent = connection.send_all(&bytes).await;
        let text = connection.all().await;
        let status = text.split(' ').nth(1).unwrap_or_default();
        assert!(expected.contains(&status), "{what}: {sent} bytes sent, got {text:.200}");
        live.assert_serves().await;
    }
}

/// The server receives and discards the rest of the body: otherwise the client would see a broken connection.
#[tokio::test]
async fn early_errors_reach_clients_that_still_send_their_body() {
    const N_BYTES: usize = 20 << 20;
    let live = Live::with(|api, _| api.keys = ApiKeys::new(["sk"]).unwrap()).await;
    let (key, is_json) = ("authorization: Bearer sk\r\n", "content-type: application/json\r\n");
    let sized = format!("content-length: {N_BYTES}\r\n\r\n");
    for (path, headers, body, status) in [
        ("/v1/completions", is_json.to_owned(), sized.as_str(), "401"),
        ("/nowhere", key.to_owned(), &sized, "404"),
        ("/v1/completions", format!("{key}{is_json}"), &sized, "413"),
        ("/v1/completions", format!("{key}content-type: text/plain\r\n"), &sized, "415"),
        // Chunks that are none.
        ("/v1/completions", format!("{key}{is_json}"), "transfer-encoding: chunked\r\n\r\nzz\r\n", "400"),
    ] {
        let mut client = live.connect().await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}{body}");
        client.send(head.as_bytes()).await;
        client.until("\"error\"").await;
        assert_eq!(client.send_all(&vec![b' '; N_BYTES]).await, N_BYTES, "{status}");
        let text = client.all().await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")) && text.contains("connection: close"), "{text}");
    }
    // A shutdown does not wait for such a client.
    let mut client = live.connect().await;
    client.send(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n").await;
    client.until("\"error\"").await;
    live.signals.send(()).await.unwrap();
    assert_eq!(live.ended().await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn reset_and_half_closed_connections_do_not_affect_the_server() {
    let live = Live::start().await;
    // Reset in the head, in the body, and after the whole request with nothing read: as the system does for a killed
    // process with unread bytes.
    for part in ["POST /v1/comp", &post(&"x".repeat(1000))[..500], &post(&endless().to_string())] {
        let mut connection = live.connect().await;
        connection.send(part.as_bytes()).await;
        connection.stream.set_zero_linger().unwrap();
        drop(connection);
        live.assert_serves().await;
    }
    live.server.wait_for(is_idle).await;
    // Half-closed: the client has closed its sending side, and can still receive.
    let mut connection = live.connect().await;
    connection.send(b"GET /health HTTP/1.1\r\nhost: te").await;
    connection.stream.shutdown().await.unwrap();
    let text = connection.all().await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{text}");
    live.assert_serves().await;
}

fn endless() -> Value {
    json!({ "prompt": "x", "max_tokens": MAX_SEQ_LEN, "n": 128, "ignore_eos": true, "stream": true })
}

#[tokio::test]
async fn client_that_never_reads_is_cut_off_at_the_idle_timeout() {
    let live = Live::with(|_, serve| serve.timeouts.idle = SHORT_TIMEOUT).await;
    let _unread = live.post(&endless()).await;
    live.server.wait_for(|stats| stats.running > 0).await;
    live.server.wait_for(is_idle).await;
    live.assert_serves().await;
}

#[tokio::test]
async fn connections_beyond_max_connections_wait_for_a_free_one() {
    let live = Live::with(|_, serve| serve.max_connections = 2).await;
    let mut held = [live.connect().await, live.connect().await];
    for connection in &mut held {
        connection.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        connection.until("ok\"}").await;
    }
    let mut third = live.connect().await;
    third.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(timeout(SHORT_TIMEOUT, third.receive()).await.is_err(), "served beyond the limit");
    drop(held);
    assert!(third.all().await.ends_with("{\"status\":\"ok\"}"));
}

#[tokio::test]
async fn queued_stream_receives_keep_alive_comments() {
    let live = Live::with(|api, _| api.keep_alive = Duration::from_millis(5)).await;
    // The batch is full, so the next request waits.
    let mut busy = live.post(&endless()).await;
    busy.first_event().await;
    let mut waiting = live.post(&json!({ "prompt": "x", "max_tokens": 1, "stream": true, "priority": 100 })).await;
    waiting.until("\n:").await;
    waiting.until(":\n\n\r\n3\r\n:").await;
    let text = waiting.text();
    assert!(text.contains("x-accel-buffering: no") && !text.contains("\ndata: "), "{text}");
    drop(busy);
    let text = waiting.all().await;
    assert!(text.contains("data: [DONE]"), "{text}");
}

#[tokio::test]
async fn deadline_during_a_stream_ends_it_with_an_error_event() {
    let server = Server::start();
    let mut body = endless();
    body["deadline_ms"] = json!(50);
    let answer = server.post(body.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK);
    let last = answer.text.trim_end().rsplit("\n\n").next().unwrap();
    let (event, data) = last.split_once('\n').unwrap();
    assert_eq!(event, "event: error");
    let error: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "deadline_exceeded");
}

/// A certificate for `localhost`, one for `other.test`, and their keys; made by `tls/make.sh`.
pub(crate) fn tls_file(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/tls").join(name)
}

#[tokio::test]
async fn tls_server_streams_answers_and_drains() {
    let acceptor = tls::acceptor(&tls_file("cert.pem"), &tls_file("key.pem")).unwrap();
    let live = Live::with(|_, serve| {
        serve.tls = Some(acceptor);
        serve.timeouts.head = Duration::from_secs(5);
    })
    .await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(tls_file("cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let name = || ServerName::try_from("localhost").unwrap();
    let mut secure = connector.connect(name(), live.connect().await.stream).await.unwrap();
    // Plain HTTP is not a TLS handshake.
    let mut plain = live.connect().await;
    plain.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(!plain.all().await.contains("200"));

    let body = json!({ "prompt": "x", "max_tokens": 300, "ignore_eos": true, "stream": true });
    secure.write_all(post(&body.to_string()).as_bytes()).await.unwrap();
    let mut text = vec![0; 1000];
    let n_read = secure.read(&mut text).await.unwrap();
    text.truncate(n_read);
    live.signals.send(()).await.unwrap();
    secure.read_to_end(&mut text).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("data: [DONE]"), "{text:.200}");
    assert_eq!(live.ended().await.unwrap(), Ended::Drained);
}

/// Only the header timeout is short, which also limits the handshake.
#[tokio::test]
async fn unfinished_tls_handshake_is_closed_at_the_header_timeout() {
    let acceptor = tls::acceptor(&tls_file("cert.pem"), &tls_file("key.pem")).unwrap();
    let live = Live::with(|_, serve| {
        serve.tls = Some(acceptor);
        serve.timeouts.head = SHORT_TIMEOUT;
    })
    .await;
    let silent = live.connect().await;
    let mut begun = live.connect().await;
    // The head of a TLS record.
    begun.send(b"\x16\x03\x01\x02\x00").await;
    assert_eq!([silent.all().await, begun.all().await], ["", ""]);
}

#[test]
fn missing_or_mismatched_tls_files_are_rejected() {
    let refusal = |cert: &str, key: &str| tls::acceptor(&tls_file(cert), &tls_file(key)).err().unwrap().to_string();
    assert!(refusal("nowhere.pem", "key.pem").starts_with("`--tls-cert`: cannot read"));
    assert!(refusal("key.pem", "key.pem").contains("has no certificate"));
    assert!(refusal("cert.pem", "cert.pem").contains("has no unencrypted private key"));
    assert!(refusal("cert.pem", "other-key.pem").contains("`--tls-key` is not the key of the certificate"));
}

#[tokio::test]
async fn draining_does_not_wait_for_connections_without_a_request() {
    let live = Live::start().await;
    // A new connection, one that is idle after a request, and one in the middle of a head.
    let _new = live.connect().await;
    let mut idle = live.connect().await;
    idle.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    idle.until("ok\"}").await;
    let mut head = live.connect().await;
    head.send(b"GET /hea").await;
    live.assert_serves().await;
    live.signals.send(()).await.unwrap();
    assert_eq!(live.ended().await.unwrap(), Ended::Drained);
}
