//! Norms of queries and keys, between projection and rotation.

use burn::tensor::Tensor;

use super::{
    AttentionOptions, NormParts, Placement, Rotation, Rows, cpu, cube, norm_reference, rope,
    training::apply_on_its_device, types::QkNormalize,
};
use crate::config::QkNormSpan;

/// Normalizes the queries and keys in `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, each head separately or all
/// together according to `span`; values do not change. The norms' weights are `[head_dim]`, or as wide as all heads
/// together. If each head has its own weight, there are no biases.
pub(crate) fn qk_norm(
    qkv: Tensor<2>,
    norms: [NormParts; 2],
    span: QkNormSpan,
    options: &AttentionOptions,
) -> Tensor<2> {
    let [q_norm, k_norm] = &norms;
    let are_alike = q_norm.options == k_norm.options && q_norm.bias.is_none() && k_norm.bias.is_none();
    let norm = q_norm.options;
    match Placement::of(&qkv.device()) {
        Placement::Cpu => {
            let norms = norms.each_ref().map(cpu::NormMemory::of);
            let norms = norms.each_ref().map(cpu::NormMemory::values);
            cpu::changed(qkv, |qkv| cpu::qk_norm(qkv, &norms, span, options))
        }
        _ if !are_alike || span == QkNormSpan::EachHead => qk_norm_reference(qkv, norms, span, options),
        Placement::Gpu => cube::qk_norm(qkv, norms.map(|norm| norm.weight), span, options, norm),
        Placement::CpuTraining | Placement::GpuTraining => {
            let op = QkNormalize { span, options: options.clone(), norm };
            let [queries, keys] = norms.map(|norm| norm.weight);
            apply_on_its_device(vec![qkv.into(), queries.into(), keys.into()], op)
        }
    }
}

/// Normalizes each head of `x [n_rows, n_heads * head_dim]` separately; the norm's weight is `[head_dim]`.
pub(crate) fn head_norm(x: Tensor<2>, norm: NormParts) -> Tensor<2> {
    let (dims @ [n_rows, width], [head_dim]) = (x.dims(), norm.weight.dims());
    let n_heads = width / head_dim;
    super::norm(x.reshape([n_rows * n_heads, head_dim]), norm.weight, norm.bias, norm.options).reshape(dims)
}

/// Multiplies the queries in `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` by a factor for each row, `[n_rows, 1]`.
pub(crate) fn scale_queries(qkv: Tensor<2>, factors: &Rows, options: &AttentionOptions) -> Tensor<2> {
    let [n_rows, width] = qkv.dims();
    let q_width = options.n_heads * options.head_dim;
    let queries = qkv.clone().slice([0..n_rows, 0..q_width]) * factors.tensor();
    Tensor::cat(vec![queries, qkv.slice([0..n_rows, q_width..width])], 1)
}

/// [`rope`](super::rope) of the queries and keys in `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`.
pub(crate) fn rope_qk(qkv: Tensor<2>, rotation: &Rotation, options: &AttentionOptions) -> Tensor<2> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let [n_rows, width] = qkv.dims();
    let n_rotated = n_heads + n_kv_heads;
    let qk = qkv.clone().slice([0..n_rows, 0..n_rotated * head_dim]).reshape([n_rows, n_rotated, head_dim]);
    let qk = rope(qk, rotation).reshape([n_rows, n_rotated * head_dim]);
    Tensor::cat(vec![qk, qkv.slice([0..n_rows, n_rotated * head_dim..width])], 1)
}

/// [`qk_norm`] in plain Burn operations.
pub(crate) fn qk_norm_reference(
    qkv: Tensor<2>,
    norms: [NormParts; 2],
    span: QkNormSpan,
    options: &AttentionOptions,
) -> Tensor<2> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let [n_rows, width] = qkv.dims();
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let part = |start: usize, width: usize| qkv.clone().slice([0..n_rows, start..start + width]);
    let normed = |x: Tensor<2>, NormParts { weight, bias, options }: NormParts| {
        let dims @ [n_rows, width] = x.dims();
        if span == QkNormSpan::EachHead {
            let of_head = |first: usize| {
                let (columns, bias) = (first..first + head_dim, bias.clone());
                let head = x.clone().slice([0..n_rows, columns.clone()]);
                norm_reference(head, weight.clone().slice([columns]), bias, options)
            };
            return Tensor::cat((0..width).step_by(head_dim).map(of_head).collect(), 1);
        }
        let n_heads = if span == QkNormSpan::Head { width / head_dim } else { 1 };
        norm_reference(x.reshape([n_rows * n_heads, width / n_heads]), weight, bias, options).reshape(dims)
    };
    let [q_norm, k_norm] = norms;
    let (q, k) = (normed(part(0, q_width), q_norm), normed(part(q_width, kv_width), k_norm));
    Tensor::cat(vec![q, k, part(q_width + kv_width, width - q_width - kv_width)], 1)
}
