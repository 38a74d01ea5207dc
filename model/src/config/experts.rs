//! The routed experts of a model: sizes, and how a router chooses.

use serde::{Deserialize, Serialize};

use super::{
    GptConfig, NormPosition,
    validate::{require, require_layers},
};
use crate::error::Result;

/// Maximum number of experts over all layers: several times as many as the largest models have.
const MAX_EXPERTS: usize = 1 << 17;

/// Routed experts in place of one MLP: a router chooses a few for each row, and their outputs are summed with its weights
/// ([Shazeer et al. 2017](https://arxiv.org/abs/1701.06538); [Switch Transformers](https://arxiv.org/abs/2101.03961)).
///
/// Experts have the activation and the gate of the model's MLP, and its biases unless they are [`unbiased`](Self::unbiased).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts that a row goes through.
    pub n_active: usize,
    /// Width inside an expert.
    pub d_ff: usize,
    /// How the router's outputs become scores.
    pub scores: RouterScores,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalized: bool,
    /// Multiplier of the weights.
    pub weight_multiplier: f64,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Whether a bias is added to the scores for the choice alone, not to the weights ([auxiliary-loss-free
    /// balancing](https://arxiv.org/abs/2408.15664)). It does not learn by gradients.
    pub selection_bias: bool,
    /// Groups of experts; a row chooses only from some groups.
    pub groups: Option<ExpertGroups>,
    /// Hidden width of the shared expert, which every row uses besides the chosen ones; 0 without one
    /// ([DeepSeekMoE](https://arxiv.org/abs/2401.06066), 3.2).
    pub shared_d_ff: usize,
    /// Whether the shared expert's output is multiplied by a sigmoid of the row.
    pub shared_gate: bool,
    /// The layers, counted from 0, that have an MLP of the model's [`d_ff`](GptConfig::d_ff) instead. Ascending.
    pub dense_layers: Vec<usize>,
    /// Weight of the load-balancing loss in pretraining, see
    /// [`RouterLossWeights`](crate::gpt::RouterLossWeights::balance).
    #[serde(default)]
    pub balance_loss: f64,
    /// Whether rows also go through the layer's MLP, beside the experts. The MLP and the experts have separate norms,
    /// before and after; the router has one too, and each expert's output has a learned factor (Gemma 4).
    #[serde(default)]
    pub beside_mlp: bool,
    /// Width of the latent that the chosen experts read and write, if rows are projected to it before the experts and
    /// back after them; 0: the width of the residual stream. The router and the shared expert read the rows themselves.
    #[serde(default)]
    pub latent_width: usize,
    /// Whether routed experts have no biases, also where MLPs and the shared expert have some.
    #[serde(default)]
    pub unbiased: bool,
}

/// How a router's outputs become scores, one per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterScores {
    /// All together: probabilities.
    Softmax,
    /// Each output alone.
    Sigmoid,
}

/// A choice of groups before the choice of experts ([DeepSeek-V2](https://arxiv.org/abs/2405.04434), 2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroups {
    /// Groups of equal size.
    pub n_groups: usize,
    /// Groups that are considered.
    pub n_active: usize,
    /// A group's score is the sum of this many of its best scores.
    pub n_best: usize,
}

impl GptConfig {
    /// The experts of `layer`, counted from 0, if it has them.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        let experts = self.experts.as_ref().filter(|experts| experts.dense_layers.binary_search(&layer).is_err());
        experts.filter(|_| self.has_mlp(layer))
    }
}

impl Experts {
    /// The usual options: weights from the softmax of the chosen scores, divided by their sum, and nothing else.
    pub fn plain(n_experts: usize, n_active: usize, d_ff: usize) -> Self {
        Self {
            n_experts,
            n_active,
            d_ff,
            scores: RouterScores::Softmax,
            normalized: true,
            weight_multiplier: 1.0,
            router_bias: false,
            selection_bias: false,
            groups: None,
            shared_d_ff: 0,
            shared_gate: false,
            dense_layers: Vec::new(),
            balance_loss: 0.0,
            beside_mlp: false,
            latent_width: 0,
            unbiased: false,
        }
    }

    /// Checks the experts of a model with this configuration.
    pub(super) fn validate(&self, config: &GptConfig) -> Result<()> {
        let n_layers = config.n_layers;
        let has_norms = config.norm_position == NormPosition::Sandwich && config.norm_weight;
        require("experts.beside_mlp", !self.beside_mlp || (has_norms && config.norm_weight_offset == 0.0), || {
            "must be false unless norm_position is sandwich, norm_weight is true and norm_weight_offset is 0".to_owned()
        })?;
        let Self {
            n_experts, n_active, d_ff, weight_multiplier, groups, shared_d_ff, shared_gate, latent_width, ..
        } = *self;
        let most = MAX_EXPERTS / n_layers.max(1);
        require("experts.n_experts", (1..=most).contains(&n_experts), || {
            format!("must be in 1..={most} with n_layers = {n_layers}, got {n_experts}")
        })?;
        require("experts.n_active", (1..=n_experts).contains(&n_active), || {
            format!("must be in 1..=n_experts = {n_experts}, got {n_active}")
        })?;
        require("experts.d_ff", (1..=1 << 28).contains(&d_ff), || format!("must be in 1..=2^28, got {d_ff}"))?;
        require("experts.shared_d_ff", shared_d_ff <= 1 << 28, || format!("must be at most 2^28, got {shared_d_ff}"))?;
        require("experts.shared_gate", !shared_gate || shared_d_ff > 0, || {
            "must be false with shared_d_ff = 0".to_owned()
        })?;
        let holds = weight_multiplier > 0.0 && (weight_multiplier as f32).is_normal();
        require("experts.weight_multiplier", holds, || {
            format!("must be positive and within the range of f32, got {weight_multiplier}")
        })?;
        if let Some(ExpertGroups { n_groups, n_active: of_groups, n_best }) = groups {
            let divides = n_groups > 0 && n_experts.is_multiple_of(n_groups);
            require("experts.groups.n_groups", divides, || {
                format!("must divide n_experts = {n_experts}, got {n_groups}")
            })?;
            let in_group = n_experts / n_groups;
            require("experts.groups.n_active", (1..=n_groups).contains(&of_groups), || {
                format!("must be in 1..=n_groups = {n_groups}, got {of_groups}")
            })?;
            require("experts.groups.n_active", of_groups * in_group >= n_active, || {
                format!("must leave {n_active} experts to choose from, got {of_groups} groups of {in_group}")
            })?;
            require("experts.groups.n_best", (1..=in_group).contains(&n_best), || {
                format!("must be in 1..={in_group}, the size of a group, got {n_best}")
            })?;
        }
        let weight = self.balance_loss;
        require("experts.balance_loss", weight.is_finite() && weight >= 0.0, || {
            format!("must be finite and not negative, got {weight}")
        })?;
        let ascending = self.dense_layers.is_sorted_by(|a, b| a < b);
        require(
            "experts.dense_layers",
            ascending && self.dense_layers.last().is_none_or(|&last| last < n_layers),
            || format!("must be ascending and below n_layers = {n_layers}"),
        )?;
        require("experts.unbiased", !self.unbiased || config.mlp_bias, || {
            "must be false without mlp_bias, as there are no biases then".to_owned()
        })?;
        require("experts.latent_width", latent_width <= 1 << 28, || {
            format!("must be at most 2^28, got {latent_width}")
        })?;
        require_layers("experts.dense_layers", &self.dense_layers, n_layers)
    }
}
