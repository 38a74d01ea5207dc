//! A whole transformer block over the rows of a step, in place: the bits of the separate operations, without tensors in
//! between. Threads synchronize five times per block (four products and attention); with more than a few rows once
//! more, to store keys and values.

use burn::tensor::Tensor;

use super::{
    attention::{PagedElement, attention_paged_into},
    kv_append::{PagedValues, norm_rope_append},
    matmul::{Store, has_gated, linear_into},
    packed_matrix::Panels,
    row_updates::{RowUpdate, add_row_updates},
    rowwise::{
        NormMemory, NormValues, XieluNumbers, activate_rows, add_multiplied, gated_into, norm_in_place, norm_into,
        xielu,
    },
    tensors::{Values, values},
};
use crate::ops::{
    AttentionOptions,
    types::{BlockOperands, BlockSteps, Sublayer, run_block},
};

/// A matrix, its bias, and updates of some rows by adapters, in memory.
pub(in crate::ops) struct LinearMemory<'a> {
    weight: &'a Panels,
    bias: Option<Values>,
    updates: Vec<RowUpdate<'a>>,
}

impl<'a> LinearMemory<'a> {
    pub(in crate::ops) fn new(weight: &'a Panels, bias: Option<Tensor<1>>, updates: Vec<RowUpdate<'a>>) -> Self {
        Self { weight, bias: bias.map(values), updates }
    }

    fn multiply(&self, input: &[f32], store: Store, output: &mut [f32]) {
        linear_into(input, self.weight, self.bias.as_ref().map(Values::as_slice), store, output);
        if !self.updates.is_empty() {
            add_row_updates(output, self.weight.dims()[0], input, &self.updates);
        }
    }

    /// Whether gated values can be stored right away: updates come before the activation.
    fn can_gate(&self) -> bool {
        self.updates.is_empty() && has_gated(self.weight)
    }
}

/// A block whose parameters are in memory.
pub(in crate::ops) type Block<'a> = BlockOperands<NormMemory, LinearMemory<'a>>;

type Ends<'a> = Sublayer<NormMemory, LinearMemory<'a>>;

/// Buffers between the parts of a block, reused by all blocks of a pass.
#[derive(Debug, Default)]
pub(in crate::ops) struct Scratch {
    normed: Vec<f32>,
    /// Queries, keys and values; later gates and what they gate, unless the product stores gated values itself.
    wide: Vec<f32>,
    attn_out: Vec<f32>,
    inner: Vec<f32>,
    /// The update of the residual stream, unless the product adds it itself.
    update: Vec<f32>,
}

/// Runs a block on `x [n_rows, d_model]`, in place.
pub(in crate::ops) fn block<E: PagedElement>(
    x: &mut [f32],
    block: &Block<'_>,
    paged: PagedValues<'_, E>,
    scratch: &mut Scratch,
) {
    run_block(&mut InPlace { x, block, paged, scratch }, (), block.is_parallel);
}

/// The residual stream of a block in place, and what is between it and the sublayers in scratch memory.
struct InPlace<'a, E> {
    /// `[n_rows, d_model]`.
    x: &'a mut [f32],
    block: &'a Block<'a>,
    paged: PagedValues<'a, E>,
    scratch: &'a mut Scratch,
}

impl<E: PagedElement> BlockSteps for InPlace<'_, E> {
    type Stream = ();
    type Hidden = ();

    fn fork(&mut self, (): ()) -> [(); 2] {
        [(), ()]
    }

    fn attention(&mut self, (): ()) {
        attend_heads(self.x, self.block, &mut self.paged, self.scratch);
    }

    fn mlp(&mut self, (): ()) {
        feed_forward(self.x, self.block, self.scratch);
    }

    fn add_attention(&mut self, (): (), (): ()) {
        let Scratch { attn_out, update, .. } = &mut *self.scratch;
        add(self.x, attn_out, &self.block.attn, self.block.residual_multiplier as f32, update);
    }

    fn add_mlp(&mut self, (): (), (): ()) {
        let Scratch { inner, update, .. } = &mut *self.scratch;
        add(self.x, inner, &self.block.mlp, self.block.residual_multiplier as f32, update);
    }
}

/// Writes the attention output of `x`, before its projection, to `attn_out`.
fn attend_heads<E: PagedElement>(x: &[f32], block: &Block<'_>, paged: &mut PagedValues<'_, E>, scratch: &mut Scratch) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *paged.options;
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let width = q_width + 2 * kv_width;
    let Scratch { normed, wide: qkv, attn_out, .. } = scratch;
    let input = normed_if_any(x, block.attn.in_norm.as_ref(), normed);
    let n_rows = product(input, &block.qkv, qkv);
    let qk_norms = block.qk_norms.as_ref().map(|qk| qk.map(NormMemory::values));
    norm_rope_append(qkv, qk_norms.as_ref(), paged);
    let [keys, values] = &paged.pools;
    resize(attn_out, n_rows * q_width);
    attention_paged_into(qkv, width, [&**keys, &**values], (paged.sequences, paged.options), attn_out);
}

/// Writes the input of the MLP's last matrix to `inner`.
fn feed_forward(x: &[f32], block: &Block<'_>, scratch: &mut Scratch) {
    let Scratch { normed, wide, inner, .. } = scratch;
    let input = normed_if_any(x, block.mlp.in_norm.as_ref(), normed);
    let [d_up, d_model] = block.up.weight.dims();
    if !block.gated {
        product(input, &block.up, inner);
        return match &block.xielu {
            Some(numbers) => xielu(inner, d_up, XieluNumbers::of(values(numbers.clone()).as_slice())),
            None => activate_rows(inner, d_up, block.activation),
        };
    }
    let d_ff = d_up / 2;
    resize(inner, input.len() / d_model * d_ff);
    if block.up.can_gate() {
        block.up.multiply(input, Store::Gated(block.activation), inner);
    } else {
        product(input, &block.up, wide);
        gated_into(wide, d_ff, block.activation, inner);
    }
}

/// Adds a part's output to `x`: `input` times the part's last matrix, normalized if there is an output norm, times
/// `multiplier`.
fn add(x: &mut [f32], input: &[f32], part: &Ends<'_>, multiplier: f32, update: &mut Vec<f32>) {
    if part.out_norm.is_none() && multiplier == 1.0 {
        return part.out_proj.multiply(input, Store::Add, x);
    }
    product(input, &part.out_proj, update);
    if let Some(norm) = &part.out_norm {
        let NormValues { weight, bias, options } = norm.values();
        norm_in_place(update, weight, bias, options);
    }
    add_multiplied(x, update, multiplier);
}

/// `x`, or if there is a norm, the normalized `x` in `normed`.
fn normed_if_any<'a>(x: &'a [f32], norm: Option<&NormMemory>, normed: &'a mut Vec<f32>) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    let NormValues { weight, bias, options } = norm.values();
    resize(normed, x.len());
    norm_into(x, weight, bias, options, normed);
    normed
}

/// Writes the product to `output`; returns the number of rows.
fn product(x: &[f32], linear: &LinearMemory<'_>, output: &mut Vec<f32>) -> usize {
    let [d_out, d_in] = linear.weight.dims();
    let n_rows = x.len() / d_in;
    resize(output, n_rows * d_out);
    linear.multiply(x, Store::Set, output);
    n_rows
}

/// Resizes a buffer that is then overwritten.
fn resize(values: &mut Vec<f32>, len: usize) {
    values.resize(len, 0.0);
}
