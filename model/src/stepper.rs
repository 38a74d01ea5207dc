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
    config::{GptConfig, Positions},
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
    /// [`Error::Param`] when there are not as many ids as `parts` say, or one is beyond the vocabulary, or a sequence beyond
    /// the positions that the model has; [`Error::Execution`] when the pages do not suffice, or the device fails.
    pub fn step(&mut self, token_ids: &[TokenId], parts: &mut [StepPart<'_>]) -> Result<Stepped> {
        let Self { gpt, cache, .. } = self;
        check(gpt.config(), token_ids, parts)?;
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
    ///
    /// # Panics
    /// When the step had no such row.
    pub fn hidden(&self, stepped: &Stepped, rows: &[usize]) -> Tensor<2> {
        ops::take_rows(stepped.hidden.clone(), rows)
    }

    /// Scores of what comes next for rows of the last step, by number: `[rows.len(), vocab_size]`.
    ///
    /// # Panics
    /// When the step had no such row.
    pub fn logits(&self, stepped: &Stepped, rows: &[usize]) -> Tensor<2> {
        match &stepped.logits {
            Some(logits) => ops::take_rows(logits.clone(), rows),
            None => self.gpt.logits(self.hidden(stepped, rows)),
        }
    }
}

/// Refuses what would be read beyond the ends of the embeddings.
fn check(config: &GptConfig, token_ids: &[TokenId], parts: &[StepPart<'_>]) -> Result<()> {
    let refuse = |what: String| Err(Error::Param { name: "token_ids", what });
    let n_new: usize = parts.iter().map(|part| part.n_new).sum();
    if token_ids.len() != n_new {
        return refuse(format!("must be {n_new} for the rows of this step, got {}", token_ids.len()));
    }
    if let Some(id) = token_ids.iter().find(|id| **id as usize >= config.vocab_size) {
        return refuse(format!("has token id {id}, the vocabulary has {}", config.vocab_size));
    }
    let longest = parts.iter().map(|part| part.table.len() + part.n_new).max().unwrap_or(0);
    if config.positions == Positions::Learned && longest > config.max_seq_len {
        return refuse(format!(
            "would make a text of {longest} tokens, the model has {} positions",
            config.max_seq_len
        ));
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::{config::Sizes, generate::token_tensor};

    fn sizes() -> Sizes {
        Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 }
    }

    /// Kernels check no bounds: what is beyond a table must not reach them. Nothing changes where a step is refused.
    #[test]
    fn tokens_that_the_model_does_not_have_are_refused() {
        let config = GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() });
        let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
        let mut stepper = Stepper::new(gpt, 8, KvDtype::F32);
        let mut table = stepper.cache().table();
        let mut refused = |token_ids: &[TokenId], n_new: usize| {
            let parts = &mut [StepPart { table: &mut table, n_new }];
            let what = stepper.step(token_ids, parts).map(drop).unwrap_err().to_string();
            assert_eq!((table.len(), stepper.cache().n_free_pages()), (0, 8));
            what
        };
        assert_eq!(refused(&[5, 97], 2), "`token_ids` has token id 97, the vocabulary has 97");
        assert_eq!(
            refused(&[TokenId::MAX], 1),
            format!("`token_ids` has token id {}, the vocabulary has 97", u32::MAX)
        );
        assert_eq!(refused(&[5, 6], 3), "`token_ids` must be 3 for the rows of this step, got 2");
        let what = refused(&[5; 65], 65);
        assert_eq!(what, "`token_ids` would make a text of 65 tokens, the model has 64 positions");
    }

    #[test]
    #[should_panic(expected = "a token id beyond the vocabulary of 97")]
    fn ids_that_the_model_does_not_have_make_no_tensor() {
        let gpt = Gpt::init(&GptConfig::llama(sizes()), 1, &Device::flex()).unwrap();
        let _ = token_tensor(&gpt, &[3, 97]);
    }

    #[test]
    #[should_panic(expected = "rows [0, 3] of 3")]
    fn rows_that_a_step_did_not_have_are_refused() {
        let gpt = Gpt::init(&GptConfig::llama(sizes()), 1, &Device::flex()).unwrap();
        let mut stepper = Stepper::new(gpt, 8, KvDtype::F32);
        let mut table = stepper.cache().table();
        let stepped = stepper.step(&[1, 2, 3], &mut [StepPart { table: &mut table, n_new: 3 }]).unwrap();
        let _ = stepper.hidden(&stepped, &[0, 3]);
    }
}
