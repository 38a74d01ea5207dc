//! Times operations without waiting for each.

use std::time::{Duration, Instant};

use burn_cubecl::tensor::CubeTensor;

use super::{super::graph::CapturedGraph, Case, Gpu};

/// Launches of a case in a row, of which the last time is the wait for the device.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Launches in a captured chain.
    pub chain: usize,
    /// How long to repeat the chain before it counts: a card that was idle, as while a kernel compiles, has low clocks.
    pub warm: Duration,
    /// How long to repeat it then.
    pub time: Duration,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Median time of an operation, in seconds.
    pub median: f64,
    /// The shortest.
    pub least: f64,
    /// Samples.
    pub n: usize,
    /// The largest error, if the case knows its results.
    pub error: Option<f64>,
}

/// Time of the device between two waits, at least: waiting and reading take some tens of microseconds.
const LONG: f64 = 0.004;

impl Gpu {
    /// Waits until `output` is computed.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait(&self, output: &CubeTensor) -> anyhow::Result<()> {
        let mut first = output.handle.clone();
        let n_bytes = first.size_in_used();
        first = first.offset_end(n_bytes.saturating_sub(4));
        let read = self.client.read_one(first);
        read.map(drop).map_err(|error| anyhow::anyhow!("the device failed: {error:?}"))
    }

    fn read(&self, output: &CubeTensor) -> anyhow::Result<Vec<f32>> {
        let read = self.client.read_one(output.handle.clone());
        let bytes = read.map_err(|error| anyhow::anyhow!("the device failed: {error:?}"))?;
        Ok(burn_cubecl::cubecl::prelude::CubeElement::from_bytes(&bytes).to_vec())
    }
}

/// Captures a chain of the case's operations and times replays of it.
///
/// # Errors
/// If the device fails, or cannot capture.
pub fn time(gpu: &Gpu, case: &Case, effort: Effort) -> anyhow::Result<Timed> {
    let output = (case.run)();
    gpu.wait(&output)?;
    let error = match &case.error {
        Some(error) => Some(error(&gpu.read(&output)?)),
        None => None,
    };
    let sizes = [output.meta.shape().num_elements() * 4];
    drop(output);
    let device = gpu.device.clone().ok_or_else(|| anyhow::anyhow!("this client has no device of Burn's"))?;
    let (graph, output) = CapturedGraph::new(&device, &sizes, || {
        let mut last = (case.run)();
        for _ in 1..effort.chain {
            last = (case.run)();
        }
        last
    })?;
    let replay = || -> anyhow::Result<()> {
        #[expect(unsafe_code, reason = "a graph holds addresses, not tensors")]
        // SAFETY: the case holds its operands, and the output is held here; nothing else uses them meanwhile.
        unsafe { graph.replay() }?;
        Ok(())
    };
    let sample = |n: usize| -> anyhow::Result<f64> {
        let start = Instant::now();
        for _ in 0..n {
            replay()?;
        }
        gpu.wait(&output)?;
        Ok(start.elapsed().as_secs_f64())
    };
    // Wakes the device, and says how many chains are long enough.
    let n_chains = ((LONG / sample(1)?.min(sample(1)?)).ceil() as usize).clamp(1, 64);
    let per_operation = (n_chains * effort.chain) as f64;
    let begun = Instant::now();
    while begun.elapsed() < effort.warm {
        sample(n_chains)?;
    }
    let begun = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < 3 || begun.elapsed() < effort.time {
        samples.push(sample(n_chains)? / per_operation);
        if samples.len() >= 3 && begun.elapsed() > 4 * effort.time {
            break;
        }
    }
    samples.sort_by(f64::total_cmp);
    Ok(Timed { median: samples[samples.len() / 2], least: samples[0], n: samples.len(), error })
}
