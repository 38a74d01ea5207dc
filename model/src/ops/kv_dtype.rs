//! The number formats of the KV cache.

use std::fmt;

use burn::tensor::{DType, Device, Tensor};

use super::{Dtype, Placement, cpu};
use crate::{
    config::{GptConfig, HeadSizes},
    error::{Error, Result},
};

/// How the KV cache stores keys and values. All computation with them is in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvDtype {
    /// 4 bytes a value, as computed.
    #[default]
    F32,
    /// 2 bytes a value: IEEE half precision. Values out of range become the largest, 65504.
    F16,
    /// 1 byte per value: integers from -127 to 127, multiplied by an f32 for each token and head. On the CPU only.
    Q8,
}

impl KvDtype {
    /// Every dtype, with its name.
    pub const ALL: &'static [(&'static str, Self)] = &[("f32", Self::F32), ("f16", Self::F16), ("q8", Self::Q8)];

    /// The requested dtype. Default: f32 for models on `device` whose matrices are f32 or bf16 (which should give the
    /// results of f32), else f16.
    ///
    /// # Errors
    /// [`Error::Device`] if the device does not support the dtype.
    pub fn choose(asked: Option<Self>, weights: Dtype, device: &Device) -> Result<Self> {
        match asked {
            Some(asked) if !asked.is_for(device) => {
                let supported = Self::ALL.iter().filter(|(_, dtype)| dtype.is_for(device));
                let names: Vec<String> = supported.map(|(name, _)| format!("`{name}`")).collect();
                Err(Error::Device {
                    name: crate::system::device::name(device),
                    what: format!("does not support the KV cache dtype `{asked}`"),
                    hint: format!("this device supports {}", names.join(", ")),
                })
            }
            Some(asked) => Ok(asked),
            None if !matches!(weights, Dtype::F32 | Dtype::Bf16) && Self::F16.is_for(device) => Ok(Self::F16),
            None => Ok(Self::F32),
        }
    }

    /// Bytes per token of keys and values, over all layers that have their own, for the model of `config`.
    pub fn bytes_per_token(self, config: &GptConfig) -> usize {
        (0..config.n_layers).map(|layer| self.bytes_in_layer(config, layer)).sum()
    }

    /// Bytes per token of keys and values in `layer`; 0 if the layer has none of its own.
    pub(crate) fn bytes_in_layer(self, config: &GptConfig, layer: usize) -> usize {
        if !config.attends(layer) || config.kv_layer_of(layer) != layer {
            return 0;
        }
        let HeadSizes { n_kv_heads, head_dim } = config.heads_of(layer);
        2 * self.row_len([n_kv_heads, config.padded_head_dim(head_dim)]) * self.of_tensors().size()
    }

    /// Whether `device` supports it.
    pub fn is_for(self, device: &Device) -> bool {
        match self {
            Self::F32 => true,
            Self::F16 => device.supports_dtype(self.of_tensors()),
            Self::Q8 => Placement::of(device) == Placement::Cpu,
        }
    }

    /// The dtype of a pool's tensor. Burn has no float tensors with 8-bit elements, so a pool of 8-bit numbers is a
    /// bf16 tensor with two numbers in each element; bf16 itself is not a dtype of the cache.
    pub(super) fn of_tensors(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Q8 => DType::BF16,
        }
    }

    /// The dtype of a pool.
    pub(super) fn of(pool: &Tensor<2>) -> Self {
        match pool.dtype() {
            DType::F16 => Self::F16,
            DType::BF16 => Self::Q8,
            _ => Self::F32,
        }
    }

    /// Elements of a token's row in the tensor of a pool, for `heads`, `[n_kv_heads, head_dim]`.
    pub(super) fn row_len(self, heads: [usize; 2]) -> usize {
        match self {
            Self::F32 | Self::F16 => heads.iter().product(),
            Self::Q8 => cpu::q8_row_len(heads) / 2,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, dtype)| dtype == self).map_or("", |(name, _)| name))
    }
}
