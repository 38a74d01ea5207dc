//! The forward pass over a micro-batch in training.

use burn::tensor::{Int, Tensor};
use hearth_model::{
    gpt::Gpt,
    ops::{Losses, Targets},
    recompute::RecomputedPass,
};

use crate::data::loader::Batch;

/// The forward pass over a micro-batch in training, which an objective runs once.
#[derive(Debug)]
pub struct TrainingPass<'a> {
    /// The model, on an autodiff device.
    pub gpt: &'a Gpt,
    /// The micro-batch.
    pub batch: &'a Batch,
    /// Its inputs on the device, `[batch_size * seq_len]`.
    pub inputs: Tensor<1, Int>,
    /// The ids of its targets, likewise.
    pub targets: Tensor<1, Int>,
    dropout_seed: u64,
    /// The weight of the z-loss.
    z_loss: f64,
    /// Keep only the blocks' inputs, see [`OptimSettings::recompute`](crate::config::OptimSettings::recompute).
    recomputes: bool,
    recomputed: Option<RecomputedPass<'a>>,
}

impl<'a> TrainingPass<'a> {
    /// A pass of `gpt` over `batch`; `z_loss` and `recomputes` are settings in `optim`.
    pub(crate) fn new(
        gpt: &'a Gpt,
        batch: &'a Batch,
        dropout_seed: u64,
        (z_loss, recomputes): (f64, bool),
    ) -> TrainingPass<'a> {
        let (inputs, targets) = batch.to_device(&gpt.device().autodiff());
        TrainingPass { gpt, batch, inputs, targets, dropout_seed, z_loss, recomputes, recomputed: None }
    }

    /// The hidden states of the inputs, `[batch_size * seq_len, d_model]`.
    pub fn hidden(&mut self) -> Tensor<2> {
        let (batch, seed) = (self.batch, self.dropout_seed);
        let context = || batch.context(Some(seed));
        if !self.recomputes {
            return self.gpt.forward(self.inputs.clone(), context());
        }
        let (hidden, pass) = self.gpt.forward_recomputed(self.inputs.clone(), context);
        self.recomputed = Some(pass);
        hidden
    }

    /// Cross entropies from hidden states: the mean over the targets, or the weighted sum. The objective includes the z-loss.
    pub fn cross_entropy_of(&self, hidden: Tensor<2>, weights: Option<Vec<f32>>) -> Losses {
        self.gpt.losses(hidden, Targets { ids: self.targets.clone(), weights }, self.z_loss)
    }

    /// [`hidden`](Self::hidden) and [`cross_entropy_of`](Self::cross_entropy_of) in one, which takes less memory.
    pub fn cross_entropy(&mut self, weights: Option<Vec<f32>>) -> Losses {
        if self.recomputes {
            let hidden = self.hidden();
            return self.cross_entropy_of(hidden, weights);
        }
        let targets = Targets { ids: self.targets.clone(), weights };
        let context = self.batch.context(Some(self.dropout_seed));
        self.gpt.training_losses(self.inputs.clone(), context, targets, self.z_loss)
    }

    /// What the backward pass needs to compute blocks again.
    pub(crate) fn into_recomputed(self) -> Option<RecomputedPass<'a>> {
        self.recomputed
    }
}
