//! AdamW ([Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101)) for one parameter. Only matrices decay;
//! embeddings are matrices and decay, as in nanoGPT.

use burn::tensor::Tensor;
use hearth_model::ops::{self, AdamWStep};

use crate::config::OptimSettings;

/// Settings of one update of one parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) lr: f64,
    pub(super) weight_decay: f64,
    /// Number of updates, including this one.
    pub(super) n_updates: usize,
}

/// Returns the new value of a flat parameter, and its new moments: running averages of gradients and of their squares.
pub(super) fn update(
    value: Tensor<1>,
    gradient: Tensor<1>,
    moments: Option<(Tensor<1>, Tensor<1>)>,
    settings: &OptimSettings,
    rate: Rate,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let OptimSettings { beta1, beta2, eps, .. } = *settings;
    let Rate { lr, weight_decay, n_updates } = rate;
    let step = AdamWStep { lr, beta1, beta2, eps, weight_decay, n_updates };
    ops::adamw(value, gradient, moments.map(|(first, second)| [first, second]), step)
}
