//! Evaluations during a run: which model is the best, and when the run ends early.

use anyhow::{Result, ensure};

use super::Trainer;
use crate::{
    eval::{Score, Windows},
    run::{
        checkpoint::{Best, TrainState},
        progress::{EvalRecord, Reporter},
        run_dir::RunDir,
    },
};

impl Trainer<'_> {
    /// Whether the last `eval.patience` evaluations were no better than the best before them.
    pub(super) fn has_no_patience(&self) -> bool {
        self.config.eval.patience.is_some_and(|patience| self.state.n_since_best >= patience)
    }

    /// Finds the best evaluation so far: the one of the model in the run's folder, if later evaluations are comparable
    /// with it.
    ///
    /// # Errors
    /// A rank does not answer.
    pub(super) fn find_best(&mut self, run: &RunDir, reporter: &mut Reporter) -> Result<()> {
        if self.group.is_first() {
            self.find_best_here(run, reporter);
        }
        (self.kept, self.state.best) = self.group.of_first((self.kept, self.state.best))?;
        Ok(())
    }

    fn find_best_here(&mut self, run: &RunDir, reporter: &mut Reporter) {
        if let Some(best) = self.state.best.take_if(|_| !run.model_dir().exists()) {
            reporter.note(&format!(
                "warning: the model of step {} is gone: the next evaluation is the best so far",
                best.step
            ));
        }
        // An earlier process may have saved the model of a step after its last checkpoint.
        self.kept = Best::of_model(&run.model_dir()).or(self.state.best);
        self.state.best = self.state.best.filter(|best| best.batches == self.config.eval.batches);
        if let Some(best) = self.kept.take_if(|best| best.batches != self.config.eval.batches) {
            reporter.note(&format!(
                "warning: `eval.batches` has changed, so losses no longer compare: the next evaluation replaces the model of step {} \
                 (val loss {:.4})",
                best.step, best.val_loss
            ));
        }
        self.adopt_kept();
    }

    /// Takes over an evaluation that an earlier process made, once the run has reached its step.
    pub(super) fn adopt_kept(&mut self) {
        let TrainState { step, best, .. } = &mut self.state;
        let is_better = |kept: &Best| best.is_none_or(|best| kept.val_loss < best.val_loss);
        if let Some(kept) = self.kept.filter(|kept| kept.step <= *step && is_better(kept)) {
            *best = Some(kept);
        }
    }

    /// Evaluates, and saves the model if it is the best so far.
    pub(super) fn evaluate(&mut self, run: &RunDir, reporter: &mut Reporter) -> Result<Score> {
        let step = self.state.step;
        let val = self.score()?;
        ensure!(
            val.loss.is_finite(),
            "the model of step {step} has a validation loss of {}\nhint: use a lower `optim.lr` or `optim.weight_decay`",
            val.loss
        );
        let is_best = self.state.best.is_none_or(|best| val.loss < best.val_loss || step == best.step);
        if is_best {
            let best = Best { step, val_loss: val.loss, batches: self.config.eval.batches };
            // If the last process ended after this step, before a checkpoint, a better model of a later step may be
            // saved already.
            if self.kept.is_none_or(|kept| kept.step <= step || val.loss < kept.val_loss) {
                self.save_model(run, Some(best))?;
                self.kept = Some(best);
            }
            self.state.best = Some(best);
        }
        self.state.n_since_best = if is_best { 0 } else { self.state.n_since_best + 1 };
        reporter.eval(EvalRecord {
            step,
            val_loss: val.loss,
            val_perplexity: val.accuracy.is_none().then(|| val.perplexity()),
            val_bpb: self.bits_per_byte(&val),
            val_accuracy: val.accuracy,
            best: is_best,
            patience_left: self.config.eval.patience.map(|patience| patience.saturating_sub(self.state.n_since_best)),
        })?;
        Ok(val)
    }

    pub(super) fn score(&self) -> Result<Score> {
        let windows = Windows {
            batch_size: self.config.data.micro_batch_size.rows(),
            seq_len: self.config.model.max_seq_len,
            max_batches: self.config.eval.batches,
        };
        let gpt = self.packed()?;
        self.learner.objective().score(&gpt, &self.val, windows, &self.group)
    }

    /// Bits per byte of the text of the targets of `val`, if its loss is one of text.
    pub(super) fn bits_per_byte(&self, val: &Score) -> Option<f64> {
        self.learner.objective().bits_per_byte(val, &self.data.val, &self.data.tokenizer)
    }
}
