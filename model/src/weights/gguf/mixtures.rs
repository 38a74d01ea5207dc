//! Mixtures of experts, as llama.cpp's converter writes them.

use super::{
    super::{
        architectures::bases::{gpt_oss, llama, mixture, mixture_with},
        tensor_names::{NameRow, same},
    },
    config_rows::{
        DEEPSTACK, GPT_OSS_WINDOW, GRANITE_ROWS, GROUPED_HEADS, RMS_EPS, ROPE, ROPE_SECTIONS, SIZES, UNTRUNCATED,
    },
    description::Gguf,
    expert_rows::{BIASES, EXPERTS, NAMES},
    names::{BLOCK, FUSED_QKV, GATED, INTERLEAVED_QKV, OUTSIDE, POST_ATTENTION_NORM, SEPARATE_QKV},
    recurrent::WITHOUT_PREDICTING,
};
use crate::config::{GptConfig, QkNormSpan, RouterScores};

pub(super) const QWEN2_MOE: Gguf = Gguf {
    name: "qwen2moe",
    base: || mixture_with(llama(), |experts| experts.normalized = false),
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, EXPERTS]],
    params: &[OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED, NAMES],
};

pub(super) const QWEN3_MOE: Gguf =
    Gguf { name: "qwen3moe", base: || mixture(GptConfig { qk_norm: true, ..llama() }), ..QWEN2_MOE };

/// What pictures need has no effect on text.
pub(super) const QWEN3_VL_MOE: Gguf = Gguf {
    name: "qwen3vlmoe",
    config: &[SIZES, GROUPED_HEADS, &[ROPE, RMS_EPS, EXPERTS, ROPE_SECTIONS, DEEPSTACK]],
    ..QWEN3_MOE
};

pub(super) const OLMOE: Gguf = Gguf {
    name: "olmoe",
    base: || {
        let llama = GptConfig { qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() };
        mixture_with(llama, |experts| experts.normalized = false)
    },
    ..QWEN2_MOE
};

/// Queries and keys are interleaved as in Llama's files.
pub(super) const GRANITE_MOE: Gguf = Gguf {
    name: "granitemoe",
    base: || mixture(llama()),
    config: GRANITE_ROWS,
    params: &[OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED, NAMES],
};

pub(super) const GLM4_MOE: Gguf = Gguf {
    name: "glm4moe",
    base: || mixture_with(llama(), |experts| experts.scores = RouterScores::Sigmoid),
    config: &[SIZES, GROUPED_HEADS, &[WITHOUT_PREDICTING, ROPE, RMS_EPS, EXPERTS]],
    params: &[POST_ATTENTION_NORM, OUTSIDE, SEPARATE_QKV, FUSED_QKV, BLOCK, GATED, NAMES],
};

/// Queries and keys are interleaved in the class too.
pub(super) const ERNIE4_5_MOE: Gguf = Gguf {
    name: "ernie4_5-moe",
    base: || mixture(llama()),
    params: &[ERNIE_SELECTION, OUTSIDE, INTERLEAVED_QKV, BLOCK, GATED, NAMES],
    ..QWEN2_MOE
};

const ERNIE_SELECTION: &[NameRow] =
    &[same("blocks.{}.experts.router.selection_bias", "blk.{}.exp_probs_b.bias").as_one_row()];

/// As the class, without the keys for its special features. The class does not truncate YaRN's range; llama.cpp does.
pub(super) const GPT_OSS: Gguf = Gguf {
    name: "gpt-oss",
    base: gpt_oss,
    config: &[SIZES, GROUPED_HEADS, &[ROPE, UNTRUNCATED, RMS_EPS, GPT_OSS_WINDOW, EXPERTS]],
    params: &[POST_ATTENTION_NORM, SINKS, OUTSIDE, SEPARATE_QKV, BLOCK, NAMES, BIASES],
};

const SINKS: &[NameRow] = &[same("blocks.{}.attn.sinks.weight", "blk.{}.attn_sinks.weight")];
