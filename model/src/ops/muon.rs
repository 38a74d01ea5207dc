//! Muon's update of stacked matrices.

use burn::tensor::Tensor;

use super::{MuonStep, cpu};

/// One update by [Muon](https://kellerjordan.github.io/posts/muon/) of a flat matrix `[n_rows * step.width]`: the new
/// value, and the new average of gradients. Each of the stacked matrices changes by its average with all singular values
/// moved to about 1. Without `momentum` the average begins at 0.
///
/// On the CPU, products by all threads and one pass over memory for the rest.
///
/// # Panics
/// When the tensors differ in length, `step.rows` are not those of the matrix, or gradients are recorded.
pub fn muon(
    value: Tensor<1>,
    gradient: Tensor<1>,
    momentum: Option<Tensor<1>>,
    step: &MuonStep,
) -> (Tensor<1>, Tensor<1>) {
    assert_eq!(value.dims(), gradient.dims(), "the gradient of another parameter");
    assert_eq!(value.dims(), [step.rows.iter().sum::<usize>() * step.width], "the rows of another parameter");
    let momentum = momentum.unwrap_or_else(|| gradient.zeros_like());
    if cpu::is_cpu(&value.device()) {
        return cpu::muon(value, gradient, momentum, step);
    }
    muon_reference(value, gradient, momentum, step)
}

/// [`muon`] in plain Burn operations.
pub(crate) fn muon_reference(
    value: Tensor<1>,
    gradient: Tensor<1>,
    momentum: Tensor<1>,
    step: &MuonStep,
) -> (Tensor<1>, Tensor<1>) {
    let MuonStep { lr, momentum: beta, nesterov, weight_decay, iterations, ref rows, width } = *step;
    let momentum = momentum.mul_scalar(beta) + gradient.clone().mul_scalar(1.0 - beta);
    let direction = match nesterov {
        true => gradient.mul_scalar(1.0 - beta) + momentum.clone().mul_scalar(beta),
        false => momentum.clone(),
    };
    let n_values = direction.dims()[0];
    let direction = direction.reshape([n_values / width, width]);
    let mut first = 0;
    let parts = rows.iter().map(|&n_rows| {
        let part = direction.clone().slice([first..first + n_rows, 0..width]);
        first += n_rows;
        orthogonalized(part, iterations).mul_scalar(step.rate_of(n_rows))
    });
    let change = Tensor::cat(parts.collect(), 0).reshape([n_values]);
    let value = if weight_decay > 0.0 { value.mul_scalar(1.0 - lr * weight_decay) } else { value };
    (value - change, momentum)
}

/// Approximates the nearest matrix with orthonormal rows or columns. The Gram matrix of the rows is the smaller product
/// if there are no more rows than columns; otherwise the matrix is transposed.
fn orthogonalized(matrix: Tensor<2>, iterations: usize) -> Tensor<2> {
    let [n_rows, n_columns] = matrix.dims();
    let is_tall = n_rows > n_columns;
    let matrix = if is_tall { matrix.transpose() } else { matrix };
    let norm = matrix.clone().square().sum().sqrt().add_scalar(MuonStep::NORM_EPS);
    let mut x = matrix / norm.unsqueeze::<2>();
    let [a, b, c] = MuonStep::COEFFICIENTS;
    for _ in 0..iterations {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone().mul_scalar(b) + gram.clone().matmul(gram).mul_scalar(c);
        x = x.clone().mul_scalar(a) + polynomial.matmul(x);
    }
    if is_tall { x.transpose() } else { x }
}
