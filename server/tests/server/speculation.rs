//! Speculative decoding: drafts never change an answer, to the last bit, and accepted drafts save steps.

use std::{sync::Arc, time::Duration};

use burn::tensor::Device;
use hearth_engine::{
    EngineOptions, Failure, Models, Speculation, StartError,
    request::{LogprobsMode, RequestParts},
};
use hearth_model::{
    decode::sampling::{Mirostat, MirostatVersion, SamplingParams},
    text::tokenizer::Tokenizer,
    weights::model_dir::LoadedModel,
};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};

use crate::{
    engine::{mixed_requests, parts, prompt, request},
    prefix_sharing::{ClientAnswer, answers, choices},
    soak::bodies,
    support::{self, MAX_SEQ_LEN, MODEL, OPTIONS, Server, fold, is_idle, metric, wait_for},
};

pub(crate) const LOOKUP: Speculation = Speculation::PromptLookup { n_tokens: 6 };
pub(crate) const DRAFT: Speculation = Speculation::DraftModel { n_tokens: 4 };

/// An engine with a draft model whose weights differ by `noise`.
fn engine(speculation: Speculation, noise: f32, options: EngineOptions) -> Engine {
    let load = move || {
        let draft = LoadedModel { gpt: support::gpt_like(&Device::flex(), noise), ..support::model() };
        Ok(Models { draft: Some(draft), ..support::model().into() })
    };
    Engine::start(load, EngineOptions { speculation, ..options }).unwrap()
}

/// Requests with repetitive prompts, with all kinds of parameters that act on tokens.
pub(crate) fn repetitive() -> Vec<RequestParts> {
    let cold = SamplingParams { temperature: 0.3, seed: 3, ..SamplingParams::default() };
    let mirostat = Some(Mirostat { version: MirostatVersion::V2, tau: 2.0, eta: 0.3 });
    let samplings = [
        SamplingParams::greedy(),
        cold.clone(),
        SamplingParams { repetition_penalty: 1.05, frequency_penalty: 0.05, ..cold.clone() },
        SamplingParams { top_p: 0.8, min_p: 0.05, ..cold.clone() },
        SamplingParams { mirostat, ..cold },
        SamplingParams { logit_bias: Arc::new([(7, 3.0), (9, 3.0)].into()), ..SamplingParams::greedy() },
    ];
    let requests = samplings.into_iter().enumerate().map(|(index, sampling)| {
        let period = prompt(5 + 3 * index, index as u32);
        let mut parts = parts(period.repeat(4), 40 + index, sampling);
        parts.stop.min_tokens = 5 * (index % 2);
        parts.logprobs = (index % 2 == 0).then_some(2);
        parts.logprobs_mode = if index % 4 == 0 { LogprobsMode::Raw } else { LogprobsMode::Processed };
        parts.prompt_logprobs = (index == 3).then_some(1);
        parts
    });
    requests.collect()
}

#[tokio::test]
async fn speculative_decoding_does_not_change_answers() {
    let workloads = [
        repetitive(),
        mixed_requests(),
        choices(3, None),
        [repetitive(), choices(3, Some(1)), mixed_requests()].concat(),
    ];
    let few_pages = Some(20 * 16);
    let options = [
        OPTIONS,
        // One at a time, with preemption, and with a small budget for drafts.
        EngineOptions { max_batch_size: 1, ..OPTIONS },
        EngineOptions { max_batch_size: 16, kv_cache_tokens: few_pages, ..OPTIONS },
        EngineOptions { max_batch_size: 4, max_batch_tokens: 7, ..OPTIONS },
    ];
    let mut totals = [0.0; 3];
    for requests in &workloads {
        let (expected, _) = answers(&engine(Speculation::Off, 0.0, OPTIONS), requests).await;
        for options in &options {
            for (speculation, noise) in [(LOOKUP, 0.0), (DRAFT, 0.02), (DRAFT, 1.0)] {
                let engine = engine(speculation, noise, options.clone());
                // The second round uses the prefix cache.
                for round in 0..2 {
                    let (told, _) = answers(&engine, requests).await;
                    assert_eq!(told, expected, "{speculation:?}, noise {noise}, {options:?}, round {round}");
                    wait_for(&engine, is_idle).await;
                }
                let names = [
                    "spec_decode_num_draft_tokens_total",
                    "spec_decode_num_accepted_tokens_total",
                    "num_preemptions_total",
                ];
                for (total, name) in totals.iter_mut().zip(names) {
                    *total += metric(&engine, name);
                }
            }
        }
    }
    let [n_guessed, n_accepted, n_preemptions] = totals;
    assert!(n_accepted > 100.0 && n_guessed - n_accepted > 100.0 && n_preemptions > 0.0, "{totals:?} show too little");
}

#[tokio::test]
async fn drafts_of_an_identical_draft_model_are_all_accepted() {
    for requests in [repetitive(), mixed_requests(), choices(3, None)] {
        let engine = engine(DRAFT, 0.0, EngineOptions { max_batch_size: 4, ..OPTIONS });
        let (told, _) = answers(&engine, &requests).await;
        wait_for(&engine, is_idle).await;
        let [n_guessed, n_accepted] =
            ["draft_tokens", "accepted_tokens"].map(|name| metric(&engine, &format!("spec_decode_num_{name}_total")));
        assert!(n_guessed > 0.0, "the test shows nothing");
        assert_eq!(n_guessed, n_accepted);
        let n_tokens: usize = told.iter().map(|told: &ClientAnswer| told.token_ids.len()).sum();
        assert_eq!(metric(&engine, "generation_tokens_total"), n_tokens as f64);
    }
}

/// In most rounds the deadline passes in the middle of a step.
#[tokio::test]
async fn drafts_cut_off_by_a_deadline_are_not_counted_as_rejected() {
    let engine = engine(DRAFT, 0.0, OPTIONS);
    for round in 1..=10 {
        let deadline = Some(Duration::from_millis(21 * round));
        let late = RequestParts { deadline, ..parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()) };
        let mut events = engine.submit(vec![request(late)]).unwrap();
        let mut last = None;
        while let Some((_, event)) = events.recv().await {
            last = Some(event);
        }
        assert!(matches!(last, Some(Err(Failure::TimedOut(_)))), "{last:?}");
        wait_for(&engine, is_idle).await;
    }
    let [n_guessed, n_accepted] =
        ["draft_tokens", "accepted_tokens"].map(|name| metric(&engine, &format!("spec_decode_num_{name}_total")));
    assert!(n_guessed > 0.0, "the test shows nothing");
    assert_eq!(n_guessed, n_accepted);
}

#[tokio::test]
async fn accepted_drafts_save_steps_and_are_counted_in_metrics() {
    let engine = engine(LOOKUP, 0.0, OPTIONS);
    // The model generates the same token again and again.
    let sampling = SamplingParams { logit_bias: Arc::new([(5, 100.0)].into()), ..SamplingParams::greedy() };
    let (told, _) = answers(&engine, &[parts(vec![5; 20], 100, sampling)]).await;
    assert_eq!(told[0].token_ids, vec![5; 100]);
    wait_for(&engine, is_idle).await;
    let n_steps = metric(&engine, "iteration_tokens_total_count");
    assert!(n_steps < 60.0, "{n_steps} steps for 100 tokens");
    let [n_drafts, n_guessed, n_accepted, first] =
        ["drafts_total", "draft_tokens_total", "accepted_tokens_total", "accepted_tokens_per_pos_total"]
            .map(|name| metric(&engine, &format!("spec_decode_num_{name}")));
    assert_eq!(n_steps, 100.0 - n_accepted, "each step gives a token besides");
    assert_eq!((n_guessed, first), (n_accepted, n_drafts));
    let page = engine.metrics_text(MODEL).unwrap();
    assert!(page.contains("per_pos_total{model_name=\"tiny\",engine=\"0\",position=\"5\"}"), "{page}");
    assert!(!page.contains("position=\"6\""), "no more than six are guessed ahead");
}

#[tokio::test]
async fn speculative_decoding_does_not_change_http_answers() {
    let plain = Server::start();
    let structured = |regex: &str, seed: u32| json!({ "prompt": "x", "structured_outputs": { "regex": regex }, "max_tokens": 40, "seed": seed });
    let structured = [structured("(abcd){8}", 1), structured("([ab]c){4,9}e", 2), structured("[a-z]+ [0-9]{3}", 3)];
    let bodies: Vec<Value> = bodies().into_iter().chain(structured).collect();
    for speculation in [LOOKUP, DRAFT] {
        let engine = engine(speculation, 0.02, OPTIONS);
        let guessing = Server { state: AppState::ready(MODEL, engine.clone()), engine };
        for body in &bodies {
            let expected = plain.complete(body.clone()).await;
            let found = guessing.complete(body.clone()).await;
            assert_eq!(found["choices"], expected["choices"], "{body}");
            assert_eq!(found["usage"]["completion_tokens"], expected["usage"]["completion_tokens"]);
            assert_eq!(json!(fold(&guessing.stream(body.clone()).await)), expected["choices"]);
        }
    }
}

#[test]
fn invalid_speculation_options_are_rejected_at_start() {
    let refusal = |speculation, draft: Option<LoadedModel>| {
        let options = EngineOptions { speculation, ..OPTIONS };
        match Engine::start(move || Ok(Models { draft, ..support::model().into() }), options) {
            Err(StartError::Options(message)) => message,
            other => panic!("{other:?}"),
        }
    };
    for n_tokens in [0, 17] {
        let message = refusal(Speculation::PromptLookup { n_tokens }, None);
        assert_eq!(message, format!("`--num-speculative-tokens` must be from 1 to 16, got {n_tokens}"));
    }
    assert!(refusal(DRAFT, None).contains("`--draft-model`"));
    let [json, _] = support::tokenizer_files();
    let text = String::from_utf8(json).unwrap().replace("<|end|>", "<|fin|>");
    let other = Tokenizer::from_json(text.as_bytes(), None, "tokenizer.json".as_ref()).unwrap();
    let message = refusal(DRAFT, Some(LoadedModel { tokenizer: other, ..support::model() }));
    assert!(
        message.contains("token 262 is `<|fin|>` in the draft model and `<|end|>` in the served model"),
        "{message}"
    );
    let [json, _] = support::tokenizer_files();
    let mut json: Value = serde_json::from_slice(&json).unwrap();
    let n_ids = support::model().tokenizer.vocab_size();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let mut more = added[0].clone();
    (more["id"], more["content"]) = (n_ids.into(), "<|more|>".into());
    added.push(more);
    let larger = Tokenizer::from_json(json.to_string().as_bytes(), None, "tokenizer.json".as_ref()).unwrap();
    let message = refusal(DRAFT, Some(LoadedModel { tokenizer: larger, ..support::model() }));
    let expected = format!("token {n_ids} is `<|more|>` in the draft model and missing in the served model");
    assert!(message.contains(&expected), "{message}");
}

/// Answers do not depend on the context length of the draft model.
#[tokio::test]
async fn draft_model_with_a_short_context_drafts_up_to_its_limit() {
    let load = || {
        let served = support::model();
        let draft = LoadedModel { gpt: support::short_gpt(64), ..support::model() };
        Ok(Models { draft: Some(draft), ..served.into() })
    };
    let engine = Engine::start(load, EngineOptions { speculation: DRAFT, ..OPTIONS }).unwrap();
    let request = parts(prompt(40, 3), 60, SamplingParams::greedy());
    let (told, _) = answers(&engine, std::slice::from_ref(&request)).await;
    let plain = self::engine(Speculation::Off, 0.0, OPTIONS);
    assert_eq!(told, answers(&plain, &[request]).await.0);
    let n_accepted = metric(&engine, "spec_decode_num_accepted_tokens_total");
    assert!((1.0..=25.0).contains(&n_accepted), "{n_accepted}");
}
