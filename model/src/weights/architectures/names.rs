//! Which tensors of a class's files make which of our parameters.

use crate::config::GptConfig;

/// One parameter of ours, and what makes it up in the files. `{}` stands for the layer.
pub(in super::super) struct NameRow {
    pub(in super::super) path: &'static str,
    pub(in super::super) tensors: Tensors,
}

/// What a parameter is made of.
pub(in super::super) enum Tensors {
    /// One tensor, of the same shape.
    Same(&'static str),
    /// One matrix, stored as `[d_in, d_out]` (GPT-2's `Conv1D`).
    Transposed(&'static str),
    /// Several, stacked along `d_out`.
    Stacked(&'static [(&'static str, Rows)]),
    /// One tensor, of the same shape: the first where the configuration is so, otherwise the second.
    SameIf(fn(&GptConfig) -> bool, &'static str, &'static str),
    /// One tensor whose rows go key head by key head: its queries, its key, its value. Ours go all queries, all keys, all
    /// values.
    ByKeyHead(&'static str),
    /// The rows of one matrix behind its first few, which no text reaches; they are saved as zeros.
    Behind(usize, &'static str),
}

/// How many rows a stacked tensor has.
#[derive(Clone, Copy)]
pub(in super::super) enum Rows {
    Queries,
    KeysOrValues,
    Ff,
    /// Queries whose two dimensions that turn together are next to each other, head by head.
    InterleavedQueries,
    /// Keys laid out like that.
    InterleavedKeys,
}

impl Rows {
    pub(in super::super) fn count(self, config: &GptConfig) -> usize {
        match self {
            Self::Queries | Self::InterleavedQueries => config.q_width(),
            Self::KeysOrValues | Self::InterleavedKeys => config.kv_width(),
            Self::Ff => config.d_ff,
        }
    }

    pub(in super::super) fn are_interleaved(self) -> bool {
        matches!(self, Self::InterleavedQueries | Self::InterleavedKeys)
    }
}

const fn same(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow { path, tensors: Tensors::Same(tensor) }
}

const fn same_if(
    path: &'static str,
    holds: fn(&GptConfig) -> bool,
    tensor: &'static str,
    otherwise: &'static str,
) -> NameRow {
    NameRow { path, tensors: Tensors::SameIf(holds, tensor, otherwise) }
}

const fn transposed(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow { path, tensors: Tensors::Transposed(tensor) }
}

const fn stacked(path: &'static str, tensors: &'static [(&'static str, Rows)]) -> NameRow {
    NameRow { path, tensors: Tensors::Stacked(tensors) }
}

const fn by_key_head(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow { path, tensors: Tensors::ByKeyHead(tensor) }
}

pub(super) const GPT2: &[NameRow] = &[
    same("embed.weight", "transformer.wte.weight"),
    same("pos_embed.weight", "transformer.wpe.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
    transposed("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.c_attn.weight"),
    same("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.c_attn.bias"),
    transposed("blocks.{}.attn.out.weight", "transformer.h.{}.attn.c_proj.weight"),
    same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.c_proj.bias"),
    same("blocks.{}.mlp_norm.weight", "transformer.h.{}.ln_2.weight"),
    same("blocks.{}.mlp_norm.bias", "transformer.h.{}.ln_2.bias"),
    transposed("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.c_fc.bias"),
    transposed("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.c_proj.bias"),
    same("norm.weight", "transformer.ln_f.weight"),
    same("norm.bias", "transformer.ln_f.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

/// Llama and its kin; each has some of these.
pub(super) const LLAMA: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    same("blocks.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.layers.{}.self_attn.q_proj.weight", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.weight", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.layers.{}.self_attn.q_proj.bias", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.bias", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
    same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
    same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.o_proj.bias"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.bias", "model.layers.{}.post_attention_layernorm.bias"),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("model.layers.{}.mlp.gate_proj.weight", Rows::Ff), ("model.layers.{}.mlp.up_proj.weight", Rows::Ff)],
    ),
    stacked(
        "blocks.{}.mlp.up.bias",
        &[("model.layers.{}.mlp.gate_proj.bias", Rows::Ff), ("model.layers.{}.mlp.up_proj.bias", Rows::Ff)],
    ),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.down_proj.bias"),
    same("norm.weight", "model.norm.weight"),
    same("norm.bias", "model.norm.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

/// Norms stand behind the two parts.
pub(super) const OLMO2: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("blocks.{}.attn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.layers.{}.self_attn.q_proj.weight", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.weight", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.layers.{}.self_attn.q_proj.bias", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.bias", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
    same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
    same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.o_proj.bias"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("model.layers.{}.mlp.gate_proj.weight", Rows::Ff), ("model.layers.{}.mlp.up_proj.weight", Rows::Ff)],
    ),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("norm.weight", "model.norm.weight"),
    same("lm_head.weight", "lm_head.weight"),
];

/// Norms stand before and behind the two parts.
pub(super) const GEMMA2: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.layers.{}.self_attn.q_proj.weight", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.weight", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.layers.{}.self_attn.q_proj.bias", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.bias", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"),
    same("blocks.{}.attn.k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"),
    same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.o_proj.bias"),
    same("blocks.{}.attn_out_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("model.layers.{}.mlp.gate_proj.weight", Rows::Ff), ("model.layers.{}.mlp.up_proj.weight", Rows::Ff)],
    ),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("blocks.{}.mlp_out_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight"),
    same("norm.weight", "model.norm.weight"),
    same("lm_head.weight", "lm_head.weight"),
];

/// Its fused matrices lie as ours do.
pub(super) const PHI3: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    same("blocks.{}.attn.qkv.weight", "model.layers.{}.self_attn.qkv_proj.weight"),
    same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp.up.weight", "model.layers.{}.mlp.gate_up_proj.weight"),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("norm.weight", "model.norm.weight"),
    same("lm_head.weight", "lm_head.weight"),
];

pub(super) const NEOX: &[NameRow] = &[
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
];

pub(super) const OPT: &[NameRow] = &[
    same("embed.weight", "model.decoder.embed_tokens.weight"),
    // Positions are counted from the padding id's place on, which was 1 when the first OPT was trained.
    NameRow { path: "pos_embed.weight", tensors: Tensors::Behind(2, "model.decoder.embed_positions.weight") },
    same("blocks.{}.attn_norm.weight", "model.decoder.layers.{}.self_attn_layer_norm.weight"),
    same("blocks.{}.attn_norm.bias", "model.decoder.layers.{}.self_attn_layer_norm.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.decoder.layers.{}.self_attn.q_proj.weight", Rows::Queries),
            ("model.decoder.layers.{}.self_attn.k_proj.weight", Rows::KeysOrValues),
            ("model.decoder.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.decoder.layers.{}.self_attn.q_proj.bias", Rows::Queries),
            ("model.decoder.layers.{}.self_attn.k_proj.bias", Rows::KeysOrValues),
            ("model.decoder.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
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
];

pub(super) const BLOOM: &[NameRow] = &[
    same("embed.weight", "transformer.word_embeddings.weight"),
    same("embed_norm.weight", "transformer.word_embeddings_layernorm.weight"),
    same("embed_norm.bias", "transformer.word_embeddings_layernorm.bias"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.input_layernorm.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.input_layernorm.bias"),
    by_key_head("blocks.{}.attn.qkv.weight", "transformer.h.{}.self_attention.query_key_value.weight"),
    by_key_head("blocks.{}.attn.qkv.bias", "transformer.h.{}.self_attention.query_key_value.bias"),
    same("blocks.{}.attn.out.weight", "transformer.h.{}.self_attention.dense.weight"),
    same("blocks.{}.attn.out.bias", "transformer.h.{}.self_attention.dense.bias"),
    same("blocks.{}.mlp_norm.weight", "transformer.h.{}.post_attention_layernorm.weight"),
    same("blocks.{}.mlp_norm.bias", "transformer.h.{}.post_attention_layernorm.bias"),
    same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.dense_h_to_4h.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.dense_h_to_4h.bias"),
    same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.dense_4h_to_h.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.dense_4h_to_h.bias"),
    same("norm.weight", "transformer.ln_f.weight"),
    same("norm.bias", "transformer.ln_f.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

pub(super) const GPT1: &[NameRow] = &[
    same("embed.weight", "transformer.tokens_embed.weight"),
    same("pos_embed.weight", "transformer.positions_embed.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
    transposed("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.c_attn.weight"),
    same("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.c_attn.bias"),
    transposed("blocks.{}.attn.out.weight", "transformer.h.{}.attn.c_proj.weight"),
    same("blocks.{}.attn.out.bias", "transformer.h.{}.attn.c_proj.bias"),
    same("blocks.{}.mlp_norm.weight", "transformer.h.{}.ln_2.weight"),
    same("blocks.{}.mlp_norm.bias", "transformer.h.{}.ln_2.bias"),
    transposed("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.c_fc.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.c_fc.bias"),
    transposed("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.c_proj.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.c_proj.bias"),
    same("lm_head.weight", "lm_head.weight"),
];

pub(super) const CTRL: &[NameRow] = &[
    same("embed.weight", "transformer.w.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.layernorm1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.layernorm1.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("transformer.h.{}.multi_head_attention.Wq.weight", Rows::Queries),
            ("transformer.h.{}.multi_head_attention.Wk.weight", Rows::KeysOrValues),
            ("transformer.h.{}.multi_head_attention.Wv.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("transformer.h.{}.multi_head_attention.Wq.bias", Rows::Queries),
            ("transformer.h.{}.multi_head_attention.Wk.bias", Rows::KeysOrValues),
            ("transformer.h.{}.multi_head_attention.Wv.bias", Rows::KeysOrValues),
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
];

/// One norm for both parts.
pub(super) const PHI: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    same("blocks.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.layers.{}.self_attn.q_proj.weight", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.weight", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.layers.{}.self_attn.q_proj.bias", Rows::Queries),
            ("model.layers.{}.self_attn.k_proj.bias", Rows::KeysOrValues),
            ("model.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
        ],
    ),
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
];

/// One norm for both parts.
pub(super) const GPTJ: &[NameRow] = &[
    same("embed.weight", "transformer.wte.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("transformer.h.{}.attn.q_proj.weight", Rows::InterleavedQueries),
            ("transformer.h.{}.attn.k_proj.weight", Rows::InterleavedKeys),
            ("transformer.h.{}.attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "transformer.h.{}.attn.out_proj.weight"),
    same("blocks.{}.mlp.up.weight", "transformer.h.{}.mlp.fc_in.weight"),
    same("blocks.{}.mlp.up.bias", "transformer.h.{}.mlp.fc_in.bias"),
    same("blocks.{}.mlp.down.weight", "transformer.h.{}.mlp.fc_out.weight"),
    same("blocks.{}.mlp.down.bias", "transformer.h.{}.mlp.fc_out.bias"),
    same("norm.weight", "transformer.ln_f.weight"),
    same("norm.bias", "transformer.ln_f.bias"),
    same("lm_head.weight", "lm_head.weight"),
    same("lm_head.bias", "lm_head.bias"),
];

/// GPT-2 with plain matrices.
pub(super) const BIGCODE: &[NameRow] = &[
    same("embed.weight", "transformer.wte.weight"),
    same("pos_embed.weight", "transformer.wpe.weight"),
    same("blocks.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"),
    same("blocks.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"),
    by_key_head("blocks.{}.attn.qkv.weight", "transformer.h.{}.attn.c_attn.weight"),
    by_key_head("blocks.{}.attn.qkv.bias", "transformer.h.{}.attn.c_attn.bias"),
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
];

/// One norm for both parts.
pub(super) const COHERE: &[NameRow] = &[
    same("embed.weight", "model.embed_tokens.weight"),
    same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("model.layers.{}.self_attn.q_proj.weight", Rows::InterleavedQueries),
            ("model.layers.{}.self_attn.k_proj.weight", Rows::InterleavedKeys),
            ("model.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("model.layers.{}.self_attn.q_proj.bias", Rows::InterleavedQueries),
            ("model.layers.{}.self_attn.k_proj.bias", Rows::InterleavedKeys),
            ("model.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.o_proj.bias"),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("model.layers.{}.mlp.gate_proj.weight", Rows::Ff), ("model.layers.{}.mlp.up_proj.weight", Rows::Ff)],
    ),
    same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
    same("norm.weight", "model.norm.weight"),
    same("lm_head.weight", "lm_head.weight"),
];

/// Its norms are called otherwise where its two parts have one each and are side by side.
pub(super) const FALCON: &[NameRow] = &[
    same("embed.weight", "transformer.word_embeddings.weight"),
    same_if(
        "blocks.{}.attn_norm.weight",
        |c| c.parallel_residual && !c.shared_norm,
        "transformer.h.{}.ln_attn.weight",
        "transformer.h.{}.input_layernorm.weight",
    ),
    same_if(
        "blocks.{}.attn_norm.bias",
        |c| c.parallel_residual && !c.shared_norm,
        "transformer.h.{}.ln_attn.bias",
        "transformer.h.{}.input_layernorm.bias",
    ),
    same_if(
        "blocks.{}.mlp_norm.weight",
        |c| c.parallel_residual && !c.shared_norm,
        "transformer.h.{}.ln_mlp.weight",
        "transformer.h.{}.post_attention_layernorm.weight",
    ),
    same_if(
        "blocks.{}.mlp_norm.bias",
        |c| c.parallel_residual && !c.shared_norm,
        "transformer.h.{}.ln_mlp.bias",
        "transformer.h.{}.post_attention_layernorm.bias",
    ),
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
