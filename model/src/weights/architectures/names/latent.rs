//! Latent attention: Llama's names around the projections to latents and from them.

use super::{
    super::super::tensor_names::{
        NameRow,
        RowSelection::{LatentDown, LatentQueries, LatentUp},
        ordered, same,
    },
    experts::{EXPERTS, SELECTION_BIAS, SHARED_EXPERTS},
    llama::{LLAMA_ENDS, LLAMA_MLP, LLAMA_NORMS, LLAMA_OUT},
};

/// MiniCPM 3.
pub(in super::super) const LATENT: &[&[NameRow]] = &[LLAMA_ENDS, LLAMA_NORMS, LATENT_QKV, LLAMA_OUT, LLAMA_MLP];

/// DeepSeek V2 and V3, GLM 4.7 Flash.
pub(in super::super) const LATENT_MOE: &[&[NameRow]] =
    &[LLAMA_ENDS, LLAMA_NORMS, LATENT_QKV, LLAMA_OUT, LLAMA_MLP, EXPERTS, SHARED_EXPERTS, SELECTION_BIAS];

const QUERIES: &str = "blocks.{}.attn.latent.q.weight";

const LATENT_QKV: &[NameRow] = &[
    same("blocks.{}.attn.latent.q_down.weight", "model.layers.{}.self_attn.q_a_proj.weight"),
    same("blocks.{}.attn.latent.q_down.bias", "model.layers.{}.self_attn.q_a_proj.bias"),
    same("blocks.{}.attn.latent.q_norm.weight", "model.layers.{}.self_attn.q_a_layernorm.weight"),
    ordered(LatentQueries, QUERIES, "model.layers.{}.self_attn.q_b_proj.weight")
        .only_if(|config| config.latent.is_some_and(|latent| latent.query_rank.is_some())),
    ordered(LatentQueries, QUERIES, "model.layers.{}.self_attn.q_proj.weight")
        .only_if(|config| config.latent.is_some_and(|latent| latent.query_rank.is_none())),
    ordered(LatentDown, "blocks.{}.attn.latent.kv_down.weight", "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight"),
    ordered(LatentDown, "blocks.{}.attn.latent.kv_down.bias", "model.layers.{}.self_attn.kv_a_proj_with_mqa.bias"),
    same("blocks.{}.attn.latent.kv_norm.weight", "model.layers.{}.self_attn.kv_a_layernorm.weight"),
    ordered(LatentUp, "blocks.{}.attn.latent.kv_up.weight", "model.layers.{}.self_attn.kv_b_proj.weight"),
];
