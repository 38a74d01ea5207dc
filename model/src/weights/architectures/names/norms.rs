//! Classes with norms in other places than Llama.

use super::super::super::tensor_names::{
    NameRow,
    RowSelection::{InterleavedKeys, InterleavedQueries, KeysOrValues},
    same, stacked,
};
use super::llama::{LLAMA_ENDS, LLAMA_MLP, LLAMA_OUT, LLAMA_QK_NORM, LLAMA_QKV};

/// Norms after the two parts.
pub(in super::super) const OLMO2: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
    ],
    LLAMA_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    LLAMA_MLP,
];

/// Norms before and after the two parts.
pub(in super::super) const GEMMA2: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"),
        same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
    ],
    LLAMA_QKV,
    LLAMA_QK_NORM,
    LLAMA_OUT,
    LLAMA_MLP,
];

/// One norm for both parts.
pub(in super::super) const COHERE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("model.layers.{}.self_attn.q_proj.weight", InterleavedQueries),
                ("model.layers.{}.self_attn.k_proj.weight", InterleavedKeys),
                ("model.layers.{}.self_attn.v_proj.weight", KeysOrValues),
            ],
        ),
        stacked(
            "blocks.{}.attn.qkv.bias",
            &[
                ("model.layers.{}.self_attn.q_proj.bias", InterleavedQueries),
                ("model.layers.{}.self_attn.k_proj.bias", InterleavedKeys),
                ("model.layers.{}.self_attn.v_proj.bias", KeysOrValues),
            ],
        ),
    ],
    LLAMA_OUT,
    LLAMA_MLP,
];
