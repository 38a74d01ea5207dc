//! Causal self-attention: positions and grouped heads around the attention operations.

use std::ops::Range;

use burn::tensor::Tensor;

pub use crate::gpt::forward_pass::{AttentionContext, Dense, Source, Trace};
use crate::{
    gpt::forward_pass::{AttentionMask, ForwardPass, LayerPass},
    ops::{self, AttentionOptions, CrossAttention, KvSource, LinearParts, NormParts, QkNormParts, Qkv, SelfAttention},
};

/// Applies the input norm and the attention of `layer` to `x [n_rows, d_model]`: the outputs of the heads,
/// `[n_rows, n_heads * value_dim]`, before the output projection.
pub(crate) fn attend(
    layer: usize,
    x: Tensor<2>,
    (in_norm, inner): (Option<NormParts>, &SelfAttention<NormParts, LinearParts<'_>>),
    pass: &mut ForwardPass<'_>,
) -> Tensor<2> {
    let LayerPass { context, mask, rotation, query_factors, kv_layer, lends, lent } = pass.layer(layer);
    let AttentionMask { options, dense_bias, .. } = mask;
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let [n_rows, _] = x.dims();
    let columns = |x: &Tensor<2>, columns: Range<usize>| x.clone().slice([0..n_rows, columns]);
    let qkv = match (&inner.qkv, in_norm) {
        (Qkv::Stacked(qkv), Some(norm)) => ops::normed_linear(x, norm, qkv.clone()),
        (Qkv::Stacked(qkv), None) => ops::linear_with_lora(x, qkv.clone()),
        (Qkv::Latent(latent), norm) => ops::latent_qkv(x, norm, latent),
    };
    let qkv = match inner.clip {
        Some(limit) => qkv.clamp(-limit, limit),
        None => qkv,
    };
    let (gates, qkv) = match inner.is_gated {
        true => {
            let [_, width] = qkv.dims();
            (Some(columns(&qkv, 0..q_width)), columns(&qkv, q_width..width))
        }
        false => (None, qkv),
    };
    let qkv = match inner.kv {
        KvSource::KeysOnly => Tensor::cat(vec![qkv.clone(), columns(&qkv, q_width..q_width + kv_width)], 1),
        KvSource::Projected | KvSource::OtherLayer => qkv,
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
        Some(QkNormParts { norms: [q_norm, _], .. }) if inner.kv == KvSource::OtherLayer => {
            (ops::head_norm(qkv, q_norm), rotation)
        }
        Some(QkNormParts { norms, span, after_rope: true }) => {
            let rotated = rotation.into_iter().fold(qkv, |qkv, rotation| ops::rope_qk(qkv, rotation, options));
            (ops::qk_norm(rotated, norms, span, options), None)
        }
        Some(QkNormParts { norms, span, after_rope: false }) => (ops::qk_norm(qkv, norms, span, options), rotation),
        None => (qkv, rotation),
    };
    let qkv = match inner.v_norm.clone() {
        Some(norm) => {
            let first = q_width + kv_width;
            let values = ops::head_norm(columns(&qkv, first..first + kv_width), norm);
            Tensor::cat(vec![columns(&qkv, 0..first), values], 1)
        }
        None => qkv,
    };
    let qkv = match query_factors {
        Some(factors) => ops::scale_queries(qkv, factors, options),
        None => qkv,
    };
    let qkv = match context {
        AttentionContext::Dense(_) if kv_layer != layer => {
            let lent = lent.clone().unwrap_or_else(|| unreachable!("layer {kv_layer} ran before"));
            Tensor::cat(vec![qkv, lent], 1)
        }
        AttentionContext::Dense(_) if lends => {
            *lent = Some(columns(&qkv, q_width..q_width + 2 * kv_width));
            qkv
        }
        AttentionContext::Dense(_) | AttentionContext::Paged(_) => qkv,
    };
    let attended = match context {
        AttentionContext::Dense(dense) if dense_bias.is_none() && !dense.traces_attention() => {
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
        AttentionContext::Paged(step) => {
            let how = (rotation, inner.sinks.clone());
            match kv_layer == layer {
                true => step.attend(layer, qkv, how, options),
                false => step.attend_to(kv_layer, qkv, how, options),
            }
        }
    };
    match (gates, &inner.qkv) {
        (Some(gates), _) => ops::sigmoid_gated(attended, gates),
        // Removes the padding of values that are narrower than keys.
        (None, Qkv::Latent(latent)) if latent.heads.value_dim < head_dim => {
            let value_dim = latent.heads.value_dim;
            let heads = attended.reshape([n_rows, n_heads, head_dim]).slice([0..n_rows, 0..n_heads, 0..value_dim]);
            heads.reshape([n_rows, n_heads * value_dim])
        }
        (None, _) => attended,
    }
}

/// Applies the input norm and the attention of decoder block `layer` to the rows of the encoder: from `x [n_rows, d_model]` to the
/// outputs of the heads, `[n_rows, n_heads * head_dim]`, before the output projection.
///
/// # Panics
/// If the pass has no source.
pub(crate) fn attend_to_source(
    layer: usize,
    x: Tensor<2>,
    (in_norm, inner): (Option<NormParts>, &CrossAttention<LinearParts<'_>>),
    pass: &mut ForwardPass<'_>,
) -> Tensor<2> {
    let queries = match in_norm {
        Some(norm) => ops::normed_linear(x, norm, inner.q.clone()),
        None => ops::linear_with_lora(x, inner.q.clone()),
    };
    let (context, options, bias) = pass.source();
    match context {
        AttentionContext::Dense(Dense { batch, source: Some(source), trace, .. }) => {
            let kv = ops::linear_with_lora(source.encoded.clone(), inner.kv.clone());
            let ([n_rows, _], width) = (kv.dims(), options.n_kv_heads * options.head_dim);
            let [keys, values] = [0..width, width..2 * width].map(|columns| kv.clone().slice([0..n_rows, columns]));
            let inputs = [queries, keys, values];
            let (attended, probs) = ops::attention_dense(inputs, (bias.cloned(), None), *batch, options);
            if let Some(trace) = trace {
                trace.record_cross(layer, probs);
            }
            attended
        }
        AttentionContext::Dense(_) => unreachable!("a decoder with an encoder needs its output: `with_source`"),
        AttentionContext::Paged(step) => step.attend_to_source(layer, queries, options),
    }
}
