//! Classes with norms in other places than Llama.

use super::super::super::tensor_names::{NameRow, same};
use super::llama::{
    FUSED_MLP, INTERLEAVED_QKV, LLAMA_ENDS, LLAMA_MLP, LLAMA_NORMS, LLAMA_OUT, LLAMA_QK_NORM, LLAMA_QKV,
};

/// Norms after the two parts.
pub(in super::super) const OLMO2: &[&[NameRow]] =
    &[LLAMA_ENDS, OLMO2_NORMS, LLAMA_QKV, LLAMA_QK_NORM, LLAMA_OUT, LLAMA_MLP];

pub(super) const OLMO2_NORMS: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
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

/// As [`GEMMA2`], under other names.
pub(in super::super) const GLM4: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_self_attn_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
        same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_mlp_layernorm.weight"),
    ],
    INTERLEAVED_QKV,
    LLAMA_OUT,
    FUSED_MLP,
];

/// As Llama, with norms after the two parts where they are.
pub(in super::super) const HYPERCLOVAX: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    &[
        same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_norm1.weight"),
        same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_norm2.weight"),
    ],
    LLAMA_QKV,
    LLAMA_OUT,
    LLAMA_MLP,
];

/// One norm for both parts.
pub(in super::super) const COHERE: &[&[NameRow]] = &[
    LLAMA_ENDS,
    &[same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight")],
    INTERLEAVED_QKV,
    LLAMA_OUT,
    LLAMA_MLP,
];
