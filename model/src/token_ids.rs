//! A simple generation loop for one sequence: prefill, then one token at a time. Used by the command line and for
//! training samples; the server's engine is tested against it.

use std::ops::ControlFlow;

use burn::tensor::{Int, Tensor, TensorData};

use crate::{
    TokenId,
    attention::AttentionContext,
    error::{Error, Result},
    gpt::Gpt,
    kv_cache::{KvCache, PAGE_SIZE, PageTable, StepPart},
    ops::{KvDtype, read, to_f32},
    sampling::{Sampler, SamplingParams},
};

/// Rows per prefill chunk, which limits the memory for long prompts.
const PREFILL_CHUNK: usize = 512;

/// Options of [`generate`].
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Maximum number of new tokens; fewer if the context ends.
    pub max_tokens: usize,
    /// Dtype of the KV cache; `None`: as [suits](KvDtype::choose) the model.
    pub kv_dtype: Option<KvDtype>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Tokens that end the text. The last one is part of the result.
    pub eos_token_ids: Vec<TokenId>,
}

/// Continues `prompt_ids` and returns the new tokens. `on_token` receives each token as it comes and may stop the loop.
///
/// # Errors
/// [`Error::Param`] if the prompt is empty, too long, or has ids outside the vocabulary, or if a sampling parameter is
/// out of range; [`Error::Device`] if the device does not support the dtype of the KV cache; [`Error::Execution`] if
/// the device fails.
pub fn generate(
    gpt: &Gpt,
    prompt_ids: &[TokenId],
    options: &GenerateOptions,
    mut on_token: impl FnMut(TokenId) -> ControlFlow<()>,
) -> Result<Vec<TokenId>> {
    let config = gpt.config();
    check_prompt(prompt_ids, config.vocab_size, config.max_seq_len)?;
    options.sampling.validate(config.vocab_size)?;
    let max_tokens = options.max_tokens.min(config.max_seq_len - prompt_ids.len());
    let n_pages = (prompt_ids.len() + max_tokens).div_ceil(PAGE_SIZE);
    let kv_dtype = KvDtype::choose(options.kv_dtype, gpt.dtype(), &gpt.device())?;
    let mut cache = gpt.kv_cache(n_pages, kv_dtype)?;
    let mut table = cache.table().of_prompt(prompt_ids.len());
    let mut sampler = Sampler::new(options.sampling.clone(), 0, prompt_ids);
    let mut generated = Vec::new();
    let mut pending = prompt_ids.to_vec();
    while generated.len() < max_tokens {
        let logits = next_logits(gpt, &mut cache, &mut table, &pending)?;
        let id = sampler.sample(&logits, prompt_ids.len() + generated.len())?;
        sampler.accept(id);
        generated.push(id);
        if on_token(id).is_break() || options.eos_token_ids.contains(&id) {
            break;
        }
        pending = vec![id];
    }
    Ok(generated)
}

/// Appends `token_ids` to the sequence in `table` and returns the logits of the next token, `[vocab_size]`.
///
/// # Errors
/// [`Error::Execution`] if the cache has too few pages or the device fails.
pub fn next_logits(gpt: &Gpt, cache: &mut KvCache, table: &mut PageTable, token_ids: &[TokenId]) -> Result<Vec<f32>> {
    let mut last = None;
    for chunk in token_ids.chunks(PREFILL_CHUNK) {
        let step = cache.step(&mut [StepPart::new(table, chunk.len())]);
        let step = step.map_err(|error| Error::Execution { what: error.to_string() })?;
        let hidden = gpt.forward(token_tensor(gpt, chunk), AttentionContext::Paged(step));
        last = Some(hidden.slice(chunk.len() - 1..chunk.len()));
    }
    let hidden = last.ok_or(Error::Param { name: "prompt", what: "must not be empty".to_owned() })?;
    to_f32(read(gpt.logits(hidden))?)
}

/// Token ids as a tensor on the model's device, `[n]`.
///
/// # Panics
/// If an id is outside the model's vocabulary.
pub fn token_tensor(gpt: &Gpt, token_ids: &[TokenId]) -> Tensor<1, Int> {
    let vocab_size = gpt.config().vocab_size;
    assert!(token_ids.iter().all(|id| (*id as usize) < vocab_size), "a token id beyond the vocabulary of {vocab_size}");
    let ids: Vec<i32> = token_ids.iter().map(|&id| id as i32).collect();
    Tensor::from_data(TensorData::new(ids, [token_ids.len()]), &gpt.device())
}

/// Rejects ids of the parameter `name` that are outside the vocabulary.
pub(crate) fn check_token_ids(name: &'static str, token_ids: &[TokenId], vocab_size: usize) -> Result<()> {
    match token_ids.iter().find(|id| **id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => Err(Error::Param { name, what: format!("has token id {id}, the vocabulary has {vocab_size}") }),
    }
}

fn check_prompt(prompt_ids: &[TokenId], vocab_size: usize, max_seq_len: usize) -> Result<()> {
    let refuse = |what: String| Err(Error::Param { name: "prompt", what });
    if prompt_ids.is_empty() {
        return refuse("must have at least one token".to_owned());
    }
    check_token_ids("prompt", prompt_ids, vocab_size)?;
    if prompt_ids.len() >= max_seq_len {
        let n = prompt_ids.len();
        return refuse(format!("must be shorter than the context of {max_seq_len} tokens, got {n} tokens"));
    }
    Ok(())
}
