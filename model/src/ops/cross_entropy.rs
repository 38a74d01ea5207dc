//! The training loss, from hidden states.

use burn::tensor::{Int, Tensor, activation::log_softmax};

use super::{Weight, linear, soft_cap};

/// Mean of `-ln p(target)` in nats over the rows, where `p = softmax(hidden W^T + b)`: hidden `[n_rows, d_model]`, weight
/// `[vocab_size, d_model]`, bias `[vocab_size]`, targets `[n_rows]`; the result is `[1]`. Logits are capped by
/// [`soft_cap`] where there is a cap.
///
/// It takes hidden states and not logits, so that a faster body need never hold a batch's logits at once.
pub(crate) fn linear_cross_entropy(
    hidden: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    softcap: Option<f64>,
    targets: Tensor<1, Int>,
) -> Tensor<1> {
    let logits = linear(hidden, weight, bias);
    let logits = match softcap {
        Some(cap) => soft_cap(logits, cap),
        None => logits,
    };
    let log_probs = log_softmax(logits, 1);
    log_probs.gather(1, targets.unsqueeze_dim(1)).mean().neg()
}
