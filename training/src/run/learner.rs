//! A model in training: batches to gradients, gradients to new weights.

mod step;

use std::{mem, sync::Arc};

use anyhow::{Context, Result};
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};
use hearth_model::{
    gpt::{Gpt, RouterLossWeights, recompute::RecomputedPass},
    ops::Losses,
};

pub use self::step::StepGradients;
use crate::{
    config::{ObjectiveSettings, OptimSettings},
    data::loader::{Batch, mix},
    objective::{Objective, RouterBalance, StepIndex, TrainingPass},
    run::{
        optim::{Gradients, Optimizer, matrices_of, matrices_with_head},
        schedule::Rates,
        sharding::Shards,
        tree_sum::{Sum, TreeSum},
    },
};

/// A model in training: its weights and its optimizer.
#[derive(Clone, Debug)]
pub struct Learner {
    /// The model, on an autodiff device.
    pub gpt: Gpt,
    /// Its optimizer.
    pub optimizer: Optimizer,
    objective: Arc<dyn Objective>,
    routers: RouterLossWeights,
    /// Seed of the dropout masks, together with step and micro-step.
    seed: u64,
    /// With several ranks: which rank updates which parameter.
    shards: Option<Shards>,
}

/// A loss and its gradients, still on the device: of one micro-batch, several, or a whole step.
#[derive(Clone, Debug)]
pub struct LossGradients {
    /// `[1]`, without autodiff: cross entropy in nats, as a weighted mean over the targets of the step.
    pub loss: Tensor<1>,
    /// Gradients of this loss, and of the z-loss and the losses of routers if enabled.
    pub gradients: Gradients,
    /// How evenly experts are used, if routers have losses.
    pub balance: Option<RouterBalance>,
}

impl Sum for Option<RouterBalance> {
    fn sum(left: Option<RouterBalance>, right: Option<RouterBalance>) -> Option<RouterBalance> {
        let (Some(left), Some(right)) = (&left, &right) else { return left.or(right) };
        let counts = left.counts.iter().zip(&right.counts).map(|(left, right)| left + right).collect();
        Some(RouterBalance { loss: left.loss + right.loss, counts })
    }
}

impl Sum for LossGradients {
    fn sum(left: LossGradients, right: LossGradients) -> LossGradients {
        let balance = Sum::sum(left.balance, right.balance);
        let gradients = Gradients::sum(left.gradients, right.gradients);
        LossGradients { loss: left.loss + right.loss, gradients, balance }
    }
}

/// A micro-batch between its passes.
#[derive(Debug)]
pub struct ForwardResult<'a> {
    losses: Losses,
    balance: Option<RouterBalance>,
    /// With [`OptimSettings::recompute`].
    recomputed: Option<RecomputedPass<'a>>,
}

impl Learner {
    /// A model at the start of training. It must be on an autodiff device.
    pub fn new(gpt: Gpt, optim: OptimSettings, seed: u64) -> Learner {
        let matrices = match gpt.prediction_head() {
            None => matrices_of(gpt.config()),
            Some(_) => matrices_with_head(gpt.config()),
        };
        Learner {
            gpt: gpt.with_precision(optim.precision),
            optimizer: Optimizer::new(optim, matrices),
            objective: ObjectiveSettings::default().objective(),
            routers: RouterLossWeights::default(),
            seed,
            shards: None,
        }
    }

    /// Sets another objective.
    #[must_use]
    pub fn with_objective(self, objective: ObjectiveSettings) -> Learner {
        Learner { objective: objective.objective(), ..self }
    }

    /// Adds losses of the model's routers.
    #[must_use]
    pub fn with_router_losses(self, routers: RouterLossWeights) -> Learner {
        Learner { routers, ..self }
    }

    /// The training objective.
    pub fn objective(&self) -> &dyn Objective {
        &*self.objective
    }

    /// The step `step` of these micro-batches.
    pub fn step_index<'a>(&self, step: usize, micro_batches: impl Iterator<Item = &'a Batch>) -> StepIndex {
        StepIndex::new(step, self.objective(), micro_batches)
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

    /// Sums the gradients of micro-batches, given with the numbers of their micro-steps in order, as a tree (see
    /// [`tree_sum`](super::tree_sum)). `None` without micro-batches. Reads nothing back from the device, unless the objective does.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
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

    /// The losses of one micro-batch, its part of the losses of the step.
    ///
    /// # Errors
    /// The device cannot be read, by an objective that does, or for the losses of routers.
    pub fn forward<'a>(&'a self, index: StepIndex, micro_step: usize, batch: &'a Batch) -> Result<ForwardResult<'a>> {
        let dropout_seed = mix(mix(mix(self.seed) ^ index.step as u64) ^ micro_step as u64);
        let settings = self.optimizer.settings();
        let how = (settings.z_loss, self.routers, settings.recompute);
        let mut pass = TrainingPass::new(&self.gpt, batch, dropout_seed, how);
        let losses = self.objective.losses(&mut pass, index)?;
        let (losses, balance) = match self.routers.are_zero() {
            true => (losses, None),
            false => {
                let total = if index.total_weight == 0.0 { 1.0 } else { index.total_weight };
                pass.add_router_losses(losses, self.objective.weight(batch) / total)?
            }
        };
        Ok(ForwardResult { losses, balance, recomputed: pass.into_recomputed() })
    }

    /// The gradients of a result of [`forward`](Self::forward).
    pub fn backward(&self, ForwardResult { losses, balance, recomputed }: ForwardResult<'_>) -> LossGradients {
        let taken = |gradients| Gradients::from_backward(&self.gpt, gradients);
        let gradients = match recomputed {
            None => taken(losses.objective.backward()),
            Some(pass) => {
                let mut all = Gradients::default();
                pass.backward(losses.objective, &mut |part| all = Gradients::sum(mem::take(&mut all), taken(part)));
                all
            }
        };
        LossGradients { loss: losses.cross_entropy, gradients, balance }
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
