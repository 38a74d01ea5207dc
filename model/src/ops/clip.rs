//! Clipping of gradients by their norm.

use burn::tensor::{Device, Tensor, TensorData};

use super::{
    Placement, cpu, cube,
    read_back::{read, to_f32},
    types::CLIP_EPS,
};
use crate::error::Result;

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

/// Partial sums of the squares of a gradient, `[n_values]`, which [`clip_norm`] adds: one on the CPU, one per
/// separately summed part on a GPU. Reads them back from the device.
///
/// # Errors
/// The device fails.
pub fn square_sums(gradient: &Tensor<1>) -> Result<Vec<f64>> {
    let sums = match Placement::of(&gradient.device()) {
        Placement::Cpu => return Ok(vec![cpu::square_sum(gradient)]),
        Placement::Gpu => cube::square_sums(std::slice::from_ref(gradient)),
        Placement::CpuTraining | Placement::GpuTraining => gradient.clone().square().sum(),
    };
    Ok(to_f32(read(sums)?)?.into_iter().map(f64::from).collect())
}

/// [`clip_norm`] for a process that has only some of the gradients: `squares` are the [`square_sums`] of all gradients,
/// in order, and `gradients`, on `device`, are the ones to scale. Returns the norm of all gradients, with the bits that
/// `clip_norm` has.
///
/// # Errors
/// The device fails.
pub fn clip_part(
    squares: &[f64],
    gradients: Vec<Tensor<1>>,
    max_norm: f64,
    device: &Device,
) -> Result<(f32, Vec<Tensor<1>>)> {
    if Placement::of(device) == Placement::Cpu {
        return Ok(cpu::clip_part(squares, gradients, max_norm));
    }
    let sums: Vec<f32> = squares.iter().map(|&square| square as f32).collect();
    let n_sums = sums.len();
    let norm = Tensor::<1>::from_data(TensorData::new(sums, [n_sums]), device).sum().sqrt();
    let (norm, gradients) = clip(norm, gradients, max_norm);
    let norm = to_f32(read(norm)?)?;
    Ok((norm.first().copied().unwrap_or_default(), gradients))
}

/// Scales `gradients`, whose joint norm is `norm [1]`; see [`clip_norm`].
fn clip(norm: Tensor<1>, mut gradients: Vec<Tensor<1>>, max_norm: f64) -> (Tensor<1>, Vec<Tensor<1>>) {
    if max_norm > 0.0 {
        let factor = norm.clone().add_scalar(CLIP_EPS).recip().mul_scalar(max_norm).clamp_max(1.0);
        for gradient in &mut gradients {
            *gradient = gradient.clone() * factor.clone();
        }
    }
    (norm, gradients)
}
