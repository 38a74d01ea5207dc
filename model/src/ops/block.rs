//! A whole transformer block as one operation, on devices that have a body for it. Its reference is the block's
//! operations one by one.

use burn::tensor::Tensor;
use half::f16;

use super::{
    AttentionOptions, BlockOperands, FeedForward, KvDtype, LinearParts, Mixer, NormParts, PagedRows, Placement, Qkv,
    Rotation, RouterParts, Rows, SelfAttention, Slots,
    cpu::{self, PagedElement},
    experts::{has_memory, linear_memory},
};

/// A block whose parameters are tensors.
pub(crate) type Block<'a> = BlockOperands<NormParts, LinearParts<'a>, RouterParts<'a>>;

/// Attention over the pages of the KV cache, to which the step's rows are appended first.
#[derive(Debug)]
pub(crate) struct PagedAttention<'a> {
    /// Keys and values of the layer: whole pools ([`new_pool`](super::new_pool)).
    pub(crate) pools: [&'a mut Tensor<2>; 2],
    /// Slots of the step's keys and values.
    pub(crate) slots: &'a Slots,
    /// The sequences of the rows.
    pub(crate) sequences: &'a [PagedRows],
    /// How scores are computed.
    pub(crate) options: &'a AttentionOptions,
    /// Rotation of queries and keys, if there is one.
    pub(crate) rotation: Option<&'a Rotation>,
    /// Factor of each row's queries, `[n_rows, 1]`.
    pub(crate) query_factors: Option<&'a Rows>,
    /// For cross-attention: the rows' sequences with the keys of their sources, and its options.
    pub(crate) sources: Option<(&'a [PagedRows], &'a AttentionOptions)>,
}

/// Buffers that the blocks of a pass share.
#[derive(Debug, Default)]
pub(crate) struct BlockScratch(cpu::Scratch);

/// Whether [`block()`] has a body for this block on `x`'s device: on the CPU, except for recurrent layers, attention with
/// gates or latents, and blocks with low-rank updates of all rows.
pub(crate) fn has_block(x: &Tensor<2>, block: &Block<'_>) -> bool {
    let Some(Mixer::Attention(SelfAttention { qkv: Qkv::Stacked(qkv), out, is_gated: false, .. })) =
        block.mixer.as_ref().map(|mixer| &mixer.inner)
    else {
        return false;
    };
    let mlp = block.mlp.as_ref().map(|mlp| &mlp.inner);
    let of_mlp = mlp.into_iter().flat_map(FeedForward::linears);
    let of_cross = block.cross.iter().flat_map(|cross| cross.inner.linears());
    let of_update = block.per_layer.iter().flat_map(|update| [&update.gate, &update.proj]);
    Placement::of(&x.device()) == Placement::Cpu
        && [qkv, out].into_iter().chain(of_cross).chain(of_mlp).chain(of_update).all(has_memory)
        && mlp.into_iter().flat_map(FeedForward::routers).all(RouterParts::has_memory)
}

/// The block's output for `x [n_rows, d_model]`, in place if nothing else shares `x`. Requires [`has_block`].
pub(crate) fn block(
    x: Tensor<2>,
    block: &Block<'_>,
    attention: PagedAttention<'_>,
    scratch: &mut BlockScratch,
) -> Tensor<2> {
    let block = block.map(cpu::NormMemory::of, linear_memory, RouterParts::memory);
    match KvDtype::of(attention.pools[0]) {
        KvDtype::F16 => over_pools::<f16>(x, &block, attention, scratch),
        KvDtype::Q8 => over_pools::<i8>(x, &block, attention, scratch),
        KvDtype::F32 => over_pools::<f32>(x, &block, attention, scratch),
    }
}

fn over_pools<E: PagedElement>(
    x: Tensor<2>,
    block: &cpu::Block<'_>,
    attention: PagedAttention<'_>,
    scratch: &mut BlockScratch,
) -> Tensor<2> {
    let PagedAttention { pools: [keys, key_values], slots, sequences, options, rotation, query_factors, sources } =
        attention;
    let mut output = None;
    cpu::update::<E>(keys, |keys| {
        cpu::update::<E>(key_values, |key_values| {
            let paged = cpu::PagedValues {
                pools: [keys, key_values],
                slots,
                sequences,
                options,
                rotation: rotation.map(Rotation::host),
                query_factors: query_factors.map(|factors| factors.host.as_slice()),
            };
            output = Some(cpu::changed(x, |x| cpu::block(x, block, (paged, sources), &mut scratch.0)));
        });
    });
    output.unwrap_or_else(|| unreachable!("`update` calls its closure"))
}
