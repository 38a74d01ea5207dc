//! How the files of other training programs name their tensors.

use crate::config::{GptConfig, NormPosition};

use super::super::tensor_names::{
    RowSelection::{Half, KeysOrValues, ReversedKeys, ReversedQueries},
    TensorNames, by_key_head, same, stacked,
};

/// GPT-2's names, but for matrices that are not transposed.
pub(super) const NANOGPT: TensorNames = TensorNames {
    class: "nanoGPT",
    rows: Some(&[&[
        same("embed.weight", "transformer.wte.weight"),
        same("pos_embed.weight", "transformer.wpe.weight"),
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
        same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
        same("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.c_attn.weight"),
        same("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.c_attn.bias"),
        same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.c_proj.weight"),
        same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.c_proj.bias"),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.ln_2.weight"),
        same("blocks.{}.mlp_norm.bias", "transformer.h.{}.ln_2.bias"),
        same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
        same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.c_fc.bias"),
        same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
        same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.c_proj.bias"),
        same("norm.weight", "transformer.ln_f.weight"),
        same("norm.bias", "transformer.ln_f.bias"),
        same("lm_head.weight", "lm_head.weight"),
    ]]),
    base_prefix: "",
    body_prefix: "",
    is_base: false,
};

pub(super) const LITGPT: TensorNames = TensorNames {
    class: "LitGPT's GPT",
    rows: Some(&[&[
        same("embed.weight", "transformer.wte.weight"),
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.norm_1.weight").only_if(|c| !is_inside(c)),
        same("blocks.{}.attn_norm.bias", "transformer.h.{}.norm_1.bias").only_if(|c| !is_inside(c)),
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.post_attention_norm.weight").only_if(is_inside),
        same("blocks.{}.attn_norm.bias", "transformer.h.{}.post_attention_norm.bias").only_if(is_inside),
        same("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.qkv.weight"),
        same("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.qkv.bias"),
        // Before version 0.5.4.
        by_key_head("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.attn.weight"),
        by_key_head("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.attn.bias"),
        same("blocks.{}.attn.q_norm.weight", "transformer.h.{}.attn.norm_q.weight"),
        same("blocks.{}.attn.k_norm.weight", "transformer.h.{}.attn.norm_k.weight"),
        same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.proj.weight"),
        same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.proj.bias"),
        same("blocks.{}.attn_out_norm.weight", "transformer.h.{}.post_attention_norm.weight"),
        same("blocks.{}.attn_out_norm.bias", "transformer.h.{}.post_attention_norm.bias"),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.norm_2.weight").only_if(|c| !is_inside(c)),
        same("blocks.{}.mlp_norm.bias", "transformer.h.{}.norm_2.bias").only_if(|c| !is_inside(c)),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.post_mlp_norm.weight").only_if(is_inside),
        same("blocks.{}.mlp_norm.bias", "transformer.h.{}.post_mlp_norm.bias").only_if(is_inside),
        same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.fc.weight").only_if(|c| !c.gated_mlp),
        same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.fc.bias").only_if(|c| !c.gated_mlp),
        stacked(
            "blocks.{}.mlp.up.weight",
            &[("transformer.h.{}.mlp.fc_1.weight", Half), ("transformer.h.{}.mlp.fc_2.weight", Half)],
        )
        .only_if(|c| c.gated_mlp),
        stacked(
            "blocks.{}.mlp.up.bias",
            &[("transformer.h.{}.mlp.fc_1.bias", Half), ("transformer.h.{}.mlp.fc_2.bias", Half)],
        )
        .only_if(|c| c.gated_mlp),
        same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.proj.weight"),
        same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.proj.bias"),
        same("blocks.{}.mlp_out_norm.weight", "transformer.h.{}.post_mlp_norm.weight"),
        same("blocks.{}.mlp_out_norm.bias", "transformer.h.{}.post_mlp_norm.bias"),
        same("norm.weight", "transformer.ln_f.weight"),
        same("norm.bias", "transformer.ln_f.bias"),
        same("lm_head.weight", "lm_head.weight"),
        same("lm_head.bias", "lm_head.bias"),
    ]]),
    base_prefix: "",
    body_prefix: "",
    is_base: false,
};

fn is_inside(config: &GptConfig) -> bool {
    config.norm_position == NormPosition::Inside
}

/// Queries and keys are rotated by the negative angle.
pub(super) const NANOCHAT: TensorNames = TensorNames {
    class: "nanochat",
    rows: Some(&[&[
        same("embed.weight", "transformer.wte.weight"),
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("transformer.h.{}.attn.c_q.weight", ReversedQueries),
                ("transformer.h.{}.attn.c_k.weight", ReversedKeys),
                ("transformer.h.{}.attn.c_v.weight", KeysOrValues),
            ],
        ),
        same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.c_proj.weight"),
        same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
        same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
        same("lm_head.weight", "lm_head.weight"),
    ]]),
    base_prefix: "",
    body_prefix: "",
    is_base: false,
};
