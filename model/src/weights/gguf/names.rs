//! The tensors of GGUF files for each parameter.

use super::super::tensor_names::{
    NameRow,
    RowSelection::{Half, InterleavedKeys, InterleavedQueries, KeysOrValues, Queries, Values},
    same, stacked,
};

/// Tensors outside blocks; each model has some of these.
pub(super) const OUTSIDE: &[NameRow] = &[
    same("embed.weight", "token_embd.weight"),
    same("embed_norm.weight", "token_embd_norm.weight"),
    same("embed_norm.bias", "token_embd_norm.bias"),
    same("pos_embed.weight", "position_embd.weight"),
    same("norm.weight", "output_norm.weight"),
    same("norm.bias", "output_norm.bias"),
    same("lm_head.weight", "output.weight"),
    same("lm_head.bias", "output.bias"),
];

/// The tensors that compute the input of a prediction head's layer.
pub(super) const PREDICTION: &[NameRow] = &[
    same("join.token_norm.weight", "nextn.enorm.weight"),
    same("join.hidden_norm.weight", "nextn.hnorm.weight"),
    same("join.linear.weight", "nextn.eh_proj.weight"),
];

/// Norms after attention and MLP, in addition to those before them.
pub(super) const SANDWICH: &[NameRow] = &[
    same("blocks.{}.attn_out_norm.weight", "blk.{}.post_attention_norm.weight"),
    same("blocks.{}.mlp_out_norm.weight", "blk.{}.post_ffw_norm.weight"),
];

/// Norms only after attention and MLP.
pub(super) const INSIDE: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "blk.{}.post_attention_norm.weight"),
    same("blocks.{}.mlp_norm.weight", "blk.{}.post_ffw_norm.weight"),
];

/// With two norms, the first is the MLP's.
pub(super) const FALCON_NORMS: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "blk.{}.attn_norm_2.weight"),
    same("blocks.{}.attn_norm.bias", "blk.{}.attn_norm_2.bias"),
    same("blocks.{}.mlp_norm.weight", "blk.{}.attn_norm.weight"),
    same("blocks.{}.mlp_norm.bias", "blk.{}.attn_norm.bias"),
];

/// The norm before the MLP, under the class's name for it, which refers to its position.
pub(super) const POST_ATTENTION_NORM: &[NameRow] =
    &[same("blocks.{}.mlp_norm.weight", "blk.{}.post_attention_norm.weight")];

/// The numbers of the activation, which are metadata.
pub(super) const XIELU: &[NameRow] = &[same("blocks.{}.mlp.xielu.weight", "blk.{}.xielu")];

/// Names that the blocks of all architectures share.
pub(super) const BLOCK: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "blk.{}.attn_norm.weight"),
    same("blocks.{}.attn_norm.bias", "blk.{}.attn_norm.bias"),
    same("blocks.{}.attn.q_norm.weight", "blk.{}.attn_q_norm.weight"),
    same("blocks.{}.attn.k_norm.weight", "blk.{}.attn_k_norm.weight"),
    same("blocks.{}.attn.out.weight", "blk.{}.attn_output.weight"),
    same("blocks.{}.attn.out.bias", "blk.{}.attn_output.bias"),
    same("blocks.{}.mlp_norm.weight", "blk.{}.ffn_norm.weight"),
    same("blocks.{}.mlp_norm.bias", "blk.{}.ffn_norm.bias"),
    same("blocks.{}.mlp.down.weight", "blk.{}.ffn_down.weight"),
    same("blocks.{}.mlp.down.bias", "blk.{}.ffn_down.bias"),
];

pub(super) const GATED: &[NameRow] = &[
    stacked("blocks.{}.mlp.up.weight", &[("blk.{}.ffn_gate.weight", Half), ("blk.{}.ffn_up.weight", Half)]),
    stacked("blocks.{}.mlp.up.bias", &[("blk.{}.ffn_gate.bias", Half), ("blk.{}.ffn_up.bias", Half)]),
];

/// Not gated, or both matrices in one, as ours.
pub(super) const UNGATED: &[NameRow] =
    &[same("blocks.{}.mlp.up.weight", "blk.{}.ffn_up.weight"), same("blocks.{}.mlp.up.bias", "blk.{}.ffn_up.bias")];

/// Queries, keys and values in one tensor, in the order of ours.
pub(super) const FUSED_QKV: &[NameRow] = &[
    same("blocks.{}.attn.qkv.weight", "blk.{}.attn_qkv.weight"),
    same("blocks.{}.attn.qkv.bias", "blk.{}.attn_qkv.bias"),
];

/// Queries, keys and values in three tensors, with rows in these orders.
macro_rules! separate_qkv {
    ($queries:ident, $keys:ident, $values:ident) => {
        [
            stacked(
                "blocks.{}.attn.qkv.weight",
                &[
                    ("blk.{}.attn_q.weight", $queries),
                    ("blk.{}.attn_k.weight", $keys),
                    ("blk.{}.attn_v.weight", $values),
                ],
            ),
            stacked(
                "blocks.{}.attn.qkv.bias",
                &[("blk.{}.attn_q.bias", $queries), ("blk.{}.attn_k.bias", $keys), ("blk.{}.attn_v.bias", $values)],
            ),
        ]
    };
}

pub(super) const SEPARATE_QKV: &[NameRow] = &separate_qkv!(Queries, KeysOrValues, KeysOrValues);

pub(super) const INTERLEAVED_QKV: &[NameRow] = &separate_qkv!(InterleavedQueries, InterleavedKeys, KeysOrValues);

/// Some layers have no values.
pub(super) const QKV_OR_QK: &[NameRow] = &separate_qkv!(Queries, KeysOrValues, Values);

/// As [`INTERLEAVED_QKV`], with gates of the heads' outputs.
pub(super) const GATE_AND_QKV: &[NameRow] = &[stacked(
    "blocks.{}.attn.qkv.weight",
    &[
        ("blk.{}.attn_gate.weight", Queries),
        ("blk.{}.attn_q.weight", InterleavedQueries),
        ("blk.{}.attn_k.weight", InterleavedKeys),
        ("blk.{}.attn_v.weight", KeysOrValues),
    ],
)];
