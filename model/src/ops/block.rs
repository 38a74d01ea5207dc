//! A whole block of the model at once, for devices that have a body for it. There is no reference here: the block's
//! operations one by one are that.

use burn::tensor::{DType, Tensor};
use half::f16;

use super::{
    AttentionOptions, NormOptions, PagedRows, Rotation, Slots, Weight,
    cpu::{self, KvElement, Panels},
    weight::Form,
};
use crate::config::{Activation, QkNormSpan};

/// A norm's parameters.
#[derive(Clone, Debug)]
pub(crate) struct NormParts {
    /// `[width]`.
    pub(crate) weight: Tensor<1>,
    /// `[width]`.
    pub(crate) bias: Option<Tensor<1>>,
    /// How to normalise.
    pub(crate) options: NormOptions,
}

/// A matrix and its bias.
#[derive(Debug)]
pub(crate) struct LinearParts<'a> {
    /// `[d_out, d_in]`.
    pub(crate) weight: &'a Weight,
    /// `[d_out]`.
    pub(crate) bias: Option<Tensor<1>>,
}

/// Norms of queries and keys.
#[derive(Debug)]
pub(crate) struct HeadNormParts {
    /// Of queries, and of keys.
    pub(crate) norms: [NormParts; 2],
    /// What is normalised together.
    pub(crate) span: QkNormSpan,
}

/// The parameters of a block: attention and a feed-forward network, each of which reads the rows and adds to them.
#[derive(Debug)]
pub(crate) struct BlockParts<'a> {
    /// The norm of what attention reads.
    pub(crate) attn_in_norm: Option<NormParts>,
    /// Queries, keys and values, one below the other.
    pub(crate) qkv: LinearParts<'a>,
    /// Between these and their rotation.
    pub(crate) head_norms: Option<HeadNormParts>,
    /// What mixes the heads.
    pub(crate) out: LinearParts<'a>,
    /// The norm of what attention adds.
    pub(crate) attn_out_norm: Option<NormParts>,
    /// The norm of what the feed-forward network reads.
    pub(crate) mlp_in_norm: Option<NormParts>,
    /// The first matrix of the feed-forward network; gated: the gate's rows, then those of `up`.
    pub(crate) up: LinearParts<'a>,
    /// The second.
    pub(crate) down: LinearParts<'a>,
    /// The norm of what the feed-forward network adds.
    pub(crate) mlp_out_norm: Option<NormParts>,
    /// Between its matrices.
    pub(crate) activation: Activation,
    /// Whether it gates.
    pub(crate) gated: bool,
    /// Whether both read the rows as they come in; otherwise the second reads what the first has added to.
    pub(crate) is_parallel: bool,
    /// What all that is added is multiplied by.
    pub(crate) residual_multiplier: f64,
}

/// Attention over the pages of a cache, to which a step's own rows are appended first.
#[derive(Debug)]
pub(crate) struct PagedAttention<'a> {
    /// Keys and values of the layer: whole pools `[n_slots, n_kv_heads * head_dim]`.
    pub(crate) pools: [&'a mut Tensor<2>; 2],
    /// Where the step's keys and values go.
    pub(crate) slots: &'a Slots,
    /// Which rows are whose.
    pub(crate) sequences: &'a [PagedRows],
    /// What shapes the scores.
    pub(crate) options: &'a AttentionOptions,
    /// How queries and keys turn, if they do.
    pub(crate) rotation: Option<&'a Rotation>,
}

/// Memory that the blocks of a pass share.
#[derive(Debug, Default)]
pub(crate) struct BlockScratch(cpu::Scratch);

/// Whether [`block`] has a body for this block where `x` lives.
pub(crate) fn has_block(x: &Tensor<2>, parts: &BlockParts<'_>) -> bool {
    let linears = [&parts.qkv, &parts.out, &parts.up, &parts.down];
    cpu::is_cpu(&x.device()) && linears.iter().all(|linear| matches!(linear.weight.form(), Form::Packed(_)))
}

/// The block's output for `x [n_rows, d_model]`, in place where nobody shares `x`. Only where [`has_block`].
pub(crate) fn block(
    x: Tensor<2>,
    parts: &BlockParts<'_>,
    attention: PagedAttention<'_>,
    scratch: &mut BlockScratch,
) -> Tensor<2> {
    let vectors = |norm: &NormParts| [Some(norm.weight.clone()), norm.bias.clone()].map(|v| v.map(cpu::values));
    let norms = [&parts.attn_in_norm, &parts.attn_out_norm, &parts.mlp_in_norm, &parts.mlp_out_norm];
    let held = norms.map(|norm| norm.as_ref().map(|norm| (vectors(norm), norm.options)));
    let [attn_in_norm, attn_out_norm, mlp_in_norm, mlp_out_norm] =
        held.each_ref().map(|norm| norm.as_ref().map(|(vectors, options)| norm_values(vectors, *options)));
    let head_norms = parts.head_norms.as_ref();
    let held_of_heads = head_norms.map(|heads| heads.norms.each_ref().map(|norm| (vectors(norm), norm.options)));
    let bias = |linear: &LinearParts<'_>| linear.bias.clone().map(cpu::values);
    let biases = [&parts.qkv, &parts.out, &parts.up, &parts.down].map(bias);
    let values = cpu::BlockValues {
        attn_in_norm,
        qkv: linear_values(&parts.qkv, &biases[0]),
        head_norms: held_of_heads.as_ref().zip(head_norms).map(|(held, heads)| {
            (held.each_ref().map(|(vectors, options)| norm_values(vectors, *options)), heads.span)
        }),
        out: linear_values(&parts.out, &biases[1]),
        attn_out_norm,
        mlp_in_norm,
        up: linear_values(&parts.up, &biases[2]),
        down: linear_values(&parts.down, &biases[3]),
        mlp_out_norm,
        activation: parts.activation,
        gated: parts.gated,
        is_parallel: parts.is_parallel,
        residual_multiplier: parts.residual_multiplier as f32,
    };
    match attention.pools[0].dtype() {
        DType::F16 => over_pools::<f16>(x, &values, attention, scratch),
        _ => over_pools::<f32>(x, &values, attention, scratch),
    }
}

fn over_pools<E: KvElement>(
    x: Tensor<2>,
    values: &cpu::BlockValues<'_>,
    attention: PagedAttention<'_>,
    scratch: &mut BlockScratch,
) -> Tensor<2> {
    let PagedAttention { pools: [keys, key_values], slots, sequences, options, rotation } = attention;
    let mut output = None;
    cpu::update::<E>(keys, |keys| {
        cpu::update::<E>(key_values, |key_values| {
            let paged = cpu::PagedValues {
                pools: [keys, key_values],
                slots,
                sequences,
                options,
                rotation: rotation.map(Rotation::host),
            };
            output = Some(cpu::changed(x, |x| cpu::block(x, values, paged, &mut scratch.0)));
        });
    });
    output.unwrap_or_else(|| unreachable!("`update` calls its closure"))
}

fn norm_values(values: &[Option<cpu::Values>; 2], options: NormOptions) -> cpu::NormValues<'_> {
    let [weight, bias] = values.each_ref().map(|values| values.as_ref().map(cpu::Values::as_slice));
    cpu::NormValues { weight: weight.unwrap_or_default(), bias, options }
}

fn linear_values<'a>(linear: &LinearParts<'a>, bias: &'a Option<cpu::Values>) -> cpu::LinearValues<'a> {
    cpu::LinearValues { weight: packed(linear.weight), bias: bias.as_ref().map(cpu::Values::as_slice) }
}

fn packed(weight: &Weight) -> &Panels {
    match weight.form() {
        Form::Packed(panels) => panels,
        _ => unreachable!("`has_block` saw packed weights"),
    }
}
