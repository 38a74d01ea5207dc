//! A prediction head and its KV cache.

use burn::tensor::Tensor;

use crate::{
    TokenId,
    error::{Error, Result},
    gpt::{
        forward_pass::AttentionContext,
        kv_cache::{KvCache, StepPart},
        prediction_head::PredictionHead,
        token_ids::check_token_ids,
    },
    ops::{Ints, KvDtype},
};

/// A prediction head and its KV cache.
#[derive(Debug)]
pub struct PredictionRunner {
    head: PredictionHead,
    cache: KvCache,
}

impl PredictionRunner {
    /// A runner with a cache of `n_pages` pages.
    ///
    /// # Errors
    /// As [`PredictionHead::kv_cache`].
    pub fn new(head: PredictionHead, n_pages: usize, kv_dtype: KvDtype) -> Result<Self> {
        let cache = head.kv_cache(n_pages, kv_dtype)?;
        Ok(Self { head, cache })
    }

    /// The head.
    pub fn head(&self) -> &PredictionHead {
        &self.head
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Appends rows to sequences: `next_ids` and `hidden [n_rows, d_model]` have the rows of all `parts`, one part
    /// after the other, at least one row. Returns the prediction head's hidden states, `[n_rows, d_model]`.
    ///
    /// # Errors
    /// [`Error::Param`] if an id is outside the vocabulary; [`Error::Execution`] if there are too few free pages, or
    /// the device fails.
    ///
    /// # Panics
    /// If ids, hidden states and rows of the parts differ in number.
    pub fn step(&mut self, next_ids: &[TokenId], hidden: Tensor<2>, parts: &mut [StepPart<'_>]) -> Result<Tensor<2>> {
        let Self { head, cache } = self;
        let n_rows: usize = parts.iter().map(|part| part.n_new).sum();
        assert_eq!((next_ids.len(), hidden.dims()[0]), (n_rows, n_rows), "tokens and hidden states, and rows");
        check_token_ids("next_ids", next_ids, head.config().vocab_size)?;
        let device = hidden.device();
        let step = cache.step(parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        let ids = Ints::new(next_ids.iter().map(|&id| id as i32).collect(), &device);
        Ok(head.forward(ids.tensor(), hidden, AttentionContext::Paged(step)))
    }
}
