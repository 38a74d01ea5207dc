//! Decoding steps that are captured as GPU graphs and replayed.

use std::collections::HashMap;

use burn::tensor::{Int, Tensor};

use super::{
    StepOutput,
    step_ahead::{NextStep, StepAhead},
};
use crate::{
    decode::read_logits::TopTokens,
    error::Result,
    gpt::{Gpt, forward_pass::ForwardPass, kv_cache::PagedStep},
    ops::{self, Address, CapturedGraph, Ints, StagingBuffer, Upload, packed},
};

/// Steps of one shape that run before the next is captured. Capturing takes as long as three steps.
const RUNS_BEFORE: u32 = 2;
/// Maximum number of graphs; beyond this, the least recently used is dropped. Each graph keeps the memory of its step.
const MAX_SHAPES: usize = 32;
/// Failed captures after which no more are tried.
const MAX_FAILURES: u32 = 3;
/// Most rows of a captured step. More rows run longer than their launch takes, and products of many rows use memory that would
/// have to be reserved beforehand.
const MAX_ROWS: usize = 127;
/// Most rows of a captured step whose graph includes the logits. For more rows, launching their kernels takes a small share of
/// the time.
const MAX_LOGIT_ROWS: usize = 64;
/// Bytes of logits that all graphs together keep, at most; beyond this, logits are computed outside of the graph.
const MAX_LOGIT_BYTES: usize = 256 << 20;

/// The captured steps of one model and one cache, by shape.
#[derive(Debug, Default)]
pub(super) struct StepGraphs {
    shapes: HashMap<Vec<usize>, Shape>,
    /// The addresses of the cache's pools at capture: every graph reads and writes there.
    pools: Vec<Option<Address>>,
    clock: u64,
    n_failures: u32,
}

#[derive(Debug, Default)]
struct Shape {
    n_runs: u32,
    last_used: u64,
    step: Option<StepGraph>,
}

/// A captured step.
#[derive(Debug)]
struct StepGraph {
    graph: CapturedGraph,
    /// The buffer that the graph reads: token ids, then the rest in the order of [`ForwardPass::uploads`].
    staging: StagingBuffer,
    /// The numbers of all rows, which the selection of top tokens reads.
    _rows: Tensor<1, Int>,
    output: StepOutput,
}

/// What a step's graph computes after the hidden states.
#[derive(Clone, Copy, Debug)]
struct Ending {
    has_logits: bool,
    /// Most likely tokens of each row that are selected; 0 for none.
    n_top: usize,
}

/// The addresses of the pools that `pass` writes to.
fn addresses(pass: &mut ForwardPass<'_>) -> Vec<Option<Address>> {
    pass.paged_step().map(PagedStep::addresses).unwrap_or_default()
}

/// Whether these pools are no longer at `addresses`.
fn has_moved(pass: &mut ForwardPass<'_>, addresses: &[Option<Address>]) -> bool {
    pass.paged_step().is_some_and(|step| step.has_moved(addresses))
}

impl StepGraphs {
    /// The number of captured steps.
    pub(super) fn n_graphs(&self) -> usize {
        self.shapes.values().filter(|shape| shape.step.is_some()).count()
    }

    /// Replays the step of `pass` and `ids`, or captures it if steps of its shape have occurred often enough. `None` if the
    /// caller is to run it. `n_top` most likely tokens of each row are expected to be read; 0 for none. `ahead` is a step that was
    /// launched already, perhaps this one.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if the device fails.
    pub(super) fn step(
        &mut self,
        gpt: &Gpt,
        ids: &Ints,
        pass: &mut ForwardPass<'_>,
        (n_top, ahead): (usize, Option<StepAhead>),
    ) -> Result<Option<StepOutput>> {
        let n_rows = ids.host().len();
        if n_rows > MAX_ROWS {
            return Ok(None);
        }
        let Some((_, launch_sizes)) = pass.uploads() else { return Ok(None) };
        let sizes = with_top(&launch_sizes, n_rows, n_top);
        if self.shape(&sizes).step.is_some() && has_moved(pass, &self.pools) {
            tracing::warn!("the KV cache has moved: dropping captured steps");
            self.forget();
        }
        let can_fail = self.n_failures < MAX_FAILURES;
        let shape = self.shape(&sizes);
        if let Some(step) = &mut shape.step {
            let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
            let uploads: Vec<_> = std::iter::once(Upload::Ints(ids)).chain(uploads).collect();
            let numbers = packed(&uploads);
            if let Some(output) = ahead.and_then(|ahead| ahead.output_for(&launch_sizes, &numbers)) {
                return Ok(Some(output));
            }
            return step.replay_with(numbers).map(Some);
        }
        shape.n_runs += 1;
        if shape.n_runs <= RUNS_BEFORE || !can_fail {
            return Ok(None);
        }
        let pools = addresses(pass);
        let has_logits = self.has_room_for_logits(n_rows, gpt.config().vocab_size);
        match StepGraph::new(gpt, ids, pass, Ending { has_logits, n_top }) {
            Ok(step) => {
                let output = step.replay()?;
                if has_moved(pass, &pools) {
                    // The step itself is right, but a replay would use the old addresses.
                    tracing::warn!("the KV cache moved during a capture: dropping captured steps");
                    self.forget();
                    self.n_failures += 1;
                } else {
                    self.keep(&sizes, step, pools);
                }
                Ok(Some(output))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot capture a step; it runs without a graph");
                self.n_failures += 1;
                self.shape(&sizes).n_runs = 0;
                pass.disable_fused_append();
                Ok(None)
            }
        }
    }

    /// Replays `next`, if such a step is captured, with the token ids in `top [n_rows, 2]`, whose step must be the last one: its
    /// result is overwritten. `top` may be part of that.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if the device fails.
    pub(super) fn launch_ahead(&mut self, gpt: &Gpt, next: NextStep, top: &TopTokens) -> Result<Option<StepAhead>> {
        let sizes = with_top(&next.sizes, next.n_rows, 1);
        let shape = self.shapes.get_mut(&sizes);
        let Some(step) = shape.and_then(|shape| shape.step.as_mut()) else { return Ok(None) };
        step.staging.overwrite(next.numbers.clone());
        step.staging.take_ids(top.ids());
        let output = step.replay()?;
        // Or a part of it would wait for what is launched next.
        ops::flush(&gpt.device())?;
        Ok(Some(next.launched(output)))
    }

    /// Keeps a step that reads and writes `pools`. Steps captured for other pools are dropped.
    fn keep(&mut self, sizes: &[usize], step: StepGraph, pools: Vec<Option<Address>>) {
        if self.pools != pools {
            self.forget();
            self.pools = pools;
        }
        self.shape(sizes).step = Some(step);
    }

    /// Whether the graph of a step of `n_rows` rows may include their logits.
    fn has_room_for_logits(&self, n_rows: usize, vocab_size: usize) -> bool {
        let steps = self.shapes.values().filter_map(|shape| shape.step.as_ref());
        let n_kept: usize =
            steps.filter_map(|step| step.output.logits.as_ref()).map(|logits| logits.shape().num_elements()).sum();
        n_rows <= MAX_LOGIT_ROWS && (n_kept + n_rows * vocab_size) * size_of::<f32>() <= MAX_LOGIT_BYTES
    }

    /// Drops all steps and the counts of their shapes.
    fn forget(&mut self) {
        self.shapes.clear();
    }

    /// The entry of the shape with these `sizes`.
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

impl StepGraph {
    /// Captures `pass`. Its output is valid after [`replay`](Self::replay).
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if it cannot be captured. The pools are unchanged, but the device
    /// treats them as unreadable until an operation writes to them without reading them ([`ForwardPass::disable_fused_append`]).
    fn new(gpt: &Gpt, ids: &Ints, pass: &mut ForwardPass<'_>, ending: Ending) -> Result<Self> {
        // Before the capture, since an upload cannot be captured.
        let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
        let uploads: Vec<Upload<'_>> = std::iter::once(Upload::Ints(ids)).chain(uploads).collect();
        let staging = StagingBuffer::new(&uploads, &gpt.device());
        let n_rows = ids.host().len();
        let numbers: Vec<i32> = (0..n_rows as i32).collect();
        let rows = Tensor::<1, Int>::from_data(numbers.as_slice(), &gpt.device());
        let sizes = buffer_sizes(gpt, n_rows, ending);
        let (graph, output) = CapturedGraph::new(&gpt.device(), &sizes, || {
            let hidden = gpt.run(ids.tensor(), pass);
            #[cfg(test)]
            tests::sabotage(pass, &gpt.device());
            let logits = ending.has_logits.then(|| gpt.logits(hidden.clone()));
            let top = logits.clone().filter(|_| ending.n_top > 0);
            let top = top.map(|logits| TopTokens::select(logits, rows.clone(), ending.n_top));
            StepOutput { hidden, logits, top, places: None }
        })?;
        Ok(Self { graph, staging, _rows: rows, output })
    }

    /// Replays the step with other inputs.
    fn replay_with(&mut self, numbers: Vec<i32>) -> Result<StepOutput> {
        self.staging.overwrite(numbers);
        self.replay()
    }

    #[expect(unsafe_code, reason = "a graph holds addresses, not tensors")]
    fn replay(&self) -> Result<StepOutput> {
        // SAFETY: the step reads and writes the weights and pools of its `ModelRunner`, which owns them for as long as its graphs
        // and drops the graphs when pools have moved, and its own staging buffer and output. The runner is borrowed mutably, so
        // nothing else uses its pools.
        unsafe { self.graph.replay() }?;
        Ok(self.output.clone())
    }
}

/// What identifies a graph: the sizes of its launches, and the number of tokens that it selects.
fn with_top(sizes: &[usize], n_rows: usize, n_top: usize) -> Vec<usize> {
    [sizes, &[if n_rows <= MAX_LOGIT_ROWS { n_top } else { 0 }]].concat()
}

/// Bytes of the buffers that a step of `n_rows` allocates.
fn buffer_sizes(gpt: &Gpt, n_rows: usize, ending: Ending) -> Vec<usize> {
    let config = gpt.config();
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let widths = [config.d_model, q_width, q_width + 2 * kv_width, config.d_ff, 2 * config.d_ff];
    let logits = ending.has_logits.then_some(config.vocab_size);
    let mut sizes: Vec<usize> =
        widths.into_iter().chain(logits).map(|width| n_rows * width * size_of::<f32>()).collect();
    if ending.n_top > 0 {
        sizes.extend(TopTokens::buffer_sizes([n_rows, config.vocab_size], ending.n_top));
    }
    sizes
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
        decode::model_runner::ModelRunner,
        gpt::kv_cache::{PageTable, StepPart},
        ops::KvDtype,
        test_gpu::gpu,
    };

    thread_local! {
        /// Counts down the runs of a step to the one in which `sabotage` takes memory that earlier runs did not.
        static RUNS_TO_SABOTAGE: Cell<usize> = const { Cell::new(0) };
        /// Counts down the runs of a step to the one after which `HELD` holds the pools' tensors.
        static RUNS_TO_HOLD: Cell<usize> = const { Cell::new(0) };
        static HELD: RefCell<Vec<Tensor<2>>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn sabotage(pass: &mut ForwardPass<'_>, device: &Device) {
        let n = RUNS_TO_HOLD.get();
        RUNS_TO_HOLD.set(n.saturating_sub(1));
        if n == 1 {
            HELD.set(pass.paged_step().unwrap().hold());
        }
        let n = RUNS_TO_SABOTAGE.get();
        RUNS_TO_SABOTAGE.set(n.saturating_sub(1));
        if n == 1 {
            let more = Tensor::<2>::ones([3000, 1001], device) * 2.0;
            // Read back so that it is executed during the capture: operations whose results are dropped are not
            // executed. The read may fail.
            let _ = more.try_into_data();
        }
    }

    #[test]
    fn step_runs_eagerly_if_graph_capture_fails() {
        let Some(device) = gpu() else { return };
        for config in [GptConfig::llama(sizes()), GptConfig::gpt2(Sizes { n_kv_heads: 4, ..sizes() })] {
            let mut twins = Twins::new(&config, &device);
            twins.step(&[5; 20]);
            twins.step(&[6]);
            twins.step(&[7]);
            RUNS_TO_SABOTAGE.set(3);
            assert_eq!(twins.step(&[8]), 0, "was captured");
            assert_eq!(RUNS_TO_SABOTAGE.get(), 0);
            assert_eq!([9, 10, 11, 12].map(|id| twins.step(&[id])), [0, 0, 1, 1]);
        }
    }

    fn sizes() -> Sizes {
        Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 32, d_ff: 48 }
    }

    /// The same steps in two runners, one with graph capture and one without.
    struct Twins {
        runners: [ModelRunner; 2],
        tables: [PageTable; 2],
    }

    impl Twins {
        fn new(config: &GptConfig, device: &Device) -> Self {
            let gpt = Gpt::init(config, 1, device).unwrap();
            let mut runners = [0, 1].map(|_| ModelRunner::new(gpt.clone(), 8, KvDtype::F32).unwrap());
            runners[0].capture_steps();
            let tables = runners.each_ref().map(|runner| runner.cache().table());
            Self { runners, tables }
        }

        /// Runs a step in both runners and compares the logits. Returns the number of captured steps.
        fn step(&mut self, token_ids: &[TokenId]) -> usize {
            let [captured, eager] = [0, 1].map(|which| {
                let parts = &mut [StepPart::new(&mut self.tables[which], token_ids.len())];
                let output = self.runners[which].step(token_ids, parts).unwrap();
                let logits = self.runners[which].logits(&output, &[token_ids.len() - 1]);
                logits.into_data().try_into_vec::<f32>().unwrap()
            });
            assert_eq!(captured, eager);
            self.runners[0].n_graphs()
        }
    }

    /// Pools whose tensors are also held elsewhere are copied instead of changed in place, both by a step that runs
    /// eagerly and by the copy of a page.
    #[test]
    fn captured_graphs_are_dropped_when_kv_pools_are_copied() {
        let Some(device) = gpu() else { return };
        for copies_page in [false, true] {
            let mut twins = Twins::new(&GptConfig::llama(sizes()), &device);
            twins.step(&[5; 20]);
            assert_eq!([6, 7, 8, 9].map(|id| twins.step(&[id])), [0, 0, 1, 1]);
            let held = twins.runners[0].cache.hold();
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
    fn graph_is_dropped_if_kv_pools_move_during_its_capture() {
        let Some(device) = gpu() else { return };
        // If the pools are held after the first warm-up run, the second one copies them; if after the second, the
        // captured run does.
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
    fn steps_of_more_than_max_rows_are_not_captured() {
        let Some(device) = gpu() else { return };
        let sizes =
            Sizes { vocab_size: 97, max_seq_len: 64, n_layers: 1, n_heads: 2, n_kv_heads: 2, d_model: 16, d_ff: 16 };
        let gpt = Gpt::init(&GptConfig::llama(sizes), 1, &device).unwrap();
        for (n_rows, n_graphs) in [(MAX_ROWS, 1), (MAX_ROWS + 1, 0)] {
            let mut runner = ModelRunner::new(gpt.clone(), n_rows, KvDtype::F32).unwrap();
            runner.capture_steps();
            let mut tables: Vec<_> = (0..n_rows).map(|_| runner.cache().table()).collect();
            for id in 0..4 {
                let mut parts: Vec<_> = tables.iter_mut().map(|table| StepPart::new(table, 1)).collect();
                runner.step(&vec![id; n_rows], &mut parts).unwrap();
            }
            assert_eq!(runner.n_graphs(), n_graphs, "{n_rows} rows");
        }
    }
}
