//! The engine on its caller's thread, against the plain loop.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{ops::ControlFlow, path::Path};

use burn::tensor::Device;
use hearth_engine::{
    Event, LocalEngine, LocalOptions,
    request::{RequestParts, StopConditions},
};
use hearth_model::{
    TokenId,
    config::{GptConfig, Sizes},
    decode::sampling::SamplingParams,
    gpt::Gpt,
    text::tokenizer::Tokenizer,
};
use serde_json::{Map, Value, json};

use crate::plain_generation::{GenerateOptions, generate};

#[path = "../../model/tests/plain_generation.rs"]
mod plain_generation;

const VOCAB_SIZE: usize = 61;

fn gpt() -> Gpt {
    let sizes = Sizes {
        vocab_size: VOCAB_SIZE,
        max_seq_len: 128,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        d_model: 32,
        d_ff: 48,
    };
    Gpt::init(&GptConfig::llama(sizes), 3, &Device::flex()).unwrap()
}

/// Each token is a word.
fn tokenizer() -> Tokenizer {
    let words: Map<String, Value> = (0..VOCAB_SIZE).map(|id| (format!("w{id}"), id.into())).collect();
    let json = json!({ "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" } });
    Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
}

fn request(number: usize) -> RequestParts {
    let prompt_ids: Vec<TokenId> = (0..1 + number % 50).map(|at| ((at * 7 + number) % VOCAB_SIZE) as TokenId).collect();
    RequestParts {
        prompt_ids: prompt_ids.into(),
        sampling: SamplingParams { temperature: (number % 3) as f32 / 2.0, seed: 5, ..SamplingParams::default() },
        stop: StopConditions { max_tokens: 1 + number % 40, ..StopConditions::default() },
        ..RequestParts::default()
    }
}

/// The tokens of each request, until `stop` says so.
fn run(engine: &mut LocalEngine, requests: &[RequestParts], stop: &dyn Fn(usize) -> bool) -> Vec<Vec<TokenId>> {
    let mut tokens = vec![Vec::new(); requests.len()];
    let mut n_events = 0;
    let outcome = engine.run(requests.to_vec(), |index, event| {
        if let Event::Token { id, .. } = event {
            tokens[index].push(id);
        }
        n_events += 1;
        if stop(n_events) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    outcome.unwrap();
    tokens
}

/// Few pages, so that requests are preempted; and again after a run that its caller stopped.
#[test]
fn local_engine_gives_the_tokens_of_the_plain_loop() {
    let gpt = gpt();
    let requests: Vec<RequestParts> = (0..60).map(request).collect();
    let plain = |parts: &RequestParts| {
        let (max_tokens, sampling) = (parts.stop.max_tokens, parts.sampling.clone());
        let options = GenerateOptions { max_tokens, kv_dtype: None, sampling, eos_token_ids: Vec::new() };
        generate(&gpt, &parts.prompt_ids, &options)
    };
    let expected: Vec<Vec<TokenId>> = requests.iter().map(plain).collect();
    let options = LocalOptions { max_batch_size: 8, max_batch_tokens: 20, kv_cache_tokens: 160, kv_cache_dtype: None };
    let mut engine = LocalEngine::new(gpt.clone(), &tokenizer(), options).unwrap();
    assert_eq!(run(&mut engine, &requests, &|_| false), expected);
    let stopped = run(&mut engine, &requests, &|n_events| n_events == 10).concat();
    assert!((1..=10).contains(&stopped.len()), "{} tokens", stopped.len());
    assert_eq!(run(&mut engine, &requests, &|_| false), expected);
}

#[test]
fn local_engine_rejects_a_long_prompt_and_goes_on() {
    let mut engine = LocalEngine::new(gpt(), &tokenizer(), LocalOptions::for_one(200, None)).unwrap();
    let mut long = request(1);
    long.prompt_ids = vec![1; 128].into();
    let error = engine.run(vec![request(0), long], |_, _| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.to_string(), "`prompt` must be shorter than the context of 128 tokens, got 128 tokens");
    assert_eq!(run(&mut engine, &[request(2)], &|_| false)[0].len(), 3);
}
