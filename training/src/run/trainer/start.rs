//! How a run starts: with its first model, or from a checkpoint.

use anyhow::{Result, ensure};
use burn::tensor::Device;
use hearth_model::gpt::Gpt;

use super::{
    Data, Trainer,
    run_model::{SavedForm, first_model, model_of_checkpoint},
    same_run::{require_same_run, require_same_tokens},
};
use crate::{
    config::{Rows, ScheduleKind, TrainConfig},
    data::loader::{Loader, LoaderSettings, RowOrder},
    interrupt::Interrupt,
    ranks::Group,
    run::{
        adapter,
        checkpoint::{Checkpoint, TrainState},
        learner::Learner,
        progress::Reporter,
        replicas::Replicas,
        schedule::{RunSize, Schedule},
    },
};

impl<'a> Trainer<'a> {
    /// A new run, with random weights or the weights of `model.init`, in which this process is one of `group`.
    ///
    /// # Errors
    /// Invalid settings, splits too short for the context, the tokenizer of another model, or more ranks than can share a step.
    pub fn new(config: &'a TrainConfig, data: &'a Data, device: &Device, group: &Group) -> Result<Trainer<'a>> {
        config.validate()?;
        config.validate_on(device)?;
        let (mut gpt, saved) = first_model(config, data.tokenizer.vocab_size(), device)?;
        if let Some(classifier) = &data.classifier {
            gpt = gpt.with_classifier(classifier, &device.clone().autodiff())?;
        }
        if let Some(dir) = &config.model.init {
            require_same_tokens(dir, &data.tokenizer, config.data.path.as_deref())?;
        }
        let learner = new_learner(gpt, config, group)?;
        let reference = learner.objective().has_reference().then(|| learner.gpt.clone());
        let base = adapter::base_digest(config)?;
        let state = TrainState { base, ..TrainState::new(data.hash, data.tokenizer_hash) };
        Self::with(config, (data, reference), learner, state, (saved, group))
    }

    /// Continues the run of `checkpoint` with `config`, on as many ranks as `group` has.
    ///
    /// # Errors
    /// Other data, or settings that contradict the completed steps; the message names both sides.
    pub fn resume(
        config: &'a TrainConfig,
        data: &'a Data,
        (device, group): (&Device, &Group),
        checkpoint: &Checkpoint,
    ) -> Result<Trainer<'a>> {
        config.validate()?;
        config.validate_on(device)?;
        require_same_run(checkpoint, config, data)?;
        let Checkpoint { state, config: then, .. } = checkpoint;
        let device = device.clone().autodiff();
        let (gpt, saved) = model_of_checkpoint(checkpoint, config, &device)?;
        let mut learner = new_learner(gpt, config, group)?;
        let reference = match (learner.objective().has_reference(), &config.lora) {
            (false, _) => None,
            (true, Some(_)) => Some(learner.gpt.clone()),
            (true, None) => {
                let (reference, _) = first_model(config, data.tokenizer.vocab_size(), &device)?;
                Some(reference.with_precision(config.optim.precision))
            }
        };
        if config.parallel.replicas == 1 {
            checkpoint.restore("", &mut learner.optimizer, &learner.gpt, &device.clone().inner())?;
        }
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
        let mut trainer = Self::with(config, (data, reference), learner, state, (saved, group))?;
        if let Some(replicas) = &mut trainer.replicas {
            replicas.restore(checkpoint)?;
        }
        Ok(trainer)
    }

    fn with(
        config: &'a TrainConfig,
        (data, reference): (&'a Data, Option<Gpt>),
        learner: Learner,
        state: TrainState,
        (saved, group): (SavedForm, &Group),
    ) -> Result<Trainer<'a>> {
        group.require_micro_batches(config.micro_steps())?;
        let gpt = learner.gpt.config();
        config.objective.check_model(gpt)?;
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
        let reference = reference.map(Gpt::without_lora);
        let loader = Loader::new(&data.train, settings)?.ending_after(size.rows_of_epochs(config));
        let val = data.val.clone();
        let kept = state.best;
        let replicas = Replicas::new(&config.parallel, &learner, group)?;
        Ok(Trainer {
            config,
            data,
            val,
            reference,
            loader,
            learner,
            replicas,
            schedule,
            state,
            kept,
            saved,
            group: group.clone(),
        })
    }

    /// Completes the rows by the reference model, if there is one. False if a signal came meanwhile.
    pub(super) fn add_references(&mut self, reporter: &mut Reporter, interrupt: &Interrupt) -> Result<bool> {
        let Some(reference) = self.reference.take() else { return Ok(true) };
        reporter.note("computing the log-probabilities of all answers under the reference model");
        let settings = *self.loader.settings();
        let splits = [&self.data.train, &self.data.val];
        let found = self.learner.objective().with_reference(splits, reference, settings.micro_batch_size, interrupt)?;
        // All ranks compute them all.
        if self.is_interrupted(interrupt)? {
            return Ok(false);
        }
        let Some([train, val]) = found else { return Ok(false) };
        self.val = val;
        self.loader = Loader::new(&train, settings)?.ending_after(self.size().rows_of_epochs(self.config));
        Ok(true)
    }
}

pub(super) fn run_size(config: &TrainConfig, data: &Data, learner: &Learner) -> RunSize {
    RunSize::new(learner.n_params(), &data.train, config.model.max_seq_len)
}

/// The start of a run.
fn new_learner(gpt: Gpt, config: &TrainConfig, group: &Group) -> Result<Learner> {
    let routers = config.router_losses(gpt.config())?;
    let learner = Learner::new(gpt, config.optim.clone(), config.seed);
    let learner = learner.with_objective(config.objective).with_router_losses(routers);
    // Replicas share nothing within a step.
    Ok(if config.parallel.replicas == 1 { learner.with_group(group) } else { learner })
}
