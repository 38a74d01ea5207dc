//! How GGUF files, as llama.cpp's converter writes them, spell the architectures of the table.
//!
//! Keys stand behind the architecture's own name: `llama.block_count`. What a file need not say, the class decides as
//! llama.cpp does; biases and an output matrix of its own a model has where the file has their tensors.

mod names;
mod rows;

use self::{
    names::{BLOCK, FALCON_NORMS, FUSED_QKV, GATED, INSIDE, INTERLEAVED_QKV, OUTSIDE, SANDWICH, SEPARATE_QKV, UNGATED},
    rows::{GROUPED_HEADS, LAYER_NORM_EPS, PLAIN_HEADS, RMS_EPS, ROPE, SIZES, WINDOW},
};
use super::{
    super::fields::{Fields, Fixed},
    bases::{cohere, gemma2, gpt2, llama, olmo2, shared_norm},
    config_rows::{self, ConfigRow, flag, number},
};
use crate::{
    config::{Activation, GptConfig, NormKind, Positions},
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
    /// Which tensors make which parameters. Of several rows for one, the first whose tensors are there.
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
        config.shared_norm &= !has("blk.0.attn_norm_2.weight");
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
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

pub(super) const QWEN3: Gguf = Gguf {
    name: "qwen3",
    base: || GptConfig { qk_norm: true, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

/// The converter says `use_parallel_residual` of models that know nothing of it; as in llama.cpp, a second norm counts,
/// which is asked for here.
pub(super) const STABLELM: Gguf = Gguf {
    name: "stablelm",
    base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS, rows::of_key(&["use_parallel_residual"], |_, _| Ok(()))]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
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
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
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

/// Its converter lays queries and keys out as Llama's does.
pub(super) const SMOLLM3: Gguf = Gguf {
    name: "smollm3",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, rows::SMOLLM3_UNROTATED]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// The same.
pub(super) const GRANITE: Gguf = Gguf {
    name: "granite",
    base: llama,
    config: &[
        &[rows::GRANITE_ROTATES],
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            RMS_EPS,
            rows::GRANITE_SCORES,
            number("embedding_scale", |c| &mut c.embedding_multiplier, 1.0),
            number("residual_scale", |c| &mut c.residual_multiplier, 1.0),
            ConfigRow::Divisor { key: "logit_scale", of: |c| &mut c.logit_multiplier, absent: 1.0 },
        ],
    ],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// OLMo 3 is an OLMo 2 with windows.
pub(super) const OLMO2: Gguf = Gguf {
    name: "olmo2",
    base: olmo2,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, rows::OLMO2_WINDOW, rows::OLMO2_WINDOW_ROPE]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, INSIDE, BLOCK, GATED],
};

/// Norms as Gemma's.
pub(super) const GEMMA2: Gguf = Gguf {
    name: "gemma2",
    base: gemma2_of_file,
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            RMS_EPS,
            rows::GEMMA2_WINDOW,
            rows::GEMMA2_SCORES,
            ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: Some(30.0) },
            ConfigRow::Cap { key: "attn_logit_softcapping", of: |c| &mut c.attention_softcap, absent: Some(50.0) },
        ],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, SANDWICH, BLOCK, GATED],
};

/// Norms as Gemma's.
pub(super) const GEMMA3: Gguf = Gguf {
    name: "gemma3",
    base: || GptConfig { qk_norm: true, ..gemma2_of_file() },
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[ROPE, RMS_EPS, rows::GEMMA3_WINDOW, rows::GEMMA3_WINDOW_ROPE, rows::GEMMA3_SCORES, rows::GEMMA3_LOGIT_CAP],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, SANDWICH, BLOCK, GATED],
};

fn gemma2_of_file() -> GptConfig {
    GptConfig { norm_weight_offset: 0.0, activation: Activation::GeluTanh, ..gemma2() }
}

pub(super) const PHI2: Gguf = Gguf {
    name: "phi2",
    base: shared_norm,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, UNGATED],
};

pub(super) const COMMAND_R: Gguf = Gguf {
    name: "command-r",
    base: cohere,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS, LOGIT_SCALE]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

pub(super) const COHERE2: Gguf = Gguf {
    name: "cohere2",
    base: cohere,
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[ROPE, LAYER_NORM_EPS, LOGIT_SCALE, rows::COHERE2_WINDOW, config_rows::ONLY_WINDOWS_ROTATE],
    ],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

const LOGIT_SCALE: ConfigRow = number("logit_scale", |c| &mut c.logit_multiplier, 1.0);

/// The activation is that which the models were trained with; llama.cpp approximates it. Those without parallel parts or
/// with ALiBi its converter does not know.
pub(super) const FALCON: Gguf = Gguf {
    name: "falcon",
    base: || GptConfig { activation: Activation::Gelu, ..shared_norm() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, FALCON_NORMS, BLOCK, UNGATED],
};

/// GPT-BigCode.
pub(super) const STARCODER: Gguf = Gguf {
    name: "starcoder",
    base: gpt2,
    config: &[SIZES, GROUPED_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};
