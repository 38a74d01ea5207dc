//! Sizes that differ between layers: attention's heads, the MLP's width, and per-layer inputs.

use serde::{Deserialize, Serialize};

use super::{GptConfig, QkNormSpan, validate::require};
use crate::error::Result;

/// Sizes of the heads of keys and values; queries have heads of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadSizes {
    /// See [`GptConfig::n_kv_heads`].
    pub n_kv_heads: usize,
    /// See [`GptConfig::head_dim`].
    pub head_dim: usize,
}

/// Per-layer inputs: rows that each block reads besides the residual stream. They are a token's row of a second
/// embedding plus a projection of its usual embedding ([Gemma 3n](https://ai.google.dev/gemma/docs/gemma-3n)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerInputs {
    /// Rows of the second embedding, at least as many as the usual one has.
    pub vocab_size: usize,
    /// Width of a row for one block.
    pub width: usize,
}

impl HeadSizes {
    fn width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

impl GptConfig {
    /// The heads of layers with the window, or without it.
    pub(crate) fn heads_with(&self, is_windowed: bool) -> HeadSizes {
        let usual = HeadSizes { n_kv_heads: self.n_kv_heads, head_dim: self.head_dim };
        self.full_heads.filter(|_| !is_windowed).unwrap_or(usual)
    }

    /// The heads of `layer`, counted from 0.
    pub fn heads_of(&self, layer: usize) -> HeadSizes {
        self.heads_with(self.window_of(layer).is_some())
    }

    /// Width of all query heads together, in the layer where it is largest.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim.max(self.heads_with(false).head_dim)
    }

    /// Width of all key heads together (or of all value heads), in the layer where it is largest.
    pub fn kv_width(&self) -> usize {
        let of_kind = |is_windowed| self.heads_with(is_windowed).width();
        of_kind(true).max(of_kind(false))
    }

    /// Width of all query heads of `layer` together.
    pub fn q_width_of(&self, layer: usize) -> usize {
        self.n_heads * self.heads_of(layer).head_dim
    }

    /// Width of the gates of all query heads of `layer`: 0 without gates.
    pub fn gate_width_of(&self, layer: usize) -> usize {
        if self.attention_gate { self.q_width_of(layer) } else { 0 }
    }

    /// Width of all key heads of `layer` together, or of all value heads.
    pub fn kv_width_of(&self, layer: usize) -> usize {
        self.heads_of(layer).width()
    }

    /// Widths of the projections of `layer` to keys and to values; 0 for a missing projection.
    pub fn projected_kv_widths(&self, layer: usize) -> [usize; 2] {
        let width = self.kv_width_of(layer);
        match () {
            () if self.kv_layer_of(layer) != layer => [0, 0],
            () if self.has_keys_as_values(layer) => [width, 0],
            () => [width, width],
        }
    }

    /// Whether the values of `layer` are its keys before norm and rotation.
    pub fn has_keys_as_values(&self, layer: usize) -> bool {
        self.keys_as_values && self.window_of(layer).is_none()
    }

    /// The layer whose keys and values `layer` attends to: itself, unless it shares them.
    pub fn kv_layer_of(&self, layer: usize) -> usize {
        let n_own = self.n_layers.saturating_sub(self.n_shared_kv_layers);
        if layer < n_own {
            return layer;
        }
        let of_kind = |other: &usize| self.window_of(*other).is_some() == self.window_of(layer).is_some();
        (0..n_own).rev().find(of_kind).unwrap_or(layer)
    }

    /// Whether later layers attend to the keys and values of `layer`.
    pub(crate) fn lends_keys(&self, layer: usize) -> bool {
        let n_own = self.n_layers.saturating_sub(self.n_shared_kv_layers);
        layer < n_own && (n_own..self.n_layers).any(|other| self.kv_layer_of(other) == layer)
    }

    /// Width inside the MLP of `layer`.
    pub fn d_ff_of(&self, layer: usize) -> usize {
        let shares = layer >= self.n_layers.saturating_sub(self.n_shared_kv_layers);
        if self.wide_shared_mlp && shares { 2 * self.d_ff } else { self.d_ff }
    }

    /// Checks the sizes of layers with and without the window, and what layers share.
    pub(super) fn validate_heads(&self) -> Result<()> {
        require("full_heads", self.full_heads.is_none() || !self.full_layers.is_empty(), || {
            "must be absent without full_layers".to_owned()
        })?;
        if let Some(HeadSizes { n_kv_heads, head_dim }) = self.full_heads {
            for (field, size) in [("full_heads.n_kv_heads", n_kv_heads), ("full_heads.head_dim", head_dim)] {
                require(field, (1..=1 << 28).contains(&size), || format!("must be in 1..=2^28, got {size}"))?;
            }
            require("full_heads.n_kv_heads", self.n_heads.is_multiple_of(n_kv_heads), || {
                format!("must divide n_heads = {}, got {n_kv_heads}", self.n_heads)
            })?;
        }
        let n_shared = self.n_shared_kv_layers;
        require("n_shared_kv_layers", n_shared < self.n_layers, || {
            format!("must be below n_layers = {}, got {n_shared}", self.n_layers)
        })?;
        let n_own = self.n_layers - n_shared;
        let has_own = |windowed: bool| (0..n_own).any(|layer| self.window_of(layer).is_some() == windowed);
        let have_lenders = (n_own..self.n_layers).all(|layer| has_own(self.window_of(layer).is_some()));
        require("n_shared_kv_layers", have_lenders, || {
            format!("must leave a layer with the window and one without it, as the last {n_shared} layers have them")
        })?;
        if n_shared > 0 {
            let all_attend = self.recurrent.is_none() && self.layers_without_mixer.is_empty();
            require("n_shared_kv_layers", all_attend, || {
                "must be 0 with recurrent layers and with layers_without_mixer".to_owned()
            })?;
            require("n_shared_kv_layers", !self.attention_sinks, || "must be 0 with attention_sinks".to_owned())?;
            let norms = !self.qk_norm || (self.qk_norm_span == QkNormSpan::Head && !self.qk_norm_after_rope);
            require("n_shared_kv_layers", norms, || {
                "must be 0 with qk_norm_after_rope, and with qk_norm_span other than head".to_owned()
            })?;
        }
        if let Some(PerLayerInputs { vocab_size, width }) = self.per_layer_inputs {
            require("per_layer_inputs.width", (1..=1 << 16).contains(&width), || {
                format!("must be in 1..=2^16, got {width}")
            })?;
            require("per_layer_inputs.vocab_size", (self.vocab_size..=1 << 28).contains(&vocab_size), || {
                format!("must be in {}..=2^28, from vocab_size on, got {vocab_size}", self.vocab_size)
            })?;
        }
        require("wide_shared_mlp", n_shared > 0 || !self.wide_shared_mlp, || {
            "must be false with n_shared_kv_layers = 0".to_owned()
        })
    }
}
