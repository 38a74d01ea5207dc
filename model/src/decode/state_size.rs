//! Sizes of the states of recurrent layers, from the configuration and the layout of the operations.

use crate::{
    config::{GatedDeltaNet, GptConfig, Mamba2, Recurrence},
    ops::{RecurrentHeads, ShortConv},
};

impl GptConfig {
    /// Bytes of one sequence's state over all recurrent layers; 0 if there are none.
    pub fn state_bytes(&self) -> usize {
        let of_layer = self.recurrent.as_ref().map_or(0, |of| of.recurrence.state_len(self.d_model));
        size_of::<f32>() * of_layer * self.n_recurrent_layers()
    }
}

impl Recurrence {
    /// Values of the convolution's part of a layer's state, which comes first.
    pub(crate) fn conv_state_len(&self, d_model: usize) -> usize {
        ShortConv::state_len(self.conv_channels(d_model), self.conv_kernel())
    }

    /// Values of a sequence's state in one layer.
    pub(crate) fn state_len(&self, d_model: usize) -> usize {
        let of_heads = match self {
            Self::GatedDelta(net) => net.heads().state_len(),
            Self::ShortConv(_) => 0,
            Self::Mamba2(mamba) => mamba.heads().state_len(),
        };
        self.conv_state_len(d_model) + of_heads
    }
}

impl GatedDeltaNet {
    pub(crate) fn heads(&self) -> RecurrentHeads {
        RecurrentHeads {
            n_k_heads: self.n_key_heads,
            n_v_heads: self.n_value_heads,
            k_dim: self.key_dim,
            v_dim: self.value_dim,
            is_tiled: self.tiled_heads,
        }
    }
}

impl Mamba2 {
    pub(crate) fn heads(&self) -> RecurrentHeads {
        RecurrentHeads {
            n_k_heads: self.n_groups,
            n_v_heads: self.n_heads,
            k_dim: self.state_dim,
            v_dim: self.head_dim,
            is_tiled: false,
        }
    }
}
