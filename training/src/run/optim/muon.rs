//! [Muon](https://kellerjordan.github.io/posts/muon/) for the matrices of a model's blocks.

use std::collections::BTreeMap;

use hearth_model::{
    config::GptConfig,
    gpt::{linear_dims, prediction_head::prediction_linear_dims},
    ops::MuonStep,
};

use crate::{config::MuonSettings, run::schedule::Rates};

/// The matrices of a model's blocks by parameter path, each with the numbers of rows of its stacked matrices: gates of
/// heads, queries, keys and values; gate and up projection. Muon orthogonalizes single matrices.
pub fn matrices_of(config: &GptConfig) -> BTreeMap<String, Vec<usize>> {
    let rows = |(path, [d_out, _]): (String, [usize; 2])| {
        let layer = path.split('.').nth(1).and_then(|layer| layer.parse().ok()).unwrap_or_default();
        let of_attention = || {
            let [k, v] = config.projected_kv_widths(layer);
            [config.gate_width_of(layer), config.q_width_of(layer), k, v]
        };
        let rows = match path.rsplit('.').next() {
            // Some layers do not have all of them.
            Some("qkv") => of_attention().into_iter().filter(|n_rows| *n_rows > 0).collect(),
            Some("kv_up") => vec![d_out - config.value_width_of(layer), config.value_width_of(layer)],
            Some("kv") => vec![d_out / 2; 2],
            Some("up") if config.gated_mlp => vec![d_out / 2; 2],
            _ => vec![d_out],
        };
        (format!("{path}.weight"), rows)
    };
    linear_dims(config).into_iter().map(rows).collect()
}

/// As [`matrices_of`], for a model with a prediction head that trains beside it.
pub fn matrices_with_head(config: &GptConfig) -> BTreeMap<String, Vec<usize>> {
    let mut matrices = matrices_of(config);
    let of_layer = matrices_of(&config.of_prediction_head());
    for (path, [d_out, _]) in prediction_linear_dims(config) {
        let path = format!("{path}.weight");
        let within = path.split_once('.').map_or(path.as_str(), |(_, within)| within);
        let rows = of_layer.get(within).cloned().unwrap_or_else(|| vec![d_out]);
        matrices.insert(path, rows);
    }
    matrices
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
