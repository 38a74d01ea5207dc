//! Updates of the residual stream, and dropout.

use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::LANES;
use crate::{
    ops::{
        Dropout,
        cube::launch::{empty, grid, workgroup},
        types::{AddUpdate, TrainingOp},
    },
    philox::halves,
};

/// Philox counters per block of values; words are in the same order as on the CPU ([`Dropout::BLOCK`]).
const COUNTERS: usize = Dropout::BLOCK / 4;

impl AddUpdate {
    /// `residual + multiplier * dropout(update)`, in the shape of `update`.
    fn scaled_on_gpu(&self, update: &CubeTensor, residual: Option<&CubeTensor>) -> CubeTensor {
        let [n_rows, width] = update.meta.shape().dims::<2>();
        let len = n_rows * width;
        let output = empty(update, [n_rows, width]);
        let dropout = self.dropout.unwrap_or(Dropout { probability: 0.0, seed: 0, place: 0 });
        let [seed_low, seed_high] = halves(dropout.seed);
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each lane has its own four values, and skips those beyond the length.
        unsafe {
            scale_values::launch_unchecked(
                &output.client,
                grid(len.div_ceil(4 * LANES), 1),
                CubeDim::new_1d(LANES as u32),
                update.clone().into_buffer_arg(),
                residual.unwrap_or(update).clone().into_buffer_arg(),
                output.clone().into_buffer_arg(),
                len,
                (self.multiplier / (1.0 - dropout.probability)) as f32,
                dropout.threshold(),
                seed_low,
                seed_high,
                dropout.place,
                self.dropout.is_some(),
                residual.is_some(),
            );
        }
        output
    }
}

impl TrainingOp<CubeTensor> for AddUpdate {
    fn forward(&self, inputs: &[CubeTensor], _wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        (self.scaled_on_gpu(&inputs[0], inputs.get(1)), Vec::new())
    }

    fn keeps_inputs(&self) -> bool {
        false
    }

    fn backward(
        &self,
        _inputs: &[CubeTensor],
        _saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let is_unchanged = self.multiplier == 1.0 && self.dropout.is_none();
        let of_update = || if is_unchanged { gradient.clone() } else { self.scaled_on_gpu(gradient, None) };
        let of_residual = wanted.get(1).map(|wanted| wanted.then(|| gradient.clone()));
        [wanted[0].then(of_update)].into_iter().chain(of_residual).collect()
    }
}

/// The random words are the CPU's, so the same values are dropped on every device.
#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and numbers of a kernel")]
fn scale_values(
    update: &[f32],
    residual: &[f32],
    output: &mut [f32],
    len: usize,
    factor: f32,
    threshold: u32,
    seed_low: u32,
    seed_high: u32,
    place: u32,
    #[comptime] has_dropout: bool,
    #[comptime] has_residual: bool,
) {
    let number = workgroup() * LANES + UNIT_POS_X as usize;
    let first = number / COUNTERS * comptime!(4 * COUNTERS) + number % COUNTERS;
    let mut words = Array::<u32>::new(4usize);
    if comptime!(has_dropout) {
        words[0] = u32::cast_from(number);
        words[1] = u32::new(0);
        words[2] = place;
        words[3] = u32::new(comptime!(Dropout::PURPOSE as i64));
        let mut key_0 = seed_low;
        let mut key_1 = seed_high;
        // Rounds and constants of `crate::philox`.
        #[unroll]
        for _ in 0..10 {
            let high_0 = words[0].mul_hi(0xD251_1F53u32);
            let low_0 = words[0] * 0xD251_1F53u32;
            let high_1 = words[2].mul_hi(0xCD9E_8D57u32);
            let low_1 = words[2] * 0xCD9E_8D57u32;
            words[0] = high_1 ^ words[1] ^ key_0;
            words[1] = low_1;
            words[2] = high_0 ^ words[3] ^ key_1;
            words[3] = low_0;
            key_0 += 0x9E37_79B9u32;
            key_1 += 0xBB67_AE85u32;
        }
    }
    #[unroll]
    for n in 0..4usize {
        let at = first + n * COUNTERS;
        if at < len {
            let mut value = update[at] * factor;
            if comptime!(has_dropout) {
                value = select(words[n] < threshold, 0.0f32, value);
            }
            if comptime!(has_residual) {
                value += residual[at];
            }
            output[at] = value;
        }
    }
}
