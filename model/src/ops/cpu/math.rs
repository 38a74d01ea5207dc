//! Functions of one value that the compiler can vectorize (no branches, calls or tables), and sums and maxima of a row.

use std::{iter::Sum, ops::AddAssign};

use super::multiply_add;

/// Partial sums and maxima of a row: one AVX-512 register of f32.
const LANES: usize = 16;

/// The sum of `f` over the values, in 16 partial sums that are added in order at the end.
#[inline(always)]
pub(super) fn sum<T: Copy + Default + AddAssign + Sum>(values: &[f32], f: impl Fn(f32) -> T) -> T {
    sum_of_pairs(values, values, |value, _| f(value))
}

/// As [`sum`], over pairs of values from two slices of equal length.
#[inline(always)]
pub(super) fn sum_of_pairs<T: Copy + Default + AddAssign + Sum>(
    one: &[f32],
    other: &[f32],
    f: impl Fn(f32, f32) -> T,
) -> T {
    let mut sums = [T::default(); LANES];
    let ((ones, rest), (others, other_rest)) = (one.as_chunks::<LANES>(), other.as_chunks::<LANES>());
    for (one, other) in ones.iter().zip(others) {
        for ((sum, &one), &other) in sums.iter_mut().zip(one).zip(other) {
            *sum += f(one, other);
        }
    }
    for ((sum, &one), &other) in sums.iter_mut().zip(rest).zip(other_rest) {
        *sum += f(one, other);
    }
    sums.into_iter().sum()
}

/// The largest value, ignoring NaN; -infinity if there is no other.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane = larger(value, *lane));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &value)| *lane = larger(value, *lane));
    for half in [8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, &mut high)| *low = larger(high, *low));
    }
    lanes[0]
}

/// The maximum, or `other` if `value` is NaN; one instruction.
#[inline(always)]
fn larger(value: f32, other: f32) -> f32 {
    if value > other { value } else { other }
}

/// `e^x`, to within 2 units in the last place for results from 2^-126 to 2^127.5; 0 below, infinity above.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its series to the sixth power, and `2^n` by building the exponent
/// (Cody and Waite's reduction: `ln 2` in two parts, so that `r` is exact).
#[inline(always)]
pub(super) fn exp<const FUSED: bool>(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.7);
    let rounded = multiply_add::<FUSED>(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = multiply_add::<FUSED>(n, -LN2_LOW, multiply_add::<FUSED>(n, -LN2_HIGH, clamped));
    let mut series = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = multiply_add::<FUSED>(series, r, coefficient);
    }
    // n is in -126..=128; 128 gives the exponent of infinity. The lowest bits of `rounded` are those of n; a saturating
    // conversion would not be vectorized.
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { series * power }
}

/// `2^x` for `x` of at most 0, to within 3 units in the last place for results from 2^-126; 0 below.
///
/// `x = n + r` with `|r| <= 1/2`; `2^r` by its series to the sixth power, and `2^n` by building the exponent.
#[inline(always)]
pub(super) fn exp2_nonpositive<const FUSED: bool>(x: f32) -> f32 {
    use std::f32::consts::LN_2;
    // As in `exp`.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x + ROUND;
    let r = x - (rounded - ROUND);
    let square = LN_2 * LN_2;
    let mut series = square * square * square / 720.0;
    for coefficient in
        [square * square * LN_2 / 120.0, square * square / 24.0, square * LN_2 / 6.0, square / 2.0, LN_2, 1.0]
    {
        series = multiply_add::<FUSED>(series, r, coefficient);
    }
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < -126.0 { 0.0 } else { series * power }
}

/// `tanh x`, with a relative error below `5e-7`: by its series if `|x| < 0.35`, where the other formula loses digits,
/// else as `1 - 2 / (e^2x + 1)`.
#[inline(always)]
pub(super) fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let square = x * x;
    let mut series = -1382.0 / 155_925.0;
    for coefficient in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        series = multiply_add::<FUSED>(series, square, coefficient);
    }
    let far = 1.0 - 2.0 / (exp::<FUSED>(2.0 * x) + 1.0);
    if square < 0.1225 { x * series } else { far }
}

/// GELU, `x` times the normal distribution function of `x`, which is `x / 2 erfc(-x / sqrt(2))`, with a relative error
/// below `8e-7 + 4e-8 x^2`.
#[inline(always)]
pub(super) fn gelu<const FUSED: bool>(x: f32) -> f32 {
    let beyond = upper_tail::<FUSED>(x);
    if x < 0.0 { x * beyond } else { x - x * beyond }
}

/// The share of a normal distribution above `|x|`: `erfc(|x| / sqrt(2)) / 2`.
///
/// `erfc(z) e^(z^2)` is `t` times a polynomial in `t = 1 / (1 + 0.3 z)`, within `2e-8`: fitted by least squares at
/// Chebyshev points for `z` in `0..9.5`, with weights that reduce the largest errors (Lawson's algorithm).
#[inline(always)]
pub(super) fn upper_tail<const FUSED: bool>(x: f32) -> f32 {
    let t = 1.0 / multiply_add::<FUSED>(0.3 * std::f32::consts::FRAC_1_SQRT_2, x.abs(), 1.0);
    let mut series = -0.129_434_29;
    for coefficient in
        [0.485_097_46, -0.511_228_5, 0.546_397_4, -0.093_632_84, 0.214_436_93, 0.148_482_27, 0.170_691_96, 0.169_189_61]
    {
        series = multiply_add::<FUSED>(series, t, coefficient);
    }
    0.5 * t * series * exp::<FUSED>(-0.5 * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths with and without a last chunk that is not full; the values are large and small, so the order shows in the
    /// bits.
    #[test]
    fn sums_add_lanes_in_order_and_maxima_ignore_nan() {
        for n in [0, 1, 15, 16, 17, 32, 100] {
            let values: Vec<f32> = (0..n).map(|n| ((n * 37 % 23) as f32 - 9.0) * 10.0_f32.powi(n % 7)).collect();
            let others: Vec<f32> = (0..n).map(|n| 1.0 / (n as f32 + 3.0)).collect();
            let mut lanes = [0.0_f32; 16];
            for (n, (value, other)) in values.iter().zip(&others).enumerate() {
                lanes[n % 16] += value * other;
            }
            let expected: f32 = lanes.iter().sum();
            let found = sum_of_pairs(&values, &others, |value, other| value * other);
            assert_eq!(found.to_bits(), expected.to_bits(), "{n} pairs");

            let mut lanes = [0.0_f64; 16];
            values.iter().enumerate().for_each(|(n, &value)| lanes[n % 16] += f64::from(value));
            let expected: f64 = lanes.iter().sum();
            assert_eq!(sum(&values, f64::from).to_bits(), expected.to_bits(), "{n} values");

            let mut values = values;
            let expected = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest(&values), expected, "{n} values");
            values.insert(n as usize / 2, f32::NAN);
            assert_eq!(largest(&values), expected, "{n} values and NaN");
        }
    }

    #[test]
    fn tanh_matches_f64_within_tolerance() {
        for n in (-100_000..=100_000).filter(|&n| n != 0) {
            let x = n as f32 * 1e-3;
            for found in [tanh::<true>(x), tanh::<false>(x)] {
                let far = (f64::from(found) / f64::from(x).tanh() - 1.0).abs();
                assert!(far < 5e-7, "tanh({x}) is {found}");
            }
        }
        assert_eq!((tanh::<true>(0.0), tanh::<true>(1e30), tanh::<true>(-1e30)), (0.0, 1.0, -1.0));
    }

    /// The distribution's tail by its continued fraction, which the approximation was not fitted with below 2.
    #[test]
    fn gelu_matches_exact_gelu_within_tolerance() {
        let above = |z: f64| {
            let fraction = (1..400).rev().fold(z, |below, n| z + f64::from(n) / below);
            (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() / fraction
        };
        for n in -130_000..=130_000 {
            let x = n as f32 * 1e-4;
            let wide = f64::from(x);
            // Where the fraction is slow to converge: the series of the distribution around 0.
            let below = if wide.abs() < 2.0 {
                let mut term = wide;
                let sum: f64 = (1..60).fold(wide, |sum, n| {
                    term *= wide * wide / f64::from(2 * n + 1);
                    sum + term
                });
                0.5 + sum * (-wide * wide / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
            } else if wide < 0.0 {
                above(-wide)
            } else {
                1.0 - above(wide)
            };
            let expected = wide * below;
            let allowed = 8e-7 + 4e-8 * wide * wide;
            for found in [gelu::<true>(x), gelu::<false>(x)] {
                let far = (f64::from(found) - expected).abs();
                assert!(far <= allowed * expected.abs() + 1e-38, "gelu({x}) is {found}, expected {expected}");
            }
        }
        assert_eq!((gelu::<true>(0.0), gelu::<true>(-30.0), gelu::<true>(1e20)), (0.0, 0.0, 1e20));
        assert!(gelu::<true>(f32::NAN).is_nan() && gelu::<false>(-1e30) == 0.0);
    }

    #[test]
    fn exp2_nonpositive_matches_f64_within_tolerance() {
        for n in -1_260_000..=0 {
            let x = n as f32 * 1e-4;
            let expected = f64::from(x).exp2();
            for found in [exp2_nonpositive::<true>(x), exp2_nonpositive::<false>(x)] {
                let far = (f64::from(found) / expected - 1.0).abs();
                assert!(far < 3.5e-7, "2^{x} is {found}, expected {expected}");
            }
        }
        let found = [0.0, -1.0, -126.5, -1e9, -1e30, f32::NEG_INFINITY].map(exp2_nonpositive::<true>);
        assert_eq!(found, [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]);
        assert!(exp2_nonpositive::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn exp_matches_f64_within_tolerance() {
        for n in -870_000..=883_700 {
            let x = n as f32 * 1e-4;
            let (found, expected) = (exp::<true>(x), f64::from(x).exp());
            let far = (f64::from(found) / expected - 1.0).abs();
            assert!(far < 2.5e-7, "exp({x}) is {found}, expected {expected}");
            assert!((f64::from(exp::<false>(x)) / expected - 1.0).abs() < 1e-6);
        }
        assert_eq!((exp::<true>(0.0), exp::<true>(-1e30), exp::<true>(-88.0)), (1.0, 0.0, 0.0));
        assert_eq!((exp::<true>(88.7), exp::<true>(1e30)), (f32::INFINITY, f32::INFINITY));
    }
}
