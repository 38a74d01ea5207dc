//! From packed words to values, in registers.

use burn_cubecl::cubecl::{self, prelude::*};

use super::matrix::Format;
use crate::ops::BLOCK_SIZE;

/// Weight `index` of a unit; a whole number where there are scales.
#[cube]
pub(super) fn decode<W: Size>(words: Vector<u32, W>, #[comptime] index: usize, #[comptime] format: Format) -> f32 {
    let per_word = comptime!(format.per_word());
    let bits = comptime!((32 / format.per_word()) as u32);
    let shift = comptime!(bits * (index % per_word) as u32);
    let word = words.extract(comptime!(index / per_word)) >> shift;
    match comptime!(format) {
        Format::F32 => f32::reinterpret(word),
        Format::F16 => half_to_f32(word),
        // As the last bits of 2^23, a whole number is a float without a conversion.
        Format::Q8 => f32::reinterpret((word & 0xffu32) | 0x4b00_0000u32) - 8_388_736.0f32,
        Format::Q4 => f32::reinterpret((word & 0xfu32) | 0x4b00_0000u32) - 8_388_616.0f32,
    }
}

/// The scale of a row's unit: 1 where there are none. `first` is the row's first word of scales.
#[cube]
pub(super) fn scale_of(scales: &[u32], first: usize, unit: usize, #[comptime] format: Format) -> f32 {
    if comptime!(format.is_quantized()) {
        let block = unit / comptime!(BLOCK_SIZE / format.unit());
        let word = scales[first + block / 2];
        half_to_f32(word >> (16u32 * (block % 2) as u32))
    } else {
        f32::new(1.0)
    }
}

/// The f16 in the low half of a word. WGSL has no f16 on every device, so in whole numbers.
#[cube]
fn half_to_f32(word: u32) -> f32 {
    let magnitude = word & 0x7fffu32;
    let sign = (word & 0x8000u32) << 16u32;
    // Exponents count from 15 in f16, from 127 in f32.
    let normal = (magnitude << 13u32) + 0x3800_0000u32;
    let subnormal = u32::reinterpret(f32::cast_from(magnitude) * 5.960_464_5e-8f32);
    f32::reinterpret(sign | select(magnitude < 0x400u32, subnormal, normal))
}
