//! Rotary positions.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::GptConfig;

/// Rotary positions, in Hugging Face's pairing: dimension `i` is rotated with `i + rotary_dim / 2`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Number of leading dimensions of each head that are rotated; the rest are unchanged. Even, at most `head_dim`, and with
    /// [`GptConfig::latent`] at most its `rope_dim`.
    pub rotary_dim: usize,
    /// Scaling for longer contexts than in the first training.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Unscaled.
    pub fn new(theta: f64, rotary_dim: usize) -> Self {
        Self { theta, rotary_dim, scaling: RopeScaling::None }
    }
}

/// Scaling of rotary wavelengths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All by the same factor ([position interpolation](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// A larger base, so that long wavelengths stretch more than short ones (["NTK-aware"
    /// scaling](https://arxiv.org/abs/2309.00071), 3.1). The base grows with the length of the text beyond the model's
    /// context. Hearth supports only texts within the context, where nothing is scaled: `factor` is kept for other
    /// programs that read the model.
    Dynamic {
        /// At least 1.
        factor: f64,
    },
    /// Long wavelengths by the factor, short ones not at all, with a blend in between ([Llama
    /// 3.1](https://arxiv.org/abs/2407.21783)).
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_seq_len / low_freq_factor` are scaled by the full factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_seq_len / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_max_seq_len: usize,
    },
    /// As [`Llama3`](Self::Llama3), but blended by dimension, and with sharper attention
    /// ([YaRN](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// At least 1.
        factor: f64,
        /// Multiplies cosines and sines, and so scores by its square.
        attention_factor: f64,
        /// Dimensions with more rotations than this over the original context are unchanged.
        beta_fast: f64,
        /// Dimensions with fewer rotations than this are scaled by the full factor.
        beta_slow: f64,
        /// Context length before scaling.
        original_max_seq_len: usize,
        /// Whether the ends of the blend are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// A factor for the wavelength of each pair of dimensions ([LongRoPE](https://arxiv.org/abs/2402.13753)), from one of
    /// two lists: `long_factors` if [`GptConfig::max_seq_len`] is above `original_max_seq_len`, else `short_factors`.
    ///
    /// So the list depends on the context that the model is opened for, as in llama.cpp and vLLM, and is the same for
    /// all texts. `transformers` chooses by the length of each text and recomputes the KV cache when a text grows
    /// beyond `original_max_seq_len`. [`Gpt::with_max_seq_len`](crate::gpt::Gpt::with_max_seq_len) opens a model for a
    /// shorter context.
    LongRope {
        /// One for each pair of rotated dimensions, positive.
        short_factors: Vec<f32>,
        /// Factors for long contexts; as many as `short_factors`.
        long_factors: Vec<f32>,
        /// Multiplies cosines and sines, with either list.
        attention_factor: f64,
        /// Context length before scaling.
        original_max_seq_len: usize,
    },
    /// Only the shortest wavelengths rotate, and all by the same factor. Unlike with a smaller
    /// [`rotary_dim`](Rope::rotary_dim), dimensions are paired over the whole head, and wavelengths grow as if all rotated.
    Proportional {
        /// Pairs of dimensions that rotate.
        n_pairs: usize,
        /// At least 1.
        factor: f64,
    },
}

impl RopeScaling {
    /// The multiplier of cosines and sines: 1, except with YaRN and LongRoPE.
    pub fn attention_factor(&self) -> f32 {
        match self {
            Self::Yarn { attention_factor, .. } | Self::LongRope { attention_factor, .. } => *attention_factor as f32,
            _ => 1.0,
        }
    }

    /// The default of [`LongRope`](Self::LongRope)'s `attention_factor` for a context of `factor` times the original length
    /// ([LongRoPE's code](https://github.com/microsoft/LongRoPE)).
    pub(crate) fn long_rope_attention_factor(factor: f64, original_max_seq_len: usize) -> f64 {
        if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original_max_seq_len as f64).ln()).sqrt() }
    }
}
