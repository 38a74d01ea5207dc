//! What a forward pass tells a device beside the weights: few numbers, different in every step.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::cube;

/// Whole numbers on the host, `[n]`, and on a device once an operation wants them there.
#[derive(Clone, Debug)]
pub struct Ints {
    host: Arc<Vec<i32>>,
    device: Device,
    tensor: OnceLock<Tensor<1, Int>>,
}

impl Ints {
    /// For `device`.
    pub fn new(host: Vec<i32>, device: &Device) -> Self {
        Self { host: Arc::new(host), device: device.clone(), tensor: OnceLock::new() }
    }

    /// As plain numbers.
    pub fn host(&self) -> &[i32] {
        &self.host
    }

    /// On the device; uploaded at the first call.
    pub fn tensor(&self) -> Tensor<1, Int> {
        self.tensor.get_or_init(|| Tensor::from_data(self.host(), &self.device)).clone()
    }
}

/// Rows of f32 on the host, `[n_rows, width]`, and on a device once an operation wants them there.
#[derive(Clone, Debug)]
pub struct Rows {
    host: Arc<Vec<f32>>,
    width: usize,
    device: Device,
    tensor: OnceLock<Tensor<2>>,
}

impl Rows {
    /// Rows of `width`, one after the other, for `device`.
    pub fn new(host: Vec<f32>, width: usize, device: &Device) -> Self {
        Self { host: Arc::new(host), width, device: device.clone(), tensor: OnceLock::new() }
    }

    /// On the device; uploaded at the first call.
    pub fn tensor(&self) -> Tensor<2> {
        let upload = || {
            let dims = [self.host.len() / self.width.max(1), self.width];
            Tensor::from_data(TensorData::new(self.host.to_vec(), dims), &self.device)
        };
        self.tensor.get_or_init(upload).clone()
    }
}

/// Numbers of either kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upload<'a> {
    Ints(&'a Ints),
    Rows(&'a Rows),
}

/// The place of numbers on a GPU, to which others of the same shape can be written.
#[derive(Debug)]
pub(crate) enum Place {
    Ints(Tensor<1, Int>),
    Rows(Tensor<2>),
}

impl Upload<'_> {
    /// Where the numbers are on the device; uploaded, unless they were.
    pub(crate) fn place(self) -> Place {
        match self {
            Self::Ints(ints) => Place::Ints(ints.tensor()),
            Self::Rows(rows) => Place::Rows(rows.tensor()),
        }
    }
}

impl Place {
    /// Writes other numbers there, as many as there were. In the memory itself, whoever else has the tensor.
    pub(crate) fn overwrite(&mut self, upload: Upload<'_>) {
        match (self, upload) {
            (Self::Ints(tensor), Upload::Ints(ints)) => {
                tensor.inplace(|tensor| cube::overwrite_ints(tensor, ints.host.clone()));
            }
            (Self::Rows(tensor), Upload::Rows(rows)) => {
                tensor.inplace(|tensor| cube::overwrite_rows(tensor, rows.host.clone()));
            }
            (place, upload) => unreachable!("{upload:?} does not belong to {place:?}"),
        }
    }
}
