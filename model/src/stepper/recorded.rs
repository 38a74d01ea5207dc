//! Decoding steps that were captured once and are replayed.

use std::collections::HashMap;

use super::Stepped;
use crate::{
    attention::Pass,
    error::Result,
    gpt::Gpt,
    kv_cache::PagedStep,
    ops::{Address, Ints, Recording, StagingBuffer, Upload},
};

/// Steps of one shape that are run before the next is recorded: recording takes as long as three.
const RUNS_BEFORE: u32 = 2;
/// Shapes that are kept, the least recently used going first: each recording keeps the memory of its step.
const MAX_SHAPES: usize = 32;
/// Recordings that may fail before no more are tried.
const MAX_FAILURES: u32 = 3;
/// Rows of a recorded step, at most: more take a GPU longer than it takes to tell it of them, and products of many rows
/// use memory of which a recording would have to know beforehand.
const MAX_ROWS: usize = 127;
/// Rows of a recorded step whose logits are recorded with it, at most: for more, the memory would be large and the launch
/// makes no difference.
const MAX_LOGIT_ROWS: usize = 8;

/// Recorded steps of one model and one cache, by shape.
#[derive(Debug, Default)]
pub(super) struct RecordedSteps {
    shapes: HashMap<Vec<usize>, Shape>,
    /// Where the cache's pools lay when these were recorded: each step reads and writes there.
    pools: Vec<Option<Address>>,
    clock: u64,
    n_failures: u32,
}

#[derive(Debug, Default)]
struct Shape {
    n_runs: u32,
    last_used: u64,
    step: Option<RecordedStep>,
}

/// A step that can be done again.
#[derive(Debug)]
struct RecordedStep {
    recording: Recording,
    /// Where it reads what it is told: token ids, then the others in the order of [`Pass::uploads`].
    staging: StagingBuffer,
    output: Stepped,
}

/// Where the pools lie that `pass` writes to.
fn addresses(pass: &mut Pass<'_>) -> Vec<Option<Address>> {
    pass.paged_step().map(PagedStep::addresses).unwrap_or_default()
}

/// Whether these pools lie elsewhere than at `addresses`.
fn has_moved(pass: &mut Pass<'_>, addresses: &[Option<Address>]) -> bool {
    pass.paged_step().is_some_and(|step| step.has_moved(addresses))
}

impl RecordedSteps {
    /// Steps that are recorded at present.
    pub(super) fn n_recorded(&self) -> usize {
        self.shapes.values().filter(|shape| shape.step.is_some()).count()
    }

    /// Replays the step that `pass` and `ids` are, or records it if it has come up often enough. `None` where it is to be
    /// run.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) when the device fails.
    pub(super) fn step(&mut self, gpt: &Gpt, ids: &Ints, pass: &mut Pass<'_>) -> Result<Option<Stepped>> {
        if ids.host().len() > MAX_ROWS {
            return Ok(None);
        }
        let Some((_, sizes)) = pass.uploads() else { return Ok(None) };
        if self.shape(&sizes).step.is_some() && has_moved(pass, &self.pools) {
            tracing::warn!("the KV cache lies elsewhere now: recorded steps are dropped");
            self.forget();
        }
        let can_fail = self.n_failures < MAX_FAILURES;
        let shape = self.shape(&sizes);
        if let Some(step) = &mut shape.step {
            let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
            let uploads: Vec<_> = std::iter::once(Upload::Ints(ids)).chain(uploads).collect();
            return step.again(&uploads).map(Some);
        }
        shape.n_runs += 1;
        if shape.n_runs <= RUNS_BEFORE || !can_fail {
            return Ok(None);
        }
        let pools = addresses(pass);
        match RecordedStep::new(gpt, ids, pass) {
            Ok(step) => {
                let stepped = step.replay()?;
                if has_moved(pass, &pools) {
                    // What was done is what the step does, but once more it would read where the pools were before.
                    tracing::warn!("the KV cache moved while a step was recorded: recorded steps are dropped");
                    self.forget();
                    self.n_failures += 1;
                } else {
                    self.keep(&sizes, step, pools);
                }
                Ok(Some(stepped))
            }
            Err(error) => {
                tracing::warn!(%error, "a step could not be recorded, and is run as it is");
                self.n_failures += 1;
                self.shape(&sizes).n_runs = 0;
                pass.store_apart();
                Ok(None)
            }
        }
    }

    /// Keeps a step that reads and writes `pools`. Steps that were recorded for others go.
    fn keep(&mut self, sizes: &[usize], step: RecordedStep, pools: Vec<Option<Address>>) {
        if self.pools != pools {
            self.forget();
            self.pools = pools;
        }
        self.shape(sizes).step = Some(step);
    }

    /// Drops every step, as if none of its shape had come up.
    fn forget(&mut self) {
        self.shapes.clear();
    }

    /// What is known of the shape of a step with these `sizes`.
    fn shape(&mut self, sizes: &[usize]) -> &mut Shape {
        self.clock += 1;
        if self.shapes.len() == MAX_SHAPES
            && !self.shapes.contains_key(sizes)
            && let Some(oldest) = self.shapes.iter().min_by_key(|(_, shape)| shape.last_used)
        {
            let oldest = oldest.0.clone();
            self.shapes.remove(&oldest);
        }
        let shape = self.shapes.entry(sizes.to_vec()).or_default();
        shape.last_used = self.clock;
        shape
    }
}

impl RecordedStep {
    /// Records what `pass` does. What it made is there after [`replay`](Self::replay).
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) where it cannot be recorded. The pools are as they were. The device counts them as unreadable
    /// until something is written to them that reads nothing of them ([`Pass::store_apart`]).
    fn new(gpt: &Gpt, ids: &Ints, pass: &mut Pass<'_>) -> Result<Self> {
        // All of them, since an upload cannot be recorded.
        let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
        let uploads: Vec<Upload<'_>> = std::iter::once(Upload::Ints(ids)).chain(uploads).collect();
        let staging = StagingBuffer::new(&uploads, &gpt.device());
        let sizes = buffer_sizes(gpt, ids.host().len());
        let (recording, output) = Recording::new(&gpt.device(), &sizes, || {
            let hidden = gpt.run(ids.tensor(), pass);
            #[cfg(test)]
            tests::sabotage(pass, &gpt.device());
            let logits = makes_logits(ids.host().len()).then(|| gpt.logits(hidden.clone()));
            Stepped { hidden, logits }
        })?;
        Ok(Self { recording, staging, output })
    }

    /// The step for other tokens elsewhere.
    fn again(&mut self, uploads: &[Upload<'_>]) -> Result<Stepped> {
        self.staging.overwrite(uploads);
        self.replay()
    }

    #[expect(unsafe_code, reason = "a recording knows addresses, not tensors")]
    fn replay(&self) -> Result<Stepped> {
        // SAFETY: what the step reads and writes are the weights and pools of its `Stepper`, which has both for as long as its
        // recordings, and drops these when pools have moved; and its own places and output. The stepper is borrowed
        // mutably, so nobody else runs anything over its pools.
        unsafe { self.recording.replay() }?;
        Ok(self.output.clone())
    }
}

/// Whether a recorded step makes the logits of its rows.
fn makes_logits(n_rows: usize) -> bool {
    n_rows <= MAX_LOGIT_ROWS
}

/// Bytes of the buffers that a step of `n_rows` makes.
fn buffer_sizes(gpt: &Gpt, n_rows: usize) -> Vec<usize> {
    let config = gpt.config();
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let mut widths = vec![config.d_model, q_width, q_width + 2 * kv_width, config.d_ff, 2 * config.d_ff];
    if makes_logits(n_rows) {
        widths.push(config.vocab_size);
    }
    widths.into_iter().map(|width| n_rows * width * size_of::<f32>()).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::cell::{Cell, RefCell};

    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::{
        TokenId,
        config::{GptConfig, Sizes},
        kv_cache::{PageTable, StepPart},
        ops::KvDtype,
        software_adapter::gpu,
        stepper::Stepper,
    };

    thread_local! {
        /// Runs until one takes memory that those before it did not.
        static RUNS_TO_SABOTAGE: Cell<usize> = const { Cell::new(0) };
        /// Runs until one after which somebody else holds the pools.
        static RUNS_TO_HOLD: Cell<usize> = const { Cell::new(0) };
        static HELD: RefCell<Vec<Tensor<2>>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn sabotage(pass: &mut Pass<'_>, device: &Device) {
        let n = RUNS_TO_HOLD.get();
        RUNS_TO_HOLD.set(n.saturating_sub(1));
        if n == 1 {
            HELD.set(pass.paged_step().unwrap().hold());
        }
        let n = RUNS_TO_SABOTAGE.get();
        RUNS_TO_SABOTAGE.set(n.saturating_sub(1));
        if n == 1 {
            let more = Tensor::<2>::ones([3000, 1001], device) * 2.0;
            // Runs while it is recorded, which ends what is waited for here.
            let _ = more.try_into_data();
        }
    }

    #[test]
    fn a_step_that_cannot_be_recorded_is_run() {
        let Some(device) = gpu() else { return };
        for config in [GptConfig::llama(sizes()), GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() })] {
            let mut twins = Twins::new(&config, &device);
            twins.step(&[5; 20]);
            twins.step(&[6]);
            twins.step(&[7]);
            RUNS_TO_SABOTAGE.set(3);
            assert_eq!(twins.step(&[8]), 0, "was recorded");
            assert_eq!(RUNS_TO_SABOTAGE.get(), 0);
            assert_eq!([9, 10, 11, 12].map(|id| twins.step(&[id])), [0, 0, 1, 1]);
        }
    }

    fn sizes() -> Sizes {
        Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 }
    }

    /// The same steps with recording and without it.
    struct Twins {
        steppers: [Stepper; 2],
        tables: [PageTable; 2],
    }

    impl Twins {
        fn new(config: &GptConfig, device: &Device) -> Self {
            let gpt = Gpt::init(config, 1, device).unwrap();
            let mut steppers = [0, 1].map(|_| Stepper::new(gpt.clone(), 8, KvDtype::F32));
            steppers[0].record();
            let tables = steppers.each_ref().map(|stepper| stepper.cache().table());
            Self { steppers, tables }
        }

        /// Compares what comes out of a step; gives how many are recorded then.
        fn step(&mut self, token_ids: &[TokenId]) -> usize {
            let [recorded, eager] = [0, 1].map(|which| {
                let parts = &mut [StepPart { table: &mut self.tables[which], n_new: token_ids.len() }];
                let stepped = self.steppers[which].step(token_ids, parts).unwrap();
                let logits = self.steppers[which].logits(&stepped, &[token_ids.len() - 1]);
                logits.into_data().try_into_vec::<f32>().unwrap()
            });
            assert_eq!(recorded, eager);
            self.steppers[0].n_recorded()
        }
    }

    /// Pools that somebody else holds are not changed in place, but copied: by a step that is not recorded, and by the copy
    /// of a page.
    #[test]
    fn steps_that_were_recorded_for_other_memory_are_dropped() {
        let Some(device) = gpu() else { return };
        for copies_page in [false, true] {
            let mut twins = Twins::new(&GptConfig::llama(sizes()), &device);
            twins.step(&[5; 20]);
            assert_eq!([6, 7, 8, 9].map(|id| twins.step(&[id])), [0, 0, 1, 1]);
            let held = twins.steppers[0].cache.hold();
            let forks = copies_page.then(|| twins.tables.each_ref().map(PageTable::fork));
            if !copies_page {
                twins.step(&[3; 5]);
            }
            assert_eq!([10, 11, 12, 13].map(|id| twins.step(&[id])), [0, 0, 1, 1], "copies a page: {copies_page}");
            drop((held, forks));
            assert_eq!([14, 15].map(|id| twins.step(&[id])), [1, 1]);
        }
    }

    #[test]
    fn a_step_whose_memory_moves_while_it_is_recorded_is_dropped() {
        let Some(device) = gpu() else { return };
        // Held after the first run, the second copies; after the second, the one that is recorded does.
        for n_runs in [1, 2] {
            let mut twins = Twins::new(&GptConfig::llama(sizes()), &device);
            twins.step(&[5; 20]);
            twins.step(&[6]);
            twins.step(&[7]);
            RUNS_TO_HOLD.set(n_runs);
            assert_eq!(twins.step(&[8]), 0, "held after {n_runs} runs");
            HELD.take();
            assert_eq!([9, 10, 11, 12].map(|id| twins.step(&[id])), [0, 0, 1, 1]);
        }
    }

    #[test]
    fn steps_of_many_rows_are_not_recorded() {
        let Some(device) = gpu() else { return };
        let sizes =
            Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 1, n_heads: 2, n_kv_heads: 2, d_model: 16, d_ff: 16 };
        let gpt = Gpt::init(&GptConfig::llama(sizes), 1, &device).unwrap();
        for (n_rows, n_recorded) in [(MAX_ROWS, 1), (MAX_ROWS + 1, 0)] {
            let mut stepper = Stepper::new(gpt.clone(), n_rows, KvDtype::F32);
            stepper.record();
            let mut tables: Vec<_> = (0..n_rows).map(|_| stepper.cache().table()).collect();
            for id in 0..4 {
                let mut parts: Vec<_> = tables.iter_mut().map(|table| StepPart { table, n_new: 1 }).collect();
                stepper.step(&vec![id; n_rows], &mut parts).unwrap();
            }
            assert_eq!(stepper.n_recorded(), n_recorded, "{n_rows} rows");
        }
    }
}
