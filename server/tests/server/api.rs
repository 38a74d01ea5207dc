//! Requests and answers without a socket: completions, errors, models, health and the page.

use std::{collections::BTreeSet, time::Duration};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use hearth_engine::EngineOptions;
use hearth_server::api::wire::state::AppState;
use serde_json::{Value, json};
use tokio::task::yield_now;

use crate::{
    connections::with_options,
    support::{EOS, MAX_SEQ_LEN, MODEL, OPTIONS, Server, VOCAB_SIZE, is_idle, tokenizer},
};
use hearth_model::text::tokenizer::{DecodeOptions, EncodeOptions};

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn completion_has_the_openai_shape() {
    let server = Server::start();
    let body = json!({ "model": MODEL, "prompt": "the hand", "max_tokens": 5, "temperature": 0, "ignore_eos": true });
    let answer = server.complete(body).await;
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], MODEL);
    let fingerprint = answer["system_fingerprint"].as_str().unwrap();
    assert!(fingerprint.starts_with("fp_") && fingerprint.len() == 13, "{fingerprint}");
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1);
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["index"], &choice["logprobs"], &choice["finish_reason"]),
        (&json!(0), &Value::Null, &json!("length"))
    );
    // `the`, ` `, `h`, `and`
    assert_eq!(
        answer["usage"],
        json!({ "prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9, "prompt_tokens_details": { "cached_tokens": 0 } })
    );
}

#[tokio::test]
async fn prompts_are_accepted_as_text_token_ids_or_lists() {
    let server = Server::start();
    let ids = |text: &str| json!(tokenizer().encode(text, EncodeOptions::PROMPT).unwrap());
    let complete = |prompt: Value| {
        server.complete(json!({ "prompt": prompt, "temperature": 0, "max_tokens": 6, "ignore_eos": true }))
    };
    let one = complete(json!("one and")).await;
    let two = complete(json!("two, the other")).await;
    for prompt in [
        json!(["one and", "two, the other"]),
        json!([ids("one and"), ids("two, the other")]),
        json!(["one and", ids("two, the other")]),
    ] {
        let both = complete(prompt).await;
        assert_eq!(both["choices"][0]["text"], one["choices"][0]["text"]);
        assert_eq!(both["choices"][1]["text"], two["choices"][0]["text"]);
        assert_eq!(both["choices"][1]["index"], 1);
        let sum = |name: &str| one["usage"][name].as_u64().unwrap() + two["usage"][name].as_u64().unwrap();
        assert_eq!(both["usage"]["total_tokens"], sum("total_tokens"));
        assert_eq!(both["usage"]["prompt_tokens"], sum("prompt_tokens"));
    }
    assert_eq!(text(&complete(ids("one and")).await), text(&one));
    assert_eq!(text(&complete(json!(["one and"])).await), text(&one));
}

#[tokio::test]
async fn equal_seeds_repeat_answers_and_choices_differ() {
    let server = Server::start();
    let body =
        |seed: Value, n: usize| json!({ "prompt": "once", "max_tokens": 16, "n": n, "seed": seed, "ignore_eos": true });
    let three = server.complete(body(json!(-7), 3)).await;
    let again = server.complete(body(json!(-7), 3)).await;
    assert_eq!(three["choices"], again["choices"]);
    let alone = server.complete(body(json!(-7), 1)).await;
    assert_eq!(three["choices"][0], alone["choices"][0]);
    assert_ne!(three["choices"][0]["text"], three["choices"][1]["text"]);
    assert_ne!(text(&server.complete(body(json!(8), 1)).await), text(&alone));
    // Without a seed the answers differ.
    assert_ne!(text(&server.complete(body(Value::Null, 1)).await), text(&server.complete(body(Value::Null, 1)).await));
    // The prompt counts once.
    assert_eq!(three["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]);
    assert_eq!(three["usage"]["completion_tokens"], 48);
    // Greedy choices are equal.
    let greedy = server.complete(json!({ "prompt": "once", "n": 2, "temperature": 0 })).await;
    assert_eq!(greedy["choices"][0]["text"], greedy["choices"][1]["text"]);
}

/// Without a seed each of the equal prompts gets its own answer; with a seed all get the same.
#[tokio::test]
async fn equal_prompts_differ_without_a_seed_and_agree_with_one() {
    let server = Server::start();
    let base = json!({ "prompt": vec!["the"; 4], "temperature": 1, "max_tokens": 24, "ignore_eos": true });
    let texts = |fields: Value| {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let server = &server;
        async move {
            let answer = server.complete(body).await;
            let choices = answer["choices"].as_array().unwrap().iter();
            choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        }
    };
    let n_different = |texts: &[String]| texts.iter().collect::<BTreeSet<_>>().len();
    for fields in
        [json!({}), json!({ "seed": null }), json!({ "n": 2 }), json!({ "best_of": 2 }), json!({ "echo": true })]
    {
        let texts = texts(fields.clone()).await;
        assert_eq!(n_different(&texts), texts.len(), "{fields}: {texts:?}");
    }
    let beams = json!({ "stochastic_beam_search": true, "n": 2, "max_tokens": 12 });
    let drawn = texts(beams.clone()).await;
    assert_eq!(n_different(&drawn), 8, "{drawn:?}");

    let seeded = texts(json!({ "seed": 7 })).await;
    assert_eq!(n_different(&seeded), 1, "{seeded:?}");
    assert_eq!(texts(json!({ "seed": 7, "prompt": "the" })).await, seeded[..1]);
    let seeded = texts(json!({ "seed": 7, "n": 2 })).await;
    assert_eq!((n_different(&seeded), &seeded[..2]), (2, &seeded[6..]), "{seeded:?}");
    let mut beams = beams;
    beams["seed"] = json!(7);
    let drawn = texts(beams).await;
    assert_eq!((n_different(&drawn), &drawn[..2]), (2, &drawn[6..]), "{drawn:?}");
}

#[tokio::test]
async fn logit_bias_forces_a_token_and_ignore_eos_ignores_the_end() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "max_tokens": 4, "logit_bias": { "97": 100 } });
    assert_eq!(text(&server.complete(body).await), "aaaa");
    let body = json!({ "prompt": "x", "max_tokens": 4, "logit_bias": { (EOS.to_string()): 100 } });
    let ended = server.complete(body.clone()).await;
    assert_eq!((text(&ended), &ended["choices"][0]["finish_reason"]), ("", &json!("stop")));
    assert_eq!(ended["usage"]["completion_tokens"], 1);
    let mut ignoring = body;
    ignoring["ignore_eos"] = json!(true);
    let ignored = server.complete(ignoring).await;
    assert_eq!((text(&ignored), &ignored["choices"][0]["finish_reason"]), ("", &json!("length")));
    assert_eq!(ignored["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn stop_strings_are_matched_across_token_boundaries() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "temperature": 0, "max_tokens": 40, "ignore_eos": true });
    let whole = server.complete(body.clone()).await;
    let whole = text(&whole);
    let chars: Vec<char> = whole.chars().collect();
    assert!(chars.len() > 12, "{whole:?}");
    for start in 0..8 {
        let stop: String = chars[start..start + 4].iter().collect();
        let mut body = body.clone();
        body["stop"] = json!(["never seen", stop]);
        let cut = server.complete(body).await;
        assert_eq!(text(&cut), &whole[..whole.find(&stop).unwrap()]);
        assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn echo_returns_the_prompt_with_its_logprobs() {
    let server = Server::start();
    let prompt = "the é end";
    let body =
        json!({ "prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": true, "logprobs": 2, "ignore_eos": true });
    let answer = server.complete(body.clone()).await;
    assert!(text(&answer).starts_with(prompt));
    let ids = tokenizer().encode(prompt, EncodeOptions::PROMPT).unwrap();
    let logprobs = &answer["choices"][0]["logprobs"];
    let array = |name: &str| logprobs[name].as_array().unwrap();
    let n_tokens = ids.len() + 3;
    assert_eq!(
        ["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(|name| array(name).len()),
        [n_tokens; 4]
    );
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert_eq!(logprobs["tokens"][0], "the");
    // The two bytes of `é` are not text by themselves, and have the same offset.
    assert_eq!((&logprobs["tokens"][2], &logprobs["tokens"][3]), (&json!("bytes:\\xc3"), &json!("bytes:\\xa9")));
    assert_eq!(array("text_offset")[..6], [0, 3, 4, 4, 5, 6].map(Value::from));
    // Generated tokens are greedy: the token is the best alternative, and the same number.
    for at in ids.len()..n_tokens {
        let top = logprobs["top_logprobs"][at].as_object().unwrap();
        let best = top.values().map(|logprob| logprob.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(logprobs["token_logprobs"][at].as_f64(), Some(best));
        assert_eq!(top.len(), 2);
    }
    // The same numbers as when those tokens are the prompt, and nothing is generated.
    let generated = text(&answer).strip_prefix(prompt).unwrap();
    if let Ok(more) = tokenizer().encode(&format!("{prompt}{generated}"), EncodeOptions::PROMPT)
        && more.len() == n_tokens
    {
        let scored = json!({ "prompt": more, "max_tokens": 0, "echo": true, "logprobs": 1 });
        let scored = server.complete(scored).await;
        assert_eq!(scored["choices"][0]["finish_reason"], "length");
        assert_eq!(scored["usage"]["completion_tokens"], 0);
        for at in 1..n_tokens {
            let number = |answer: &Value| answer["choices"][0]["logprobs"]["token_logprobs"][at].as_f64().unwrap();
            assert!((number(&scored) - number(&answer)).abs() < 1e-4, "token {at}");
        }
    }
    // `echo` without generated tokens and without log-probabilities.
    let alone = server.complete(json!({ "prompt": ids, "max_tokens": 0, "echo": true })).await;
    assert_eq!(text(&alone), prompt);
    assert_eq!(alone["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn logprobs_0_lists_only_the_chosen_token() {
    let server = Server::start();
    let answer = server.complete(json!({ "prompt": "x", "max_tokens": 2, "logprobs": 0, "ignore_eos": true })).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    let top = logprobs["top_logprobs"][0].as_object().unwrap();
    assert_eq!(top.values().collect::<Vec<_>>(), [&logprobs["token_logprobs"][0]]);
}

#[tokio::test]
async fn unknown_and_null_fields_do_not_change_the_answer() {
    let server = Server::start();
    let plain = server.complete(json!({ "prompt": "x", "seed": 1 })).await;
    let body = json!({
        "prompt": "x", "seed": 1, "user": "me", "brand_new": { "a": 1 }, "suffix": null, "best_of": 1, "n": null,
        "max_tokens": null, "temperature": null, "stop": null, "logprobs": null, "stream": null, "logit_bias": null,
        "top_k": -1, "repeat_penalty": 1, "stream_options": null, "echo": null, "model": null,
    });
    assert_eq!(server.complete(body).await["choices"], plain["choices"]);
    assert_eq!(plain["usage"]["prompt_tokens"], 1);
}

#[tokio::test]
async fn invalid_completion_requests_are_rejected_naming_the_parameter() {
    let server = Server::start();
    let cases = [
        (json!({}), "prompt", "`prompt` is required"),
        (json!({ "prompt": null }), "prompt", "`prompt` is required"),
        (json!({ "prompt": 3 }), "prompt", "got `3`"),
        (json!({ "prompt": [] }), "prompt", "got `[]`"),
        (json!({ "prompt": [[]] }), "prompt", "at least one token"),
        (json!({ "prompt": [[1], [2.5]] }), "prompt", "got `[[1],[2.5]]`"),
        (json!({ "prompt": [-1] }), "prompt", "got `[-1]`"),
        (json!({ "prompt": "" }), "prompt", "at least one token"),
        (json!({ "prompt": [VOCAB_SIZE] }), "prompt", "token ids below 263, got 263"),
        (json!({ "max_tokens": 0 }), "max_tokens", "at least 1, got `0`\nhint: 0 is allowed with `echo`"),
        (json!({ "max_tokens": -2 }), "max_tokens", "got `-2`"),
        (json!({ "max_tokens": "many" }), "max_tokens", "got `\"many\"`"),
        (json!({ "temperature": 2.1 }), "temperature", "a number from 0 to 2, got `2.1`"),
        (json!({ "temperature": "hot" }), "temperature", "got `\"hot\"`"),
        (json!({ "top_p": 1.5 }), "top_p", "from 0 to 1"),
        (json!({ "top_k": -2 }), "top_k", "from -1 up"),
        (json!({ "min_p": -0.1 }), "min_p", "from 0 to 1"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty", "above 0"),
        (json!({ "presence_penalty": 3 }), "presence_penalty", "from -2 to 2"),
        (json!({ "frequency_penalty": -3 }), "frequency_penalty", "from -2 to 2"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias", "got `{\"x\":1}`"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias", "got `{\"1\":101}`"),
        (json!({ "logit_bias": { "263": 1 } }), "logit_bias", "263"),
        (json!({ "seed": 0.5 }), "seed", "got `0.5`"),
        (json!({ "stop": [""] }), "stop", "empty"),
        (json!({ "stop": 1 }), "stop", "got `1`"),
        (json!({ "n": 0 }), "n", "from 1 to 128"),
        (json!({ "n": 129 }), "n", "from 1 to 128"),
        (json!({ "prompt": vec!["a"; 100], "n": 100 }), "prompt", "at most 2048 answers"),
        (json!({ "use_beam_search": true, "best_of": 9 }), "best_of", "from `n` to 8 beams"),
        (json!({ "use_beam_search": true, "early_stopping": "yes" }), "early_stopping", "or \"never\""),
        (
            json!({ "use_beam_search": true, "best_of": 4, "num_beam_groups": 3 }),
            "num_beam_groups",
            "must divide `best_of`",
        ),
        (json!({ "best_of": 4, "num_beam_groups": 2 }), "num_beam_groups", "needs `use_beam_search`"),
        (json!({ "use_beam_search": true, "diversity_penalty": -1 }), "diversity_penalty", "from 0 up"),
        (json!({ "priority": 101 }), "priority", "from -100 to 100"),
        (json!({ "deadline_ms": 0 }), "deadline_ms", "from 1 up"),
        (json!({ "suffix": "end" }), "suffix", "trained to fill in the middle"),
        (json!({ "stream": "yes" }), "stream", "true or false"),
        (json!({ "stream_options": 1 }), "stream_options", "an object"),
        (json!({ "stream_options": { "include_usage": 1 } }), "stream_options.include_usage", "true or false"),
        (json!({ "echo": 1 }), "echo", "true or false"),
        (json!({ "logprobs": 21 }), "logprobs", "from 0 to 20"),
        (json!({ "logprobs": true }), "logprobs", "got `true`"),
        (json!({ "min_tokens": 20 }), "min_tokens", "got 20 and 16"),
        (json!({ "stop_token_ids": [263] }), "stop_token_ids", "below 263"),
        (json!({ "model": 1 }), "model", "a string"),
    ];
    for (mut body, param, message) in cases {
        if body.get("prompt").is_none() && param != "prompt" {
            body["prompt"] = json!("x");
        }
        let answer = server.post(body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        let error = answer.error();
        assert!(error.contains(message), "{body}: {error}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    server.wait_for(is_idle).await;
}

#[tokio::test]
async fn prompt_beyond_the_context_is_rejected_with_both_token_counts() {
    let server = Server::start();
    let answer = server.post(json!({ "prompt": vec![1; MAX_SEQ_LEN] }).to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(MAX_SEQ_LEN), &json!(MAX_SEQ_LEN)));
    assert!(answer.error().ends_with("hint: `truncate_prompt_tokens` cuts the prompt"), "{}", answer.error());
    // One less leaves room for one token.
    let small = Server::with_options(EngineOptions { kv_cache_tokens: Some(32), ..OPTIONS });
    let fits = small.complete(json!({ "prompt": vec![1; 31], "ignore_eos": true })).await;
    assert_eq!(fits["usage"]["completion_tokens"], 1);
    assert_eq!(fits["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn malformed_and_oversized_bodies_are_rejected() {
    let server = Server::start();
    for body in ["", "{", "[1]", "null", "{\"prompt\": \"x\"", &"[".repeat(1 << 20)] {
        let answer = server.post(body.to_owned()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body:.40}");
        assert!(answer.error().starts_with("the body must "), "{}", answer.text);
    }
    let invalid_utf8 = server.post(b"{\"prompt\": \"\xff\"}".to_vec()).await;
    assert_eq!(invalid_utf8.status, StatusCode::BAD_REQUEST);
    assert!(!invalid_utf8.error().is_empty());
    let large = server.post(vec![b' '; 9 << 20]).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(large.error(), "the body must be at most 8388608 bytes");
}

#[tokio::test]
async fn unknown_paths_methods_and_models_are_rejected() {
    let server = Server::start();
    let answer = server.get("/v1/nonsense").await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (StatusCode::NOT_FOUND, Some("unknown_url")));
    assert!(answer.error().contains("`/v1/nonsense`"));
    let answer = server.get("/v1/completions").await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.error(), "`/v1/completions` does not support the method `GET`");
    assert_eq!(answer.header("allow"), "POST");
    for answer in [
        server.post(json!({ "prompt": "x", "model": "gpt-9" }).to_string()).await,
        server.get("/v1/models/gpt-9").await,
    ] {
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (StatusCode::NOT_FOUND, Some("model_not_found"))
        );
        assert_eq!(answer.error(), "the model `gpt-9` does not exist; this server has `tiny`");
    }
}

#[tokio::test]
async fn models_health_and_ready_reflect_loading_and_draining() {
    let server = Server::start();
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!((&list["data"][0]["id"], &list["data"][0]["object"]), (&json!(MODEL), &json!("model")));
    assert_eq!(list["data"][0]["max_model_len"], MAX_SEQ_LEN);
    assert_eq!(server.get("/v1/models/tiny").await.json(), list["data"][0]);
    assert_eq!(server.get("/health").await.json(), json!({ "status": "ok" }));
    assert_eq!(server.get("/ready").await.status, StatusCode::OK);

    let loading = Server { state: AppState::loading(MODEL), engine: server.engine.clone() };
    assert_eq!(loading.get("/health").await.status, StatusCode::OK);
    for answer in
        [loading.get("/ready").await, loading.get("/v1/models").await, loading.post(r#"{"prompt": "x"}"#).await]
    {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.error(), "the model is still loading");
        assert_eq!(answer.header("retry-after"), "5");
    }

    server.state.start_draining();
    assert_eq!(server.get("/health").await.status, StatusCode::OK);
    for answer in [server.get("/ready").await, server.post(r#"{"prompt": "x"}"#).await] {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.error(), "the server is shutting down");
    }
}

#[tokio::test]
async fn health_and_ready_fail_when_a_step_exceeds_step_timeout() {
    for path in ["/health", "/ready"] {
        // Any step takes longer than this.
        let server = with_options(|options| options.step_timeout = Duration::ZERO);
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path} between steps");
        let busy = server.post(json!({ "prompt": "x", "max_tokens": 8000, "ignore_eos": true }).to_string());
        let noticed = async {
            loop {
                let answer = server.get(path).await;
                // Before the first step, it may be the preparation of the request that has made no progress.
                if answer.status != StatusCode::OK && answer.error().starts_with("a step of the model ") {
                    return answer;
                }
                yield_now().await;
            }
        };
        tokio::select! {
            _ = busy => panic!("{path} notices no step"),
            answer = noticed => {
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
                assert!(answer.error().contains("has made no progress for 0 s"), "{}", answer.error());
            }
        }
    }
}

#[tokio::test]
async fn full_queue_answers_429_with_retry_after() {
    let server = Server::with_options(EngineOptions { max_queue: 1, max_batch_size: 1, ..OPTIONS });
    let long = json!({ "prompt": "x", "max_tokens": MAX_SEQ_LEN, "ignore_eos": true }).to_string();
    // The tiny model may finish the first two requests before the third is sent: then try again.
    let mut refusal = None;
    for _ in 0..50 {
        let running = server.post(long.clone());
        tokio::pin!(running);
        tokio::select! {
            _ = &mut running => continue,
            () = server.wait_for(|stats| stats.running == 1) => {}
        }
        let waiting = server.post(long.clone());
        tokio::pin!(waiting);
        let refused = async {
            server.wait_for(|stats| stats.waiting == 1).await;
            server.post(long.clone()).await
        };
        tokio::select! {
            _ = &mut running => continue,
            _ = &mut waiting => continue,
            answer = refused => refusal = Some(answer),
        }
        if refusal.as_ref().is_some_and(|answer| answer.status != StatusCode::OK) {
            break;
        }
    }
    let answer = refusal.unwrap();
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.header("retry-after"), "2");
    assert_eq!(answer.json()["error"]["code"], "queue_full");
    assert_eq!(answer.error(), "the queue is full: at most 1 answers may wait, counting each answer of a request");
}

#[tokio::test]
async fn responses_have_a_new_or_the_given_x_request_id() {
    let server = Server::start();
    assert!(server.get("/health").await.header("x-request-id").starts_with("req-"));
    let given = Request::get("/nowhere").header("x-request-id", "mine").body(Body::empty()).unwrap();
    let answer = server.send(given).await;
    assert_eq!(answer.header("x-request-id"), "mine");
}

#[tokio::test]
async fn page_files_are_served_with_content_type_csp_and_etag() {
    let server = Server::start();
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/main.js", "text/javascript; charset=utf-8"),
        ("/vendor/purify.es.mjs", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
    ] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, content_type));
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(!answer.text.is_empty());
        // A browser with a current copy gets 304 without a body.
        let tag = answer.header("etag");
        let again = Request::get(path).header("if-none-match", tag).body(Body::empty()).unwrap();
        let again = server.send(again).await;
        assert_eq!((again.status, again.text.as_str()), (StatusCode::NOT_MODIFIED, ""));
    }
}

#[tokio::test]
async fn echoed_token_ids_are_decoded_like_the_tokenizer_decodes_them() {
    let server = Server::start();
    let ids = [0x74, 256, 258, EOS, 0xc3, 0xa9];
    let answer = server.complete(json!({ "prompt": ids, "max_tokens": 0, "echo": true })).await;
    assert_eq!(text(&answer), tokenizer().decode(&ids, DecodeOptions { skip_special_tokens: false }));
}

/// As llama.cpp serves them.
#[tokio::test]
async fn endpoints_of_openai_are_also_at_the_root() {
    let server = Server::start();
    let chat = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 });
    for (path, body) in [
        ("/completions", json!({ "prompt": "x", "max_tokens": 1 })),
        ("/chat/completions", chat),
        ("/responses", json!({ "input": "x", "max_output_tokens": 1 })),
        ("/embeddings", json!({ "input": "x" })),
    ] {
        let answer = server.post_to(path, body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        assert!(answer.json()["object"].is_string(), "{path}");
    }
    for path in ["/models", &format!("/models/{MODEL}")] {
        assert_eq!(server.get(path).await.text, server.get(&format!("/v1{path}")).await.text);
    }
}
