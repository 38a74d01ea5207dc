//! Quantization of 32 weights: the numbers, the scale and the minimum with the smallest error.

use std::array;

use half::f16;

use super::{for_each_isa, quant_rows::ROUND};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock};

/// Scales that a search tries, one per lane, so that sums over weights never cross lanes.
const STEPS: usize = 32;

/// The 8-bit numbers nearest to `weights`.
pub(crate) fn nearest_q8(weights: &[f32; BLOCK]) -> QuantizedBlock {
    let largest = weights.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let inverse = inverse(scale.to_f32());
    let values = weights.map(|weight| whole((weight * inverse).clamp(-127.0, 127.0)) as i8);
    QuantizedBlock { scale, minimum: f16::ZERO, values }
}

/// The numbers `-middle..middle` nearest to `weights`, as far as a search finds them.
pub(super) fn nearest_around_zero(weights: &[f32; BLOCK], middle: u8) -> QuantizedBlock {
    let middle = f32::from(middle);
    let mut scale = 0.0;
    search_scale(weights, middle, &mut scale);
    let scale = f16::from_f32(scale);
    let inverse = inverse(scale.to_f32());
    let values = weights.map(|weight| whole((weight * inverse).clamp(-middle, middle - 1.0)) as i8);
    QuantizedBlock { scale, minimum: f16::ZERO, values }
}

/// The numbers `0..=levels` above a minimum nearest to `weights`, as far as a search finds them.
pub(super) fn nearest_above_minimum(weights: &[f32; BLOCK], levels: u8) -> QuantizedBlock {
    let levels = f32::from(levels);
    let mut line = [0.0; 2];
    search_line(weights, levels, &mut line);
    let [scale, minimum] = line.map(f16::from_f32);
    let (inverse, start) = (inverse(scale.to_f32()), minimum.to_f32());
    let values = weights.map(|weight| whole(((weight - start) * inverse).clamp(0.0, levels)) as i8);
    QuantizedBlock { scale, minimum, values }
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The nearest integer of a small value. Adding 1.5 * 2^23 rounds without a call, so the compiler vectorises it.
#[inline(always)]
fn whole(value: f32) -> f32 {
    (value + ROUND) - ROUND
}

for_each_isa!(search_scale(weights: &[f32; BLOCK], middle: f32, scale: &mut f32) = search_scale_body);

/// The scale with the smallest sum of squared errors that a search finds. It maps the value farthest from zero to a level
/// from `3 - middle` to nearly `-1 - middle` (levels below `-middle` are clamped), so that the side with the larger values
/// has the extra level, rounds with that, and takes the scale that fits those levels best.
#[inline(always)]
fn search_scale_body<const FUSED: bool>(weights: &[f32; BLOCK], middle: f32, scale: &mut f32) {
    let extreme = weights.iter().fold(0.0, |most: f32, value| if value.abs() > most.abs() { *value } else { most });
    *scale = 0.0;
    if extreme == 0.0 {
        return;
    }
    let inverses: [f32; STEPS] = steps(|more| -(middle - 3.0 + more) / extreme);
    let (mut dots, mut squares) = ([0.0; STEPS], [0.0; STEPS]);
    for weight in weights {
        for ((inverse, dot), square) in inverses.iter().zip(&mut dots).zip(&mut squares) {
            let level = whole((weight * inverse).clamp(-middle, middle - 1.0));
            *dot += weight * level;
            *square += level * level;
        }
    }
    // For these levels the best scale is `dot / square`, and leaves `|weights|^2 - dot^2 / square`.
    let best = largest(array::from_fn(|step| dots[step] * dots[step] / squares[step]));
    let found = dots[best] / squares[best];
    // Weights near the smallest numbers of f32 have no inverse, and are zero in f16.
    if found.is_finite() {
        *scale = found;
    }
}

/// The index of the largest of `gains`, by halving, without branches.
#[inline(always)]
fn largest(mut gains: [f32; STEPS]) -> usize {
    let mut places: [u32; STEPS] = array::from_fn(|step| step as u32);
    for half in [16, 8, 4, 2, 1] {
        for step in 0..half {
            let is_larger = gains[step + half] > gains[step];
            gains[step] = if is_larger { gains[step + half] } else { gains[step] };
            places[step] = if is_larger { places[step + half] } else { places[step] };
        }
    }
    places[0] as usize % STEPS
}

/// The candidates of a search: `of` 0, 1/8, 2/8 and so on.
#[inline(always)]
fn steps(of: impl Fn(f32) -> f32) -> [f32; STEPS] {
    array::from_fn(|step| of(step as f32 / 8.0))
}

for_each_isa!(search_line(weights: &[f32; BLOCK], levels: f32, line: &mut [f32; 2]) = search_line_body);

/// The scale and the minimum with the smallest sum of squared errors that a search finds. It maps the range of
/// the weights to `levels - 2` to nearly `levels + 2` steps (clamped to `levels`), rounds, and takes the line that fits
/// those levels best.
#[inline(always)]
fn search_line_body<const FUSED: bool>(weights: &[f32; BLOCK], levels: f32, line: &mut [f32; 2]) {
    const N: f32 = BLOCK as f32;
    let lowest = weights.iter().fold(f32::INFINITY, |least, value| least.min(*value));
    let highest = weights.iter().fold(f32::NEG_INFINITY, |most, value| most.max(*value));
    let mean = weights.iter().sum::<f32>() / N;
    *line = [0.0, lowest];
    if lowest >= highest {
        return;
    }
    let inverses = steps(|more| (levels - 2.0 + more) / (highest - lowest));
    let (mut sums, mut dots, mut squares) = ([0.0; STEPS], [0.0; STEPS], [0.0; STEPS]);
    for weight in weights {
        for (((inverse, sum), dot), square) in inverses.iter().zip(&mut sums).zip(&mut dots).zip(&mut squares) {
            let level = whole(((weight - lowest) * inverse).clamp(0.0, levels));
            *sum += level;
            *dot += (weight - mean) * level;
            *square += level * level;
        }
    }
    // Linear regression: the line of slope `dot / spread` through the means takes `dot^2 / spread` off the weights' own
    // spread.
    let spreads: [f32; STEPS] = array::from_fn(|step| squares[step] - sums[step] * sums[step] / N);
    let best = largest(array::from_fn(|step| dots[step] * dots[step] / spreads[step]));
    let slope = dots[best] / spreads[best];
    // As above: ranges near the smallest numbers of f32 have no inverse.
    if slope.is_finite() {
        *line = [slope, mean - slope * sums[best] / N];
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::PI;

    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, noise, with_isa};

    /// The error with the searched scale is at most 1 % above that with each scale that needs no search.
    #[test]
    fn quantization_scale_search_is_no_worse_than_plain_scales() {
        for seed in 0..200 {
            let some = noise(BLOCK, seed);
            let skew = if seed % 3 == 0 { 0.5 } else { 0.0 };
            let weights: [f32; BLOCK] = array::from_fn(|n| (some[n] + skew) * 0.1 * (1.0 + seed as f32));
            let error = |block: &QuantizedBlock| -> f32 {
                block.weights().iter().zip(weights).map(|(found, weight)| (found - weight).powi(2)).sum()
            };
            let extreme =
                weights.iter().fold(0.0, |most: f32, value| if value.abs() > most.abs() { *value } else { most });
            let plain = |scale: f32| {
                let values = weights.map(|weight| (weight / scale).round().clamp(-8.0, 7.0) as i8);
                error(&QuantizedBlock { scale: f16::from_f32(scale), minimum: f16::ZERO, values })
            };
            let block = nearest_around_zero(&weights, 8);
            let q4 = error(&block);
            assert!(q4 <= 1.01 * plain(extreme / -7.0) && q4 <= 1.01 * plain(extreme / -8.0), "{seed}: {q4}");
            let lowest = weights.iter().fold(f32::INFINITY, |least, value| least.min(*value));
            let highest = weights.iter().fold(f32::NEG_INFINITY, |most, value| most.max(*value));
            let from_end_to_end = |levels: f32| {
                let scale = (highest - lowest) / levels;
                let values = weights.map(|weight| ((weight - lowest) / scale).round().clamp(0.0, levels) as i8);
                error(&QuantizedBlock { scale: f16::from_f32(scale), minimum: f16::from_f32(lowest), values })
            };
            let [q4_1, q5_1] = [15, 31].map(|levels| nearest_above_minimum(&weights, levels));
            assert!(error(&q4_1) <= 1.01 * from_end_to_end(15.0), "{seed}");
            assert!(error(&q5_1) <= 1.01 * from_end_to_end(31.0), "{seed}");
            for level in every_isa() {
                with_isa(level, || {
                    assert_eq!(nearest_around_zero(&weights, 8), block);
                    assert_eq!(nearest_above_minimum(&weights, 15), q4_1);
                });
            }
        }
    }

    #[test]
    fn quantizing_extreme_weights_keeps_errors_finite_and_small() {
        let cases: [fn(usize) -> f32; 7] = [
            |_| 0.0,
            |n| if n == 3 { f32::from_bits(1) } else { 0.0 },
            |n| n as f32 * 1e-40,
            |n| (n as f32 - 7.0) * 2e-39,
            |n| if n == 0 { 2e-38 } else { -1e-38 },
            |_| PI,
            |n| if n == 31 { 1e4 } else { 1e-30 },
        ];
        for (number, case) in cases.into_iter().enumerate() {
            let weights: [f32; BLOCK] = array::from_fn(case);
            let largest = weights.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            for block in [nearest_q8(&weights), nearest_around_zero(&weights, 8), nearest_above_minimum(&weights, 15)] {
                let errors = block.weights().into_iter().zip(weights).map(|(found, weight)| (found - weight).abs());
                let most = errors.fold(0.0, |most: f32, error| if error.is_nan() { error } else { most.max(error) });
                // Half a step of 4 bits, plus the rounding error of f16.
                assert!(most <= largest / 12.0 + 1e-7, "case {number}: {most}");
            }
        }
    }
}
