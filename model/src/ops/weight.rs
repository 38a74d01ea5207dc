//! A matrix of the model, stored as the device's kernels want it.

use std::{fmt, str::FromStr, sync::Arc};

use burn::{
    module::{Module, Param},
    tensor::{DType, Device, Tensor, TensorData},
};

use super::cpu::{self, Panels};
use crate::{
    error::Result,
    gpt::{read, to_f32},
};

/// How matrices are stored. Norms, biases and activations are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 4 bytes a value; the only one that trains.
    #[default]
    F32,
    /// 2 bytes a value: IEEE half precision.
    F16,
}

impl Dtype {
    fn burn(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            other => Err(format!("must be `f32` or `f16`, got `{other}`")),
        }
    }
}

/// A matrix `[d_out, d_in]`: what [`linear`](super::linear) multiplies by and [`embedding`](super::embedding) takes
/// rows of. Opaque: it is held in the form that the device's kernels want, and in no other.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "models hold few of them, and nearly always of one kind")]
pub enum Weight {
    /// As the file has it: trainable, and what GPUs compute with.
    #[doc(hidden)]
    Stored(StoredWeight),
    /// Laid out for the CPU's kernels; does not train.
    #[doc(hidden)]
    Packed(PackedWeight),
}

#[doc(hidden)]
#[derive(Module, Debug)]
pub struct StoredWeight {
    // Rows are contiguous along d_in, the direction that a decoding step sums over.
    values: Param<Tensor<2>>,
}

#[doc(hidden)]
#[derive(Module, Debug)]
pub struct PackedWeight {
    #[module(skip)]
    panels: Arc<Panels>,
}

impl Weight {
    /// Puts `data`, `[d_out, d_in]` in f32, on `device` in the form `dtype`.
    ///
    /// # Errors
    /// [`Error::Execution`] when `data` is not f32.
    pub fn new(data: TensorData, dtype: Dtype, device: &Device) -> Result<Self> {
        if !cpu::is_cpu(device) {
            let values = Tensor::from_data(data.convert_dtype(dtype.burn()), (device, dtype.burn()));
            return Ok(Self::Stored(StoredWeight { values: Param::from_tensor(values) }));
        }
        let [d_out, d_in] = data.shape().dims();
        let values = to_f32(data)?;
        let panels = match dtype {
            Dtype::F32 => Panels::f32(&values, d_out, d_in),
            Dtype::F16 => Panels::f16(&values, d_out, d_in),
        };
        Ok(Self::Packed(PackedWeight { panels: Arc::new(panels) }))
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Stored(stored) => stored.values.val().dims(),
            Self::Packed(packed) => packed.panels.dims(),
        }
    }

    /// How the values are stored.
    pub fn dtype(&self) -> Dtype {
        let is_f16 = match self {
            Self::Stored(stored) => stored.values.val().dtype() == DType::F16,
            Self::Packed(packed) => packed.panels.is_f16(),
        };
        if is_f16 { Dtype::F16 } else { Dtype::F32 }
    }

    /// Where the values are.
    pub fn device(&self) -> Device {
        match self {
            Self::Stored(stored) => stored.values.val().device(),
            Self::Packed(_) => Device::flex(),
        }
    }

    /// The matrix in row order, as f32, off the device.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) when the device cannot be read.
    pub fn read(&self) -> Result<TensorData> {
        match self {
            Self::Stored(stored) => read(stored.values.val().cast(DType::F32)),
            Self::Packed(packed) => {
                let [d_out, d_in] = packed.panels.dims();
                let values: Vec<f32> = (0..d_out).flat_map(|row| packed.panels.row(row)).collect();
                Ok(TensorData::new(values, [d_out, d_in]))
            }
        }
    }

    /// The form that the bodies of operations choose by.
    pub(super) fn form(&self) -> Form<'_> {
        match self {
            Self::Stored(stored) => Form::Stored(stored.values.val()),
            Self::Packed(packed) => Form::Packed(&packed.panels),
        }
    }
}

/// How a weight is held.
pub(super) enum Form<'a> {
    /// `[d_out, d_in]`, in the weight's dtype.
    Stored(Tensor<2>),
    /// For the CPU's kernels.
    Packed(&'a Panels),
}
