//! Runs the engine's batches on the device: token ids in, logits out. It makes no decisions: the scheduler fills the
//! batches, and sequences use the logits.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use burn::tensor::{DType, Device, Tensor};
use hearth_model::{
    Error, Result, TokenId,
    gpt::Gpt,
    kv_cache::{PAGE_SIZE, PagePool, PageTable, StepPart},
    lora::LoadedAdapter,
    model_runner::{ModelRunner, StepOutput},
    read_logits::{LogitRows, read_logits},
    sampling::RowNeeds,
};

/// Numbers of rows that together use every kernel. On a GPU, kernels for few rows depend on the number of rows; from
/// 128 rows, matrix products use other kernels.
const WARM_UP_ROWS: [usize; 5] = [1, 2, 4, 8, 256];
/// Number of tokens that fill more than one attention tile, which uses further kernels.
const WARM_UP_CONTEXT: usize = 160;

/// The tokens of one sequence that a step appends to its cache.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) table: &'a mut PageTable,
    pub(crate) token_ids: &'a [TokenId],
    pub(crate) adapter: Option<Arc<LoadedAdapter>>,
}

impl<'a> Input<'a> {
    /// Without an adapter.
    pub(crate) fn new(table: &'a mut PageTable, token_ids: &'a [TokenId]) -> Self {
        Self { table, token_ids, adapter: None }
    }
}

/// Runs the batches of the engine's steps. Rows of a step are its inputs' tokens, one input after the other.
#[derive(Debug)]
pub(crate) struct BatchRunner {
    model: ModelRunner,
}

impl BatchRunner {
    pub(crate) fn new(model: ModelRunner) -> Self {
        Self { model }
    }

    fn gpt(&self) -> &Gpt {
        self.model.gpt()
    }

    /// Compiles all kernels on a GPU before serving, and captures repeated steps from then on, unless `enforce_eager`.
    /// Does nothing on the CPU.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device fails.
    pub(crate) fn warm_up(&mut self, max_batch_tokens: usize, enforce_eager: bool) -> Result<()> {
        if self.gpt().device() == Device::flex() {
            return Ok(());
        }
        if !enforce_eager {
            self.model.capture_steps();
        }
        let context = self.gpt().config().max_seq_len.min(self.pool().n_pages() * PAGE_SIZE);
        let most = context.saturating_sub(1).min(max_batch_tokens);
        for n_rows in WARM_UP_ROWS.map(|n_rows| n_rows.min(most).max(1)) {
            let mut table = self.pool().table();
            let hidden = self.run(vec![Input::new(&mut table, &vec![0; n_rows])])?;
            self.warm_up_logits(&hidden, &(0..n_rows.min(9)).collect::<Vec<_>>())?;
            self.warm_up_logits(&hidden, &[n_rows - 1])?;
            self.hidden_rows(&hidden, 0..1)?;
        }
        // A long prompt in several steps, the next tokens, and those of a fork, whose last page is copied.
        let mut table = self.pool().table();
        while table.len() < context.saturating_sub(PAGE_SIZE).min(WARM_UP_CONTEXT) {
            let token_ids = vec![0; most.min(WARM_UP_CONTEXT + 1 - table.len())];
            self.run(vec![Input::new(&mut table, &token_ids)])?;
        }
        let mut fork = table.fork();
        for table in [&mut fork, &mut table] {
            let hidden = self.run(vec![Input::new(table, &[0])])?;
            // Reading the logits waits until the device has run all launches.
            self.warm_up_logits(&hidden, &[0])?;
        }
        Ok(())
    }

    /// Reads whole rows, and parts of rows with one pass and with several.
    fn warm_up_logits(&self, hidden: &StepOutput, rows: &[usize]) -> Result<()> {
        let best = |n| RowNeeds::Best { n, also: BTreeSet::new() };
        for needs in [RowNeeds::Whole, best(1), best(RowNeeds::MAX_BEST)] {
            self.logits(hidden, rows, &vec![needs; rows.len()])?;
        }
        Ok(())
    }

    /// Runs one forward pass over all inputs, at least one.
    ///
    /// # Errors
    /// [`Error::Execution`] if there are too few pages; the scheduler ensures that there are enough.
    pub(crate) fn run(&mut self, inputs: Vec<Input<'_>>) -> Result<StepOutput> {
        let token_ids: Vec<TokenId> = inputs.iter().flat_map(|input| input.token_ids).copied().collect();
        let part =
            |Input { table, token_ids, adapter }| StepPart { table, n_new: <[TokenId]>::len(token_ids), adapter };
        let mut parts: Vec<StepPart<'_>> = inputs.into_iter().map(part).collect();
        self.model.step(&token_ids, &mut parts)
    }

    /// The logits of some rows of a step, at least the parts in `needs`.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed in this step.
    pub(crate) fn logits(&self, hidden: &StepOutput, rows: &[usize], needs: &[RowNeeds]) -> Result<LogitRows> {
        read_logits(self.model.logits(hidden, rows), needs)
    }

    /// Whether parts of rows can be read; otherwise the needs of requests do not matter.
    pub(crate) fn reads_parts(&self) -> bool {
        self.gpt().device() != Device::flex()
    }

    /// The final hidden states of consecutive rows of a step: `rows.len() * d_model` numbers, row by row.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed in this step.
    pub(crate) fn hidden_rows(&self, hidden: &StepOutput, rows: Range<usize>) -> Result<Vec<f32>> {
        read(self.model.hidden(hidden, &rows.collect::<Vec<_>>()))
    }

    pub(crate) fn d_model(&self) -> usize {
        self.gpt().config().d_model
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.gpt().config().vocab_size
    }

    /// The pool of the KV cache's pages, which tracks which of them are in use.
    pub(crate) fn pool(&self) -> &PagePool {
        self.model.cache().pool()
    }
}

fn read(tensor: Tensor<2>) -> Result<Vec<f32>> {
    let failed = |what: String| Error::Execution { what };
    let data = tensor.cast(DType::F32).try_into_data().map_err(|error| failed(error.to_string()))?;
    data.try_into_vec::<f32>().map_err(|error| failed(format!("{error:?}")))
}

#[cfg(all(test, feature = "gpu"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use cubecl_runtime::launched::LaunchedKernels;
    use hearth_model::{
        config::{GptConfig, Sizes},
        ops::KvDtype,
        sampling::LogitRow,
    };

    use super::*;
    use crate::test_gpu::gpu;

    /// Batches of 1 to 16, prefill chunks beside decoding, and forks launch only kernels that warm-up compiled.
    #[test]
    fn after_warm_up_serving_steps_compile_no_new_gpu_kernels() {
        let Some(device) = gpu() else { return };
        // Top-k over the vocabulary takes one pass for 300 tokens, and several for 5000.
        for (vocab_size, (_, kv_dtype)) in [300, 5000].into_iter().zip(KvDtype::ALL) {
            let sizes =
                Sizes { vocab_size, max_seq_len: 512, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 64, d_ff: 96 };
            let gpt = Gpt::init(&GptConfig::llama(sizes), 1, &device).unwrap();
            check_warm_up(BatchRunner::new(ModelRunner::new(gpt, 80, *kv_dtype).unwrap()));
        }
    }

    fn check_warm_up(mut runner: BatchRunner) {
        let collection = LaunchedKernels::new();
        runner.warm_up(300, false).unwrap();
        let compiled = collection.finish();
        assert!(compiled.len() > 10, "{} kernels", compiled.len());

        let collection = LaunchedKernels::new();
        let mut tables: Vec<PageTable> = (0..16).map(|_| runner.pool().table()).collect();
        let mut step = |tables: &mut [PageTable], n_new: &dyn Fn(usize) -> usize| {
            let token_ids: Vec<Vec<TokenId>> = (0..tables.len()).map(|at| vec![at as TokenId; n_new(at)]).collect();
            let inputs = tables.iter_mut().zip(&token_ids).map(|(table, token_ids)| Input::new(table, token_ids));
            let hidden = runner.run(inputs.collect()).unwrap();
            let ends = token_ids.iter().scan(0, |end, ids| {
                *end += ids.len();
                Some(*end - 1)
            });
            // Rows of every kind side by side.
            let needs = [
                RowNeeds::Whole,
                RowNeeds::Best { n: 1, also: BTreeSet::new() },
                RowNeeds::Best { n: 100, also: (5..70).collect() },
            ];
            let needs: Vec<RowNeeds> = (1..=tables.len()).map(|at| needs[at % 3].clone()).collect();
            let logits = runner.logits(&hidden, &ends.collect::<Vec<_>>(), &needs).unwrap();
            assert!(logits.iter().all(|row| match row {
                LogitRow::Whole(logits) => logits.iter().all(|logit| logit.is_finite()),
                LogitRow::Best(logits) => logits.iter().all(|(_, logit)| logit.is_finite()),
            }));
            runner.hidden_rows(&hidden, 0..2.min(token_ids[0].len())).unwrap();
        };
        for n in 1..=16 {
            step(&mut tables[..n], &|_| 1);
        }
        for n in [3, 37, 260, 7] {
            step(&mut tables[..3], &|at| if at == 0 { n } else { 1 });
        }
        step(&mut tables[..1], &|_| 33);
        let mut forks: Vec<PageTable> = tables[..2].iter().map(PageTable::fork).collect();
        step(&mut forks, &|_| 1);
        let others = &collection.finish() - &compiled;
        assert!(others.is_empty(), "{} kernels were compiled while serving", others.len());
    }
}
