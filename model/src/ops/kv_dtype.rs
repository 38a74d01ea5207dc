//! The number formats of the KV cache.

use std::fmt;

use burn::tensor::{DType, Device};

use super::Dtype;
use crate::error::{Error, Result};

/// How the KV cache stores keys and values. All computation with them is in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvDtype {
    /// 4 bytes a value, as computed.
    #[default]
    F32,
    /// 2 bytes a value: IEEE half precision. Values out of range become the largest, 65504.
    F16,
}

impl KvDtype {
    /// Every dtype, with its name.
    pub const ALL: &'static [(&'static str, Self)] = &[("f32", Self::F32), ("f16", Self::F16)];

    /// The dtype that was asked for; by default f32 for models on `device` whose matrices are f32 or bf16 (which should
    /// give the results of f32), else f16.
    ///
    /// # Errors [`Error::Device`] if the device does not support the dtype.
    pub fn choose(asked: Option<Self>, weights: Dtype, device: &Device) -> Result<Self> {
        match asked {
            Some(asked) if !asked.is_for(device) => Err(Error::Device {
                name: crate::device::name(device),
                what: format!("does not support 16-bit numbers, which the KV cache dtype `{asked}` requires"),
                hint: "all devices support `f32`".to_owned(),
            }),
            Some(asked) => Ok(asked),
            None if !matches!(weights, Dtype::F32 | Dtype::Bf16) && Self::F16.is_for(device) => Ok(Self::F16),
            None => Ok(Self::F32),
        }
    }

    /// Bytes of a value.
    pub fn n_bytes(self) -> usize {
        self.of_tensors().size()
    }

    /// Whether `device` supports it.
    pub fn is_for(self, device: &Device) -> bool {
        self == Self::F32 || device.supports_dtype(self.of_tensors())
    }

    /// The dtype of a pool's tensor.
    pub(super) fn of_tensors(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, dtype)| dtype == self).map_or("", |(name, _)| name))
    }
}
