//! The training loop, top to bottom: batch, loss, backward, clip, step, log, evaluate, save.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use hearth_model::{
    TokenId,
    attention::AttentionContext,
    generate::{GenerateOptions, generate},
    gpt::Gpt,
    sampling::SamplingParams,
    tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};

use crate::{
    config::{OptimSettings, TrainConfig},
    eval::{Score, Windows, read_floats, score},
    loader::{Batch, BatchIndex, Loader, mix},
    metrics::{EvalRecord, Reporter, StepRecord},
    optim::{AdamW, Gradients},
};

/// What a run trains on.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// Turns ids into text and back.
    pub tokenizer: &'a Tokenizer,
    /// The training split.
    pub train_ids: &'a [TokenId],
    /// The validation split.
    pub val_ids: &'a [TokenId],
    /// Bytes of text that the validation split's ids stand for, its first id left out: it is never predicted.
    pub val_bytes: usize,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The model after the last step.
    pub gpt: Gpt,
    /// Its loss over the whole validation split.
    pub val: Score,
    /// The evaluation whose model was saved last.
    pub best: Best,
    /// Tokens trained on per second, with evaluations, samples and saving left out.
    pub tok_per_sec: f64,
}

/// A run that is ready to start: everything that can be refused has been.
#[derive(Debug)]
pub struct Trainer<'a> {
    config: &'a TrainConfig,
    data: Data<'a>,
    device: Device,
    loader: Loader<'a>,
    learner: Learner,
}

impl<'a> Trainer<'a> {
    /// A new model with random weights, and its batches.
    ///
    /// # Errors
    /// Settings that make no model, splits too short for the context.
    pub fn new(config: &'a TrainConfig, data: Data<'a>, device: &Device) -> Result<Trainer<'a>> {
        let gpt_config = config.gpt_config(data.tokenizer.vocab_size())?;
        let n_val = data.val_ids.len();
        ensure!(n_val > 1, "the validation split must have at least 2 tokens, got {n_val}\nhint: a longer text");
        let loader = Loader::new(data.train_ids, config.data.micro_batch_size, config.model.max_seq_len, config.seed)?;
        // Autodiff comes first: gradients flow through what is made on this device, weights and inputs alike.
        let device = device.clone().autodiff();
        let learner = Learner::new(Gpt::init(&gpt_config, config.seed, &device)?, config.optim.clone());
        Ok(Trainer { config, data, device, loader, learner })
    }

    /// Values that will be trained.
    pub fn n_params(&self) -> usize {
        self.learner.gpt.config().n_params()
    }

    /// Trains to the last step. `save` is given the model, without autodiff, whenever an evaluation is the best so far.
    ///
    /// # Errors
    /// A device that fails, a loss that is not a number, whatever `save` reports.
    pub fn run(self, reporter: &mut Reporter, save: &mut dyn FnMut(&Gpt) -> Result<()>) -> Result<Outcome> {
        let Trainer { config, data, device, loader, mut learner } = self;
        let TrainConfig { seed, model, data: cut, schedule, eval, .. } = config;
        let windows = Windows { batch_size: cut.micro_batch_size, seq_len: model.max_seq_len };
        let mut best: Option<Best> = None;
        let mut last_val = None;
        let mut unread = Unread::default();
        let mut speed = Speed::new(config.tokens_per_step());

        for step in 0..schedule.max_steps {
            let done = step + 1;
            let is_due = |every: usize| every > 0 && done.is_multiple_of(every);
            let is_last = done == schedule.max_steps;
            let evaluates = is_last || is_due(eval.eval_every);
            let samples = eval.sample_every > 0 && (is_last || is_due(eval.sample_every));

            let started = Instant::now();
            if model.dropout > 0.0 {
                // What is dropped depends on the seed and the step alone, as the batches do.
                device.clone().inner().seed(mix(mix(*seed) ^ step as u64));
            }
            let micro_steps = 0..cut.grad_accum_steps;
            let batches: Vec<Batch> =
                micro_steps.map(|micro_step| loader.batch(BatchIndex { step, micro_step })).collect();
            let lr = schedule.lr_at(step);
            let losses;
            (learner, losses) = learner.step(&batches, lr)?;
            unread.push(UnreadStep { step: done, lr, losses });
            let reads = evaluates || samples || is_due(eval.log_every);
            let read = if reads { unread.read()? } else { Vec::new() };
            speed.add_step(started.elapsed());
            if reads {
                let tok_per_sec = speed.lap();
                reporter.steps(read.into_iter().map(|step| step.record(tok_per_sec)).collect())?;
            }

            if evaluates {
                let gpt = learner.gpt.valid();
                let val = score(&gpt, data.val_ids, windows)?;
                ensure!(val.loss.is_finite(), "the model of step {done} has a validation loss of {}", val.loss);
                let is_best = best.is_none_or(|best| val.loss < best.val_loss);
                if is_best {
                    save(&gpt)?;
                    best = Some(Best { step: done, val_loss: val.loss });
                }
                reporter.eval(EvalRecord {
                    step: done,
                    val_loss: val.loss,
                    val_perplexity: val.perplexity(),
                    val_bpb: val.bits_per_byte(data.val_bytes),
                    best: is_best,
                })?;
                last_val = Some(val);
            }
            if samples {
                reporter.sample(done, sample(&learner.gpt.valid(), data.tokenizer, config, done)?)?;
            }
        }

        // There was a step, or `new` had refused the settings; and the last step always evaluates.
        let (Some(val), Some(best)) = (last_val, best) else { bail!("no step was trained") };
        Ok(Outcome { gpt: learner.gpt.valid(), val, best, tok_per_sec: speed.overall() })
    }
}

/// A model in training: its weights and what its optimizer remembers.
#[derive(Clone, Debug)]
pub struct Learner {
    /// The model, on an autodiff device.
    pub gpt: Gpt,
    optim: OptimSettings,
    adamw: AdamW,
}

/// What a step found, still on the device: `[1]` each, without autodiff.
#[derive(Clone, Debug)]
pub struct StepLosses {
    /// Mean cross entropy over the step's batches, in nats per token.
    pub loss: Tensor<1>,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: Tensor<1>,
}

impl Learner {
    /// A model that has not been trained here yet. It must be on an autodiff device.
    pub fn new(gpt: Gpt, optim: OptimSettings) -> Learner {
        Learner { gpt, adamw: AdamW::new(optim.clone()), optim }
    }

    /// One update from the mean loss over `batches`, which must be of one size. Nothing is read back from the device.
    pub fn step(mut self, batches: &[Batch], lr: f64) -> Result<(Learner, StepLosses)> {
        let device = self.gpt.device().autodiff();
        let mut gradients = Gradients::default();
        let mut total: Option<Tensor<1>> = None;
        for batch in batches {
            let (inputs, targets) = batch.to_device(&device);
            let hidden = self.gpt.forward(inputs, AttentionContext::dense(batch.batch_size, batch.seq_len));
            // Gradients of the parts add up to the gradient of the mean.
            let loss = self.gpt.loss(hidden, targets).div_scalar(batches.len() as f64);
            let value = loss.clone().inner();
            total = Some(match total {
                Some(total) => total + value,
                None => value,
            });
            gradients.add(Gradients::from_backward(&self.gpt, loss.backward()));
        }
        let loss = total.context("a step needs at least one batch")?;
        let grad_norm = gradients.clip(self.optim.clip).context("no parameter of the model has a gradient")?;
        self.gpt = self.adamw.step(self.gpt, gradients, lr);
        Ok((self, StepLosses { loss, grad_norm }))
    }
}

/// The evaluation with the lowest loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Steps after which it was made.
    pub step: usize,
    /// Loss over the whole validation split, in nats per token.
    pub val_loss: f64,
}

/// Steps whose numbers are still on the device: reading them waits for it, so they are read together.
#[derive(Debug, Default)]
struct Unread(Vec<UnreadStep>);

#[derive(Debug)]
struct UnreadStep {
    step: usize,
    lr: f64,
    losses: StepLosses,
}

/// A step's numbers, on the host.
#[derive(Clone, Copy, Debug)]
struct ReadStep {
    step: usize,
    lr: f64,
    loss: f32,
    grad_norm: f32,
}

impl Unread {
    fn push(&mut self, step: UnreadStep) {
        self.0.push(step);
    }

    /// Reads all of them, in one read-back, and refuses a loss that is not a number: nothing that follows it would be one.
    fn read(&mut self) -> Result<Vec<ReadStep>> {
        let steps = std::mem::take(&mut self.0);
        let (losses, norms): (Vec<_>, Vec<_>) =
            steps.iter().map(|step| (step.losses.loss.clone(), step.losses.grad_norm.clone())).unzip();
        let numbers = read_floats(Tensor::cat([losses, norms].concat(), 0))?;
        let (losses, norms) = numbers.split_at(steps.len());
        let numbers = losses.iter().zip(norms);
        let read = steps.iter().zip(numbers).map(|(&UnreadStep { step, lr, .. }, (&loss, &grad_norm))| {
            ensure!(
                loss.is_finite() && grad_norm.is_finite(),
                "training diverged at step {step}: loss {loss}, gradient norm {grad_norm}, learning rate {lr:.2e}\nhint: \
                 a smaller `--lr`, a longer `--warmup` or a smaller `--clip`"
            );
            Ok(ReadStep { step, lr, loss, grad_norm })
        });
        read.collect()
    }
}

impl ReadStep {
    fn record(self, tok_per_sec: f64) -> StepRecord {
        let ReadStep { step, lr, loss, grad_norm } = self;
        StepRecord { step, loss, lr, grad_norm, tok_per_sec }
    }
}

/// Tokens per second of training alone. The device runs behind the host, so the clock is right where it was read back.
#[derive(Debug)]
struct Speed {
    tokens_per_step: usize,
    n_steps: usize,
    time: Duration,
    n_recent: usize,
    recent_time: Duration,
}

impl Speed {
    fn new(tokens_per_step: usize) -> Speed {
        Speed { tokens_per_step, n_steps: 0, time: Duration::ZERO, n_recent: 0, recent_time: Duration::ZERO }
    }

    fn add_step(&mut self, took: Duration) {
        self.n_steps += 1;
        self.time += took;
        self.n_recent += 1;
        self.recent_time += took;
    }

    /// The speed since the last lap.
    fn lap(&mut self) -> f64 {
        let rate = self.rate(self.n_recent, self.recent_time);
        (self.n_recent, self.recent_time) = (0, Duration::ZERO);
        rate
    }

    fn overall(&self) -> f64 {
        self.rate(self.n_steps, self.time)
    }

    fn rate(&self, n_steps: usize, time: Duration) -> f64 {
        (n_steps * self.tokens_per_step) as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// A text that the model makes up, started by a line break where the vocabulary has one, as nanoGPT does.
fn sample(gpt: &Gpt, tokenizer: &Tokenizer, config: &TrainConfig, step: usize) -> Result<String> {
    let prompt_ids = tokenizer.encode("\n", EncodeOptions::TEXT).unwrap_or_else(|_| vec![0]);
    let room = gpt.config().max_seq_len.saturating_sub(prompt_ids.len());
    let options = GenerateOptions {
        max_tokens: config.eval.sample_tokens.min(room),
        kv_dtype: None,
        sampling: SamplingParams { seed: mix(config.seed) ^ step as u64, ..SamplingParams::default() },
        eos_token_ids: tokenizer.eos().map(|eos| eos.id).into_iter().collect(),
    };
    let token_ids = generate(gpt, &prompt_ids, &options, |_| ControlFlow::Continue(()))?;
    Ok(tokenizer.decode(&token_ids, DecodeOptions { skip_special_tokens: true }))
}
