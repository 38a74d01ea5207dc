//! How GGUF files, as llama.cpp's converter writes them, spell the architectures of the table.
//!
//! Keys stand behind the architecture's own name: `llama.block_count`. What a file need not say, the class decides as
//! llama.cpp does; biases and an output matrix of its own a model has where the file has their tensors.

use serde_json::json;

use self::GgufRows::{All, Ff, InterleavedKeys, InterleavedQueries, KeysOrValues, Queries};
use super::{
    super::fields::{Fields, Fixed},
    config_rows::{ConfigRow, derived, flag, head_dim, number, one_kv_head_each, size, size_or},
    gpt2, llama,
};
use crate::{
    config::{Activation, GptConfig, NormKind, Positions, Rope, RopeScaling},
    error::Result,
};

/// The spelling of one architecture.
pub(in super::super) struct Gguf {
    /// As in `general.architecture`.
    pub(in super::super) name: &'static str,
    /// What the architecture is where its keys say nothing; sizes are still open.
    base: fn() -> GptConfig,
    /// Keys and what they set, in the order in which they are read.
    config: &'static [&'static [ConfigRow]],
    /// Which tensors make which parameters.
    pub(in super::super) params: &'static [&'static [GgufParam]],
}

/// One parameter of ours, and the tensors that make it up, stacked along `d_out`. `{}` stands for the layer.
pub(in super::super) struct GgufParam {
    pub(in super::super) path: &'static str,
    pub(in super::super) tensors: &'static [(&'static str, GgufRows)],
}

/// Which of a parameter's rows a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum GgufRows {
    All,
    Queries,
    KeysOrValues,
    Ff,
    /// Queries whose two dimensions that turn together are next to each other, head by head.
    InterleavedQueries,
    /// Keys laid out like that.
    InterleavedKeys,
}

impl GgufRows {
    /// How many rows these are of `n` in all.
    pub(in super::super) fn count(self, config: &GptConfig, n: usize) -> usize {
        match self {
            Self::All => n,
            Self::Queries | Self::InterleavedQueries => config.q_width(),
            Self::KeysOrValues | Self::InterleavedKeys => config.kv_width(),
            Self::Ff => config.d_ff,
        }
    }
}

impl Gguf {
    /// From the metadata's pairs under the architecture's name; refuses by name what would change the maths and is not
    /// computed. `has` tells whether there is a tensor of a name.
    pub(in super::super) fn read(&self, fields: &Fields<'_>, has: &dyn Fn(&str) -> bool) -> Result<GptConfig> {
        for key in fields.keys().filter(|key| !self.reads(key) && !SILENT.contains(key)) {
            // What is not known may be anything, but where it is 0 it is not there.
            let neutral = NEUTRAL.iter().find(|(neutral, _)| *neutral == key);
            fields.only(key, neutral.map_or(Fixed::Nothing, |(_, only)| *only))?;
        }
        let mut config = (self.base)();
        self.config.iter().copied().flatten().try_for_each(|row| row.read(fields, &mut config))?;
        config.tie_embeddings = !has("output.weight");
        config.lm_head_bias = has("output.bias");
        let any = |names: &[&str]| names.iter().any(|name| has(name));
        config.qkv_bias = any(&["blk.0.attn_qkv.bias", "blk.0.attn_q.bias"]);
        config.attn_out_bias = has("blk.0.attn_output.bias");
        config.mlp_bias = any(&["blk.0.ffn_up.bias", "blk.0.ffn_down.bias"]);
        Ok(config)
    }

    fn reads(&self, key: &str) -> bool {
        self.config.iter().copied().flatten().any(|row| row.reads(key))
    }
}

/// Keys that need not be 0 to change nothing.
const NEUTRAL: &[(&str, Fixed)] = &[
    ("attention.causal", Fixed::Flag(true)),
    ("attention.max_alibi_bias", Fixed::Number(8.0)),
    ("rope.scaling.yarn_ext_factor", Fixed::Number(1.0)),
];

/// Keys of which the tensors' shapes tell as much.
const SILENT: &[&str] = &["vocab_size", "tensor_data_layout"];

const ROPE_KEYS: &[&str] = &[
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

const SIZES: &[ConfigRow] = &[
    size(&["context_length"], |c| &mut c.max_seq_len),
    size(&["embedding_length"], |c| &mut c.d_model),
    size(&["block_count"], |c| &mut c.n_layers),
    size(&["feed_forward_length"], |c| &mut c.d_ff),
    size(&["attention.head_count"], |c| &mut c.n_heads),
];

const GROUPED_HEADS: &[ConfigRow] = &[
    size_or(&["attention.head_count_kv"], |c| &mut c.n_kv_heads, |c| c.n_heads),
    size_or(&["attention.key_length"], |c| &mut c.head_dim, head_dim),
    VALUE_LENGTH,
];

const PLAIN_HEADS: &[ConfigRow] = &[
    one_kv_head_each(),
    derived(|c| &mut c.head_dim, head_dim),
    ConfigRow::Custom {
        keys: &["attention.head_count_kv", "attention.key_length", "attention.value_length"],
        read: require_plain_heads,
        write: |_, _| {},
    },
];

const RMS_EPS: ConfigRow = number("attention.layer_norm_rms_epsilon", |c| &mut c.norm_eps, 1e-5);
const LAYER_NORM_EPS: ConfigRow = number("attention.layer_norm_epsilon", |c| &mut c.norm_eps, 1e-5);
const ROPE: ConfigRow = ConfigRow::Custom { keys: ROPE_KEYS, read: read_rope, write: |_, _| {} };
const VALUE_LENGTH: ConfigRow =
    ConfigRow::Custom { keys: &["attention.value_length"], read: require_value_length, write: |_, _| {} };
const WINDOW: ConfigRow =
    ConfigRow::Custom { keys: &["attention.sliding_window"], read: read_window, write: |_, _| {} };

fn require_plain_heads(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    fields.only("attention.head_count_kv", Fixed::Number(config.n_heads as f64))?;
    fields.only("attention.key_length", Fixed::Number(config.head_dim as f64))?;
    require_value_length(fields, config)
}

fn require_value_length(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    fields.only("attention.value_length", Fixed::Number(config.head_dim as f64))
}

/// Phi 3 files say 0 where there is no window.
fn read_window(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    config.sliding_window = fields.size("attention.sliding_window")?.filter(|&window| window > 0);
    Ok(())
}

fn read_rope(fields: &Fields<'_>, config: &mut GptConfig) -> Result<()> {
    let theta = fields.number_or("rope.freq_base", 10_000.0)?;
    let rotary_dim = fields.size_or("rope.dimension_count", config.head_dim)?;
    for key in ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"] {
        // Files differ in whether YaRN's own factor is part of it.
        fields.only(key, Fixed::Number(1.0))?;
    }
    // 0 counts as absent, as in llama.cpp; the second key is that of the first files.
    let factor = |key| Ok(fields.number_or(key, 0.0)?).map(|factor| (factor != 0.0).then_some(factor));
    let factor = factor("rope.scaling.factor")?.or(factor("rope.scale_linear")?);
    let kind = fields.text_or("rope.scaling.type", if factor.is_some() { "linear" } else { "none" })?;
    let scaling = match (kind, factor) {
        ("none", _) => RopeScaling::None,
        ("linear" | "yarn", None | Some(1.0)) => RopeScaling::None,
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        ("yarn", Some(factor)) => RopeScaling::Yarn {
            factor,
            attention_factor: 0.1 * factor.max(1.0).ln() + 1.0,
            beta_fast: fields.number_or("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: fields.number_or("rope.scaling.yarn_beta_slow", 1.0)?,
            original_max_seq_len: fields.size_or("rope.scaling.original_context_length", config.max_seq_len)?,
            truncate: true,
        },
        _ => return Err(fields.unsupported("rope.scaling.type", &json!(kind), "none, linear, yarn")),
    };
    config.positions = Positions::Rope(Rope { theta, rotary_dim, scaling });
    Ok(())
}

/// Llama and Mistral, whose converter lays queries and keys out for rotations of neighbours.
pub(super) const LLAMA: Gguf = Gguf {
    name: "llama",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, WINDOW]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

pub(super) const QWEN2: Gguf = Gguf {
    name: "qwen2",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, BLOCK, GATED],
};

pub(super) const QWEN3: Gguf = Gguf {
    name: "qwen3",
    base: || GptConfig { qk_norm: true, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, BLOCK, GATED],
};

/// The converter says `use_parallel_residual` of models that know nothing of it; as in llama.cpp, a second norm counts,
/// which is asked for here.
pub(super) const STABLELM: Gguf = Gguf {
    name: "stablelm",
    base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, ..llama() },
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            LAYER_NORM_EPS,
            ConfigRow::Custom { keys: &["use_parallel_residual"], read: |_, _| Ok(()), write: |_, _| {} },
        ],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, BLOCK, GATED],
};

pub(super) const PHI3: Gguf = Gguf {
    name: "phi3",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, WINDOW]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

/// The norms' weights are stored as they are used, with the 1 added.
pub(super) const GEMMA: Gguf = Gguf {
    name: "gemma",
    base: || GptConfig { scale_embeddings: true, activation: Activation::GeluTanh, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, BLOCK, GATED],
};

/// The activation is that which the models were trained with; llama.cpp approximates it.
pub(super) const NEOX: Gguf = Gguf {
    name: "gptneox",
    base: || GptConfig { activation: Activation::Gelu, ..gpt2() },
    config: &[
        SIZES,
        PLAIN_HEADS,
        &[ROPE, LAYER_NORM_EPS, flag("use_parallel_residual", |c| &mut c.parallel_residual, true)],
    ],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

pub(super) const GPT2: Gguf = Gguf {
    name: "gpt2",
    base: gpt2,
    config: &[SIZES, PLAIN_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

pub(super) const BLOOM: Gguf = Gguf {
    name: "bloom",
    base: || GptConfig { positions: Positions::Alibi, embed_norm: true, ..gpt2() },
    config: &[SIZES, PLAIN_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

const fn same(path: &'static str, tensor: &'static [(&'static str, GgufRows); 1]) -> GgufParam {
    GgufParam { path, tensors: tensor }
}

const fn stacked(path: &'static str, tensors: &'static [(&'static str, GgufRows)]) -> GgufParam {
    GgufParam { path, tensors }
}

/// What is not in blocks; each model has some of these.
const OUTSIDE: &[GgufParam] = &[
    same("embed.weight", &[("token_embd.weight", All)]),
    same("embed_norm.weight", &[("token_embd_norm.weight", All)]),
    same("embed_norm.bias", &[("token_embd_norm.bias", All)]),
    same("pos_embed.weight", &[("position_embd.weight", All)]),
    same("norm.weight", &[("output_norm.weight", All)]),
    same("norm.bias", &[("output_norm.bias", All)]),
    same("lm_head.weight", &[("output.weight", All)]),
    same("lm_head.bias", &[("output.bias", All)]),
];

/// What all blocks name alike.
const BLOCK: &[GgufParam] = &[
    same("blocks.{}.attn_norm.weight", &[("blk.{}.attn_norm.weight", All)]),
    same("blocks.{}.attn_norm.bias", &[("blk.{}.attn_norm.bias", All)]),
    same("blocks.{}.attn.q_norm.weight", &[("blk.{}.attn_q_norm.weight", All)]),
    same("blocks.{}.attn.k_norm.weight", &[("blk.{}.attn_k_norm.weight", All)]),
    same("blocks.{}.attn.out.weight", &[("blk.{}.attn_output.weight", All)]),
    same("blocks.{}.attn.out.bias", &[("blk.{}.attn_output.bias", All)]),
    same("blocks.{}.mlp_norm.weight", &[("blk.{}.ffn_norm.weight", All)]),
    same("blocks.{}.mlp_norm.bias", &[("blk.{}.ffn_norm.bias", All)]),
    same("blocks.{}.mlp.down.weight", &[("blk.{}.ffn_down.weight", All)]),
    same("blocks.{}.mlp.down.bias", &[("blk.{}.ffn_down.bias", All)]),
];

const GATED: &[GgufParam] = &[
    stacked("blocks.{}.mlp.up.weight", &[("blk.{}.ffn_gate.weight", Ff), ("blk.{}.ffn_up.weight", Ff)]),
    stacked("blocks.{}.mlp.up.bias", &[("blk.{}.ffn_gate.bias", Ff), ("blk.{}.ffn_up.bias", Ff)]),
];

/// Not gated, or both matrices in one, as ours.
const UNGATED: &[GgufParam] = &[
    same("blocks.{}.mlp.up.weight", &[("blk.{}.ffn_up.weight", All)]),
    same("blocks.{}.mlp.up.bias", &[("blk.{}.ffn_up.bias", All)]),
];

/// Queries, keys and values one after the other, as ours.
const FUSED_QKV: &[GgufParam] = &[
    same("blocks.{}.attn.qkv.weight", &[("blk.{}.attn_qkv.weight", All)]),
    same("blocks.{}.attn.qkv.bias", &[("blk.{}.attn_qkv.bias", All)]),
];

const SEPARATE_QKV: &[GgufParam] = &[
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("blk.{}.attn_q.weight", Queries),
            ("blk.{}.attn_k.weight", KeysOrValues),
            ("blk.{}.attn_v.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[("blk.{}.attn_q.bias", Queries), ("blk.{}.attn_k.bias", KeysOrValues), ("blk.{}.attn_v.bias", KeysOrValues)],
    ),
];

const INTERLEAVED_QKV: &[GgufParam] = &[
    stacked(
        "blocks.{}.attn.qkv.weight",
        &[
            ("blk.{}.attn_q.weight", InterleavedQueries),
            ("blk.{}.attn_k.weight", InterleavedKeys),
            ("blk.{}.attn_v.weight", KeysOrValues),
        ],
    ),
    stacked(
        "blocks.{}.attn.qkv.bias",
        &[
            ("blk.{}.attn_q.bias", InterleavedQueries),
            ("blk.{}.attn_k.bias", InterleavedKeys),
            ("blk.{}.attn_v.bias", KeysOrValues),
        ],
    ),
];
