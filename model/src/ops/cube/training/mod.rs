//! Operations with a backward pass.

mod activation;
mod attention;
mod cross_entropy;
mod embedding;
mod linear;
mod norm;
mod residual;

use burn_cubecl::cubecl::{self, prelude::*};

use super::launch::{LANES, add_lanes};

pub(in crate::ops) use attention::RopeAttend;
pub(in crate::ops) use cross_entropy::LinearCrossEntropy;
pub(in crate::ops) use embedding::Embed;
pub(in crate::ops) use linear::Linear;

/// The largest of the values of all lanes, returned in every lane. `values` has one element per lane.
#[cube]
fn largest_of_lanes(values: &mut Shared<[f32]>) -> f32 {
    let lane = UNIT_POS_X as usize;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(LANES.ilog2() as usize) {
        let half = comptime!(LANES >> (step + 1));
        if lane < half {
            values[lane] = max(values[lane], values[lane + half]);
        }
        sync_cube();
    }
    let largest = values[0];
    // All lanes have read it before it is overwritten.
    sync_cube();
    largest
}

/// The sum of the values of all lanes, returned in every lane.
#[cube]
fn sum_of_lanes(values: &mut Shared<[f32]>) -> f32 {
    add_lanes(values, 1usize, LANES, LANES);
    let sum = values[0];
    sync_cube();
    sum
}

/// `cap * tanh(x / cap)`.
#[cube]
fn soft_capped(x: f32, cap: f32) -> f32 {
    cap * bounded_tanh(x / cap)
}

#[cube]
fn bounded_tanh(x: f32) -> f32 {
    // Beyond 10, tanh is 1 in f32. Without the clamp, some drivers would divide infinity by infinity.
    clamp(x, -10.0f32, 10.0f32).tanh()
}
