//! A matrix of the model, stored as the device's kernels want it.

use std::{fmt, sync::Arc};

use burn::{
    module::{Module, Param},
    tensor::{DType, Device, Tensor, TensorData},
};

use super::{
    QuantizedMatrix,
    cpu::{self, Panels},
};
use crate::{
    error::{Error, Result},
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
    /// 8 bits a value in blocks of 32 with a scale: 8.5 bits in all. On the CPU.
    Q8,
    /// 4 bits a value in blocks of 32 with a scale: 4.5 bits in all. On the CPU. Embeddings keep 8 bits.
    Q4,
}

impl Dtype {
    /// Every dtype, with its name.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("f32", Self::F32), ("f16", Self::F16), ("q8", Self::Q8), ("q4", Self::Q4)];

    /// Whether values are rounded to whole numbers in blocks with a scale.
    pub fn is_quantized(self) -> bool {
        matches!(self, Self::Q8 | Self::Q4)
    }

    /// The dtype called `name`, if it is one of those that `is_allowed` says.
    ///
    /// # Errors
    /// The names that are allowed.
    pub fn parse(name: &str, is_allowed: impl Fn(Self) -> bool) -> Result<Self, String> {
        let mut allowed = Self::ALL.iter().filter(|(_, dtype)| is_allowed(*dtype));
        allowed.clone().find(|(allowed, _)| *allowed == name).map(|(_, dtype)| *dtype).ok_or_else(|| {
            let names: Vec<_> = allowed.by_ref().map(|(name, _)| format!("`{name}`")).collect();
            format!("must be {}, got `{name}`", names.join(" or "))
        })
    }

    /// How embeddings are held in a model of this dtype. They are where rounding hurts most (they are `lm_head` too
    /// where the two are tied), so they keep 8 bits.
    pub fn for_embeddings(self) -> Self {
        if self == Self::Q4 { Self::Q8 } else { self }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, dtype)| dtype == self).map_or("", |(name, _)| name))
    }
}

/// A matrix `[d_out, d_in]`: what [`linear`](super::linear) multiplies by and [`embedding`](super::embedding) takes
/// rows of. Opaque: it is held in the form that the device's kernels want, and in no other.
#[derive(Module, Debug)]
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
    /// [`Error::Execution`] when `data` is not f32; [`Error::Param`] when the device does not compute with `dtype`.
    pub fn new(data: TensorData, dtype: Dtype, device: &Device) -> Result<Self> {
        if cpu::is_cpu(device) {
            let dims = data.shape().dims();
            let panels = Panels::new(&to_f32(data)?, dims, dtype);
            return Ok(Self::Packed(PackedWeight { panels: Arc::new(panels) }));
        }
        let stored = match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::Q8 | Dtype::Q4 => return Err(not_on_this_device(dtype)),
        };
        let values = Tensor::from_data(data.convert_dtype(stored), (device, stored));
        Ok(Self::Stored(StoredWeight { values: Param::from_tensor(values) }))
    }

    /// Puts a matrix that is rounded already on `device`, with the very same numbers.
    ///
    /// # Errors
    /// [`Error::Param`] when the device does not compute with its dtype.
    pub fn from_quantized(matrix: &QuantizedMatrix, device: &Device) -> Result<Self> {
        if cpu::is_cpu(device) {
            return Ok(Self::Packed(PackedWeight { panels: Arc::new(Panels::from_quantized(matrix)) }));
        }
        Err(not_on_this_device(matrix.dtype()))
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
        match self {
            Self::Stored(stored) if stored.values.val().dtype() == DType::F16 => Dtype::F16,
            Self::Stored(_) => Dtype::F32,
            Self::Packed(packed) => packed.panels.dtype(),
        }
    }

    /// Bytes that the values take, scales and padding included.
    pub fn n_bytes(&self) -> usize {
        match self {
            Self::Stored(stored) => {
                let values = stored.values.val();
                values.shape().num_elements() * values.dtype().size()
            }
            Self::Packed(packed) => packed.panels.n_bytes(),
        }
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

    /// The rounded numbers as they are, off the device; nothing for a weight that is not rounded.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) when the device cannot be read.
    pub fn read_quantized(&self) -> Result<Option<QuantizedMatrix>> {
        let Self::Packed(packed) = self else { return Ok(None) };
        let (dims, dtype) = (packed.panels.dims(), packed.panels.dtype());
        if !dtype.is_quantized() {
            return Ok(None);
        }
        let blocks = (0..dims[0]).filter_map(|row| packed.panels.quantized_row(row)).flatten().collect();
        QuantizedMatrix::new(dims, dtype, blocks).map(Some)
    }

    /// The form that the bodies of operations choose by.
    pub(super) fn form(&self) -> Form<'_> {
        match self {
            Self::Stored(stored) => Form::Stored(stored.values.val()),
            Self::Packed(packed) => Form::Packed(&packed.panels),
        }
    }
}

fn not_on_this_device(dtype: Dtype) -> Error {
    let what = format!("`{dtype}` is for the CPU\nhint: use `--dtype f16`, or the device `cpu`");
    Error::Param { name: "quantize", what }
}

/// How a weight is held.
#[expect(clippy::large_enum_variant, reason = "lives for one call")]
pub(super) enum Form<'a> {
    /// `[d_out, d_in]`, in the weight's dtype.
    Stored(Tensor<2>),
    /// For the CPU's kernels.
    Packed(&'a Panels),
}
