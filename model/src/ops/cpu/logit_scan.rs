//! Passes over a whole row of logits on the host, for sampling. A vocabulary has 50,000 tokens and more, and every
//! sequence of a step has such a row.
//!
//! The results are the same bits on every machine, since the tokens drawn with a seed depend on them.

use super::{
    for_each_isa,
    math::{exp, largest, sum},
};

/// Values per maximum of [`block_maxima`].
pub(crate) const SCAN_BLOCK: usize = 128;

/// The largest value of each [`SCAN_BLOCK`], ignoring NaN; -infinity if there is no other.
pub(crate) fn block_maxima(values: &[f32]) -> Vec<f32> {
    let mut maxima = vec![f32::NEG_INFINITY; values.len().div_ceil(SCAN_BLOCK)];
    for (block, maximum) in values.chunks(SCAN_BLOCK).zip(&mut maxima) {
        scan_maximum(block, maximum);
    }
    maxima
}

// One call per block: in a loop over blocks, the compiler would vectorize across blocks, with strided loads.
for_each_isa!(scan_maximum(block: &[f32], maximum: &mut f32) = scan_maximum_body);

#[inline(always)]
fn scan_maximum_body<const FUSED: bool>(block: &[f32], maximum: &mut f32) {
    *maximum = largest(block);
}

/// Whether no value is NaN or +infinity.
pub(crate) fn all_below_infinity(values: &[f32]) -> bool {
    let mut n_others = 0;
    count_others(values, &mut n_others);
    n_others == 0
}

for_each_isa!(count_others(values: &[f32], n_others: &mut u32) = count_others_body);

#[inline(always)]
fn count_others_body<const FUSED: bool>(values: &[f32], n_others: &mut u32) {
    // Without an early exit, so that the compiler vectorizes it.
    *n_others = values.iter().map(|&value| u32::from(value.is_nan() | (value == f32::INFINITY))).sum();
}

/// `e^x` for `x = (value - largest) / temperature` of each value, with a relative error below `1e-6 + 1.2e-7 |x|`, and
/// 0 below `1.2e-38`. No value is above `largest`, so nothing overflows at any temperature.
pub(crate) fn relative_weights(values: &[f32], largest: f32, temperature: f32) -> Vec<f32> {
    let mut weights = vec![0.0; values.len()];
    weigh(values, largest, temperature, &mut weights);
    weights
}

for_each_isa!(weigh(values: &[f32], largest: f32, temperature: f32, weights: &mut [f32]) = weigh_body);

#[inline(always)]
fn weigh_body<const FUSED: bool>(values: &[f32], largest: f32, temperature: f32, weights: &mut [f32]) {
    for (weight, &value) in weights.iter_mut().zip(values) {
        *weight = exp::<false>((value - largest) / temperature);
    }
}

/// The sum in double precision, since a vocabulary is too large for sums in `f32`: 16 partial sums, added in order at
/// the end.
pub(crate) fn sum_of(values: &[f32]) -> f64 {
    let mut total = 0.0;
    add_up(values, &mut total);
    total
}

for_each_isa!(add_up(values: &[f32], total: &mut f64) = add_up_body);

#[inline(always)]
fn add_up_body<const FUSED: bool>(values: &[f32], total: &mut f64) {
    *total = sum(values, f64::from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, noise, with_isa};

    #[test]
    fn logit_scans_are_accurate_and_identical_across_instruction_sets() {
        for n in [0, 1, 15, 16, 127, 128, 129, 1000, 4099] {
            let mut values: Vec<f32> = noise(n, 5).iter().map(|value| value * 30.0).collect();
            if n > 1 {
                values[n / 2] = f32::NEG_INFINITY;
            }
            let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected: Vec<f32> = values
                .chunks(SCAN_BLOCK)
                .map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max))
                .collect();
            let weights = relative_weights(&values, largest, 0.7);
            let sum = sum_of(&weights);
            for (&value, &weight) in values.iter().zip(&weights) {
                let x = (f64::from(value) - f64::from(largest)) / f64::from(0.7_f32);
                let far = (f64::from(weight) - x.exp()).abs();
                assert!(
                    far <= (1e-6 - 1.2e-7 * x) * x.exp() + 1.2e-38 || weight == 0.0 && x < -87.3,
                    "{value}: {weight}"
                );
            }
            let exact: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            assert!((sum - exact).abs() <= 1e-13 * exact);
            for level in every_isa() {
                with_isa(level, || {
                    assert_eq!(block_maxima(&values), expected, "{n} with {level:?}");
                    assert_eq!(relative_weights(&values, largest, 0.7), weights, "{n} with {level:?}");
                    assert_eq!(sum_of(&weights).to_bits(), sum.to_bits(), "{n} with {level:?}");
                    assert!(all_below_infinity(&values));
                });
            }
        }
    }

    #[test]
    fn nan_and_infinity_are_found_at_any_position_of_a_logit_row() {
        for at in [0, 14, 127, 128, 190] {
            for broken in [f32::NAN, -f32::NAN, f32::INFINITY] {
                let mut values = vec![1.0; 191];
                values[at] = broken;
                for level in every_isa() {
                    assert!(!with_isa(level, || all_below_infinity(&values)), "{broken} at {at} with {level:?}");
                }
                values[at] = f32::NEG_INFINITY;
                assert!(all_below_infinity(&values));
            }
        }
        assert_eq!(block_maxima(&[f32::NAN, 2.0, f32::NAN, 1.0]), [2.0]);
        assert_eq!(block_maxima(&[f32::NAN; 3]), [f32::NEG_INFINITY]);
    }
}
