//! Which tensors of GGUF files make which parameters.

use super::{
    GgufParam,
    GgufRows::{self, All, Ff, InterleavedKeys, InterleavedQueries, KeysOrValues, Queries},
};

const fn same(path: &'static str, tensor: &'static [(&'static str, GgufRows); 1]) -> GgufParam {
    GgufParam { path, tensors: tensor }
}

const fn stacked(path: &'static str, tensors: &'static [(&'static str, GgufRows)]) -> GgufParam {
    GgufParam { path, tensors }
}

/// What is not in blocks; each model has some of these.
pub(super) const OUTSIDE: &[GgufParam] = &[
    same("embed.weight", &[("token_embd.weight", All)]),
    same("embed_norm.weight", &[("token_embd_norm.weight", All)]),
    same("embed_norm.bias", &[("token_embd_norm.bias", All)]),
    same("pos_embed.weight", &[("position_embd.weight", All)]),
    same("norm.weight", &[("output_norm.weight", All)]),
    same("norm.bias", &[("output_norm.bias", All)]),
    same("lm_head.weight", &[("output.weight", All)]),
    same("lm_head.bias", &[("output.bias", All)]),
];

/// Norms behind the two parts, beside those before them.
pub(super) const SANDWICH: &[GgufParam] = &[
    same("blocks.{}.attn_out_norm.weight", &[("blk.{}.post_attention_norm.weight", All)]),
    same("blocks.{}.mlp_out_norm.weight", &[("blk.{}.post_ffw_norm.weight", All)]),
];

/// Norms behind the two parts alone.
pub(super) const INSIDE: &[GgufParam] = &[
    same("blocks.{}.attn_norm.weight", &[("blk.{}.post_attention_norm.weight", All)]),
    same("blocks.{}.mlp_norm.weight", &[("blk.{}.post_ffw_norm.weight", All)]),
];

/// Where there are two, the first is the network's.
pub(super) const FALCON_NORMS: &[GgufParam] = &[
    same("blocks.{}.attn_norm.weight", &[("blk.{}.attn_norm_2.weight", All)]),
    same("blocks.{}.attn_norm.bias", &[("blk.{}.attn_norm_2.bias", All)]),
    same("blocks.{}.mlp_norm.weight", &[("blk.{}.attn_norm.weight", All)]),
    same("blocks.{}.mlp_norm.bias", &[("blk.{}.attn_norm.bias", All)]),
];

/// What all blocks name alike.
pub(super) const BLOCK: &[GgufParam] = &[
    same("blocks.{}.attn_norm.weight", &[("blk.{}.attn_norm.weight", All)]),
    same("blocks.{}.attn_norm.bias", &[("blk.{}.attn_norm.bias", All)]),
    same("blocks.{}.attn.q_norm.weight", &[("blk.{}.attn_q_norm.weight", All)]),
    same("blocks.{}.attn.k_norm.weight", &[("blk.{}.attn_k_norm.weight", All)]),
    same("blocks.{}.attn.out.weight", &[("blk.{}.attn_output.weight", All)]),
    same("blocks.{}.attn.out.bias", &[("blk.{}.attn_output.bias", All)]),
    same("blocks.{}.mlp_norm.weight", &[("blk.{}.ffn_norm.weight", All)]),
    same("blocks.{}.mlp_norm.bias", &[("blk.{}.ffn_norm.bias", All)]),
    same("blocks.{}.mlp.down.weight", &[("blk.{}.ffn_down.weight", All)]),
    same("blocks.{}.mlp.down.bias", &[("blk.{}.ffn_down.bias", All)]),
];

pub(super) const GATED: &[GgufParam] = &[
    stacked("blocks.{}.mlp.up.weight", &[("blk.{}.ffn_gate.weight", Ff), ("blk.{}.ffn_up.weight", Ff)]),
    stacked("blocks.{}.mlp.up.bias", &[("blk.{}.ffn_gate.bias", Ff), ("blk.{}.ffn_up.bias", Ff)]),
];

/// Not gated, or both matrices in one, as ours.
pub(super) const UNGATED: &[GgufParam] = &[
    same("blocks.{}.mlp.up.weight", &[("blk.{}.ffn_up.weight", All)]),
    same("blocks.{}.mlp.up.bias", &[("blk.{}.ffn_up.bias", All)]),
];

/// Queries, keys and values one after the other, as ours.
pub(super) const FUSED_QKV: &[GgufParam] = &[
    same("blocks.{}.attn.qkv.weight", &[("blk.{}.attn_qkv.weight", All)]),
    same("blocks.{}.attn.qkv.bias", &[("blk.{}.attn_qkv.bias", All)]),
];

/// Files may have them in one as well.
pub(super) const SEPARATE_QKV: &[GgufParam] = &[
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("blk.{}.attn_q.weight", Queries),
            ("blk.{}.attn_k.weight", KeysOrValues),
            ("blk.{}.attn_v.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[("blk.{}.attn_q.bias", Queries), ("blk.{}.attn_k.bias", KeysOrValues), ("blk.{}.attn_v.bias", KeysOrValues)],
    ),
];

pub(super) const INTERLEAVED_QKV: &[GgufParam] = &[
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("blk.{}.attn_q.weight", InterleavedQueries),
            ("blk.{}.attn_k.weight", InterleavedKeys),
            ("blk.{}.attn_v.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("blk.{}.attn_q.bias", InterleavedQueries),
            ("blk.{}.attn_k.bias", InterleavedKeys),
            ("blk.{}.attn_v.bias", KeysOrValues),
        ],
    ),
];
