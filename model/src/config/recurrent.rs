//! Which layers of a model are recurrent, and their sizes.

use serde::{Deserialize, Serialize};

use super::{
    GptConfig,
    validate::{require, require_layers},
};
use crate::error::Result;

/// Recurrent layers in place of attention in most layers: a sequence has a state of constant size instead of keys and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recurrent {
    /// The kind of recurrence, with its sizes.
    pub recurrence: Recurrence,
    /// The layers, counted from 0, that attend instead. Ascending.
    pub attention_layers: Vec<usize>,
}

/// The kind of recurrence, with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurrence {
    /// A gated delta net ([Yang et al., 2024](https://arxiv.org/abs/2412.06464)), as in Qwen 3.5.
    GatedDelta(GatedDeltaNet),
    /// A short convolution between two gates ([LFM2](https://arxiv.org/abs/2511.23404), 2).
    ShortConv(GatedConv),
    /// A state space with a scalar decay for each head ([Mamba-2](https://arxiv.org/abs/2405.21060)), as in Granite 4 H.
    Mamba2(Mamba2),
}

/// Sizes of a gated delta net: a short convolution over queries, keys and values, the gated delta rule, and a gated norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDeltaNet {
    /// Heads of queries and of keys; each serves `n_value_heads / n_key_heads` value heads, consecutive ones unless
    /// [`tiled_heads`](Self::tiled_heads).
    pub n_key_heads: usize,
    /// Heads of values.
    pub n_value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Rows that the convolution sees, the row itself among them.
    pub conv_kernel: usize,
    /// Whether key head `h` serves the value heads `h`, `h + n_key_heads` and so on: the order of GGUF files.
    #[serde(default)]
    pub tiled_heads: bool,
}

/// Sizes of a gated short convolution, which is as wide as the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedConv {
    /// Rows that the convolution sees, the row itself among them.
    pub kernel: usize,
    /// Biases on both projections and the convolution.
    pub bias: bool,
}

/// Sizes of a Mamba-2 layer: a short convolution over values, keys and queries (in the paper `x`, `B` and `C`), the state space,
/// and a gated norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// Number of heads of keys and of queries; each serves `n_heads / n_groups` consecutive heads. The norm has the
    /// same number of groups.
    pub n_groups: usize,
    /// Heads of values.
    pub n_heads: usize,
    /// Width of a value.
    pub head_dim: usize,
    /// Width of a key and of a query.
    pub state_dim: usize,
    /// Rows that the convolution sees, the row itself among them.
    pub conv_kernel: usize,
    /// Whether the convolution has biases.
    pub conv_bias: bool,
    /// Whether both projections have biases.
    pub bias: bool,
    /// The shortest time step.
    pub min_time_step: f64,
    /// The longest time step; `None`: no limit.
    pub max_time_step: Option<f64>,
}

impl GptConfig {
    /// The recurrence of `layer`, counted from 0; `None` if the layer attends.
    pub fn recurrence_of(&self, layer: usize) -> Option<&Recurrence> {
        let recurrent = self.recurrent.as_ref().filter(|of| of.attention_layers.binary_search(&layer).is_err());
        recurrent.filter(|_| self.has_mixer(layer)).map(|recurrent| &recurrent.recurrence)
    }

    /// Whether `layer`, counted from 0, attends, and so has keys and values.
    pub fn attends(&self, layer: usize) -> bool {
        self.has_mixer(layer) && self.recurrence_of(layer).is_none()
    }

    /// Number of layers that attend, and so have keys and values.
    pub fn n_attention_layers(&self) -> usize {
        let n_mixers = self.n_mixers();
        self.recurrent.as_ref().map_or(n_mixers, |recurrent| recurrent.attention_layers.len().min(n_mixers))
    }

    /// Number of recurrent layers.
    pub fn n_recurrent_layers(&self) -> usize {
        self.n_mixers() - self.n_attention_layers()
    }

    /// Number of layers that attend or are recurrent.
    pub(crate) fn n_mixers(&self) -> usize {
        self.n_layers.saturating_sub(self.layers_without_mixer.len())
    }
}

impl Recurrence {
    /// Channels of the convolution in a model of width `d_model`.
    pub(crate) fn conv_channels(&self, d_model: usize) -> usize {
        match self {
            Self::GatedDelta(net) => net.qkv_width(),
            Self::ShortConv(_) => d_model,
            Self::Mamba2(mamba) => mamba.conv_width(),
        }
    }

    /// Rows that the convolution sees.
    pub(crate) fn conv_kernel(&self) -> usize {
        match self {
            Self::GatedDelta(net) => net.conv_kernel,
            Self::ShortConv(conv) => conv.kernel,
            Self::Mamba2(mamba) => mamba.conv_kernel,
        }
    }
}

impl GatedDeltaNet {
    /// Width of all values.
    pub(crate) fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Width of queries, keys and values side by side.
    pub(crate) fn qkv_width(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.value_width()
    }
}

impl Mamba2 {
    /// Width of all values.
    pub(crate) fn value_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of values, keys and queries side by side.
    pub(crate) fn conv_width(&self) -> usize {
        self.value_width() + 2 * self.n_groups * self.state_dim
    }

    /// Width of the first projection: gates, the convolution's input, and time steps.
    pub(crate) fn input_width(&self) -> usize {
        self.value_width() + self.conv_width() + self.n_heads
    }

    /// The shortest and the longest time step.
    pub(crate) fn time_steps(&self) -> [f64; 2] {
        [self.min_time_step, self.max_time_step.unwrap_or(f64::INFINITY)]
    }
}

impl Recurrent {
    /// Checks the recurrent layers of a model with `n_layers` layers.
    pub(super) fn validate(&self, n_layers: usize) -> Result<()> {
        require_layers("recurrent.attention_layers", &self.attention_layers, n_layers)?;
        let within = |field: &str, size: usize, most: usize| {
            require(format!("recurrent.recurrence.{field}"), (1..=most).contains(&size), || {
                format!("must be in 1..={most}, got {size}")
            })
        };
        match self.recurrence {
            Recurrence::GatedDelta(net) => {
                let GatedDeltaNet { n_key_heads, n_value_heads, key_dim, value_dim, conv_kernel, .. } = net;
                // The upper bounds keep the size of a state far from overflow.
                for (field, size, most) in [
                    ("gated_delta.n_key_heads", n_key_heads, MAX_HEADS),
                    ("gated_delta.n_value_heads", n_value_heads, MAX_HEADS),
                    ("gated_delta.key_dim", key_dim, MAX_DIM),
                    ("gated_delta.value_dim", value_dim, MAX_DIM),
                    ("gated_delta.conv_kernel", conv_kernel, MAX_KERNEL),
                ] {
                    within(field, size, most)?;
                }
                require(
                    "recurrent.recurrence.gated_delta.n_value_heads",
                    n_value_heads.is_multiple_of(n_key_heads),
                    || format!("must be a multiple of n_key_heads = {n_key_heads}, got {n_value_heads}"),
                )
            }
            Recurrence::ShortConv(GatedConv { kernel, .. }) => within("short_conv.kernel", kernel, MAX_KERNEL),
            Recurrence::Mamba2(mamba) => {
                let Mamba2 { n_groups, n_heads, head_dim, state_dim, conv_kernel, .. } = mamba;
                for (field, size, most) in [
                    ("mamba2.n_groups", n_groups, MAX_HEADS),
                    ("mamba2.n_heads", n_heads, MAX_HEADS),
                    ("mamba2.head_dim", head_dim, MAX_DIM),
                    ("mamba2.state_dim", state_dim, MAX_DIM),
                    ("mamba2.conv_kernel", conv_kernel, MAX_KERNEL),
                ] {
                    within(field, size, most)?;
                }
                require("recurrent.recurrence.mamba2.n_heads", n_heads.is_multiple_of(n_groups), || {
                    format!("must be a multiple of n_groups = {n_groups}, got {n_heads}")
                })?;
                let [least, most] = mamba.time_steps();
                require("recurrent.recurrence.mamba2.min_time_step", least.is_finite() && least >= 0.0, || {
                    format!("must be finite and not negative, got {least}")
                })?;
                require("recurrent.recurrence.mamba2.max_time_step", most > least, || {
                    format!("must be above min_time_step = {least}, got {most}")
                })
            }
        }
    }
}

/// Far more than any model has.
const MAX_HEADS: usize = 1 << 14;
const MAX_DIM: usize = 1 << 14;
const MAX_KERNEL: usize = 1 << 10;
