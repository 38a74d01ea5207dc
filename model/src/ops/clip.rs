//! Clipping of gradients by their norm.

use burn::tensor::Tensor;

use super::{Placement, cpu, cube, types::CLIP_EPS};

/// Scales all `gradients`, `[n_values]` each, by one factor so that their Euclidean norm together is at most `max_norm`
/// ([Pascanu et al., 2012](https://arxiv.org/abs/1211.5063)). Smaller gradients are unchanged, and a `max_norm` of 0
/// disables clipping. Returns the norm before, `[1]`, and the gradients.
///
/// On the CPU one pass over memory, and another in place if the norm is too large. On a GPU two passes, and nothing is read
/// back.
///
/// # Panics
/// Without gradients, or when gradients of them are recorded.
pub fn clip_norm(gradients: Vec<Tensor<1>>, max_norm: f64) -> (Tensor<1>, Vec<Tensor<1>>) {
    assert!(!gradients.is_empty(), "the norm of no gradients");
    match Placement::of(&gradients[0].device()) {
        Placement::Cpu => cpu::clip_norm(gradients, max_norm),
        Placement::Gpu => clip(cube::square_sums(&gradients).sum().sqrt(), gradients, max_norm),
        Placement::CpuTraining | Placement::GpuTraining => clip_norm_reference(gradients, max_norm),
    }
}

/// [`clip_norm`] in plain Burn operations; reads nothing back from the device.
pub(crate) fn clip_norm_reference(gradients: Vec<Tensor<1>>, max_norm: f64) -> (Tensor<1>, Vec<Tensor<1>>) {
    let squares = gradients.iter().map(|gradient| gradient.clone().square().sum()).collect();
    clip(Tensor::cat(squares, 0).sum().sqrt(), gradients, max_norm)
}

/// The gradients, whose norm together is `norm [1]`, scaled; see [`clip_norm`].
fn clip(norm: Tensor<1>, mut gradients: Vec<Tensor<1>>, max_norm: f64) -> (Tensor<1>, Vec<Tensor<1>>) {
    if max_norm > 0.0 {
        let factor = norm.clone().add_scalar(CLIP_EPS).recip().mul_scalar(max_norm).clamp_max(1.0);
        for gradient in &mut gradients {
            *gradient = gradient.clone() * factor.clone();
        }
    }
    (norm, gradients)
}
