//! RMSNorm with a gate.

use burn::backend::flex::FlexTensor;

use super::{ROWS_AT_ONCE, add_rows, dims, tensor, values};
use crate::ops::{
    cpu::{
        self, StridedRows, for_each_isa,
        math::{exp, sum_of_pairs},
        thread_pool::{self, SharedMut},
    },
    types::{GateOrder, GatedNormOptions, TrainingOp},
};

/// Inputs: `x` and `z`, `[n_rows, width]`, and the weight. See [`gated_norm`](crate::ops::gated_norm::gated_norm).
#[derive(Debug)]
pub(in crate::ops) struct NormalizeGated(pub(in crate::ops) GatedNormOptions);

impl TrainingOp<FlexTensor> for NormalizeGated {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let [x, z, weight] = [0, 1, 2].map(|n| values(&inputs[n]));
        let shape @ [_, width] = dims(&inputs[0]);
        (tensor(cpu::gated_norm(x, StridedRows::of(z, width), weight, self.0), shape), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [x, z, weight] = [0, 1, 2].map(|n| values(&inputs[n]));
        let gradient = values(gradient);
        let shape @ [n_rows, width] = dims(&inputs[0]);
        let mut of_x = thread_pool::new_zeros(x.len());
        let mut of_z = thread_pool::new_zeros(x.len());
        // Gradients of the weight, for each group of rows.
        let mut partial = vec![0.0; n_rows.div_ceil(ROWS_AT_ONCE) * weight.len()];
        let (shared_x, shared_z) = (SharedMut::new(&mut of_x), SharedMut::new(&mut of_z));
        thread_pool::parallel_chunks(&mut partial, weight.len(), |group, of_weight| {
            for row in group * ROWS_AT_ONCE..n_rows.min((group + 1) * ROWS_AT_ONCE) {
                for (n, start) in (row * width..(row + 1) * width).step_by(self.0.width).enumerate() {
                    let place = start..start + self.0.width;
                    let first = n * self.0.width % weight.len();
                    let weights = first..first + self.0.width;
                    #[expect(unsafe_code, reason = "threads write disjoint rows of one matrix")]
                    // SAFETY: each group of rows is claimed once.
                    let of_inputs = unsafe { [shared_x.part(place.clone()), shared_z.part(place.clone())] };
                    let operands = [&x[place.clone()], &z[place.clone()], &gradient[place]];
                    backward_group(operands, &weight[weights.clone()], self.0, of_inputs, &mut of_weight[weights]);
                }
            }
        });
        let mut of_weight = vec![0.0; weight.len()];
        add_rows(&mut of_weight, &partial);
        let of_weight = tensor(of_weight, [weight.len()]);
        vec![Some(tensor(of_x, shape)), Some(tensor(of_z, shape)), Some(of_weight)]
    }
}

for_each_isa!(backward_group(
    operands: [&[f32]; 3],
    weight: &[f32],
    options: GatedNormOptions,
    of_inputs: [&mut [f32]; 2],
    of_weight: &mut [f32]
) = backward_group_body);

/// With the gate `s = silu(z)`, and `n = h r` the normalized values of `h`, which is `x` or `x s`: the gradient of `h`
/// is `r (d - n mean(d n))`, where `d` is the gradient of `n`.
#[inline(always)]
fn backward_group_body<const FUSED: bool>(
    [x, z, gradient]: [&[f32]; 3],
    weight: &[f32],
    options: GatedNormOptions,
    [of_x, of_z]: [&mut [f32]; 2],
    of_weight: &mut [f32],
) {
    let width = x.len() as f32;
    let is_gated_before = options.order == GateOrder::BeforeNorm;
    // The gate, and the gradient of `n`.
    for (((of_z, of_x), &z), (gradient, weight)) in
        of_z.iter_mut().zip(&mut *of_x).zip(z).zip(gradient.iter().zip(weight))
    {
        *of_z = z / (1.0 + exp::<FUSED>(-z));
        *of_x = gradient * weight * if is_gated_before { 1.0 } else { *of_z };
    }
    let h = |x: f32, gate: f32| if is_gated_before { x * gate } else { x };
    let mean_square = sum_of_pairs(x, of_z, |x, gate| h(x, gate) * h(x, gate)) / width;
    let r = 1.0 / (mean_square + options.eps as f32).sqrt();
    let mean_dn = match is_gated_before {
        // `d` is the gradient times the weight.
        true => {
            for (of_z, x) in of_z.iter_mut().zip(x) {
                *of_z *= x;
            }
            sum_of_pairs(of_x, of_z, |d, h| d * (h * r)) / width
        }
        false => sum_of_pairs(of_x, x, |d, x| d * (x * r)) / width,
    };
    for ((((of_x, of_z), of_weight), (&x, &z)), (&gradient, &weight)) in
        of_x.iter_mut().zip(of_z).zip(of_weight).zip(x.iter().zip(z)).zip(gradient.iter().zip(weight))
    {
        let share = 1.0 / (1.0 + exp::<FUSED>(-z));
        let (gate, derivative) = (z * share, share * (1.0 + z * (1.0 - share)));
        let normed = h(x, gate) * r;
        let of_h = r * (*of_x - normed * mean_dn);
        if is_gated_before {
            *of_weight += gradient * normed;
            *of_x = of_h * gate;
            *of_z = of_h * x * derivative;
        } else {
            *of_weight += gradient * normed * gate;
            *of_x = of_h;
            *of_z = gradient * normed * weight * derivative;
        }
    }
}
