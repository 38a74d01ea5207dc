//! Rotary positions.

use burn::tensor::{Device, Tensor, TensorData};

/// The angles of one step's rows, as cosines and sines `[n_rows, 1, rotary_dim / 2]`; the same for all layers.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: Tensor<3>,
    sin: Tensor<3>,
}

impl Rotation {
    /// From `angles [n_rows, rotary_dim / 2]` in radians, row after row.
    pub fn new(angles: &[f32], n_rows: usize, device: &Device) -> Self {
        let table = |f: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().map(|&angle| f(angle)).collect();
            Tensor::from_data(TensorData::new(values, [n_rows, 1, angles.len() / n_rows.max(1)]), device)
        };
        Self { cos: table(f32::cos), sin: table(f32::sin) }
    }

    /// Repeats the rows for each of `batch` sequences that stand at the same positions.
    pub fn repeat(self, batch: usize) -> Self {
        Self { cos: self.cos.repeat_dim(0, batch), sin: self.sin.repeat_dim(0, batch) }
    }
}

/// Rotates the leading dimensions of each head of `x [n_rows, n_heads, head_dim]`: dimension `i` of the rotated part
/// pairs with `i + rotary_dim / 2`. Dimensions past `rotary_dim` pass unchanged.
pub fn rope(x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
    let [n_rows, n_heads, head_dim] = x.dims();
    let [_, _, half] = rotation.cos.dims();
    let part = |range: std::ops::Range<usize>| x.clone().slice([0..n_rows, 0..n_heads, range]);
    let (left, right) = (part(0..half), part(half..2 * half));
    let (cos, sin) = (rotation.cos.clone(), rotation.sin.clone());
    let mut parts = vec![
        left.clone() * cos.clone() - right.clone() * sin.clone(),
        right * cos + left * sin,
    ];
    if 2 * half < head_dim {
        parts.push(part(2 * half..head_dim));
    }
    Tensor::cat(parts, 2)
}
