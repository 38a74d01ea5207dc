//! A whole block over the rows of a step, in place: what the operations one by one compute, to the bit, without a tensor
//! in between. A block meets its threads five times: four products and attention.

use super::{
    KvElement,
    attention::{append_keys, append_values, attention_paged_into},
    matmul::{Store, has_gated, linear_into},
    panels::Panels,
    rowwise::{activate_rows, gated_into, norm_into, rope},
};
use crate::{
    config::Activation,
    ops::{AttentionOptions, NormOptions, PagedRows},
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

/// The parameters of a block.
pub(in crate::ops) struct BlockValues<'a> {
    pub(in crate::ops) attn_norm: NormValues<'a>,
    pub(in crate::ops) qkv: LinearValues<'a>,
    pub(in crate::ops) out: LinearValues<'a>,
    pub(in crate::ops) mlp_norm: NormValues<'a>,
    pub(in crate::ops) up: LinearValues<'a>,
    pub(in crate::ops) down: LinearValues<'a>,
    pub(in crate::ops) activation: Activation,
    pub(in crate::ops) gated: bool,
}

/// What a step's rows attend to, and how.
pub(in crate::ops) struct PagedValues<'a, E> {
    /// Keys and values.
    pub(in crate::ops) pools: [&'a mut [E]; 2],
    pub(in crate::ops) slots: &'a [i32],
    pub(in crate::ops) sequences: &'a [PagedRows],
    pub(in crate::ops) options: &'a AttentionOptions,
    /// Cosines and sines.
    pub(in crate::ops) rotation: Option<[&'a [f32]; 2]>,
}

/// Memory between the steps of a block, the same for all blocks of a pass.
#[derive(Debug, Default)]
pub(in crate::ops) struct Scratch {
    normed: Vec<f32>,
    /// Queries, keys and values; later what the activation gets, where it is not gated on the way.
    wide: Vec<f32>,
    mixed: Vec<f32>,
    inner: Vec<f32>,
}

/// `x [n_rows, d_model]` becomes `x + attn(norm(x))`, and that becomes itself plus `mlp(norm(itself))`.
pub(in crate::ops) fn block<E: KvElement>(
    x: &mut [f32],
    block: &BlockValues<'_>,
    paged: PagedValues<'_, E>,
    scratch: &mut Scratch,
) {
    let d_model = block.attn_norm.weight.len();
    let n_rows = x.len() / d_model;
    attend(x, n_rows, block, paged, scratch);

    let Scratch { normed, wide, inner, .. } = scratch;
    norm(x, &block.mlp_norm, normed);
    let d_up = block.up.weight.dims()[0];
    if !block.gated {
        product(normed, &block.up, wide, n_rows * d_up);
        activate_rows(wide, d_up, block.activation);
        return linear_into(wide, block.down.weight, block.down.bias, Store::Add, x);
    }
    let d_ff = d_up / 2;
    resize(inner, n_rows * d_ff);
    if has_gated(block.up.weight) {
        linear_into(normed, block.up.weight, block.up.bias, Store::Gated(block.activation), inner);
    } else {
        product(normed, &block.up, wide, n_rows * d_up);
        gated_into(wide, d_ff, block.activation, inner);
    }
    linear_into(inner, block.down.weight, block.down.bias, Store::Add, x);
}

fn attend<E: KvElement>(
    x: &mut [f32],
    n_rows: usize,
    block: &BlockValues<'_>,
    paged: PagedValues<'_, E>,
    scratch: &mut Scratch,
) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *paged.options;
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let width = q_width + 2 * kv_width;
    let Scratch { normed, wide: qkv, mixed, .. } = scratch;
    norm(x, &block.attn_norm, normed);
    product(normed, &block.qkv, qkv, n_rows * width);
    if let Some([cos, sin]) = paged.rotation {
        // Queries and keys turn alike, and lie side by side.
        rope(qkv, [width, q_width + kv_width, head_dim], cos, sin);
    }
    let [keys, values] = paged.pools;
    for (row, &slot) in qkv.chunks_exact(width).zip(paged.slots) {
        let (k, v) = row[q_width..].split_at(kv_width);
        append_keys(keys, k, &[slot]);
        append_values(values, v, &[slot]);
    }
    resize(mixed, n_rows * q_width);
    attention_paged_into(qkv, width, [&*keys, &*values], (paged.sequences, paged.options), mixed);
    linear_into(mixed, block.out.weight, block.out.bias, Store::Add, x);
}

fn norm(x: &[f32], norm: &NormValues<'_>, output: &mut Vec<f32>) {
    resize(output, x.len());
    norm_into(x, norm.weight, norm.bias, norm.options, output);
}

fn product(x: &[f32], linear: &LinearValues<'_>, output: &mut Vec<f32>, len: usize) {
    resize(output, len);
    linear_into(x, linear.weight, linear.bias, Store::Set, output);
}

/// Makes room for `len` values, which are then written to; what is there stays as it is.
fn resize(values: &mut Vec<f32>, len: usize) {
    values.resize(len, 0.0);
}
