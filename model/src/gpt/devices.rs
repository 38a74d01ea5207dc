//! Features that only some devices support.

use burn::tensor::Device;

use crate::{
    config::GptConfig,
    error::{Error, Result},
    ops,
};

/// Rejects features that `device` does not support.
pub(super) fn require_bodies(config: &GptConfig, device: &Device) -> Result<()> {
    let only_on_cpu = [
        ("experts", config.experts.is_some()),
        ("recurrent layers", config.recurrent.is_some()),
        ("gated attention", config.attention_gate),
        ("attention both ways", config.bidirectional),
        ("attention sinks", config.attention_sinks),
        ("clamped SwiGLU", config.clamped_swiglu.is_some()),
        ("latent attention", config.latent.is_some()),
        ("heads of several sizes", config.full_heads.is_some()),
        ("norms of values", config.value_norm),
        ("keys that are values", config.keys_as_values),
        ("keys that layers share", config.n_shared_kv_layers > 0),
        ("a factor for each block", config.layer_scale),
        ("per-layer embeddings", config.per_layer_inputs.is_some()),
        ("an encoder", config.is_encoder_decoder()),
        ("relative positions", config.positions.buckets().is_some()),
    ];
    match only_on_cpu.into_iter().find(|(_, has)| *has && !ops::is_on_cpu(device)) {
        Some((what, _)) => {
            let what = format!("must be the CPU for a model with {what}, got a GPU\nhint: run it with `--device cpu`");
            Err(Error::Param { name: "device", what })
        }
        None => Ok(()),
    }
}
