//! Runs steps on the device: token ids in, logits out. Tensors and no decisions: what is in a step and what becomes of
//! its logits is said elsewhere.

use std::{collections::BTreeSet, ops::Range};

use burn::tensor::{DType, Device, Tensor};
use hearth_model::{
    Error, Result, TokenId,
    gpt::Gpt,
    kv_cache::{PAGE_SIZE, PagePool, PageTable, StepPart},
    ops::{self, LogitRows},
    sampling::RowNeeds,
    stepper::{Stepped, Stepper},
};

/// Numbers of rows that together use every kernel: a GPU's are made for 1, 2, 4, 8, any, or many: 128 (with
/// matrix instructions) or 256 and more.
const WARM_UP_ROWS: [usize; 5] = [1, 2, 4, 8, 256];
/// So many tokens fill more than one tile of attention, which has kernels of its own.
const WARM_UP_CONTEXT: usize = 160;

/// The tokens of one sequence that a step appends to its cache.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) table: &'a mut PageTable,
    pub(crate) token_ids: &'a [TokenId],
}

/// What the rows of a step came to, on the device. Rows are the inputs' tokens, one input after the other.
#[derive(Debug)]
pub(crate) struct Hidden(Stepped);

/// The model and its cache.
#[derive(Debug)]
pub(crate) struct Runner {
    stepper: Stepper,
}

impl Runner {
    pub(crate) fn new(stepper: Stepper) -> Self {
        Self { stepper }
    }

    fn gpt(&self) -> &Gpt {
        self.stepper.gpt()
    }

    /// Lets a GPU compile its kernels: afterwards no step needs one that is not there. Steps that come up again are recorded
    /// from then on, unless `enforce_eager`. Nothing on a CPU.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device fails.
    pub(crate) fn warm_up(&mut self, max_batch_tokens: usize, enforce_eager: bool) -> Result<()> {
        if self.gpt().device() == Device::flex() {
            return Ok(());
        }
        if !enforce_eager {
            self.stepper.record();
        }
        let context = self.gpt().config().max_seq_len.min(self.pool().n_pages() * PAGE_SIZE);
        let most = context.saturating_sub(1).min(max_batch_tokens);
        for n_rows in WARM_UP_ROWS.map(|n_rows| n_rows.min(most).max(1)) {
            let mut table = self.pool().table();
            let hidden = self.run(vec![Input { table: &mut table, token_ids: &vec![0; n_rows] }])?;
            self.warm_up_logits(&hidden, &(0..n_rows.min(9)).collect::<Vec<_>>())?;
            self.warm_up_logits(&hidden, &[n_rows - 1])?;
            self.hidden_rows(&hidden, 0..1)?;
        }
        // A long text in several steps, what follows it, and what follows it in a fork, whose last page is its own.
        let mut table = self.pool().table();
        while table.len() < context.saturating_sub(PAGE_SIZE).min(WARM_UP_CONTEXT) {
            let token_ids = vec![0; most.min(WARM_UP_CONTEXT + 1 - table.len())];
            self.run(vec![Input { table: &mut table, token_ids: &token_ids }])?;
        }
        let mut fork = table.fork();
        for table in [&mut fork, &mut table] {
            let hidden = self.run(vec![Input { table, token_ids: &[0] }])?;
            // Whatever is still to be launched for it is launched before its logits are read.
            self.warm_up_logits(&hidden, &[0])?;
        }
        Ok(())
    }

    /// Whole rows, and parts of them in every number of passes.
    fn warm_up_logits(&self, hidden: &Hidden, rows: &[usize]) -> Result<()> {
        let best = |n| RowNeeds::Best { n, also: BTreeSet::new() };
        for needs in [RowNeeds::Whole, best(1), best(RowNeeds::MAX_BEST)] {
            self.logits(hidden, rows, &vec![needs; rows.len()])?;
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
        self.stepper.step(&token_ids, &mut parts).map(Hidden)
    }

    /// The logits of some rows of a step, as many of each as are needed, or more.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device failed in this step.
    pub(crate) fn logits(&self, hidden: &Hidden, rows: &[usize], needs: &[RowNeeds]) -> Result<LogitRows> {
        ops::read_logits(self.stepper.logits(&hidden.0, rows), needs)
    }

    /// Whether less than a whole row of logits can be read: elsewhere nobody need find out what a request needs.
    pub(crate) fn reads_parts(&self) -> bool {
        self.gpt().device() != Device::flex()
    }

    /// The final hidden states of neighbouring rows of a step: `rows.len() * d_model` numbers, row by row.
    ///
    /// # Errors
    /// [`Error::Execution`] when the device failed in this step.
    pub(crate) fn hidden_rows(&self, hidden: &Hidden, rows: Range<usize>) -> Result<Vec<f32>> {
        read(self.stepper.hidden(&hidden.0, &rows.collect::<Vec<_>>()))
    }

    pub(crate) fn d_model(&self) -> usize {
        self.gpt().config().d_model
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.gpt().config().vocab_size
    }

    /// Who holds which page of the cache.
    pub(crate) fn pool(&self) -> &PagePool {
        self.stepper.cache().pool()
    }
}

fn read(tensor: Tensor<2>) -> Result<Vec<f32>> {
    let failed = |what: String| Error::Execution { what };
    let data = tensor.cast(DType::F32).try_into_data().map_err(|error| failed(error.to_string()))?;
    data.try_into_vec::<f32>().map_err(|error| failed(format!("{error:?}")))
}

#[cfg(all(test, feature = "gpu"))]
#[expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]
mod tests {
    use cubecl_runtime::launched::LaunchedKernels;
    use hearth_model::{
        config::{GptConfig, Sizes},
        device::{DeviceChoice, choose},
        ops::KvDtype,
        sampling::LogitRow,
    };

    use super::*;

    /// Every batch up to 16, chunks of many lengths beside decoding, forks: nothing of it launches a kernel that was not
    /// compiled before.
    #[test]
    fn after_warming_up_no_step_needs_another_kernel() {
        if std::env::var_os("HEARTH_TEST_WGPU").is_none() {
            println!("skipped: set HEARTH_TEST_WGPU=1 to run on the software wgpu adapter");
            return;
        }
        let device = choose(DeviceChoice::WgpuSoftware).unwrap().device;
        // One pass over the vocabulary, and several.
        for (vocab_size, (_, kv_dtype)) in [300, 5000].into_iter().zip(KvDtype::ALL) {
            let sizes =
                Sizes { vocab_size, max_seq_len: 512, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 64, d_ff: 96 };
            let gpt = Gpt::init(&GptConfig::llama(sizes), 1, &device).unwrap();
            check_warm_up(Runner::new(Stepper::new(gpt, 80, *kv_dtype)));
        }
    }

    fn check_warm_up(mut runner: Runner) {
        let collection = LaunchedKernels::new();
        runner.warm_up(300, false).unwrap();
        let compiled = collection.finish();
        assert!(compiled.len() > 10, "{} kernels", compiled.len());

        let collection = LaunchedKernels::new();
        let mut tables: Vec<PageTable> = (0..16).map(|_| runner.pool().table()).collect();
        let mut step = |tables: &mut [PageTable], n_new: &dyn Fn(usize) -> usize| {
            let token_ids: Vec<Vec<TokenId>> = (0..tables.len()).map(|at| vec![at as TokenId; n_new(at)]).collect();
            let inputs = tables.iter_mut().zip(&token_ids).map(|(table, token_ids)| Input { table, token_ids });
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
