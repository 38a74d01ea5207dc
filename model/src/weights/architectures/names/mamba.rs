//! Models with Mamba-2 layers.

use super::{
    super::super::tensor_names::{NameRow, RowSelection::Half, same, stacked},
    experts::GRANITE_EXPERTS,
    llama::{LLAMA_ENDS, LLAMA_NORMS, LLAMA_OUT, LLAMA_QKV},
};

/// Granite 4 H, with experts or not.
pub(in super::super) const GRANITE_HYBRID: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_OUT,
    MAMBA,
    GRANITE_EXPERTS,
    &[
        same("blocks.{}.mlp.up.weight", "model.layers.{}.shared_mlp.input_linear.weight"),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.shared_mlp.output_linear.weight"),
    ],
];

pub(in super::super) const BAMBA: &[&[NameRow]] = &[
    &[
        same("norm.weight", "model.final_layernorm.weight"),
        same("blocks.{}.mlp_norm.weight", "model.layers.{}.pre_ff_layernorm.weight"),
        stacked(
            "blocks.{}.mlp.up.weight",
            &[
                ("model.layers.{}.feed_forward.gate_proj.weight", Half),
                ("model.layers.{}.feed_forward.up_proj.weight", Half),
            ],
        ),
        stacked(
            "blocks.{}.mlp.up.bias",
            &[
                ("model.layers.{}.feed_forward.gate_proj.bias", Half),
                ("model.layers.{}.feed_forward.up_proj.bias", Half),
            ],
        ),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.feed_forward.down_proj.weight"),
        same("blocks.{}.mlp.down.bias", "model.layers.{}.feed_forward.down_proj.bias"),
        same("embed.weight", "model.embed_tokens.weight"),
        same("lm_head.weight", "lm_head.weight"),
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    ],
    LLAMA_QKV,
    LLAMA_OUT,
    MAMBA,
];

const MAMBA: &[NameRow] = &[
    same("blocks.{}.recurrent.input.weight", "model.layers.{}.mamba.in_proj.weight"),
    same("blocks.{}.recurrent.input.bias", "model.layers.{}.mamba.in_proj.bias"),
    same("blocks.{}.recurrent.conv.weight", "model.layers.{}.mamba.conv1d.weight"),
    same("blocks.{}.recurrent.conv.bias", "model.layers.{}.mamba.conv1d.bias"),
    same("blocks.{}.recurrent.decays.a_log", "model.layers.{}.mamba.A_log"),
    same("blocks.{}.recurrent.decays.dt_bias", "model.layers.{}.mamba.dt_bias"),
    same("blocks.{}.recurrent.decays.skip", "model.layers.{}.mamba.D"),
    same("blocks.{}.recurrent.norm.weight", "model.layers.{}.mamba.norm.weight"),
    same("blocks.{}.recurrent.out.weight", "model.layers.{}.mamba.out_proj.weight"),
    same("blocks.{}.recurrent.out.bias", "model.layers.{}.mamba.out_proj.bias"),
];
