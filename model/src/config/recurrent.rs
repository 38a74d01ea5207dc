//! The recurrent layers of a model: which they are, and their sizes.

use serde::{Deserialize, Serialize};

use super::{GptConfig, validate::require};
use crate::error::Result;

/// Recurrent layers in place of attention in most layers: a sequence has a state of constant size instead of keys and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recurrent {
    /// What a recurrent layer computes.
    pub recurrence: Recurrence,
    /// The layers, counted from 0, that attend instead. Ascending.
    pub attention_layers: Vec<usize>,
}

/// What a recurrent layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurrence {
    /// A gated delta net ([Yang et al., 2024](https://arxiv.org/abs/2412.06464)), as in Qwen 3.5.
    GatedDelta(GatedDeltaNet),
    /// A short convolution between two gates ([LFM2](https://arxiv.org/abs/2511.23404), 2).
    ShortConv(GatedConv),
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

impl GptConfig {
    /// What `layer`, counted from 0, computes in place of attention, if it does not attend.
    pub fn recurrence_of(&self, layer: usize) -> Option<&Recurrence> {
        let recurrent = self.recurrent.as_ref().filter(|of| of.attention_layers.binary_search(&layer).is_err());
        recurrent.map(|recurrent| &recurrent.recurrence)
    }

    /// Number of layers that attend, and so have keys and values.
    pub fn n_attention_layers(&self) -> usize {
        self.recurrent.as_ref().map_or(self.n_layers, |recurrent| recurrent.attention_layers.len().min(self.n_layers))
    }
}

impl Recurrence {
    /// Channels of the convolution in a model of width `d_model`.
    pub(crate) fn conv_channels(&self, d_model: usize) -> usize {
        match self {
            Self::GatedDelta(net) => net.qkv_width(),
            Self::ShortConv(_) => d_model,
        }
    }

    /// Rows that the convolution sees.
    pub(crate) fn conv_kernel(&self) -> usize {
        match self {
            Self::GatedDelta(net) => net.conv_kernel,
            Self::ShortConv(conv) => conv.kernel,
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

impl Recurrent {
    /// Checks the recurrent layers of a model with `n_layers` layers.
    pub(super) fn validate(&self, n_layers: usize) -> Result<()> {
        let ascending = self.attention_layers.is_sorted_by(|a, b| a < b);
        require(
            "recurrent.attention_layers",
            ascending && self.attention_layers.last().is_none_or(|&last| last < n_layers),
            || format!("must be ascending and below n_layers = {n_layers}"),
        )?;
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
        }
    }
}

/// Far more than any model has.
const MAX_HEADS: usize = 1 << 14;
const MAX_DIM: usize = 1 << 14;
const MAX_KERNEL: usize = 1 << 10;
