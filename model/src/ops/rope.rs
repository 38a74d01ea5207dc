//! Rotary positions.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, Tensor, TensorData};

use super::{Placement, Rows, cpu};

/// The cosines and sines of one step's rows, `[n_rows, rotary_dim / 2]` each, the same for all layers: on the host, and
/// on the device once an operation needs them there.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Arc<Vec<f32>>,
    sin: Arc<Vec<f32>>,
    n_rows: usize,
    device: Device,
    tensors: OnceLock<[Tensor<3>; 2]>,
    table: OnceLock<Rows>,
}

impl Rotation {
    /// From `angles [n_rows, rotary_dim / 2]` in radians, row after row.
    pub(crate) fn new(angles: &[f32], n_rows: usize, device: &Device) -> Self {
        let cos = Arc::new(angles.iter().map(|angle| angle.cos()).collect());
        let sin = Arc::new(angles.iter().map(|angle| angle.sin()).collect());
        Self { cos, sin, n_rows, device: device.clone(), tensors: OnceLock::new(), table: OnceLock::new() }
    }

    /// Multiplies cosines and sines by `factor`, and so everything that they rotate.
    pub(crate) fn scaled(mut self, factor: f32) -> Self {
        if factor != 1.0 {
            for values in [&mut self.cos, &mut self.sin] {
                Arc::make_mut(values).iter_mut().for_each(|value| *value *= factor);
            }
            self.forget_tensors();
        }
        self
    }

    /// Repeats the rows for each of `batch` sequences at the same positions.
    pub(crate) fn repeat(mut self, batch: usize) -> Self {
        (self.cos, self.sin) = (Arc::new(self.cos.repeat(batch)), Arc::new(self.sin.repeat(batch)));
        self.n_rows *= batch;
        self.forget_tensors();
        self
    }

    /// Cosines and sines, row after row.
    pub(super) fn host(&self) -> [&[f32]; 2] {
        [&self.cos, &self.sin]
    }

    /// As [`host`](Self::host), for operations that outlive this.
    pub(super) fn shared(&self) -> [Arc<Vec<f32>>; 2] {
        [Arc::clone(&self.cos), Arc::clone(&self.sin)]
    }

    fn forget_tensors(&mut self) {
        (self.tensors, self.table) = (OnceLock::new(), OnceLock::new());
    }

    /// Half of `rotary_dim`.
    pub(super) fn half(&self) -> usize {
        self.cos.len() / self.n_rows.max(1)
    }

    /// Cosines and sines on the device, `[n_rows, 1, rotary_dim / 2]`; uploaded at the first call.
    fn tensors(&self) -> [Tensor<3>; 2] {
        let upload = |values: &[f32]| {
            Tensor::from_data(TensorData::new(values.to_vec(), [self.n_rows, 1, self.half()]), &self.device)
        };
        self.tensors.get_or_init(|| [upload(&self.cos), upload(&self.sin)]).clone()
    }

    /// Each row's cosines, then its sines, for the device: `[n_rows, rotary_dim]`.
    pub(crate) fn table(&self) -> &Rows {
        self.table.get_or_init(|| {
            let half = self.half().max(1);
            let rows = self.cos.chunks(half).zip(self.sin.chunks(half));
            let table = rows.flat_map(|(cos, sin)| cos.iter().chain(sin)).copied().collect();
            Rows::new(table, 2 * self.half(), &self.device)
        })
    }
}

/// Rotates the leading dimensions of each head of `x [n_rows, n_heads, head_dim]`: dimension `i` of the rotated part
/// pairs with `i + rotary_dim / 2`. Dimensions past `rotary_dim` pass unchanged.
pub(crate) fn rope(x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
    if Placement::of(&x.device()) != Placement::Cpu {
        return rope_reference(x, rotation);
    }
    let [_, n_heads, head_dim] = x.dims();
    let width = n_heads * head_dim;
    cpu::changed(x, |x| cpu::rope(x, [width, width, head_dim], &rotation.cos, &rotation.sin))
}

/// [`rope`] in plain Burn operations.
pub(crate) fn rope_reference(x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
    let [n_rows, n_heads, head_dim] = x.dims();
    let half = rotation.half();
    let part = |range: std::ops::Range<usize>| x.clone().slice([0..n_rows, 0..n_heads, range]);
    let (left, right) = (part(0..half), part(half..2 * half));
    let [cos, sin] = rotation.tensors();
    let mut parts = vec![left.clone() * cos.clone() - right.clone() * sin.clone(), right * cos + left * sin];
    if 2 * half < head_dim {
        parts.push(part(2 * half..head_dim));
    }
    Tensor::cat(parts, 2)
}
