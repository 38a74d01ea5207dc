//! A whole transformer block over the rows of a step, in place: the bits of the separate operations, without tensors in
//! between. Threads synchronize five times per block (four products and attention); with more than a few rows once
//! more, to store keys and values.

use super::{
    attention::{PagedElement, attention_paged_into},
    experts::{ExpertScratch, RouterMemory, experts},
    kv_append::{PagedValues, norm_rope_append},
    matmul::Store,
    mlp::{LinearMemory, mlp_into, product, resize},
    rowwise::{
        NormMemory, NormValues, activate_rows, add_multiplied, multiply, multiply_each, norm_in_place, norm_into,
    },
    tensors::{Values, values},
};
use crate::ops::{
    AttentionOptions, PagedRows,
    types::{
        BlockOperands, BlockSteps, CrossAttention, FeedForward, KvSource, Mixer, PerLayerUpdate, Qkv, SelfAttention,
        Sublayer, run_block,
    },
};

/// A block whose parameters are in memory.
pub(in crate::ops) type Block<'a> = BlockOperands<NormMemory, LinearMemory<'a>, RouterMemory<'a>>;

type MixerMemory<'a> = Sublayer<NormMemory, Mixer<NormMemory, LinearMemory<'a>>>;
type CrossMemory<'a> = Sublayer<NormMemory, CrossAttention<LinearMemory<'a>>>;
type MlpMemory<'a> = Sublayer<NormMemory, FeedForward<NormMemory, LinearMemory<'a>, RouterMemory<'a>>>;

/// Buffers between the parts of a block, reused by all blocks of a pass.
#[derive(Debug, Default)]
pub(in crate::ops) struct Scratch {
    normed: Vec<f32>,
    /// Queries, keys and values; later the gate and up projections of the MLP, unless the product stores gated values
    /// itself.
    wide: Vec<f32>,
    attn_out: Vec<f32>,
    /// Activations of the MLP before its down projection, or the outputs of the experts.
    inner: Vec<f32>,
    experts: ExpertScratch,
    beside: BesideScratch,
    /// The update of the residual stream, unless the product adds it itself.
    update: Vec<f32>,
}

/// Buffers of experts that run beside an MLP.
#[derive(Debug, Default)]
struct BesideScratch {
    router_input: Vec<f32>,
    input: Vec<f32>,
    of_experts: Vec<f32>,
}

/// For cross-attention: sequences with the keys of their sources, and its options.
type Sources<'a> = (&'a [PagedRows], &'a AttentionOptions);

/// Runs a block on `x [n_rows, d_model]`, in place.
pub(in crate::ops) fn block<E: PagedElement>(
    x: &mut [f32],
    block: &Block<'_>,
    (paged, sources): (PagedValues<'_, E>, Option<Sources<'_>>),
    scratch: &mut Scratch,
) {
    let BlockOperands { norm_after_add, residual_multiplier, .. } = *block;
    let residual_multiplier = residual_multiplier as f32;
    run_block(&mut InPlace { x, norm_after_add, residual_multiplier, paged, sources, scratch }, block, ());
}

/// The residual stream of a block in place, with scratch memory for everything between the stream and the sublayers.
struct InPlace<'a, E> {
    /// `[n_rows, d_model]`.
    x: &'a mut [f32],
    norm_after_add: bool,
    residual_multiplier: f32,
    paged: PagedValues<'a, E>,
    sources: Option<Sources<'a>>,
    scratch: &'a mut Scratch,
}

impl<E> InPlace<'_, E> {
    fn adding<'n>(&self, norm: Option<&'n NormMemory>) -> Adding<'n> {
        Adding { norm, is_after: self.norm_after_add, multiplier: self.residual_multiplier }
    }
}

impl<'w, E: PagedElement> BlockSteps<NormMemory, LinearMemory<'w>, RouterMemory<'w>> for InPlace<'_, E> {
    type Stream = ();
    type Hidden = ();

    fn fork(&mut self, (): ()) -> [(); 2] {
        [(), ()]
    }

    fn mixer(&mut self, mixer: &MixerMemory<'w>, (): ()) {
        attend_heads(self.x, mixer, &mut self.paged, self.scratch);
    }

    fn cross(&mut self, cross: &CrossMemory<'w>, (): ()) {
        let Sublayer { in_norm, inner: CrossAttention { q, .. }, .. } = cross;
        let Some((sequences, options)) = self.sources else {
            unreachable!("a source for each text of an encoder-decoder")
        };
        let Scratch { normed, wide: queries, attn_out, .. } = &mut *self.scratch;
        let n_rows = product(normed_if_any(self.x, in_norm.as_ref(), normed), q, queries);
        let width = options.n_heads * options.head_dim;
        resize(attn_out, n_rows * width);
        let [keys, values] = &self.paged.pools;
        attention_paged_into(queries, width, [&**keys, &**values], (sequences, options, None), attn_out);
    }

    fn mlp(&mut self, mlp: &MlpMemory<'w>, (): ()) {
        let Sublayer { in_norm, inner: feed_forward, .. } = mlp;
        let Scratch { normed, wide, inner, experts: scratch, beside, update, .. } = &mut *self.scratch;
        let input = normed_if_any(self.x, in_norm.as_ref(), normed);
        match feed_forward {
            FeedForward::Dense(mlp) => mlp_into(input, mlp, wide, inner),
            FeedForward::Routed(routed) => experts([input, input], routed, scratch, inner),
            FeedForward::Both(both) => {
                mlp_into(input, &both.mlp, wide, update);
                product(update, &both.mlp.down, inner);
                norm_by(&both.mlp_out_norm, inner);
                let BesideScratch { router_input, input, of_experts } = beside;
                let router_input = normed_if_any(self.x, Some(&both.router_norm), router_input);
                let input = normed_if_any(self.x, Some(&both.in_norm), input);
                experts([router_input, input], &both.routed, scratch, of_experts);
                norm_by(&both.out_norm, of_experts);
                add_multiplied(inner, of_experts, 1.0);
            }
        }
    }

    fn add_mixer(&mut self, mixer: &MixerMemory<'w>, (): (), (): ()) {
        let adding = self.adding(mixer.out_norm.as_ref());
        let Scratch { attn_out, update, .. } = &mut *self.scratch;
        adding.product(self.x, attn_out, mixer.inner.out(), update);
    }

    fn add_cross(&mut self, cross: &CrossMemory<'w>, (): (), (): ()) {
        let adding = self.adding(cross.out_norm.as_ref());
        let Scratch { attn_out, update, .. } = &mut *self.scratch;
        adding.product(self.x, attn_out, &cross.inner.out, update);
    }

    fn add_mlp(&mut self, mlp: &MlpMemory<'w>, (): (), (): ()) {
        let adding = self.adding(mlp.out_norm.as_ref());
        let Scratch { inner: hidden, update, .. } = &mut *self.scratch;
        match &mlp.inner {
            FeedForward::Dense(mlp) => adding.product(self.x, hidden, &mlp.down, update),
            FeedForward::Routed(_) | FeedForward::Both(_) => adding.values(self.x, hidden),
        }
    }

    fn finish(&mut self, block: &Block<'w>, (): ()) {
        if let Some(PerLayerUpdate { input, gate, activation, proj, norm }) = &block.per_layer {
            let Scratch { inner, update, .. } = &mut *self.scratch;
            let input = values(input.clone());
            product(self.x, gate, inner);
            let [width, _] = gate.weight.dims();
            activate_rows(inner, width, *activation);
            multiply_each(inner, input.as_slice());
            product(inner, proj, update);
            Adding { norm: Some(norm), is_after: false, multiplier: 1.0 }.values(self.x, update);
        }
        if let Some(scale) = &block.scale {
            let scale = values(scale.clone());
            multiply(self.x, scale.as_slice()[0]);
        }
    }
}

/// Writes the attention output of `x`, before its projection, to `attn_out`.
fn attend_heads<E: PagedElement>(
    x: &[f32],
    mixer: &MixerMemory<'_>,
    paged: &mut PagedValues<'_, E>,
    scratch: &mut Scratch,
) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *paged.options;
    let (q_width, kv_width) = (n_heads * head_dim, n_kv_heads * head_dim);
    let Scratch { normed, wide: qkv, attn_out, .. } = scratch;
    let Sublayer { in_norm, inner, .. } = mixer;
    let Mixer::Attention(SelfAttention { qkv: Qkv::Stacked(qkv_matrix), clip, kv, qk_norms, v_norm, sinks, .. }) =
        inner
    else {
        unreachable!("`has_block` refuses recurrent layers and latents")
    };
    let input = normed_if_any(x, in_norm.as_ref(), normed);
    let n_rows = product(input, qkv_matrix, qkv);
    if let Some(limit) = *clip {
        qkv.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
    }
    let qk_norms = qk_norms.as_ref().map(|qk| qk.map(NormMemory::values));
    let v_norm = v_norm.as_ref().map(NormMemory::values);
    let width = match kv {
        KvSource::Projected => q_width + 2 * kv_width,
        KvSource::KeysOnly => {
            keys_as_values(qkv, [q_width, kv_width]);
            q_width + 2 * kv_width
        }
        KvSource::OtherLayer => q_width,
    };
    norm_rope_append(qkv, (qk_norms.as_ref(), v_norm.as_ref()), *kv != KvSource::OtherLayer, paged);
    let [keys, pool_of_values] = &paged.pools;
    resize(attn_out, n_rows * q_width);
    let sinks = sinks.clone().map(values);
    let how = (paged.sequences, paged.options, sinks.as_ref().map(Values::as_slice));
    attention_paged_into(qkv, width, [&**keys, &**pool_of_values], how, attn_out);
}

/// Makes room for values after the keys in each row of `qk [n_rows, q_width + kv_width]`, and copies the keys there.
fn keys_as_values(qk: &mut Vec<f32>, [q_width, kv_width]: [usize; 2]) {
    let (narrow, wide) = (q_width + kv_width, q_width + 2 * kv_width);
    let n_rows = qk.len() / narrow;
    resize(qk, n_rows * wide);
    // The last row first: no row is overwritten before it is moved.
    for row in (0..n_rows).rev() {
        qk.copy_within(row * narrow..(row + 1) * narrow, row * wide);
        qk.copy_within(row * wide + q_width..row * wide + narrow, row * wide + narrow);
    }
}

/// How the output of a sublayer is added to the residual stream.
struct Adding<'a> {
    /// The sublayer's output norm.
    norm: Option<&'a NormMemory>,
    /// Whether it normalizes the sum, not the output.
    is_after: bool,
    /// The output is multiplied by this.
    multiplier: f32,
}

impl Adding<'_> {
    /// Adds `input` times the sublayer's last matrix to `x`.
    fn product(&self, x: &mut [f32], input: &[f32], last: &LinearMemory<'_>, update: &mut Vec<f32>) {
        let is_plain = (self.norm.is_none() || self.is_after) && self.multiplier == 1.0;
        if !is_plain {
            product(input, last, update);
            return self.values(x, update);
        }
        last.multiply(input, Store::Add, x);
        self.norm_sum(x);
    }

    /// Adds `update` to `x`.
    fn values(&self, x: &mut [f32], update: &mut [f32]) {
        if let Some(norm) = self.norm
            && !self.is_after
        {
            norm_by(norm, update);
        }
        add_multiplied(x, update, self.multiplier);
        self.norm_sum(x);
    }

    fn norm_sum(&self, x: &mut [f32]) {
        if let Some(norm) = self.norm
            && self.is_after
        {
            norm_by(norm, x);
        }
    }
}

fn norm_by(norm: &NormMemory, x: &mut [f32]) {
    let NormValues { weight, bias, options } = norm.values();
    norm_in_place(x, weight, bias, options);
}

/// `x`, or if there is a norm, the normalized `x` in `normed`.
fn normed_if_any<'a>(x: &'a [f32], norm: Option<&NormMemory>, normed: &'a mut Vec<f32>) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    let NormValues { weight, bias, options } = norm.values();
    resize(normed, x.len());
    norm_into(x, weight, bias, options, normed);
    normed
}
