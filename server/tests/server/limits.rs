//! Limits of one request: places in the queue, lengths of texts and lists, time of shared threads, its own templates.

use std::{future::poll_fn, sync::mpsc, task::Poll};

use axum::http::StatusCode;
use hearth_engine::{EngineOptions, SubmitError, request::RequestParts, tenant::TenantId};
use hearth_model::decode::sampling::SamplingParams;
use serde_json::{Value, json};
use tokio::{runtime, task::spawn_blocking};

use crate::{
    engine::{parts, prompt, request},
    live_server::Live,
    support::{CHAT, MAX_SEQ_LEN, OPTIONS, Server, engine, is_idle, wait_for},
};

/// Larger than bodies that are parsed on the threads of connections.
const LONG_BYTES: usize = 1 << 17;

#[tokio::test]
async fn max_queue_counts_answers_not_requests() {
    let engine = engine(EngineOptions { max_queue: 4, max_batch_size: 1, ..OPTIONS });
    let endless = |n: u32| {
        let one = request(parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()));
        (0..n).map(|choice| one.for_choice(choice)).collect::<Vec<_>>()
    };
    let full = SubmitError::QueueFull { max_queue: 4 };
    let running = engine.submit(endless(1)).unwrap();
    wait_for(&engine, |stats| stats.running == 1).await;
    let waiting = engine.submit(endless(3)).unwrap();
    wait_for(&engine, |stats| stats.waiting == 3).await;
    assert_eq!(engine.submit(endless(2)).unwrap_err(), full, "one place is left");
    let last = engine.submit(endless(1)).unwrap();
    wait_for(&engine, |stats| stats.waiting == 4).await;
    assert_eq!(engine.submit(endless(1)).unwrap_err(), full);
    let refused = engine.submit(endless(5)).unwrap_err();
    assert_eq!(refused, SubmitError::TooManyAnswers { n_answers: 5, max_queue: 4 });
    // The first of the three waiting answers starts, which frees one place.
    drop(running);
    wait_for(&engine, |stats| stats.running == 1 && stats.waiting == 3).await;
    let next = engine.submit(endless(1)).unwrap();
    drop((waiting, last, next));
    wait_for(&engine, is_idle).await;
    drop(engine.submit(endless(4)).unwrap());
}

#[tokio::test]
async fn full_queue_rejects_requests_before_reading_their_bodies() {
    let engine = engine(EngineOptions { max_queue: 1, max_batch_size: 1, ..OPTIONS });
    let live = Live::over(engine.clone(), |_, _| {}).await;
    let endless = || vec![request(parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()))];
    let running = engine.submit(endless()).unwrap();
    wait_for(&engine, |stats| stats.running == 1).await;
    let waiting = engine.submit(endless()).unwrap();
    // As many of the tenant that connects: another's queue alone does not keep it out.
    let local = RequestParts {
        tenant: TenantId::of_address(live.address.ip()),
        ..parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy())
    };
    let own = engine.submit(vec![request(local)]).unwrap();
    wait_for(&engine, |stats| stats.waiting == 2).await;
    // The client waits for permission to send the body.
    let mut client = live.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    client.send(format!("{head}expect: 100-continue\r\ncontent-length: 1000\r\n\r\n").as_bytes()).await;
    let answer = client.all().await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 2"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    // A client that sends its body can reuse the connection.
    let mut client = live.connect().await;
    client.send(format!("{head}content-length: 8\r\n\r\nnot JSON").as_bytes()).await;
    client.until("queue_full").await;
    client.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    client.until("{\"status\":\"ok\"}").await;
    for path in ["/v1/completions", CHAT, "/v1/embeddings"] {
        let answer = live.server.post_to(path, "not JSON").await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
        assert_eq!(answer.json()["error"]["code"], "queue_full", "{path}");
    }
    assert_eq!(live.server.post_to("/tokenize", "not JSON").await.status, StatusCode::BAD_REQUEST);
    drop((running, waiting, own));
    wait_for(&engine, is_idle).await;
    live.assert_serves().await;
}

/// Too many tokens, or so many bytes that there must be too many tokens: the longest token has 7 bytes.
#[tokio::test]
async fn texts_beyond_the_context_are_rejected_naming_the_parameter() {
    let server = Server::start();
    let too_many_bytes = "x".repeat(7 * MAX_SEQ_LEN + 1);
    for (text, n_tokens) in [("x".repeat(MAX_SEQ_LEN + 100), None), (too_many_bytes.clone(), Some(MAX_SEQ_LEN + 1))] {
        for (path, param, body) in [
            ("/v1/completions", "prompt", json!({ "prompt": text })),
            ("/v1/embeddings", "input", json!({ "input": ["x", text] })),
            (CHAT, "messages", json!({ "messages": [{ "role": "user", "content": text }] })),
        ] {
            let answer = server.post_to(path, body.to_string()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
            let error = &answer.json()["error"];
            assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!(param)));
            let n_told = error["n_prompt_tokens"].as_u64().unwrap() as usize;
            // A template adds a few bytes.
            assert!(n_tokens.is_none_or(|n_tokens| (n_tokens..n_tokens + 10).contains(&n_told)), "{error}");
            assert_eq!(answer.error().contains("bytes of text"), n_tokens.is_some(), "{error}");
        }
    }
    server.complete(json!({ "prompt": too_many_bytes, "truncate_prompt_tokens": 4, "max_tokens": 1 })).await;
}

/// All text that the chat template renders counts.
#[tokio::test]
async fn long_tools_calls_and_template_variables_are_rejected() {
    let server = Server::trusting_templates(engine(OPTIONS));
    let long = "x".repeat(7 * MAX_SEQ_LEN + 1);
    let user = json!({ "role": "user", "content": "x" });
    let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": long } });
    let assistant = json!({ "role": "assistant", "tool_calls": [call] });
    let result = json!({ "role": "tool", "tool_call_id": "1", "content": "x" });
    let tool = json!({ "type": "function", "function": { "name": "f", "description": long } });
    for body in [
        json!({ "messages": [user], "tools": [tool] }),
        json!({ "messages": [user, assistant, result] }),
        json!({ "messages": [user], "chat_template": "{{ text }}", "chat_template_kwargs": { "text": long } }),
    ] {
        let answer = server.post_to(CHAT, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        assert!(answer.error().contains("bytes of text"), "{}", answer.error());
        assert_eq!(server.post_to("/tokenize", body.to_string()).await.status, StatusCode::OK);
    }
    let mut cut = json!({ "messages": [user], "tools": [tool] });
    cut.as_object_mut().unwrap().extend([("truncate_prompt_tokens".into(), json!(4)), ("max_tokens".into(), json!(1))]);
    server.chat(cut).await;
}

#[tokio::test]
async fn deadline_response_has_x_should_retry_false() {
    let server = Server::start();
    let answer = server.post(json!({ "prompt": vec![97; 8000], "deadline_ms": 1 }).to_string()).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(answer.header("x-should-retry"), "false");
}

#[tokio::test]
async fn each_beam_counts_as_a_running_sequence() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "use_beam_search": true, "best_of": 4, "max_tokens": 8000, "ignore_eos": true });
    tokio::select! {
        _ = server.complete(body) => panic!("not so fast"),
        () = server.wait_for(|stats| stats.running == 4) => {}
    }
    server.wait_for(is_idle).await;
}

#[tokio::test]
async fn more_answers_than_max_queue_are_rejected_with_400() {
    let server = Server::with_options(EngineOptions { max_queue: 4, ..OPTIONS });
    for (path, param, body) in [
        ("/v1/completions", "n", json!({ "prompt": ["x", "y", "z"], "n": 2, "max_tokens": 1 })),
        ("/v1/completions", "best_of", json!({ "prompt": ["x", "y", "z"], "best_of": 2, "max_tokens": 1 })),
        ("/v1/completions", "prompt", json!({ "prompt": vec!["x"; 6], "max_tokens": 1 })),
        (CHAT, "n", json!({ "messages": [{ "role": "user", "content": "x" }], "n": 6 })),
        ("/v1/embeddings", "input", json!({ "input": vec!["x"; 6] })),
    ] {
        let answer = server.post_to(path, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let expected =
            "the request asks for 6 answers, but at most 4 may wait at once\nhint: send fewer prompts or texts, a";
        assert!(answer.error().starts_with(expected), "{}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param);
    }
    server.complete(json!({ "prompt": ["x", "y"], "n": 2, "max_tokens": 1 })).await;
}

#[tokio::test]
async fn too_long_word_lists_and_cache_salts_are_rejected() {
    let server = Server::start();
    let long = "x".repeat((1 << 16) + 1);
    for name in ["stop", "bad_words", "dry_sequence_breakers"] {
        let answer = server.post(json!({ "prompt": "x", name: [long] }).to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}");
        assert_eq!(answer.error(), format!("`{name}` must hold at most 65536 bytes of text in all, got 65537"));
    }
    let salt = |n_chars: usize| json!({ "prompt": "x", "max_tokens": 1, "cache_salt": "\u{e9}".repeat(n_chars) });
    server.complete(salt(1024)).await;
    let answer = server.post(salt(1025).to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.error(), "`cache_salt` must have at most 1024 characters, got 1025");
}

#[tokio::test]
async fn prompt_reports_repeated_for_too_many_choices_are_rejected() {
    let server = Server::start();
    let text = "the other hand ".repeat(200);
    let body = |n: usize, reports: Value| {
        let mut body = json!({ "prompt": text, "n": n, "max_tokens": 1 });
        body.as_object_mut().unwrap().extend(reports.as_object().unwrap().clone());
        body
    };
    for reports in [json!({ "prompt_logprobs": 20 }), json!({ "echo": true, "logprobs": 20 })] {
        server.complete(body(2, reports.clone())).await;
        let answer = server.post(body(128, reports.clone()).to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{reports}");
        assert!(answer.error().contains("bytes of prompts") && answer.error().contains("\nhint: lower `n`"));
    }
    // A chat answer reports the log-probabilities of its prompt only once.
    let chat =
        json!({ "messages": [{ "role": "user", "content": text }], "n": 128, "max_tokens": 1, "prompt_logprobs": 20 });
    server.chat(chat).await;
}

/// There is one thread for connections, and the only thread for preparations is busy: short requests are answered,
/// while long bodies and templates wait.
#[test]
fn long_bodies_and_templates_do_not_delay_short_requests() {
    let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let server = Server::trusting_templates(engine(OPTIONS));
        let (go, goes) = mpsc::channel::<()>();
        let taken = spawn_blocking(move || goes.recv().unwrap());
        let long_mistake = "[".repeat(LONG_BYTES);
        let long_ids = json!({ "prompt": vec![0; LONG_BYTES] }).to_string();
        let long_tokens = json!({ "tokens": vec![999; LONG_BYTES] }).to_string();
        let template =
            json!({ "messages": [{ "role": "user", "content": "x" }], "chat_template": "{% if %}" }).to_string();
        let late = [
            ("/v1/completions", &long_mistake),
            ("/v1/completions", &long_ids),
            ("/v1/embeddings", &long_mistake),
            ("/detokenize", &long_tokens),
            ("/tokenize", &long_mistake),
            (CHAT, &long_mistake),
            (CHAT, &template),
            ("/tokenize", &template),
        ];
        let late = late.map(|(path, body)| (path, Box::pin(server.post_to(path, body.clone()))));
        let mut waiting = Vec::new();
        for (path, mut answer) in late {
            tokio::select! {
                biased;
                _ = &mut answer => panic!("`{path}` is answered by the thread that serves connections"),
                short = server.post("{}") => assert_eq!(short.status, StatusCode::BAD_REQUEST),
            }
            waiting.push((path, answer));
        }
        go.send(()).unwrap();
        taken.await.unwrap();
        // They are polled together, as they wait for each other.
        poll_fn(|context| {
            waiting.retain_mut(|(path, answer)| match answer.as_mut().poll(context) {
                Poll::Ready(answer) => {
                    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
                    false
                }
                Poll::Pending => true,
            });
            if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
}

#[tokio::test]
async fn bodies_with_too_many_json_values_are_rejected() {
    let server = Server::start();
    // Within the limit of 8 MiB, but each 4 bytes would become 400 bytes of memory.
    let bomb = format!("{{\"prompt\": [{}[0]]}}", "[0],".repeat(2_000_000));
    for path in ["/v1/completions", "/tokenize"] {
        let answer = server.post_to(path, bomb.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.error().starts_with("the body has too many values"), "{}", answer.error());
        assert!(answer.error().contains("\nhint: "), "{}", answer.error());
    }
}

#[tokio::test]
async fn chat_template_of_a_request_is_rejected_unless_trusted() {
    let (refusing, trusting) = (Server::start(), Server::trusting_templates(engine(OPTIONS)));
    let body = |template: &str| json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1, "chat_template": template });
    for path in [CHAT, "/tokenize"] {
        let answer = refusing.post_to(path, body("{{ messages[0].content }}").to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.json()["error"]["param"], "chat_template");
        assert_eq!(
            answer.error(),
            "`chat_template` is not accepted from requests by this server, which uses the model's own\n\
             hint: leave it out, or start the server with `--trust-request-chat-template`"
        );
        let mut null = body("");
        null["chat_template"] = Value::Null;
        assert_eq!(refusing.post_to(path, null.to_string()).await.status, StatusCode::OK);
        let answer = trusting.post_to(path, body("{{ messages[0].content }}").to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }
}
