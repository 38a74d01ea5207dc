//! How fast training is here: the steps of a run, timed part by part.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Device};
use hearth_model::{
    TokenId,
    ops::{self, OpTime, Pass},
    system::memory,
};
use serde::Serialize;

use crate::{
    config::TrainConfig,
    data::{
        loader::{Loader, LoaderSettings, Prefetcher, RowOrder, RowSource, mix},
        shard::Tokens,
    },
    eval::{Windows, read_numbers, score},
    objective::StepIndex,
    plan::device_watch::DeviceWatch,
    run::{
        learner::{Learner, LossGradients},
        schedule::{Rates, RunSize, Schedule},
        trainer::first_model,
        tree_sum::TreeSum,
        utilization::Utilization,
    },
};

/// Steps before the ones that are timed: the first ones find no memory to reuse.
const WARMUP_STEPS: usize = 3;

/// Number of random tokens, used if there is no data.
const RANDOM_TOKENS: usize = 1 << 20;

/// Measurements. Times are medians over the steps, in milliseconds per step.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Values that are trained.
    pub n_params: usize,
    /// Tokens of a step.
    pub tokens_per_step: usize,
    /// Steps that were timed.
    pub steps: usize,
    /// Tokens per second, by the median step.
    pub tok_per_sec: f64,
    /// Share of the device's arithmetic rate that is used at this speed, where that can be measured.
    pub mfu: Option<f64>,
    /// Multiply-adds of f32 that the device does in a second, in billions.
    pub gmadd_per_sec: Option<f64>,
    /// A whole step.
    pub ms_per_step: f64,
    /// Waiting for batches.
    pub data_ms: f64,
    /// Forward passes, loss included.
    pub forward_ms: f64,
    /// Backward passes, and the sum over micro-batches.
    pub backward_ms: f64,
    /// Clipping and the update.
    pub optimizer_ms: f64,
    /// The loss of one micro-batch without gradients, as evaluation computes it.
    pub eval_ms: f64,
    /// On a GPU, peak memory of tensors; on the CPU, peak memory of the process minus its memory before the model was
    /// created, if the system reports it.
    pub peak_bytes: Option<u64>,
    /// The memory after the last step.
    pub steady_bytes: Option<u64>,
    /// The time of each operation, if it was requested, longest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<OpRow>,
}

/// One operation's share of a step.
#[derive(Clone, Debug, Serialize)]
pub struct OpRow {
    /// Its name.
    pub name: &'static str,
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// Calls in a step.
    pub calls: usize,
    /// Milliseconds a step.
    pub ms: f64,
}

/// Times of one step.
#[derive(Clone, Copy, Debug, Default)]
struct StepTimes {
    data: Duration,
    forward: Duration,
    backward: Duration,
    optimizer: Duration,
    total: Duration,
}

/// Times a few training steps on `source`, starting from the model that a run with `config` begins with. `vocab_size`
/// is the data's. The trained model is discarded.
///
/// # Errors
/// The settings are invalid, there are too few tokens for the context, or the device fails.
pub fn bench(
    config: &TrainConfig,
    (source, vocab_size): (&RowSource, usize),
    device: &Device,
    n_steps: usize,
    with_ops: bool,
) -> Result<BenchReport> {
    ensure!(n_steps > 0, "the number of steps must be at least 1, got 0");
    config.validate()?;
    config.validate_on(device)?;
    memory::reset_peak();
    let watch = DeviceWatch::start(device);
    let before = memory::resident_bytes();
    let gpt = first_model(config, vocab_size, device)?.0;
    let routers = config.router_losses(gpt.config())?;
    let mut learner = Learner::new(gpt, config.optim.clone(), config.seed).with_router_losses(routers);
    let n_params = learner.n_params();
    let schedule = Schedule::new(config, RunSize::new(n_params, source, config.model.max_seq_len));
    let settings = LoaderSettings {
        seed: config.seed,
        seq_len: config.model.max_seq_len,
        micro_batch_size: config.data.micro_batch_size.rows(),
        order: RowOrder::RandomWindows,
        n_micro_batches: config.micro_steps(),
    };
    let mut batches = Prefetcher::new(&Loader::new(source, settings)?, 0..u64::MAX)?;
    let mut step = |learner: Learner, number: usize| {
        let rates = schedule.rates(number, &config.optim);
        let (learner, times) = timed_step(learner, config, &mut batches, (number, rates))?;
        anyhow::Ok((learner, times))
    };
    for number in 0..WARMUP_STEPS {
        learner = step(learner, number)?.0;
    }
    let mut times = Vec::with_capacity(n_steps);
    for number in WARMUP_STEPS..WARMUP_STEPS + n_steps {
        let (next, of_step) = step(learner, number)?;
        learner = next;
        times.push(of_step);
    }
    let since = |bytes: Option<u64>| Some(bytes?.saturating_sub(before?));
    let (peak_bytes, steady_bytes) = match watch {
        None => (since(memory::peak_resident_bytes()), since(memory::resident_bytes())),
        Some(watch) => (watch.peak(), ops::device_memory(device).map(|memory| memory.in_use)),
    };
    let mut ops = Vec::new();
    if with_ops {
        let (profiled, found) = ops::profile_training(|| step(learner, WARMUP_STEPS + n_steps));
        learner = profiled?.0;
        ops = found.into_iter().map(OpRow::new).collect();
    }
    let eval_ms = eval_ms(&learner, source, config)?;
    let utilization = Utilization::measure(&learner.gpt, config.model.max_seq_len)?;
    let ms_per_step = median(&times, |times| times.total);
    let tok_per_sec = config.tokens_per_step() as f64 / (ms_per_step / 1e3);
    Ok(BenchReport {
        n_params,
        tokens_per_step: config.tokens_per_step(),
        steps: n_steps,
        tok_per_sec,
        mfu: utilization.map(|utilization| utilization.at(tok_per_sec)),
        gmadd_per_sec: utilization.map(|utilization| utilization.products_per_second() / 1e9),
        ms_per_step,
        data_ms: median(&times, |times| times.data),
        forward_ms: median(&times, |times| times.forward),
        backward_ms: median(&times, |times| times.backward),
        optimizer_ms: median(&times, |times| times.optimizer),
        eval_ms,
        peak_bytes,
        steady_bytes,
        ops,
    })
}

impl OpRow {
    fn new(op: OpTime) -> OpRow {
        let pass = match op.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        };
        OpRow { name: op.name, pass, calls: op.count, ms: op.time.as_secs_f64() * 1e3 }
    }
}

/// Random tokens, for training without data: at least four rows of `seq_len`.
pub fn random_tokens(vocab_size: u32, seq_len: usize) -> RowSource {
    // The high half of the product maps 64 random bits onto the vocabulary.
    let token = |n: usize| ((u128::from(mix(n as u64)) * u128::from(vocab_size)) >> 64) as TokenId;
    let ids: Vec<_> = (0..RANDOM_TOKENS.max(4 * seq_len)).map(token).collect();
    Tokens::from_ids(ids, 0).into()
}

/// One step as [`Trainer::run`](crate::run::trainer::Trainer::run) takes it. The device finishes each part before the next is
/// timed.
fn timed_step(
    learner: Learner,
    config: &TrainConfig,
    batches: &mut Prefetcher,
    (step, rates): (usize, Rates),
) -> Result<(Learner, StepTimes)> {
    let index = StepIndex { step, total_weight: config.tokens_per_step() as f64, n_context_tokens: 0 };
    let device = learner.gpt.device();
    let finish = || device.sync().map_err(|error| anyhow::anyhow!("the device failed: {error:?}"));
    let mut times = StepTimes::default();
    let started = Instant::now();
    let mut tree = TreeSum::default();
    for micro_step in 0..config.micro_steps() {
        let part = Instant::now();
        let batch = batches.next().context("the loader ended")?;
        times.data += part.elapsed();
        let part = Instant::now();
        let losses = learner.forward(index, micro_step, &batch)?;
        finish()?;
        times.forward += part.elapsed();
        let part = Instant::now();
        tree.push(learner.backward(losses));
        finish()?;
        times.backward += part.elapsed();
    }
    let part = Instant::now();
    let LossGradients { loss, mut gradients, .. } = tree.finish().context("a step has at least one micro-batch")?;
    let grad_norm = learner.clip(&mut gradients)?;
    let [loss, _] = read_numbers([loss, grad_norm])?;
    ensure!(loss.is_finite(), "the loss of step {step} is {loss}");
    let learner = learner.update(gradients, rates);
    finish()?;
    times.optimizer = part.elapsed();
    times.total = started.elapsed();
    Ok((learner, times))
}

fn eval_ms(learner: &Learner, source: &RowSource, config: &TrainConfig) -> Result<f64> {
    let windows = Windows {
        batch_size: config.data.micro_batch_size.rows(),
        seq_len: config.model.max_seq_len,
        max_batches: Some(1),
    };
    let gpt = learner.gpt.valid().packed()?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        score(&gpt, source, windows)?;
        times.push(started.elapsed());
    }
    Ok(median(&times, |time| *time))
}

/// In milliseconds.
fn median<T>(times: &[T], of: impl Fn(&T) -> Duration) -> f64 {
    let mut times: Vec<_> = times.iter().map(of).collect();
    times.sort();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64) * 1e3
}
