//! The architectures of GGUF files, as llama.cpp's converter writes them.
//!
//! Keys begin with the name of the architecture: `llama.block_count`. Optional keys have llama.cpp's defaults. A model
//! has biases, and a separate output matrix, if the file has their tensors.

use super::{
    super::architectures::{
        bases::{cohere, gemma2, gemma4, gpt2, llama, muse_glimmer, olmo2, shared_norm},
        config_rows::{self as shared_rows, ConfigRow, flag, number, size},
    },
    config_rows::{self, GRANITE_ROWS, GROUPED_HEADS, LAYER_NORM_EPS, PLAIN_HEADS, RMS_EPS, ROPE, SIZES, WINDOW},
    description::Gguf,
    encoders, expert_rows, latent,
    layer_rows::{self, GEMMA4_NAMES, GEMMA4_ROWS},
    mamba, mixtures,
    names::{
        BLOCK, FALCON_NORMS, FUSED_QKV, GATE_AND_QKV, GATED, INSIDE, INTERLEAVED_QKV, OUTSIDE, POST_ATTENTION_NORM,
        QKV_OR_QK, SANDWICH, SEPARATE_QKV, UNGATED, XIELU,
    },
    recurrent,
};
use crate::{
    config::{Activation, GptConfig, NormKind, NormPosition, Positions, QkNormSpan},
    error::Result,
};

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
    GEMMA4,
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
    mixtures::QWEN3_VL_MOE,
    mixtures::OLMOE,
    mixtures::GRANITE_MOE,
    mixtures::GLM4_MOE,
    mixtures::ERNIE4_5_MOE,
    mixtures::GPT_OSS,
    JAIS2,
    recurrent::LFM2,
    recurrent::LFM2_MOE,
    recurrent::QWEN3_5,
    recurrent::QWEN3_5_MOE,
    recurrent::QWEN3_NEXT,
    latent::DEEPSEEK2,
    latent::MINICPM3,
    mamba::GRANITE_HYBRID,
    mamba::NEMOTRON_H_DENSE,
    mamba::NEMOTRON_H_MOE,
    MUSE_GLIMMER,
    encoders::BERT,
    encoders::NOMIC_BERT,
    encoders::MODERN_BERT,
    encoders::EMBEDDING_GEMMA,
];

/// The architecture that GGUF files call `name`. The error lists all.
pub(super) fn named(name: &str) -> Result<&'static Gguf, String> {
    ALL.iter().find(|known| known.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|known| format!("`{}`", known.name)).collect();
        names.join(", ")
    })
}

/// Llama, Mistral and Mixtral. The converter interleaves the rows of queries and keys: adjacent dimensions rotate together.
const LLAMA: Gguf = Gguf {
    name: "llama",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, WINDOW, expert_rows::EXPERTS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED, expert_rows::NAMES],
};

const QWEN2: Gguf = Gguf {
    name: "qwen2",
    base: llama,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED],
};

const QWEN3: Gguf = Gguf { name: "qwen3", base: || GptConfig { qk_norm: true, ..llama() }, ..QWEN2 };

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
    ..QWEN2
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

const GEMMA4: Gguf = Gguf {
    name: layer_rows::GEMMA4,
    base: || GptConfig { activation: Activation::GeluTanh, ..gemma4() },
    config: &[
        &[
            size(&["context_length"], |c| &mut c.max_seq_len),
            size(&["embedding_length"], |c| &mut c.d_model),
            size(&["block_count"], |c| &mut c.n_layers),
            size(&["attention.head_count"], |c| &mut c.n_heads),
        ],
        GEMMA4_ROWS,
    ],
    params: &[OUTSIDE, QKV_OR_QK, SANDWICH, BLOCK, GATED, GEMMA4_NAMES, expert_rows::NAMES],
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

/// Files do not state whether the model has a window.
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
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, config_rows::MISTRAL3_TEMPERATURE]],
    ..SMOLLM3
};

/// The three coordinates of a token, by which sections of its heads are rotated, are equal for text.
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
const ERNIE4_5: Gguf = Gguf { name: "ernie4_5", config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]], ..SMOLLM3 };

/// GLM-4-0414. Queries and keys are interleaved in the class too.
const GLM4: Gguf = Gguf {
    name: "glm4",
    base: || GptConfig { norm_position: NormPosition::Sandwich, ..llama() },
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS]],
    params: &[OUTSIDE, INTERLEAVED_QKV, SANDWICH, BLOCK, UNGATED],
};

const HUNYUAN_DENSE: Gguf =
    Gguf { name: "hunyuan-dense", base: || GptConfig { qk_norm: true, qk_norm_after_rope: true, ..llama() }, ..QWEN2 };

/// The norm before the MLP has the name of one after attention.
const SEED_OSS: Gguf =
    Gguf { name: "seed_oss", params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, POST_ATTENTION_NORM, BLOCK, GATED], ..QWEN2 };

const APERTUS: Gguf = Gguf {
    name: "apertus",
    base: || GptConfig { qk_norm: true, gated_mlp: false, xielu: true, ..llama() },
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, XIELU, BLOCK, UNGATED],
    ..QWEN2
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
const MINICPM: Gguf =
    Gguf { name: "minicpm", config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS], config_rows::MINICPM_SCALES], ..SMOLLM3 };

/// Norms as Gemma's. The norms of queries and keys have weights, which the factor of the scores is in.
const MUSE_GLIMMER: Gguf = Gguf {
    name: "muse-glimmer",
    base: muse_glimmer,
    config: &[
        SIZES,
        GROUPED_HEADS,
        &[
            ROPE,
            RMS_EPS,
            config_rows::COHERE2_WINDOW,
            shared_rows::ONLY_WINDOWS_ROTATE,
            LOGIT_SCALE,
            config_rows::GEMMA3_LOGIT_CAP,
        ],
    ],
    params: &[OUTSIDE, GATE_AND_QKV, SANDWICH, BLOCK, GATED],
};

/// GPT-BigCode.
const STARCODER: Gguf = Gguf {
    name: "starcoder",
    base: gpt2,
    config: &[SIZES, GROUPED_HEADS, &[LAYER_NORM_EPS]],
    params: &[OUTSIDE, FUSED_QKV, BLOCK, UNGATED],
};
