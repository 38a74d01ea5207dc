//! A matrix of the model, stored in the layout of the device's kernels.

use std::{ops::Range, sync::Arc};

use burn::{
    module::{Module, Param},
    tensor::{DType, Device, Tensor, TensorData},
};

use super::{
    Dtype, MatrixRows, Placement, Precision, QuantizedBlock, QuantizedMatrix, cpu::Panels, cube::Matrix,
    k_quants::BlockRows, read, to_f32,
};
use crate::error::{Error, Result};

impl Dtype {
    /// Whether `device` computes with matrices of this dtype.
    pub fn is_for(self, device: &Device) -> bool {
        match Placement::of(device) {
            Placement::Cpu => true,
            Placement::Gpu => !self.is_from_files(),
            Placement::CpuTraining | Placement::GpuTraining => matches!(self, Self::F32 | Self::F16),
        }
    }
}

/// A matrix `[d_out, d_in]`: multiplies inputs, or has embeddings as rows. Opaque: stored only in the layout of the
/// device's kernels.
#[derive(Module, Debug)]
pub enum Weight {
    /// A plain tensor; trainable.
    #[doc(hidden)]
    Stored(StoredWeight),
    /// Laid out for the CPU's kernels; does not train.
    #[doc(hidden)]
    Packed(PackedWeight),
    /// Laid out for a GPU's kernels; does not train.
    #[doc(hidden)]
    OnGpu(GpuWeight),
}

#[doc(hidden)]
#[derive(Module, Debug)]
pub struct StoredWeight {
    // Rows are contiguous along d_in, the direction of the sums.
    values: Param<Tensor<2>>,
    #[module(skip)]
    precision: Precision,
}

impl StoredWeight {
    fn new(values: Tensor<2>) -> Self {
        Self { values: Param::from_tensor(values), precision: Precision::F32 }
    }
}

#[doc(hidden)]
#[derive(Module, Debug)]
pub struct PackedWeight {
    #[module(skip)]
    panels: Arc<Panels>,
}

#[doc(hidden)]
#[derive(Module, Debug)]
pub struct GpuWeight {
    #[module(skip)]
    matrix: Arc<Matrix>,
}

impl Weight {
    /// Stores `data`, `[d_out, d_in]` in f32, on `device` as `dtype`, rounded to the nearest (ties to even).
    ///
    /// # Errors
    /// [`Error::Execution`] if `data` is not f32; [`Error::Param`] if the device does not compute with `dtype`, or
    /// values cannot be rounded to it.
    pub fn new(data: TensorData, dtype: Dtype, device: &Device) -> Result<Self> {
        let dims = data.shape().dims();
        if !Placement::of(device).records_gradients() {
            return Self::from_rows(&MatrixRows::of(&to_f32(data)?, dims), dtype, device);
        }
        refuse_from_files(dtype)?;
        let stored = match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            _ => return Err(not_on_this_device(dtype)),
        };
        let values = Tensor::from_data(data.convert_dtype(stored), (device, stored));
        Ok(Self::Stored(StoredWeight::new(values)))
    }

    /// As [`new`](Self::new), from a matrix that is read row by row, possibly more than once.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_rows(rows: &MatrixRows<'_, f32>, dtype: Dtype, device: &Device) -> Result<Self> {
        refuse_from_files(dtype)?;
        Ok(match Placement::of(device) {
            Placement::Cpu => Self::Packed(PackedWeight { panels: Arc::new(Panels::from_rows(rows, dtype)) }),
            Placement::Gpu => {
                let matrix = match dtype.is_quantized() {
                    true => Matrix::from_quantized(&quantized(&Panels::from_rows(rows, dtype))?, device),
                    false => Matrix::new(&rows.collect(), rows.dims(), dtype, device),
                };
                Self::OnGpu(GpuWeight { matrix: Arc::new(matrix) })
            }
            Placement::CpuTraining | Placement::GpuTraining => {
                return Self::new(TensorData::new(rows.collect(), rows.dims()), dtype, device);
            }
        })
    }

    /// Stores a quantized matrix on `device`, with the same numbers.
    ///
    /// # Errors
    /// [`Error::Param`] if the device does not compute with its dtype.
    pub fn from_quantized(matrix: &QuantizedMatrix, device: &Device) -> Result<Self> {
        match Placement::of(device) {
            Placement::Cpu => {
                Self::from_blocks(&MatrixRows::of(matrix.blocks(), matrix.dims()), matrix.dtype(), device)
            }
            Placement::Gpu => Ok(Self::OnGpu(GpuWeight { matrix: Arc::new(Matrix::from_quantized(matrix, device)) })),
            Placement::CpuTraining | Placement::GpuTraining => Err(not_on_this_device(matrix.dtype())),
        }
    }

    /// As [`from_quantized`](Self::from_quantized), from a matrix that is read row by row. On the CPU its blocks are
    /// not checked.
    ///
    /// # Errors
    /// As [`QuantizedMatrix::new`] and [`from_quantized`](Self::from_quantized).
    pub(crate) fn from_blocks(rows: &MatrixRows<'_, QuantizedBlock>, dtype: Dtype, device: &Device) -> Result<Self> {
        if Placement::of(device) == Placement::Cpu {
            return Ok(Self::Packed(PackedWeight { panels: Arc::new(Panels::from_blocks(rows, dtype)) }));
        }
        Self::from_quantized(&QuantizedMatrix::new(rows.dims(), dtype, rows.collect())?, device)
    }

    /// Stores a matrix on the CPU in the blocks that its file has, as parts of one kind each, one below the other; if
    /// there are several, their rows are multiples of 32.
    pub(crate) fn from_parts(parts: &[(Dtype, BlockRows<'_>)]) -> Self {
        Self::Packed(PackedWeight { panels: Arc::new(Panels::from_parts(parts)) })
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Stored(stored) => stored.values.val().dims(),
            Self::Packed(packed) => packed.panels.dims(),
            Self::OnGpu(weight) => weight.matrix.dims(),
        }
    }

    /// How the values are stored.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Stored(stored) if stored.values.val().dtype() == DType::F16 => Dtype::F16,
            Self::Stored(_) => Dtype::F32,
            Self::Packed(packed) => packed.panels.dtype(),
            Self::OnGpu(weight) => weight.matrix.dtype(),
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
            Self::OnGpu(weight) => weight.matrix.n_bytes(),
        }
    }

    /// Where the values are.
    pub fn device(&self) -> Device {
        match self {
            Self::Stored(stored) => stored.values.val().device(),
            Self::Packed(_) => Device::flex(),
            Self::OnGpu(weight) => weight.matrix.device(),
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
            Self::OnGpu(weight) => Ok(TensorData::new(weight.matrix.read()?, weight.matrix.dims())),
        }
    }

    /// Some rows of the matrix, one after the other, as f32.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_rows(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        if let Self::Packed(packed) = self {
            return Ok(rows.flat_map(|row| packed.panels.row(row)).collect());
        }
        let [_, d_in] = self.dims();
        Ok(to_f32(self.read()?)?[rows.start * d_in..rows.end * d_in].to_vec())
    }

    /// Reads the quantized blocks off the device; `None` if the weight is not quantized. Dtypes that occur only in
    /// files are converted: see [`Dtype::stored_as`].
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if the device cannot be read.
    pub fn read_quantized(&self) -> Result<Option<QuantizedMatrix>> {
        if !self.dtype().is_quantized() {
            return Ok(None);
        }
        match self {
            Self::Stored(_) => Ok(None),
            Self::Packed(packed) => quantized(&packed.panels).map(Some),
            Self::OnGpu(weight) => weight.matrix.read_quantized().map(Some),
        }
    }

    /// The dtype of [`read_quantized`](Self::read_quantized), without reading.
    pub(crate) fn quantized_dtype(&self) -> Option<Dtype> {
        let dtype = match self {
            Self::Stored(_) => None,
            Self::Packed(packed) => Some(packed.panels.stored_as()),
            Self::OnGpu(weight) => Some(weight.matrix.dtype()),
        };
        dtype.filter(|dtype| dtype.is_quantized())
    }

    /// Whether it has a layout for inference, and so does not train.
    pub(crate) fn is_packed(&self) -> bool {
        !matches!(self, Self::Stored(_))
    }

    /// The precision of its products.
    pub(crate) fn precision(&self) -> Precision {
        match self {
            Self::Stored(stored) => stored.precision,
            Self::Packed(packed) => packed.panels.precision(),
            Self::OnGpu(_) => Precision::F32,
        }
    }

    /// Sets the arithmetic of products with a matrix that trains, or that is packed in bf16 for the CPU. Other matrices
    /// ignore it.
    ///
    /// # Panics
    /// If the matrix is packed and shared with another model.
    pub(crate) fn set_precision(&mut self, precision: Precision) {
        match self {
            Self::Stored(stored) => stored.precision = precision,
            Self::Packed(packed) => {
                if packed.panels.precision() != precision {
                    let panels = Arc::get_mut(&mut packed.panels);
                    panels.unwrap_or_else(|| unreachable!("two models share a matrix")).set_precision(precision);
                }
            }
            Self::OnGpu(_) => {}
        }
    }

    /// How it is stored, for choosing the body of an operation.
    pub(super) fn form(&self) -> WeightForm<'_> {
        match self {
            Self::Stored(stored) => WeightForm::Stored(stored.values.val()),
            Self::Packed(packed) => WeightForm::Packed(&packed.panels),
            Self::OnGpu(weight) => WeightForm::OnGpu(&weight.matrix),
        }
    }
}

/// The quantized blocks of `panels`, in row order.
fn quantized(panels: &Panels) -> Result<QuantizedMatrix> {
    let blocks = (0..panels.dims()[0]).filter_map(|row| panels.quantized_row(row)).flatten().collect();
    QuantizedMatrix::new(panels.dims(), panels.stored_as(), blocks)
}

fn refuse_from_files(dtype: Dtype) -> Result<()> {
    if dtype.is_from_files() {
        let what = format!(
            "is `{dtype}`, which only GGUF files have\nhint: supported are {}",
            Dtype::names(Dtype::is_quantized)
        );
        return Err(Error::Param { name: "quantize", what });
    }
    Ok(())
}

fn not_on_this_device(dtype: Dtype) -> Error {
    let what = format!("`{dtype}` is not supported for training\nhint: use `f32`");
    Error::Param { name: if dtype.is_quantized() { "quantize" } else { "dtype" }, what }
}

/// How a weight is stored.
#[expect(clippy::large_enum_variant, reason = "lives for one call")]
pub(super) enum WeightForm<'a> {
    /// `[d_out, d_in]`, in the weight's dtype.
    Stored(Tensor<2>),
    /// For the CPU's kernels.
    Packed(&'a Arc<Panels>),
    /// For a GPU's kernels.
    OnGpu(&'a Arc<Matrix>),
}
