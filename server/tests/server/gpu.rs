//! On a GPU a sampler reads only the logits that it needs: answers equal those from whole rows. Requests with raw
//! log-probabilities always read whole rows, so the same request with them is the oracle.

use std::sync::Arc;

use hearth_engine::{
    EngineOptions, Models, Speculation,
    request::{LogprobsMode, RequestParts},
};
use hearth_model::{
    decode::sampling::{ChainStep, SamplingParams},
    weights::model_dir::LoadedModel,
};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    engine::{mixed_requests, parts, prompt},
    prefix_sharing::{answers, choices},
    soak::bodies,
    speculation::{DRAFT, LOOKUP, repetitive},
    support::{self, EOS, MODEL, OPTIONS, Server, is_idle, metric, wait_for},
    test_gpu::gpu,
};

fn engine(speculation: Speculation, options: EngineOptions) -> Option<Engine> {
    let gpu = gpu()?;
    let load = move || {
        let served = LoadedModel { gpt: support::gpt_on(&gpu), ..support::model() };
        let draft = Some(LoadedModel { gpt: support::gpt_of(&support::config(), &gpu, 0.02), ..support::model() });
        Ok(Models { draft, ..served.into() })
    };
    Some(Engine::start(load, EngineOptions { speculation, ..options }).unwrap())
}

/// Requests that need only the best logits, in every way, and some that need all.
fn requests_for_few_or_all_logits() -> Vec<RequestParts> {
    let top_k = |top_k, seed| SamplingParams { top_k, temperature: 1.3, seed, ..SamplingParams::default() };
    let samplings = [
        SamplingParams::greedy(),
        top_k(40, 1),
        SamplingParams { top_p: 0.9, min_p: 0.01, typical_p: 0.95, ..top_k(20, 2) },
        SamplingParams { seed: 3, ..SamplingParams::default() },
        SamplingParams { repetition_penalty: 1.3, repeat_last_n: Some(8), ..top_k(5, 4) },
        SamplingParams { frequency_penalty: 0.7, presence_penalty: 0.4, ..SamplingParams::greedy() },
        SamplingParams { logit_bias: Arc::new([(7, 6.0), (9, -100.0), (11, 5.5)].into()), ..top_k(3, 5) },
        SamplingParams { bad_words: [vec![7], vec![8, 9]].into(), ..top_k(255, 6) },
        SamplingParams { samplers: vec![ChainStep::TopK, ChainStep::Temperature], ..top_k(60, 7) },
        SamplingParams { top_p: 0.5, seed: 8, ..SamplingParams::default() },
        SamplingParams { allowed_token_ids: Some(Arc::new((20..60).collect())), ..SamplingParams::greedy() },
    ];
    let requests = samplings.into_iter().enumerate().map(|(index, sampling)| {
        let mut parts = parts(prompt(3 + 11 * index, index as u32), 20 + index, sampling);
        parts.stop.stop_token_ids = Arc::new([EOS, 10].into());
        parts.stop.min_tokens = 8 * (index % 3);
        parts.logprobs = (index % 4 == 1).then_some(3);
        parts.logprobs_mode = LogprobsMode::Processed;
        parts
    });
    // A request whose drafts are accepted from the first step on, before the cost of drafts is measured.
    let fives = SamplingParams { logit_bias: Arc::new([(5, 100.0)].into()), ..SamplingParams::greedy() };
    [parts(vec![5; 20], 30, fives)].into_iter().chain(requests).collect()
}

/// The request with raw log-probabilities, which need whole rows.
fn with_whole_rows(parts: &RequestParts) -> RequestParts {
    RequestParts { logprobs: Some(1), logprobs_mode: LogprobsMode::Raw, ..parts.clone() }
}

#[tokio::test]
async fn partial_logit_rows_give_the_tokens_of_whole_rows() {
    let forks = choices(3, None).into_iter().enumerate().map(|(index, parts)| RequestParts {
        logprobs: None,
        sampling: SamplingParams { top_k: [0, 10, 30][index], ..parts.sampling },
        ..parts
    });
    let requests: Vec<RequestParts> =
        [requests_for_few_or_all_logits(), repetitive(), mixed_requests(), forks.collect(), choices(2, Some(1))]
            .concat();
    let whole: Vec<RequestParts> = requests.iter().map(with_whole_rows).collect();
    let half: Vec<RequestParts> = requests
        .iter()
        .enumerate()
        .map(|(index, parts)| if index % 2 == 0 { with_whole_rows(parts) } else { parts.clone() })
        .collect();
    let Some(plain) = engine(Speculation::Off, OPTIONS) else { return };
    let (expected, _) = answers(&plain, &whole).await;
    for (speculation, max_batch_size) in [(Speculation::Off, 16), (LOOKUP, 2), (DRAFT, 3)] {
        let Some(engine) = engine(speculation, EngineOptions { max_batch_size, ..OPTIONS }) else { return };
        for requests in [&requests, &half] {
            let (told, _) = answers(&engine, requests).await;
            for ((told, expected), request) in told.iter().zip(&expected).zip(requests) {
                assert_eq!((&told.token_ids, &told.text), (&expected.token_ids, &expected.text), "{request:?}");
            }
            wait_for(&engine, is_idle).await;
        }
        let [n_guessed, n_accepted] =
            ["draft_tokens", "accepted_tokens"].map(|name| metric(&engine, &format!("spec_decode_num_{name}_total")));
        println!("{speculation:?}: {n_accepted} of {n_guessed} guesses");
        assert!(n_accepted > 0.0 || speculation == Speculation::Off, "the test shows too little");
    }
}

/// Steps that are captured and replayed, and steps that `--enforce-eager` runs launch by launch.
#[tokio::test]
async fn captured_gpu_steps_give_the_tokens_of_eager_steps() {
    let Some(captured) = engine(Speculation::Off, OPTIONS) else { return };
    let Some(eager) = engine(Speculation::Off, EngineOptions { enforce_eager: true, ..OPTIONS }) else { return };
    let requests = [requests_for_few_or_all_logits(), mixed_requests()].concat();
    let (expected, _) = answers(&eager, &requests).await;
    for _ in 0..2 {
        let (told, _) = answers(&captured, &requests).await;
        for ((told, expected), request) in told.iter().zip(&expected).zip(&requests) {
            assert_eq!((&told.token_ids, &told.text), (&expected.token_ids, &expected.text), "{request:?}");
        }
        wait_for(&captured, is_idle).await;
    }
}

/// Beams, grammars, log-probabilities and plain requests at once.
#[tokio::test]
async fn concurrent_gpu_requests_of_all_kinds_equal_single_runs() {
    let regex = |regex: &str, seed: u32| json!({ "prompt": "x", "structured_outputs": { "regex": regex }, "max_tokens": 30, "seed": seed, "top_k": 9 });
    let structured = [regex("(abcd){8}", 1), regex("([ab]c){4,9}e", 2), regex("[a-z]+ [0-9]{3}", 3)];
    let bodies: Vec<Value> = bodies().into_iter().take(16).chain(structured).collect();
    let Some(engine) = engine(LOOKUP, OPTIONS) else { return };
    let server = || Server { state: AppState::ready(MODEL, engine.clone()), engine: engine.clone() };
    let mut together = JoinSet::new();
    for (index, mut body) in bodies.iter().cloned().enumerate() {
        if index % 2 == 0 && body.get("use_beam_search").is_none() {
            body["top_k"] = json!(7);
        }
        let server = server();
        together.spawn(async move { (server.complete(body.clone()).await["choices"].clone(), body) });
    }
    let together = together.join_all().await;
    for (found, mut body) in together {
        assert_eq!(server().complete(body.clone()).await["choices"], found, "{body}");
        body["logprobs"] = json!(0);
        let whole = server().complete(body.clone()).await;
        let texts = |choices: &Value| {
            choices.as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(texts(&whole["choices"]), texts(&found), "{body}");
    }
}
