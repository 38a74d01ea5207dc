//! Unpacks weights from 32-bit words in registers.

use burn_cubecl::cubecl::{self, prelude::*};

use super::matrix::{Format, HIGH};
use crate::ops::BLOCK_SIZE;

/// Weight `index` of a unit, with the results of [`scale_of`], [`minimum_of`] and [`high_bits_of`] for the unit.
#[cube]
pub(super) fn weight<E: Numeric, W: Size>(
    elements: Vector<E, W>,
    #[comptime] index: usize,
    scale: f32,
    minimum: f32,
    high_bits: u32,
    #[comptime] format: Format,
) -> f32 {
    let mut value = decode(elements, index, format);
    if comptime!(format.has_high_bits()) {
        value += f32::cast_from((high_bits >> comptime!(index as u32) & 1u32) * 16u32);
    }
    if comptime!(format.has_minima()) { fma(value, scale, minimum) } else { value * scale }
}

/// Weight `index` of a unit; of quantized formats, the integer (its lower four bits if it has five).
#[cube]
fn decode<E: Numeric, W: Size>(elements: Vector<E, W>, #[comptime] index: usize, #[comptime] format: Format) -> f32 {
    let per_word = comptime!(format.per_word());
    match comptime!(format) {
        Format::F32 => f32::reinterpret(elements.extract(index)),
        Format::F16 => f32::cast_from(elements.extract(index)),
        Format::F16Words => {
            let word = u32::reinterpret(elements.extract(comptime!(index / per_word)));
            half_to_f32(word >> comptime!(16 * (index % per_word) as u32))
        }
        Format::Bf16 => {
            let word = u32::reinterpret(elements.extract(comptime!(index / per_word)));
            // The upper half of an f32.
            if comptime!(index.is_multiple_of(per_word)) {
                f32::reinterpret(word << 16u32)
            } else {
                f32::reinterpret(word & HIGH)
            }
        }
        Format::Blocks(_) => {
            let word = u32::reinterpret(elements.extract(comptime!(index / per_word)));
            whole(word, comptime!(index % per_word), format)
        }
    }
}

/// Converts integer `index` of a word to a float without a conversion instruction: its bits become the last bits of the
/// mantissa, and an exponent that fits their position saves most shifts.
#[cube]
fn whole(word: u32, #[comptime] index: usize, #[comptime] format: Format) -> f32 {
    let bits = comptime!((32 / format.per_word()) as u32);
    let place = comptime!(bits * index as u32);
    let is_high = comptime!(place + bits > 23);
    let place = comptime!(if is_high { place - 16 } else { place });
    let mask = comptime!(((1u32 << bits) - 1) << place);
    // 2^(23 - place): in it, the bit at `place` has the value 1.
    let base = comptime!((127 + 23 - place) << 23);
    let offset = comptime!((1u32 << (23 - place)) as f32 + format.offset() as f32);
    let mut low = word;
    if comptime!(is_high) {
        low = word >> 16u32;
    }
    f32::reinterpret((low & mask) | base) - offset
}

/// The scale of a row's unit; 1 if the format has none. `first` is the row's first word of scales.
#[cube]
pub(super) fn scale_of(scales: &[u32], first: usize, unit: usize, #[comptime] format: Format) -> f32 {
    let block = unit / comptime!((BLOCK_SIZE / format.unit()).max(1));
    if comptime!(!format.is_quantized()) {
        f32::new(1.0)
    } else if comptime!(format.shares_scale_words()) {
        half_to_f32(scales[first + block / 2] >> (16u32 * (block % 2) as u32))
    } else {
        half_to_f32(scales[first + comptime!(format.block_words()) * block])
    }
}

/// The minimum of a row's unit; 0 if the format has none.
#[cube]
pub(super) fn minimum_of(scales: &[u32], first: usize, unit: usize, #[comptime] format: Format) -> f32 {
    if comptime!(format.has_minima()) {
        let block = unit / comptime!((BLOCK_SIZE / format.unit()).max(1));
        half_to_f32(scales[first + comptime!(format.block_words()) * block] >> 16u32)
    } else {
        f32::new(0.0)
    }
}

/// The fifth bits of a row's unit, with the first weight's bit lowest; 0 if the format has none.
#[cube]
pub(super) fn high_bits_of(scales: &[u32], first: usize, unit: usize, #[comptime] format: Format) -> u32 {
    if comptime!(format.has_high_bits()) {
        let units = comptime!((BLOCK_SIZE / format.unit()).max(1));
        scales[first + 2 * (unit / units) + 1] >> ((unit % units) * comptime!(format.unit())) as u32
    } else {
        u32::new(0)
    }
}

/// Converts the f16 in the lower half of a word, with operations that every device has.
#[cube]
fn half_to_f32(word: u32) -> f32 {
    let magnitude = (word & 0x7fffu32) << 13u32;
    let sign = (word & 0x8000u32) << 16u32;
    // Exponents are biased by 15 in f16, by 127 in f32. Subnormal numbers have no leading 1: one is added and then
    // subtracted, since devices may flush f32's own subnormals to 0.
    let normal = f32::reinterpret(magnitude + 0x3800_0000u32);
    let subnormal = f32::reinterpret(magnitude + 0x3880_0000u32) - 6.103_515_6e-5f32;
    let value = select(magnitude < 0x0080_0000u32, subnormal, normal);
    f32::reinterpret(sign | u32::reinterpret(value))
}
