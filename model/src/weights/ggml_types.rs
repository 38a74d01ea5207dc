//! How files store weights: one by one, as safetensors and GGUF files do, or quantized in blocks that share a scale, as GGML
//! lays them out in GGUF files. All is little-endian.

use std::array;

use half::{bf16, f16};

use crate::ops::{
    BLOCK_SIZE, Dtype, QuantizedBlock,
    k_quants::{K_BLOCK, K_PARTS, KBlock},
    nearest_q8,
};

/// The type of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementType {
    F32,
    F16,
    Bf16,
    /// 32 values of 4 bits around 8, and a scale.
    Q4_0,
    /// 32 values of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 values of 5 bits around 16, and a scale.
    Q5_0,
    /// 32 values of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 signed bytes and a scale.
    Q8_0,
    /// 256 values of 4 bits. Each 32 have a scale and a minimum of 6 bits, in units of the block's scale and minimum.
    Q4K,
    /// 256 values of 5 bits. Each 32 have a scale and a minimum of 6 bits, in units of the block's scale and minimum.
    Q5K,
    /// 256 values of 6 bits around 32. Each 16 have a scale of 8 bits, in units of the block's scale.
    Q6K,
}

/// Types that are not supported, with their names for the error message.
const OTHERS: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

impl ElementType {
    /// Every type with its number in GGUF and its name.
    pub(super) const ALL: &[(Self, u32, &str)] = &[
        (Self::F32, 0, "F32"),
        (Self::F16, 1, "F16"),
        (Self::Q4_0, 2, "Q4_0"),
        (Self::Q4_1, 3, "Q4_1"),
        (Self::Q5_0, 6, "Q5_0"),
        (Self::Q5_1, 7, "Q5_1"),
        (Self::Q8_0, 8, "Q8_0"),
        (Self::Q4K, 12, "Q4_K"),
        (Self::Q5K, 13, "Q5_K"),
        (Self::Q6K, 14, "Q6_K"),
        (Self::Bf16, 30, "BF16"),
    ];

    /// The type with this number in GGUF. The error says what is wrong with a tensor of another type.
    pub(super) fn from_number(number: u32) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, known, _)| *known == number);
        known.map(|(element, ..)| *element).ok_or_else(|| {
            let other = OTHERS.iter().find(|(other, _)| *other == number).map(|(_, name)| format!(" ({name})"));
            let names: Vec<_> = Self::ALL.iter().map(|(.., name)| *name).collect();
            format!(
                "has the type {number}{}; supported are {}\nhint: convert it to Q4_K_M or Q8_0 with `llama-quantize` of llama.cpp, \
                 preferably from the model in F16 or BF16",
                other.unwrap_or_default(),
                names.join(", ")
            )
        })
    }

    /// Values in a block, 1 where each is stored by itself; a power of two.
    pub(super) fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => BLOCK_SIZE,
            Self::Q4K | Self::Q5K | Self::Q6K => K_BLOCK,
        }
    }

    /// Bytes that a block takes.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 4 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 4 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4K => 4 + 12 + 128,
            Self::Q5K => 4 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Bytes that so many values take, which are whole blocks.
    pub(super) fn bytes_of(self, n_values: usize) -> usize {
        n_values / self.block_len() * self.block_bytes()
    }

    /// The values of whole blocks, in order. `bytes` and `out` hold the same number of blocks.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => each(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => {
                blocks::<BLOCK_SIZE, _>(self, bytes, out, |block, out| *out = self.small_block(block).weights());
            }
            Self::Q4K | Self::Q5K | Self::Q6K => {
                blocks::<K_BLOCK, _>(self, bytes, out, |block, out| *out = self.k_block(block).weights());
            }
        }
    }

    /// The dtype that represents the type's values exactly.
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
            Self::Q4_0 => Dtype::Q4,
            Self::Q4_1 => Dtype::Q4_1,
            Self::Q5_0 | Self::Q5_1 => Dtype::Q5_1,
            Self::Q8_0 => Dtype::Q8,
            Self::Q4K => Dtype::Q4K,
            Self::Q5K => Dtype::Q5K,
            Self::Q6K => Dtype::Q6K,
        }
    }

    /// Whether all values of whole blocks are numbers, and finite.
    pub(super) fn is_finite(self, bytes: &[u8]) -> bool {
        // Infinities and NaN have all bits of the exponent set. In blocks, only the factors can be either.
        let factors: &[usize] = match self {
            Self::F32 => return lacks(bytes, |bytes| u32::from_le_bytes(bytes) & 0x7f80_0000 == 0x7f80_0000),
            Self::F16 => return lacks(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7c00 == 0x7c00),
            Self::Bf16 => return lacks(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7f80 == 0x7f80),
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => &[0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => &[0, 2],
            Self::Q6K => &[Q6K_SCALE],
        };
        bytes.chunks_exact(self.block_bytes()).all(|block| factors.iter().all(|&at| f16_at(block, at).is_finite()))
    }

    /// Converts a row's whole blocks to blocks of 32 values in `dtype`, which must not be narrower than the type's own
    /// dtype. Exact if `dtype` represents the values, except that scales of K-quants are rounded to f16; otherwise each
    /// value is rounded to 8 bits.
    pub(super) fn small_blocks(self, bytes: &[u8], dtype: Dtype, out: &mut [QuantizedBlock]) {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 if !dtype.has_minima() => {
                blocks::<1, _>(self, bytes, out, |block, [out]| *out = self.small_block(block));
            }
            Self::Q4_0 => {
                blocks::<1, _>(self, bytes, out, |block, [out]| *out = self.small_block(block).above_minimum(8))
            }
            Self::Q5_0 => {
                blocks::<1, _>(self, bytes, out, |block, [out]| *out = self.small_block(block).above_minimum(16))
            }
            Self::Q4_1 | Self::Q5_1 if dtype.has_minima() => {
                blocks::<1, _>(self, bytes, out, |block, [out]| *out = self.small_block(block));
            }
            Self::Q4K | Self::Q5K if dtype.has_minima() => {
                blocks::<K_PARTS, _>(self, bytes, out, |block, out| *out = self.k_block(block).small_blocks());
            }
            _ => {
                let mut values = vec![0.0; out.len() * BLOCK_SIZE];
                self.decode(bytes, &mut values);
                values.as_chunks().0.iter().zip(out).for_each(|(values, out)| *out = nearest_q8(values));
            }
        }
    }

    /// A block of a type with 32 values to a block.
    fn small_block(self, block: &[u8]) -> QuantizedBlock {
        let scale = f16_at(block, 0);
        let (minimum, rest) = match self {
            Self::Q4_1 | Self::Q5_1 => (f16_at(block, 2), &block[4..]),
            _ => (f16::ZERO, &block[2..]),
        };
        let codes: [u8; 32] = match self {
            Self::Q8_0 => array::from_fn(|at| rest[at]),
            Self::Q5_0 | Self::Q5_1 => {
                let (high, low) = (u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]), nibbles(&rest[4..]));
                array::from_fn(|at| low[at] | ((high >> at & 1) << 4) as u8)
            }
            _ => nibbles(rest),
        };
        let below = match self {
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            _ => 0,
        };
        QuantizedBlock { scale, minimum, values: codes.map(|code| code.cast_signed() - below) }
    }

    /// Puts a row's whole blocks of K-quants into `out`.
    pub(super) fn k_blocks(self, bytes: &[u8], out: &mut [KBlock]) {
        blocks::<1, _>(self, bytes, out, |block, [out]| *out = self.k_block(block));
    }

    /// A block of K-quants.
    fn k_block(self, block: &[u8]) -> KBlock {
        if self == Self::Q6K {
            return KBlock {
                scale: f16_at(block, Q6K_SCALE),
                minimum: f16::ZERO,
                scales: array::from_fn(|part| block[192 + part].cast_signed()),
                minima: [0; K_PARTS],
                values: six_bits(block).map(|number| number.cast_signed() - 32),
            };
        }
        let own = scales_and_minima(&block[4..16]);
        let numbers = if self == Self::Q4K { four_bits(&block[16..]) } else { five_bits(&block[16..]) };
        KBlock {
            scale: f16_at(block, 0),
            minimum: -f16_at(block, 2),
            scales: array::from_fn(|half| own[half / 2].0.cast_signed()),
            minima: own.map(|(_, minimum)| minimum.cast_signed()),
            values: numbers.map(u8::cast_signed),
        }
    }
}

/// Whether no value is one that `is_found` finds. Many values at a time, so that the loop is vectorized.
fn lacks<const N: usize>(bytes: &[u8], is_found: impl Fn([u8; N]) -> bool) -> bool {
    let mut parts = bytes.as_chunks().0.chunks(1 << 12);
    parts.all(|part| !part.iter().fold(false, |any, &bytes| any | is_found(bytes)))
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(bytes);
    }
}

/// Where a `Q6_K` block has its scale.
const Q6K_SCALE: usize = 128 + 64 + 16;

fn f16_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

fn blocks<const N: usize, T>(kind: ElementType, bytes: &[u8], out: &mut [T], decode: impl Fn(&[u8], &mut [T; N])) {
    for (block, out) in bytes.chunks_exact(kind.block_bytes()).zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

/// 32 numbers in 16 bytes: the low halves, then the high ones.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    array::from_fn(|at| if at < 16 { bytes[at] & 15 } else { bytes[at - 16] >> 4 })
}

// Runs of 32 bytes, so that the compiler takes many at a time.

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

/// The numbers of a `Q5_K` block. As `Q4_K`, behind 32 bytes whose `n`-th bits are the fifth bits of the `n`-th 32 numbers.
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Random blocks of every type, against the values that the package `gguf` decodes from them (`tests/gguf/make_gguf.py`).
    #[test]
    fn gguf_block_types_decode_to_the_values_of_the_gguf_package() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/blocks.safetensors");
        let file = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        for &(element, _, name) in ElementType::ALL.iter().filter(|(element, ..)| *element != ElementType::F32) {
            let tensor = |part: &str| file.tensor(&format!("{name}.{part}")).unwrap().data().to_vec();
            let (bytes, mut expected) = (tensor("bytes"), Vec::new());
            expected.resize(tensor("values").len() / 4, 0.0);
            ElementType::F32.decode(&tensor("values"), &mut expected);
            assert_eq!(element.bytes_of(expected.len()), bytes.len(), "{name}");
            let mut found = vec![f32::NAN; expected.len()];
            element.decode(&bytes, &mut found);
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let near = (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
                assert!(near, "{name}, value {at}: {found}, expected {expected}");
            }
            // As blocks of 32 of its own kind and of 8 bits.
            let largest =
                expected.chunks(32).map(|block| block.iter().fold(0.0_f32, |most, value| most.max(value.abs())));
            for (dtype, is_exact) in [
                (element.dtype().stored_as(), !element.dtype().is_k_quant()),
                (Dtype::Q8, matches!(element, ElementType::Q8_0 | ElementType::Q5_0 | ElementType::Q4_0)),
            ] {
                if !dtype.is_quantized() {
                    continue;
                }
                let mut blocks = vec![QuantizedBlock::default(); found.len() / 32];
                element.small_blocks(&bytes, dtype, &mut blocks);
                let values: Vec<f32> = blocks.iter().flat_map(QuantizedBlock::weights).collect();
                assert_eq!(values.len(), found.len());
                for ((values, found), largest) in values.chunks(32).zip(found.chunks(32)).zip(largest.clone()) {
                    // Half a step of 8 bits, and scales that are rounded to f16.
                    let most = if is_exact { 0.0 } else { (1.0 / 254.0 + 1.0 / 1024.0) * largest + 1e-6 };
                    for (value, found) in values.iter().zip(found) {
                        assert!((value - found).abs() <= most, "{name} as {dtype}: {value}, expected {found}");
                    }
                }
            }
        }
    }
}
