//! Norms, rotary positions and gated activations: one pass over each row.

use super::{
    for_each_isa,
    math::{exp, gelu, sum, tanh},
    multiply_add,
    tensors::{Values, values},
    thread_pool,
};
use crate::{
    config::{Activation, ClampedSwiglu, NormKind, QkNormSpan},
    ops::{AttentionOptions, NormOptions, NormParts},
};

/// Values below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 16;

/// Values per piece of work where rows do not matter.
const AT_ONCE: usize = 4096;

/// A norm's parameters.
pub(in crate::ops) struct NormValues<'a> {
    pub(in crate::ops) weight: &'a [f32],
    pub(in crate::ops) bias: Option<&'a [f32]>,
    pub(in crate::ops) options: NormOptions,
}

/// A norm's parameters in memory.
pub(in crate::ops) struct NormMemory {
    weight: Values,
    bias: Option<Values>,
    options: NormOptions,
}

impl NormMemory {
    pub(in crate::ops) fn of(norm: &NormParts) -> Self {
        let NormParts { weight, bias, options } = norm.clone();
        Self { weight: values(weight), bias: bias.map(values), options }
    }

    pub(in crate::ops) fn values(&self) -> NormValues<'_> {
        let bias = self.bias.as_ref().map(Values::as_slice);
        NormValues { weight: self.weight.as_slice(), bias, options: self.options }
    }
}

/// Calls `run` with each row of `width` of `output` and its number, on all threads if there is enough work.
pub(super) fn for_rows(output: &mut [f32], width: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
    if output.len() < PARALLEL_WORK {
        output.chunks_mut(width).enumerate().for_each(|(row, output)| run(row, output));
    } else {
        thread_pool::parallel_chunks(output, width, run);
    }
}

/// As [`for_rows`], into a new slice of `len` values.
fn new_rows(len: usize, width: usize, run: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    if len < PARALLEL_WORK {
        let mut output = vec![0.0; len];
        for_rows(&mut output, width, run);
        output
    } else {
        thread_pool::new_chunks(len, width, run)
    }
}

/// [`norm`](crate::ops::norm) of `x [n_rows, width]`.
pub(in crate::ops) fn norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, options: NormOptions) -> Vec<f32> {
    let width = weight.len();
    new_rows(x.len(), width, |row, output| {
        output.copy_from_slice(&x[row * width..][..width]);
        norm_row(output, weight, bias, options);
    })
}

/// As [`norm`], into `output`.
pub(super) fn norm_into(x: &[f32], weight: &[f32], bias: Option<&[f32]>, options: NormOptions, output: &mut [f32]) {
    let width = weight.len();
    for_rows(output, width, |row, output| {
        output.copy_from_slice(&x[row * width..][..width]);
        norm_row(output, weight, bias, options);
    });
}

/// As [`norm`], in place.
pub(super) fn norm_in_place(x: &mut [f32], weight: &[f32], bias: Option<&[f32]>, options: NormOptions) {
    for_rows(x, weight.len(), |_, row| norm_row(row, weight, bias, options));
}

/// [`qk_norm`](crate::ops::qk_norm) of `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, in place, by the norms of
/// queries and of keys.
pub(in crate::ops) fn qk_norm(
    qkv: &mut [f32],
    norms: &[NormValues<'_>; 2],
    span: QkNormSpan,
    options: &AttentionOptions,
) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    for_rows(qkv, (n_heads + 2 * n_kv_heads) * head_dim, |_, row| qk_norm_row(row, norms, span, options));
}

/// As [`qk_norm`], for one row.
pub(super) fn qk_norm_row(row: &mut [f32], norms: &[NormValues<'_>; 2], span: QkNormSpan, options: &AttentionOptions) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let (queries, rest) = row.split_at_mut(n_heads * head_dim);
    for (heads, norm) in [queries, &mut rest[..n_kv_heads * head_dim]].into_iter().zip(norms) {
        let width = if span == QkNormSpan::AllHeads { heads.len() } else { head_dim };
        // With one weight for all heads, it is repeated.
        for (head, weight) in heads.chunks_exact_mut(width).zip(norm.weight.chunks_exact(width).cycle()) {
            norm_row(head, weight, norm.bias, norm.options);
        }
    }
}

/// Adds `update` times `multiplier` to `x`.
pub(super) fn add_multiplied(x: &mut [f32], update: &[f32], multiplier: f32) {
    for_rows(x, AT_ONCE, |part, x| {
        let update = &update[part * AT_ONCE..];
        x.iter_mut().zip(update).for_each(|(x, update)| *x += update * multiplier);
    });
}

/// Multiplies `x` by `factor`.
pub(super) fn multiply(x: &mut [f32], factor: f32) {
    for_rows(x, AT_ONCE, |_, x| x.iter_mut().for_each(|x| *x *= factor));
}

/// Multiplies each value of `x` by one of `factors`.
pub(super) fn multiply_each(x: &mut [f32], factors: &[f32]) {
    for_rows(x, AT_ONCE, |part, x| {
        let factors = &factors[part * AT_ONCE..];
        x.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
    });
}

/// Normalizes each head of a row separately.
pub(super) fn norm_heads(row: &mut [f32], norm: &NormValues<'_>) {
    row.chunks_exact_mut(norm.weight.len()).for_each(|head| norm_row(head, norm.weight, norm.bias, norm.options));
}

for_each_isa!(norm_row(row: &mut [f32], weight: &[f32], bias: Option<&[f32]>, options: NormOptions) = norm_row_body);

#[inline(always)]
fn norm_row_body<const FUSED: bool>(row: &mut [f32], weight: &[f32], bias: Option<&[f32]>, options: NormOptions) {
    let n = row.len() as f32;
    if options.kind == NormKind::LayerNorm {
        let mean = sum(row, |value| value) / n;
        row.iter_mut().for_each(|value| *value -= mean);
    }
    let mean_square = sum(row, |value| value * value) / n;
    let scale = 1.0 / (mean_square + options.eps as f32).sqrt();
    for (value, weight) in row.iter_mut().zip(weight) {
        *value = *value * scale * (weight + options.weight_offset);
    }
    if let Some(bias) = bias {
        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
}

/// [`rope`](crate::ops::rope), in place, of the first `width` values of rows of `row_width`, which are heads of
/// `head_dim`; `cos` and `sin` are `[n_rows, half]`.
pub(in crate::ops) fn rope(x: &mut [f32], [row_width, width, head_dim]: [usize; 3], cos: &[f32], sin: &[f32]) {
    let half = cos.len() * row_width / x.len().max(1);
    for_rows(x, row_width, |row, values| {
        let angles = row * half..(row + 1) * half;
        rope_row(&mut values[..width], head_dim, &cos[angles.clone()], &sin[angles]);
    });
}

for_each_isa!(rope_row(row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) = rope_row_body);

#[inline(always)]
fn rope_row_body<const FUSED: bool>(row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in row.chunks_exact_mut(head_dim) {
        let (left, right) = head[..2 * half].split_at_mut(half);
        for (((left, right), &cos), &sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
            (*left, *right) = (*left * cos - *right * sin, *right * cos + *left * sin);
        }
    }
}

/// [`gated`](crate::ops::gated) of `gate_up [n_rows, 2 * d_ff]`: `[n_rows, d_ff]`.
pub(in crate::ops) fn gated(gate_up: &[f32], d_ff: usize, kind: Activation) -> Vec<f32> {
    new_rows(gate_up.len() / 2, d_ff, |row, output| gated_row(gate_up, row, kind, output))
}

/// As [`gated`], into `output`.
pub(super) fn gated_into(gate_up: &[f32], d_ff: usize, kind: Activation, output: &mut [f32]) {
    for_rows(output, d_ff, |row, output| gated_row(gate_up, row, kind, output));
}

fn gated_row(gate_up: &[f32], row: usize, kind: Activation, output: &mut [f32]) {
    let d_ff = output.len();
    let (gate, up) = gate_up[row * 2 * d_ff..][..2 * d_ff].split_at(d_ff);
    output.copy_from_slice(gate);
    activate_row(output, kind);
    output.iter_mut().zip(up).for_each(|(output, up)| *output *= up);
}

/// [`clamped_swiglu`](crate::ops::clamped_swiglu) of `gate_up [n_rows, 2 * d_ff]` into `output [n_rows, d_ff]`.
pub(in crate::ops) fn clamped_swiglu_into(gate_up: &[f32], d_ff: usize, clamped: ClampedSwiglu, output: &mut [f32]) {
    let (alpha, limit) = (clamped.alpha as f32, clamped.limit as f32);
    for_rows(output, d_ff, |row, output| {
        let (gate, up) = gate_up[row * 2 * d_ff..][..2 * d_ff].split_at(d_ff);
        clamped_swiglu_row(output, gate, up, alpha, limit);
    });
}

for_each_isa!(clamped_swiglu_row(output: &mut [f32], gate: &[f32], up: &[f32], alpha: f32, limit: f32) = clamped_swiglu_body);

#[inline(always)]
fn clamped_swiglu_body<const FUSED: bool>(output: &mut [f32], gate: &[f32], up: &[f32], alpha: f32, limit: f32) {
    // Comparisons that let NaN through.
    let at_most = |x: f32| if x > limit { limit } else { x };
    let at_least = |x: f32| if x < -limit { -limit } else { x };
    for ((output, gate), up) in output.iter_mut().zip(gate).zip(up) {
        let (gate, up) = (at_most(*gate), at_least(at_most(*up)));
        *output = (up + 1.0) * (gate / (1.0 + exp::<FUSED>(-alpha * gate)));
    }
}

/// [`soft_cap`](crate::ops::soft_cap) of `x`, in place.
pub(in crate::ops) fn soft_cap(x: &mut [f32], cap: f32) {
    for_rows(x, AT_ONCE, |_, values| soft_cap_row(values, cap));
}

for_each_isa!(soft_cap_row(values: &mut [f32], cap: f32) = soft_cap_body);

#[inline(always)]
fn soft_cap_body<const FUSED: bool>(values: &mut [f32], cap: f32) {
    values.iter_mut().for_each(|value| *value = tanh::<FUSED>(*value / cap) * cap);
}

/// The numbers of [`xielu`](crate::ops::xielu).
#[derive(Clone, Copy)]
pub(in crate::ops) struct XieluNumbers {
    above: f32,
    below: f32,
    beta: f32,
    eps: f32,
}

impl XieluNumbers {
    /// Converts the four stored parameters.
    pub(in crate::ops) fn of(stored: &[f32]) -> Self {
        let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
        let (beta, eps) = (stored[2], stored[3]);
        Self { above: softplus(stored[0]), below: softplus(stored[1]) + beta, beta, eps }
    }
}

/// [`xielu`](crate::ops::xielu) of `x [n_rows, d_ff]`, in place.
pub(in crate::ops) fn xielu(x: &mut [f32], d_ff: usize, numbers: XieluNumbers) {
    for_rows(x, d_ff, |_, row| xielu_row(row, numbers));
}

for_each_isa!(xielu_row(row: &mut [f32], numbers: XieluNumbers) = xielu_row_body);

#[inline(always)]
fn xielu_row_body<const FUSED: bool>(row: &mut [f32], numbers: XieluNumbers) {
    let XieluNumbers { above, below, beta, eps } = numbers;
    for x in row {
        let curve = if *x > 0.0 { above * *x * *x } else { below * (exp::<FUSED>(x.min(eps)) - 1.0 - *x) };
        *x = curve + beta * *x;
    }
}

/// [`activate`](crate::ops::activate) of `x [n_rows, d_ff]`.
pub(in crate::ops) fn activate(x: &[f32], d_ff: usize, kind: Activation) -> Vec<f32> {
    new_rows(x.len(), d_ff, |row, output| {
        output.copy_from_slice(&x[row * d_ff..][..d_ff]);
        activate_row(output, kind);
    })
}

/// As [`activate`], in place.
pub(super) fn activate_rows(x: &mut [f32], d_ff: usize, kind: Activation) {
    for_rows(x, d_ff, |_, row| activate_row(row, kind));
}

for_each_isa!(activate_row(row: &mut [f32], kind: Activation) = activate_row_body);

#[inline(always)]
fn activate_row_body<const FUSED: bool>(row: &mut [f32], kind: Activation) {
    match kind {
        Activation::Relu => row.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::ReluSquared => row.iter_mut().for_each(|x| *x = x.max(0.0) * x.max(0.0)),
        Activation::Silu => row.iter_mut().for_each(|x| *x /= 1.0 + exp::<FUSED>(-*x)),
        Activation::GeluTanh => row.iter_mut().for_each(|x| *x = gelu_tanh::<FUSED>(*x)),
        Activation::Gelu => row.iter_mut().for_each(|x| *x = gelu::<FUSED>(*x)),
    }
}

/// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, where `(1 + tanh(y)) / 2` is `1 / (1 + e^(-2y))`.
#[inline(always)]
fn gelu_tanh<const FUSED: bool>(x: f32) -> f32 {
    let cubed = multiply_add::<FUSED>(0.044_715 * x * x, x, x);
    x / (1.0 + exp::<FUSED>(-2.0 * (2.0 / std::f32::consts::PI).sqrt() * cubed))
}
