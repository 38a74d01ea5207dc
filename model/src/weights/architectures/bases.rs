//! The configurations that families of classes start from. Rows and files set sizes and change other fields.

use crate::config::{Experts, GptConfig, NormKind, NormPosition, QkNormSpan, RouterScores, Sizes};

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

/// `base` with experts whose weights are normalized probabilities.
pub(in super::super) fn mixture(base: GptConfig) -> GptConfig {
    GptConfig { experts: Some(no_experts()), ..base }
}

fn no_experts() -> Experts {
    Experts {
        n_experts: 0,
        n_active: 0,
        d_ff: 0,
        scores: RouterScores::Softmax,
        normalized: true,
        weight_multiplier: 1.0,
        router_bias: false,
        selection_bias: false,
        groups: None,
        shared_d_ff: 0,
        shared_gate: false,
        dense_layers: Vec::new(),
    }
}

/// The experts of a configuration, to be read or set.
pub(in super::super) fn experts(config: &mut GptConfig) -> &mut Experts {
    // `write` also tries configurations without.
    config.experts.get_or_insert_with(no_experts)
}

/// [`mixture`] of `base` with changed experts.
pub(in super::super) fn mixture_with(base: GptConfig, change: impl FnOnce(&mut Experts)) -> GptConfig {
    let mut config = mixture(base);
    change(experts(&mut config));
    config
}

/// The experts of a configuration that [`write`](super::Architecture::write) tries; some, if the class cannot express it.
pub(in super::super) fn described(config: &GptConfig) -> Experts {
    config.experts.clone().unwrap_or_else(no_experts)
}
