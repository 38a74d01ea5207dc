//! The plain loop that generates one text: prefill, then one token at a time. It is the oracle of the engine, and depends on
//! nothing of it.

#![expect(clippy::unwrap_used, reason = "tests")]

use hearth_model::{
    TokenId,
    decode::sampling::{Sampler, SamplingParams},
    gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{KvCache, PAGE_SIZE, PageTable, StepPart},
        token_ids::token_tensor,
    },
    ops::KvDtype,
};

/// Rows per prefill chunk.
const PREFILL_CHUNK: usize = 512;

/// Options of [`generate`].
#[derive(Clone, Debug)]
pub(crate) struct GenerateOptions {
    /// Maximum number of new tokens; fewer if the context ends.
    pub(crate) max_tokens: usize,
    /// Dtype of the KV cache; `None`: as suits the model.
    pub(crate) kv_dtype: Option<KvDtype>,
    pub(crate) sampling: SamplingParams,
    /// Tokens that end the text. The last one is part of the result.
    pub(crate) eos_token_ids: Vec<TokenId>,
}

/// Continues `prompt_ids` and returns the new tokens.
pub(crate) fn generate(gpt: &Gpt, prompt_ids: &[TokenId], options: &GenerateOptions) -> Vec<TokenId> {
    let max_tokens = options.max_tokens.min(gpt.config().max_seq_len - prompt_ids.len());
    let n_pages = (prompt_ids.len() + max_tokens).div_ceil(PAGE_SIZE);
    let kv_dtype = KvDtype::choose(options.kv_dtype, gpt.dtype(), &gpt.device()).unwrap();
    let mut cache = gpt.kv_cache(n_pages, kv_dtype).unwrap();
    let mut table = cache.table();
    let mut sampler = Sampler::new(options.sampling.clone(), 0, prompt_ids);
    let mut generated = Vec::new();
    let mut pending = prompt_ids.to_vec();
    while generated.len() < max_tokens {
        let logits = next_logits(gpt, &mut cache, &mut table, &pending);
        let id = sampler.sample(&logits, prompt_ids.len() + generated.len()).unwrap();
        sampler.accept(id);
        generated.push(id);
        if options.eos_token_ids.contains(&id) {
            break;
        }
        pending = vec![id];
    }
    generated
}

/// Appends `token_ids` to the sequence in `table` and returns the logits of the next token, `[vocab_size]`.
pub(crate) fn next_logits(gpt: &Gpt, cache: &mut KvCache, table: &mut PageTable, token_ids: &[TokenId]) -> Vec<f32> {
    let mut last = None;
    for chunk in token_ids.chunks(PREFILL_CHUNK) {
        let step = cache.step(&mut [StepPart::new(table, chunk.len())]).unwrap();
        let hidden = gpt.forward(token_tensor(gpt, chunk), AttentionContext::Paged(step));
        last = Some(hidden.slice(chunk.len() - 1..chunk.len()));
    }
    gpt.logits(last.unwrap()).into_data().convert::<f32>().try_into_vec().unwrap()
}
