//! Very ambiguous grammars, whose tokens take longer and longer: they delay only their own request, and give the
//! answers of an unambiguous grammar for the same texts.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{body::Body, http::StatusCode};
use hearth_model::{
    constraint::{Constraint, Grammar, GrammarCompiler},
    tokenizer::EncodeOptions,
};
use hearth_server::{
    api::router::app,
    engine::{EngineOptions, Speculation},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{EOS, OPTIONS, Server, TEST_TIMEOUT, VOCAB_SIZE, is_idle, request_to, tokenizer, wait_for};

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

fn constraint(lark: &str) -> Constraint {
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    compiler.compile(&Grammar::Lark(lark.to_owned()), "grammar").unwrap()
}

fn id(byte: u8) -> u32 {
    let text = (byte as char).to_string();
    tokenizer().encode(&text, EncodeOptions::TEXT).unwrap()[0]
}

fn settled(constraint: &mut Constraint) -> hearth_model::Result<bool> {
    loop {
        match constraint.accepted() {
            Some(accepted) => return accepted,
            None => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

#[test]
fn accept_elsewhere_gives_the_masks_and_errors_of_accept() {
    let (logits, ends) = (vec![0.0; VOCAB_SIZE], BTreeSet::from([EOS]));
    let mut here = constraint("start: s \".\"\ns: s s | /[a-d]/ | \"(\" s \")\"");
    let mut elsewhere = here.clone();
    let text = b"ab(c(d)a)b.";
    for (at, &byte) in text.iter().enumerate() {
        assert_eq!(here.restrict(&logits, &ends).unwrap(), elsewhere.restrict(&logits, &ends).unwrap(), "{at}");
        elsewhere.accept_elsewhere(id(byte));
        let is_complete = here.accept(id(byte)).unwrap();
        assert_eq!(settled(&mut elsewhere).unwrap(), is_complete, "{at}");
        assert_eq!(is_complete, at + 1 == text.len());
        assert!(elsewhere.accepted().is_none(), "it is told once");
    }
    // A rejected token gives the same error.
    let (mut here, mut elsewhere) = (constraint(QUICK), constraint(QUICK));
    elsewhere.accept_elsewhere(id(b'!'));
    assert_eq!(settled(&mut elsewhere).unwrap_err().to_string(), here.accept(id(b'!')).unwrap_err().to_string());
}

#[test]
fn constraint_is_slow_follows_the_measured_time_per_token() {
    let (logits, ends) = (vec![0.0; VOCAB_SIZE], BTreeSet::new());
    let accept_a = |constraint: &mut Constraint| {
        constraint.accept(id(b'a')).unwrap();
        constraint.restrict(&logits, &ends).unwrap();
    };
    let mut slow = constraint(SLOW);
    let clone = slow.clone();
    slow.restrict(&logits, &ends).unwrap();
    for _ in 0..230 {
        accept_a(&mut slow);
    }
    assert!(slow.is_slow());
    assert!(clone.is_slow(), "clones share what takes the time");

    // Token times are wall-clock times: a quick grammar may look slow after the thread was descheduled, and recovers.
    let mut quick = constraint(QUICK);
    quick.restrict(&logits, &ends).unwrap();
    let mut tokens_on_time = 0;
    let end = Instant::now() + TEST_TIMEOUT;
    while tokens_on_time < 230 {
        accept_a(&mut quick);
        tokens_on_time += 1;
        if quick.is_slow() {
            tokens_on_time = 0;
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(Instant::now() < end, "quick tokens are taken for slow ones");
    }
}

/// Compiling recurses along chains of rules, in its own thread, whose stack must hold the longest accepted chain.
#[test]
fn longest_allowed_grammar_rule_chains_do_not_overflow_the_stack() {
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    let compile = |grammar: Grammar| compiler.compile(&grammar, "grammar").map(drop).map_err(|error| error.to_string());
    let chain = |n: usize, each: &dyn Fn(usize) -> String| (0..n).map(|i| each(i) + "\n").collect::<String>();
    let rule = |i: usize| format!("r{i}: \"x\" r{}", i + 1);
    let unit = |i: usize| format!("r{i}: r{}", i + 1);
    let circle = |i: usize| format!("r{i}: \"x\" r{}?", (i + 1) % 3_999);
    let terminal = |i: usize| format!("T{i}: \"x\" T{}", i + 1);
    // The first and the last rule count, too.
    for n in [3_998, 3_999] {
        for source in [
            format!("start: r0\n{}r{n}: \"z\"", chain(n, &rule)),
            format!("start: r0\n{}r{n}: \"z\"", chain(n, &unit)),
            format!("start: r0\n{}", chain(n + 1, &circle)),
            format!("start: T0\n{}T{n}: \"z\"", chain(n, &terminal)),
        ] {
            let refused = compile(Grammar::Lark(source)).is_err_and(|error| error.contains("4000 rules"));
            assert_eq!(refused, n == 3_999);
        }
    }
    // As long as the limit on values admits.
    type Link = fn(Value) -> Value;
    let links: [(usize, Link); 9] = [
        (2, |next| next),
        (4, |next| json!({ "allOf": [next] })),
        (4, |next| json!({ "anyOf": [next] })),
        (4, |next| json!({ "oneOf": [next] })),
        (3, |next| json!({ "items": next })),
        (4, |next| json!({ "prefixItems": [next] })),
        (3, |next| json!({ "additionalProperties": next })),
        (4, |next| json!({ "properties": { "a": next } })),
        (4, |next| json!({ "patternProperties": { "a": next } })),
    ];
    for (values, link) in links {
        let n = 19_900 / values;
        let named = |i: usize| (format!("d{i}"), link(json!({ "$ref": format!("#/$defs/d{}", i + 1) })));
        let mut names: serde_json::Map<String, Value> = (0..n).map(named).collect();
        names.insert(format!("d{n}"), json!({ "type": "integer" }));
        let compiled = compile(Grammar::Json(json!({ "$ref": "#/$defs/d0", "$defs": names })));
        assert!(!compiled.is_err_and(|error| error.contains("values")), "{values}");
    }
}

/// Compile time grows faster than the number of optional parts.
#[test]
fn regex_with_more_than_5000_optional_parts_is_rejected() {
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    let refusal =
        |grammar: Grammar| compiler.compile(&grammar, "grammar").map(drop).err().map(|error| error.to_string());
    let many = |part: &str| part.repeat(6_000);
    for part in ["a?", "a*", "a{0,1}", "(a|)", "(|a)"] {
        for grammar in [
            Grammar::Regex(many(part)),
            Grammar::Lark(format!("start: /{}/", many(part))),
            Grammar::Json(json!({ "items": { "type": "string", "pattern": many(part) } })),
            Grammar::Json(json!({ "patternProperties": { many(part): true } })),
        ] {
            let error = refusal(grammar).unwrap_or_default();
            assert!(error.contains("at most 5000 optional parts") && error.contains("got 6000"), "{part}: {error}");
        }
    }
    assert_eq!(refusal(Grammar::Regex(format!("{}b?", "[ab]\\?\\*".repeat(6_000)))), None);
}
