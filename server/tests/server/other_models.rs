//! The engine with SmolLM2 and on a GPU, instead of the tiny model on the CPU.

use hearth_engine::{
    EngineOptions, Models, Speculation,
    request::{EngineRequest, ModelLimits, RequestParts},
};
use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    gpt::{Gpt, kv_cache::KvCache},
    ops::{Dtype, KvDtype},
    system::device::{DeviceChoice, choose},
    text::tokenizer::EncodeOptions,
    weights::model_dir::{LoadOptions, LoadedModel, load},
};
use hearth_server::{api::wire::state::AppState, engine::Engine};
use serde_json::json;

use crate::{
    engine::{collect, mixed_requests, parts, plain_loop_tokens, run},
    plain_generation::next_logits,
    prefix_sharing::choices,
    support::{self, MODEL, OPTIONS, Server, is_idle, metric, wait_for},
    test_gpu::gpu,
};

const TEXT: &str = "Once upon a time a small ship sailed out of a quiet harbour. Its captain, who had never been further \
    than the next island, wanted to see where the sun goes at night. The crew laughed, but they came along. On the third \
    day the wind died and the sea lay flat like a plate. ";

/// Sixteen requests of mixed lengths, some with the same start, half of them sampled.
fn texts(model: &LoadedModel) -> Vec<RequestParts> {
    let ids = model.tokenizer.encode(&TEXT.repeat(3), EncodeOptions::TEXT).unwrap();
    let n_prompts = [1, 3, 150, 17, 64, 5, 33, 16, 2, 99, 7, 48, 1, 20, 130, 11];
    let requests = n_prompts.into_iter().enumerate().map(|(index, n_prompt)| {
        let seeded = SamplingParams { temperature: 0.8, top_p: 0.95, seed: index as u64, ..SamplingParams::default() };
        let sampling = if index % 2 == 0 { SamplingParams::greedy() } else { seeded };
        let start = if index % 3 == 0 { 0 } else { index };
        parts(ids[start..start + n_prompt].to_vec(), 8 + 12 * (index % 4), sampling)
    });
    requests.collect()
}

async fn run_on(engine: &Engine, requests: &[RequestParts]) -> Vec<Vec<TokenId>> {
    let limits: ModelLimits = engine.model().limits;
    let requests: Vec<_> = requests.iter().map(|parts| EngineRequest::new(parts.clone(), &limits).unwrap()).collect();
    let n_requests = requests.len();
    let outcomes = collect(engine.submit(requests).unwrap(), n_requests).await;
    outcomes.into_iter().map(|(ids, _)| ids).collect()
}

#[tokio::test]
async fn smollm2_batch_of_16_gives_the_tokens_of_single_runs() {
    check_batch_of_16_against_single_runs(None).await;
}

/// Quantized weights use a KV cache in f16.
#[tokio::test]
async fn smollm2_q8_batch_of_16_gives_the_tokens_of_single_runs() {
    check_batch_of_16_against_single_runs(Some(Dtype::Q8)).await;
}

async fn check_batch_of_16_against_single_runs(dtype: Option<Dtype>) {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2=DIR to the Hugging Face dir of SmolLM2-135M-Instruct to run");
        return;
    };
    let load = move || {
        let device = choose(DeviceChoice::Cpu)?.device;
        load(dir.as_ref(), &LoadOptions { device, dtype })
    };
    let model = load().unwrap();
    let mixed = texts(&model);
    // Short prompts that all start, and answers that grow until not all of them fit into the KV cache.
    let crowd: Vec<RequestParts> = mixed
        .iter()
        .map(|parts| {
            let mut parts = parts.clone();
            parts.prompt_ids = parts.prompt_ids[..parts.prompt_ids.len().min(12)].into();
            parts.stop.max_tokens = 44;
            parts
        })
        .collect();
    let [mixed_alone, crowd_alone] = [&mixed, &crowd].map(|requests| plain_loop_tokens(&model.gpt, requests));
    drop(model);
    // All at once, then from the prefix cache; in small chunks; and with few pages.
    for ([max_batch_size, max_batch_tokens, n_pages], requests, alone) in [
        ([16, 512, 512], &mixed, &mixed_alone),
        ([5, 40, 512], &mixed, &mixed_alone),
        ([16, 64, 16], &crowd, &crowd_alone),
    ] {
        let kv_cache_tokens = Some(n_pages * 16);
        let options = EngineOptions { max_batch_size, max_batch_tokens, kv_cache_tokens, ..OPTIONS };
        let engine = Engine::start(load.clone(), options).unwrap();
        let kv_dtype = if dtype.is_none() { KvDtype::F32 } else { KvDtype::F16 };
        assert_eq!(engine.stats().borrow().kv_dtype, kv_dtype);
        for round in 0..2 {
            assert_eq!(run_on(&engine, requests).await, *alone, "{max_batch_tokens} tokens, round {round}");
            wait_for(&engine, is_idle).await;
        }
        let [preemptions, hits] =
            ["num_preemptions_total", "prefix_cache_hits_total"].map(|name| metric(&engine, name));
        println!("{max_batch_size} at once, {n_pages} pages: {preemptions} preemptions, {hits} tokens from the cache");
        assert!(if n_pages == 16 { preemptions > 0.0 } else { hits > 0.0 }, "the test shows too little");
    }
}

#[tokio::test]
async fn smollm2_tokens_are_unchanged_by_speculative_decoding() {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2=DIR to the Hugging Face dir of SmolLM2-135M-Instruct to run");
        return;
    };
    let load = move |dtype| {
        let device = choose(DeviceChoice::Cpu)?.device;
        load(dir.as_ref(), &LoadOptions { device, dtype })
    };
    let model = load(None).unwrap();
    let mut requests = texts(&model);
    // A prompt that repeats a text three times, with three choices.
    let ids = model.tokenizer.encode(&TEXT.repeat(3), EncodeOptions::TEXT).unwrap();
    let sampling = SamplingParams { temperature: 0.5, repetition_penalty: 1.02, seed: 9, ..SamplingParams::default() };
    requests.truncate(8);
    requests.extend((0..3).map(|choice| RequestParts { choice, ..parts(ids.clone(), 40, sampling.clone()) }));
    requests.push(parts(ids, 60, SamplingParams::greedy()));
    drop(model);
    let mut expected = None;
    for speculation in
        [Speculation::Off, Speculation::PromptLookup { n_tokens: 8 }, Speculation::DraftModel { n_tokens: 4 }]
    {
        for n_pages in [512, 40] {
            // The draft model is the same one, rounded to four bits.
            let load = load.clone();
            let models = move || {
                let is_drafted = matches!(speculation, Speculation::DraftModel { .. });
                let draft = is_drafted.then(|| load(Some(Dtype::Q4))).transpose()?;
                Ok(Models { draft, ..load(None)?.into() })
            };
            let options =
                EngineOptions { kv_cache_tokens: Some(n_pages * 16), max_batch_size: 6, speculation, ..OPTIONS };
            let engine = Engine::start(models, options).unwrap();
            let told = run_on(&engine, &requests).await;
            wait_for(&engine, is_idle).await;
            let expected = expected.get_or_insert_with(|| told.clone());
            assert_eq!(told, *expected, "{speculation:?} with {n_pages} pages");
            let [guessed, accepted, preemptions] = [
                "spec_decode_num_draft_tokens_total",
                "spec_decode_num_accepted_tokens_total",
                "num_preemptions_total",
            ]
            .map(|name| metric(&engine, name));
            println!("{speculation:?}, {n_pages} pages: {accepted} of {guessed} guesses, {preemptions} preemptions");
            assert!(accepted > 0.0 || speculation == Speculation::Off, "the test shows too little");
        }
    }
}

/// If two tokens' logits differ by less than this fraction of the range of all logits, either token is right.
const NEAR_TIE: f32 = 1e-4;

/// On a GPU the order of sums depends on the shape of the batch, so either token of a near-tie may be chosen.
fn is_near_tie(gpt: &Gpt, parts: &RequestParts, found: &[TokenId], expected: &[TokenId]) -> bool {
    let at = found.iter().zip(expected).position(|(a, b)| a != b).expect("they differ");
    let text = [&parts.prompt_ids[..], &expected[..at]].concat();
    let mut cache = KvCache::new(gpt.config(), text.len().div_ceil(16), KvDtype::F32, &gpt.device());
    let mut table = cache.table();
    let logits = next_logits(gpt, &mut cache, &mut table, &text);
    let [low, high] = [f32::min, f32::max].map(|pick| logits.iter().copied().reduce(pick).unwrap());
    let [a, b] = [found[at], expected[at]].map(|id| logits[id as usize]);
    (a - b).abs() <= NEAR_TIE * (high - low)
}

#[tokio::test]
async fn wgpu_batches_equal_single_runs_up_to_near_ties_and_stream() {
    let Some(gpu) = gpu() else { return };
    let load = move || Ok(LoadedModel { gpt: support::gpt_on(&gpu), ..support::model() });
    let gpt = load().unwrap().gpt;
    // Prompts cut into chunks, three of them forks, and a second round from the prefix cache.
    let forks = choices(3, None).into_iter().map(|parts| RequestParts { sampling: SamplingParams::greedy(), ..parts });
    let requests: Vec<RequestParts> = mixed_requests().into_iter().chain(forks).collect();
    let engine =
        Engine::start(load.clone(), EngineOptions { max_batch_size: 16, kv_cache_tokens: Some(16 * 24), ..OPTIONS })
            .unwrap();
    for _ in 0..2 {
        check_equal_up_to_near_ties(&gpt, &engine, &requests).await;
    }
    assert!(metric(&engine, "prefix_cache_hits_total") > 0.0, "the test shows too little");
    // Short prompts that all start, and answers that grow until not all of them fit into the KV cache.
    let crowd: Vec<RequestParts> = mixed_requests()
        .into_iter()
        .map(|mut parts| {
            parts.prompt_ids = parts.prompt_ids[..parts.prompt_ids.len().min(12)].into();
            parts.stop.max_tokens = 44;
            parts
        })
        .collect();
    let crowded =
        Engine::start(load, EngineOptions { max_batch_size: 16, kv_cache_tokens: Some(16 * 16), ..OPTIONS }).unwrap();
    check_equal_up_to_near_ties(&gpt, &crowded, &crowd).await;
    assert!(metric(&crowded, "num_preemptions_total") > 0.0, "the test shows too little");
    let server = Server { state: AppState::ready(MODEL, engine.clone()), engine };
    let body = json!({ "prompt": "the hand", "max_tokens": 12, "temperature": 0, "ignore_eos": true });
    let whole = server.complete(body.clone()).await;
    assert_eq!(json!(support::fold(&server.stream(body).await)), whole["choices"]);
    assert_eq!(whole["usage"]["completion_tokens"], 12);
}

/// Checks that the tokens of a batch equal those of single runs; one greedy request may differ from a near-tie on.
async fn check_equal_up_to_near_ties(gpt: &Gpt, engine: &Engine, requests: &[RequestParts]) {
    let mut n_near_ties = 0;
    for ((parts, found), expected) in
        requests.iter().zip(run(engine, requests).await).zip(plain_loop_tokens(gpt, requests))
    {
        if found != expected {
            assert!(parts.sampling.is_greedy() && is_near_tie(gpt, parts, &found, &expected), "{found:?} {expected:?}");
            n_near_ties += 1;
        }
    }
    println!("{n_near_ties} of {} went the other way at a near-tie", requests.len());
    assert!(n_near_ties <= 1);
    wait_for(engine, is_idle).await;
}
