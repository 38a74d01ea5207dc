//! The forward pass over a micro-batch in training.

use anyhow::{Context, Result};
use burn::tensor::{Int, Tensor};
use hearth_model::{
    TokenId,
    gpt::{Gpt, RouterLogits, RouterLossWeights, recompute::RecomputedPass},
    ops::{Losses, Targets},
};

use crate::data::loader::{Batch, ids_on, mix};

/// How evenly routers use their experts.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterBalance {
    /// The load-balancing loss, times the share of the micro-batches in the step.
    pub loss: f64,
    /// How often each expert is chosen, over all layers.
    pub counts: Vec<u64>,
}

impl RouterBalance {
    /// The load of the most used expert, relative to a uniform load.
    pub fn most_load(&self) -> f64 {
        let most = self.counts.iter().copied().max().unwrap_or_default();
        most as f64 * self.counts.len() as f64 / self.counts.iter().sum::<u64>().max(1) as f64
    }
}

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
    routers: RouterLossWeights,
    /// Keep only the blocks' inputs, see [`OptimSettings::recompute`](crate::config::OptimSettings::recompute).
    recomputes: bool,
    recomputed: Option<RecomputedPass<'a>>,
    /// The router logits of all rows; with `recomputes`, the last block's are separate.
    router_logits: [RouterLogits; 2],
}

impl<'a> TrainingPass<'a> {
    /// A pass of `gpt` over `batch`; `z_loss` and `recomputes` are settings in `optim`, and `routers` are weights of losses.
    pub(crate) fn new(
        gpt: &'a Gpt,
        batch: &'a Batch,
        dropout_seed: u64,
        (z_loss, routers, recomputes): (f64, RouterLossWeights, bool),
    ) -> TrainingPass<'a> {
        let (inputs, targets) = batch.to_device(&gpt.device().autodiff());
        TrainingPass {
            gpt,
            batch,
            inputs,
            targets,
            dropout_seed,
            z_loss,
            routers,
            recomputes,
            recomputed: None,
            router_logits: Default::default(),
        }
    }

    /// The hidden states of the inputs, `[batch_size * seq_len, d_model]`.
    pub fn hidden(&mut self) -> Tensor<2> {
        let (gpt, batch, seed) = (self.gpt, self.batch, self.dropout_seed);
        let device = gpt.device().autodiff();
        let context = || batch.context_with_source(gpt, &device, Some(seed));
        let has_router_losses = !self.routers.are_zero();
        if !self.recomputes {
            if !has_router_losses {
                return self.gpt.forward(self.inputs.clone(), context());
            }
            let (hidden, logits) = self.gpt.forward_routed(self.inputs.clone(), context());
            self.router_logits[1] = logits;
            return hidden;
        }
        let (hidden, logits, pass) =
            self.gpt.forward_routed_recomputed(self.inputs.clone(), context, has_router_losses);
        self.router_logits = logits;
        self.recomputed = Some(pass);
        hidden
    }

    /// Cross entropies from hidden states: the mean over the targets, or the weighted sum. The objective includes the z-loss.
    pub fn cross_entropy_of(&self, hidden: Tensor<2>, weights: Option<Vec<f32>>) -> Losses {
        self.gpt.losses(hidden, Targets { ids: self.targets.clone(), weights }, self.z_loss)
    }

    /// [`hidden`](Self::hidden) and their cross entropies with label smoothing.
    pub fn smoothed_cross_entropy(&mut self, weights: Option<Vec<f32>>, label_smoothing: f64) -> Losses {
        let hidden = self.hidden();
        let targets = Targets { ids: self.targets.clone(), weights };
        self.gpt.smoothed_losses(hidden, targets, [self.z_loss, label_smoothing])
    }

    /// [`hidden`](Self::hidden) and [`cross_entropy_of`](Self::cross_entropy_of) in one, which takes less memory.
    pub fn cross_entropy(&mut self, weights: Option<Vec<f32>>) -> Losses {
        if self.recomputes || !self.routers.are_zero() {
            let hidden = self.hidden();
            return self.cross_entropy_of(hidden, weights);
        }
        let targets = Targets { ids: self.targets.clone(), weights };
        let context = self.batch.context(Some(self.dropout_seed));
        self.gpt.training_losses(self.inputs.clone(), context, targets, self.z_loss)
    }

    /// The weighted sum of cross entropies, `[1]`, of the model's prediction head for the hidden states of the inputs:
    /// `ids` are the tokens after the targets, `weights` their weights.
    ///
    /// # Errors
    /// The model has no prediction head.
    pub fn head_cross_entropy(&self, hidden: Tensor<2>, (ids, weights): (Vec<TokenId>, Vec<f32>)) -> Result<Tensor<1>> {
        let head = self.gpt.prediction_head().context("the model has no prediction head to train")?;
        let context = self.batch.context(Some(mix(self.dropout_seed)));
        let of_head = head.forward(self.targets.clone(), hidden, context);
        let ids = ids_on(&ids, &self.gpt.device().autodiff());
        Ok(head.losses(of_head, Targets { ids, weights: Some(weights) }).objective)
    }

    /// Adds the losses of the routers to the objective, times the share of the micro-batch in the step. Padding does not count.
    ///
    /// # Errors
    /// The device cannot be read.
    pub(crate) fn add_router_losses(&mut self, losses: Losses, share: f64) -> Result<(Losses, Option<RouterBalance>)> {
        let [earlier, last] = std::mem::take(&mut self.router_logits);
        let counted = self.batch.weights.as_ref().map(|weights| {
            let context = self.batch.context_tokens.as_deref();
            let is_row = |(row, weight): (usize, &f32)| *weight > 0.0 || context.is_some_and(|context| context[row]);
            weights.iter().enumerate().map(is_row).collect::<Vec<_>>()
        });
        let all = earlier.with(&last);
        let Some(routers) = self.gpt.router_losses(&all, counted.as_deref(), self.routers)? else {
            return Ok((losses, None));
        };
        let balance = RouterBalance { loss: routers.balance * share, counts: routers.counts.clone() };
        let routers = routers.scaled(share);
        let objective = match routers.objective(last) {
            Some(of_routers) => losses.objective + of_routers,
            None => losses.objective,
        };
        self.recomputed = self.recomputed.take().map(|pass| pass.with_router_losses(Some(routers)));
        Ok((Losses { objective, ..losses }, Some(balance)))
    }

    /// The data for recomputing blocks in the backward pass.
    pub(crate) fn into_recomputed(self) -> Option<RecomputedPass<'a>> {
        self.recomputed
    }
}
