//! Runs steps on the device: token ids in, logits out. Tensors and no decisions: what is in a step and what becomes of
//! its logits is said elsewhere.

use std::collections::HashMap;

use burn::tensor::{DType, Int, Tensor, TensorData};
use hearth_model::{
    Error, Result, TokenId,
    attention::AttentionContext,
    generate::token_tensor,
    gpt::Gpt,
    kv_cache::{KvCache, PageTable, StepPart},
};

use super::scheduler::SequenceId;

/// The tokens of one sequence that a step appends to its cache.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) id: SequenceId,
    pub(crate) token_ids: Vec<TokenId>,
}

/// The final hidden state of each row of a step, `[n_rows, d_model]`, on the device. Rows are the inputs' tokens, one
/// input after the other.
#[derive(Debug)]
pub(crate) struct Hidden(Tensor<2>);

/// The model, its cache, and the pages of every sequence that has started.
#[derive(Debug)]
pub(crate) struct Runner {
    gpt: Gpt,
    cache: KvCache,
    tables: HashMap<SequenceId, PageTable>,
}

impl Runner {
    /// Allocates the cache: all the memory that requests will ever need.
    pub(crate) fn new(gpt: Gpt, n_pages: usize) -> Self {
        let cache = KvCache::new(gpt.config(), n_pages, &gpt.device());
        Self { gpt, cache, tables: HashMap::new() }
    }

    /// One forward pass over all inputs, at least one.
    ///
    /// # Errors
    /// [`Error::Execution`] when the pages do not suffice; the scheduler sees to it that they do.
    pub(crate) fn run(&mut self, inputs: &[Input]) -> Result<Hidden> {
        let mut tables: Vec<PageTable> =
            inputs.iter().map(|input| self.tables.remove(&input.id).unwrap_or_else(|| self.cache.table())).collect();
        let mut parts: Vec<StepPart<'_>> = tables
            .iter_mut()
            .zip(inputs)
            .map(|(table, input)| StepPart { table, n_new: input.token_ids.len() })
            .collect();
        let step = self.cache.step(&mut parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        let token_ids: Vec<TokenId> = inputs.iter().flat_map(|input| &input.token_ids).copied().collect();
        let hidden = self.gpt.forward(token_tensor(&self.gpt, &token_ids), AttentionContext::Paged(step));
        self.tables.extend(inputs.iter().map(|input| input.id).zip(tables));
        Ok(Hidden(hidden))
    }

    /// The logits of some rows of a step: `rows.len() * vocab_size` numbers, row by row.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device failed in this step.
    pub(crate) fn logits(&self, hidden: &Hidden, rows: &[usize]) -> Result<Vec<f32>> {
        let [n_rows, _] = hidden.0.dims();
        let picked = if rows.iter().copied().eq(0..n_rows) {
            hidden.0.clone()
        } else {
            let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
            let rows = Tensor::<1, Int>::from_data(TensorData::from(rows.as_slice()), &hidden.0.device());
            hidden.0.clone().select(0, rows)
        };
        let failed = |what: String| Error::Execution { what };
        let data =
            self.gpt.logits(picked).cast(DType::F32).try_into_data().map_err(|error| failed(error.to_string()))?;
        data.try_to_vec::<f32>().map_err(|error| failed(format!("{error:?}")))
    }

    /// Gives back the pages of a sequence that has ended.
    pub(crate) fn release(&mut self, id: SequenceId) {
        self.tables.remove(&id);
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.gpt.config().vocab_size
    }

    pub(crate) fn n_free_pages(&self) -> usize {
        self.cache.n_free_pages()
    }
}
