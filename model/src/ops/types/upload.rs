//! The small inputs of a forward pass that differ in every step.

use std::sync::OnceLock;

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Integers on the host, `[n]`, and on a device once an operation needs them there.
#[derive(Clone, Debug)]
pub(crate) struct Ints {
    host: Vec<i32>,
    device: Device,
    pub(in crate::ops) tensor: OnceLock<Tensor<1, Int>>,
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

/// Rows of f32 on the host, `[n_rows, width]`, and on a device once an operation needs them there.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(in crate::ops) host: Vec<f32>,
    width: usize,
    device: Device,
    pub(in crate::ops) tensor: OnceLock<Tensor<2>>,
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

    pub(in crate::ops) fn dims(&self) -> [usize; 2] {
        [self.host.len() / self.width.max(1), self.width]
    }
}
