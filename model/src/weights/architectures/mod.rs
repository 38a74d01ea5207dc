//! The table of architectures: how each Hugging Face class spells [`GptConfig`] and its parameters.
//!
//! This folder is the only place that knows Hugging Face's names. A new architecture is a new row: what the class always
//! is, which keys of its `config.json` set which of our fields, which of its keys may have one value only, and which of
//! its tensors make which of our parameters. CONTRIBUTING.md goes through one step by step.

mod config_rows;
mod gguf;
mod names;
mod rope;
mod window;

use serde_json::{Map, Value, json};

use self::config_rows::{
    ACTIVATIONS, ConfigRow, constant, derived, flag, head_dim, kv_heads, number, one_kv_head_each, size, size_or,
};
pub(super) use self::{
    gguf::{Gguf, GgufParam, GgufRows},
    names::{NameRow, Rows, Tensors},
};
use super::fields::{Fields, Fixed};
use crate::{
    config::{Activation, GptConfig, NormKind, NormPosition, Positions, QkNormSpan, Sizes},
    error::Result,
};

/// The class under which configurations are saved that no Hugging Face class expresses: Hearth's own field and
/// parameter names.
pub(super) const OWN_CLASS: &str = "HearthForCausalLM";

/// How one Hugging Face class spells its configuration and its parameters.
pub(super) struct Architecture {
    /// As in `architectures` of `config.json`.
    pub(super) class: &'static str,
    /// As in `model_type` of `config.json`.
    pub(super) model_type: &'static str,
    /// What the class is where its keys say nothing; sizes are still open.
    base: fn() -> GptConfig,
    /// Keys of `config.json` and what they set, in the order in which they are read.
    config: &'static [&'static [ConfigRow]],
    /// Keys that would change the maths, and the one value that is computed.
    fixed: &'static [(&'static str, Fixed)],
    /// Which tensors make which parameters.
    pub(super) names: &'static [NameRow],
    /// Names may come without this, as base models were saved.
    pub(super) base_prefix: &'static str,
    /// Endings of tensors that old versions saved and that hold no parameters.
    pub(super) ignored: &'static [&'static str],
    /// How GGUF files spell it, for those that they know. Several classes may share a spelling.
    pub(super) gguf: Option<&'static Gguf>,
}

impl Architecture {
    /// From `config.json`; refuses by name what would change the maths and is not computed.
    pub(super) fn read(&self, fields: &Fields<'_>) -> Result<GptConfig> {
        let neutral =
            NEUTRAL.iter().filter(|(key, _)| !self.config.iter().copied().flatten().any(|row| row.reads(key)));
        for (key, only) in self.fixed.iter().chain(neutral) {
            fields.only(key, *only)?;
        }
        let mut config = (self.base)();
        self.config.iter().copied().flatten().try_for_each(|row| row.read(fields, &mut config))?;
        Ok(config)
    }

    /// To `config.json`, if the class can express `config`: what is written is read back and compared. Dropout may
    /// differ: serving has no use for it, and most classes have no field for it.
    pub(super) fn write(&self, config: &GptConfig) -> Option<Map<String, Value>> {
        let written = self.write_rows(config);
        let read = self.read(&Fields::new(&written, std::path::Path::new("config.json"))).ok()?;
        (GptConfig { dropout: config.dropout, ..read } == *config).then_some(written)
    }

    /// What the class calls `field` of `config` (the path within it, with dots): the keys that are written differently
    /// when the field is another. None where it follows from other keys.
    pub(super) fn keys_of(&self, field: &str, config: &GptConfig) -> Vec<String> {
        let changed = || -> Option<GptConfig> {
            let mut fields = serde_json::to_value(config).ok()?;
            let value = fields.pointer_mut(&format!("/{}", field.replace('.', "/")))?;
            *value = match &*value {
                Value::Bool(flag) => json!(!flag),
                Value::Number(size) if size.is_u64() => json!(size.as_u64()?.checked_add(1)?),
                number => json!(number.as_f64()? + 1.0),
            };
            serde_json::from_value(fields).ok()
        };
        let Some(changed) = changed() else { return Vec::new() };
        let (before, after) = (self.write_rows(config), self.write_rows(&changed));
        after.into_iter().filter(|(key, value)| before.get(key) != Some(value)).map(|(key, _)| key).collect()
    }

    fn write_rows(&self, config: &GptConfig) -> Map<String, Value> {
        let mut written = Map::new();
        self.config.iter().copied().flatten().for_each(|row| row.write(config, &mut written));
        written
    }
}

/// The Hugging Face classes that Hearth opens and saves, and its own.
pub fn known_architectures() -> Vec<&'static str> {
    ARCHITECTURES.iter().map(|architecture| architecture.class).chain([OWN_CLASS]).collect()
}

/// The spelling of the architecture that GGUF files call `name`. The error lists those that there are.
pub(super) fn gguf(name: &str) -> Result<&'static Gguf, String> {
    let known = || ARCHITECTURES.iter().filter_map(|architecture| architecture.gguf);
    known().find(|known| known.name == name).ok_or_else(|| {
        let mut names: Vec<_> = known().map(|known| format!("`{}`", known.name)).collect();
        names.dedup();
        names.join(", ")
    })
}

/// Keys that change the maths wherever a class or a fork of one knows them, and the value that means "not at all"; but
/// for the classes whose rows read them.
const NEUTRAL: &[(&str, Fixed)] = &[
    ("quantization_config", Fixed::Nothing),
    ("is_encoder_decoder", Fixed::Flag(false)),
    ("add_cross_attention", Fixed::Flag(false)),
    ("cross_attention_hidden_size", Fixed::Nothing),
    ("pruned_heads", Fixed::Nothing),
    ("is_causal", Fixed::Flag(true)),
    ("use_bidirectional_attention", Fixed::Flag(false)),
    ("attn_logit_softcapping", Fixed::Nothing),
    ("final_logit_softcapping", Fixed::Nothing),
    ("query_pre_attn_scalar", Fixed::Nothing),
    ("clip_qkv", Fixed::Nothing),
    ("attention_multiplier", Fixed::Nothing),
    ("embedding_multiplier", Fixed::Number(1.0)),
    ("residual_multiplier", Fixed::Number(1.0)),
    ("logits_scaling", Fixed::Number(1.0)),
    ("logit_scale", Fixed::Number(1.0)),
    ("scale_attn_weights", Fixed::Flag(true)),
    ("scale_attn_by_inverse_layer_idx", Fixed::Flag(false)),
    ("use_qk_norm", Fixed::Flag(false)),
    ("qk_layernorm", Fixed::Flag(false)),
    ("attn_temperature_tuning", Fixed::Nothing),
    ("attention_chunk_size", Fixed::Nothing),
    ("no_rope_layers", Fixed::Nothing),
    ("no_rope_layer_interval", Fixed::Nothing),
    ("num_experts", Fixed::Nothing),
    ("num_local_experts", Fixed::Nothing),
    ("n_routed_experts", Fixed::Nothing),
    ("alibi", Fixed::Flag(false)),
    ("multi_query", Fixed::Flag(false)),
    ("new_decoder_architecture", Fixed::Flag(false)),
    ("parallel_attn", Fixed::Flag(false)),
];

pub(super) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        class: "GPT2LMHeadModel",
        model_type: "gpt2",
        base: gpt2,
        config: &[
            GPT2_SIZES,
            &[
                size_or(&["n_inner"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_new" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                constant("attn_pdrop", 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        fixed: &[],
        names: names::GPT2,
        base_prefix: "transformer.",
        ignored: &[".attn.bias", ".attn.masked_bias"],
        gguf: Some(&gguf::GPT2),
    },
    Architecture {
        class: "LlamaForCausalLM",
        model_type: "llama",
        base: llama,
        config: &[
            LLAMA_SIZES,
            &[
                size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::LLAMA),
    },
    Architecture {
        class: "MistralForCausalLM",
        model_type: "mistral",
        base: llama,
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(8),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::MISTRAL),
            ],
        ],
        fixed: &[("attention_bias", Fixed::Flag(false)), ("mlp_bias", Fixed::Flag(false))],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::LLAMA),
    },
    Architecture {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        base: || GptConfig { qkv_bias: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(32),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::QWEN),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::QWEN2),
    },
    Architecture {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        base: || GptConfig { qk_norm: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(32),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 128),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::QWEN),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::QWEN3),
    },
    Architecture {
        class: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        base: || GptConfig { tie_embeddings: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(4),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::SMOLLM3),
                config_rows::NO_ROPE_LAYERS,
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::SMOLLM3),
            ],
        ],
        fixed: &[],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::SMOLLM3),
    },
    Architecture {
        class: "GraniteForCausalLM",
        model_type: "granite",
        base: llama,
        config: &[
            LLAMA_SIZES,
            &[
                size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                number("embedding_multiplier", |c| &mut c.embedding_multiplier, 1.0),
                number("residual_multiplier", |c| &mut c.residual_multiplier, 1.0),
                ConfigRow::Divisor { key: "logits_scaling", of: |c| &mut c.logit_multiplier, absent: 1.0 },
                config_rows::GRANITE_ATTENTION,
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                flag("mlp_bias", |c| &mut c.mlp_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::GRANITE),
    },
    Architecture {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        base: olmo2,
        config: &[OLMO2, &[ConfigRow::Rope(&rope::WHOLE_HEADS), ConfigRow::Window(&window::NONE)]],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::OLMO2,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::OLMO2),
    },
    Architecture {
        class: "Olmo3ForCausalLM",
        model_type: "olmo3",
        base: olmo2,
        config: &[OLMO2, &[ConfigRow::Window(&window::OLMO3), ConfigRow::Rope(&rope::OLMO3)]],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::OLMO2,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::OLMO2),
    },
    Architecture {
        class: "Phi3ForCausalLM",
        model_type: "phi3",
        base: llama,
        config: &[
            LLAMA_SIZES,
            &[
                size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::PHI3),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.0),
                number("resid_pdrop", |c| &mut c.dropout, 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::PHI3),
            ],
        ],
        fixed: &[("attention_bias", Fixed::Flag(false)), ("mlp_bias", Fixed::Flag(false))],
        names: names::PHI3,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::PHI3),
    },
    Architecture {
        class: "GPTNeoXForCausalLM",
        model_type: "gpt_neox",
        base: || GptConfig { tie_embeddings: false, ..gpt2() },
        config: &[
            LLAMA_SIZES,
            &[
                one_kv_head_each(),
                derived(|c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::NEOX),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu" },
                number("layer_norm_eps", |c| &mut c.norm_eps, 1e-5),
                number("hidden_dropout", |c| &mut c.dropout, 0.0),
                flag("attention_bias", |c| &mut c.qkv_bias, true),
                flag("attention_bias", |c| &mut c.attn_out_bias, true),
                flag("use_parallel_residual", |c| &mut c.parallel_residual, true),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
            ],
        ],
        fixed: &[],
        names: names::NEOX,
        base_prefix: "gpt_neox.",
        ignored: &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"],
        gguf: Some(&gguf::NEOX),
    },
    Architecture {
        class: "StableLmForCausalLM",
        model_type: "stablelm",
        base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(32),
                derived(|c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::STABLELM),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
                number("layer_norm_eps", |c| &mut c.norm_eps, 1e-5),
                number("hidden_dropout", |c| &mut c.dropout, 0.0),
                flag("use_parallel_residual", |c| &mut c.parallel_residual, false),
                flag("use_parallel_residual", |c| &mut c.shared_norm, false),
                flag("use_qkv_bias", |c| &mut c.qkv_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::STABLELM),
    },
    Architecture {
        class: "GemmaForCausalLM",
        model_type: "gemma",
        base: || GptConfig { norm_weight_offset: 1.0, scale_embeddings: true, tie_embeddings: true, ..llama() },
        config: &[
            LLAMA_SIZES,
            &[
                kv_heads(16),
                size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                // `gelu` was written by mistake: the weights were trained with the approximation.
                ConfigRow::Activation { key: "hidden_act", names: GEMMA_ACTIVATIONS, absent: "gelu_pytorch_tanh" },
                number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
                flag("attention_bias", |c| &mut c.qkv_bias, false),
                flag("attention_bias", |c| &mut c.attn_out_bias, false),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        // Versions 4.38 to 4.57 of transformers read this key in place of `hidden_act`.
        fixed: &[("hidden_activation", Fixed::Text("gelu_pytorch_tanh")), ("mlp_bias", Fixed::Flag(false))],
        names: names::LLAMA,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::GEMMA),
    },
    Architecture {
        class: "Gemma2ForCausalLM",
        model_type: "gemma2",
        base: gemma2,
        config: &[
            GEMMA2,
            &[
                ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: Some(30.0) },
                ConfigRow::Cap { key: "attn_logit_softcapping", of: |c| &mut c.attention_softcap, absent: Some(50.0) },
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Window(&window::GEMMA2),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::GEMMA2,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::GEMMA2),
    },
    Architecture {
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        base: || GptConfig { qk_norm: true, ..gemma2() },
        config: &[
            GEMMA2,
            &[
                ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: None },
                ConfigRow::Window(&window::GEMMA3),
                ConfigRow::Rope(&rope::GEMMA3),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::GEMMA2,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::GEMMA3),
    },
    Architecture {
        class: "PhiForCausalLM",
        model_type: "phi",
        base: || GptConfig { tie_embeddings: false, lm_head_bias: true, ..shared_norm() },
        config: &[
            LLAMA_SIZES,
            &[
                size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
                derived(|c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::PHI),
                ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "gelu_new" },
                number("layer_norm_eps", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.0),
                number("resid_pdrop", |c| &mut c.dropout, 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[],
        names: names::PHI,
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::PHI2),
    },
    Architecture {
        class: "GPTJForCausalLM",
        model_type: "gptj",
        base: || GptConfig {
            qkv_bias: false,
            attn_out_bias: false,
            tie_embeddings: false,
            lm_head_bias: true,
            ..shared_norm()
        },
        config: &[
            GPT2_SIZES,
            &[
                size_or(&["n_inner"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                config_rows::GPTJ_ROTARY_DIM,
                ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_new" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.0),
                number("resid_pdrop", |c| &mut c.dropout, 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
            ],
        ],
        fixed: &[],
        names: names::GPTJ,
        base_prefix: "transformer.",
        ignored: &[".attn.bias", ".attn.masked_bias"],
        gguf: None,
    },
    Architecture {
        class: "GPTBigCodeForCausalLM",
        model_type: "gpt_bigcode",
        base: gpt2,
        config: &[
            GPT2_SIZES,
            &[
                config_rows::BIGCODE_KV_HEADS,
                size_or(&["n_inner"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "gelu_pytorch_tanh" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                constant("attn_pdrop", 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        fixed: &[],
        names: names::BIGCODE,
        base_prefix: "transformer.",
        ignored: &[".attn.bias", ".attn.masked_bias"],
        gguf: Some(&gguf::STARCODER),
    },
    Architecture {
        class: "FalconForCausalLM",
        model_type: "falcon",
        base: || GptConfig { positions: llama().positions, ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size_or(&["max_position_embeddings"], |c| &mut c.max_seq_len, |_| 2048),
            size(&["num_hidden_layers", "n_layer"], |c| &mut c.n_layers),
            size(&["num_attention_heads", "n_head"], |c| &mut c.n_heads),
            size(&["hidden_size", "n_embed"], |c| &mut c.d_model),
            size_or(&["ffn_hidden_size"], |c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
            derived(|c| &mut c.head_dim, head_dim),
            config_rows::FALCON_BLOCKS,
            ConfigRow::Rope(&rope::WHOLE_HEADS),
            ConfigRow::Activation { key: "activation", names: ACTIVATIONS, absent: "gelu" },
            number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
            number("hidden_dropout", |c| &mut c.dropout, 0.0),
            flag("bias", |c| &mut c.qkv_bias, false),
            flag("bias", |c| &mut c.attn_out_bias, false),
            flag("bias", |c| &mut c.mlp_bias, false),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
        ]],
        // Its slopes are scaled with the scores.
        fixed: &[("alibi", Fixed::Flag(false))],
        names: names::FALCON,
        base_prefix: "transformer.",
        ignored: &[".rotary_emb.inv_freq"],
        gguf: Some(&gguf::FALCON),
    },
    Architecture {
        class: "CohereForCausalLM",
        model_type: "cohere",
        base: cohere,
        config: &[
            COHERE,
            &[
                size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::COHERE),
                ConfigRow::Window(&window::NONE),
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::COHERE,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::COMMAND_R),
    },
    Architecture {
        class: "Cohere2ForCausalLM",
        model_type: "cohere2",
        base: cohere,
        config: &[
            COHERE,
            &[
                derived(|c| &mut c.head_dim, head_dim),
                ConfigRow::Rope(&rope::WHOLE_HEADS),
                ConfigRow::Window(&window::COHERE2),
                config_rows::ONLY_WINDOWS_ROTATE,
            ],
        ],
        fixed: &[("mlp_bias", Fixed::Flag(false))],
        names: names::COHERE,
        base_prefix: "model.",
        ignored: &[],
        gguf: Some(&gguf::COHERE2),
    },
    Architecture {
        class: "OPTForCausalLM",
        model_type: "opt",
        base: || GptConfig { norm_eps: 1e-5, ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
            size(&["num_hidden_layers"], |c| &mut c.n_layers),
            size(&["num_attention_heads"], |c| &mut c.n_heads),
            size(&["hidden_size"], |c| &mut c.d_model),
            size(&["ffn_dim"], |c| &mut c.d_ff),
            one_kv_head_each(),
            derived(|c| &mut c.head_dim, head_dim),
            ConfigRow::Activation { key: "activation_function", names: ACTIVATIONS, absent: "relu" },
            number("dropout", |c| &mut c.dropout, 0.1),
            flag("enable_bias", |c| &mut c.qkv_bias, true),
            flag("enable_bias", |c| &mut c.attn_out_bias, true),
            flag("enable_bias", |c| &mut c.mlp_bias, true),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            config_rows::OPT_NORMS,
            config_rows::OPT_EMBEDDING_WIDTH,
        ]],
        fixed: &[("layer_norm_elementwise_affine", Fixed::Flag(true))],
        names: names::OPT,
        base_prefix: "model.",
        ignored: &[],
        gguf: None,
    },
    Architecture {
        class: "BloomForCausalLM",
        model_type: "bloom",
        base: || GptConfig { positions: Positions::Alibi, embed_norm: true, ..gpt2() },
        config: &[&[
            size(&["vocab_size"], |c| &mut c.vocab_size),
            // The slopes set no limit; this is what the weights were trained with, where the file says so.
            size_or(&["seq_length"], |c| &mut c.max_seq_len, |_| 2048),
            size(&["n_layer", "num_hidden_layers"], |c| &mut c.n_layers),
            size(&["n_head", "num_attention_heads"], |c| &mut c.n_heads),
            size(&["hidden_size", "n_embed"], |c| &mut c.d_model),
            derived(|c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
            one_kv_head_each(),
            derived(|c| &mut c.head_dim, head_dim),
            number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
            number("hidden_dropout", |c| &mut c.dropout, 0.0),
            flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            config_rows::BLOOM_SLICES,
        ]],
        fixed: &[("apply_residual_connection_post_layernorm", Fixed::Flag(false))],
        names: names::BLOOM,
        base_prefix: "transformer.",
        ignored: &[],
        gguf: Some(&gguf::BLOOM),
    },
    Architecture {
        class: "OpenAIGPTLMHeadModel",
        model_type: "openai-gpt",
        base: || GptConfig { norm_position: NormPosition::Post, final_norm: false, ..gpt2() },
        config: &[
            GPT2_SIZES,
            &[
                derived(|c| &mut c.d_ff, |c| c.d_model.saturating_mul(4)),
                ConfigRow::Activation { key: "afn", names: GPT1_ACTIVATIONS, absent: "gelu" },
                number("layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5),
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                constant("attn_pdrop", 0.0),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        fixed: &[],
        names: names::GPT1,
        base_prefix: "transformer.",
        ignored: &[".attn.bias", "position_ids"],
        gguf: None,
    },
    Architecture {
        class: "CTRLLMHeadModel",
        model_type: "ctrl",
        base: || GptConfig {
            positions: Positions::Sinusoidal,
            scale_embeddings: true,
            activation: Activation::Relu,
            lm_head_bias: true,
            norm_eps: 1e-6,
            ..gpt2()
        },
        config: &[
            GPT2_SIZES,
            &[
                size(&["dff"], |c| &mut c.d_ff),
                config_rows::CTRL_FINAL_NORM_EPS,
                number("embd_pdrop", |c| &mut c.dropout, 0.1),
                number("resid_pdrop", |c| &mut c.dropout, 0.1),
                flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
            ],
        ],
        fixed: &[],
        names: names::CTRL,
        base_prefix: "transformer.",
        ignored: &[],
        gguf: None,
    },
];

/// The sizes as Llama and its kin name them.
const LLAMA_SIZES: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["num_hidden_layers"], |c| &mut c.n_layers),
    size(&["num_attention_heads"], |c| &mut c.n_heads),
    size(&["hidden_size"], |c| &mut c.d_model),
    size(&["intermediate_size"], |c| &mut c.d_ff),
];

/// OLMo 2 and what follows it.
const OLMO2: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["num_hidden_layers"], |c| &mut c.n_layers),
    size(&["num_attention_heads"], |c| &mut c.n_heads),
    size(&["hidden_size"], |c| &mut c.d_model),
    size(&["intermediate_size"], |c| &mut c.d_ff),
    size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    size_or(&["head_dim"], |c| &mut c.head_dim, head_dim),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-5),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, false),
];

/// Gemma 2 and what follows it, but for windows and rotary positions.
const GEMMA2: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["num_hidden_layers"], |c| &mut c.n_layers),
    size(&["num_attention_heads"], |c| &mut c.n_heads),
    size(&["hidden_size"], |c| &mut c.d_model),
    size(&["intermediate_size"], |c| &mut c.d_ff),
    kv_heads(4),
    size_or(&["head_dim"], |c| &mut c.head_dim, |_| 256),
    ConfigRow::Activation { key: "hidden_activation", names: ACTIVATIONS, absent: "gelu_pytorch_tanh" },
    number("rms_norm_eps", |c| &mut c.norm_eps, 1e-6),
    config_rows::GEMMA_ATTENTION,
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
];

/// Cohere's, but for windows and rotary positions.
const COHERE: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["num_hidden_layers"], |c| &mut c.n_layers),
    size(&["num_attention_heads"], |c| &mut c.n_heads),
    size(&["hidden_size"], |c| &mut c.d_model),
    size(&["intermediate_size"], |c| &mut c.d_ff),
    size_or(&["num_key_value_heads"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    ConfigRow::Activation { key: "hidden_act", names: ACTIVATIONS, absent: "silu" },
    number("layer_norm_eps", |c| &mut c.norm_eps, 1e-5),
    number("logit_scale", |c| &mut c.logit_multiplier, 0.0625),
    flag("attention_bias", |c| &mut c.qkv_bias, false),
    flag("attention_bias", |c| &mut c.attn_out_bias, false),
    flag("tie_word_embeddings", |c| &mut c.tie_embeddings, true),
];

/// The sizes as the first GPTs name them, of which transformers reads the newer names too.
const GPT2_SIZES: &[ConfigRow] = &[
    size(&["vocab_size"], |c| &mut c.vocab_size),
    size(&["n_positions", "max_position_embeddings"], |c| &mut c.max_seq_len),
    size(&["n_layer", "num_hidden_layers"], |c| &mut c.n_layers),
    size(&["n_head", "num_attention_heads"], |c| &mut c.n_heads),
    size(&["n_embd", "hidden_size"], |c| &mut c.d_model),
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
];

/// What `afn` calls by other names than the other classes do.
const GPT1_ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

const GEMMA_ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu_python", Activation::Gelu),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// Filled in by the rows.
const OPEN: Sizes =
    Sizes { vocab_size: 0, max_seq_len: 0, n_layers: 0, n_heads: 0, n_kv_heads: 0, d_model: 0, d_ff: 0 };

fn gpt2() -> GptConfig {
    GptConfig::gpt2(OPEN)
}

fn llama() -> GptConfig {
    GptConfig::llama(OPEN)
}

fn olmo2() -> GptConfig {
    GptConfig { norm_position: NormPosition::Inside, qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() }
}

fn gemma2() -> GptConfig {
    GptConfig { norm_position: NormPosition::Sandwich, norm_weight_offset: 1.0, scale_embeddings: true, ..llama() }
}

/// GPT-2's parts side by side behind one norm, with rotary positions.
fn shared_norm() -> GptConfig {
    GptConfig { positions: llama().positions, parallel_residual: true, shared_norm: true, ..gpt2() }
}

fn cohere() -> GptConfig {
    GptConfig { norm: NormKind::LayerNorm, parallel_residual: true, shared_norm: true, ..llama() }
}
