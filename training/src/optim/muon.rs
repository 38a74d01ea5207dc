//! [Muon](https://kellerjordan.github.io/posts/muon/): the average of a matrix's gradients, with all singular values
//! moved to about 1 by Newton-Schulz iterations in f32.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use hearth_model::config::GptConfig;

use crate::{config::MuonSettings, schedule::Rates};

/// The coefficients of the iteration: they raise small singular values fastest and move all to 0.7 to 1.2.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Added to a norm before dividing by it.
const EPS: f64 = 1e-7;

/// Matrices stacked in one parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack<'a> {
    /// Rows of each.
    pub(super) rows: &'a [usize],
    /// Columns of all.
    pub(super) width: usize,
}

/// The matrices of a model's blocks by parameter path, each with the numbers of rows of its stacked matrices: queries,
/// keys and values; gate and up projection. Muon orthogonalizes single matrices.
pub fn matrices_of(config: &GptConfig) -> BTreeMap<String, Vec<usize>> {
    let (q, kv) = (config.q_width(), config.kv_width());
    let up = if config.gated_mlp { vec![config.d_ff; 2] } else { vec![config.d_ff] };
    let of_block = [
        ("attn.qkv", vec![q, kv, kv]),
        ("attn.out", vec![config.d_model]),
        ("mlp.up", up),
        ("mlp.down", vec![config.d_model]),
    ];
    let layers = (0..config.n_layers).flat_map(|layer| {
        of_block.iter().map(move |(name, rows)| (format!("blocks.{layer}.{name}.weight"), rows.clone()))
    });
    layers.collect()
}

/// The new value of a flat matrix `[d_out, d_in]`, and its new momentum.
pub(super) fn update(
    value: Tensor<1>,
    gradient: Tensor<1>,
    momentum: Option<Tensor<1>>,
    settings: &MuonSettings,
    stack: Stack<'_>,
    rates: Rates,
) -> (Tensor<1>, Tensor<1>) {
    let beta = rates.momentum;
    let fresh = gradient.clone().mul_scalar(1.0 - beta);
    let momentum = match momentum {
        Some(before) => before.mul_scalar(beta) + fresh,
        None => fresh,
    };
    let direction = match settings.nesterov {
        true => gradient.mul_scalar(1.0 - beta) + momentum.clone().mul_scalar(beta),
        false => momentum.clone(),
    };
    let (lr, n_values) = (settings.lr * rates.lr, direction.dims()[0]);
    let direction = direction.reshape([n_values / stack.width, stack.width]);
    let mut first = 0;
    let parts = stack.rows.iter().map(|&n_rows| {
        let part = direction.clone().slice([first..first + n_rows, 0..stack.width]);
        first += n_rows;
        // For a matrix with more rows than columns, the columns are longer: scales the update by the ratio of rows to
        // columns.
        let factor = (n_rows as f64 / stack.width as f64).max(1.0).sqrt();
        orthogonalized(part, settings.iterations).mul_scalar(lr * factor)
    });
    let change = Tensor::cat(parts.collect(), 0).reshape([n_values]);
    let weight_decay = settings.weight_decay * rates.decay;
    let value = if weight_decay > 0.0 { value.mul_scalar(1.0 - lr * weight_decay) } else { value };
    (value - change, momentum)
}

/// Approximates the nearest matrix with orthonormal rows or columns. The Gram matrix of the rows is the smaller product
/// if there are no more rows than columns; otherwise the matrix is transposed.
fn orthogonalized(matrix: Tensor<2>, iterations: usize) -> Tensor<2> {
    let [n_rows, n_columns] = matrix.dims();
    let is_tall = n_rows > n_columns;
    let matrix = if is_tall { matrix.transpose() } else { matrix };
    let norm = matrix.clone().square().sum().sqrt().add_scalar(EPS);
    let mut x = matrix / norm.unsqueeze::<2>();
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..iterations {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone().mul_scalar(b) + gram.clone().matmul(gram).mul_scalar(c);
        x = x.clone().mul_scalar(a) + polynomial.matmul(x);
    }
    if is_tall { x.transpose() } else { x }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use burn::tensor::{Device, Distribution};

    use super::*;

    #[test]
    fn singular_values_become_about_one() {
        let device = Device::flex();
        for dims in [[8, 24], [24, 8], [16, 16]] {
            let matrix = Tensor::<2>::random(dims, Distribution::Normal(0.0, 3.0), &device);
            let made = orthogonalized(matrix, 10);
            let [n_rows, n_columns] = dims;
            let gram = if n_rows > n_columns {
                made.clone().transpose().matmul(made)
            } else {
                made.clone().matmul(made.transpose())
            };
            // Squared singular values are within 0.7^2 and 1.2^2, so those of the Gram matrix add up to about its size.
            let size = n_rows.min(n_columns);
            let values = gram.into_data().try_to_vec::<f32>().unwrap();
            let trace: f32 = (0..size).map(|at| values[at * size + at]).sum();
            assert!((0.45..1.5).contains(&(trace / size as f32)), "{dims:?}: {trace}");
        }
    }
}
