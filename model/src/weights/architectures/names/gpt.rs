//! GPT-2 and its successors until Llama.

use super::super::super::tensor_names::{
    NameRow,
    RowSelection::{InterleavedKeys, InterleavedQueries, KeysOrValues, Queries, Shards},
    after, by_key_head, ordered, same, stacked, transposed,
};
use super::llama::{LLAMA_ENDS, LLAMA_NORMS, LLAMA_OUT, LLAMA_QKV, QK_LAYER_NORM};
use crate::config::GptConfig;

/// One norm for both parts.
pub(in super::super) const PHI: &[&[NameRow]] = &[
    LLAMA_QKV,
    QK_LAYER_NORM,
    &[
        same("embed.weight", "model.embed_tokens.weight"),
        same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
        same("blocks.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias"),
        same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.dense.weight"),
        same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.dense.bias"),
        same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.fc1.weight"),
        same("blocks.{}.mlp.up.bias", "model.layers.{}.mlp.fc1.bias"),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.fc2.weight"),
        same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.fc2.bias"),
        same("norm.weight", "model.final_layernorm.weight"),
        same("norm.bias", "model.final_layernorm.bias"),
        same("lm_head.weight", "lm_head.weight"),
        same("lm_head.bias", "lm_head.bias"),
    ],
];

pub(in super::super) const PERSIMMON: &[&[NameRow]] = &[
    LLAMA_NORMS,
    QK_LAYER_NORM,
    &[
        same("embed.weight", "model.embed_tokens.weight"),
        by_key_head("blocks.{}.attn.qkv.weight", "model.layers.{}.self_attn.query_key_value.weight"),
        by_key_head("blocks.{}.attn.qkv.bias", "model.layers.{}.self_attn.query_key_value.bias"),
        same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.dense.weight"),
        same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.dense.bias"),
        same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.dense_h_to_4h.weight"),
        same("blocks.{}.mlp.up.bias", "model.layers.{}.mlp.dense_h_to_4h.bias"),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.dense_4h_to_h.weight"),
        same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.dense_4h_to_h.bias"),
        same("norm.weight", "model.final_layernorm.weight"),
        same("norm.bias", "model.final_layernorm.bias"),
        same("lm_head.weight", "lm_head.weight"),
    ],
];

pub(in super::super) const MPT: &[&[NameRow]] = &[&[
    same("embed.weight", "transformer.wte.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.blocks.{}.norm_1.weight"),
    same("blocks.{}.attn.qkv.weight", "transformer.blocks.{}.attn.Wqkv.weight"),
    same("blocks.{}.attn.out.weight", "transformer.blocks.{}.attn.out_proj.weight"),
    same("blocks.{}.mlp_norm.weight", "transformer.blocks.{}.norm_2.weight"),
    same("blocks.{}.mlp.up.weight", "transformer.blocks.{}.ffn.up_proj.weight"),
    same("blocks.{}.mlp.down.weight", "transformer.blocks.{}.ffn.down_proj.weight"),
    same("norm.weight", "transformer.norm_f.weight"),
    same("lm_head.weight", "lm_head.weight"),
]];

pub(in super::super) const STARCODER2: &[&[NameRow]] = &[
    LLAMA_ENDS,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_OUT,
    &[
        same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.c_fc.weight"),
        same("blocks.{}.mlp.up.bias", "model.layers.{}.mlp.c_fc.bias"),
        same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.c_proj.weight"),
        same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.c_proj.bias"),
    ],
];

pub(in super::super) const GPT2: &[&[NameRow]] = &[GPT2_ENDS, GPT2_NORMS, GPT2_MATRICES, GPT2_BIASES];

/// GPT-2's tensors outside blocks.
const GPT2_ENDS: &[NameRow] = &[
    same("embed.weight", "transformer.wte.weight"),
    same("pos_embed.weight", "transformer.wpe.weight"),
    same("norm.weight", "transformer.ln_f.weight"),
    same("norm.bias", "transformer.ln_f.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

const GPT2_NORMS: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
    same("blocks.{}.mlp_norm.weight", "transformer.h.{}.ln_2.weight"),
    same("blocks.{}.mlp_norm.bias", "transformer.h.{}.ln_2.bias"),
];

const GPT2_MATRICES: &[NameRow] = &[
    transposed("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.c_attn.weight"),
    transposed("blocks.{}.attn.out.weight", "transformer.h.{}.attn.c_proj.weight"),
    transposed("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
    transposed("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
];

const GPT2_BIASES: &[NameRow] = &[
    same("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.c_attn.bias"),
    same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.c_proj.bias"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.c_fc.bias"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.c_proj.bias"),
];

pub(in super::super) const GPT_NEO: &[&[NameRow]] = &[
    GPT2_ENDS,
    GPT2_NORMS,
    &[
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("transformer.h.{}.attn.attention.q_proj.weight", Queries),
                ("transformer.h.{}.attn.attention.k_proj.weight", KeysOrValues),
                ("transformer.h.{}.attn.attention.v_proj.weight", KeysOrValues),
            ],
        ),
        same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.attention.out_proj.weight"),
        same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.attention.out_proj.bias"),
        same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
        same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.c_fc.bias"),
        same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
        same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.c_proj.bias"),
    ],
];

pub(in super::super) const GPT1: &[&[NameRow]] = &[
    &[
        same("embed.weight", "transformer.tokens_embed.weight"),
        same("pos_embed.weight", "transformer.positions_embed.weight"),
        same("lm_head.weight", "lm_head.weight"),
    ],
    GPT2_NORMS,
    GPT2_MATRICES,
    GPT2_BIASES,
];

/// GPT-2 with matrices that are not transposed.
pub(in super::super) const BIGCODE: &[&[NameRow]] = &[
    GPT2_ENDS,
    GPT2_NORMS,
    &[
        by_key_head("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.c_attn.weight"),
        by_key_head("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.c_attn.bias"),
        same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.c_proj.weight"),
        same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.c_proj.bias"),
        same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
        same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.c_fc.bias"),
        same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
        same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.c_proj.bias"),
    ],
];

/// One norm for both parts.
pub(in super::super) const GPTJ: &[&[NameRow]] = &[
    GPT2_ENDS,
    GPTJ_REST,
    &[stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("transformer.h.{}.attn.q_proj.weight", InterleavedQueries),
            ("transformer.h.{}.attn.k_proj.weight", InterleavedKeys),
            ("transformer.h.{}.attn.v_proj.weight", KeysOrValues),
        ],
    )],
];

/// GPT-J, trained in four parts.
pub(in super::super) const CODEGEN: &[&[NameRow]] =
    &[GPT2_ENDS, GPTJ_REST, &[ordered(Shards, "blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.qkv_proj.weight")]];

const GPTJ_REST: &[NameRow] = &[
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
    same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.out_proj.weight"),
    same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.fc_in.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.fc_in.bias"),
    same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.fc_out.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.fc_out.bias"),
    same("lm_head.bias", "lm_head.bias"),
];

pub(in super::super) const BLOOM: &[&[NameRow]] = &[
    BLOOM_REST,
    &[
        same("embed_norm.weight", "transformer.word_embeddings_layernorm.weight"),
        same("embed_norm.bias", "transformer.word_embeddings_layernorm.bias"),
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.input_layernorm.weight"),
        same("blocks.{}.attn_norm.bias", "transformer.h.{}.input_layernorm.bias"),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.post_attention_layernorm.weight"),
        same("blocks.{}.mlp_norm.bias", "transformer.h.{}.post_attention_layernorm.bias"),
    ],
];

/// All but BLOOM's norms.
const BLOOM_REST: &[NameRow] = &[
    same("embed.weight", "transformer.word_embeddings.weight"),
    by_key_head("blocks.{}.attn.qkv.weight", "transformer.h.{}.self_attention.query_key_value.weight"),
    by_key_head("blocks.{}.attn.qkv.bias", "transformer.h.{}.self_attention.query_key_value.bias"),
    same("blocks.{}.attn.out.weight", "transformer.h.{}.self_attention.dense.weight"),
    same("blocks.{}.attn.out.bias", "transformer.h.{}.self_attention.dense.bias"),
    same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.dense_h_to_4h.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.dense_h_to_4h.bias"),
    same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.dense_4h_to_h.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.dense_4h_to_h.bias"),
    same("norm.weight", "transformer.ln_f.weight"),
    same("norm.bias", "transformer.ln_f.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

/// Norms have other names if the two parts are parallel and have one each.
pub(in super::super) const FALCON: &[&[NameRow]] = &[
    BLOOM_REST,
    &[
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_attn.weight").only_if(has_two_norms),
        same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_attn.bias").only_if(has_two_norms),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.ln_mlp.weight").only_if(has_two_norms),
        same("blocks.{}.mlp_norm.bias", "transformer.h.{}.ln_mlp.bias").only_if(has_two_norms),
        same("blocks.{}.attn_norm.weight", "transformer.h.{}.input_layernorm.weight").only_if(has_other_norms),
        same("blocks.{}.attn_norm.bias", "transformer.h.{}.input_layernorm.bias").only_if(has_other_norms),
        same("blocks.{}.mlp_norm.weight", "transformer.h.{}.post_attention_layernorm.weight").only_if(has_other_norms),
        same("blocks.{}.mlp_norm.bias", "transformer.h.{}.post_attention_layernorm.bias").only_if(has_other_norms),
    ],
];

/// Whether a Falcon's two parts are parallel and have a norm each.
fn has_two_norms(config: &GptConfig) -> bool {
    config.parallel_residual && !config.shared_norm
}

fn has_other_norms(config: &GptConfig) -> bool {
    !has_two_norms(config)
}

pub(in super::super) const NEOX: &[&[NameRow]] = &[&[
    same("embed.weight", "gpt_neox.embed_in.weight"),
    same("blocks.{}.attn_norm.weight", "gpt_neox.layers.{}.input_layernorm.weight"),
    same("blocks.{}.attn_norm.bias", "gpt_neox.layers.{}.input_layernorm.bias"),
    by_key_head("blocks.{}.attn.qkv.weight", "gpt_neox.layers.{}.attention.query_key_value.weight"),
    by_key_head("blocks.{}.attn.qkv.bias", "gpt_neox.layers.{}.attention.query_key_value.bias"),
    same("blocks.{}.attn.out.weight", "gpt_neox.layers.{}.attention.dense.weight"),
    same("blocks.{}.attn.out.bias", "gpt_neox.layers.{}.attention.dense.bias"),
    same("blocks.{}.mlp_norm.weight", "gpt_neox.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.bias", "gpt_neox.layers.{}.post_attention_layernorm.bias"),
    same("blocks.{}.mlp.up.weight", "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"),
    same("blocks.{}.mlp.up.bias", "gpt_neox.layers.{}.mlp.dense_h_to_4h.bias"),
    same("blocks.{}.mlp.down.weight", "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight"),
    same("blocks.{}.mlp.down.bias", "gpt_neox.layers.{}.mlp.dense_4h_to_h.bias"),
    same("norm.weight", "gpt_neox.final_layer_norm.weight"),
    same("norm.bias", "gpt_neox.final_layer_norm.bias"),
    same("lm_head.weight", "embed_out.weight"),
]];

pub(in super::super) const OPT: &[&[NameRow]] = &[&[
    same("embed.weight", "model.decoder.embed_tokens.weight"),
    // Positions start after the padding id, which was 1 when the first OPT was trained.
    after(2, "pos_embed.weight", "model.decoder.embed_positions.weight"),
    same("blocks.{}.attn_norm.weight", "model.decoder.layers.{}.self_attn_layer_norm.weight"),
    same("blocks.{}.attn_norm.bias", "model.decoder.layers.{}.self_attn_layer_norm.bias"),
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
    same("blocks.{}.mlp_norm.weight", "model.decoder.layers.{}.final_layer_norm.weight"),
    same("blocks.{}.mlp_norm.bias", "model.decoder.layers.{}.final_layer_norm.bias"),
    same("blocks.{}.mlp.up.weight", "model.decoder.layers.{}.fc1.weight"),
    same("blocks.{}.mlp.up.bias", "model.decoder.layers.{}.fc1.bias"),
    same("blocks.{}.mlp.down.weight", "model.decoder.layers.{}.fc2.weight"),
    same("blocks.{}.mlp.down.bias", "model.decoder.layers.{}.fc2.bias"),
    same("norm.weight", "model.decoder.final_layer_norm.weight"),
    same("norm.bias", "model.decoder.final_layer_norm.bias"),
    same("lm_head.weight", "lm_head.weight"),
]];

pub(in super::super) const CTRL: &[&[NameRow]] = &[&[
    same("embed.weight", "transformer.w.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.layernorm1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.layernorm1.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("transformer.h.{}.multi_head_attention.Wq.weight", Queries),
            ("transformer.h.{}.multi_head_attention.Wk.weight", KeysOrValues),
            ("transformer.h.{}.multi_head_attention.Wv.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("transformer.h.{}.multi_head_attention.Wq.bias", Queries),
            ("transformer.h.{}.multi_head_attention.Wk.bias", KeysOrValues),
            ("transformer.h.{}.multi_head_attention.Wv.bias", KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "transformer.h.{}.multi_head_attention.dense.weight"),
    same("blocks.{}.attn.out.bias", "transformer.h.{}.multi_head_attention.dense.bias"),
    same("blocks.{}.mlp_norm.weight", "transformer.h.{}.layernorm2.weight"),
    same("blocks.{}.mlp_norm.bias", "transformer.h.{}.layernorm2.bias"),
    same("blocks.{}.mlp.up.weight", "transformer.h.{}.ffn.0.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.ffn.0.bias"),
    same("blocks.{}.mlp.down.weight", "transformer.h.{}.ffn.2.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.ffn.2.bias"),
    same("norm.weight", "transformer.layernorm.weight"),
    same("norm.bias", "transformer.layernorm.bias"),
    same("lm_head.weight", "lm_head.weight"),
    same("lm_head.bias", "lm_head.bias"),
]];
