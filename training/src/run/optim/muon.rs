//! [Muon](https://kellerjordan.github.io/posts/muon/) for the matrices of a model's blocks.

use std::collections::BTreeMap;

use hearth_model::{config::GptConfig, ops::MuonStep};

use crate::{config::MuonSettings, run::schedule::Rates};

/// The matrices of a model's blocks by parameter path, each with the numbers of rows of its stacked matrices: queries,
/// keys and values; gate and up projection. Muon orthogonalizes single matrices.
pub fn matrices_of(config: &GptConfig) -> BTreeMap<String, Vec<usize>> {
    let (q, kv) = (config.q_width(), config.kv_width());
    let up = if config.gated_mlp { vec![config.d_ff; 2] } else { vec![config.d_ff] };
    let of_block = [
        ("attn.qkv", vec![q, kv, kv]),
        ("attn.out", vec![config.d_model]),
        ("mlp.up", up),
        ("mlp.down", vec![config.d_model]),
    ];
    let layers = (0..config.n_layers).flat_map(|layer| {
        of_block.iter().map(move |(name, rows)| (format!("blocks.{layer}.{name}.weight"), rows.clone()))
    });
    layers.collect()
}

/// The settings of an update at these rates.
pub(super) fn step(settings: &MuonSettings, rates: Rates) -> MuonStep {
    MuonStep {
        lr: settings.lr * rates.lr,
        momentum: rates.momentum,
        nesterov: settings.nesterov,
        weight_decay: settings.weight_decay * rates.decay,
        iterations: settings.iterations,
    }
}
