//! A whole block over the rows of a step, in place: what the operations one by one compute, to the bit, without a tensor
//! in between. A block meets its threads five times, four products and attention; with more than a few rows once more, to
//! store keys and values.

use super::{
    KvElement,
    attention::attention_paged_into,
    kv_append::enter,
    matmul::{Store, has_gated, linear_into},
    panels::Panels,
    rowwise::{activate_rows, add_multiplied, gated_into, norm_in_place, norm_into},
};
use crate::{
    config::{Activation, QkNormSpan},
    ops::{AttentionOptions, NormOptions, PagedRows, Slots},
};

/// A norm's parameters.
pub(in crate::ops) struct NormValues<'a> {
    pub(in crate::ops) weight: &'a [f32],
    pub(in crate::ops) bias: Option<&'a [f32]>,
    pub(in crate::ops) options: NormOptions,
}

/// A matrix and its bias.
pub(in crate::ops) struct LinearValues<'a> {
    pub(in crate::ops) weight: &'a Panels,
    pub(in crate::ops) bias: Option<&'a [f32]>,
}

/// The parameters of a block; see [`BlockParts`](crate::ops::BlockParts).
pub(in crate::ops) struct BlockValues<'a> {
    pub(in crate::ops) attn_in_norm: Option<NormValues<'a>>,
    pub(in crate::ops) qkv: LinearValues<'a>,
    /// Of queries and of keys.
    pub(in crate::ops) head_norms: Option<([NormValues<'a>; 2], QkNormSpan)>,
    pub(in crate::ops) out: LinearValues<'a>,
    pub(in crate::ops) attn_out_norm: Option<NormValues<'a>>,
    pub(in crate::ops) mlp_in_norm: Option<NormValues<'a>>,
    pub(in crate::ops) up: LinearValues<'a>,
    pub(in crate::ops) down: LinearValues<'a>,
    pub(in crate::ops) mlp_out_norm: Option<NormValues<'a>>,
    pub(in crate::ops) activation: Activation,
    pub(in crate::ops) gated: bool,
    pub(in crate::ops) is_parallel: bool,
    pub(in crate::ops) residual_multiplier: f32,
}

/// What a step's rows attend to, and how.
pub(in crate::ops) struct PagedValues<'a, E> {
    /// Keys and values.
    pub(in crate::ops) pools: [&'a mut [E]; 2],
    pub(in crate::ops) slots: &'a Slots,
    pub(in crate::ops) sequences: &'a [PagedRows],
    pub(in crate::ops) options: &'a AttentionOptions,
    /// Cosines and sines.
    pub(in crate::ops) rotation: Option<[&'a [f32]; 2]>,
}

/// Memory between the steps of a block, the same for all blocks of a pass.
#[derive(Debug, Default)]
pub(in crate::ops) struct Scratch {
    normed: Vec<f32>,
    /// Queries, keys and values; later gates and what they gate, where these are not joined on the way.
    wide: Vec<f32>,
    mixed: Vec<f32>,
    inner: Vec<f32>,
    /// What is to be added, where it is not added on the way.
    update: Vec<f32>,
}

/// Changes `x [n_rows, d_model]`.
pub(in crate::ops) fn block<E: KvElement>(
    x: &mut [f32],
    block: &BlockValues<'_>,
    paged: PagedValues<'_, E>,
    scratch: &mut Scratch,
) {
    mix_heads(x, block, paged, scratch);
    if block.is_parallel {
        feed_forward(x, block, scratch);
    }
    let Scratch { mixed, update, .. } = scratch;
    add(x, mixed, &block.out, block.attn_out_norm.as_ref(), block.residual_multiplier, update);
    if !block.is_parallel {
        feed_forward(x, block, scratch);
    }
    let Scratch { inner, update, .. } = scratch;
    add(x, inner, &block.down, block.mlp_out_norm.as_ref(), block.residual_multiplier, update);
}

/// What attention makes of `x`, head by head, into `mixed`.
fn mix_heads<E: KvElement>(x: &[f32], block: &BlockValues<'_>, mut paged: PagedValues<'_, E>, scratch: &mut Scratch) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *paged.options;
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let width = q_width + 2 * kv_width;
    let Scratch { normed, wide: qkv, mixed, .. } = scratch;
    let input = normed_if_any(x, block.attn_in_norm.as_ref(), normed);
    let n_rows = product(input, &block.qkv, qkv);
    enter(qkv, block.head_norms.as_ref(), &mut paged);
    let [keys, values] = paged.pools;
    resize(mixed, n_rows * q_width);
    attention_paged_into(qkv, width, [&*keys, &*values], (paged.sequences, paged.options), mixed);
}

/// What the last matrix of the feed-forward network takes, into `inner`.
fn feed_forward(x: &[f32], block: &BlockValues<'_>, scratch: &mut Scratch) {
    let Scratch { normed, wide, inner, .. } = scratch;
    let input = normed_if_any(x, block.mlp_in_norm.as_ref(), normed);
    let [d_up, d_model] = block.up.weight.dims();
    if !block.gated {
        product(input, &block.up, inner);
        return activate_rows(inner, d_up, block.activation);
    }
    let d_ff = d_up / 2;
    resize(inner, input.len() / d_model * d_ff);
    if has_gated(block.up.weight) {
        linear_into(input, block.up.weight, block.up.bias, Store::Gated(block.activation), inner);
    } else {
        product(input, &block.up, wide);
        gated_into(wide, d_ff, block.activation, inner);
    }
}

/// Adds what `linear` makes of `input` to `x`: normalised where there is a norm, and multiplied.
fn add(
    x: &mut [f32],
    input: &[f32],
    linear: &LinearValues<'_>,
    norm: Option<&NormValues<'_>>,
    multiplier: f32,
    update: &mut Vec<f32>,
) {
    if norm.is_none() && multiplier == 1.0 {
        return linear_into(input, linear.weight, linear.bias, Store::Add, x);
    }
    product(input, linear, update);
    if let Some(norm) = norm {
        norm_in_place(update, norm.weight, norm.bias, norm.options);
    }
    add_multiplied(x, update, multiplier);
}

/// `x`, or what is made of it in `normed` if there is a norm.
fn normed_if_any<'a>(x: &'a [f32], norm: Option<&NormValues<'_>>, normed: &'a mut Vec<f32>) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    resize(normed, x.len());
    norm_into(x, norm.weight, norm.bias, norm.options, normed);
    normed
}

/// Gives the number of rows.
fn product(x: &[f32], linear: &LinearValues<'_>, output: &mut Vec<f32>) -> usize {
    let [d_out, d_in] = linear.weight.dims();
    let n_rows = x.len() / d_in;
    resize(output, n_rows * d_out);
    linear_into(x, linear.weight, linear.bias, Store::Set, output);
    n_rows
}

/// Makes room for `len` values, which are then written to; what is there stays as it is.
fn resize(values: &mut Vec<f32>, len: usize) {
    values.resize(len, 0.0);
}
