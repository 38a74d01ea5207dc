//! The operations on Burn's tensors: each checks its operands, gives their memory to a kernel, and wraps the result.

use burn::tensor::{DType, Device, Int, Tensor};
use burn_cubecl::{
    cubecl::{bytes::Bytes, future::block_on, prelude::CubeElement},
    kernel::into_contiguous,
    tensor::CubeTensor,
};

use super::{
    attention::{self},
    device::cube_device,
    epilogue::{Epilogue, LinearOptions},
    gemv,
    launch::{check, part},
    matrix::Matrix,
    optimizer,
    qk_norm::{self, QkNorm},
    rope::{self, HeadLayout},
    rowwise,
    tensors::{in_i32, primitive, wrap, wrap_ints},
    top_k,
};
use crate::{
    config::{Activation, QkNormSpan},
    error::{Error, Result},
    ops::{
        AdamWStep, AttentionOptions, NormOptions, NormParts,
        types::{AttentionPlan, AttentionStep},
    },
};

/// Panics unless these are pools of one size and type, for `n_kv_heads` heads of `head_dim`.
fn check_pools(pools: [&Tensor<2>; 2], n_kv_heads: usize, head_dim: usize) {
    let [keys, values] = pools.map(|pool| (pool.dims(), pool.dtype()));
    let is_possible = keys.0[1] == n_kv_heads * head_dim && matches!(keys.1, DType::F32 | DType::F16);
    assert!(keys == values && is_possible, "pools for {n_kv_heads} heads of {head_dim}, got {keys:?} and {values:?}");
}

/// `x W^T` with bias and residual, where there are any: `[n_rows, d_out]`.
pub(in crate::ops) fn linear(
    x: Tensor<2>,
    matrix: &Matrix,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    let ([n_rows, _], [d_out, d_in]) = (x.dims(), matrix.dims());
    check("the input", &x, [n_rows, d_in]);
    bias.iter().for_each(|bias| check("the bias", bias, [d_out]));
    residual.iter().for_each(|residual| check("the residual", residual, [n_rows, d_out]));
    let epilogue = Epilogue { bias: bias.map(primitive), residual: residual.map(primitive), norm: None };
    let options = LinearOptions { eps: 0.0, weight_offset: 0.0, gate: None };
    wrap(gemv::linear(primitive(x), matrix, epilogue, options))
}

/// RMSNorm of `x`, the product, and the gate, if there is one. Requires [`can_fuse`](super::can_fuse), and a norm without
/// bias.
pub(in crate::ops) fn normed_linear(
    x: Tensor<2>,
    norm: NormParts,
    matrix: &Matrix,
    bias: Option<Tensor<1>>,
    gate: Option<Activation>,
) -> Tensor<2> {
    let ([n_rows, _], [d_out, d_in]) = (x.dims(), matrix.dims());
    check("the input", &x, [n_rows, d_in]);
    check("the norm", &norm.weight, [d_in]);
    bias.iter().for_each(|bias| check("the bias", bias, [d_out]));
    assert!(gate.is_none() || d_out.is_multiple_of(2), "halves of {d_out} outputs");
    let options = LinearOptions { eps: norm.options.eps as f32, weight_offset: norm.options.weight_offset, gate };
    let epilogue = Epilogue { bias: bias.map(primitive), residual: None, norm: Some(primitive(norm.weight)) };
    wrap(gemv::linear(primitive(x), matrix, epilogue, options))
}

/// Rows `ids [n]` of the matrix: `[n, d_in]`.
pub(in crate::ops) fn embedding(matrix: &Matrix, ids: Tensor<1, Int>) -> Tensor<2> {
    wrap(rowwise::embedding(primitive(in_i32(ids)), matrix))
}

/// [`take_rows`](crate::ops::take_rows).
pub(in crate::ops) fn take_rows(x: Tensor<2>, rows: Tensor<1, Int>) -> Tensor<2> {
    check("what has rows", &x, x.dims());
    wrap(rowwise::take_rows(primitive(x), primitive(rows)))
}

/// [`norm`](crate::ops::norm), and [`norm_add`](crate::ops::norm_add) where there is a residual.
pub(in crate::ops) fn norm(x: Tensor<2>, norm: NormParts, residual: Option<Tensor<2>>) -> Tensor<2> {
    let NormParts { weight, bias, options } = norm;
    let dims @ [_, width] = x.dims();
    check("the input", &x, dims);
    check("the weight", &weight, [width]);
    bias.iter().for_each(|bias| check("the bias", bias, [width]));
    residual.iter().for_each(|residual| check("the residual", residual, dims));
    let (bias, residual) = (bias.map(primitive), residual.map(primitive));
    wrap(rowwise::norm(primitive(x), primitive(weight), [bias, residual], options))
}

/// [`qk_norm`](crate::ops::qk_norm), for norms without biases.
pub(in crate::ops) fn qk_norm(
    qkv: Tensor<2>,
    weights: [Tensor<1>; 2],
    span: QkNormSpan,
    options: &AttentionOptions,
    norm: NormOptions,
) -> Tensor<2> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let heads = QkNorm { n_heads, n_kv_heads, head_dim, span };
    let n_rows = qkv.dims()[0];
    check("queries, keys and values", &qkv, [n_rows, (heads.n_heads + 2 * heads.n_kv_heads) * heads.head_dim]);
    weights.iter().zip(heads.widths()).for_each(|(weight, width)| check("the weight", weight, [width]));
    wrap(qk_norm::qk_norm(primitive(qkv), weights.map(primitive), heads, norm))
}

/// [`activate`](crate::ops::activate).
pub(in crate::ops) fn activate(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    check("the input", &x, x.dims());
    wrap(rowwise::activate(primitive(x), kind, false))
}

/// [`gated`](crate::ops::gated).
pub(in crate::ops) fn gated(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    check("gates and what they let through", &gate_up, [n_rows, width / 2 * 2]);
    wrap(rowwise::activate(primitive(gate_up), kind, true))
}

/// Rotates the queries and keys in `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` by `angles [n_rows, 2 half]`, if
/// there are any, and stores keys and values at `slots` of their pools, in place. Returns the queries.
pub(in crate::ops) fn rope_append(
    qkv: Tensor<2>,
    angles: Option<Tensor<2>>,
    pools: [&mut Tensor<2>; 2],
    slots: Tensor<1, Int>,
    options: &AttentionOptions,
) -> Tensor<2> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let half = angles.as_ref().map_or(0, |angles| angles.dims()[1] / 2);
    let heads = HeadLayout { n_heads, n_kv_heads, head_dim, half };
    let n_rows = slots.dims()[0];
    check("queries, keys and values", &qkv, [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]);
    check_angles(angles.as_ref(), n_rows, half);
    check_pools([&*pools[0], &*pools[1]], n_kv_heads, head_dim);
    let angles = angles.unwrap_or_else(|| qkv.clone());
    let operands = [primitive(qkv), primitive(angles), primitive(slots)];
    in_place(pools, |pools| rope::rope_append(operands, pools, heads))
}

/// Panics unless `angles` are cosines and sines of `half` pairs, or `None` with a `half` of 0.
fn check_angles(angles: Option<&Tensor<2>>, n_rows: usize, half: usize) {
    match angles {
        Some(angles) => check("the angles", angles, [n_rows, 2 * half]),
        None => assert_eq!(half, 0, "pairs without angles"),
    }
}

/// Runs an operation that returns its output and the pools that it changed; returns the output. Pools are moved out of
/// their tensors for it, because a kernel copies a pool that anything else refers to.
fn in_place([keys, values]: [&mut Tensor<2>; 2], run: impl FnOnce([CubeTensor; 2]) -> [CubeTensor; 3]) -> Tensor<2> {
    let pools = [&mut *keys, &mut *values].map(|pool| primitive(pool.extract()));
    let [output, changed_keys, changed_values] = run(pools);
    (*keys, *values) = (wrap(changed_keys), wrap(changed_values));
    wrap(output)
}

/// [`rope_append`] and [`attention`] in one, if the step's plan [can fuse](super::AttentionPlan::can_fuse) them.
pub(in crate::ops) fn append_and_attend(
    qkv: Tensor<2>,
    angles: Option<Tensor<2>>,
    pools: [&mut Tensor<2>; 2],
    table: Tensor<1, Int>,
    (step, half): (AttentionStep, usize),
) -> Tensor<2> {
    let AttentionPlan { n_heads, n_kv_heads, head_dim, .. } = step.plan;
    let n_rows = qkv.dims()[0];
    check("queries, keys and values", &qkv, [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]);
    check_angles(angles.as_ref(), n_rows, half);
    check_pools([&*pools[0], &*pools[1]], n_kv_heads, head_dim);
    let angles = angles.unwrap_or_else(|| qkv.clone());
    let (operands, table) = ([primitive(qkv), primitive(angles)], primitive(table));
    in_place(pools, |pools| attention::append_and_attend(operands, pools, table, step, half))
}

/// Attention of `q [n_rows, n_heads * head_dim]` over pools `[n_slots, n_kv_heads * head_dim]`, with the table of
/// `step`.
pub(in crate::ops) fn attention(
    q: Tensor<2>,
    [keys, values]: [&Tensor<2>; 2],
    table: Tensor<1, Int>,
    step: AttentionStep,
) -> Tensor<2> {
    let AttentionPlan { n_heads, n_kv_heads, head_dim, .. } = step.plan;
    check("queries", &q, [q.dims()[0], n_heads * head_dim]);
    check_pools([keys, values], n_kv_heads, head_dim);
    let operands = [q, keys.clone(), values.clone()].map(primitive);
    wrap(attention::attention(operands, primitive(table), step))
}

/// The top `n` tokens of some rows of `logits [n_all_rows, vocab_size]` with their logits, and the logits of other
/// tokens: `[n_rows, 2 n + n_also]`, ids and bits. Each row of `table [n_rows * (1 + n_also)]` has the number of a row
/// of logits and `n_also` other tokens; `sizes` are `n_rows`, `n` and `n_also`.
pub(crate) fn top_k_logits(logits: Tensor<2>, table: Tensor<1, Int>, sizes: [usize; 3]) -> Tensor<2, Int> {
    check("logits", &logits, logits.dims());
    wrap_ints(top_k::top_k(primitive(logits), primitive(table), sizes))
}

/// Starts to read `tensor`, calls `meanwhile`, which may launch what overwrites it, and returns what was read.
///
/// # Errors
/// [`Error::Execution`] if the device failed.
pub(crate) fn read_ints_while<T>(tensor: Tensor<2, Int>, meanwhile: impl FnOnce() -> T) -> Result<(Vec<i32>, T)> {
    let tensor = into_contiguous(primitive(tensor));
    let client = tensor.client.clone();
    let reading = client.read_async(vec![tensor.handle]);
    let done = meanwhile();
    let failed = |what: String| Error::Execution { what };
    let mut read = block_on(reading).map_err(|error| failed(error.to_string()))?;
    let bytes = read.pop().ok_or_else(|| failed("nothing was read".to_owned()))?;
    Ok((i32::from_bytes(&bytes).to_vec(), done))
}

/// Submits what was launched on `device`.
///
/// # Errors
/// [`Error::Execution`] if the device failed.
pub(crate) fn flush(device: &Device) -> Result<()> {
    cube_device(device).client().flush().map_err(|error| Error::Execution { what: error.to_string() })
}

/// Writes the first column of `from [n, width]` to the beginning of `to`, in place even if that is shared.
pub(in crate::ops) fn copy_first_column(from: Tensor<2, Int>, to: Tensor<1, Int>) -> Tensor<1, Int> {
    let to = primitive(to);
    top_k::copy_first_column(primitive(from), &to);
    wrap_ints(to)
}

/// [`adamw`](crate::ops::adamw), in place where nothing else shares the tensors, `[n_values]` each.
pub(in crate::ops) fn adamw(
    value: Tensor<1>,
    gradient: Tensor<1>,
    moments: [Tensor<1>; 2],
    step: AdamWStep,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let dims = value.dims();
    check("the value", &value, dims);
    check("the gradient", &gradient, dims);
    moments.iter().for_each(|moment| check("a moment", moment, dims));
    let [first, second] = moments;
    let [value, first, second] = optimizer::adamw([value, gradient, first, second].map(primitive), step);
    (wrap(value), [first, second].map(wrap))
}

/// Partial sums of the squares of all `gradients`, `[n_values]` each: `[n_sums]`.
pub(in crate::ops) fn square_sums(gradients: &[Tensor<1>]) -> Tensor<1> {
    let lens = gradients.iter().map(|gradient| gradient.dims()[0]);
    let n_sums: usize = lens.map(optimizer::n_square_sums).sum();
    let sums = primitive(Tensor::<1>::empty([n_sums], &gradients[0].device()));
    let mut start = 0;
    let sums = gradients.iter().fold(sums, |sums, gradient| {
        let [len] = gradient.dims();
        check("a gradient", gradient, [len]);
        let sums = optimizer::square_sums(sums, primitive(gradient.clone()), start);
        start += optimizer::n_square_sums(len);
        sums
    });
    wrap(sums)
}

/// Overwrites the memory of `place` with `values`, of the same number. In place even if the tensor is shared: a captured
/// graph reads this memory.
pub(in crate::ops) fn overwrite(place: Tensor<1, Int>, values: Vec<i32>) -> Tensor<1, Int> {
    let place = primitive(place);
    place.client.write(&place.handle, Bytes::from_elems(values));
    wrap_ints(place)
}

/// `len` numbers of `all` from `start`, in the same memory. `start` must have the alignment that the device requires of
/// buffers.
pub(in crate::ops) fn part_of_ints(all: &Tensor<1, Int>, [start, len]: [usize; 2]) -> Tensor<1, Int> {
    wrap_ints(part(&primitive(all.clone()), start, [len].into(), DType::I32))
}

/// As [`part_of_ints`], but the numbers are the bits of f32: a tensor of dimensions `dims`.
pub(in crate::ops) fn rows_in_ints(all: &Tensor<1, Int>, start: usize, dims: [usize; 2]) -> Tensor<2> {
    wrap(part(&primitive(all.clone()), start, dims.into(), DType::F32))
}
