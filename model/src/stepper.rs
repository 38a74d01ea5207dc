//! A model and its cache, step by step.
//!
//! On a GPU, steps that only decode are recorded once they have come up a few times, and done again at a word from then
//! on: telling the GPU of each launch takes the processor longer than many a launch takes. Such a step is written down
//! with a place for what is different in each: token ids, slots, tables of pages, positions. Steps are alike if they have
//! as many rows and, rounded up, as many pages.

use burn::tensor::Tensor;

use crate::{
    TokenId,
    attention::{AttentionContext, Pass},
    error::{Error, Result},
    gpt::Gpt,
    kv_cache::{KvCache, StepPart},
    ops::{self, Ints, KvDtype},
};

#[cfg(feature = "gpu")]
mod recorded;

/// A model with its cache.
#[derive(Debug)]
pub struct Stepper {
    // First, so that it goes first: recordings know where the others are.
    #[cfg(feature = "gpu")]
    recorded: Option<recorded::RecordedSteps>,
    gpt: Gpt,
    cache: KvCache,
}

/// What came out of a step: is there until the next.
#[derive(Clone, Debug)]
pub struct Stepped {
    hidden: Tensor<2>,
    logits: Option<Tensor<2>>,
}

impl Stepper {
    /// Allocates a cache of `n_pages` pages.
    pub fn new(gpt: Gpt, n_pages: usize, kv_dtype: KvDtype) -> Self {
        let cache = KvCache::new(gpt.config(), n_pages, kv_dtype, &gpt.device());
        Self {
            #[cfg(feature = "gpu")]
            recorded: None,
            gpt,
            cache,
        }
    }

    /// From now on, steps that come up again are recorded, where this is a GPU.
    pub fn record(&mut self) {
        #[cfg(feature = "gpu")]
        if ops::is_gpu(&self.gpt.device()) {
            self.recorded.get_or_insert_default();
        }
    }

    /// Forgets what is recorded, and records no more.
    pub fn stop_recording(&mut self) {
        #[cfg(feature = "gpu")]
        {
            self.recorded = None;
        }
    }

    /// The model.
    pub fn gpt(&self) -> &Gpt {
        &self.gpt
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Steps that are recorded at present.
    pub fn n_recorded(&self) -> usize {
        #[cfg(feature = "gpu")]
        return self.recorded.as_ref().map_or(0, recorded::RecordedSteps::n_recorded);
        #[cfg(not(feature = "gpu"))]
        0
    }

    /// Appends tokens to sequences: `token_ids` are those of all `parts`, one part after the other, at least one.
    ///
    /// # Errors
    /// [`Error::Execution`] when the pages do not suffice, or the device fails.
    pub fn step(&mut self, token_ids: &[TokenId], parts: &mut [StepPart<'_>]) -> Result<Stepped> {
        let Self { gpt, cache, .. } = self;
        let device = gpt.device();
        let step = cache.step(parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        let mut pass = Pass::new(gpt.config(), AttentionContext::Paged(step), &device);
        let ids = Ints::new(token_ids.iter().map(|&id| id as i32).collect(), &device);
        #[cfg(feature = "gpu")]
        if let Some(steps) = &mut self.recorded
            && let Some(stepped) = steps.step(gpt, &ids, &mut pass)?
        {
            return Ok(stepped);
        }
        Ok(Stepped { hidden: gpt.run(ids.tensor(), &mut pass), logits: None })
    }

    /// The final hidden states of rows of the last step, by number: `[rows.len(), d_model]`.
    pub fn hidden(&self, stepped: &Stepped, rows: &[usize]) -> Tensor<2> {
        ops::take_rows(stepped.hidden.clone(), rows)
    }

    /// Scores of what comes next for rows of the last step, by number: `[rows.len(), vocab_size]`.
    pub fn logits(&self, stepped: &Stepped, rows: &[usize]) -> Tensor<2> {
        match &stepped.logits {
            Some(logits) => ops::take_rows(logits.clone(), rows),
            None => self.gpt.logits(self.hidden(stepped, rows)),
        }
    }
}
