//! The configurations that families of classes start from. Rows and files set sizes and change other fields.

use crate::config::{GptConfig, NormKind, NormPosition, QkNormSpan, Sizes};

/// Set by the rows.
const OPEN: Sizes =
    Sizes { vocab_size: 0, max_seq_len: 0, n_layers: 0, n_heads: 0, n_kv_heads: 0, d_model: 0, d_ff: 0 };

pub(in super::super) fn gpt2() -> GptConfig {
    GptConfig::gpt2(OPEN)
}

pub(in super::super) fn llama() -> GptConfig {
    GptConfig::llama(OPEN)
}

pub(in super::super) fn olmo2() -> GptConfig {
    GptConfig { norm_position: NormPosition::Inside, qk_norm: true, qk_norm_span: QkNormSpan::AllHeads, ..llama() }
}

pub(in super::super) fn gemma2() -> GptConfig {
    GptConfig { norm_position: NormPosition::Sandwich, norm_weight_offset: 1.0, scale_embeddings: true, ..llama() }
}

pub(in super::super) fn nanochat() -> GptConfig {
    GptConfig::nanochat(OPEN)
}

/// GPT-2 with parallel residuals that share one norm, and rotary positions.
pub(in super::super) fn shared_norm() -> GptConfig {
    GptConfig { positions: llama().positions, parallel_residual: true, shared_norm: true, ..gpt2() }
}

pub(in super::super) fn cohere() -> GptConfig {
    GptConfig { norm: NormKind::LayerNorm, parallel_residual: true, shared_norm: true, ..llama() }
}
