//! Causal self-attention: projections, positions and grouped heads around the attention operations.

use std::ops::Range;

use burn::{module::Module, tensor::Tensor};

pub use crate::forward_pass::{AttentionContext, Dense, Trace};
use crate::{
    config::QkNormSpan,
    error::Result,
    forward_pass::{AttentionMask, ForwardPass},
    layers::{Linear, Norm},
    ops::{self, AttentionOptions, NormParts, QkNormParts},
    params::{ParamList, ParamSource},
};

/// Masked multi-head self-attention with grouped key and value heads.
#[derive(Module, Debug)]
pub(crate) struct CausalSelfAttention {
    // Queries, keys and values in one matrix: one product instead of three.
    qkv: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    out: Linear,
    #[module(skip)]
    norm_span: QkNormSpan,
}

impl CausalSelfAttention {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self {
            qkv: Linear::new(&format!("{path}.qkv"), params)?,
            q_norm: Norm::if_any(&format!("{path}.q_norm"), params)?,
            k_norm: Norm::if_any(&format!("{path}.k_norm"), params)?,
            out: Linear::new(&format!("{path}.out"), params)?,
            norm_span: params.config.qk_norm_span,
        })
    }

    /// The projection to queries, keys and values, and the output projection.
    pub(crate) fn projections(&self) -> [&Linear; 2] {
        [&self.qkv, &self.out]
    }

    pub(crate) fn projections_mut(&mut self) -> [&mut Linear; 2] {
        [&mut self.qkv, &mut self.out]
    }

    /// The norms of queries and keys, if there are any.
    pub(crate) fn qk_norms(&self) -> Option<QkNormParts<NormParts>> {
        let (q_norm, k_norm) = self.q_norm.as_ref().zip(self.k_norm.as_ref())?;
        Some(QkNormParts { norms: [q_norm.parts(), k_norm.parts()], span: self.norm_span })
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        self.qkv.list_params(&format!("{path}.qkv"), list);
        self.q_norm.iter().for_each(|norm| norm.list_params(&format!("{path}.q_norm"), list));
        self.k_norm.iter().for_each(|norm| norm.list_params(&format!("{path}.k_norm"), list));
        self.out.list_params(&format!("{path}.out"), list);
    }
}

/// Applies `block`'s input norm and attention to `x [n_rows, d_model]`: the outputs of the heads,
/// `[n_rows, n_heads * head_dim]`, before the output projection.
pub(crate) fn attend(layer: usize, x: Tensor<2>, block: &ops::Block<'_>, pass: &mut ForwardPass<'_>) -> Tensor<2> {
    let (context, AttentionMask { options, dense_bias }, rotation) = pass.layer(layer);
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let [n_rows, _] = x.dims();
    let qkv = match block.attn.in_norm.clone() {
        Some(norm) => ops::normed_linear(x, norm, block.qkv.clone()),
        None => ops::linear_with_lora(x, block.qkv.clone()),
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
    let qkv = match block.qk_norms.clone() {
        Some(QkNormParts { norms, span }) => ops::qk_norm(qkv, norms, span, options),
        None => qkv,
    };
    match context {
        AttentionContext::Dense(dense) if !dense.traces_attention() => {
            let precision = block.qkv.weight.precision();
            ops::rope_and_attend(qkv, rotation, dense.batch, dense.positions.clone(), options, precision)
        }
        AttentionContext::Dense(dense) => {
            let [q, k, v] = split(qkv);
            let rotated = |x: Tensor<3>| match rotation {
                Some(rotation) => ops::rope(x, rotation),
                None => x,
            };
            let qkv = [rotated(q), rotated(k), v].map(flat);
            let (attended, probs) = ops::attention_dense(qkv, dense_bias.clone(), dense.batch, options);
            if let Some(trace) = &mut dense.trace {
                trace.record_attention(layer, probs);
            }
            attended
        }
        AttentionContext::Paged(step) => step.attend(layer, qkv, rotation, options),
    }
}
