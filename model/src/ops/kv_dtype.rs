//! How a cache holds keys and values.

use std::fmt;

use burn::tensor::{DType, Device};

use super::Dtype;
use crate::error::{Error, Result};

/// How keys and values are held in a cache. All that is computed from them is f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvDtype {
    /// 4 bytes a value, as they were computed.
    #[default]
    F32,
    /// 2 bytes a value: IEEE half precision. What is beyond its range becomes the largest number that it has, 65504.
    F16,
}

impl KvDtype {
    /// Every dtype, with its name.
    pub const ALL: &'static [(&'static str, Self)] = &[("f32", Self::F32), ("f16", Self::F16)];

    /// What was asked for, or where nothing was, what suits a model on `device` with matrices held as `weights`: f32 beside
    /// f32, and beside bf16, which is how models are held that were stored so and is to give what f32 gives; else f16.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has no such numbers.
    pub fn choose(asked: Option<Self>, weights: Dtype, device: &Device) -> Result<Self> {
        match asked {
            Some(asked) if !asked.is_for(device) => Err(Error::Device {
                name: crate::device::name(device),
                what: format!("has no numbers of 16 bits, and the KV cache was asked to be `{asked}`"),
                hint: "`f32` goes everywhere".to_owned(),
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

    /// Whether `device` has such numbers.
    pub fn is_for(self, device: &Device) -> bool {
        self == Self::F32 || device.supports_dtype(self.of_tensors())
    }

    /// Of a pool's tensor.
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
