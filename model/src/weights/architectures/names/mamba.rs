//! Models with Mamba-2 layers.

use super::{
    super::super::tensor_names::{
        NameRow,
        RowSelection::{Half, KeysOrValues, Queries},
        same, stacked,
    },
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

/// Whatever a layer of Nemotron-H is, its tensors have the same beginning.
pub(in super::super) const NEMOTRON_H: &[&[NameRow]] = &[&[
    same("embed.weight", "backbone.embeddings.weight"),
    same("norm.weight", "backbone.norm_f.weight"),
    same("lm_head.weight", "lm_head.weight"),
    same("blocks.{}.attn_norm.weight", "backbone.layers.{}.norm.weight"),
    same("blocks.{}.mlp_norm.weight", "backbone.layers.{}.norm.weight"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("backbone.layers.{}.mixer.q_proj.weight", Queries),
            ("backbone.layers.{}.mixer.k_proj.weight", KeysOrValues),
            ("backbone.layers.{}.mixer.v_proj.weight", KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "backbone.layers.{}.mixer.o_proj.weight"),
    same("blocks.{}.recurrent.input.weight", "backbone.layers.{}.mixer.in_proj.weight"),
    same("blocks.{}.recurrent.input.bias", "backbone.layers.{}.mixer.in_proj.bias"),
    same("blocks.{}.recurrent.conv.weight", "backbone.layers.{}.mixer.conv1d.weight"),
    same("blocks.{}.recurrent.conv.bias", "backbone.layers.{}.mixer.conv1d.bias"),
    same("blocks.{}.recurrent.decays.a_log", "backbone.layers.{}.mixer.A_log"),
    same("blocks.{}.recurrent.decays.dt_bias", "backbone.layers.{}.mixer.dt_bias"),
    same("blocks.{}.recurrent.decays.skip", "backbone.layers.{}.mixer.D"),
    same("blocks.{}.recurrent.norm.weight", "backbone.layers.{}.mixer.norm.weight"),
    same("blocks.{}.recurrent.out.weight", "backbone.layers.{}.mixer.out_proj.weight"),
    same("blocks.{}.recurrent.out.bias", "backbone.layers.{}.mixer.out_proj.bias"),
    same("blocks.{}.mlp.up.weight", "backbone.layers.{}.mixer.up_proj.weight"),
    same("blocks.{}.mlp.down.weight", "backbone.layers.{}.mixer.down_proj.weight"),
    same("blocks.{}.experts.router.weight", "backbone.layers.{}.mixer.gate.weight"),
    same("blocks.{}.experts.router.selection_bias", "backbone.layers.{}.mixer.gate.e_score_correction_bias"),
    same("blocks.{}.experts.latent_down.weight", "backbone.layers.{}.mixer.fc1_latent_proj.weight"),
    same("blocks.{}.experts.latent_up.weight", "backbone.layers.{}.mixer.fc2_latent_proj.weight"),
    same("blocks.{}.experts.routed.{}.up.weight", "backbone.layers.{}.mixer.experts.{}.up_proj.weight"),
    same("blocks.{}.experts.routed.{}.down.weight", "backbone.layers.{}.mixer.experts.{}.down_proj.weight"),
    same("blocks.{}.experts.shared.up.weight", "backbone.layers.{}.mixer.shared_experts.up_proj.weight"),
    same("blocks.{}.experts.shared.down.weight", "backbone.layers.{}.mixer.shared_experts.down_proj.weight"),
]];
