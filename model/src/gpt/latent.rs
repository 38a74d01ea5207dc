//! Latent attention's operands.

use super::{CausalSelfAttention, LatentProjections};
use crate::{
    config::{GptConfig, LatentAttention},
    gpt::layers::{Linear, Norm},
    ops::{LatentHeads, LatentQkv, LinearParts, NormParts, Qkv},
};

impl CausalSelfAttention {
    /// Reads the projections to queries, keys and values for a model of `config`.
    pub(super) fn qkv<'a>(
        &'a self,
        config: &GptConfig,
        linear: impl Fn(&'a Linear) -> LinearParts<'a>,
    ) -> Qkv<NormParts, LinearParts<'a>> {
        match (&self.qkv, &self.latent) {
            (Some(qkv), _) => Qkv::Stacked(linear(qkv)),
            (None, Some(latent)) => Qkv::Latent(latent.operands(config, linear)),
            (None, None) => unreachable!("`part_specs` gives attention its projections"),
        }
    }
}

impl LatentProjections {
    /// The operands of the projections, with the sizes in `config`.
    pub(super) fn operands<'a>(
        &'a self,
        config: &GptConfig,
        linear: impl Fn(&'a Linear) -> LinearParts<'a>,
    ) -> LatentQkv<NormParts, LinearParts<'a>> {
        let Some(LatentAttention { rope_dim, value_dim, norm_eps, .. }) = config.latent else {
            unreachable!("`part_specs` gives these projections to latent attention alone")
        };
        let norm = |norm: &Norm| {
            let mut parts = norm.parts();
            parts.options.eps = norm_eps;
            parts
        };
        let Self { q_down, q_norm, q, kv_down, kv_norm, kv_up } = self;
        LatentQkv {
            q_down: q_down.as_ref().map(&linear).zip(q_norm.as_ref().map(norm)),
            q: linear(q),
            kv_down: linear(kv_down),
            kv_norm: norm(kv_norm),
            kv_up: linear(kv_up),
            heads: LatentHeads { n_heads: config.n_heads, rope_dim, plain_dim: config.head_dim - rope_dim, value_dim },
        }
    }
}
