//! Encoder-decoders.

use super::super::super::tensor_names::{
    NameRow,
    RowSelection::{Half, KeysOrValues, Queries},
    after, same, stacked,
};

pub(in super::super) const T5: &[&[NameRow]] = &[
    T5_BODY,
    &[
        same("encoder.relative.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        same("relative.weight", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    ],
];

/// T5 with distances in each layer.
pub(in super::super) const UMT5: &[&[NameRow]] = &[
    T5_BODY,
    &[
        same(
            "encoder.blocks.{}.attn.relative.weight",
            "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        same("blocks.{}.attn.relative.weight", "decoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"),
    ],
];

const T5_BODY: &[NameRow] = &[
    same("embed.weight", "shared.weight"),
    same("lm_head.weight", "lm_head.weight"),
    // Saved once, if it is the embedding.
    same("lm_head.weight", "shared.weight"),
    same("encoder.blocks.{}.attn_norm.weight", "encoder.block.{}.layer.0.layer_norm.weight"),
    stacked(
        "encoder.blocks.{}.attn.qkv.weight",
        &[
            ("encoder.block.{}.layer.0.SelfAttention.q.weight", Queries),
            ("encoder.block.{}.layer.0.SelfAttention.k.weight", KeysOrValues),
            ("encoder.block.{}.layer.0.SelfAttention.v.weight", KeysOrValues),
        ],
    ),
    same("encoder.blocks.{}.attn.out.weight", "encoder.block.{}.layer.0.SelfAttention.o.weight"),
    same("encoder.blocks.{}.mlp_norm.weight", "encoder.block.{}.layer.1.layer_norm.weight"),
    same("encoder.blocks.{}.mlp.up.weight", "encoder.block.{}.layer.1.DenseReluDense.wi.weight")
        .only_if(|c| !c.gated_mlp),
    stacked(
        "encoder.blocks.{}.mlp.up.weight",
        &[
            ("encoder.block.{}.layer.1.DenseReluDense.wi_0.weight", Half),
            ("encoder.block.{}.layer.1.DenseReluDense.wi_1.weight", Half),
        ],
    ),
    same("encoder.blocks.{}.mlp.down.weight", "encoder.block.{}.layer.1.DenseReluDense.wo.weight"),
    same("encoder.norm.weight", "encoder.final_layer_norm.weight"),
    same("blocks.{}.attn_norm.weight", "decoder.block.{}.layer.0.layer_norm.weight"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("decoder.block.{}.layer.0.SelfAttention.q.weight", Queries),
            ("decoder.block.{}.layer.0.SelfAttention.k.weight", KeysOrValues),
            ("decoder.block.{}.layer.0.SelfAttention.v.weight", KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "decoder.block.{}.layer.0.SelfAttention.o.weight"),
    same("blocks.{}.cross_norm.weight", "decoder.block.{}.layer.1.layer_norm.weight"),
    same("blocks.{}.cross.q.weight", "decoder.block.{}.layer.1.EncDecAttention.q.weight"),
    stacked(
        "blocks.{}.cross.kv.weight",
        &[
            ("decoder.block.{}.layer.1.EncDecAttention.k.weight", KeysOrValues),
            ("decoder.block.{}.layer.1.EncDecAttention.v.weight", KeysOrValues),
        ],
    ),
    same("blocks.{}.cross.out.weight", "decoder.block.{}.layer.1.EncDecAttention.o.weight"),
    same("blocks.{}.mlp_norm.weight", "decoder.block.{}.layer.2.layer_norm.weight"),
    same("blocks.{}.mlp.up.weight", "decoder.block.{}.layer.2.DenseReluDense.wi.weight").only_if(|c| !c.gated_mlp),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[
            ("decoder.block.{}.layer.2.DenseReluDense.wi_0.weight", Half),
            ("decoder.block.{}.layer.2.DenseReluDense.wi_1.weight", Half),
        ],
    ),
    same("blocks.{}.mlp.down.weight", "decoder.block.{}.layer.2.DenseReluDense.wo.weight"),
    same("norm.weight", "decoder.final_layer_norm.weight"),
];

/// BART and its kin.
pub(in super::super) const BART: &[&[NameRow]] = &[&[
    same("embed.weight", "model.shared.weight"),
    same("lm_head.weight", "lm_head.weight"),
    same("lm_head.bias", "final_logits_bias").as_one_row(),
    // Positions begin with 2.
    after(2, "encoder.pos_embed.weight", "model.encoder.embed_positions.weight"),
    same("encoder.embed_norm.weight", "model.encoder.layernorm_embedding.weight"),
    same("encoder.embed_norm.bias", "model.encoder.layernorm_embedding.bias"),
    stacked(
        "encoder.blocks.{}.attn.qkv.weight",
        &[
            ("model.encoder.layers.{}.self_attn.q_proj.weight", Queries),
            ("model.encoder.layers.{}.self_attn.k_proj.weight", KeysOrValues),
            ("model.encoder.layers.{}.self_attn.v_proj.weight", KeysOrValues),
        ],
    ),
    stacked(
        "encoder.blocks.{}.attn.qkv.bias",
        &[
            ("model.encoder.layers.{}.self_attn.q_proj.bias", Queries),
            ("model.encoder.layers.{}.self_attn.k_proj.bias", KeysOrValues),
            ("model.encoder.layers.{}.self_attn.v_proj.bias", KeysOrValues),
        ],
    ),
    same("encoder.blocks.{}.attn.out.weight", "model.encoder.layers.{}.self_attn.out_proj.weight"),
    same("encoder.blocks.{}.attn.out.bias", "model.encoder.layers.{}.self_attn.out_proj.bias"),
    same("encoder.blocks.{}.attn_norm.weight", "model.encoder.layers.{}.self_attn_layer_norm.weight"),
    same("encoder.blocks.{}.attn_norm.bias", "model.encoder.layers.{}.self_attn_layer_norm.bias"),
    same("encoder.blocks.{}.mlp.up.weight", "model.encoder.layers.{}.fc1.weight"),
    same("encoder.blocks.{}.mlp.up.bias", "model.encoder.layers.{}.fc1.bias"),
    same("encoder.blocks.{}.mlp.down.weight", "model.encoder.layers.{}.fc2.weight"),
    same("encoder.blocks.{}.mlp.down.bias", "model.encoder.layers.{}.fc2.bias"),
    same("encoder.blocks.{}.mlp_norm.weight", "model.encoder.layers.{}.final_layer_norm.weight"),
    same("encoder.blocks.{}.mlp_norm.bias", "model.encoder.layers.{}.final_layer_norm.bias"),
    same("encoder.norm.weight", "model.encoder.layer_norm.weight"),
    same("encoder.norm.bias", "model.encoder.layer_norm.bias"),
    after(2, "pos_embed.weight", "model.decoder.embed_positions.weight"),
    same("embed_norm.weight", "model.decoder.layernorm_embedding.weight"),
    same("embed_norm.bias", "model.decoder.layernorm_embedding.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.decoder.layers.{}.self_attn.q_proj.weight", Queries),
            ("model.decoder.layers.{}.self_attn.k_proj.weight", KeysOrValues),
            ("model.decoder.layers.{}.self_attn.v_proj.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.decoder.layers.{}.self_attn.q_proj.bias", Queries),
            ("model.decoder.layers.{}.self_attn.k_proj.bias", KeysOrValues),
            ("model.decoder.layers.{}.self_attn.v_proj.bias", KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "model.decoder.layers.{}.self_attn.out_proj.weight"),
    same("blocks.{}.attn.out.bias", "model.decoder.layers.{}.self_attn.out_proj.bias"),
    same("blocks.{}.attn_norm.weight", "model.decoder.layers.{}.self_attn_layer_norm.weight"),
    same("blocks.{}.attn_norm.bias", "model.decoder.layers.{}.self_attn_layer_norm.bias"),
    same("blocks.{}.cross.q.weight", "model.decoder.layers.{}.encoder_attn.q_proj.weight"),
    same("blocks.{}.cross.q.bias", "model.decoder.layers.{}.encoder_attn.q_proj.bias"),
    stacked(
        "blocks.{}.cross.kv.weight",
        &[
            ("model.decoder.layers.{}.encoder_attn.k_proj.weight", KeysOrValues),
            ("model.decoder.layers.{}.encoder_attn.v_proj.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.cross.kv.bias",
        &[
            ("model.decoder.layers.{}.encoder_attn.k_proj.bias", KeysOrValues),
            ("model.decoder.layers.{}.encoder_attn.v_proj.bias", KeysOrValues),
        ],
    ),
    same("blocks.{}.cross.out.weight", "model.decoder.layers.{}.encoder_attn.out_proj.weight"),
    same("blocks.{}.cross.out.bias", "model.decoder.layers.{}.encoder_attn.out_proj.bias"),
    same("blocks.{}.cross_norm.weight", "model.decoder.layers.{}.encoder_attn_layer_norm.weight"),
    same("blocks.{}.cross_norm.bias", "model.decoder.layers.{}.encoder_attn_layer_norm.bias"),
    same("blocks.{}.mlp.up.weight", "model.decoder.layers.{}.fc1.weight"),
    same("blocks.{}.mlp.up.bias", "model.decoder.layers.{}.fc1.bias"),
    same("blocks.{}.mlp.down.weight", "model.decoder.layers.{}.fc2.weight"),
    same("blocks.{}.mlp.down.bias", "model.decoder.layers.{}.fc2.bias"),
    same("blocks.{}.mlp_norm.weight", "model.decoder.layers.{}.final_layer_norm.weight"),
    same("blocks.{}.mlp_norm.bias", "model.decoder.layers.{}.final_layer_norm.bias"),
    same("norm.weight", "model.decoder.layer_norm.weight"),
    same("norm.bias", "model.decoder.layer_norm.bias"),
]];
