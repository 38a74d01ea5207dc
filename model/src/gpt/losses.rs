//! Losses, from hidden states: for training, evaluation and comparing models.

use burn::tensor::{Int, Tensor};

use super::Gpt;
use crate::{
    error::Result,
    gpt::forward_pass::AttentionContext,
    ops::{self, LossOptions, Losses, Targets, read_ids},
};

impl Gpt {
    /// Cross entropy in nats, `[1]`, of `hidden [n_rows, d_model]` and the ids that follow, `[n_rows]`: the mean over
    /// the rows, or the weighted sum if the targets have weights.
    ///
    /// # Panics
    /// When the number of targets or weights is not the number of rows.
    pub fn loss(&self, hidden: Tensor<2>, targets: impl Into<Targets>) -> Tensor<1> {
        self.losses(hidden, targets, 0.0).objective
    }

    /// As [`loss`](Self::loss), for training: the objective adds `z_loss` times the mean (or the weighted sum) of
    /// `ln(Z)^2`, where `Z` is the denominator of the softmax. This keeps logits from drifting
    /// ([PaLM](https://arxiv.org/abs/2204.02311), 5).
    ///
    /// # Panics
    /// As [`loss`](Self::loss).
    pub fn losses(&self, hidden: Tensor<2>, targets: impl Into<Targets>, z_loss: f64) -> Losses {
        self.smoothed_losses(hidden, targets, [z_loss, 0.0])
    }

    /// As [`losses`](Self::losses), with label smoothing: the share `label_smoothing` of a target's probability is
    /// spread evenly over all tokens ([Szegedy et al., 2015](https://arxiv.org/abs/1512.00567), 7). The cross entropy
    /// is reported without it.
    ///
    /// # Panics
    /// As [`loss`](Self::loss).
    pub fn smoothed_losses(
        &self,
        hidden: Tensor<2>,
        targets: impl Into<Targets>,
        [z_loss, label_smoothing]: [f64; 2],
    ) -> Losses {
        let options = LossOptions { softcap: self.config.logit_softcap, z_loss, label_smoothing };
        ops::linear_cross_entropy(self.output_input(hidden), self.output(), options, targets.into())
    }

    /// The Kullback-Leibler divergence `KL(former || hidden)` of the predictions from `former` and from `hidden`, in
    /// nats: the sum over the rows, weighted by `shares`, `[1]`. Both are `[n_rows, d_model]`; `former` is without
    /// autodiff.
    ///
    /// # Panics
    /// When the number of shares is not the number of rows.
    pub fn divergence(&self, hidden: Tensor<2>, former: Tensor<2>, shares: Vec<f32>) -> Tensor<1> {
        let [hidden, former] = [hidden, former].map(|hidden| self.output_input(hidden));
        ops::linear_divergence(hidden, former, self.output(), self.config.logit_softcap, shares)
    }

    /// Cross entropy of each row of `hidden [n_rows, d_model]` in nats, without gradients; 0 for rows of weight 0. The
    /// model must be without autodiff.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) when the device cannot be read.
    ///
    /// # Panics
    /// When the number of targets is not the number of rows.
    pub fn token_losses(&self, hidden: Tensor<2>, targets: impl Into<Targets>) -> Result<Vec<f32>> {
        let Targets { ids, weights } = targets.into();
        let targets = (read_ids(ids)?, weights);
        ops::token_losses(self.output_input(hidden), self.output(), self.config.logit_softcap, targets)
    }

    /// [`forward`](Self::forward) and [`losses`](Self::losses) in one.
    ///
    /// # Panics
    /// As both.
    pub fn training_losses(
        &self,
        token_ids: Tensor<1, Int>,
        context: AttentionContext<'_>,
        targets: impl Into<Targets>,
        z_loss: f64,
    ) -> Losses {
        self.losses(self.forward(token_ids, context), targets, z_loss)
    }
}
