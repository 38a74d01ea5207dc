//! The kernels as operations on Burn's tensors.

use std::sync::Arc;

use burn::{
    backend::{
        Backend, Dispatch, ExtensionType, backend_extension,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Int, Tensor},
};
use burn_cubecl::{CubeBackend, cubecl::bytes::Bytes};

use super::{
    attention::{self, AttentionPlan, AttentionStep},
    epilogue::{Epilogue, LinearOptions},
    launch::{check, part},
    linear as kernels,
    matrix::Matrix,
    optimizer,
    qk_norm::{self, QkNorm},
    rope::{self, HeadLayout},
    rowwise, top_k,
};
use crate::{
    config::Activation,
    ops::{AdamWStep, NormOptions, NormParts},
};

/// An operand that may be absent.
#[derive(ExtensionType)]
pub(super) enum Maybe<B: Backend> {
    Absent,
    Present { tensor: FloatTensor<B> },
}

impl<B: Backend> Maybe<B> {
    fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Absent => None,
            Self::Present { tensor } => Some(tensor),
        }
    }
}

fn maybe<const D: usize>(tensor: Option<Tensor<D>>) -> Maybe<Dispatch> {
    tensor.map_or(Maybe::Absent, |tensor| Maybe::Present { tensor: tensor.into_dispatch() })
}

/// What a kernel fuses with a product; see [`LinearOptions`].
#[derive(ExtensionType)]
pub(super) struct Operands<B: Backend> {
    #[extension_type]
    bias: Maybe<B>,
    #[extension_type]
    residual: Maybe<B>,
    #[extension_type]
    norm: Maybe<B>,
}

#[backend_extension(Cube)]
pub(super) trait CubeOps: Backend {
    fn linear(
        x: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        matrix: Arc<Matrix>,
        options: LinearOptions,
    ) -> FloatTensor<Self>;

    fn embedding(ids: IntTensor<Self>, matrix: Arc<Matrix>) -> FloatTensor<Self>;

    fn take_rows(x: FloatTensor<Self>, rows: IntTensor<Self>) -> FloatTensor<Self>;

    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] residual: Maybe<Self>,
        options: NormOptions,
    ) -> FloatTensor<Self>;

    fn qk_norm(
        qkv: FloatTensor<Self>,
        q_weight: FloatTensor<Self>,
        k_weight: FloatTensor<Self>,
        heads: QkNorm,
        options: NormOptions,
    ) -> FloatTensor<Self>;

    fn activate(x: FloatTensor<Self>, kind: Activation, is_gated: bool) -> FloatTensor<Self>;

    fn rope_append(
        qkv: FloatTensor<Self>,
        angles: FloatTensor<Self>,
        slots: IntTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        heads: HeadLayout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    fn attention(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        table: IntTensor<Self>,
        step: AttentionStep,
    ) -> FloatTensor<Self>;

    fn append_and_attend(
        qkv: FloatTensor<Self>,
        angles: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        table: IntTensor<Self>,
        step: AttentionStep,
        half: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    fn top_k_logits(logits: FloatTensor<Self>, table: IntTensor<Self>, sizes: [usize; 3]) -> IntTensor<Self>;

    fn adamw(
        value: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    fn square_sums(sums: FloatTensor<Self>, values: FloatTensor<Self>, start: usize) -> FloatTensor<Self>;

    fn overwrite(place: IntTensor<Self>, values: Arc<Vec<i32>>) -> IntTensor<Self>;

    fn part_of_ints(all: IntTensor<Self>, at: [usize; 2]) -> IntTensor<Self>;

    fn rows_in_ints(all: IntTensor<Self>, start: usize, dims: [usize; 2]) -> FloatTensor<Self>;
}

impl CubeOps for CubeBackend {
    fn linear(
        x: FloatTensor<Self>,
        operands: Operands<Self>,
        matrix: Arc<Matrix>,
        options: LinearOptions,
    ) -> FloatTensor<Self> {
        let [bias, residual, norm] = [operands.bias, operands.residual, operands.norm].map(Maybe::into_option);
        kernels::linear(x, &matrix, Epilogue { bias, residual, norm }, options)
    }

    fn embedding(ids: IntTensor<Self>, matrix: Arc<Matrix>) -> FloatTensor<Self> {
        rowwise::embedding(ids, &matrix)
    }

    fn take_rows(x: FloatTensor<Self>, rows: IntTensor<Self>) -> FloatTensor<Self> {
        rowwise::take_rows(x, rows)
    }

    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        residual: Maybe<Self>,
        options: NormOptions,
    ) -> FloatTensor<Self> {
        rowwise::norm(x, weight, [bias, residual].map(Maybe::into_option), options)
    }

    fn qk_norm(
        qkv: FloatTensor<Self>,
        q_weight: FloatTensor<Self>,
        k_weight: FloatTensor<Self>,
        heads: QkNorm,
        options: NormOptions,
    ) -> FloatTensor<Self> {
        qk_norm::qk_norm(qkv, [q_weight, k_weight], heads, options)
    }

    fn activate(x: FloatTensor<Self>, kind: Activation, is_gated: bool) -> FloatTensor<Self> {
        rowwise::activate(x, kind, is_gated)
    }

    fn rope_append(
        qkv: FloatTensor<Self>,
        angles: FloatTensor<Self>,
        slots: IntTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        heads: HeadLayout,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        rope::rope_append([qkv, angles, slots], [keys, values], heads).into()
    }

    fn attention(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        table: IntTensor<Self>,
        step: AttentionStep,
    ) -> FloatTensor<Self> {
        attention::attention([q, keys, values], table, step)
    }

    fn append_and_attend(
        qkv: FloatTensor<Self>,
        angles: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        table: IntTensor<Self>,
        step: AttentionStep,
        half: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        attention::append_and_attend([qkv, angles], [keys, values], table, step, half).into()
    }

    fn top_k_logits(logits: FloatTensor<Self>, table: IntTensor<Self>, sizes: [usize; 3]) -> IntTensor<Self> {
        top_k::top_k(logits, table, sizes)
    }

    fn adamw(
        value: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        step: AdamWStep,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        optimizer::adamw([value, gradient, first, second], step).into()
    }

    fn square_sums(sums: FloatTensor<Self>, values: FloatTensor<Self>, start: usize) -> FloatTensor<Self> {
        optimizer::square_sums(sums, values, start)
    }

    fn overwrite(place: IntTensor<Self>, values: Arc<Vec<i32>>) -> IntTensor<Self> {
        // In place even if the tensor is shared: a captured graph reads this memory.
        place.client.write(&place.handle, Bytes::from_elems(Arc::unwrap_or_clone(values)));
        place
    }

    fn part_of_ints(all: IntTensor<Self>, [start, len]: [usize; 2]) -> IntTensor<Self> {
        part(&all, start, [len].into(), DType::I32)
    }

    fn rows_in_ints(all: IntTensor<Self>, start: usize, dims: [usize; 2]) -> FloatTensor<Self> {
        part(&all, start, dims.into(), DType::F32)
    }
}

/// Panics unless these are pools of one size and type, for `n_kv_heads` heads of `head_dim`.
fn check_pools(pools: [&Tensor<2>; 2], n_kv_heads: usize, head_dim: usize) {
    let [keys, values] = pools.map(|pool| (pool.dims(), pool.dtype()));
    let is_possible = keys.0[1] == n_kv_heads * head_dim && matches!(keys.1, DType::F32 | DType::F16);
    assert!(keys == values && is_possible, "pools for {n_kv_heads} heads of {head_dim}, got {keys:?} and {values:?}");
}

/// `x W^T` with bias and residual, where there are any: `[n_rows, d_out]`.
pub(in crate::ops) fn linear(
    x: Tensor<2>,
    matrix: &Arc<Matrix>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    let ([n_rows, _], [d_out, d_in]) = (x.dims(), matrix.dims());
    check("the input", &x, [n_rows, d_in]);
    bias.iter().for_each(|bias| check("the bias", bias, [d_out]));
    residual.iter().for_each(|residual| check("the residual", residual, [n_rows, d_out]));
    let operands = Operands { bias: maybe(bias), residual: maybe(residual), norm: Maybe::Absent };
    let options = LinearOptions { eps: 0.0, weight_offset: 0.0, gate: None };
    Tensor::from_dispatch(Dispatch::linear(x.into_dispatch(), operands, matrix.clone(), options))
}

/// RMSNorm of `x`, the product, and the gate, if there is one. Requires [`can_fuse`](super::can_fuse).
pub(in crate::ops) fn normed_linear(
    x: Tensor<2>,
    norm: Tensor<1>,
    matrix: &Arc<Matrix>,
    bias: Option<Tensor<1>>,
    options: LinearOptions,
) -> Tensor<2> {
    let ([n_rows, _], [d_out, d_in]) = (x.dims(), matrix.dims());
    check("the input", &x, [n_rows, d_in]);
    check("the norm", &norm, [d_in]);
    bias.iter().for_each(|bias| check("the bias", bias, [d_out]));
    assert!(options.gate.is_none() || d_out.is_multiple_of(2), "halves of {d_out} outputs");
    let operands = Operands { bias: maybe(bias), residual: Maybe::Absent, norm: maybe(Some(norm)) };
    Tensor::from_dispatch(Dispatch::linear(x.into_dispatch(), operands, matrix.clone(), options))
}

/// Rows `ids [n]` of the matrix: `[n, d_in]`.
pub(in crate::ops) fn embedding(matrix: &Arc<Matrix>, ids: Tensor<1, Int>) -> Tensor<2> {
    let ids = if ids.dtype() == DType::I32 { ids } else { ids.cast(DType::I32) };
    Tensor::from_dispatch(Dispatch::embedding(ids.into_dispatch(), matrix.clone()))
}

/// [`take_rows`](crate::ops::take_rows).
pub(in crate::ops) fn take_rows(x: Tensor<2>, rows: Tensor<1, Int>) -> Tensor<2> {
    check("what has rows", &x, x.dims());
    Tensor::from_dispatch(Dispatch::take_rows(x.into_dispatch(), rows.into_dispatch()))
}

/// [`norm`](crate::ops::norm), and [`norm_add`](crate::ops::norm_add) where there is a residual.
pub(in crate::ops) fn norm(x: Tensor<2>, norm: NormParts, residual: Option<Tensor<2>>) -> Tensor<2> {
    let NormParts { weight, bias, options } = norm;
    let dims @ [_, width] = x.dims();
    check("the input", &x, dims);
    check("the weight", &weight, [width]);
    bias.iter().for_each(|bias| check("the bias", bias, [width]));
    residual.iter().for_each(|residual| check("the residual", residual, dims));
    let (bias, residual) = (maybe(bias), maybe(residual));
    Tensor::from_dispatch(Dispatch::norm(x.into_dispatch(), weight.into_dispatch(), bias, residual, options))
}

/// [`qk_norm`](crate::ops::qk_norm), for norms without biases.
pub(in crate::ops) fn qk_norm(
    qkv: Tensor<2>,
    weights: [Tensor<1>; 2],
    heads: QkNorm,
    options: NormOptions,
) -> Tensor<2> {
    let n_rows = qkv.dims()[0];
    check("queries, keys and values", &qkv, [n_rows, (heads.n_heads + 2 * heads.n_kv_heads) * heads.head_dim]);
    weights.iter().zip(heads.widths()).for_each(|(weight, width)| check("the weight", weight, [width]));
    let [q_weight, k_weight] = weights.map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::qk_norm(qkv.into_dispatch(), q_weight, k_weight, heads, options))
}

/// [`activate`](crate::ops::activate).
pub(in crate::ops) fn activate(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    check("the input", &x, x.dims());
    Tensor::from_dispatch(Dispatch::activate(x.into_dispatch(), kind, false))
}

/// [`gated`](crate::ops::gated).
pub(in crate::ops) fn gated(gate_up: Tensor<2>, kind: Activation) -> Tensor<2> {
    let [n_rows, width] = gate_up.dims();
    check("gates and what they let through", &gate_up, [n_rows, width / 2 * 2]);
    Tensor::from_dispatch(Dispatch::activate(gate_up.into_dispatch(), kind, true))
}

/// Rotates the queries and keys in `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` by `angles [n_rows, 2 half]`, if
/// there are any, and stores keys and values at `slots` of their pools, in place. Returns the queries.
pub(in crate::ops) fn rope_append(
    qkv: Tensor<2>,
    angles: Option<Tensor<2>>,
    pools: [&mut Tensor<2>; 2],
    slots: Tensor<1, Int>,
    heads: HeadLayout,
) -> Tensor<2> {
    let HeadLayout { n_heads, n_kv_heads, head_dim, half } = heads;
    let n_rows = slots.dims()[0];
    check("queries, keys and values", &qkv, [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]);
    check_angles(angles.as_ref(), n_rows, half);
    check_pools([&*pools[0], &*pools[1]], n_kv_heads, head_dim);
    let angles = angles.unwrap_or_else(|| qkv.clone()).into_dispatch();
    let [qkv, slots] = [qkv.into_dispatch(), slots.into_dispatch()];
    in_place(pools, |keys, values| Dispatch::rope_append(qkv, angles, slots, keys, values, heads).into())
}

/// Panics unless these are cosines and sines of `half` pairs, or none.
fn check_angles(angles: Option<&Tensor<2>>, n_rows: usize, half: usize) {
    match angles {
        Some(angles) => check("the angles", angles, [n_rows, 2 * half]),
        None => assert_eq!(half, 0, "pairs without angles"),
    }
}

/// Runs an operation that changes two pools in place; returns its output.
fn in_place(
    [keys, values]: [&mut Tensor<2>; 2],
    run: impl FnOnce(FloatTensor<Dispatch>, FloatTensor<Dispatch>) -> [FloatTensor<Dispatch>; 3],
) -> Tensor<2> {
    let mut output = None;
    keys.inplace(|all_keys| {
        let mut stored = None;
        values.inplace(|all_values| {
            let [given, keys, values] = run(all_keys.into_dispatch(), all_values.into_dispatch());
            (output, stored) = (Some(given), Some(keys));
            Tensor::from_dispatch(values)
        });
        Tensor::from_dispatch(stored.unwrap_or_else(|| unreachable!("`inplace` calls its closure")))
    });
    Tensor::from_dispatch(output.unwrap_or_else(|| unreachable!("`inplace` calls its closure")))
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
    let angles = angles.unwrap_or_else(|| qkv.clone()).into_dispatch();
    let [qkv, table] = [qkv.into_dispatch(), table.into_dispatch()];
    in_place(pools, |keys, values| Dispatch::append_and_attend(qkv, angles, keys, values, table, step, half).into())
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
    let [q, keys, values] = [q, keys.clone(), values.clone()].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::attention(q, keys, values, table.into_dispatch(), step))
}

/// The top `n` tokens of some rows of `logits [n_all_rows, vocab_size]` with their logits, and the logits of other
/// tokens: `[n_rows, 2 n + n_also]`, ids and bits. A row of `table [n_rows * (1 + n_also)]` has the row's number and
/// those other tokens; `sizes` are `n_rows`, `n` and `n_also`.
pub(crate) fn top_k_logits(logits: Tensor<2>, table: Tensor<1, Int>, sizes: [usize; 3]) -> Tensor<2, Int> {
    check("logits", &logits, logits.dims());
    Tensor::from_dispatch(Dispatch::top_k_logits(logits.into_dispatch(), table.into_dispatch(), sizes))
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
    let [first, second] = moments.map(Tensor::into_dispatch);
    let (value, first, second) = Dispatch::adamw(value.into_dispatch(), gradient.into_dispatch(), first, second, step);
    (Tensor::from_dispatch(value), [first, second].map(Tensor::from_dispatch))
}

/// Partial sums of the squares of all `gradients`, `[n_values]` each: `[n_sums]`, which add up to the whole sum.
pub(in crate::ops) fn square_sums(gradients: &[Tensor<1>]) -> Tensor<1> {
    let lens = gradients.iter().map(|gradient| gradient.dims()[0]);
    let n_sums: usize = lens.map(optimizer::n_square_sums).sum();
    let sums = Tensor::<1>::empty([n_sums], &gradients[0].device());
    let mut start = 0;
    let sums = gradients.iter().fold(sums.into_dispatch(), |sums, gradient| {
        let [len] = gradient.dims();
        check("a gradient", gradient, [len]);
        let sums = Dispatch::square_sums(sums, gradient.clone().into_dispatch(), start);
        start += optimizer::n_square_sums(len);
        sums
    });
    Tensor::from_dispatch(sums)
}

/// Overwrites the memory of `place` with `values`, of the same number.
pub(in crate::ops) fn overwrite(place: Tensor<1, Int>, values: Arc<Vec<i32>>) -> Tensor<1, Int> {
    Tensor::from_dispatch(Dispatch::overwrite(place.into_dispatch(), values))
}

/// `len` numbers of `all` from `start`, in the same memory. `start` must have the alignment that the device requires of
/// buffers.
pub(in crate::ops) fn part_of_ints(all: &Tensor<1, Int>, [start, len]: [usize; 2]) -> Tensor<1, Int> {
    Tensor::from_dispatch(Dispatch::part_of_ints(all.clone().into_dispatch(), [start, len]))
}

/// As [`part_of_ints`], but the numbers are the bits of f32: a tensor of dimensions `dims`.
pub(in crate::ops) fn rows_in_ints(all: &Tensor<1, Int>, start: usize, dims: [usize; 2]) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::rows_in_ints(all.clone().into_dispatch(), start, dims))
}
