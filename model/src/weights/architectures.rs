//! The table of architectures: how each Hugging Face class spells [`GptConfig`] and its parameters.
//!
//! This is the only place that knows Hugging Face's names. A new architecture is a new row: how its `config.json` is
//! read and written, and which of its tensors make which of our parameters.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::{
    config::{Activation, GptConfig, Positions, Rope, Sizes},
    error::Result,
};

/// How one Hugging Face class spells its configuration and its parameters.
pub(super) struct Architecture {
    /// As in `architectures` of `config.json`.
    pub(super) class: &'static str,
    /// As in `model_type` of `config.json`.
    pub(super) model_type: &'static str,
    /// From `config.json`; refuses by name what it cannot express.
    pub(super) read: fn(&Fields<'_>) -> Result<GptConfig>,
    /// To `config.json`. It need not check that the class can express the configuration: what is written is read
    /// back and compared.
    pub(super) write: fn(&GptConfig) -> Value,
    /// Which tensors make which parameters.
    pub(super) names: &'static [NameRow],
    /// Names may come without this, as base models were saved.
    pub(super) base_prefix: &'static str,
    /// Endings of tensors that old versions saved and that hold no parameters.
    pub(super) ignored: &'static [&'static str],
}

/// One parameter of ours, and what makes it up in the files. `{}` stands for the layer.
pub(super) struct NameRow {
    pub(super) path: &'static str,
    pub(super) tensors: Tensors,
}

/// What a parameter is made of.
pub(super) enum Tensors {
    /// One tensor, of the same shape.
    Same(&'static str),
    /// One matrix, stored as `[d_in, d_out]` (GPT-2's `Conv1D`).
    Transposed(&'static str),
    /// Several, stacked along `d_out`.
    Stacked(&'static [(&'static str, Rows)]),
}

/// How many rows a stacked tensor has.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    Queries,
    KeysOrValues,
    Ff,
}

impl Rows {
    pub(super) fn count(self, config: &GptConfig) -> usize {
        match self {
            Self::Queries => config.q_width(),
            Self::KeysOrValues => config.kv_width(),
            Self::Ff => config.d_ff,
        }
    }
}

/// The Hugging Face classes that Hearth opens and saves, and its own.
pub fn known_architectures() -> Vec<&'static str> {
    ARCHITECTURES.iter().map(|architecture| architecture.class).chain([super::hf::OWN_CLASS]).collect()
}

pub(super) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        class: "GPT2LMHeadModel",
        model_type: "gpt2",
        read: read_gpt2,
        write: write_gpt2,
        names: &[
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
        ],
        base_prefix: "transformer.",
        ignored: &[".attn.bias", ".attn.masked_bias"],
    },
    Architecture {
        class: "LlamaForCausalLM",
        model_type: "llama",
        read: read_llama,
        write: write_llama,
        names: &[
            same("embed.weight", "model.embed_tokens.weight"),
            same("blocks.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
            stacked("blocks.{}.attn.qkv.weight", &[
                ("model.layers.{}.self_attn.q_proj.weight", Rows::Queries),
                ("model.layers.{}.self_attn.k_proj.weight", Rows::KeysOrValues),
                ("model.layers.{}.self_attn.v_proj.weight", Rows::KeysOrValues),
            ]),
            stacked("blocks.{}.attn.qkv.bias", &[
                ("model.layers.{}.self_attn.q_proj.bias", Rows::Queries),
                ("model.layers.{}.self_attn.k_proj.bias", Rows::KeysOrValues),
                ("model.layers.{}.self_attn.v_proj.bias", Rows::KeysOrValues),
            ]),
            same("blocks.{}.attn.out.weight", "model.layers.{}.self_attn.o_proj.weight"),
            same("blocks.{}.attn.out.bias", "model.layers.{}.self_attn.o_proj.bias"),
            same("blocks.{}.mlp_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
            stacked("blocks.{}.mlp.up.weight", &[
                ("model.layers.{}.mlp.gate_proj.weight", Rows::Ff),
                ("model.layers.{}.mlp.up_proj.weight", Rows::Ff),
            ]),
            stacked("blocks.{}.mlp.up.bias", &[
                ("model.layers.{}.mlp.gate_proj.bias", Rows::Ff),
                ("model.layers.{}.mlp.up_proj.bias", Rows::Ff),
            ]),
            same("blocks.{}.mlp.down.weight", "model.layers.{}.mlp.down_proj.weight"),
            same("blocks.{}.mlp.down.bias", "model.layers.{}.mlp.down_proj.bias"),
            same("norm.weight", "model.norm.weight"),
            same("lm_head.weight", "lm_head.weight"),
        ],
        base_prefix: "model.",
        ignored: &[".rotary_emb.inv_freq"],
    },
];

const fn same(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow { path, tensors: Tensors::Same(tensor) }
}

const fn transposed(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow { path, tensors: Tensors::Transposed(tensor) }
}

const fn stacked(path: &'static str, tensors: &'static [(&'static str, Rows)]) -> NameRow {
    NameRow { path, tensors: Tensors::Stacked(tensors) }
}

fn read_gpt2(fields: &Fields<'_>) -> Result<GptConfig> {
    for (key, allowed) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ] {
        fields.only(key, &json!(allowed))?;
    }
    let d_model = fields.size_or("n_embd", 768)?;
    let n_heads = fields.size_or("n_head", 12)?;
    Ok(GptConfig {
        norm_eps: fields.number_or("layer_norm_epsilon", 1e-5)?,
        activation: activation(fields, "activation_function", "gelu_new")?,
        tie_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        dropout: fields.number_or("resid_pdrop", 0.1)?,
        ..GptConfig::gpt2(Sizes {
            vocab_size: fields.size_or("vocab_size", 50257)?,
            max_seq_len: fields.size_or("n_positions", 1024)?,
            n_layers: fields.size_or("n_layer", 12)?,
            n_heads,
            n_kv_heads: n_heads,
            d_model,
            d_ff: fields.size_or("n_inner", 4 * d_model)?,
        })
    })
}

fn write_gpt2(config: &GptConfig) -> Value {
    json!({
        "vocab_size": config.vocab_size,
        "n_positions": config.max_seq_len,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "activation_function": activation_name(config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": config.tie_embeddings,
    })
}

fn read_llama(fields: &Fields<'_>) -> Result<GptConfig> {
    let n_heads = fields.size_or("num_attention_heads", 32)?;
    let d_model = fields.size_or("hidden_size", 4096)?;
    let config = GptConfig::llama(Sizes {
        vocab_size: fields.size_or("vocab_size", 32000)?,
        max_seq_len: fields.size_or("max_position_embeddings", 2048)?,
        n_layers: fields.size_or("num_hidden_layers", 32)?,
        n_heads,
        n_kv_heads: fields.size_or("num_key_value_heads", n_heads)?,
        d_model,
        d_ff: fields.size_or("intermediate_size", 11008)?,
    });
    let head_dim = fields.size_or("head_dim", config.head_dim)?;
    let attention_bias = fields.flag_or("attention_bias", false)?;
    Ok(GptConfig {
        head_dim,
        norm_eps: fields.number_or("rms_norm_eps", 1e-6)?,
        activation: activation(fields, "hidden_act", "silu")?,
        positions: Positions::Rope(rope(fields, head_dim)?),
        qkv_bias: attention_bias,
        attn_out_bias: attention_bias,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        tie_embeddings: fields.flag_or("tie_word_embeddings", false)?,
        ..config
    })
}

fn write_llama(config: &GptConfig) -> Value {
    let mut fields = Map::new();
    if let Positions::Rope(rope) = config.positions {
        // Both spellings: transformers 5 reads `rope_parameters`, all before it `rope_theta`.
        fields.insert("rope_theta".to_owned(), json!(rope.theta));
        fields.insert("rope_parameters".to_owned(), json!({ "rope_type": "default", "rope_theta": rope.theta }));
    }
    let rest = json!({
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": activation_name(config.activation),
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.attn_out_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_embeddings,
    });
    if let Value::Object(rest) = rest {
        fields.extend(rest);
    }
    Value::Object(fields)
}

/// The rotary positions, in either spelling of `config.json`.
fn rope(fields: &Fields<'_>, head_dim: usize) -> Result<Rope> {
    let mut theta = fields.number_or("rope_theta", 10_000.0)?;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(nested) = fields.object(key)? else { continue };
        // `type` is the older name of `rope_type`.
        for name in ["rope_type", "type"] {
            nested.only(name, &json!("default"))?;
        }
        theta = nested.number_or("rope_theta", theta)?;
    }
    Ok(Rope { theta, rotary_dim: head_dim })
}

const ACTIVATIONS: &[(&str, Activation)] = &[
    ("relu", Activation::Relu),
    ("gelu", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

fn activation(fields: &Fields<'_>, key: &str, default: &str) -> Result<Activation> {
    let name = fields.text_or(key, default)?;
    let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
    known.map(|(_, activation)| *activation).ok_or_else(|| {
        let names: Vec<_> = ACTIVATIONS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        fields.unsupported(key, &json!(name), &names.join(", "))
    })
}

fn activation_name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(_, known)| *known == activation).map_or("", |(name, _)| name)
}

/// Whether the class of `architecture` expresses `config`, dropout aside (serving has no use for it, and most classes
/// have no field for it).
pub(super) fn expresses(architecture: &Architecture, config: &GptConfig, written: &Map<String, Value>) -> bool {
    let fields = Fields::new(written, std::path::Path::new("config.json"));
    let without_dropout = |config: GptConfig| GptConfig { dropout: 0.0, ..config };
    (architecture.read)(&fields).is_ok_and(|read| without_dropout(read) == without_dropout(config.clone()))
}
