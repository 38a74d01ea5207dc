//! The architectures of GGUF files, as llama.cpp's converter writes them.
//!
//! Keys begin with the name of the architecture: `llama.block_count`. For keys that a file may leave out, the defaults are those
//! of llama.cpp. A model has biases, and an output matrix of its own, if the file has their tensors.

use super::{
    super::{
        architectures::{
            bases::{cohere, gemma2, gpt2, llama, olmo2, shared_norm},
            config_rows::{self as shared_rows, ConfigRow, flag, number},
        },
        config_json::{Fields, Fixed},
        tensor_names::{NameRow, TensorNames},
    },
    config_rows::{
        self, ATTENTION_FACTOR, FACTOR_LISTS, GROUPED_HEADS, LAYER_NORM_EPS, PLAIN_HEADS, RMS_EPS, ROPE, SIZES, WINDOW,
    },
    mixtures,
    names::{
        BLOCK, FALCON_NORMS, FUSED_QKV, GATED, INSIDE, INTERLEAVED_QKV, OUTSIDE, POST_ATTENTION_NORM, SANDWICH,
        SEPARATE_QKV, UNGATED, XIELU,
    },
    recurrent,
};
use serde_json::{Map, Value};

use crate::{
    config::{Activation, GptConfig, NormKind, NormPosition, Positions, QkNormSpan},
    error::Result,
};

/// How GGUF files describe one architecture.
pub(super) struct Gguf {
    /// As in `general.architecture`.
    pub(super) name: &'static str,
    /// The configuration before keys are read; sizes are not set yet.
    pub(super) base: fn() -> GptConfig,
    /// Keys and what they set, in the order in which they are read.
    pub(super) config: &'static [&'static [ConfigRow]],
    /// Which tensors make which parameters. Of several rows for one, the first whose tensors are there.
    pub(super) params: &'static [&'static [NameRow]],
}

impl Gguf {
    /// Reads the metadata's keys under the architecture's name. `has` tells whether there is a tensor of a name.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) with a key that would change the computation but is not supported.
    pub(super) fn read(&self, fields: &Fields<'_>, has: &dyn Fn(&str) -> bool) -> Result<GptConfig> {
        for key in fields.keys().filter(|key| !self.reads(key) && !SILENT.contains(key)) {
            // Unknown keys are rejected unless they have a neutral value, which is 0 for most.
            let neutral = NEUTRAL.iter().find(|(neutral, _)| *neutral == key);
            fields.only(key, neutral.map_or(Fixed::Nothing, |(_, only)| *only))?;
        }
        let mut config = (self.base)();
        self.config.iter().copied().flatten().try_for_each(|row| row.read(fields, &mut config))?;
        if !FACTOR_LISTS.iter().any(|name| has(name)) {
            fields.only(ATTENTION_FACTOR, Fixed::Number(1.0))?;
        }
        config.tie_embeddings = !has("output.weight");
        config.lm_head_bias = has("output.bias");
        let any = |names: &[&str]| names.iter().any(|name| has(name));
        config.qkv_bias = any(&["blk.0.attn_qkv.bias", "blk.0.attn_q.bias"]);
        config.attn_out_bias = has("blk.0.attn_output.bias");
        config.shared_norm &= !has("blk.0.attn_norm_2.weight");
        config.mlp_bias = any(&["blk.0.ffn_up.bias", "blk.0.ffn_down.bias"]);
        mixtures::read_tensors(&mut config, has);
        Ok(config)
    }

    /// How the files name their tensors.
    pub(super) fn names(&self) -> TensorNames {
        TensorNames { class: self.name, rows: Some(self.params), base_prefix: "" }
    }

    /// The keys that the rows of this architecture write for `config`; those of rotary positions and windows are not among them.
    pub(super) fn written(&self, config: &GptConfig) -> Map<String, Value> {
        let mut written = Map::new();
        self.config.iter().copied().flatten().for_each(|row| row.write(config, &mut written));
        written
    }

    fn reads(&self, key: &str) -> bool {
        self.config.iter().copied().flatten().any(|row| row.reads(key))
    }
}

/// All architectures.
pub(super) const ALL: &[Gguf] = &[
    GPT2,
    LLAMA,
    QWEN2,
    QWEN3,
    SMOLLM3,
    GRANITE,
    OLMO2,
    PHI3,
    NEOX,
    STABLELM,
    GEMMA,
    GEMMA2,
    GEMMA3,
    PHI2,
    STARCODER,
    FALCON,
    COMMAND_R,
    COHERE2,
    BLOOM,
    STARCODER2,
    MISTRAL3,
    QWEN2VL,
    QWEN3VL,
    EXAONE,
    EXAONE4,
    ERNIE4_5,
    GLM4,
    HUNYUAN_DENSE,
    SEED_OSS,
    APERTUS,
    ARCEE,
    NEMOTRON,
    OLMO,
    MINICPM,
    mixtures::QWEN2_MOE,
    mixtures::QWEN3_MOE,
    mixtures::OLMOE,
    mixtures::GRANITE_MOE,
    mixtures::GLM4_MOE,
    mixtures::ERNIE4_5_MOE,
    JAIS2,
    recurrent::LFM2,
    recurrent::LFM2_MOE,
    recurrent::QWEN3_5,
    recurrent::QWEN3_5_MOE,
    recurrent::QWEN3_NEXT,
];

/// The architecture that GGUF files call `name`. The error lists all.
pub(super) fn named(name: &str) -> Result<&'static Gguf, String> {
    ALL.iter().find(|known| known.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|known| format!("`{}`", known.name)).collect();
        names.join(", ")
    })
}

/// Keys that no row reads and whose neutral value is not 0.
const NEUTRAL: &[(&str, Fixed)] = &[
    ("attention.causal", Fixed::Flag(true)),
    ("attention.max_alibi_bias", Fixed::Number(8.0)),
    ("rope.scaling.yarn_ext_factor", Fixed::Number(1.0)),
];

/// How texts become vectors, which does not change the model.
pub(super) const POOLING_TYPE: &str = "pooling_type";

/// Keys that are no part of the configuration. The shapes of the tensors say the same as the first two.
const SILENT: &[&str] = &["vocab_size", "tensor_data_layout", POOLING_TYPE];

/// Llama, Mistral and Mixtral. The converter interleaves the rows of queries and keys: adjacent dimensions rotate together.
const LLAMA: Gguf = Gguf {
    name: "llama",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, WINDOW, mixtures::EXPERTS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED, mixtures::NAMES],
};

const QWEN2: Gguf = Gguf {
    name: "qwen2",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

const QWEN3: Gguf = Gguf {
    name: "qwen3",
    base: || GptConfig { qk_norm: true, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

/// `use_parallel_residual` is ignored, since the converter also writes it for models without parallel residuals. As in
/// llama.cpp, the second norm decides; a file without it is rejected, because the tensor is missing.
const STABLELM: Gguf = Gguf {
    name: "stablelm",
    base: || GptConfig { norm: NormKind::LayerNorm, norm_bias: true, ..llama() },
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[ROPE, LAYER_NORM_EPS, config_rows::of_key(&["use_parallel_residual"], |_, _| Ok(()))],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

const PHI3: Gguf = Gguf {
    name: "phi3",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, WINDOW]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

/// The norms' weights are stored as they are used, with the 1 added.
const GEMMA: Gguf = Gguf {
    name: "gemma",
    base: || GptConfig { scale_embeddings: true, activation: Activation::GeluTanh, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

/// The activation is exact GELU, as in training; llama.cpp uses the tanh approximation.
const NEOX: Gguf = Gguf {
    name: "gptneox",
    base: || GptConfig { activation: Activation::Gelu, ..gpt2() },
    config: &[
        SIZES,
        PLAIN_HEADS,
        &[ROPE, LAYER_NORM_EPS, flag("use_parallel_residual", |c| &mut c.parallel_residual, true)],
    ],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

const GPT2: Gguf = Gguf {
    name: "gpt2",
    base: gpt2,
    config: &[SIZES, PLAIN_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

const BLOOM: Gguf = Gguf {
    name: "bloom",
    base: || GptConfig { positions: Positions::Alibi, embed_norm: true, ..gpt2() },
    config: &[SIZES, PLAIN_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};

/// Queries and keys are interleaved as in [`LLAMA`].
const SMOLLM3: Gguf = Gguf {
    name: "smollm3",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::SMOLLM3_UNROTATED]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// Queries and keys are interleaved as in [`LLAMA`].
const GRANITE: Gguf =
    Gguf { name: "granite", base: llama, config: GRANITE_ROWS, params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED] };

pub(super) const GRANITE_ROWS: &[&[ConfigRow]] = &[
    &[config_rows::GRANITE_ROTATES],
    SIZES,
    GROUPED_HEADS,
    &[
        ROPE,
        RMS_EPS,
        config_rows::GRANITE_SCORES,
        number("embedding_scale", |c| &mut c.embedding_multiplier, 1.0),
        number("residual_scale", |c| &mut c.residual_multiplier, 1.0),
        ConfigRow::Divisor { key: "logit_scale", of: |c| &mut c.logit_multiplier, absent: 1.0 },
        mixtures::EXPERTS,
    ],
];

/// OLMo 3 is an OLMo 2 with windows.
const OLMO2: Gguf = Gguf {
    name: "olmo2",
    base: olmo2,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::OLMO2_WINDOW, config_rows::OLMO2_WINDOW_ROPE]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, INSIDE, BLOCK, GATED],
};

/// Norms as Gemma's.
const GEMMA2: Gguf = Gguf {
    name: "gemma2",
    base: gemma2_of_file,
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            RMS_EPS,
            config_rows::GEMMA2_WINDOW,
            config_rows::GEMMA2_SCORES,
            ConfigRow::Cap { key: "final_logit_softcapping", of: |c| &mut c.logit_softcap, absent: Some(30.0) },
            ConfigRow::Cap { key: "attn_logit_softcapping", of: |c| &mut c.attention_softcap, absent: Some(50.0) },
        ],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, SANDWICH, BLOCK, GATED],
};

/// Norms as Gemma's.
const GEMMA3: Gguf = Gguf {
    name: "gemma3",
    base: || GptConfig { qk_norm: true, ..gemma2_of_file() },
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            RMS_EPS,
            config_rows::GEMMA3_WINDOW,
            config_rows::GEMMA3_WINDOW_ROPE,
            config_rows::GEMMA3_SCORES,
            config_rows::GEMMA3_LOGIT_CAP,
        ],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, SANDWICH, BLOCK, GATED],
};

fn gemma2_of_file() -> GptConfig {
    GptConfig { norm_weight_offset: 0.0, activation: Activation::GeluTanh, ..gemma2() }
}

const PHI2: Gguf = Gguf {
    name: "phi2",
    base: shared_norm,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, UNGATED],
};

const COMMAND_R: Gguf = Gguf {
    name: "command-r",
    base: cohere,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS, LOGIT_SCALE]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

const COHERE2: Gguf = Gguf {
    name: "cohere2",
    base: cohere,
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[ROPE, LAYER_NORM_EPS, LOGIT_SCALE, config_rows::COHERE2_WINDOW, shared_rows::ONLY_WINDOWS_ROTATE],
    ],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

const LOGIT_SCALE: ConfigRow = number("logit_scale", |c| &mut c.logit_multiplier, 1.0);

/// The activation is exact GELU, as in training; llama.cpp uses the tanh approximation. The converter does not support
/// models without parallel residuals or with ALiBi.
const FALCON: Gguf = Gguf {
    name: "falcon",
    base: || GptConfig { activation: Activation::Gelu, ..shared_norm() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, FALCON_NORMS, BLOCK, UNGATED],
};

/// Files do not say whether the model has a window.
const STARCODER2: Gguf = Gguf {
    name: "starcoder2",
    base: || GptConfig {
        norm: NormKind::LayerNorm,
        norm_bias: true,
        gated_mlp: false,
        activation: Activation::GeluTanh,
        ..llama()
    },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, UNGATED],
};

/// Mistral Small 3 and Ministral 3. Queries and keys are interleaved as in [`LLAMA`].
const MISTRAL3: Gguf = Gguf {
    name: "mistral3",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::MISTRAL3_TEMPERATURE]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// The three coordinates of a token, by which sections of its heads rotate, are equal for text.
const QWEN2VL: Gguf =
    Gguf { name: "qwen2vl", config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::ROPE_SECTIONS]], ..QWEN2 };

/// The layers to which pictures are added have no effect on text.
const QWEN3VL: Gguf = Gguf {
    name: "qwen3vl",
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::ROPE_SECTIONS, config_rows::DEEPSTACK]],
    ..QWEN3
};

/// EXAONE 3, a Llama whose queries and keys are not interleaved.
const EXAONE: Gguf = Gguf { name: "exaone", ..QWEN2 };

const EXAONE4: Gguf = Gguf {
    name: "exaone4",
    base: || GptConfig { qk_norm_span: QkNormSpan::Head, ..olmo2() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::EXAONE4_WINDOW]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, INSIDE, BLOCK, GATED],
};

/// Queries and keys are interleaved in the class too.
const ERNIE4_5: Gguf = Gguf {
    name: "ernie4_5",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// GLM-4-0414. Queries and keys are interleaved in the class too.
const GLM4: Gguf = Gguf {
    name: "glm4",
    base: || GptConfig { norm_position: NormPosition::Sandwich, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, SANDWICH, BLOCK, UNGATED],
};

const HUNYUAN_DENSE: Gguf = Gguf {
    name: "hunyuan-dense",
    base: || GptConfig { qk_norm: true, qk_norm_after_rope: true, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

/// The norm before the MLP has the name of one after attention.
const SEED_OSS: Gguf = Gguf {
    name: "seed_oss",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, POST_ATTENTION_NORM, BLOCK, GATED],
};

const APERTUS: Gguf = Gguf {
    name: "apertus",
    base: || GptConfig { qk_norm: true, gated_mlp: false, xielu: true, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, XIELU, BLOCK, UNGATED],
};

/// Queries and keys are interleaved as in [`LLAMA`].
const ARCEE: Gguf = Gguf {
    name: "arcee",
    base: || GptConfig { gated_mlp: false, activation: Activation::ReluSquared, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, UNGATED],
};

/// Norms as Gemma's. The converter writes their epsilon under both keys.
const NEMOTRON: Gguf = Gguf {
    name: "nemotron",
    base: || GptConfig {
        norm: NormKind::LayerNorm,
        norm_bias: true,
        gated_mlp: false,
        activation: Activation::ReluSquared,
        ..llama()
    },
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[ROPE, LAYER_NORM_EPS, config_rows::of_key(&["attention.layer_norm_rms_epsilon"], |_, _| Ok(()))],
    ],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, UNGATED],
};

const JAIS2: Gguf = Gguf { name: "jais2", config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]], ..NEMOTRON };

/// Queries and keys are interleaved as in [`LLAMA`].
const OLMO: Gguf = Gguf {
    name: "olmo",
    base: || GptConfig { norm: NormKind::LayerNorm, norm_weight: false, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, LAYER_NORM_EPS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// Queries and keys are interleaved as in [`LLAMA`].
const MINICPM: Gguf = Gguf {
    name: "minicpm",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS], config_rows::MINICPM_SCALES],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED],
};

/// GPT-BigCode.
const STARCODER: Gguf = Gguf {
    name: "starcoder",
    base: gpt2,
    config: &[SIZES, GROUPED_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};
