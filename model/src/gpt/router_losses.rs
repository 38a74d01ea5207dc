//! The losses of a model's routers, which keep experts evenly used: for training.

use burn::tensor::{Int, Tensor, TensorData, activation};

use super::Gpt;
use crate::{
    config::{Experts, RouterScores},
    error::Result,
    gpt::forward_pass::{AttentionContext, ForwardPass},
    ops::{self, Routes, Routing},
};

/// Weights of the losses of routers in the objective; 0: off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterLossWeights {
    /// Weight of the load-balancing loss ([Switch Transformers](https://arxiv.org/abs/2101.03961), 2.2). Over all rows
    /// of all layers with experts, it is the number of experts times the sum over experts of the share of choices times
    /// the mean probability. A row's choices are the largest probabilities, without a bias. The loss is `n_active` if
    /// all experts are used alike.
    pub balance: f64,
    /// Weight of the z-loss: the mean square of the logarithm of the softmax's denominator, over the same rows
    /// ([ST-MoE](https://arxiv.org/abs/2202.08906), 2.2).
    pub z: f64,
}

impl RouterLossWeights {
    /// Whether both weights are 0.
    pub fn are_zero(self) -> bool {
        self == Self::default()
    }
}

/// The router logits of a pass: `[n_rows, n_experts]` for each layer with experts.
#[derive(Clone, Debug, Default)]
pub struct RouterLogits(pub(crate) Vec<Tensor<2>>);

impl RouterLogits {
    /// The logits in these routes.
    pub(crate) fn of(routes: Option<Vec<Routes>>) -> Self {
        Self(routes.into_iter().flatten().map(|routes| routes.logits).collect())
    }

    /// The logits of these layers, followed by the other layers'.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        Self(self.0.iter().chain(&others.0).cloned().collect())
    }
}

/// The losses of routers over a micro-batch. Each layer's part depends on its own logits, and on how often each expert
/// is chosen over all layers, which has no gradient.
#[derive(Clone, Debug)]
pub struct RouterLosses {
    weights: RouterLossWeights,
    /// Each expert's choices per row, `[n_experts, 1]`.
    choices: Tensor<2>,
    /// The rows that count, `[n_rows, 1]`; `None`: all.
    counted: Option<Tensor<2>>,
    /// Number of counted rows, over all layers.
    n_rows: f64,
    /// How often each expert is chosen.
    pub counts: Vec<u64>,
    /// The load-balancing loss.
    pub balance: f64,
}

impl Gpt {
    /// [`forward`](Self::forward), with the router logits.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_routed(
        &self,
        token_ids: Tensor<1, Int>,
        context: AttentionContext<'_>,
    ) -> (Tensor<2>, RouterLogits) {
        let device = token_ids.device();
        let mut pass = ForwardPass::new(self.config(), context, &device);
        pass.routes = Some(Vec::new());
        let hidden = self.run(token_ids, &mut pass);
        (hidden, RouterLogits::of(pass.routes))
    }

    /// The losses of router `logits`. Rows that are not `counted` are skipped. `None` if no rows are left.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) when the device cannot be read.
    ///
    /// # Panics
    /// When the number of flags is not the number of rows.
    pub fn router_losses(
        &self,
        logits: &RouterLogits,
        counted: Option<&[bool]>,
        weights: RouterLossWeights,
    ) -> Result<Option<RouterLosses>> {
        let (Some(experts), Some(first)) = (&self.config().experts, logits.0.first()) else { return Ok(None) };
        let [n_rows, n_experts] = first.dims();
        counted.iter().for_each(|counted| assert_eq!(counted.len(), n_rows, "flags of rows"));
        let is_counted = |row: usize| counted.is_none_or(|counted| counted[row]);
        let routing = by_probability(experts);
        let (mut counts, mut probabilities) = (vec![0; n_experts], vec![0.0; n_experts]);
        for logits in &logits.0 {
            let plain = if ops::records_gradients(&logits.device()) { logits.clone().inner() } else { logits.clone() };
            let probs = ops::to_f32(ops::read(activation::softmax(plain, 1))?)?;
            let chosen = ops::choose(&probs, None, n_experts, &routing);
            let rows = probs.chunks_exact(n_experts).zip(chosen.chunks_exact(experts.n_active)).enumerate();
            for (_, (probs, chosen)) in rows.filter(|(row, _)| is_counted(*row)) {
                chosen.iter().for_each(|&expert| counts[expert] += 1);
                probabilities.iter_mut().zip(probs).for_each(|(sum, prob)| *sum += f64::from(*prob));
            }
        }
        let n_counted = (0..n_rows).filter(|row| is_counted(*row)).count() * logits.0.len();
        if n_counted == 0 {
            return Ok(None);
        }
        let n_counted = n_counted as f64;
        let products = counts.iter().zip(&probabilities).map(|(count, sum)| *count as f64 * sum);
        let balance = n_experts as f64 * products.sum::<f64>() / (n_counted * n_counted);
        let device = first.device();
        let column = |values: Vec<f32>| {
            let n = values.len();
            Tensor::from_data(TensorData::new(values, [n, 1]), &device)
        };
        let choices = column(counts.iter().map(|count| (*count as f64 / n_counted) as f32).collect());
        let counted =
            counted.map(|counted| column(counted.iter().map(|counted| f32::from(u8::from(*counted))).collect()));
        Ok(Some(RouterLosses { weights, choices, counted, n_rows: n_counted, counts, balance }))
    }
}

/// A choice by the softmax alone.
fn by_probability(experts: &Experts) -> Routing {
    Routing { scores: RouterScores::Softmax, groups: None, ..Routing::of(experts) }
}

impl RouterLosses {
    /// These weights times a factor.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let RouterLossWeights { balance, z } = self.weights;
        Self { weights: RouterLossWeights { balance: balance * factor, z: z * factor }, ..self }
    }

    /// The weighted sum of the losses of these layers, `[1]`; `None` without layers.
    pub fn objective(&self, logits: RouterLogits) -> Option<Tensor<1>> {
        logits.0.into_iter().map(|logits| self.of_layer(logits)).reduce(|one, other| one + other)
    }

    /// The part of a layer, `[1]`.
    fn of_layer(&self, logits: Tensor<2>) -> Tensor<1> {
        let [_, n_experts] = logits.dims();
        let balance = || {
            let of_rows = activation::softmax(logits.clone(), 1).matmul(self.choices.clone());
            of_rows * (self.weights.balance * n_experts as f64 / self.n_rows)
        };
        let z = || {
            let log_share = activation::log_softmax(logits.clone(), 1).narrow(1, 0, 1);
            let log_sum = logits.clone().narrow(1, 0, 1) - log_share;
            log_sum.clone() * log_sum * (self.weights.z / self.n_rows)
        };
        let of_rows = match (self.weights.balance != 0.0, self.weights.z != 0.0) {
            (true, true) => balance() + z(),
            (false, true) => z(),
            (_, false) => balance(),
        };
        match &self.counted {
            Some(counted) => of_rows * counted.clone(),
            None => of_rows,
        }
        .sum()
    }
}
