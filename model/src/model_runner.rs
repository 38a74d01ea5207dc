//! A model and its KV cache, run step by step.
//!
//! On a GPU, launching kernels takes the processor longer than many kernels run. So a step that only decodes is captured as a
//! graph once steps of its shape have occurred a few times, and replayed from then on. What differs from step to step (token
//! ids, slots, page tables, positions) is written into a buffer that the graph reads. Steps have the same shape if they have as
//! many rows and, rounded up, as many pages.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};

use crate::{
    TokenId,
    config::{GptConfig, Positions},
    error::{Error, Result},
    forward_pass::{AttentionContext, ForwardPass},
    gpt::Gpt,
    kv_cache::{KvCache, StepPart},
    ops::{self, Ints, KvDtype, Placement, read, to_f32},
    read_logits::{LogitRows, read_logits},
    sampling::RowNeeds,
    token_ids::check_token_ids,
};

mod prediction_runner;
mod step_graphs;
mod warm_up;

pub use prediction_runner::PredictionRunner;
use step_graphs::StepGraphs;

/// A model and its KV cache.
#[derive(Debug)]
pub struct ModelRunner {
    // First, so that it is dropped first: graphs hold addresses of the others.
    graphs: Option<StepGraphs>,
    gpt: Gpt,
    cache: KvCache,
}

/// The result of a step, valid until the next step.
#[derive(Clone, Debug)]
pub struct StepOutput {
    hidden: Tensor<2>,
    logits: Option<Tensor<2>>,
}

impl ModelRunner {
    /// A runner with a cache of `n_pages` pages.
    ///
    /// # Errors
    /// As [`Gpt::kv_cache`].
    pub fn new(gpt: Gpt, n_pages: usize, kv_dtype: KvDtype) -> Result<Self> {
        let cache = gpt.kv_cache(n_pages, kv_dtype)?;
        Ok(Self { graphs: None, gpt, cache })
    }

    /// A runner with a cache of `n_pages` pages, and `n_states` states of the recurrent layers if there are such layers.
    ///
    /// # Errors
    /// As [`Gpt::kv_cache`].
    pub fn with_states(gpt: Gpt, n_pages: usize, n_states: usize, kv_dtype: KvDtype) -> Result<Self> {
        let cache = gpt.kv_cache_with_states(n_pages, n_states, kv_dtype)?;
        Ok(Self { graphs: None, gpt, cache })
    }

    /// Captures steps that repeat from now on. Does nothing on the CPU.
    pub fn capture_steps(&mut self) {
        if Placement::of(&self.gpt.device()) == Placement::Gpu {
            self.graphs.get_or_insert_default();
        }
    }

    /// Drops all graphs, and captures no more.
    pub fn stop_capture(&mut self) {
        self.graphs = None;
    }

    /// The model.
    pub fn gpt(&self) -> &Gpt {
        &self.gpt
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// The number of captured steps.
    pub fn n_graphs(&self) -> usize {
        self.graphs.as_ref().map_or(0, StepGraphs::n_graphs)
    }

    /// Appends tokens to sequences: `token_ids` has the tokens of all `parts`, one part after the other, at least one token.
    ///
    /// # Errors
    /// [`Error::Param`] if the number of ids is not that of `parts`, an id is outside the vocabulary, or a sequence gets longer
    /// than the model's learned positions; [`Error::Execution`] if there are too few free pages, or the device fails.
    pub fn step(&mut self, token_ids: &[TokenId], parts: &mut [StepPart<'_>]) -> Result<StepOutput> {
        let Self { graphs, gpt, cache } = self;
        check(gpt.config(), token_ids, parts)?;
        let device = gpt.device();
        let step = cache.step(parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        let mut pass = ForwardPass::new(gpt.config(), AttentionContext::Paged(step), &device);
        let ids = Ints::new(token_ids.iter().map(|&id| id as i32).collect(), &device);
        if let Some(graphs) = graphs
            && pass.adapters().is_empty()
            && let Some(output) = graphs.step(gpt, &ids, &mut pass)?
        {
            return Ok(output);
        }
        Ok(StepOutput { hidden: gpt.run(ids.tensor(), &mut pass), logits: None })
    }

    /// The final hidden states of these rows of the last step: `[rows.len(), d_model]`.
    ///
    /// # Panics
    /// If the step had no such row.
    pub fn hidden(&self, output: &StepOutput, rows: &[usize]) -> Tensor<2> {
        ops::take_rows(output.hidden.clone(), rows)
    }

    /// The logits of these rows of the last step: `[rows.len(), vocab_size]`.
    ///
    /// # Panics
    /// If the step had no such row.
    pub fn logits(&self, output: &StepOutput, rows: &[usize]) -> Tensor<2> {
        match &output.logits {
            Some(logits) => ops::take_rows(logits.clone(), rows),
            None => self.gpt.logits(self.hidden(output, rows)),
        }
    }

    /// The [logits](Self::logits) on the host, at least the parts in `needs`.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed in this step.
    pub fn read_logits(&self, output: &StepOutput, rows: &[usize], needs: &[RowNeeds]) -> Result<LogitRows> {
        read_logits(self.logits(output, rows), needs)
    }

    /// Whether [`read_logits`](Self::read_logits) reads parts of rows; otherwise it always reads whole ones.
    pub fn reads_parts(&self) -> bool {
        self.gpt.device() != Device::flex()
    }

    /// The final hidden states of consecutive rows of the last step, on the host: `rows.len() * d_model` numbers, row by row.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed in this step.
    pub fn read_hidden(&self, output: &StepOutput, rows: Range<usize>) -> Result<Vec<f32>> {
        to_f32(read(self.hidden(output, &rows.collect::<Vec<_>>()).cast(DType::F32))?)
    }
}

/// Refuses tokens and positions outside the embeddings.
fn check(config: &GptConfig, token_ids: &[TokenId], parts: &[StepPart<'_>]) -> Result<()> {
    let refuse = |what: String| Err(Error::Param { name: "token_ids", what });
    let n_new: usize = parts.iter().map(|part| part.n_new).sum();
    if token_ids.len() != n_new {
        return refuse(format!("must be {n_new} for the rows of this step, got {}", token_ids.len()));
    }
    check_token_ids("token_ids", token_ids, config.vocab_size)?;
    if config.bidirectional && parts.iter().any(|part| !part.table.is_empty()) {
        return refuse("must be a whole text for a model that looks both ways".to_owned());
    }
    let longest = parts.iter().map(|part| part.table.len() + part.n_new).max().unwrap_or(0);
    if config.positions == Positions::Learned && longest > config.max_seq_len {
        return refuse(format!(
            "would make a sequence of {longest} tokens, the model has {} positions",
            config.max_seq_len
        ));
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{config::Sizes, token_ids::token_tensor};

    fn sizes() -> Sizes {
        Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 }
    }

    /// Kernels do not check bounds. A step that is refused changes nothing.
    #[test]
    fn step_rejects_unknown_token_ids_wrong_counts_and_long_sequences() {
        let config = GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() });
        let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
        let mut runner = ModelRunner::new(gpt, 8, KvDtype::F32).unwrap();
        let mut table = runner.cache().table();
        let mut refused = |token_ids: &[TokenId], n_new: usize| {
            let parts = &mut [StepPart::new(&mut table, n_new)];
            let what = runner.step(token_ids, parts).map(drop).unwrap_err().to_string();
            assert_eq!((table.len(), runner.cache().n_free_pages()), (0, 8));
            what
        };
        assert_eq!(refused(&[5, 97], 2), "`token_ids` has token id 97, the vocabulary has 97");
        assert_eq!(
            refused(&[TokenId::MAX], 1),
            format!("`token_ids` has token id {}, the vocabulary has 97", u32::MAX)
        );
        assert_eq!(refused(&[5, 6], 3), "`token_ids` must be 3 for the rows of this step, got 2");
        let what = refused(&[5; 65], 65);
        assert_eq!(what, "`token_ids` would make a sequence of 65 tokens, the model has 64 positions");
    }

    #[test]
    #[should_panic(expected = "a token id beyond the vocabulary of 97")]
    fn token_tensor_panics_on_ids_beyond_the_vocabulary() {
        let gpt = Gpt::init(&GptConfig::llama(sizes()), 1, &Device::flex()).unwrap();
        let _ = token_tensor(&gpt, &[3, 97]);
    }

    #[test]
    #[should_panic(expected = "rows [0, 3] of 3")]
    fn hidden_panics_on_rows_beyond_those_of_the_step() {
        let gpt = Gpt::init(&GptConfig::llama(sizes()), 1, &Device::flex()).unwrap();
        let mut runner = ModelRunner::new(gpt, 8, KvDtype::F32).unwrap();
        let mut table = runner.cache().table();
        let output = runner.step(&[1, 2, 3], &mut [StepPart::new(&mut table, 3)]).unwrap();
        let _ = runner.hidden(&output, &[0, 3]);
    }
}
