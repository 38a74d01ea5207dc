//! Writes a run's models: checkpoints, and the model to use.

use anyhow::{Context, Result};
use burn::module::Module;
use hearth_model::weights::{DiskDtype, StagedDir};

use super::Trainer;
use crate::run::{
    checkpoint::{self, Best, MomentsOfAll},
    progress::Reporter,
    run_dir::RunDir,
};

impl Trainer<'_> {
    /// Writes a checkpoint, and the model if no evaluation chooses one, and removes old checkpoints. The records of its
    /// steps must be on the disk already.
    pub(super) fn save(&self, run: &RunDir, reporter: &mut Reporter) -> Result<()> {
        if !self.data.val.has_targets() {
            // Without a validation split the best model is unknown: the last one is kept.
            self.save_model(run, None)?;
        }
        self.save_checkpoint(run)?;
        if !self.group.is_first() {
            return Ok(());
        }
        let settings = &self.config.checkpoint;
        if let Err(error) = run.prune_checkpoints(self.state.step, settings.keep, &settings.keep_steps) {
            // The run is saved all the same.
            reporter.note(&format!("warning: {error:#}; the next save tries again"));
        }
        Ok(())
    }

    /// Writes a checkpoint. Rank 0 writes it; the others send their parts to it.
    ///
    /// # Errors
    /// The folder cannot be written to. Earlier checkpoints are kept.
    pub fn save_checkpoint(&self, run: &RunDir) -> Result<()> {
        let own = match &self.replicas {
            None => self.learner.optimizer.moments(),
            Some(replicas) => replicas.moments(),
        };
        let moments = MomentsOfAll::new(own, &self.group)?;
        if !self.group.is_first() {
            return moments.send();
        }
        run.save_checkpoint(self.state.step, |staged| {
            self.write_model(staged, DiskDtype::F32)?;
            checkpoint::write(staged, &moments, &self.state, self.config)
        })
        .with_context(|| format!("cannot save the checkpoint of step {}; earlier ones are intact", self.state.step))
    }

    /// Replaces the run's model by this one, which `evaluation` is of. Rank 0 does.
    pub(super) fn save_model(&self, run: &RunDir, evaluation: Option<Best>) -> Result<()> {
        if !self.group.is_first() {
            return Ok(());
        }
        let staged = StagedDir::replacing(&run.model_dir())?;
        self.write_model(&staged, self.config.checkpoint.save_dtype.on_disk())?;
        evaluation.map_or(Ok(()), |evaluation| evaluation.write(&staged))?;
        Ok(staged.commit()?)
    }

    /// Writes the model, or its adapter alone, with the tokenizer's files.
    fn write_model(&self, staged: &StagedDir, dtype: DiskDtype) -> Result<()> {
        self.saved.write(staged, &self.learner.gpt.valid(), self.data, dtype)
    }
}
