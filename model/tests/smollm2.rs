//! A real model, SmolLM2-135M-Instruct, against what `transformers` makes of it (`golden/make_smollm2.py`).
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{fs, path::Path};

use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    gpt::kv_cache::KvCache,
    ops::KvDtype,
    system::device::{DeviceChoice, choose},
    text::{
        chat::{Message, RenderContext},
        tokenizer::EncodeOptions,
    },
    weights::model_dir::{LoadOptions, LoadedModel, load},
};
use serde::Deserialize;

use crate::plain_generation::{GenerateOptions, generate, next_logits};

/// Where the reference's two best logits are nearer than this, either token is right.
const NEAR_TIE: f32 = 1e-3;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Continuation>,
    chat: Chat,
}

#[derive(Deserialize)]
struct Continuation {
    #[serde(default)]
    prompt: String,
    prompt_ids: Vec<TokenId>,
    greedy_ids: Vec<TokenId>,
    runner_up_ids: Vec<TokenId>,
    gaps: Vec<f32>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    rendered: String,
    #[serde(flatten)]
    continuation: Continuation,
}

/// The model on `choice`, if the machine has it.
fn model(choice: DeviceChoice) -> Option<LoadedModel> {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2=DIR to the Hugging Face dir of SmolLM2-135M-Instruct to run");
        return None;
    };
    let device = choose(choice).unwrap().device;
    Some(load(Path::new(&dir), &LoadOptions { device, dtype: None }).unwrap())
}

fn golden() -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/smollm2.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Greedy tokens, fed with the reference's own choice at each step, so that one near tie does not hide all that follow.
fn check_greedy(model: &LoadedModel, expected: &Continuation) {
    let n_pages = (expected.prompt_ids.len() + expected.greedy_ids.len()).div_ceil(16);
    let mut cache = KvCache::new(model.gpt.config(), n_pages, KvDtype::F32, &model.gpt.device());
    let mut table = cache.table();
    let mut pending = expected.prompt_ids.clone();
    let steps = expected.greedy_ids.iter().zip(&expected.runner_up_ids).zip(&expected.gaps);
    for (number, ((&best, &runner_up), &gap)) in steps.enumerate() {
        let logits = next_logits(&model.gpt, &mut cache, &mut table, &pending);
        let found = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as TokenId;
        let right = found == best || (gap < NEAR_TIE && found == runner_up);
        assert!(right, "token {number} of {:?}: found {found}, expected {best} (gap {gap})", expected.prompt);
        pending = vec![best];
    }
}

#[test]
fn smollm2_greedy_tokens_match_transformers() {
    let Some(model) = model(DeviceChoice::Cpu) else { return };
    let golden = golden();
    for expected in &golden.prompts {
        assert_eq!(model.tokenizer.encode(&expected.prompt, EncodeOptions::PROMPT).unwrap(), expected.prompt_ids);
        check_greedy(&model, expected);
    }
    check_greedy(&model, &golden.chat.continuation);
    // And once through the loop that people use.
    let expected = &golden.prompts[0];
    let sampling = SamplingParams::greedy();
    let options =
        GenerateOptions { max_tokens: expected.greedy_ids.len(), kv_dtype: None, sampling, eos_token_ids: Vec::new() };
    let found = generate(&model.gpt, &expected.prompt_ids, &options);
    assert_eq!(found, expected.greedy_ids);
}

#[test]
fn smollm2_rendered_chat_and_its_tokens_match_transformers() {
    let Some(model) = model(DeviceChoice::Cpu) else { return };
    let Chat { messages, rendered, continuation } = golden().chat;
    let template = model.chat_template.unwrap();
    let context = RenderContext::new(&model.tokenizer);
    assert_eq!(template.render(&messages, &context).unwrap(), rendered);
    assert_eq!(template.encode(&model.tokenizer, &messages, &context).unwrap(), continuation.prompt_ids);
}
