//! Which whole numbers, and times what, are nearest to 32 weights.

use std::array;

use half::f16;

use super::super::{BASELINE_IS_FUSED, Isa, isa, quant_rows::ROUND, rowwise::for_each_isa};
use crate::ops::{BLOCK_SIZE as BLOCK, QuantizedBlock};

/// Scales that a search tries, side by side: sums over weights are then never taken across a register.
const STEPS: usize = 32;

/// The numbers of 8 bits that are nearest to `weights`.
pub fn nearest_q8(weights: &[f32; BLOCK]) -> QuantizedBlock {
    let largest = weights.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let inverse = inverse(scale.to_f32());
    let values = weights.map(|weight| whole((weight * inverse).clamp(-127.0, 127.0)) as i8);
    QuantizedBlock { scale, minimum: f16::ZERO, values }
}

/// The numbers of 4 bits that are nearest to `weights`, as far as a search finds.
pub(super) fn nearest_q4(weights: &[f32; BLOCK]) -> QuantizedBlock {
    let mut scale = 0.0;
    search_q4_scale(weights, &mut scale);
    let scale = f16::from_f32(scale);
    let inverse = inverse(scale.to_f32());
    QuantizedBlock { scale, minimum: f16::ZERO, values: weights.map(|weight| q4_level(weight * inverse) as i8) }
}

/// The numbers `0..=levels` that are nearest to `weights` above a minimum, as far as a search finds.
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

/// The nearest whole number of a small value. Adding 1.5 * 2^23 rounds without a call, so the compiler vectorises it.
#[inline(always)]
fn whole(value: f32) -> f32 {
    (value + ROUND) - ROUND
}

/// The nearest of the 16 levels.
#[inline(always)]
fn q4_level(value: f32) -> f32 {
    whole(value.clamp(-8.0, 7.0))
}

for_each_isa!(search_q4_scale(weights: &[f32; BLOCK], scale: &mut f32) = search_q4_scale_body);

/// The scale with the smallest sum of squared errors that a search finds. It puts the value farthest from zero at a level
/// from -5 to -9 (beyond -8 it is cut off), so that the side with the larger values has the extra level, rounds with
/// that, and takes the scale that fits those levels best.
#[inline(always)]
fn search_q4_scale_body<const FUSED: bool>(weights: &[f32; BLOCK], scale: &mut f32) {
    let extreme = weights.iter().fold(0.0, |most: f32, value| if value.abs() > most.abs() { *value } else { most });
    *scale = 0.0;
    if extreme == 0.0 {
        return;
    }
    let inverses: [f32; STEPS] = steps(|part| -(5.0 + 4.0 * part) / extreme);
    let (mut dots, mut squares) = ([0.0; STEPS], [0.0; STEPS]);
    for weight in weights {
        for ((inverse, dot), square) in inverses.iter().zip(&mut dots).zip(&mut squares) {
            let level = q4_level(weight * inverse);
            *dot += weight * level;
            *square += level * level;
        }
    }
    // For these levels the best scale is `dot / square`, and leaves `|weights|^2 - dot^2 / square`.
    let best = largest(array::from_fn(|step| dots[step] * dots[step] / squares[step]));
    *scale = dots[best] / squares[best];
}

/// The place of the largest of `gains`, by halves, which processors do without a guess.
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

/// What a search tries: `of` 0 to 1, in even steps.
#[inline(always)]
fn steps(of: impl Fn(f32) -> f32) -> [f32; STEPS] {
    array::from_fn(|step| of(step as f32 / (STEPS - 1) as f32))
}

for_each_isa!(search_line(weights: &[f32; BLOCK], levels: f32, line: &mut [f32; 2]) = search_line_body);

/// The scale and the minimum with the smallest sum of squared errors that a search finds. It spreads the weights over
/// two levels fewer than there are to two levels more (both ends are then cut off at the upper one), rounds, and takes
/// the line that fits those levels best.
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
    let inverses = steps(|part| (levels - 2.0 + 4.0 * part) / (highest - lowest));
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
    *line = [slope, mean - slope * sums[best] / N];
}
