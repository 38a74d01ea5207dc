//! A model and its cache, step by step.
//!
//! On a GPU, steps that only decode are recorded once they have come up a few times, and done again at a word from then
//! on: telling the GPU of each launch takes the processor longer than many a launch takes. Such a step is written down
//! with a place for what is different in each: token ids, slots, tables of pages, positions. Steps are alike if they have
//! as many rows and, rounded up, as many pages.

use std::collections::HashMap;

use burn::tensor::Tensor;

use crate::{
    TokenId,
    attention::{AttentionContext, Pass},
    config::{GptConfig, Positions},
    error::{Error, Result},
    gpt::Gpt,
    kv_cache::{KvCache, PagedStep, StepPart},
    ops::{self, Address, Ints, KvDtype, Places, Recording, Upload},
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

/// A model with its cache.
#[derive(Debug)]
pub struct Stepper {
    // First, so that it goes first: recordings know where the others are.
    recorded: Option<RecordedSteps>,
    gpt: Gpt,
    cache: KvCache,
}

/// Recorded steps of one model and one cache, by shape.
#[derive(Debug, Default)]
struct RecordedSteps {
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
    places: Places,
    output: Stepped,
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
        Self { recorded: None, gpt, cache }
    }

    /// From now on, steps that come up again are recorded, where this is a GPU.
    pub fn record(&mut self) {
        if ops::is_gpu(&self.gpt.device()) {
            self.recorded.get_or_insert_default();
        }
    }

    /// Forgets what is recorded, and records no more.
    pub fn stop_recording(&mut self) {
        self.recorded = None;
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
        let shapes = self.recorded.iter().flat_map(|recorded| recorded.shapes.values());
        shapes.filter(|shape| shape.step.is_some()).count()
    }

    /// Appends tokens to sequences: `token_ids` are those of all `parts`, one part after the other, at least one.
    ///
    /// # Errors
    /// [`Error::Param`] when there are not as many ids as `parts` say, or one is beyond the vocabulary, or a sequence beyond
    /// the positions that the model has; [`Error::Execution`] when the pages do not suffice, or the device fails.
    pub fn step(&mut self, token_ids: &[TokenId], parts: &mut [StepPart<'_>]) -> Result<Stepped> {
        let Self { recorded, gpt, cache } = self;
        check(gpt.config(), token_ids, parts)?;
        let device = gpt.device();
        let step = cache.step(parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        let mut pass = Pass::new(gpt.config(), AttentionContext::Paged(step), &device);
        let ids = Ints::new(token_ids.iter().map(|&id| id as i32).collect(), &device);
        let run = |mut pass: Pass<'_>| Ok(Stepped { hidden: gpt.run(ids.tensor(), &mut pass), logits: None });
        let Some(steps) = recorded.as_mut().filter(|_| token_ids.len() <= MAX_ROWS) else { return run(pass) };
        let Some((_, sizes)) = pass.uploads() else { return run(pass) };
        if steps.shape(&sizes).step.is_some() && has_moved(&mut pass, &steps.pools) {
            tracing::warn!("the KV cache lies elsewhere now: recorded steps are dropped");
            steps.forget();
        }
        let shape = steps.shape(&sizes);
        if let Some(step) = &mut shape.step {
            let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
            return step.again(&std::iter::once(Upload::Ints(&ids)).chain(uploads).collect::<Vec<_>>());
        }
        shape.n_runs += 1;
        if shape.n_runs <= RUNS_BEFORE {
            return run(pass);
        }
        if steps.n_failures == MAX_FAILURES {
            return run(pass);
        }
        let pools = addresses(&mut pass);
        match RecordedStep::new(gpt, &ids, &mut pass) {
            Ok(step) => {
                let stepped = step.replay()?;
                if has_moved(&mut pass, &pools) {
                    // What was done is what the step does, but once more it would read where the pools were before.
                    tracing::warn!("the KV cache moved while a step was recorded: recorded steps are dropped");
                    steps.forget();
                    steps.n_failures += 1;
                } else {
                    steps.keep(&sizes, step, pools);
                }
                Ok(stepped)
            }
            Err(error) => {
                tracing::warn!(%error, "a step could not be recorded, and is run as it is");
                steps.n_failures += 1;
                steps.shape(&sizes).n_runs = 0;
                pass.store_apart();
                run(pass)
            }
        }
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

/// Where the pools lie that `pass` writes to.
fn addresses(pass: &mut Pass<'_>) -> Vec<Option<Address>> {
    pass.paged_step().map(PagedStep::addresses).unwrap_or_default()
}

/// Whether these pools lie elsewhere than at `addresses`.
fn has_moved(pass: &mut Pass<'_>, addresses: &[Option<Address>]) -> bool {
    pass.paged_step().is_some_and(|step| step.has_moved(addresses))
}

impl RecordedSteps {
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
    /// [`Error::Execution`] where it cannot be recorded. The pools are as they were. The device counts them as unreadable
    /// until something is written to them that reads nothing of them ([`Pass::store_apart`]).
    fn new(gpt: &Gpt, ids: &Ints, pass: &mut Pass<'_>) -> Result<Self> {
        // All of them, since an upload cannot be recorded.
        let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
        let uploads: Vec<Upload<'_>> = std::iter::once(Upload::Ints(ids)).chain(uploads).collect();
        let places = Places::new(&uploads, &gpt.device());
        let sizes = buffer_sizes(gpt, ids.host().len());
        let (recording, output) = Recording::new(&gpt.device(), &sizes, || {
            let hidden = gpt.run(ids.tensor(), pass);
            #[cfg(test)]
            tests::sabotage(pass, &gpt.device());
            let logits = makes_logits(ids.host().len()).then(|| gpt.logits(hidden.clone()));
            Stepped { hidden, logits }
        })?;
        Ok(Self { recording, places, output })
    }

    /// The step for other tokens elsewhere.
    fn again(&mut self, uploads: &[Upload<'_>]) -> Result<Stepped> {
        self.places.overwrite(uploads);
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

    use burn::tensor::Device;

    use super::*;
    use crate::{config::Sizes, generate::token_tensor, kv_cache::PageTable, software_adapter::gpu};

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
