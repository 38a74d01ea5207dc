//! Lossless narrowing of f32 matrices.
//!
//! Many models in f32 were trained or published in bf16 or f16. Their matrices are stored in 16 bits: a decoding step reads
//! half the bytes, and kernels widen the numbers in registers, so every sum has the same bits. Other matrices stay f32.

use half::f16;
use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::{Isa, isa};
use crate::ops::{Dtype, MatrixRows};

/// The narrowest of f32, f16 and bf16 that holds every value exactly.
pub(super) fn narrowest(rows: &MatrixRows<'_, f32>) -> Dtype {
    // In most matrices that use all bits, the first row shows it.
    if each(rows, bits).take(1).any(|used| used & 0x1fff != 0) {
        return Dtype::F32;
    }
    let used = each(rows, bits).reduce(|| 0, |one, other| one | other);
    if used & 0xffff == 0 {
        Dtype::Bf16
    } else if used & 0x1fff == 0 && widens_f16() && each(rows, are_halves).all(|are_halves| are_halves) {
        Dtype::F16
    } else {
        Dtype::F32
    }
}

/// `of` each row.
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

/// Whether f16 holds all `values` exactly.
fn are_halves(values: &[f32]) -> bool {
    values.iter().all(|value| f16::from_f32(*value).to_f32().to_bits() == value.to_bits())
}

/// Whether this machine's kernels widen f16 in registers. All widen bf16 so: it is a shift.
fn widens_f16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return isa() >= Isa::Avx2;
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::noise;

    /// Also if only the last value needs more bits, in any shape.
    #[test]
    fn narrowest_finds_the_smallest_lossless_dtype_of_a_matrix() {
        let cut = |bits: u32| move |value: f32| f32::from_bits(value.to_bits() & !bits);
        let full = noise(3 * 64, 1);
        let narrowest = |values: &[f32]| narrowest(&MatrixRows::of(values, [values.len(), 1]));
        let triples: Vec<f32> = full.iter().copied().map(cut(0xff)).collect();
        let halves: Vec<f32> = full.iter().map(|value| f16::from_f32(*value).to_f32()).collect();
        let bf16: Vec<f32> = full.iter().copied().map(cut(0xffff)).collect();
        let half = if widens_f16() { Dtype::F16 } else { Dtype::F32 };
        for (values, expected) in [(&full, Dtype::F32), (&triples, Dtype::F32), (&halves, half), (&bf16, Dtype::Bf16)] {
            assert_eq!(narrowest(values), expected);
            assert_eq!(super::narrowest(&MatrixRows::of(values, [3, 64])), expected);
            let mut values = values.clone();
            // A value that needs all bits, at the very end.
            values.push(f32::from_bits(0x3f80_0001));
            assert_eq!(narrowest(&values), Dtype::F32);
        }
        assert_eq!(narrowest(&[]), Dtype::Bf16);
        assert_eq!(narrowest(&[-0.0, f32::INFINITY, 1.5]), Dtype::Bf16);
        // Precise enough for f16, but out of its range, or between its subnormals.
        for value in [65536.0 * 1.125_976_6, f32::from_bits(0x3300_2000)] {
            assert_eq!(value.to_bits() & 0x1fff, 0, "{value}");
            assert_eq!(narrowest(&[value]), Dtype::F32, "{value}");
        }
        // The smallest number of f16 has fewer digits than bf16 has.
        assert_eq!(narrowest(&[f16::from_bits(1).to_f32()]), Dtype::Bf16);
    }
}
