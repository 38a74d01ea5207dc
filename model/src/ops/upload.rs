//! What a forward pass tells a device beside the weights: few numbers, different in every step.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::cube;

/// Whole numbers on the host, `[n]`, and on a device once an operation wants them there.
#[derive(Clone, Debug)]
pub(crate) struct Ints {
    host: Vec<i32>,
    device: Device,
    tensor: OnceLock<Tensor<1, Int>>,
}

impl Ints {
    /// For `device`.
    pub(crate) fn new(host: Vec<i32>, device: &Device) -> Self {
        Self { host, device: device.clone(), tensor: OnceLock::new() }
    }

    /// As plain numbers.
    pub(crate) fn host(&self) -> &[i32] {
        &self.host
    }

    /// On the device; uploaded at the first call.
    pub(crate) fn tensor(&self) -> Tensor<1, Int> {
        self.tensor.get_or_init(|| Tensor::from_data(self.host(), &self.device)).clone()
    }
}

/// Rows of f32 on the host, `[n_rows, width]`, and on a device once an operation wants them there.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    host: Vec<f32>,
    width: usize,
    device: Device,
    tensor: OnceLock<Tensor<2>>,
}

impl Rows {
    /// Rows of `width`, one after the other, for `device`.
    pub(crate) fn new(host: Vec<f32>, width: usize, device: &Device) -> Self {
        Self { host, width, device: device.clone(), tensor: OnceLock::new() }
    }

    /// On the device; uploaded at the first call.
    pub(crate) fn tensor(&self) -> Tensor<2> {
        let upload = || Tensor::from_data(TensorData::new(self.host.clone(), self.dims()), &self.device);
        self.tensor.get_or_init(upload).clone()
    }

    fn dims(&self) -> [usize; 2] {
        [self.host.len() / self.width.max(1), self.width]
    }
}

/// Numbers of either kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upload<'a> {
    Ints(&'a Ints),
    Rows(&'a Rows),
}

impl Upload<'_> {
    /// How many.
    fn len(self) -> usize {
        match self {
            Self::Ints(ints) => ints.host.len(),
            Self::Rows(rows) => rows.host.len(),
        }
    }
}

/// Where a GPU finds numbers that are written there again and again: side by side, so that they come in one go.
#[derive(Debug)]
pub(crate) struct Places {
    all: Tensor<1, Int>,
}

/// Numbers of 4 bytes to which each kind of numbers is aligned: what devices ask for at most.
const ALIGNMENT: usize = 64;

impl Places {
    /// Uploads numbers, none of which was uploaded before.
    pub(crate) fn new(uploads: &[Upload<'_>], device: &Device) -> Self {
        let all = Tensor::<1, Int>::from_data(packed(uploads).as_slice(), device);
        let mut start = 0;
        for upload in uploads {
            let is_new = match upload {
                Upload::Ints(ints) => ints.tensor.set(cube::part_of_ints(&all, [start, ints.host.len()])).is_ok(),
                Upload::Rows(rows) => rows.tensor.set(cube::rows_in_ints(&all, start, rows.dims())).is_ok(),
            };
            assert!(is_new, "numbers have one place on a device");
            start += upload.len().next_multiple_of(ALIGNMENT);
        }
        Self { all }
    }

    /// Writes others there, as many of each kind as there were: into the memory itself, where tensors of those before have
    /// them from then on.
    pub(crate) fn overwrite(&mut self, uploads: &[Upload<'_>]) {
        let numbers = packed(uploads);
        assert_eq!([numbers.len()], self.all.dims(), "other numbers");
        self.all.inplace(|all| cube::overwrite(all, Arc::new(numbers)));
    }
}

/// Numbers one kind after the other, those that are no whole ones by their bits.
fn packed(uploads: &[Upload<'_>]) -> Vec<i32> {
    let mut all = Vec::new();
    for upload in uploads {
        match upload {
            Upload::Ints(ints) => all.extend_from_slice(ints.host()),
            Upload::Rows(rows) => all.extend(rows.host.iter().map(|value| value.to_bits().cast_signed())),
        }
        all.resize(all.len().next_multiple_of(ALIGNMENT), 0);
    }
    all
}
