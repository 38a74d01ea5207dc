//! How GGUF files store values: one by one, or rounded in blocks that share a scale, bit for bit as GGML lays them out.
//! All is little-endian.

use half::{bf16, f16};

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
    /// 256 values of 4 bits; scale and minimum for each 32, in 6 bits of those of all.
    Q4K,
    /// 256 values of 5 bits; scale and minimum for each 32, in 6 bits of those of all.
    Q5K,
    /// 256 values of 6 bits around 32; a scale for each 16, in 8 bits of that of all.
    Q6K,
}

/// Values that are decoded together, at most.
pub(super) const MAX_BLOCK: usize = 256;

/// Types that people meet and that are not read here.
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

    /// The type with this number in GGUF. The error is what is wrong with a tensor of another.
    pub(super) fn from_number(number: u32) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, known, _)| *known == number);
        known.map(|(element, ..)| *element).ok_or_else(|| {
            let other = OTHERS.iter().find(|(other, _)| *other == number).map(|(_, name)| format!(" ({name})"));
            let names: Vec<_> = Self::ALL.iter().map(|(.., name)| *name).collect();
            format!("has the type {number}{}, supported are {}", other.unwrap_or_default(), names.join(", "))
        })
    }

    /// Values in a block, 1 where each is stored by itself; a power of two.
    pub(super) fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => MAX_BLOCK,
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
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => {
                blocks::<32>(self, bytes, out, |block, out| {
                    let Codes { codes, scale } = self.codes(block);
                    for (value, code) in out.iter_mut().zip(codes) {
                        *value = f32::from(code) * scale.to_f32();
                    }
                });
            }
            Self::Q4_1 => blocks::<32>(self, bytes, out, |block, out| {
                let (scale, minimum) = (half(block, 0), half(block, 2));
                for (value, code) in out.iter_mut().zip(nibbles(&block[4..])) {
                    *value = f32::from(code) * scale + minimum;
                }
            }),
            Self::Q5_1 => blocks::<32>(self, bytes, out, |block, out| {
                let (scale, minimum) = (half(block, 0), half(block, 2));
                let high = u32_at(block, 4);
                for (at, (value, code)) in out.iter_mut().zip(nibbles(&block[8..])).enumerate() {
                    *value = f32::from(code | fifth_bit(high, at)) * scale + minimum;
                }
            }),
            Self::Q4K => blocks::<256>(self, bytes, out, |block, out| {
                let scales = scales_and_minima(block);
                // 64 values at a time: the low halves of 32 bytes, then the high ones.
                for (at, value) in out.iter_mut().enumerate() {
                    let byte = block[16 + at / 64 * 32 + at % 32];
                    let code = if at % 64 < 32 { byte & 15 } else { byte >> 4 };
                    let (scale, minimum) = scales[at / 32];
                    *value = scale * f32::from(code) - minimum;
                }
            }),
            Self::Q5K => blocks::<256>(self, bytes, out, |block, out| {
                let scales = scales_and_minima(block);
                // As Q4_K; the fifth bits of the n-th 32 values are the n-th bits of 32 bytes.
                for (at, value) in out.iter_mut().enumerate() {
                    let byte = block[48 + at / 64 * 32 + at % 32];
                    let low = if at % 64 < 32 { byte & 15 } else { byte >> 4 };
                    let high = block[16 + at % 32] >> (at / 32) & 1;
                    let (scale, minimum) = scales[at / 32];
                    *value = scale * f32::from(low | high << 4) - minimum;
                }
            }),
            Self::Q6K => blocks::<256>(self, bytes, out, |block, out| {
                let scale = half(block, 208);
                // 128 values at a time: 64 bytes hold the low four bits of two runs of 32 each in their low halves and
                // of two more in their high halves, 32 bytes the high two bits of all four runs.
                for (at, value) in out.iter_mut().enumerate() {
                    let (part, run, place) = (at / 128, at % 128 / 32, at % 32);
                    let byte = block[part * 64 + run % 2 * 32 + place];
                    let low = if run < 2 { byte & 15 } else { byte >> 4 };
                    let high = block[128 + part * 32 + place] >> (2 * run) & 3;
                    let code = i16::from(low | high << 4) - 32;
                    let own = block[192 + at / 16].cast_signed();
                    *value = scale * f32::from(own) * f32::from(code);
                }
            }),
        }
    }

    /// Whether [`codes`](Self::codes) can tell a block's values without rounding.
    pub(super) fn has_codes(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q5_0 | Self::Q8_0)
    }

    /// A block of a type that [`has_codes`](Self::has_codes): whole numbers and what they are multiplied by.
    pub(super) fn codes(self, block: &[u8]) -> Codes {
        let scale = f16::from_le_bytes([block[0], block[1]]);
        let mut codes = [0; 32];
        match self {
            Self::Q8_0 => {
                for (code, byte) in codes.iter_mut().zip(&block[2..]) {
                    *code = byte.cast_signed();
                }
            }
            Self::Q5_0 => {
                let high = u32_at(block, 2);
                for (at, (code, low)) in codes.iter_mut().zip(nibbles(&block[6..])).enumerate() {
                    *code = (low | fifth_bit(high, at)).cast_signed() - 16;
                }
            }
            _ => {
                for (code, nibble) in codes.iter_mut().zip(nibbles(&block[2..])) {
                    *code = nibble.cast_signed() - 8;
                }
            }
        }
        Codes { codes, scale }
    }
}

/// 32 values as whole numbers times a scale.
pub(super) struct Codes {
    pub(super) codes: [i8; 32],
    pub(super) scale: f16,
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(bytes);
    }
}

fn blocks<const N: usize>(kind: ElementType, bytes: &[u8], out: &mut [f32], decode: impl Fn(&[u8], &mut [f32; N])) {
    for (block, out) in bytes.chunks_exact(kind.block_bytes()).zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

/// 32 numbers in 16 bytes: the low halves, then the high ones.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes[..16].iter().map(|byte| byte & 15).chain(bytes[..16].iter().map(|byte| byte >> 4))
}

fn fifth_bit(high: u32, at: usize) -> u8 {
    ((high >> at & 1) << 4) as u8
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Scale and minimum of each 32 values of a `Q4_K` or `Q5_K` block: six bits each of 12 bytes, times those of all. The
/// first four of both lie in the low six bits of eight bytes; the other four in halves of the last four bytes, their top
/// bits in the first eight bytes' top bits.
fn scales_and_minima(block: &[u8]) -> [(f32, f32); 8] {
    let (scale, minimum, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    std::array::from_fn(|n| {
        let (own_scale, own_minimum) = match n {
            0..4 => (packed[n] & 63, packed[n + 4] & 63),
            _ => (packed[n + 4] & 15 | packed[n - 4] >> 6 << 4, packed[n + 4] >> 4 | packed[n] >> 6 << 4),
        };
        (scale * f32::from(own_scale), minimum * f32::from(own_minimum))
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Random blocks of every type, against the values that the package `gguf` makes of them (`tests/gguf/make_gguf.py`).
    #[test]
    fn blocks_have_the_values_of_the_reference() {
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
            if element.has_codes() {
                let codes = bytes.chunks(element.block_bytes()).flat_map(|block| {
                    let Codes { codes, scale } = element.codes(block);
                    codes.map(|code| f32::from(code) * scale.to_f32())
                });
                assert!(codes.eq(found.iter().copied()), "{name}");
            }
        }
    }
}
