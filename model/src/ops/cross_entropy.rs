//! The training loss, from hidden states.

use burn::tensor::{Int, Tensor, activation::log_softmax};

use super::{Weight, linear};

/// Mean of `-ln p(target)` in nats over the rows, where `p = softmax(hidden W^T + b)`: hidden `[n_rows, d_model]`, weight
/// `[vocab_size, d_model]`, bias `[vocab_size]`, targets `[n_rows]`; the result is `[1]`.
///
/// It takes hidden states and not logits, so that a faster body need never hold a batch's logits at once.
pub fn linear_cross_entropy(
    hidden: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    targets: Tensor<1, Int>,
) -> Tensor<1> {
    let log_probs = log_softmax(linear(hidden, weight, bias), 1);
    log_probs.gather(1, targets.unsqueeze_dim(1)).mean().neg()
}
