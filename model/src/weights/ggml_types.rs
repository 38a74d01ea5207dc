//! How files store weights: as single values, in safetensors and GGUF files, or quantized in blocks that share a scale,
//! in GGML's layout in GGUF files. Everything is little-endian.

mod blocks;
mod codebooks;

use half::{bf16, f16};

use crate::ops::{
    BLOCK_SIZE, Dtype, QuantizedBlock,
    k_quants::{K_BLOCK, K_PARTS, KBlock, MxBlock},
    nearest_q8,
};

/// A block of MXFP4 from its exponent and from 16 bytes, each of two neighbours, the first in the lower half.
pub(super) fn mx_block(exponent: u8, pairs: &[u8]) -> MxBlock {
    blocks::mx_of(exponent, std::array::from_fn(|at| pairs[at / 2] >> (at % 2 * 4) & 15))
}

/// The type of a tensor's values. Types other than floats are stored in blocks, whose sizes are in
/// [`ALL`](ElementType::ALL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementType {
    F32,
    F16,
    Bf16,
    /// 4 bits around 8, and a scale.
    Q4_0,
    /// 4 bits, a scale and a minimum.
    Q4_1,
    /// 5 bits around 16, and a scale.
    Q5_0,
    /// 5 bits, a scale and a minimum.
    Q5_1,
    /// Signed bytes and a scale.
    Q8_0,
    /// 4 bits. Each 32 have a scale and a minimum of 6 bits, in units of the block's scale and minimum.
    Q4K,
    /// 5 bits. Each 32 have a scale and a minimum of 6 bits, in units of the block's scale and minimum.
    Q5K,
    /// 6 bits around 32. Each 16 have a scale of 8 bits, in units of the block's scale.
    Q6K,
    /// 3 bits around 4. Each 16 have a scale of 6 bits, in units of the block's scale.
    Q3K,
    /// 2 bits. Each 16 have a scale and a minimum of 4 bits, in units of the block's scale and minimum.
    Q2K,
    /// The numbers of 16 levels, and a scale.
    Iq4Nl,
    /// The numbers of the same levels. Each 32 have a scale of 6 bits, in units of the block's scale.
    Iq4Xs,
    /// 4-bit floats, and a power of two.
    Mxfp4,
    /// 4-bit floats. Each 16 have a scale of 8 bits, a float.
    Nvfp4,
    /// Signs, and a scale.
    Q1_0,
    /// Numbers from -1 to 1, five in a byte, and a scale.
    Tq1_0,
    /// Numbers from -1 to 2, four in a byte, and a scale.
    Tq2_0,
    /// Sizes in fours from a codebook, and signs. Each 32 have a scale of 4 bits, in units of the block's scale.
    Iq3S,
    /// As `IQ3_S`, with a smaller codebook and an even number of negative signs.
    Iq3Xxs,
    /// Magnitudes from a codebook, eight at a time, and an even number of negative signs. Each 32 values have a scale
    /// of 4 bits.
    Iq2Xxs,
    /// As `IQ2_XXS`, with a larger codebook and a scale for each 16.
    Iq2Xs,
    /// As `IQ2_XS`, with a larger codebook and any signs.
    Iq2S,
    /// -1, 0 and 1 in eights from a codebook, and a shift by an eighth for each 32, which have a scale of 3 bits.
    Iq1S,
    /// As `IQ1_S`, with a shift for each 8 and a scale for each 16.
    Iq1M,
}

/// A row of [`ElementType::ALL`].
#[derive(Clone, Copy)]
struct TypeRow {
    element: ElementType,
    /// In GGUF.
    number: u32,
    name: &'static str,
    /// Values per block; 1 for types without blocks. A power of two.
    block_len: usize,
    /// Bytes that a block takes.
    block_bytes: usize,
    /// The dtype that represents the values exactly.
    dtype: Dtype,
    /// Positions of a block's f16 factors, which are the only parts that can be infinite or NaN.
    factors: &'static [usize],
}

const fn row(
    element: ElementType,
    number: u32,
    name: &'static str,
    (block_len, block_bytes): (usize, usize),
    dtype: Dtype,
    factors: &'static [usize],
) -> TypeRow {
    TypeRow { element, number, name, block_len, block_bytes, dtype, factors }
}

/// Types that are not supported, with their names for the error message.
const OTHERS: &[(u32, &str)] =
    &[(9, "Q8_1"), (15, "Q8_K"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64"), (42, "Q2_0")];

impl ElementType {
    /// Every type, in the order of the enumeration.
    const ALL: &[TypeRow] = &[
        row(Self::F32, 0, "F32", (1, 4), Dtype::F32, &[]),
        row(Self::F16, 1, "F16", (1, 2), Dtype::F16, &[0]),
        row(Self::Bf16, 30, "BF16", (1, 2), Dtype::Bf16, &[]),
        row(Self::Q4_0, 2, "Q4_0", (32, 2 + 16), Dtype::Q4, &[0]),
        row(Self::Q4_1, 3, "Q4_1", (32, 4 + 16), Dtype::Q4_1, &[0, 2]),
        row(Self::Q5_0, 6, "Q5_0", (32, 2 + 4 + 16), Dtype::Q5_1, &[0]),
        row(Self::Q5_1, 7, "Q5_1", (32, 4 + 4 + 16), Dtype::Q5_1, &[0, 2]),
        row(Self::Q8_0, 8, "Q8_0", (32, 2 + 32), Dtype::Q8, &[0]),
        row(Self::Q4K, 12, "Q4_K", (256, 4 + 12 + 128), Dtype::Q4K, &[0, 2]),
        row(Self::Q5K, 13, "Q5_K", (256, 4 + 12 + 32 + 128), Dtype::Q5K, &[0, 2]),
        row(Self::Q6K, 14, "Q6_K", (256, 128 + 64 + 16 + 2), Dtype::Q6K, &[208]),
        row(Self::Q3K, 11, "Q3_K", (256, 32 + 64 + 12 + 2), Dtype::Q3K, &[108]),
        row(Self::Q2K, 10, "Q2_K", (256, 16 + 64 + 4), Dtype::Q2K, &[80, 82]),
        row(Self::Iq4Nl, 20, "IQ4_NL", (32, 2 + 16), Dtype::Iq4Nl, &[0]),
        row(Self::Iq4Xs, 23, "IQ4_XS", (256, 2 + 2 + 4 + 128), Dtype::Iq4Xs, &[0]),
        row(Self::Mxfp4, 39, "MXFP4", (32, 1 + 16), Dtype::Mxfp4, &[]),
        row(Self::Nvfp4, 40, "NVFP4", (64, 4 + 32), Dtype::Bf16, &[]),
        row(Self::Q1_0, 41, "Q1_0", (128, 2 + 16), Dtype::Q2, &[0]),
        row(Self::Tq1_0, 34, "TQ1_0", (256, 48 + 4 + 2), Dtype::Q2, &[52]),
        row(Self::Tq2_0, 35, "TQ2_0", (256, 64 + 2), Dtype::Q2, &[64]),
        row(Self::Iq3S, 21, "IQ3_S", (256, 2 + 64 + 8 + 32 + 4), Dtype::Iq3S, &[0]),
        row(Self::Iq3Xxs, 18, "IQ3_XXS", (256, 2 + 64 + 32), Dtype::Iq3Xxs, &[0]),
        row(Self::Iq2Xxs, 16, "IQ2_XXS", (256, 2 + 64), Dtype::Iq2, &[0]),
        row(Self::Iq2Xs, 17, "IQ2_XS", (256, 2 + 64 + 8), Dtype::Iq2, &[0]),
        row(Self::Iq2S, 22, "IQ2_S", (256, 2 + 32 + 32 + 8 + 8), Dtype::Iq2, &[0]),
        row(Self::Iq1S, 19, "IQ1_S", (256, 2 + 32 + 16), Dtype::Iq1, &[0]),
        row(Self::Iq1M, 29, "IQ1_M", (256, 32 + 16 + 8), Dtype::Iq1, &[]),
    ];

    fn row(self) -> &'static TypeRow {
        &Self::ALL[self as usize]
    }

    /// The type with this number in GGUF. The error explains why a tensor of another type cannot be read.
    pub(super) fn from_number(number: u32) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|row| row.number == number);
        known.map(|row| row.element).ok_or_else(|| {
            let other = OTHERS.iter().find(|(other, _)| *other == number).map(|(_, name)| format!(" ({name})"));
            let names: Vec<_> = Self::ALL.iter().map(|row| row.name).collect();
            format!(
                "has the type {number}{}; supported are {}\nhint: convert it to Q4_K_M or Q8_0 with `llama-quantize` of llama.cpp, \
                 preferably from the model in F16 or BF16",
                other.unwrap_or_default(),
                names.join(", ")
            )
        })
    }

    /// Values per block; 1 for types without blocks. A power of two.
    pub(super) fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes that a block takes.
    pub(super) fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of `n_values` values, which must be whole blocks.
    pub(super) fn bytes_of(self, n_values: usize) -> usize {
        n_values / self.block_len() * self.block_bytes()
    }

    /// The dtype that represents the type's values exactly.
    pub(super) fn dtype(self) -> Dtype {
        self.row().dtype
    }

    /// The values of whole blocks, in order. `bytes` and `out` hold the same number of blocks.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match (self, self.block_len()) {
            (Self::F32, _) => each(bytes, out, f32::from_le_bytes),
            (Self::F16, _) => each(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            (Self::Bf16, _) => each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            (Self::Mxfp4, _) => blocks(self, bytes, out, |block, out| *out = blocks::mx(block).weights()),
            (Self::Nvfp4, _) => blocks::<64, _>(self, bytes, out, blocks::nvfp4),
            (_, K_BLOCK) if self.dtype() != Dtype::Q2 => {
                blocks::<K_BLOCK, _>(self, bytes, out, |block, out| *out = self.k_block(block).weights());
            }
            _ => {
                for (block, out) in bytes.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(self.block_len())) {
                    for (part, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                        *out = blocks::small(self, block, part).weights();
                    }
                }
            }
        }
    }

    /// Whether all values of whole blocks are numbers, and finite.
    pub(super) fn is_finite(self, bytes: &[u8]) -> bool {
        // Infinities and NaN have all bits of the exponent set. In most blocks, only the factors can have them.
        let mut each = bytes.chunks_exact(self.block_bytes());
        match self {
            Self::F32 => lacks(bytes, |bytes| u32::from_le_bytes(bytes) & 0x7f80_0000 == 0x7f80_0000),
            Self::F16 => lacks(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7c00 == 0x7c00),
            Self::Bf16 => lacks(bytes, |bytes| u16::from_le_bytes(bytes) & 0x7f80 == 0x7f80),
            Self::Mxfp4 => {
                each.all(|block| block[0] < 252 || blocks::mx(block).weights().iter().all(|value| value.is_finite()))
            }
            Self::Iq1M => each.all(|block| codebooks::iq1_m_scale(block).is_finite()),
            _ => each.all(|block| self.row().factors.iter().all(|&at| f16_at(block, at).is_finite())),
        }
    }

    /// Whether whole runs of 32 values have one f16 scale, and perhaps a minimum.
    fn has_small_blocks(self) -> bool {
        !matches!(self.dtype(), Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Mxfp4)
            && !self.dtype().has_super_blocks()
    }

    /// Converts a row's whole blocks to blocks of 32 values in `dtype`, which must not be narrower than the type's own
    /// dtype. Exact if `dtype` represents the values, except that scales of blocks of 256 are rounded to f16; otherwise
    /// each value is rounded to 8 bits.
    pub(super) fn small_blocks(self, bytes: &[u8], dtype: Dtype, out: &mut [QuantizedBlock]) {
        let has_minima = matches!(self, Self::Q4_1 | Self::Q5_1);
        match self {
            _ if self.has_small_blocks() && (dtype.has_minima() || !has_minima) => {
                let n_parts = self.block_len() / BLOCK_SIZE;
                for (block, out) in bytes.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(n_parts)) {
                    for (part, out) in out.iter_mut().enumerate() {
                        let small = blocks::small(self, block, part);
                        let below = if self == Self::Q5_0 { 16 } else { 8 };
                        *out = if dtype.has_minima() && !has_minima { small.above_minimum(below) } else { small };
                    }
                }
            }
            Self::Mxfp4 => blocks::<1, _>(self, bytes, out, |block, [out]| {
                let block = blocks::mx(block);
                *out = block.small_block().unwrap_or_else(|| nearest_q8(&block.weights()));
            }),
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

    /// Puts a row's whole blocks of 256 into `out`.
    pub(super) fn k_blocks(self, bytes: &[u8], out: &mut [KBlock]) {
        blocks::<1, _>(self, bytes, out, |block, [out]| *out = self.k_block(block));
    }

    /// Puts a row's whole blocks of MXFP4 into `out`.
    pub(super) fn mx_blocks(self, bytes: &[u8], out: &mut [MxBlock]) {
        blocks::<1, _>(self, bytes, out, |block, [out]| *out = blocks::mx(block));
    }

    /// A block of 256 values.
    fn k_block(self, block: &[u8]) -> KBlock {
        match self {
            Self::Q2K => blocks::q2_k(block),
            Self::Q3K => blocks::q3_k(block),
            Self::Q4K | Self::Q5K => blocks::q4_or_q5_k(block, self == Self::Q5K),
            Self::Q6K => blocks::q6_k(block),
            Self::Iq4Xs => blocks::iq4_xs(block),
            _ => codebooks::k_block(self, block),
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

fn f16_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

fn blocks<const N: usize, T>(kind: ElementType, bytes: &[u8], out: &mut [T], decode: impl Fn(&[u8], &mut [T; N])) {
    for (block, out) in bytes.chunks_exact(kind.block_bytes()).zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Random blocks of every type, against the values that the package `gguf` decodes from them (`tests/gguf/make_blocks.py`).
    #[test]
    fn gguf_block_types_decode_to_the_values_of_the_gguf_package() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/blocks.safetensors");
        let file = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        for &TypeRow { element, name, .. } in ElementType::ALL.iter().filter(|row| row.element != ElementType::F32) {
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
            // As blocks of 32, in its own format and in 8 bits.
            let largest =
                expected.chunks(32).map(|block| block.iter().fold(0.0_f32, |most, value| most.max(value.abs())));
            for (dtype, is_exact) in [
                (element.dtype().stored_as(), element.has_small_blocks()),
                (Dtype::Q8, element.has_small_blocks() && !matches!(element, ElementType::Q4_1 | ElementType::Q5_1)),
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
