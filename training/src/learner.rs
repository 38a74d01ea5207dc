//! A model in training: batches to gradients, gradients to new weights.

use std::mem;

use anyhow::{Context, Result};
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Int, Tensor},
};
use hearth_model::{
    gpt::Gpt,
    ops::{Losses, Targets},
    recompute::RecomputedPass,
};

use crate::{
    combine::{Sum, TreeSum},
    config::{ObjectiveSettings, OptimSettings},
    loader::{Batch, mix},
    optim::{Gradients, Optimizer, matrices_of},
    preference::Preferences,
    schedule::Rates,
};

/// A model in training: its weights and its optimizer.
#[derive(Clone, Debug)]
pub struct Learner {
    /// The model, on an autodiff device.
    pub gpt: Gpt,
    /// Its optimizer.
    pub optimizer: Optimizer,
    objective: ObjectiveSettings,
    /// Seed of the dropout masks, together with step and micro-step.
    seed: u64,
}

/// A loss and its gradients, still on the device: of one micro-batch, several, or a whole step.
#[derive(Clone, Debug)]
pub struct LossGradients {
    /// `[1]`, without autodiff: cross entropy in nats, as a weighted mean over the targets of the step.
    pub loss: Tensor<1>,
    /// Gradients of this loss, and of the z-loss if enabled.
    pub gradients: Gradients,
}

impl Sum for LossGradients {
    fn sum(left: LossGradients, right: LossGradients) -> LossGradients {
        LossGradients { loss: left.loss + right.loss, gradients: Gradients::sum(left.gradients, right.gradients) }
    }
}

/// A micro-batch between its passes.
#[derive(Debug)]
pub struct ForwardResult<'a> {
    losses: Losses,
    /// With [`OptimSettings::recompute`].
    recomputed: Option<RecomputedPass<'a>>,
}

/// The step whose gradients are computed; this process may compute part of its micro-steps.
#[derive(Clone, Copy, Debug)]
pub struct StepIndex {
    /// The step, counted from 0.
    pub step: usize,
    /// Total weight of the targets in all micro-batches of the step ([`Batch::total_weight`]), by which the losses are
    /// divided.
    pub total_weight: f64,
    /// Tokens in all of them that are only read ([`Batch::n_only_read`]), by which the divergence from the model without its
    /// adapter is divided.
    pub n_only_read: usize,
}

impl StepIndex {
    /// Of these micro-batches.
    pub fn of<'a>(step: usize, micro_batches: impl Iterator<Item = &'a Batch>) -> StepIndex {
        let empty = StepIndex { step, total_weight: 0.0, n_only_read: 0 };
        micro_batches.fold(empty, |index, batch| StepIndex {
            total_weight: index.total_weight + batch.total_weight(),
            n_only_read: index.n_only_read + batch.n_only_read(),
            step,
        })
    }
}

impl Learner {
    /// A model at the start of training. It must be on an autodiff device.
    pub fn new(gpt: Gpt, optim: OptimSettings, seed: u64) -> Learner {
        let matrices = matrices_of(gpt.config());
        let objective = ObjectiveSettings::default();
        Learner {
            gpt: gpt.with_precision(optim.precision),
            optimizer: Optimizer::new(optim, matrices),
            objective,
            seed,
        }
    }

    /// The same with another objective.
    #[must_use]
    pub fn with_objective(self, objective: ObjectiveSettings) -> Learner {
        Learner { objective, ..self }
    }

    /// Values that train.
    pub fn n_params(&self) -> usize {
        struct Count(usize);
        impl ModuleVisitor for Count {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.val().is_require_grad() {
                    self.0 += param.val().shape().num_elements();
                }
            }
        }
        let mut count = Count(0);
        self.gpt.visit(&mut count);
        count.0
    }

    /// Sums the gradients of micro-batches, given with the numbers of their micro-steps in order: an aligned subtree of
    /// the step's tree, see [`combine`](crate::combine). `None` without micro-batches. Reads nothing back from the
    /// device, except for pairs.
    pub fn gradients(
        &self,
        index: StepIndex,
        micro_batches: impl Iterator<Item = (usize, Batch)>,
    ) -> Result<Option<LossGradients>> {
        let mut tree = TreeSum::default();
        for (micro_step, batch) in micro_batches {
            tree.push(self.backward(self.forward(index, micro_step, &batch)?));
        }
        Ok(tree.finish())
    }

    /// The losses of one micro-batch: means over its targets, times its share of the step's targets.
    ///
    /// # Errors
    /// The device cannot be read. This happens for pairs only: nothing else is read back here.
    pub fn forward(&self, index: StepIndex, micro_step: usize, batch: &Batch) -> Result<ForwardResult<'_>> {
        let device = self.gpt.device().autodiff();
        let dropout_seed = mix(mix(mix(self.seed) ^ index.step as u64) ^ micro_step as u64);
        let (inputs, targets) = batch.to_device(&device);
        let context = || batch.context(Some(dropout_seed));
        let recomputes = self.optimizer.settings().recompute;
        if batch.references.is_some() {
            let (hidden, recomputed) = match recomputes {
                false => (self.gpt.forward(inputs, context()), None),
                true => {
                    let (hidden, pass) = self.gpt.forward_recomputed(inputs, context);
                    (hidden, Some(pass))
                }
            };
            let answers = Targets { ids: targets.clone().inner(), weights: batch.weights.clone() };
            let token_losses = self.gpt.valid().token_losses(hidden.clone().inner(), answers)?;
            let found = Preferences::new(batch, &token_losses, self.objective.beta);
            let loss = found.losses.iter().sum::<f64>() / index.total_weight;
            let weights = Some(found.weights(batch, index.total_weight));
            let losses = self.gpt.loss(hidden, Targets { ids: targets, weights });
            let plain = device.inner();
            let losses = Losses { objective: losses, cross_entropy: Tensor::from_floats([loss as f32], &plain) };
            return Ok(ForwardResult { losses, recomputed });
        }
        // With weights, the loss is a weighted sum, so each weight is divided by the weight of the step. Without, it is a mean
        // over the micro-batch, which is multiplied by the micro-batch's share of the step.
        let (share, weights) = match &batch.weights {
            None => (batch.total_weight() / index.total_weight, None),
            Some(weights) => {
                // A step may have nothing but texts that are only read.
                let total = if index.total_weight == 0.0 { 1.0 } else { index.total_weight };
                let shares = weights.iter().map(|&weight| (f64::from(weight) / total) as f32);
                (1.0, Some(shares.collect()))
            }
        };
        let targets = Targets { ids: targets, weights };
        let z_loss = self.optimizer.settings().z_loss;
        let keeps = self.objective.keep > 0.0 && batch.n_only_read() > 0;
        if !recomputes && !keeps {
            let losses = self.gpt.training_losses(inputs, context(), targets, z_loss);
            return Ok(ForwardResult { losses: multiplied(losses, share), recomputed: None });
        }
        let (hidden, recomputed) = match recomputes {
            false => (self.gpt.forward(inputs.clone(), context()), None),
            true => {
                let (hidden, pass) = self.gpt.forward_recomputed(inputs.clone(), context);
                (hidden, Some(pass))
            }
        };
        let mut losses = multiplied(self.gpt.losses(hidden.clone(), targets, z_loss), share);
        if keeps {
            losses.objective = losses.objective + self.divergence(hidden, inputs, index, batch);
        }
        Ok(ForwardResult { losses, recomputed })
    }

    /// `objective.keep` times the mean divergence from the model without its adapter, over the tokens of the step that are only
    /// read.
    fn divergence(&self, hidden: Tensor<2>, inputs: Tensor<1, Int>, index: StepIndex, batch: &Batch) -> Tensor<1> {
        // On the same device, so that the same operations run.
        let former = self.gpt.clone().without_lora().no_grad().forward(inputs, batch.context(None)).inner();
        let share = (self.objective.keep / index.n_only_read as f64) as f32;
        let shares = batch.only_read.iter().flatten().map(|is_read| if *is_read { share } else { 0.0 });
        self.gpt.divergence(hidden, former, shares.collect())
    }

    /// The gradients of what [`forward`](Self::forward) gave.
    pub fn backward(&self, ForwardResult { losses, recomputed }: ForwardResult<'_>) -> LossGradients {
        let taken = |gradients| Gradients::from_backward(&self.gpt, gradients);
        let gradients = match recomputed {
            None => taken(losses.objective.backward()),
            Some(pass) => {
                let mut all = Gradients::default();
                pass.backward(losses.objective, &mut |part| all = Gradients::sum(mem::take(&mut all), taken(part)));
                all
            }
        };
        LossGradients { loss: losses.cross_entropy, gradients }
    }

    /// Updates the weights once.
    pub fn update(mut self, gradients: Gradients, rates: Rates) -> Learner {
        self.gpt = self.optimizer.step(self.gpt, gradients, rates);
        self
    }

    /// Clips gradients by the settings; returns their norm before clipping, `[1]`, on the device.
    pub fn clip(&self, gradients: &mut Gradients) -> Result<Tensor<1>> {
        gradients.clip(self.optimizer.settings().clip).context("no parameter of the model has a gradient")
    }
}

fn multiplied(Losses { objective, cross_entropy }: Losses, share: f64) -> Losses {
    Losses { objective: objective.mul_scalar(share), cross_entropy: cross_entropy.mul_scalar(share) }
}
