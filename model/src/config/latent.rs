//! Multi-head latent attention: keys and values of all heads are computed from one narrow vector per token.

use serde::{Deserialize, Serialize};

use super::{GptConfig, validate::require};
use crate::error::Result;

/// Multi-head latent attention ([DeepSeek-V2](https://arxiv.org/abs/2405.04434), 2.1): a narrow vector per token, its
/// latent, is projected to the keys and values of all heads. Each key also has a rotated part that all heads share.
///
/// The model has as many key heads as query heads, and [`GptConfig::head_dim`] is the width of a query and of a key.
/// [`GptConfig::qkv_bias`] applies to the matrices that compute latents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Width of the latent that queries are computed from; `None`: they are computed from the row itself.
    pub query_rank: Option<usize>,
    /// Width of the latent that keys and values are computed from.
    pub kv_rank: usize,
    /// Number of leading dimensions of each query and key that are rotated, below [`GptConfig::head_dim`]. The rotated
    /// part of keys is the same for all heads.
    pub rope_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Epsilon of the norms of latents.
    pub norm_eps: f64,
    /// Whether files have the two dimensions that rotate together next to each other.
    pub interleaved: bool,
}

impl GptConfig {
    /// Width of the outputs of all heads of `layer` together.
    pub fn value_width_of(&self, layer: usize) -> usize {
        self.latent.map_or_else(|| self.q_width_of(layer), |latent| self.n_heads * latent.value_dim)
    }

    /// Width of a head of `head_dim` in attention and in the KV cache, where queries, keys and values are equally wide:
    /// the narrower ones are padded with zeros.
    pub(crate) fn padded_head_dim(&self, head_dim: usize) -> usize {
        self.latent.map_or(head_dim, |latent| head_dim.max(latent.value_dim))
    }

    /// How many dimensions of a head of `head_dim` can be rotated, and the name of the field that limits them.
    pub(super) fn rotatable(&self, head_dim: usize) -> (&'static str, usize) {
        self.latent.map_or(("head_dim", head_dim), |latent| ("latent.rope_dim", latent.rope_dim))
    }
}

impl LatentAttention {
    /// Checks latent attention in the model of `config`.
    pub(super) fn validate(&self, config: &GptConfig) -> Result<()> {
        let Self { query_rank, kv_rank, rope_dim, value_dim, norm_eps, .. } = *self;
        let sizes = [("query_rank", query_rank.unwrap_or(1)), ("kv_rank", kv_rank), ("value_dim", value_dim)];
        for (field, size) in sizes {
            require(format!("latent.{field}"), (1..=1 << 28).contains(&size), || {
                format!("must be in 1..=2^28, got {size}")
            })?;
        }
        let head_dim = config.head_dim;
        require("latent.rope_dim", (2..head_dim).contains(&rope_dim), || {
            format!("must be at least 2 and below head_dim = {head_dim}, got {rope_dim}")
        })?;
        require("latent.norm_eps", norm_eps.is_finite() && norm_eps >= 0.0, || {
            format!("must be finite and not negative, got {norm_eps}")
        })?;
        require("n_kv_heads", config.n_kv_heads == config.n_heads, || {
            format!("must be n_heads = {} with latent attention, got {}", config.n_heads, config.n_kv_heads)
        })?;
        let refused = [
            ("qk_norm", config.qk_norm, "false"),
            ("attention_gate", config.attention_gate, "false"),
            ("full_heads", config.full_heads.is_some(), "absent"),
            ("value_norm", config.value_norm, "false"),
            ("keys_as_values", config.keys_as_values, "false"),
            ("n_shared_kv_layers", config.n_shared_kv_layers > 0, "0"),
        ];
        refused
            .into_iter()
            .try_for_each(|(field, has, only)| require(field, !has, || format!("must be {only} with latent attention")))
    }
}
