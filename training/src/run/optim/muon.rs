//! [Muon](https://kellerjordan.github.io/posts/muon/) for the matrices of a model's blocks.

use std::collections::BTreeMap;

use hearth_model::{config::GptConfig, gpt::linear_dims, ops::MuonStep};

use crate::{config::MuonSettings, run::schedule::Rates};

/// The matrices of a model's blocks by parameter path, each with the numbers of rows of its stacked matrices: gates of
/// heads, queries, keys and values; gate and up projection. Muon orthogonalizes single matrices.
pub fn matrices_of(config: &GptConfig) -> BTreeMap<String, Vec<usize>> {
    let (q, kv) = (config.q_width(), config.kv_width());
    let rows = |(path, [d_out, _]): (String, [usize; 2])| {
        let rows = match path.rsplit('.').next() {
            Some("qkv") if config.attention_gate => vec![q, q, kv, kv],
            Some("qkv") => vec![q, kv, kv],
            Some("kv_up") => vec![d_out - config.value_width(), config.value_width()],
            Some("up") if config.gated_mlp => vec![d_out / 2; 2],
            _ => vec![d_out],
        };
        (format!("{path}.weight"), rows)
    };
    linear_dims(config).into_iter().map(rows).collect()
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
