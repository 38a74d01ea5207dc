//! Muon's update of matrices.

use burn::tensor::Tensor;

use super::{MuonParam, MuonStep, Placement, cpu};

/// One update by [Muon](https://kellerjordan.github.io/posts/muon/): of each parameter the new value, and the new average
/// of gradients. Each matrix changes by its average with all singular values moved to about 1.
///
/// On the CPU, each thread takes a matrix at a time; the largest are computed by all threads if there are few.
///
/// # Panics
/// When the tensors of a parameter differ in length or have not its rows, the parameters are on different devices, or
/// gradients are recorded.
pub fn muon(params: Vec<MuonParam>, step: &MuonStep) -> Vec<(Tensor<1>, Tensor<1>)> {
    for MuonParam { value, gradient, momentum, rows, width } in &params {
        let dims = [rows.iter().sum::<usize>() * width];
        let momentum = momentum.as_ref().map_or(dims, |momentum| momentum.dims());
        assert_eq!([value.dims(), gradient.dims(), momentum], [dims; 3], "tensors of another parameter");
    }
    match params.first() {
        Some(param) if Placement::of(&param.value.device()) == Placement::Cpu => cpu::muon(params, step),
        _ => params.into_iter().map(|param| muon_reference(param, step)).collect(),
    }
}

/// [`muon`] in plain Burn operations.
pub(crate) fn muon_reference(param: MuonParam, step: &MuonStep) -> (Tensor<1>, Tensor<1>) {
    let MuonParam { value, gradient, momentum, rows, width } = param;
    let MuonStep { lr, momentum: beta, nesterov, weight_decay, iterations } = *step;
    let momentum = momentum.unwrap_or_else(|| gradient.zeros_like());
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
        orthogonalized(part, iterations).mul_scalar(step.rate_of([n_rows, width]))
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
