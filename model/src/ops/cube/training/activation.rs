//! Activations of the MLP, plain and gated.

use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::LANES;
use crate::{
    config::Activation,
    ops::{
        cube::{
            launch::{empty, grid, workgroup},
            rowwise::{self, nonlinear, sigmoid},
        },
        types::{Activate, TrainingOp},
    },
};

impl TrainingOp<CubeTensor> for Activate {
    fn forward(&self, inputs: &[CubeTensor], _wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        (rowwise::activate(inputs[0].clone(), self.kind, self.is_gated), Vec::new())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        _wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let x = &inputs[0];
        let [n_rows, width] = x.meta.shape().dims::<2>();
        let d_ff = if self.is_gated { width / 2 } else { width };
        let of_x = empty(x, [n_rows, width]);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a lane has one value of the gradient, and with a gate two of the inputs.
        unsafe {
            activate_back::launch_unchecked(
                &x.client,
                grid((n_rows * d_ff).div_ceil(LANES), 1),
                CubeDim::new_1d(LANES as u32),
                x.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                of_x.clone().into_buffer_arg(),
                n_rows * d_ff,
                d_ff,
                self.kind,
                self.is_gated,
            );
        }
        vec![Some(of_x)]
    }
}

#[cube(launch_unchecked)]
fn activate_back(
    x: &[f32],
    gradient: &[f32],
    of_x: &mut [f32],
    n_values: usize,
    d_ff: usize,
    #[comptime] kind: Activation,
    #[comptime] is_gated: bool,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_values {
        if comptime!(is_gated) {
            let gate = at / d_ff * 2 * d_ff + at % d_ff;
            of_x[gate] = gradient[at] * x[gate + d_ff] * derivative(x[gate], kind);
            of_x[gate + d_ff] = gradient[at] * nonlinear(x[gate], kind);
        } else {
            of_x[at] = gradient[at] * derivative(x[at], kind);
        }
    }
}

/// The derivative of [`nonlinear`].
#[cube]
fn derivative(x: f32, #[comptime] kind: Activation) -> f32 {
    match comptime!(kind) {
        Activation::Relu => select(x > 0.0f32, 1.0f32, 0.0f32),
        Activation::ReluSquared => 2.0f32 * max(x, 0.0f32),
        Activation::Silu => {
            let share = sigmoid(x);
            share * (1.0f32 + x * (1.0f32 - share))
        }
        Activation::GeluTanh => {
            // sigmoid(2 y) and the derivative of 2 y, where 2 y = 2 sqrt(2 / pi) (x + 0.044715 x^3).
            let share = sigmoid(1.595_769_f32 * (x + 0.044_715f32 * x * x * x));
            let inner = 1.595_769_f32 * (1.0f32 + 0.134_145f32 * x * x);
            share + x * share * (1.0f32 - share) * inner
        }
        // The normal distribution's function, and x times its density.
        Activation::Gelu => {
            0.5f32 * (1.0f32 + Erf::erf(x * 0.707_106_77f32)) + x * 0.398_942_3f32 * (-0.5f32 * x * x).exp()
        }
    }
}
