//! The training loop, from top to bottom: batch, loss, backward, combine, clip, step, log, evaluate, save.

mod due;
mod evaluation;
mod same_run;
mod sample;
mod speed;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Device};
use hearth_model::{
    TokenId,
    digest::Digest,
    gpt::Gpt,
    ops::{self, Dtype},
    tokenizer::Tokenizer,
    weights::{
        DiskDtype, StagedDir,
        model_dir::{self, LoadOptions, SaveOptions},
    },
};

pub use self::speed::StepTime;
use self::{
    due::Due,
    same_run::{require_same_run, require_same_tokens},
    speed::Speed,
};
use crate::{
    adapter::{self, Adapted, SavedAdapter},
    checkpoint::{self, Best, Checkpoint, TrainState},
    config::{Objective, Rows, ScheduleKind, TrainConfig},
    eval::{Score, read_numbers},
    guard::Guard,
    init::initialize,
    interrupt::Interrupt,
    learner::{Learner, LossGradients, StepIndex},
    loader::{Batch, Loader, LoaderSettings, Prefetcher, RowOrder, RowSource},
    optim::Gradients,
    preference::{token_losses, token_losses_in_training, with_references},
    progress::{Pace, Reporter, StepRecord},
    run_dir::RunDir,
    schedule::{RunSize, Schedule},
    utilization::Utilization,
};

/// The data of a run.
#[derive(Clone, Debug)]
pub struct Data {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<TokenId>,
    /// The tokenizer's files by name, as in a model dir.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    /// The training split.
    pub train: RowSource,
    /// The validation split.
    pub val: RowSource,
    /// Identifies both splits and the tokenizer.
    pub hash: Digest,
    /// Identifies the tokenizer.
    pub tokenizer_hash: Digest,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Completed steps, including those of earlier processes.
    pub step: usize,
    /// Whether these are all steps.
    pub is_complete: bool,
    /// The validation loss after the last step, if the run is complete and has a validation split.
    pub val: Option<Score>,
    /// Bits per byte there.
    pub val_bpb: Option<f64>,
    /// The evaluation whose model is in `model/`.
    pub best: Option<Best>,
    /// Training tokens per second of this process, without evaluations, samples and saving.
    pub tok_per_sec: f64,
}

/// A run that is ready to start or to continue; all checks have passed.
#[derive(Debug)]
pub struct Trainer<'a> {
    config: &'a TrainConfig,
    data: &'a Data,
    /// The validation split.
    val: RowSource,
    /// The reference model of preferences. `None` for other objectives, and once its log-probabilities have been computed.
    reference: Option<Gpt>,
    loader: Loader,
    learner: Learner,
    schedule: Schedule,
    state: TrainState,
    /// The evaluation of the model in the run's folder. An earlier process may have saved it behind the checkpoint that this one
    /// goes on from.
    kept: Option<Best>,
    saved: Saved,
}

/// How the model is saved.
#[derive(Clone, Debug)]
pub(crate) enum Saved {
    /// Whole, in the Hugging Face class of the initial model.
    Model { class: Option<String> },
    /// Only its adapter.
    Adapter(Box<SavedAdapter>),
}

/// The model that a run with `config` begins with, for a vocabulary of `vocab_size`.
///
/// # Errors
/// Settings that make no model, or a model that cannot be opened or does not train.
pub(crate) fn first_model(config: &TrainConfig, vocab_size: usize, device: &Device) -> Result<(Gpt, Saved)> {
    // Autodiff is set first: gradients flow through tensors created on this device, weights and inputs alike.
    let device = device.clone().autodiff();
    match (&config.model.init, &config.lora) {
        (None, _) => {
            let gpt = Gpt::init(&config.gpt_config(vocab_size)?, config.seed, &device)?;
            Ok((initialize(gpt, &config.model), Saved::Model { class: None }))
        }
        (Some(dir), Some(lora)) => {
            let Adapted { gpt, saved } = adapter::load(dir, (lora, config.seed), &device, None)?;
            Ok((gpt, Saved::Adapter(Box::new(saved))))
        }
        (Some(dir), None) => {
            adapter::require_trainable(dir)?;
            let options = LoadOptions { device: device.clone(), dtype: Some(Dtype::F32) };
            let gpt = model_dir::load_gpt(dir, &options)?.with_dropout(config.model.dropout);
            Ok((gpt, Saved::Model { class: model_dir::load_class(dir).ok().map(str::to_owned) }))
        }
    }
}

impl<'a> Trainer<'a> {
    /// A new run with random weights, or those of `model.init`.
    ///
    /// # Errors
    /// Invalid settings, splits too short for the context, or the tokenizer of another model.
    pub fn new(config: &'a TrainConfig, data: &'a Data, device: &Device) -> Result<Trainer<'a>> {
        config.validate()?;
        config.validate_on(device)?;
        let (gpt, saved) = first_model(config, data.tokenizer.vocab_size(), device)?;
        if let Some(dir) = &config.model.init {
            require_same_tokens(dir, &data.tokenizer, config.data.path.as_deref())?;
        }
        let learner = Learner::new(gpt, config.optim.clone(), config.seed).with_objective(config.objective);
        let reference = learner.gpt.clone();
        let base = adapter::base_digest(config)?;
        let state = TrainState { base, ..TrainState::new(data.hash, data.tokenizer_hash) };
        Self::with(config, (data, reference), learner, state, saved)
    }

    /// Continues the run of `checkpoint` with `config`.
    ///
    /// # Errors
    /// Other data, or settings that contradict the completed steps; the message names both sides.
    pub fn resume(
        config: &'a TrainConfig,
        data: &'a Data,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<Trainer<'a>> {
        config.validate()?;
        config.validate_on(device)?;
        require_same_run(checkpoint, config, data)?;
        let Checkpoint { state, config: then, .. } = checkpoint;
        let device = device.clone().autodiff();
        let (gpt, saved) = match (&config.lora, &config.model.init) {
            (Some(lora), Some(base)) => {
                let Adapted { gpt, saved } = adapter::load(base, (lora, config.seed), &device, Some(checkpoint.dir()))?;
                (gpt, Saved::Adapter(Box::new(saved)))
            }
            _ => {
                let class = model_dir::load_class(checkpoint.dir()).ok().map(str::to_owned);
                (checkpoint.load_gpt(&device)?, Saved::Model { class })
            }
        };
        let mut learner = Learner::new(gpt, config.optim.clone(), config.seed).with_objective(config.objective);
        let reference = match (&config.lora, config.objective.kind) {
            (None, Objective::Dpo) => {
                let (reference, _) = first_model(config, data.tokenizer.vocab_size(), &device)?;
                reference.with_precision(config.optim.precision)
            }
            _ => learner.gpt.clone(),
        };
        checkpoint.restore(&mut learner.optimizer, &learner.gpt, &device.clone().inner())?;
        let size = run_size(config, data, &learner);
        let mut state = state.clone();
        if let (Some(_), Some(minutes)) = (state.total_steps, config.schedule.max_minutes)
            && then.schedule.max_minutes != Some(minutes)
        {
            ensure!(
                config.schedule.kind == ScheduleKind::Constant,
                "`schedule.max_minutes` cannot change any more: the cooldown has begun\nhint: extend a run before its cooldown, or \
                 begin a new run with `--from` and an earlier checkpoint"
            );
            // `total_steps` is where the former budget ended. It still holds only if the new budget is used up too.
            state.total_steps = state.total_steps.filter(|_| minutes <= state.minutes);
        }
        let schedule_of = |config: &TrainConfig| Schedule::new(config, size).with_total(state.total_steps);
        ensure!(
            schedule_of(then).has_same_past(&schedule_of(config), state.step, &config.optim),
            "`schedule` contradicts the {} completed steps: their learning rates or weight decays would have been \
             different\nhint: `constant` ones can be extended, and so can `wsd` before its cooldown",
            state.step
        );
        ensure!(
            size.rows_of_steps(then, state.step) == size.rows_of_steps(config, state.step),
            "`schedule.epochs` contradicts the {} completed steps: the last of them ended with the data, and had fewer rows than \
             in a longer run\nhint: go on from an earlier checkpoint, with `--from`",
            state.step
        );
        Self::with(config, (data, reference), learner, state, saved)
    }

    fn with(
        config: &'a TrainConfig,
        (data, reference): (&'a Data, Gpt),
        learner: Learner,
        state: TrainState,
        saved: Saved,
    ) -> Result<Trainer<'a>> {
        let gpt = learner.gpt.config();
        let (n_tokens, vocab_size) = (data.tokenizer.vocab_size(), gpt.vocab_size);
        ensure!(
            n_tokens <= vocab_size,
            "the data's tokenizer has {n_tokens} tokens, but the model's vocabulary has {vocab_size}\nhint: prepare the data \
             with the model's own tokenizer"
        );
        ensure!(
            config.model.max_seq_len <= gpt.max_seq_len,
            "`model.max_seq_len` must be at most the model's context of {0}, got {1}\nhint: `--set model.max_seq_len={0}`",
            gpt.max_seq_len,
            config.model.max_seq_len
        );
        let order = match config.data.rows {
            Rows::Epochs | Rows::Documents | Rows::Unpacked => RowOrder::Permuted,
            Rows::Windows => RowOrder::RandomWindows,
        };
        let settings = LoaderSettings {
            seed: config.seed,
            seq_len: config.model.max_seq_len,
            micro_batch_size: config.data.micro_batch_size.rows(),
            order,
            n_micro_batches: config.micro_steps(),
        };
        let size = run_size(config, data, &learner);
        let schedule = Schedule::new(config, size).with_total(state.total_steps);
        schedule.check()?;
        let reference = (config.objective.kind == Objective::Dpo).then(|| reference.without_lora());
        let loader = Loader::new(&data.train, settings)?.ending_after(size.rows_of_epochs(config));
        let val = data.val.clone();
        let kept = state.best;
        Ok(Trainer { config, data, val, reference, loader, learner, schedule, state, kept, saved })
    }

    /// Computes the log-probabilities of the answers of all pairs under the reference model, if there is one. False if a signal
    /// came meanwhile.
    fn add_references(&mut self, reporter: &mut Reporter, interrupt: &Interrupt) -> Result<bool> {
        let Some(reference) = self.reference.take() else { return Ok(true) };
        reporter.note("computing the log-probabilities of all answers under the reference model");
        let settings = *self.loader.settings();
        let evaluated = reference.valid().packed()?;
        let size = settings.micro_batch_size;
        let val = with_references(&self.data.val, size, interrupt, |batch| token_losses(&evaluated, batch))?;
        drop(evaluated);
        let of_batch = |batch: &Batch| token_losses_in_training(&reference, batch);
        let train = with_references(&self.data.train, size, interrupt, of_batch)?;
        let (Some(val), Some(train)) = (val, train) else { return Ok(false) };
        self.val = val;
        self.loader = Loader::new(&train, settings)?.ending_after(self.size().rows_of_epochs(self.config));
        Ok(true)
    }

    /// Trained parameters.
    pub fn n_params(&self) -> usize {
        self.learner.n_params()
    }

    /// What budgets are relative to.
    pub fn size(&self) -> RunSize {
        run_size(self.config, self.data, &self.learner)
    }

    /// Steps of the run, if known in advance.
    pub fn total_steps(&self) -> Option<usize> {
        self.schedule.total()
    }

    /// Steps completed before.
    pub fn steps_done(&self) -> usize {
        self.state.step
    }

    /// Trains until the last step or a signal.
    ///
    /// # Errors
    /// The device fails, the run diverges, or the folder cannot be written. Earlier checkpoints stay.
    pub fn run(mut self, run: &RunDir, reporter: &mut Reporter, interrupt: &Interrupt) -> Result<Outcome> {
        self.find_best(run, reporter);
        if !self.add_references(reporter, interrupt)? {
            return Ok(Outcome { is_complete: false, ..self.outcome(None, 0.0) });
        }
        let first = self.state.step as u64;
        let mut batches = Prefetcher::new(&self.loader, first..u64::MAX)?;
        let guard_state = (self.state.recent_norms.clone(), self.state.n_skipped);
        let mut guard = Guard::new(self.config.optim.spike_factor, guard_state);
        let mut speed = Speed::default();
        let utilization = Utilization::measure(&self.learner.gpt, self.config.model.max_seq_len)?;
        let mut latest = None;
        let mut last_val = None;

        while !self.is_over() {
            let started = Instant::now();
            let rates = self.schedule.rates(self.state.step, &self.config.optim);
            let StepGradients { index, n_tokens, loss, grad_norm, gradients } = self.gradients(&mut batches)?;
            let done = self.state.step + 1;
            let skipped = guard.check(done, loss, grad_norm)?;
            if skipped.is_none() {
                self.learner = self.learner.update(gradients, rates);
            }
            let took = started.elapsed();
            speed.add_step(n_tokens, took);
            self.advance(&guard, n_tokens, took);

            let due = Due::after(done, self.config, &self.schedule, interrupt);
            match skipped {
                Some(reason) => reporter.skipped(done, reason)?,
                None => {
                    let (lr, tok_per_sec) = (self.config.optim.lr * rates.lr, speed.recent());
                    let seconds = reporter.seconds();
                    let loss = (index.total_weight > 0.0).then_some(loss);
                    let (epoch, tokens) = (self.size().passes(self.config, done), self.state.tokens);
                    let record = StepRecord { step: done, epoch, tokens, loss, lr, grad_norm, tok_per_sec, seconds };
                    reporter.step(&record)?;
                    latest = Some(record);
                }
            }
            let is_last = self.schedule.is_over(done);
            ensure!(
                !is_last || self.state.n_updates > 0,
                "no step of the run was applied: each was skipped, so nothing is learned\nhint: lower `optim.lr`, `objective.keep` or \
                 `lora.alpha`, or look for broken data"
            );
            if is_last && let Some(warning) = self.schedule.warning() {
                reporter.note(&warning);
            }
            if due.shows {
                let pace = Pace {
                    total: self.schedule.total(),
                    minutes_left: self.config.schedule.max_minutes.map(|minutes| minutes - self.state.minutes),
                    mfu: utilization.map(|utilization| utilization.at(speed.recent())),
                };
                if let Some(record) = latest.take() {
                    reporter.show_step(&record, pace);
                }
                speed.lap();
            }
            if due.evaluates && self.data.val.has_targets() {
                last_val = Some(self.evaluate(run, reporter)?);
            }
            self.adopt_kept();
            let ends_early = self.has_no_patience();
            if ends_early && !is_last {
                reporter.note(&format!(
                    "step {done}: no better evaluation in the last {}, so the run ends here (`eval.patience`)",
                    self.state.n_since_best
                ));
            }
            if due.samples || ends_early && self.config.sample.every > 0 {
                reporter.sample(done, self.sample(&self.config.sample)?)?;
            }
            if due.saves || ends_early {
                reporter.flush()?;
                self.save(run, reporter)?;
            }
            if due.saves_on_demand {
                reporter.note(&format!("checkpoint of step {done} saved, as a signal asked"));
            }
            if due.stops {
                break;
            }
        }

        if self.is_over() {
            last_val = self.complete(last_val, run, reporter)?;
        }
        reporter.draw()?;
        Ok(self.outcome(last_val, speed.overall()))
    }

    /// Whether all steps are done, or the run ends early.
    fn is_over(&self) -> bool {
        self.schedule.is_over(self.state.step) || self.has_no_patience()
    }

    /// The gradients of the next step, over the next micro-batches.
    fn gradients(&self, batches: &mut Prefetcher) -> Result<StepGradients> {
        let n_micro = self.loader.n_micro_batches(self.state.step as u64);
        let micro_batches: Vec<Batch> = batches.by_ref().take(n_micro).collect();
        ensure!(micro_batches.len() == n_micro, "the data loader stopped before the end of the run");
        let n_tokens = micro_batches.iter().map(Batch::n_tokens).sum();
        let index = StepIndex::of(self.state.step, micro_batches.iter());
        let sums = self.learner.gradients(index, micro_batches.into_iter().enumerate())?;
        let LossGradients { loss, mut gradients } = sums.context("a step has micro-batches")?;
        let grad_norm = self.learner.clip(&mut gradients)?;
        // Read before the update: a NaN must not reach the weights.
        let [loss, grad_norm] = read_numbers([loss, grad_norm])?;
        Ok(StepGradients { index, n_tokens, loss, grad_norm, gradients })
    }

    /// Ends a run whose steps are all done: returns the last evaluation, and saves the model where none was saved.
    fn complete(&mut self, last: Option<Score>, run: &RunDir, reporter: &mut Reporter) -> Result<Option<Score>> {
        if !self.data.val.has_targets() {
            // Needed if all steps were done before this process, and there is no evaluation that would save the model.
            if !run.model_dir().exists() {
                self.save_model(run, None)?;
            }
            return Ok(last);
        }
        Ok(Some(match (last, self.kept) {
            (Some(last), _) => last,
            (None, Some(_)) => self.score()?,
            (None, None) => self.evaluate(run, reporter)?,
        }))
    }

    fn outcome(&self, val: Option<Score>, tok_per_sec: f64) -> Outcome {
        Outcome {
            step: self.state.step,
            is_complete: self.is_over(),
            val,
            val_bpb: val.and_then(|val| self.bits_per_byte(&val)),
            best: self.kept,
            tok_per_sec,
        }
    }

    /// Updates the state after a step.
    fn advance(&mut self, guard: &Guard, n_tokens: usize, took: Duration) {
        let state = &mut self.state;
        state.step += 1;
        state.tokens += n_tokens as u64;
        state.n_updates = self.learner.optimizer.n_updates();
        (state.recent_norms, state.n_skipped) = guard.state();
        state.minutes += took.as_secs_f64() / 60.0;
        self.schedule.use_up(state.minutes, state.step);
        state.total_steps = self.schedule.total().filter(|_| self.config.schedule.max_minutes.is_some());
    }

    /// A copy of the model as it is served, for evaluation and samples. Returns freed memory to the system first, to make room.
    fn packed(&self) -> Result<Gpt> {
        ops::give_back_memory();
        Ok(self.learner.gpt.valid().packed()?)
    }

    /// Writes a checkpoint, and the model if no evaluation chooses one, and removes old checkpoints. What was reported of its
    /// steps must be on the disk.
    fn save(&self, run: &RunDir, reporter: &mut Reporter) -> Result<()> {
        if !self.data.val.has_targets() {
            // Without a validation split the best model is unknown: the last one is kept.
            self.save_model(run, None)?;
        }
        self.save_checkpoint(run)?;
        let settings = &self.config.checkpoint;
        if let Err(error) = run.prune_checkpoints(self.state.step, settings.keep, &settings.keep_steps) {
            // The run is saved all the same.
            reporter.note(&format!("warning: {error:#}; the next save tries again"));
        }
        Ok(())
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// The folder cannot be written to. Earlier checkpoints stay.
    pub fn save_checkpoint(&self, run: &RunDir) -> Result<()> {
        run.save_checkpoint(self.state.step, |staged| {
            self.write_model(staged, DiskDtype::F32)?;
            checkpoint::write(staged, &self.learner.optimizer, &self.state, self.config)
        })
        .with_context(|| format!("cannot save the checkpoint of step {}; earlier ones are intact", self.state.step))
    }

    /// Replaces the run's model by this one, which `evaluation` is of.
    fn save_model(&self, run: &RunDir, evaluation: Option<Best>) -> Result<()> {
        let staged = StagedDir::replacing(&run.model_dir())?;
        self.write_model(&staged, self.config.checkpoint.save_dtype.on_disk())?;
        evaluation.map_or(Ok(()), |evaluation| evaluation.write(&staged))?;
        Ok(staged.commit()?)
    }

    /// Writes the model, or its adapter alone, with the tokenizer's files.
    fn write_model(&self, staged: &StagedDir, dtype: DiskDtype) -> Result<()> {
        let gpt = self.learner.gpt.valid();
        match &self.saved {
            Saved::Adapter(adapter) => adapter.write(staged, &gpt, &self.data.tokenizer_files),
            Saved::Model { class } => {
                let options = SaveOptions {
                    dtype,
                    class: class.clone(),
                    eos_token_ids: self.data.eos_token_ids.clone(),
                    extra_files: self.data.tokenizer_files.clone(),
                    ..SaveOptions::default()
                };
                Ok(model_dir::write(staged, &gpt, &options)?)
            }
        }
    }
}

/// The gradients of a step, clipped, and what they were computed from.
struct StepGradients {
    index: StepIndex,
    n_tokens: usize,
    loss: f32,
    /// The norm before clipping.
    grad_norm: f32,
    gradients: Gradients,
}

fn run_size(config: &TrainConfig, data: &Data, learner: &Learner) -> RunSize {
    RunSize::new(learner.n_params(), &data.train, config.model.max_seq_len)
}
