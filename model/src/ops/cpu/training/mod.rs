//! Training operations on the CPU, forward and backward, as implementations of [`TrainingOp`](crate::ops::types::TrainingOp).

mod activation;
mod adamw;
mod attention;
mod clip;
mod cross_entropy;
mod divergence;
mod embedding;
mod frozen;
mod gated_norm;
mod linear;
mod muon;
mod norm;
mod product;
mod qk_norm;
mod recurrence;
mod residual;
mod scratch;
mod short_conv;

pub(in crate::ops) use adamw::adamw;
pub use attention::QUERIES as ATTENTION_QUERIES;
pub(in crate::ops) use attention::RopeAttend;
pub(in crate::ops) use clip::{clip_norm, clip_part, square_sum};
pub(in crate::ops) use cross_entropy::LinearCrossEntropy;
pub use cross_entropy::rows_at_once as loss_rows_at_once;
pub(in crate::ops) use divergence::LinearDivergence;
pub(in crate::ops) use embedding::Embed;
pub(in crate::ops) use frozen::{FrozenLinear, add_lora};
pub(in crate::ops) use gated_norm::NormalizeGated;
pub(in crate::ops) use linear::Linear;
pub(in crate::ops) use muon::muon;
pub(in crate::ops) use recurrence::Recur;
pub(in crate::ops) use residual::{Fork, Pass, add_gradients, dropout_factors};
pub(in crate::ops) use short_conv::Convolve;

use burn::{backend::flex::FlexTensor, tensor::TensorData};

/// Rows are summed in groups of this size, whose sums are then added: the only parameter of the order of summation.
pub const ROWS_AT_ONCE: usize = 32;

/// The values of a contiguous f32 tensor.
fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().unwrap_or_else(|| unreachable!("operands are contiguous f32"))
}

fn tensor<const D: usize>(values: Vec<f32>, dims: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, dims))
}

/// A tensor's values times `factor`, in place if no other tensor shares them.
fn multiplied(mut tensor: FlexTensor, factor: f32) -> FlexTensor {
    if factor != 1.0 {
        super::thread_pool::parallel_chunks(tensor.storage_mut(), 1 << 14, |_, values| {
            values.iter_mut().for_each(|value| *value *= factor);
        });
    }
    tensor
}

/// The dimensions of a matrix.
fn dims(tensor: &FlexTensor) -> [usize; 2] {
    tensor.layout().shape().dims::<2>()
}

/// Adds the rows of `rows [n, width]`, in order, to `sum [width]`.
fn add_rows(sum: &mut [f32], rows: &[f32]) {
    for row in rows.chunks_exact(sum.len()) {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

/// The sum over the rows of `x [n_rows, width]`, in groups of [`ROWS_AT_ONCE`].
fn sum_of_rows(x: &[f32], width: usize) -> Vec<f32> {
    let mut partial = vec![0.0; x.len().div_ceil(width * ROWS_AT_ONCE) * width];
    super::thread_pool::parallel_chunks(&mut partial, width, |group, sum| {
        let start = group * ROWS_AT_ONCE * width;
        add_rows(sum, &x[start..x.len().min(start + ROWS_AT_ONCE * width)]);
    });
    let mut sum = vec![0.0; width];
    add_rows(&mut sum, &partial);
    sum
}
