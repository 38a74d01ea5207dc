//! The training loop, from top to bottom: batch, loss, backward, combine, clip, step, log, evaluate, save.

mod all_ranks;
mod due;
mod evaluation;
mod rows;
mod run_model;
mod same_run;
mod same_start;
mod sample;
mod save;
mod speed;
mod start;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use burn::module::Module;
use hearth_model::{
    TokenId,
    files::digest::Digest,
    gpt::{Gpt, pooling::Classifier},
    ops,
    text::tokenizer::Tokenizer,
};

pub use self::all_ranks::RankCosts;
pub(crate) use self::run_model::first_model;
pub use self::speed::StepTime;
use self::{due::Due, run_model::SavedForm, speed::Speed, start::run_size};
use crate::{
    config::TrainConfig,
    data::loader::{Batch, Loader, Prefetcher, RowSource},
    eval::Score,
    interrupt::Interrupt,
    objective::StepIndex,
    ranks::Group,
    run::{
        checkpoint::{Best, TrainState},
        learner::{Learner, StepGradients},
        optim::Gradients,
        progress::{Pace, Reporter, StepRecord},
        replicas::Replicas,
        run_dir::RunDir,
        schedule::{RunSize, Schedule},
        spike_guard::SpikeGuard,
        utilization::Utilization,
    },
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
    /// The initial classification head, if the model trains one.
    pub classifier: Option<Classifier>,
    /// Identifies both splits and the tokenizer.
    pub hash: Digest,
    /// Identifies the tokenizer.
    pub tokenizer_hash: Digest,
    /// The special tokens of an encoder-decoder's decoder; empty for other models.
    pub decoder: DecoderTokens,
}

/// The tokens of an encoder-decoder's decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecoderTokens {
    /// The tokens with which it begins.
    pub start: Vec<TokenId>,
    /// The padding token in `transformers`.
    pub pad: Option<TokenId>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Completed steps, including those of earlier processes.
    pub step: usize,
    /// Whether these are all steps.
    pub is_complete: bool,
    /// The validation loss after the last step, if the run is complete and has a validation split.
    pub val: Option<Score>,
    /// Bits per byte there.
    pub val_bpb: Option<f64>,
    /// The evaluation of the model in `model/`.
    pub best: Option<Best>,
    /// Training tokens per second of this process, without evaluations, samples and saving.
    pub tok_per_sec: f64,
    /// The costs of each rank, by rank, if there are several.
    pub costs: Vec<RankCosts>,
}

/// A run that is ready to start or to continue; all checks have passed.
#[derive(Debug)]
pub struct Trainer<'a> {
    config: &'a TrainConfig,
    data: &'a Data,
    /// The validation split.
    val: RowSource,
    /// The reference model of the objective. `None` if it has none, or once its results for the rows are known.
    reference: Option<Gpt>,
    loader: Loader,
    learner: Learner,
    /// Replicas that train separately; `learner` then has the weights of the last synchronization.
    replicas: Option<Replicas>,
    schedule: Schedule,
    state: TrainState,
    /// The evaluation of the model in the run's folder. An earlier process may have saved it after the checkpoint from
    /// which this process continues.
    kept: Option<Best>,
    saved: SavedForm,
    /// The ranks of the run. All ranks do the same except for their micro-batches and parameters; rank 0 writes and
    /// reports.
    group: Group,
}

impl Trainer<'_> {
    /// Trained parameters.
    pub fn n_params(&self) -> usize {
        self.learner.n_params()
    }

    /// The size of the data, to which budgets are relative.
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
    pub fn run(mut self, run: &RunDir, reporter: &mut Reporter, interrupt: &Interrupt) -> Result<RunOutcome> {
        self.find_best(run, reporter)?;
        let mut speed = Speed::default();
        if !self.add_references(reporter, interrupt)? {
            return Ok(RunOutcome { is_complete: false, ..self.outcome(None, &speed)? });
        }
        let first = self.state.step as u64;
        let mut batches = Prefetcher::new(&self.loader, first..u64::MAX)?;
        let guard_state = (self.state.recent_norms.clone(), self.state.n_skipped);
        let mut guard = SpikeGuard::new(self.config.optim.spike_factor, guard_state);
        let writes_text = !self.learner.gpt.config().bidirectional;
        let utilization = Utilization::measure(&self.learner.gpt, self.config.model.max_seq_len)?;
        let mut latest = None;
        let mut last_val = None;

        while !self.is_over() {
            let started = Instant::now();
            let rates = self.schedule.rates(self.state.step, &self.config.optim);
            let sent_before = self.group.ranks().bytes_sent();
            let (StepGradients { loss, grad_norm, gradients, balance }, of_replicas, index, n_tokens) =
                self.gradients(&mut batches)?;
            let done = self.state.step + 1;
            let skipped = guard.check(done, loss, grad_norm)?;
            match &mut self.replicas {
                _ if skipped.is_some() => {}
                None => self.learner = self.learner.update(gradients, rates).with_updates_of_all()?,
                Some(replicas) => replicas.update(of_replicas, rates),
            }
            let have_met = self.meet(done, false)?;
            let (took, signals) = self.agreed(started.elapsed(), interrupt)?;
            speed.add_step(n_tokens, took);
            speed.add_sent(self.group.ranks().bytes_sent() - sent_before);
            self.advance(&guard, n_tokens, took);

            // Behind `advance`, which may have found the last step.
            if !have_met {
                self.meet(done, self.schedule.is_over(done))?;
            }
            let due = Due::after(done, self.config, &self.schedule, signals);
            match skipped {
                Some(reason) => reporter.skipped(done, reason)?,
                None => {
                    let (lr, tok_per_sec) = (self.config.optim.lr * rates.lr, speed.recent());
                    let seconds = reporter.seconds();
                    let loss = (index.total_weight > 0.0).then_some(loss);
                    let (epoch, tokens) = (self.size().passes(self.config, done), self.state.tokens);
                    let record = StepRecord {
                        step: done,
                        epoch,
                        tokens,
                        loss,
                        lr,
                        grad_norm,
                        tok_per_sec,
                        seconds,
                        balance_loss: balance.as_ref().map(|balance| balance.loss as f32),
                        expert_load: balance.as_ref().map(|balance| balance.most_load() as f32),
                    };
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
                    mfu: utilization.map(|utilization| utilization.at(speed.recent() / self.group.size() as f64)),
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
            let samples = due.samples || ends_early && self.config.sample.every > 0;
            if samples && writes_text && self.group.is_first() {
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
        self.outcome(last_val, &speed)
    }

    /// Lets replicas meet, if it is time after `done` steps or they `must`. Whether there is one model now.
    fn meet(&mut self, done: usize, must: bool) -> Result<bool> {
        let Some(replicas) = &mut self.replicas else { return Ok(true) };
        let meets = must || replicas.meet_after(done);
        if meets {
            self.learner.gpt = replicas.meet(self.learner.gpt.clone())?;
        }
        Ok(meets)
    }

    /// Whether all steps are done, or the run ends early.
    fn is_over(&self) -> bool {
        self.schedule.is_over(self.state.step) || self.has_no_patience()
    }

    /// The gradients of the next step, over the next micro-batches (or of each replica), its index, and its number of
    /// tokens.
    fn gradients(&self, batches: &mut Prefetcher) -> Result<(StepGradients, Vec<Option<Gradients>>, StepIndex, usize)> {
        let n_micro = self.loader.n_micro_batches(self.state.step as u64);
        let micro_batches: Vec<Batch> = batches.by_ref().take(n_micro).collect();
        ensure!(micro_batches.len() == n_micro, "the data loader stopped before the end of the run");
        let n_tokens = micro_batches.iter().map(Batch::n_tokens).sum();
        let index = self.learner.step_index(self.state.step, micro_batches.iter());
        if let Some(replicas) = &self.replicas {
            let (all, of_replicas) = replicas.gradients(self.state.step, &micro_batches)?;
            return Ok((all, of_replicas, index, n_tokens));
        }
        let own = self.group.micro_batches(n_micro);
        let own = micro_batches.into_iter().enumerate().filter(|(micro_step, _)| own.contains(micro_step));
        Ok((self.learner.step_gradients(index, own)?, Vec::new(), index, n_tokens))
    }

    /// Ends a run whose steps are all done: returns the last evaluation, and saves the model if none was saved.
    fn complete(&mut self, last: Option<Score>, run: &RunDir, reporter: &mut Reporter) -> Result<Option<Score>> {
        if !self.data.val.has_targets() {
            // Needed if all steps were done before this process, and no evaluation would save the model.
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

    fn outcome(&self, val: Option<Score>, speed: &Speed) -> Result<RunOutcome> {
        Ok(RunOutcome {
            step: self.state.step,
            is_complete: self.is_over(),
            val,
            val_bpb: val.and_then(|val| self.bits_per_byte(&val)),
            best: self.kept,
            tok_per_sec: speed.overall(),
            costs: self.costs(speed)?,
        })
    }

    /// Updates the state after a step.
    fn advance(&mut self, guard: &SpikeGuard, n_tokens: usize, took: Duration) {
        let state = &mut self.state;
        state.step += 1;
        state.tokens += n_tokens as u64;
        state.n_updates = match &self.replicas {
            None => self.learner.optimizer.n_updates(),
            Some(replicas) => replicas.n_updates(),
        };
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
}
