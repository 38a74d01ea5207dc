//! How few bytes hold the very numbers of an f32 matrix.
//!
//! A model in f32 was often something narrower before: most are published in bf16, older ones in f16, and one that was
//! quantized once and widened again has numbers of few digits. What a step of decoding reads then shrinks to what the
//! numbers need, and every sum stays what it is, to the bit, since a kernel widens them in registers before it
//! multiplies. Numbers that use all their bits stay as they are.

use half::f16;
use rayon::prelude::*;

use super::{Isa, isa};
use crate::ops::MatrixRows;

/// The bytes of an f32 that a matrix is held in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// All four.
    Full,
    /// The upper three: the lowest is zero in all numbers.
    Triple,
    /// Two, as f16: all numbers are numbers of f16.
    Half,
    /// The upper two.
    Bf16,
}

/// The least that holds every value.
pub(super) fn width(rows: &MatrixRows<'_, f32>) -> Width {
    // In most matrices that use all bits, the first row tells.
    if each(rows, bits).take(1).any(|used| used & 0xff != 0) {
        return Width::Full;
    }
    let used = each(rows, bits).reduce(|| 0, |one, other| one | other);
    if used & 0xffff == 0 {
        Width::Bf16
    } else if used & 0xff != 0 || !widens_in_registers() {
        Width::Full
    } else if used & 0x1fff == 0 && each(rows, are_halves).all(|are_halves| are_halves) {
        Width::Half
    } else {
        Width::Triple
    }
}

/// What `of` says of each row.
fn each<T: Send>(
    rows: &MatrixRows<'_, f32>,
    of: impl Fn(&[f32]) -> T + Send + Sync,
) -> impl IndexedParallelIterator<Item = T> {
    let [d_out, d_in] = rows.dims();
    (0..d_out).into_par_iter().map_init(Vec::new, move |row, number| {
        row.resize(d_in, 0.0);
        rows.read(number, row);
        of(row)
    })
}

/// The bits that any of `values` uses.
fn bits(values: &[f32]) -> u32 {
    values.iter().fold(0, |used, value| used | value.to_bits())
}

/// Whether all `values`, which have 13 bits less behind the point, as f16 has, are within its range.
fn are_halves(values: &[f32]) -> bool {
    values.iter().all(|value| f16::from_f32(*value).to_f32().to_bits() == value.to_bits())
}

/// Whether this machine's kernels make f32 of three bytes, or of f16, as fast as they read it. They do of bf16 anywhere:
/// that is a shift.
fn widens_in_registers() -> bool {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => false,
        Isa::Baseline => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::levels::noise;

    /// The last value alone may need more, however many there are.
    #[test]
    fn the_width_is_the_least_that_keeps_every_bit() {
        let cut = |bits: u32| move |value: f32| f32::from_bits(value.to_bits() & !bits);
        let full = noise(3 * 64, 1);
        let width = |values: &[f32]| width(&MatrixRows::of(values, [values.len(), 1]));
        let triples: Vec<f32> = full.iter().copied().map(cut(0xff)).collect();
        let halves: Vec<f32> = full.iter().map(|value| f16::from_f32(*value).to_f32()).collect();
        let bf16: Vec<f32> = full.iter().copied().map(cut(0xffff)).collect();
        let here = |width| if widens_in_registers() { width } else { Width::Full };
        let (triple, half) = (here(Width::Triple), here(Width::Half));
        let all = [(&full, Width::Full), (&triples, triple), (&halves, half), (&bf16, Width::Bf16)];
        for (values, expected) in all {
            assert_eq!(width(values), expected);
            assert_eq!(super::width(&MatrixRows::of(values, [3, 64])), expected);
            let mut values = values.clone();
            // One more bit than a triple has, at the very end.
            values.push(f32::from_bits(0x3f80_0001));
            assert_eq!(width(&values), Width::Full);
        }
        assert_eq!(width(&[]), Width::Bf16);
        assert_eq!(width(&[-0.0, f32::INFINITY, 1.5]), Width::Bf16);
        // Digits of f16, but beyond its range, or between its smallest numbers.
        for value in [65536.0 * 1.125_976_6, f32::from_bits(0x3300_2000)] {
            assert_eq!(value.to_bits() & 0x1fff, 0, "{value}");
            assert_eq!(width(&[value]), triple, "{value}");
        }
        // The smallest number of f16 has fewer digits than bf16 has.
        assert_eq!(width(&[f16::from_bits(1).to_f32()]), Width::Bf16);
    }
}
