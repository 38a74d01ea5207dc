//! Beam search in the engine: it finds what the search finds when every beam is computed from scratch.

use std::sync::Arc;

use axum::http::StatusCode;
use hearth_engine::{
    EngineOptions, Event, FinishReason,
    request::{RequestParts, Strategy},
};
use hearth_model::{
    TokenId,
    decode::sampling::{
        SamplingParams,
        beam::{BeamGroups, BeamKind, BeamParams, BeamSearch, EarlyStopping, Hypothesis},
    },
    gpt::{Gpt, kv_cache::KvCache},
    ops::KvDtype,
    text::tokenizer::DecodeOptions,
};
use hearth_server::engine::Engine;
use serde_json::json;

use crate::{
    engine::{mixed_requests, parts, prompt, request},
    plain_generation::next_logits,
    support::{self, OPTIONS, Server, engine, is_idle, metric, wait_for},
};

const BEST: BeamKind =
    BeamKind::Best { length_penalty: 1.0, early_stopping: EarlyStopping::Likely, groups: BeamGroups::ONE };

fn beams(prompt_ids: Vec<TokenId>, [width, n_best]: [usize; 2], kind: BeamKind) -> RequestParts {
    let mut parts = parts(prompt_ids, 30, SamplingParams::default());
    // Stop tokens that are likely enough to end some answers.
    parts.stop.stop_token_ids = Arc::new((0..40).collect());
    RequestParts { strategy: Strategy::Beams { width, n_best, kind }, logprobs: Some(1), ..parts }
}

/// Replaces stop tokens by stop strings that some answers contain.
fn stopped_by(mut parts: RequestParts) -> RequestParts {
    parts.stop.stop_token_ids = Arc::default();
    parts.stop.stop_strings = STOPS.map(str::to_owned).into();
    parts
}

const STOPS: [&str; 6] = ["a", "e", "o", "x", "1", "T"];

/// Runs the whole text of each beam through the model at every step, without cached keys or batches.
fn from_scratch(gpt: &Gpt, parts: &RequestParts) -> Vec<Hypothesis> {
    let Strategy::Beams { width, n_best, kind } = parts.strategy else { panic!("no beams") };
    let mut search = BeamSearch::new(BeamParams {
        width,
        kind,
        temperature: parts.sampling.temperature,
        end_ids: parts.stop.stop_token_ids.clone(),
        min_tokens: 0,
        max_tokens: parts.stop.max_tokens,
        n_top: parts.logprobs,
        rules: None,
    });
    let mut cache = KvCache::new(gpt.config(), 32, KvDtype::F32, &gpt.device());
    let tokenizer = support::tokenizer();
    loop {
        for beam in 0..search.beams().len() {
            let ids = search.beams()[beam].token_ids.clone();
            let text = [&parts.prompt_ids[..], &ids].concat();
            let mut table = cache.table();
            let logits = next_logits(gpt, &mut cache, &mut table, &text);
            let completes = |id| {
                let text = tokenizer.decode(&[ids.as_slice(), &[id]].concat(), DecodeOptions::default());
                parts.stop.stop_strings.iter().any(|stop| text.contains(stop.as_str()))
            };
            search.expand(beam, &logits, completes).unwrap();
        }
        if search.select().is_empty() {
            return search.into_best(n_best);
        }
    }
}

type Answer = (Vec<TokenId>, Vec<f32>, Option<FinishReason>);

fn to_answer(hypothesis: Hypothesis) -> Answer {
    let reason = if hypothesis.is_ended { FinishReason::Stop } else { FinishReason::Length };
    let logprobs = hypothesis.logprobs.iter().map(|logprobs| logprobs.logprob).collect();
    (hypothesis.token_ids, logprobs, Some(reason))
}

/// Runs the requests together; returns the answers by index.
async fn run(engine: &Engine, requests: &[RequestParts]) -> Vec<Answer> {
    let requests: Vec<_> = requests.iter().cloned().map(request).collect();
    let n_answers = requests.iter().map(hearth_engine::request::EngineRequest::n_answers).sum();
    let mut told: Vec<Answer> = vec![Default::default(); n_answers];
    let mut events = engine.submit(requests).unwrap();
    while let Some((index, event)) = events.recv().await {
        let (token_ids, logprobs, end) = &mut told[index];
        assert_eq!(*end, None);
        match event.unwrap() {
            Event::Token { id, logprobs: reported, .. } => {
                token_ids.push(id);
                logprobs.extend(reported.map(|reported| reported.logprob));
            }
            Event::Finished { reason, .. } => *end = Some(reason),
            other => panic!("{other:?}"),
        }
    }
    told
}

#[tokio::test]
async fn engine_beam_search_equals_a_search_without_cache_or_batching() {
    let gpt = support::gpt();
    let stochastic = BeamKind::Stochastic { seed: 11 };
    let searches = [
        beams(prompt(30, 1), [4, 4], BEST),
        beams(
            prompt(3, 2),
            [3, 2],
            BeamKind::Best { length_penalty: 0.0, early_stopping: EarlyStopping::Certain, groups: BeamGroups::ONE },
        ),
        beams(prompt(47, 3), [5, 5], stochastic),
        beams(prompt(12, 4), [1, 1], BEST),
        stopped_by(beams(prompt(9, 5), [4, 4], BEST)),
        stopped_by(beams(prompt(21, 6), [3, 3], stochastic)),
    ];
    let expected: Vec<Answer> = searches.iter().flat_map(|parts| from_scratch(&gpt, parts)).map(to_answer).collect();
    assert!(expected.iter().any(|(.., reason)| *reason == Some(FinishReason::Stop)), "the test shows too little");
    let n_of_strings = expected.iter().rev().take(7).filter(|(.., reason)| *reason == Some(FinishReason::Stop)).count();
    assert!(n_of_strings > 0, "the test shows too little");
    // Beside other requests, in small chunks so that beams wait for each other, and with few pages.
    for (max_batch_size, max_batch_tokens, n_pages) in [(16, 64, 400), (5, 7, 400), (16, 16, 26), (8, 8, 25)] {
        let options =
            EngineOptions { max_batch_size, max_batch_tokens, kv_cache_tokens: Some(n_pages * 16), ..OPTIONS };
        let engine = engine(options);
        let others =
            mixed_requests().into_iter().map(|parts| engine.submit(vec![request(parts)]).unwrap()).collect::<Vec<_>>();
        assert_eq!(run(&engine, &searches).await, expected, "{max_batch_size} places, {n_pages} pages");
        for events in others {
            crate::engine::collect(events, 1).await;
        }
        wait_for(&engine, is_idle).await;
    }
    // Without other requests, with few more pages than the largest search needs.
    let engine = engine(EngineOptions { max_batch_size: 16, kv_cache_tokens: Some(17 * 16), ..OPTIONS });
    assert_eq!(run(&engine, &searches).await, expected);
    assert!(metric(&engine, "num_preemptions_total") > 0.0, "the test shows too little");
}

#[tokio::test]
async fn beams_share_the_kv_pages_of_their_prompt() {
    let engine = engine(EngineOptions { max_batch_tokens: 512, ..OPTIONS });
    let mut parts = beams(prompt(400, 5), [8, 1], BEST);
    parts.stop.max_tokens = 3;
    let (mut stats, mut least_free) = (engine.stats(), usize::MAX);
    let mut events = engine.submit(vec![request(parts)]).unwrap();
    loop {
        tokio::select! {
            event = events.recv() => if event.is_none() { break },
            _ = stats.changed() => {
                let stats = stats.borrow_and_update();
                // Before the model is loaded there are no pages, and none are free.
                if stats.n_pages > 0 {
                    least_free = least_free.min(stats.free_pages);
                }
            }
        }
    }
    let n_pages = stats.borrow().n_pages;
    // 25 pages of prompt and one per beam, instead of 26 per beam.
    assert!(n_pages - least_free <= 25 + 8, "{} pages", n_pages - least_free);
    assert_eq!(metric(&engine, "iteration_tokens_total_sum"), 400.0 + 2.0 * 8.0);
}

#[tokio::test]
async fn request_fields_select_each_kind_of_beam_search() {
    let (server, gpt) = (Server::start(), support::gpt());
    let ends: Vec<TokenId> = (0..40).collect();
    let base = json!({
        "prompt": prompt(30, 1), "max_tokens": 30, "best_of": 4, "n": 3, "stop_token_ids": ends, "ignore_eos": true,
        "return_token_ids": true, "logprobs": 1,
    });
    let likely =
        |length_penalty, early_stopping| BeamKind::Best { length_penalty, early_stopping, groups: BeamGroups::ONE };
    for (fields, kind, temperature) in [
        (json!({ "use_beam_search": true }), BEST, 1.0),
        (json!({ "use_beam_search": true, "early_stopping": true }), likely(1.0, EarlyStopping::Full), 1.0),
        (
            json!({ "use_beam_search": true, "length_penalty": -1, "early_stopping": "never", "temperature": 1.7 }),
            likely(-1.0, EarlyStopping::Certain),
            1.7,
        ),
        (
            json!({ "use_beam_search": true, "num_beam_groups": 2, "diversity_penalty": 2.5 }),
            BeamKind::Best {
                length_penalty: 1.0,
                early_stopping: EarlyStopping::Likely,
                groups: BeamGroups { n_groups: 2, penalty: 2.5 },
            },
            1.0,
        ),
        (json!({ "stochastic_beam_search": true, "seed": 11 }), BeamKind::Stochastic { seed: 11 }, 1.0),
    ] {
        let mut parts = beams(prompt(30, 1), [4, 3], kind);
        parts.sampling.temperature = temperature;
        let expected: Vec<Answer> = from_scratch(&gpt, &parts).into_iter().map(to_answer).collect();
        let mut body = base.clone();
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let answer = server.complete(body).await;
        for (choice, (ids, logprobs, reason)) in answer["choices"].as_array().unwrap().iter().zip(&expected) {
            assert_eq!(choice["token_ids"], json!(ids), "{fields}");
            let told = choice["logprobs"]["token_logprobs"].as_array().unwrap();
            let told: Vec<f32> = told.iter().map(|number| number.as_f64().unwrap() as f32).collect();
            assert_eq!(told, *logprobs, "{fields}");
            let reason = if *reason == Some(FinishReason::Stop) { "stop" } else { "length" };
            assert_eq!(choice["finish_reason"], reason, "{fields}");
        }
        assert_eq!(answer["choices"].as_array().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn http_beam_search_ranks_stops_and_streams_its_answers() {
    let server = Server::start();
    let body = json!({
        "prompt": "the", "use_beam_search": true, "best_of": 4, "n": 2, "max_tokens": 5, "length_penalty": 0.5,
        "early_stopping": "never", "temperature": 0, "logprobs": 1, "ignore_eos": true,
    });
    let whole = server.complete(body.clone()).await;
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    let total = |choice: &serde_json::Value| {
        choice["logprobs"]["token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|number| number.as_f64().unwrap())
            .sum::<f64>()
    };
    assert!(total(&choices[0]) >= total(&choices[1]));
    assert_eq!(whole["usage"]["completion_tokens"], 10);
    assert_eq!(json!(support::fold(&server.stream(body.clone()).await)), whole["choices"]);
    let mut drawn = body;
    drawn["use_beam_search"] = json!(false);
    drawn["stochastic_beam_search"] = json!(true);
    drawn["seed"] = json!(4);
    let drawn = server.complete(drawn).await;
    assert_ne!(drawn["choices"][0]["logprobs"]["tokens"], drawn["choices"][1]["logprobs"]["tokens"]);
    let mut stopped =
        json!({ "prompt": "the", "best_of": 4, "n": 4, "max_tokens": 40, "ignore_eos": true, "stop": STOPS });
    for strategy in ["use_beam_search", "stochastic_beam_search"] {
        let mut n_stopped = 0;
        for keeps in [false, true] {
            stopped["include_stop_str_in_output"] = json!(keeps);
            let mut body = stopped.clone();
            body[strategy] = json!(true);
            body["seed"] = json!(5);
            let answer = server.complete(body.clone()).await;
            for choice in answer["choices"].as_array().unwrap() {
                let text = choice["text"].as_str().unwrap();
                if let Some(stop) = choice["stop_reason"].as_str() {
                    n_stopped += 1;
                    assert_eq!(choice["finish_reason"], "stop");
                    assert!(text.ends_with(stop) == keeps && STOPS.contains(&stop), "{choice}");
                }
                assert!(keeps || !STOPS.iter().any(|stop| text.contains(stop)), "{choice}");
            }
            assert_eq!(json!(support::fold(&server.stream(body).await)), answer["choices"]);
        }
        assert!(n_stopped >= 2, "the test shows too little");
    }
    let refused = json!({ "prompt": "x", "use_beam_search": true, "best_of": 8, "max_tokens": 8000 });
    let small = Server::with_options(EngineOptions { kv_cache_tokens: Some(1024), ..OPTIONS });
    let answer = small.post(refused.to_string()).await;
    assert!(answer.error().contains("needs 512 pages of the KV cache, which has 64"), "{}", answer.text);
}

/// The beams share six full pages of the prompt, and each has 26 pages of its own: 110 pages are enough, also after a
/// preemption.
#[tokio::test]
async fn beam_search_fits_if_shared_prompt_pages_are_counted_once() {
    let body = json!({
        "prompt": (0..100).map(|at| at * 7 % 250).collect::<Vec<u32>>(), "use_beam_search": true, "best_of": 4, "n": 4,
        "max_tokens": 412, "ignore_eos": true,
    });
    let urgent = json!({ "prompt": "y".repeat(1216), "max_tokens": 400, "priority": -100, "ignore_eos": true });
    let with_pages =
        |n_pages: usize| Server::with_options(EngineOptions { kv_cache_tokens: Some(n_pages * 16), ..OPTIONS });
    let expected = Server::start().complete(body.clone()).await["choices"].clone();
    let exact = with_pages(110);
    assert_eq!(exact.complete(body.clone()).await["choices"], expected);
    let (answer, ()) = tokio::join!(exact.complete(body.clone()), async {
        exact.wait_for(|stats| stats.running == 4 && stats.free_pages < 103).await;
        exact.complete(urgent).await;
    });
    assert_eq!(answer["choices"], expected);
    assert!(metric(&exact.engine, "num_preemptions_total") > 0.0, "the test shows too little");
    exact.wait_for(is_idle).await;
    let refused = with_pages(109).post(body.to_string()).await;
    assert!(refused.error().contains("needs 110 pages of the KV cache, which has 109"), "{}", refused.text);
}

#[tokio::test]
async fn parameters_unsupported_by_beam_search_are_rejected_by_name() {
    let server = Server::start();
    let refused = json!({
        "dynatemp_range": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5, "top_n_sigma": 1,
        "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "tfs": 0.5, "top_a": 0.1, "smoothing_factor": 1, "adaptive_target": 0.5,
        "encoder_repetition_penalty": 2, "no_repeat_ngram_size": 3,
        "xtc_probability": 0.5, "mirostat": 2, "repetition_penalty": 2, "presence_penalty": 1, "frequency_penalty": 1,
        "dry_multiplier": 1, "logit_bias": { "97": 1 }, "allowed_token_ids": [97], "bad_words": ["x"],
        "samplers": ["temperature"], "prompt_logprobs": 1, "logprobs_mode": "processed_logprobs",
    });
    // Parameters after `seed` have no effect unless one of the rejected ones is set.
    let accepted = json!({
        "temperature": 0.5, "seed": 3, "dynatemp_exponent": 2, "xtc_threshold": 0.2, "mirostat_tau": 3,
        "mirostat_eta": 0.2, "smoothing_curve": 2, "adaptive_decay": 0.5, "logit_bias_tokens": 3, "repeat_last_n": 8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 8,
        "dry_sequence_breakers": ["x"],
    });
    // These have a meaning for the most likely answers, and none for drawn ones.
    let of_most_likely = ["no_repeat_ngram_size", "repetition_penalty", "bad_words"];
    for strategy in ["use_beam_search", "stochastic_beam_search"] {
        let is_refused = |name: &str| strategy != "use_beam_search" || !of_most_likely.contains(&name);
        let body = |name: &str, value: &serde_json::Value| {
            let mut body = json!({ "prompt": "x", "max_tokens": 2, "best_of": 2, "n": 2, strategy: true });
            body[name] = value.clone();
            body
        };
        let (refused, others): (Vec<_>, Vec<_>) =
            refused.as_object().unwrap().iter().partition(|(name, _)| is_refused(name));
        let mut cases: Vec<_> = refused.into_iter().map(|(name, value)| (name, body(name, value))).collect();
        for (name, value) in others {
            server.complete(body(name, value)).await;
        }
        // No log-probabilities of the prompt, and no prompt without an answer.
        let echo = "echo".to_owned();
        for (name, value) in [("logprobs", 1), ("max_tokens", 0)] {
            let mut echoing = body(&echo, &json!(true));
            echoing[name] = json!(value);
            cases.push((&echo, echoing));
        }
        for (name, body) in cases {
            let answer = server.post(body.to_string()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
            assert_eq!(answer.error(), format!("`{name}` does not go with `{strategy}`"));
            assert_eq!(answer.json()["error"]["param"], *name);
        }
        for (name, value) in accepted.as_object().unwrap() {
            server.complete(body(name, value)).await;
        }
    }
}
