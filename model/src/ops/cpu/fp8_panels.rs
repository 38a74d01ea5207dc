//! Matrices of 8-bit floats (E4M3), with a scale for each block of rows and inputs, for each row, or for all.
//!
//! The inputs of a block are multiplied by its scale before they meet the weights, which is exact and done once for all
//! rows of a block; the scale of a row or of the whole matrix multiplies the sums. So a product reads one byte per
//! weight.

use std::{array, cell::RefCell, fmt};

use super::{
    gemm_float::{self, PanelLine},
    huge_pages::Stored,
    panel_layout::{PANEL, each_panel},
    panel_storage::{Input, PanelValues},
    prefetch::ReadRange,
};
use crate::ops::{
    MatrixRows, Precision, QuantizedBlock,
    k_quants::{Fp8Scales, e4m3},
};

/// The weights of a panel's 32 rows at one input.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(super) struct Fp8Line([u8; PANEL]);

/// Corrects the exponent bias: an f32 made of an E4M3 weight's bits, shifted into place, times this is the weight.
const BIAS: f32 = f32::from_bits((127 + 120) << 23);

impl PanelLine for Fp8Line {
    const LINES: usize = 1;
    const ZERO: Self = Self([0; PANEL]);

    fn store(_: &mut [Self], _: usize, _: f32) {
        unreachable!("weights are not rounded to a format that only files have")
    }

    #[inline(always)]
    fn widen(lines: &[Self]) -> [f32; PANEL] {
        array::from_fn(|row| {
            let byte = u32::from(lines[0].0[row]);
            f32::from_bits((byte << 24 & 1 << 31) | (byte & 0x7f) << 20) * BIAS
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(lines: *const Self) -> [std::arch::x86_64::__m512; 2] {
        use std::arch::x86_64::{
            __m128i, _mm_load_si128, _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtepu8_epi32, _mm512_mul_ps,
            _mm512_or_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32,
        };
        array::from_fn(|n| {
            // SAFETY: the caller guarantees a line of 32 bytes, aligned as such.
            let bytes = unsafe { _mm_load_si128(lines.cast::<__m128i>().add(n)) };
            let words = _mm512_cvtepu8_epi32(bytes);
            let sign = _mm512_and_si512(_mm512_slli_epi32::<24>(words), _mm512_set1_epi32(i32::MIN));
            let size = _mm512_slli_epi32::<20>(_mm512_and_si512(words, _mm512_set1_epi32(0x7f)));
            _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(sign, size)), _mm512_set1_ps(BIAS))
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "raw loads in the innermost loop")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load_eight(lines: *const Self, n: usize) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::{
            __m128i, _mm_loadl_epi64, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtepu8_epi32, _mm256_mul_ps,
            _mm256_or_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32,
        };
        // SAFETY: the caller guarantees a line of four times 8 bytes.
        let words = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(lines.cast::<u8>().add(8 * n).cast::<__m128i>()) });
        let sign = _mm256_and_si256(_mm256_slli_epi32::<24>(words), _mm256_set1_epi32(i32::MIN));
        let size = _mm256_slli_epi32::<20>(_mm256_and_si256(words, _mm256_set1_epi32(0x7f)));
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(sign, size)), _mm256_set1_ps(BIAS))
    }
}

/// A matrix of 8-bit floats.
pub(super) struct Fp8Panels {
    d_in: usize,
    lines: Stored<Fp8Line>,
    scales: Fp8Scales,
}

impl Fp8Panels {
    /// Lays out a matrix. Blocks have one row, or whole panels.
    pub(super) fn new(rows: &MatrixRows<'_, u8>, scales: &Fp8Scales) -> Self {
        let [d_out, d_in] = rows.dims();
        let lines = Stored::new(d_out.div_ceil(PANEL) * d_in, Fp8Line::ZERO, |lines| {
            each_panel(rows, lines, d_in, |lines, rows| {
                for (lane, row) in rows.chunks_exact(d_in).enumerate() {
                    lines.iter_mut().zip(row).for_each(|(line, &byte)| line.0[lane] = byte);
                }
            });
        });
        Self { d_in, lines, scales: scales.clone() }
    }

    fn panel(&self, panel: usize) -> &[Fp8Line] {
        &self.lines[panel * self.d_in..][..self.d_in]
    }

    /// The factors of the 32 rows of a panel, if blocks have all inputs of a row.
    fn row_factors(&self, panel: usize) -> Option<[f32; PANEL]> {
        let of_row = |lane| self.scales.of_row(panel * PANEL + lane).first().copied().unwrap_or_default();
        (self.scales.n_blocks == 1).then(|| array::from_fn(of_row))
    }
}

thread_local! {
    /// Inputs times the scales of their blocks.
    static SCALED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl PanelValues for Fp8Panels {
    fn n_bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.scales.values)
    }

    fn read_range(&self, n_parts: usize) -> ReadRange {
        ReadRange::of(&self.lines, n_parts)
    }

    fn input<'a>(&self, x: &'a [f32], _: Precision) -> Input<'a> {
        Input::Float(x)
    }

    fn multiply(&self, input: &Input<'_>, panel: usize, store: &mut dyn FnMut(usize, &[f32; PANEL])) {
        let Input::Float(x) = input else { unreachable!("`input` made it") };
        let lines = self.panel(panel);
        if let Some(factors) = self.row_factors(panel) {
            return gemm_float::multiply_rows(x, lines, self.d_in, |row, sums| {
                store(row, &array::from_fn(|lane| sums[lane] * factors[lane]));
            });
        }
        SCALED.with_borrow_mut(|scaled| {
            scaled.clear();
            let scales = self.scales.of_row(panel * PANEL);
            for x in x.chunks_exact(self.d_in) {
                for (x, scale) in x.chunks(self.scales.block[1]).zip(scales) {
                    scaled.extend(x.iter().map(|x| x * scale));
                }
            }
            gemm_float::multiply_rows(scaled, lines, self.d_in, store);
        });
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let bytes = self.panel(row / PANEL).iter().map(|line| line.0[row % PANEL]);
        let scales = self.scales.of_row(row);
        bytes.enumerate().map(|(input, byte)| e4m3(byte) * scales[input / self.scales.block[1]]).collect()
    }

    fn widen(&self, panel: usize, first: usize, lines: &mut [[f32; PANEL]]) {
        for (input, (line, stored)) in (first..).zip(lines.iter_mut().zip(&self.panel(panel)[first..])) {
            *line = array::from_fn(|lane| {
                let scales = self.scales.of_row(panel * PANEL + lane);
                e4m3(stored.0[lane]) * scales.get(input / self.scales.block[1]).copied().unwrap_or_default()
            });
        }
    }

    fn blocks(&self, _: usize) -> Option<Vec<QuantizedBlock>> {
        None
    }
}

impl fmt::Debug for Fp8Panels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines of panels", self.lines.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::isa::tests::{every_isa, noise, with_isa};

    /// Every byte that is a number, and sums in f64; rows alone and together, at every instruction set.
    #[test]
    fn products_of_8_bit_floats_match_f64_sums() {
        for (dims @ [d_out, d_in], block) in [
            ([40_usize, 300_usize], [32_usize, 128_usize]),
            ([70, 96], [1, 96]),
            ([33, 256], [64, 256]),
            ([128, 257], [64, 64]),
        ] {
            let bytes: Vec<u8> =
                (0..d_out * d_in).map(|n| (n * 37 % 255) as u8).map(|n| if n == 127 { 0 } else { n }).collect();
            let n_blocks = d_in.div_ceil(block[1]);
            let n_scales = d_out.div_ceil(block[0]) * n_blocks;
            let values = noise(n_scales, 5).iter().map(|value| value * 1e-5).collect();
            let scales = Fp8Scales { values, block, n_blocks };
            let panels = Fp8Panels::new(&MatrixRows::of(&bytes, dims), &scales);
            let rows: Vec<Vec<f32>> = (0..d_out).map(|row| panels.row(row)).collect();
            let x = noise(27 * d_in, 3);
            let multiply = |x: &[f32]| {
                let mut found = vec![vec![0.0; d_out.div_ceil(PANEL) * PANEL]; x.len() / d_in];
                for panel in 0..d_out.div_ceil(PANEL) {
                    let input = panels.input(x, Precision::F32);
                    panels.multiply(&input, panel, &mut |row, sums| {
                        found[row][panel * PANEL..][..PANEL].copy_from_slice(sums);
                    });
                }
                found
            };
            let found = multiply(&x);
            for (x, found) in x.chunks(d_in).zip(&found) {
                for (row, found) in rows.iter().zip(found) {
                    let expected: f64 = row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    assert!((f64::from(*found) - expected).abs() < 1e-4, "{found}, expected {expected}");
                }
            }
            for level in every_isa() {
                let alone: Vec<_> = with_isa(level, || x.chunks(d_in).flat_map(multiply).collect());
                assert_eq!(alone, with_isa(level, || multiply(&x)), "{level:?}");
            }
        }
    }
}
