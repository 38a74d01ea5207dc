//! Combinations of parameters: a defined behavior, or an error that names both.

use std::sync::Arc;

use axum::http::StatusCode;
use hearth_engine::{Event, Failure};
use hearth_model::{
    decode::sampling::{ChainStep, SamplingParams},
    weights::model_dir::LoadedModel,
};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};

use crate::{
    engine::{parts, prompt, request},
    support::{EOS, MODEL, OPTIONS, Server, VOCAB_SIZE, engine, fold, is_idle, model, wait_for},
};

/// A copy of `base` with `fields` set.
fn with(base: &Value, fields: &Value) -> Value {
    let mut body = base.clone();
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn incompatible_parameters_are_rejected_naming_both() {
    let server = Server::start();
    let cases = [
        (json!({ "stream": true, "best_of": 3 }), "best_of", "equal to `n` with `stream`"),
        (json!({ "stream": true, "prompt_logprobs": 1 }), "prompt_logprobs", "`stream`"),
        (json!({ "best_of": 2, "n": 3 }), "best_of", "at least `n`, got 2 and 3"),
        (json!({ "min_tokens": 20, "max_tokens": 5 }), "min_tokens", "`max_tokens`"),
        (json!({ "mirostat": 2, "top_k": 40 }), "mirostat", "`top_k`"),
        (json!({ "mirostat": 2, "temperature": 0 }), "mirostat", "`temperature`"),
        (json!({ "dynatemp_range": 1, "temperature": 0 }), "dynatemp_range", "`temperature`"),
        (json!({ "allowed_token_ids": [97], "bad_words": ["x"] }), "bad_words", "`allowed_token_ids`"),
        (json!({ "allowed_token_ids": [EOS], "min_tokens": 1 }), "allowed_token_ids", "`min_tokens`"),
        (
            json!({ "stop_token_ids": (0..VOCAB_SIZE).collect::<Vec<_>>(), "min_tokens": 1 }),
            "stop_token_ids",
            "`min_tokens`",
        ),
        (json!({ "samplers": ["top_k"], "temperature": 0.5 }), "samplers", "`temperature`"),
        (
            json!({ "use_beam_search": true, "stochastic_beam_search": true }),
            "stochastic_beam_search",
            "`use_beam_search` exclude each other: choose one",
        ),
    ];
    for (fields, param, other) in cases {
        let answer = server.post(with(&json!({ "prompt": "x" }), &fields).to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields}");
        let named = format!("`{param}`");
        assert!(answer.error().contains(&named) && answer.error().contains(other), "{fields}: {}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param, "{fields}");
    }
    server.wait_for(is_idle).await;
}

#[tokio::test]
async fn compatible_parameters_give_equal_streamed_and_whole_answers() {
    let server = Server::start();
    let base = json!({ "prompt": "the end", "max_tokens": 4, "ignore_eos": true, "seed": 1, "logprobs": 2 });
    // Streamed and unstreamed answers are equal.
    for fields in [
        json!({ "echo": true }),
        json!({ "echo": true, "max_tokens": 0 }),
        json!({ "echo": true, "n": 3, "temperature": 0 }),
        json!({ "echo": true, "n": 2, "best_of": 2, "prompt": ["the end", "x"] }),
        json!({ "use_beam_search": true, "best_of": 3, "n": 2, "temperature": 0 }),
        json!({ "use_beam_search": true, "best_of": 3, "min_tokens": 2, "ignore_eos": false }),
        json!({ "use_beam_search": true, "n": 2, "temperature": 0.5, "prompt": ["the end", "x"] }),
        json!({ "stochastic_beam_search": true, "n": 3, "skip_special_tokens": false }),
        json!({ "use_beam_search": true, "n": 2, "echo": true, "logprobs": null }),
        json!({ "min_tokens": 4, "stop": "e", "stop_token_ids": [101] }),
        json!({ "bad_words": ["the"], "logprobs_mode": "processed_logprobs", "top_k": 5 }),
    ] {
        let body = with(&base, &fields);
        let whole = server.complete(body.clone()).await;
        let streamed = server.stream(with(&body, &json!({ "stream_options": { "include_usage": true } }))).await;
        assert_eq!(json!(fold(&streamed)), whole["choices"], "{body}");
        let usage =
            |usage: &Value| ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].clone());
        assert_eq!(usage(&streamed.last().unwrap()["usage"]), usage(&whole["usage"]), "{body}");
    }
    // Greedy choices are equal, so the best of them are, too.
    let greedy = server.complete(with(&base, &json!({ "n": 2, "best_of": 3, "temperature": 0 }))).await;
    assert_eq!(greedy["choices"][0]["text"], greedy["choices"][1]["text"]);
    assert_eq!(greedy["usage"]["completion_tokens"], 12, "all three were generated");
    // `echo` and `prompt_logprobs` together: each lists the number of alternatives it asks for.
    let both = server.complete(with(&base, &json!({ "echo": true, "prompt_logprobs": 0, "max_tokens": 0 }))).await;
    let choice = &both["choices"][0];
    assert_eq!(choice["prompt_logprobs"][1].as_object().unwrap().len(), 1);
    assert!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len() >= 2);
}

#[tokio::test]
async fn bad_words_that_exclude_every_token_fail_only_their_request() {
    let engine = engine(OPTIONS);
    // The bias makes the model generate `a`, after which every token of the vocabulary would complete a bad word.
    let sampling = SamplingParams {
        logit_bias: Arc::new([(97, 100.0)].into()),
        bad_words: (0..VOCAB_SIZE as u32).map(|id| vec![97, id]).collect(),
        ..SamplingParams::greedy()
    };
    for min_tokens in [0, 3] {
        let mut dead_end = parts(prompt(3, 1), 5, sampling.clone());
        dead_end.stop.min_tokens = min_tokens;
        dead_end.stop.stop_token_ids = Arc::new([EOS].into());
        let mut events = engine.submit(vec![request(dead_end)]).unwrap();
        assert!(matches!(events.recv().await, Some((0, Ok(Event::Token { id: 97, .. })))));
        let end = events.recv().await.unwrap().1;
        assert!(matches!(end, Err(Failure::Refused { param: "bad_words", .. })), "{end:?}");
    }
    // The engine keeps serving.
    let next = engine.submit(vec![request(parts(prompt(3, 1), 5, SamplingParams::greedy()))]).unwrap();
    assert_eq!(crate::engine::collect(next, 1).await[0].0.len(), 5);
    wait_for(&engine, is_idle).await;
}

#[tokio::test]
async fn finish_reason_and_stop_reason_name_what_ended_the_answer() {
    let server = Server::start();
    let body = json!({ "prompt": "x", "max_tokens": 6, "logit_bias": { "97": 100 } });
    for (fields, reason, stop) in [
        (json!({ "stop": ["b", "aaa"] }), "stop", json!("aaa")),
        (json!({ "stop_token_ids": [97, 98] }), "stop", json!(97)),
        (json!({ "logit_bias": { (EOS.to_string()): 100 } }), "stop", Value::Null),
        (json!({ "logit_bias": { (EOS.to_string()): 100 }, "stop_token_ids": [EOS] }), "stop", json!(EOS)),
        (json!({}), "length", Value::Null),
    ] {
        let body = with(&body, &fields);
        let choice = server.complete(body.clone()).await["choices"][0].clone();
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!(reason), &stop), "{body}");
        assert_eq!(fold(&server.stream(body.clone()).await), [choice]);
        let mut chat = body;
        chat["messages"] = json!([{ "role": "user", "content": "x" }]);
        let choice = server.chat(chat.clone()).await["choices"][0].clone();
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!(reason), &stop), "{chat}");
        assert_eq!(server.stream_chat(chat).await.last().unwrap()["choices"][0]["stop_reason"], stop);
    }
}

#[tokio::test]
async fn model_sampling_defaults_apply_only_to_plain_sampling() {
    let advised = SamplingParams { temperature: 0.3, top_k: 2, repetition_penalty: 1.5, ..SamplingParams::default() };
    let engine = Engine::start(move || Ok(LoadedModel { sampling_defaults: advised, ..model() }), OPTIONS).unwrap();
    let advising = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let plain = Server::start();
    let base = json!({ "prompt": "once", "max_tokens": 12, "ignore_eos": true, "seed": 3 });
    let spelled = json!({ "temperature": 0.3, "top_k": 2, "repetition_penalty": 1.5 });
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    let expected = text(plain.complete(with(&base, &spelled)).await);
    assert_eq!(text(advising.complete(base.clone()).await), expected);
    assert_ne!(text(plain.complete(base.clone()).await), expected);
    // Request parameters override the defaults, also to turn something off; other strategies ignore them.
    for fields in [
        json!({ "temperature": 1, "top_k": 0, "repetition_penalty": 1 }),
        json!({ "temperature": 0.5, "top_k": 3, "repetition_penalty": 1.1 }),
        json!({ "mirostat": 2 }),
        json!({ "samplers": ["min_p"], "min_p": 0.1 }),
        json!({ "use_beam_search": true, "best_of": 3, "repetition_penalty": 1 }),
        json!({ "stochastic_beam_search": true, "best_of": 3 }),
    ] {
        let body = with(&base, &fields);
        assert_eq!(text(advising.complete(body.clone()).await), text(plain.complete(body).await), "{fields}");
    }
    // Penalties hold under beam search too, as in `transformers`.
    let beams = with(&base, &json!({ "use_beam_search": true, "best_of": 3 }));
    let penalized = text(plain.complete(with(&beams, &json!({ "repetition_penalty": 1.5 }))).await);
    assert_eq!(text(advising.complete(beams.clone()).await), penalized);
    assert_ne!(text(plain.complete(beams).await), penalized);
    // Neutral values do not select another strategy: the defaults still apply.
    for fields in [
        json!({ "mirostat": 0 }),
        json!({ "mirostat": 0.0, "mirostat_tau": 4, "mirostat_eta": 0.2 }),
        json!({ "mirostat": null }),
        json!({ "use_beam_search": false }),
        json!({ "use_beam_search": null, "length_penalty": 2, "early_stopping": true }),
        json!({ "stochastic_beam_search": false }),
        json!({ "samplers": null }),
        json!({ "samplers": ChainStep::DEFAULT_ORDER.map(ChainStep::name) }),
        json!({ "mirostat": 0, "use_beam_search": false, "stochastic_beam_search": false, "samplers": null }),
        json!({ "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "dynatemp_range": 0, "dry_multiplier": 0 }),
        json!({ "min_p": 0, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "repeat_last_n": -1 }),
        json!({ "logit_bias": {}, "bad_words": [], "dry_sequence_breakers": [], "best_of": 1, "n": 1 }),
    ] {
        assert_eq!(text(advising.complete(with(&base, &fields)).await), expected, "{fields}");
    }
    // Invalid values are rejected.
    for (name, wrong) in [("mirostat", json!("0")), ("use_beam_search", json!(0)), ("samplers", json!(["heat"]))] {
        let answer = advising.post(with(&base, &json!({ name: wrong })).to_string()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(name)));
    }
}

#[tokio::test]
async fn stop_bad_words_and_dry_breaker_lists_have_a_maximum_length() {
    let server = Server::start();
    for (name, limit) in [("stop", 128), ("bad_words", 1024), ("dry_sequence_breakers", 64)] {
        let words: Vec<String> = (0..=limit).map(|n| format!("w{n}")).collect();
        let answer = server.post(json!({ "prompt": "x", name: words }).to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.error(), format!("`{name}` must hold at most {limit} entries, got {}", limit + 1));
        server.complete(json!({ "prompt": "x", name: words[1..], "max_tokens": 1 })).await;
    }
}
