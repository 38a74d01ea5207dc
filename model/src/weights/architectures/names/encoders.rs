//! Encoders.

use super::super::super::tensor_names::{
    NameRow,
    RowSelection::{Half, KeysOrValues, Queries},
    after, same, stacked,
};

/// BERT's, but for positions. The first files name the values of norms otherwise.
const BERT_REST: &[NameRow] = &[
    same("embed.weight", "embeddings.word_embeddings.weight"),
    same("type_embed.weight", "embeddings.token_type_embeddings.weight"),
    same("embed_norm.weight", "embeddings.LayerNorm.weight"),
    same("embed_norm.weight", "embeddings.LayerNorm.gamma"),
    same("embed_norm.bias", "embeddings.LayerNorm.bias"),
    same("embed_norm.bias", "embeddings.LayerNorm.beta"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("encoder.layer.{}.attention.self.query.weight", Queries),
            ("encoder.layer.{}.attention.self.key.weight", KeysOrValues),
            ("encoder.layer.{}.attention.self.value.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("encoder.layer.{}.attention.self.query.bias", Queries),
            ("encoder.layer.{}.attention.self.key.bias", KeysOrValues),
            ("encoder.layer.{}.attention.self.value.bias", KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "encoder.layer.{}.attention.output.dense.weight"),
    same("blocks.{}.attn.out.bias", "encoder.layer.{}.attention.output.dense.bias"),
    same("blocks.{}.attn_norm.weight", "encoder.layer.{}.attention.output.LayerNorm.weight"),
    same("blocks.{}.attn_norm.weight", "encoder.layer.{}.attention.output.LayerNorm.gamma"),
    same("blocks.{}.attn_norm.bias", "encoder.layer.{}.attention.output.LayerNorm.bias"),
    same("blocks.{}.attn_norm.bias", "encoder.layer.{}.attention.output.LayerNorm.beta"),
    same("blocks.{}.mlp.up.weight", "encoder.layer.{}.intermediate.dense.weight"),
    same("blocks.{}.mlp.up.bias", "encoder.layer.{}.intermediate.dense.bias"),
    same("blocks.{}.mlp.down.weight", "encoder.layer.{}.output.dense.weight"),
    same("blocks.{}.mlp.down.bias", "encoder.layer.{}.output.dense.bias"),
    same("blocks.{}.mlp_norm.weight", "encoder.layer.{}.output.LayerNorm.weight"),
    same("blocks.{}.mlp_norm.weight", "encoder.layer.{}.output.LayerNorm.gamma"),
    same("blocks.{}.mlp_norm.bias", "encoder.layer.{}.output.LayerNorm.bias"),
    same("blocks.{}.mlp_norm.bias", "encoder.layer.{}.output.LayerNorm.beta"),
];

pub(in super::super) const BERT: &[&[NameRow]] =
    &[BERT_REST, BERT_HEAD, &[same("pos_embed.weight", "embeddings.position_embeddings.weight")]];

/// The rows of positions up to the padding token's id, 1, are not used.
pub(in super::super) const ROBERTA: &[&[NameRow]] =
    &[BERT_REST, ROBERTA_HEAD, &[after(2, "pos_embed.weight", "embeddings.position_embeddings.weight")]];

pub(in super::super) const DISTILBERT: &[&[NameRow]] = &[
    DISTILBERT_HEAD,
    &[
        same("embed.weight", "embeddings.word_embeddings.weight"),
        same("pos_embed.weight", "embeddings.position_embeddings.weight"),
        same("embed_norm.weight", "embeddings.LayerNorm.weight"),
        same("embed_norm.bias", "embeddings.LayerNorm.bias"),
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("transformer.layer.{}.attention.q_lin.weight", Queries),
                ("transformer.layer.{}.attention.k_lin.weight", KeysOrValues),
                ("transformer.layer.{}.attention.v_lin.weight", KeysOrValues),
            ],
        ),
        stacked(
            "blocks.{}.attn.qkv.bias",
            &[
                ("transformer.layer.{}.attention.q_lin.bias", Queries),
                ("transformer.layer.{}.attention.k_lin.bias", KeysOrValues),
                ("transformer.layer.{}.attention.v_lin.bias", KeysOrValues),
            ],
        ),
        same("blocks.{}.attn.out.weight", "transformer.layer.{}.attention.out_lin.weight"),
        same("blocks.{}.attn.out.bias", "transformer.layer.{}.attention.out_lin.bias"),
        same("blocks.{}.attn_norm.weight", "transformer.layer.{}.sa_layer_norm.weight"),
        same("blocks.{}.attn_norm.bias", "transformer.layer.{}.sa_layer_norm.bias"),
        same("blocks.{}.mlp.up.weight", "transformer.layer.{}.ffn.lin1.weight"),
        same("blocks.{}.mlp.up.bias", "transformer.layer.{}.ffn.lin1.bias"),
        same("blocks.{}.mlp.down.weight", "transformer.layer.{}.ffn.lin2.weight"),
        same("blocks.{}.mlp.down.bias", "transformer.layer.{}.ffn.lin2.bias"),
        same("blocks.{}.mlp_norm.weight", "transformer.layer.{}.output_layer_norm.weight"),
        same("blocks.{}.mlp_norm.bias", "transformer.layer.{}.output_layer_norm.bias"),
    ],
];

pub(in super::super) const MODERN_BERT: &[&[NameRow]] = &[
    MODERN_BERT_HEAD,
    &[
        same("embed.weight", "embeddings.tok_embeddings.weight"),
        same("embed_norm.weight", "embeddings.norm.weight"),
        same("embed_norm.bias", "embeddings.norm.bias"),
        same("blocks.{}.attn_norm.weight", "layers.{}.attn_norm.weight"),
        same("blocks.{}.attn_norm.bias", "layers.{}.attn_norm.bias"),
        same("blocks.{}.attn.qkv.weight", "layers.{}.attn.Wqkv.weight"),
        same("blocks.{}.attn.qkv.bias", "layers.{}.attn.Wqkv.bias"),
        same("blocks.{}.attn.out.weight", "layers.{}.attn.Wo.weight"),
        same("blocks.{}.attn.out.bias", "layers.{}.attn.Wo.bias"),
        same("blocks.{}.mlp_norm.weight", "layers.{}.mlp_norm.weight"),
        same("blocks.{}.mlp_norm.bias", "layers.{}.mlp_norm.bias"),
        same("blocks.{}.mlp.up.weight", "layers.{}.mlp.Wi.weight"),
        same("blocks.{}.mlp.up.bias", "layers.{}.mlp.Wi.bias"),
        same("blocks.{}.mlp.down.weight", "layers.{}.mlp.Wo.weight"),
        same("blocks.{}.mlp.down.bias", "layers.{}.mlp.Wo.bias"),
        same("norm.weight", "final_norm.weight"),
        same("norm.bias", "final_norm.bias"),
    ],
];

/// The rows of positions up to the padding token's id, 1, are not used.
pub(in super::super) const MPNET: &[&[NameRow]] = &[
    ROBERTA_HEAD,
    &[
        same("embed.weight", "embeddings.word_embeddings.weight"),
        after(2, "pos_embed.weight", "embeddings.position_embeddings.weight"),
        same("embed_norm.weight", "embeddings.LayerNorm.weight"),
        same("embed_norm.bias", "embeddings.LayerNorm.bias"),
        same("relative.weight", "encoder.relative_attention_bias.weight"),
        stacked(
            "blocks.{}.attn.qkv.weight",
            &[
                ("encoder.layer.{}.attention.attn.q.weight", Queries),
                ("encoder.layer.{}.attention.attn.k.weight", KeysOrValues),
                ("encoder.layer.{}.attention.attn.v.weight", KeysOrValues),
            ],
        ),
        stacked(
            "blocks.{}.attn.qkv.bias",
            &[
                ("encoder.layer.{}.attention.attn.q.bias", Queries),
                ("encoder.layer.{}.attention.attn.k.bias", KeysOrValues),
                ("encoder.layer.{}.attention.attn.v.bias", KeysOrValues),
            ],
        ),
        same("blocks.{}.attn.out.weight", "encoder.layer.{}.attention.attn.o.weight"),
        same("blocks.{}.attn.out.bias", "encoder.layer.{}.attention.attn.o.bias"),
        same("blocks.{}.attn_norm.weight", "encoder.layer.{}.attention.LayerNorm.weight"),
        same("blocks.{}.attn_norm.bias", "encoder.layer.{}.attention.LayerNorm.bias"),
        same("blocks.{}.mlp.up.weight", "encoder.layer.{}.intermediate.dense.weight"),
        same("blocks.{}.mlp.up.bias", "encoder.layer.{}.intermediate.dense.bias"),
        same("blocks.{}.mlp.down.weight", "encoder.layer.{}.output.dense.weight"),
        same("blocks.{}.mlp.down.bias", "encoder.layer.{}.output.dense.bias"),
        same("blocks.{}.mlp_norm.weight", "encoder.layer.{}.output.LayerNorm.weight"),
        same("blocks.{}.mlp_norm.bias", "encoder.layer.{}.output.LayerNorm.bias"),
    ],
];

/// As files have them, and as transformers has them in memory.
pub(in super::super) const NOMIC_BERT: &[&[NameRow]] = &[&[
    same("embed.weight", "embeddings.word_embeddings.weight"),
    same("type_embed.weight", "embeddings.token_type_embeddings.weight"),
    same("embed_norm.weight", "emb_ln.weight"),
    same("embed_norm.weight", "embeddings.LayerNorm.weight"),
    same("embed_norm.bias", "emb_ln.bias"),
    same("embed_norm.bias", "embeddings.LayerNorm.bias"),
    same("blocks.{}.attn.qkv.weight", "encoder.layers.{}.attn.Wqkv.weight"),
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("layers.{}.self_attn.q_proj.weight", Queries),
            ("layers.{}.self_attn.k_proj.weight", KeysOrValues),
            ("layers.{}.self_attn.v_proj.weight", KeysOrValues),
        ],
    ),
    same("blocks.{}.attn.out.weight", "encoder.layers.{}.attn.out_proj.weight"),
    same("blocks.{}.attn.out.weight", "layers.{}.self_attn.o_proj.weight"),
    same("blocks.{}.attn_norm.weight", "encoder.layers.{}.norm1.weight"),
    same("blocks.{}.attn_norm.weight", "layers.{}.post_attention_layernorm.weight"),
    same("blocks.{}.attn_norm.bias", "encoder.layers.{}.norm1.bias"),
    same("blocks.{}.attn_norm.bias", "layers.{}.post_attention_layernorm.bias"),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("encoder.layers.{}.mlp.fc12.weight", Half), ("encoder.layers.{}.mlp.fc11.weight", Half)],
    ),
    stacked(
        "blocks.{}.mlp.up.weight",
        &[("layers.{}.mlp.gate_proj.weight", Half), ("layers.{}.mlp.up_proj.weight", Half)],
    ),
    same("blocks.{}.mlp.down.weight", "encoder.layers.{}.mlp.fc2.weight"),
    same("blocks.{}.mlp.down.weight", "layers.{}.mlp.down_proj.weight"),
    same("blocks.{}.mlp_norm.weight", "encoder.layers.{}.norm2.weight"),
    same("blocks.{}.mlp_norm.weight", "layers.{}.post_mlp_layernorm.weight"),
    same("blocks.{}.mlp_norm.bias", "encoder.layers.{}.norm2.bias"),
    same("blocks.{}.mlp_norm.bias", "layers.{}.post_mlp_layernorm.bias"),
]];

/// The masked-LM head, whose names have no prefix.
const BERT_HEAD: &[NameRow] = &[
    same("mlm_head.dense.weight", "cls.predictions.transform.dense.weight"),
    same("mlm_head.dense.bias", "cls.predictions.transform.dense.bias"),
    same("mlm_head.norm.weight", "cls.predictions.transform.LayerNorm.weight"),
    same("mlm_head.norm.bias", "cls.predictions.transform.LayerNorm.bias"),
    same("mlm_head.norm.weight", "cls.predictions.transform.LayerNorm.gamma"),
    same("mlm_head.norm.bias", "cls.predictions.transform.LayerNorm.beta"),
    same("lm_head.bias", "cls.predictions.bias"),
    same("lm_head.bias", "cls.predictions.decoder.bias"),
    same("lm_head.weight", "cls.predictions.decoder.weight"),
];

/// RoBERTa's masked-LM head.
const ROBERTA_HEAD: &[NameRow] = &[
    same("mlm_head.dense.weight", "lm_head.dense.weight"),
    same("mlm_head.dense.bias", "lm_head.dense.bias"),
    same("mlm_head.norm.weight", "lm_head.layer_norm.weight"),
    same("mlm_head.norm.bias", "lm_head.layer_norm.bias"),
    same("lm_head.bias", "lm_head.bias"),
    same("lm_head.bias", "lm_head.decoder.bias"),
    same("lm_head.weight", "lm_head.decoder.weight"),
];

/// DistilBERT's masked-LM head.
const DISTILBERT_HEAD: &[NameRow] = &[
    same("mlm_head.dense.weight", "vocab_transform.weight"),
    same("mlm_head.dense.bias", "vocab_transform.bias"),
    same("mlm_head.norm.weight", "vocab_layer_norm.weight"),
    same("mlm_head.norm.bias", "vocab_layer_norm.bias"),
    same("lm_head.bias", "vocab_projector.bias"),
    same("lm_head.weight", "vocab_projector.weight"),
];

/// ModernBERT's masked-LM head.
const MODERN_BERT_HEAD: &[NameRow] = &[
    same("mlm_head.dense.weight", "head.dense.weight"),
    same("mlm_head.dense.bias", "head.dense.bias"),
    same("mlm_head.norm.weight", "head.norm.weight"),
    same("mlm_head.norm.bias", "head.norm.bias"),
    same("lm_head.bias", "decoder.bias"),
    same("lm_head.weight", "decoder.weight"),
];
