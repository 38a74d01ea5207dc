//! Causal self-attention: positions and grouped heads around the attention operations.

use std::ops::Range;

use burn::tensor::{Tensor, activation::sigmoid};

pub use crate::forward_pass::{AttentionContext, Dense, Trace};
use crate::{
    forward_pass::{AttentionMask, ForwardPass, LayerPass},
    ops::{self, AttentionOptions, LinearParts, NormParts, QkNormParts, Qkv, SelfAttention},
};

/// Applies the input norm and the attention of `layer` to `x [n_rows, d_model]`: the outputs of the heads,
/// `[n_rows, n_heads * value_dim]`, before the output projection.
pub(crate) fn attend(
    layer: usize,
    x: Tensor<2>,
    (in_norm, inner): (Option<NormParts>, &SelfAttention<NormParts, LinearParts<'_>>),
    pass: &mut ForwardPass<'_>,
) -> Tensor<2> {
    let LayerPass { context, mask: AttentionMask { options, dense_bias }, rotation, query_factors } = pass.layer(layer);
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let [n_rows, _] = x.dims();
    let qkv = match (&inner.qkv, in_norm) {
        (Qkv::Stacked(qkv), Some(norm)) => ops::normed_linear(x, norm, qkv.clone()),
        (Qkv::Stacked(qkv), None) => ops::linear_with_lora(x, qkv.clone()),
        (Qkv::Latent(latent), norm) => ops::latent_qkv(x, norm, latent),
    };
    let (gates, qkv) = match inner.is_gated {
        true => {
            let ([_, width], gate_width) = (qkv.dims(), n_heads * head_dim);
            let gates = qkv.clone().slice([0..n_rows, 0..gate_width]);
            (Some(gates), qkv.slice([0..n_rows, gate_width..width]))
        }
        false => (None, qkv),
    };
    let split = |qkv: Tensor<2>| {
        let qkv = qkv.reshape([n_rows, n_heads + 2 * n_kv_heads, head_dim]);
        let heads = |range: Range<usize>| qkv.clone().slice([0..n_rows, range, 0..head_dim]);
        [heads(0..n_heads), heads(n_heads..n_heads + n_kv_heads), heads(n_heads + n_kv_heads..n_heads + 2 * n_kv_heads)]
    };
    let flat = |x: Tensor<3>| {
        let [_, n_heads, _] = x.dims();
        x.reshape([n_rows, n_heads * head_dim])
    };
    let (qkv, rotation) = match inner.qk_norms.clone() {
        Some(QkNormParts { norms, span, after_rope: true }) => {
            let rotated = rotation.into_iter().fold(qkv, |qkv, rotation| ops::rope_qk(qkv, rotation, options));
            (ops::qk_norm(rotated, norms, span, options), None)
        }
        Some(QkNormParts { norms, span, after_rope: false }) => (ops::qk_norm(qkv, norms, span, options), rotation),
        None => (qkv, rotation),
    };
    let qkv = match query_factors {
        Some(factors) => ops::scale_queries(qkv, factors, options),
        None => qkv,
    };
    let attended = match context {
        AttentionContext::Dense(dense) if !dense.traces_attention() => {
            let precision = inner.out.weight.precision();
            let how = (rotation, inner.sinks.clone());
            ops::rope_and_attend(qkv, how, dense.batch, dense.positions.clone(), options, precision)
        }
        AttentionContext::Dense(dense) => {
            let [q, k, v] = split(qkv);
            let rotated = |x: Tensor<3>| match rotation {
                Some(rotation) => ops::rope(x, rotation),
                None => x,
            };
            let qkv = [rotated(q), rotated(k), v].map(flat);
            let added = (dense_bias.clone(), inner.sinks.clone());
            let (attended, probs) = ops::attention_dense(qkv, added, dense.batch, options);
            if let Some(trace) = &mut dense.trace {
                trace.record_attention(layer, probs);
            }
            attended
        }
        AttentionContext::Paged(step) => step.attend(layer, qkv, (rotation, inner.sinks.clone()), options),
    };
    match (gates, &inner.qkv) {
        (Some(gates), _) => attended * sigmoid(gates),
        // Without what follows narrower values.
        (None, Qkv::Latent(latent)) if latent.heads.value_dim < head_dim => {
            let value_dim = latent.heads.value_dim;
            let heads = attended.reshape([n_rows, n_heads, head_dim]).slice([0..n_rows, 0..n_heads, 0..value_dim]);
            heads.reshape([n_rows, n_heads * value_dim])
        }
        (None, _) => attended,
    }
}
