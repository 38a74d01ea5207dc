//! GGML's blocks whose bits are the numbers themselves, or indices into one table of levels.

use std::array;

use half::bf16;

use super::{ElementType, f16_at};
use crate::ops::{
    BLOCK_SIZE, QuantizedBlock,
    k_quants::{K_BLOCK, KBlock, MxBlock},
};

/// The levels of `IQ4_NL` and `IQ4_XS`.
const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Floats of 4 bits, doubled.
const FP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Values `32 part ..` of a block of a type with one scale.
pub(super) fn small(element: ElementType, block: &[u8], part: usize) -> QuantizedBlock {
    use ElementType::{Iq4Nl, Q1_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Tq1_0, Tq2_0};
    let has_minimum = matches!(element, Q4_1 | Q5_1);
    let (scale_at, rest) = match element {
        Tq1_0 | Tq2_0 => (block.len() - 2, block),
        _ if has_minimum => (0, &block[4..]),
        _ => (0, &block[2..]),
    };
    let around = |middle: i8, codes: [u8; 32]| codes.map(|code| code.cast_signed() - middle);
    let values = match element {
        Q8_0 => array::from_fn(|at| rest[at].cast_signed()),
        Q5_0 | Q5_1 => {
            let (high, low) = (u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]), nibbles(&rest[4..]));
            let middle = if element == Q5_0 { 16 } else { 0 };
            around(middle, array::from_fn(|at| low[at] | ((high >> at & 1) << 4) as u8))
        }
        Q1_0 => array::from_fn(|at| if rest[4 * part + at / 8] >> (at % 8) & 1 == 1 { 1 } else { -1 }),
        Tq1_0 => array::from_fn(|at| ternary(rest, BLOCK_SIZE * part + at)),
        Tq2_0 => around(1, array::from_fn(|at| rest[part / 4 * 32 + at] >> (part % 4 * 2) & 3)),
        Iq4Nl => nibbles(rest).map(|code| IQ4_LEVELS[usize::from(code)]),
        Q4_0 => around(8, nibbles(rest)),
        _ => around(0, nibbles(rest)),
    };
    let minimum = if has_minimum { f16_at(block, 2) } else { half::f16::ZERO };
    QuantizedBlock { scale: f16_at(block, scale_at), minimum, values }
}

/// Value `at` of a `TQ1_0` block. A byte is a fraction of 256 that has five digits to the base of 3; in 32 bytes, the first
/// digits are the first 32 values. Then 16 bytes of five digits, and 4 of four.
fn ternary(bytes: &[u8], at: usize) -> i8 {
    let (start, n, at) = match at {
        0..160 => (0, 32, at),
        160..240 => (32, 16, at - 160),
        _ => (48, 4, at - 240),
    };
    let shifted = bytes[start + at % n].wrapping_mul([1, 3, 9, 27, 81][at / n]);
    ((u16::from(shifted) * 3) >> 8) as i8 - 1
}

/// A block of MXFP4.
pub(super) fn mx(block: &[u8]) -> MxBlock {
    mx_of(block[0], nibbles(&block[1..]))
}

/// The block of the exponent and the numbers of levels.
pub(super) fn mx_of(exponent: u8, codes: [u8; BLOCK_SIZE]) -> MxBlock {
    MxBlock { scale: half_of_power(exponent), values: codes.map(|code| FP4_LEVELS[usize::from(code)]) }
}

/// `2^(exponent - 128)`: half of MXFP4's scale, since the numbers are doubled.
fn half_of_power(exponent: u8) -> bf16 {
    bf16::from_bits(match exponent {
        // Below the smallest normal number.
        0..2 => 0x20 << exponent,
        _ => u16::from(exponent - 1) << 7,
    })
}

/// The values of a block of NVFP4: four scales, then 16 values per scale, the first 8 of them in the lower halves of
/// the bytes.
pub(super) fn nvfp4(block: &[u8], out: &mut [f32; 64]) {
    let (scales, codes) = block.split_at(4);
    for ((out, &scale), codes) in out.as_chunks_mut::<16>().0.iter_mut().zip(scales).zip(codes.as_chunks::<8>().0) {
        let exponent = i32::from(scale >> 3 & 15);
        let fraction = f32::from(scale & 7);
        let scale = match (scale, exponent) {
            (0x7f, _) => 0.0,
            (_, 0) => fraction * 2.0_f32.powi(-9),
            _ => (1.0 + fraction / 8.0) * 2.0_f32.powi(exponent - 7),
        };
        *out = array::from_fn(|at| {
            let code = if at < 8 { codes[at] & 15 } else { codes[at - 8] >> 4 };
            0.5 * scale * f32::from(FP4_LEVELS[usize::from(code)])
        });
    }
}

pub(super) fn q2_k(block: &[u8]) -> KBlock {
    let (factors, codes) = (&block[..16], two_bits(&block[16..]));
    KBlock {
        scale: f16_at(block, 80).to_f32(),
        minimum: -f16_at(block, 82).to_f32(),
        scales: array::from_fn(|part| (factors[part] & 15).cast_signed()),
        minima: array::from_fn(|part| (factors[part] >> 4).cast_signed()),
        values: codes.map(u8::cast_signed),
    }
}

pub(super) fn q3_k(block: &[u8]) -> KBlock {
    let (high, factors, codes) = (&block[..32], &block[96..108], two_bits(&block[32..]));
    // Four bits of eight bytes, the lower halves first, and two bits of four more.
    let scale = |n: usize| factors[n % 8] >> (n / 8 * 4) & 15 | (factors[8 + n % 4] >> (n / 4 * 2) & 3) << 4;
    KBlock {
        scale: f16_at(block, 108).to_f32(),
        scales: array::from_fn(|n| scale(n).cast_signed() - 32),
        values: array::from_fn(|at| {
            let below = if high[at % 32] >> (at / 32) & 1 == 1 { 0 } else { 4 };
            codes[at].cast_signed() - below
        }),
        ..KBlock::default()
    }
}

pub(super) fn q4_or_q5_k(block: &[u8], is_q5: bool) -> KBlock {
    let own = scales_and_minima(&block[4..16]);
    let numbers = if is_q5 { five_bits(&block[16..]) } else { four_bits(&block[16..]) };
    KBlock {
        scale: f16_at(block, 0).to_f32(),
        minimum: -f16_at(block, 2).to_f32(),
        scales: array::from_fn(|half| own[half / 2].0.cast_signed()),
        minima: array::from_fn(|half| own[half / 2].1.cast_signed()),
        values: numbers.map(u8::cast_signed),
    }
}

pub(super) fn q6_k(block: &[u8]) -> KBlock {
    KBlock {
        scale: f16_at(block, 208).to_f32(),
        scales: array::from_fn(|part| block[192 + part].cast_signed()),
        values: six_bits(block).map(|number| number.cast_signed() - 32),
        ..KBlock::default()
    }
}

pub(super) fn iq4_xs(block: &[u8]) -> KBlock {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let scale = |run: usize| block[4 + run / 2] >> (run % 2 * 4) & 15 | ((high >> (2 * run) & 3) as u8) << 4;
    let mut values = [0; K_BLOCK];
    for (values, bytes) in values.as_chunks_mut().0.iter_mut().zip(block[8..].as_chunks::<16>().0) {
        *values = nibbles(bytes).map(|code| IQ4_LEVELS[usize::from(code)]);
    }
    KBlock {
        scale: f16_at(block, 0).to_f32(),
        scales: array::from_fn(|half| scale(half / 2).cast_signed() - 32),
        values,
        ..KBlock::default()
    }
}

/// 32 numbers in 16 bytes: the low halves, then the high ones.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    array::from_fn(|at| if at < 16 { bytes[at] & 15 } else { bytes[at - 16] >> 4 })
}

// Runs of 32 bytes, so that the compiler takes many at a time.

/// The numbers of a `Q2_K` block. 128 at a time: the lowest two bits of 32 bytes, then the next two, and so on.
fn two_bits(bytes: &[u8]) -> [u8; K_BLOCK] {
    let mut numbers = [0; K_BLOCK];
    for (run, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let bytes = &bytes[run / 4 * 32..][..32];
        numbers.iter_mut().zip(bytes).for_each(|(number, byte)| *number = byte >> (run % 4 * 2) & 3);
    }
    numbers
}

/// The numbers of a `Q4_K` block. 64 at a time: the low halves of 32 bytes, then the high ones.
fn four_bits(bytes: &[u8]) -> [u8; K_BLOCK] {
    let mut numbers = [0; K_BLOCK];
    for (numbers, bytes) in numbers.as_chunks_mut::<64>().0.iter_mut().zip(bytes.as_chunks::<32>().0) {
        let (low, high) = numbers.split_at_mut(32);
        low.iter_mut().zip(bytes).for_each(|(number, byte)| *number = byte & 15);
        high.iter_mut().zip(bytes).for_each(|(number, byte)| *number = byte >> 4);
    }
    numbers
}

/// The numbers of a `Q5_K` block. As `Q4_K`, preceded by 32 bytes whose `n`th bits are the fifth bits of the `n`th 32
/// numbers.
fn five_bits(bytes: &[u8]) -> [u8; K_BLOCK] {
    let (high, low) = bytes.split_at(32);
    let mut numbers = four_bits(low);
    for (run, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        numbers.iter_mut().zip(high).for_each(|(number, high)| *number |= (high >> run & 1) << 4);
    }
    numbers
}

/// The numbers of a `Q6_K` block. 128 at a time: 64 bytes hold the low four bits of two runs of 32 each in their low halves
/// and of two more in their high halves, 32 bytes the high two bits of all four runs.
fn six_bits(bytes: &[u8]) -> [u8; K_BLOCK] {
    let mut numbers = [0; K_BLOCK];
    for (at, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (part, run) = (at / 4, at % 4);
        let (low, high) = (&bytes[part * 64 + run % 2 * 32..][..32], &bytes[128 + part * 32..][..32]);
        for ((number, low), high) in numbers.iter_mut().zip(low).zip(high) {
            *number = low >> (run / 2 * 4) & 15 | (high >> (2 * run) & 3) << 4;
        }
    }
    numbers
}

/// Scale and minimum of each 32 values of a `Q4_K` or `Q5_K` block: six bits each of 12 bytes. The first four of both lie in
/// the low six bits of eight bytes; the other four in halves of the last four bytes, their top bits in the first eight
/// bytes' top bits.
fn scales_and_minima(packed: &[u8]) -> [(u8, u8); 8] {
    array::from_fn(|n| match n {
        0..4 => (packed[n] & 63, packed[n + 4] & 63),
        _ => (packed[n + 4] & 15 | packed[n - 4] >> 6 << 4, packed[n + 4] >> 4 | packed[n] >> 6 << 4),
    })
}
