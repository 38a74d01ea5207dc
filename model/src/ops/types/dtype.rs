//! The formats of matrices.

use std::{fmt, ops::RangeInclusive};

/// Consecutive values along `d_in` that share a scale in a quantized matrix.
pub const BLOCK_SIZE: usize = 32;

/// How matrices are stored. Norms, biases and activations are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 4 bytes per value; on the CPU 2 if that is lossless. The only dtype that trains.
    #[default]
    F32,
    /// 2 bytes a value: IEEE half precision.
    F16,
    /// 2 bytes a value: the upper half of an f32. Most models are published in it.
    Bf16,
    /// 8 bits a value in blocks of 32 with a scale: 8.5 bits in all.
    Q8,
    /// 5 bits a value in blocks of 32 with a scale and a minimum: 6 bits in all. Embeddings keep 8 bits.
    Q5_1,
    /// 4 bits a value in blocks of 32 with a scale and a minimum: 5 bits in all. Embeddings keep 8 bits.
    Q4_1,
    /// 4 bits a value in blocks of 32 with a scale: 4.5 bits in all. Embeddings keep 8 bits.
    Q4,
    /// GGUF's `Q6_K`: 6 bits a value and 6.5625 in all. This and the following come only from files, and only the CPU
    /// computes with them.
    Q6K,
    /// GGUF's `Q5_K`: 5 bits a value and 5.5 in all (5.625 in memory).
    Q5K,
    /// GGUF's `Q4_K`: 4 bits a value and 4.5 in all (4.625 in memory).
    Q4K,
    /// GGUF's `Q3_K`: 3 bits a value and 3.4375 in all (3.5625 in memory).
    Q3K,
    /// GGUF's `Q2_K`: 2 bits a value and 2.625 in all.
    Q2K,
    /// GGUF's `IQ4_NL`: 4 bits that number 16 levels, in blocks of 32 with a scale: 4.5 bits in all.
    Iq4Nl,
    /// GGUF's `IQ4_XS`: the same levels in blocks of 256: 4.25 bits in all (4.5625 in memory).
    Iq4Xs,
    /// 4-bit floats in blocks of 32 with a power of two: 4.25 bits in all (4.5 in memory).
    Mxfp4,
    /// GGUF's `IQ3_S`: 3.4375 bits a value (4.5625 in memory).
    Iq3S,
    /// GGUF's `IQ3_XXS`: 3.0625 bits a value (4.5625 in memory).
    Iq3Xxs,
    /// GGUF's `IQ2_XXS`, `IQ2_XS` and `IQ2_S`: 2.0625 to 2.5625 bits a value (3.5625 in memory).
    Iq2,
    /// GGUF's `IQ1_S` and `IQ1_M`: 1.5625 and 1.75 bits a value (3.5625 in memory).
    Iq1,
    /// Values of two bits, from -1 to 2 times a scale, in memory in 2.5 bits: GGUF's `TQ1_0`, `TQ2_0` and `Q1_0`.
    Q2,
    /// Floats of 8 bits (E4M3) with scales for blocks of 128 by 128, rows or the matrix: 8 bits a value.
    Fp8,
    /// 8 bits a value, with a scale and a zero point per group of inputs: of GPTQ and compressed-tensors.
    Int8,
    /// 4 bits a value, with a scale and a zero point per group of inputs: of AWQ, GPTQ and compressed-tensors. In memory
    /// 4.4 bits in all for groups of 128.
    Int4,
}

/// How files and GPUs store a quantized matrix: blocks of 32 numbers with an f16 scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockLayout {
    /// Bits of a number: 8, 5 or 4.
    pub(crate) bits: u32,
    /// Added to a number to store it unsigned.
    pub(crate) offset: i32,
    /// Whether a block has an f16 minimum, which is added after scaling.
    pub(crate) has_minimum: bool,
}

impl BlockLayout {
    /// The numbers that can be stored.
    pub(crate) fn range(self) -> RangeInclusive<i8> {
        let lowest = -self.offset;
        lowest as i8..=(lowest + (1 << self.bits) - 1) as i8
    }

    /// Bytes of the numbers of a block in a file.
    pub(crate) fn n_bytes(self) -> usize {
        BLOCK_SIZE * self.bits as usize / 8
    }
}

impl Dtype {
    /// Every dtype that values can be rounded to, with its name, from the widest.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("f32", Self::F32),
        ("f16", Self::F16),
        ("bf16", Self::Bf16),
        ("q8", Self::Q8),
        ("q5_1", Self::Q5_1),
        ("q4_1", Self::Q4_1),
        ("q4", Self::Q4),
    ];

    /// The dtypes that occur only in files, each with the dtype to which it is converted when it is saved or sent to a
    /// GPU, from the widest. (A matrix stacked from several of them is saved as q8 if it is on the CPU; a GPU holds it
    /// as the widest of their converted dtypes.)
    const FROM_FILES: &'static [(&'static str, Self, Self)] = &[
        ("fp8", Self::Fp8, Self::Q8),
        ("int8", Self::Int8, Self::Q8),
        ("q6_k", Self::Q6K, Self::Q8),
        ("q5_k", Self::Q5K, Self::Q5_1),
        ("q4_k", Self::Q4K, Self::Q4_1),
        ("int4", Self::Int4, Self::Q8),
        ("iq4_nl", Self::Iq4Nl, Self::Q8),
        ("iq4_xs", Self::Iq4Xs, Self::Q8),
        ("mxfp4", Self::Mxfp4, Self::Q8),
        ("q3_k", Self::Q3K, Self::Q8),
        ("iq3_s", Self::Iq3S, Self::Q8),
        ("iq3_xxs", Self::Iq3Xxs, Self::Q8),
        ("q2_k", Self::Q2K, Self::Q8),
        ("iq2", Self::Iq2, Self::Q8),
        ("q2", Self::Q2, Self::Q4),
        ("iq1", Self::Iq1, Self::Q8),
    ];

    /// The blocks of a matrix in files and on GPUs, if it is quantized; dtypes that occur only in files have the layout
    /// of [`stored_as`](Self::stored_as).
    pub(crate) fn layout(self) -> Option<BlockLayout> {
        let layout = |bits, offset, has_minimum| Some(BlockLayout { bits, offset, has_minimum });
        match self.stored_as() {
            Self::Q8 => layout(8, 128, false),
            Self::Q5_1 => layout(5, 0, true),
            Self::Q4_1 => layout(4, 0, true),
            Self::Q4 => layout(4, 8, false),
            _ => None,
        }
    }

    /// Every dtype that a matrix can have, including those that occur only in files.
    pub(crate) fn every() -> impl DoubleEndedIterator<Item = (&'static str, Self)> {
        Self::ALL.iter().copied().chain(Self::FROM_FILES.iter().map(|&(name, dtype, _)| (name, dtype)))
    }

    /// The narrowest dtype whose block layout satisfies `is_it`.
    pub(crate) fn with_layout(is_it: impl Fn(BlockLayout) -> bool) -> Option<Self> {
        Self::ALL.iter().rev().map(|(_, dtype)| *dtype).find(|dtype| dtype.layout().is_some_and(&is_it))
    }

    /// The narrowest dtype for the values of both.
    pub(crate) fn wider(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        // Different file dtypes have only blocks of 32 in common.
        let (one, other) = (self.stored_as(), other.stored_as());
        match (one.layout(), other.layout()) {
            _ if one == other => one,
            (Some(one), Some(other)) => {
                let holds = |layout: BlockLayout, of: BlockLayout| {
                    layout.bits >= of.bits && (layout.has_minimum || !of.has_minimum)
                };
                Self::with_layout(|layout| holds(layout, one) && holds(layout, other)).unwrap_or(Self::Q8)
            }
            (Some(_), None) if other == Self::F16 => Self::F16,
            (None, Some(_)) if one == Self::F16 => Self::F16,
            // f16 and the quantized dtypes do not have bf16's range, and bf16 does not have their precision.
            _ => Self::F32,
        }
    }

    /// Whether values are rounded to integers in blocks with a scale.
    pub fn is_quantized(self) -> bool {
        self.layout().is_some()
    }

    /// Whether only files have it: values are not rounded to it, and only the CPU computes with it.
    pub fn is_from_files(self) -> bool {
        self.stored_as() != self
    }

    /// Whether it has blocks of 256.
    pub(crate) fn has_super_blocks(self) -> bool {
        self.is_from_files()
            && !matches!(self, Self::Iq4Nl | Self::Mxfp4 | Self::Q2 | Self::Int4 | Self::Int8 | Self::Fp8)
    }

    /// The dtype in which a matrix of this one is saved; file-only dtypes map to the nearest of the others.
    pub fn stored_as(self) -> Self {
        Self::FROM_FILES.iter().find(|(_, dtype, _)| *dtype == self).map_or(self, |(.., stored_as)| *stored_as)
    }

    /// Bits of a value, scales left out.
    pub fn bits(self) -> u32 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            _ => self.layout().map_or(32, |layout| layout.bits),
        }
    }

    /// The largest weight that rounding to this dtype never makes infinite. Scales and minima of blocks are f16.
    pub(crate) fn largest_weight(self) -> f32 {
        let f16_max = half::f16::MAX.to_f32();
        match (self, self.layout()) {
            (Self::F32, _) => f32::MAX,
            (Self::Bf16, _) => half::bf16::MAX.to_f32(),
            // Weights are rounded to numbers from -127 on, not from -128.
            (_, Some(BlockLayout { offset, has_minimum: false, .. })) => offset.min(127) as f32 * f16_max,
            _ => f16_max,
        }
    }

    /// Whether blocks have a minimum.
    pub fn has_minima(self) -> bool {
        !self.is_from_files() && self.layout().is_some_and(|layout| layout.has_minimum)
    }

    /// The dtype called `name`, if `is_allowed`.
    ///
    /// # Errors
    /// A message with the names that are allowed.
    pub fn parse(name: &str, is_allowed: impl Fn(Self) -> bool) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, dtype)| *known == name && is_allowed(*dtype));
        found.map(|(_, dtype)| *dtype).ok_or_else(|| format!("must be {}, got `{name}`", Self::names(is_allowed)))
    }

    /// The names of the dtypes that are allowed, for messages: "`f32`, `f16` or `bf16`".
    pub fn names(is_allowed: impl Fn(Self) -> bool) -> String {
        let allowed = Self::ALL.iter().filter(|(_, dtype)| is_allowed(*dtype));
        let names: Vec<_> = allowed.map(|(name, _)| format!("`{name}`")).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => names.concat(),
        }
    }

    /// How embeddings are stored in a model of this dtype. Rounding hurts most there (tied embeddings are also the
    /// `lm_head`), so they keep 8 bits.
    pub fn for_embeddings(self) -> Self {
        if self.is_quantized() { Self::Q8 } else { self }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::every().find(|(_, dtype)| dtype == self).map_or("", |(name, _)| name))
    }
}
