//! Runs steps on the device: token ids in, logits out. Tensors and no decisions: what is in a step and what becomes of
//! its logits is said elsewhere.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use hearth_model::{
    Error, Result, TokenId,
    attention::AttentionContext,
    generate::token_tensor,
    gpt::Gpt,
    kv_cache::{KvCache, PAGE_SIZE, PagePool, PageTable, StepPart},
};

/// Numbers of rows that together use every kernel: a GPU's kernels are made for 1, 2, 4, 8 or any rows, and for keys that
/// fill one tile of attention or several.
const WARM_UP_ROWS: [usize; 6] = [1, 2, 4, 8, 32, 160];

/// The tokens of one sequence that a step appends to its cache.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) table: &'a mut PageTable,
    pub(crate) token_ids: &'a [TokenId],
}

/// The final hidden state of each row of a step, `[n_rows, d_model]`, on the device. Rows are the inputs' tokens, one
/// input after the other.
#[derive(Debug)]
pub(crate) struct Hidden(Tensor<2>);

/// The model and its cache.
#[derive(Debug)]
pub(crate) struct Runner {
    gpt: Gpt,
    cache: KvCache,
}

impl Runner {
    /// Allocates the cache: all the memory that requests will ever need.
    pub(crate) fn new(gpt: Gpt, n_pages: usize) -> Self {
        let cache = KvCache::new(gpt.config(), n_pages, &gpt.device());
        Self { gpt, cache }
    }

    /// Lets a GPU compile its kernels, for every number of rows that has kernels of its own. Nothing on a CPU.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device fails.
    pub(crate) fn warm_up(&mut self, max_batch_tokens: usize) -> Result<()> {
        if self.gpt.device() == Device::flex() {
            return Ok(());
        }
        let most = self.gpt.config().max_seq_len.min(self.pool().n_pages() * PAGE_SIZE).min(max_batch_tokens);
        for n_rows in WARM_UP_ROWS.into_iter().filter(|&n_rows| n_rows < most) {
            // So many rows at once, then one behind them, as in decoding.
            let mut table = self.pool().table();
            for n_rows in [n_rows, 1] {
                let hidden = self.run(vec![Input { table: &mut table, token_ids: &vec![0; n_rows] }])?;
                self.logits(&hidden, &(0..n_rows).collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    /// One forward pass over all inputs, at least one.
    ///
    /// # Errors
    /// [`Error::Execution`] when the pages do not suffice; the scheduler sees to it that they do.
    pub(crate) fn run(&mut self, inputs: Vec<Input<'_>>) -> Result<Hidden> {
        let token_ids: Vec<TokenId> = inputs.iter().flat_map(|input| input.token_ids).copied().collect();
        let mut parts: Vec<StepPart<'_>> =
            inputs.into_iter().map(|Input { table, token_ids }| StepPart { table, n_new: token_ids.len() }).collect();
        let step = self.cache.step(&mut parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        Ok(Hidden(self.gpt.forward(token_tensor(&self.gpt, &token_ids), AttentionContext::Paged(step))))
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
        read(self.gpt.logits(picked))
    }

    /// The final hidden states of neighbouring rows of a step: `rows.len() * d_model` numbers, row by row.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device failed in this step.
    pub(crate) fn hidden_rows(&self, hidden: &Hidden, rows: Range<usize>) -> Result<Vec<f32>> {
        read(hidden.0.clone().slice(rows))
    }

    pub(crate) fn d_model(&self) -> usize {
        self.gpt.config().d_model
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.gpt.config().vocab_size
    }

    /// Who holds which page of the cache.
    pub(crate) fn pool(&self) -> &PagePool {
        self.cache.pool()
    }
}

fn read(tensor: Tensor<2>) -> Result<Vec<f32>> {
    let failed = |what: String| Error::Execution { what };
    let data = tensor.cast(DType::F32).try_into_data().map_err(|error| failed(error.to_string()))?;
    data.try_into_vec::<f32>().map_err(|error| failed(format!("{error:?}")))
}
