//! In which numbers a matrix is held.

use std::fmt;

/// How matrices are stored. Norms, biases and activations are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 4 bytes a value, on the CPU fewer where the very numbers need fewer; the only one that trains.
    #[default]
    F32,
    /// 2 bytes a value: IEEE half precision.
    F16,
    /// 2 bytes a value: the upper half of an f32. Most models are published so, and are then the very numbers of f32.
    Bf16,
    /// 8 bits a value in blocks of 32 with a scale: 8.5 bits in all.
    Q8,
    /// 5 bits a value in blocks of 32 with a scale and a minimum: 6 bits in all. Embeddings keep 8 bits.
    Q5_1,
    /// 4 bits a value in blocks of 32 with a scale and a minimum: 5 bits in all. Embeddings keep 8 bits.
    Q4_1,
    /// 4 bits a value in blocks of 32 with a scale: 4.5 bits in all. Embeddings keep 8 bits.
    Q4,
    /// GGUF's `Q6_K`: 6 bits a value and 6.5625 in all. The K-quants are computed with as files have them, on the CPU;
    /// nothing is rounded to them.
    Q6K,
    /// GGUF's `Q5_K`: 5 bits a value and 5.5 in all (5.625 in memory).
    Q5K,
    /// GGUF's `Q4_K`: 4 bits a value and 4.5 in all (4.625 in memory).
    Q4K,
}

impl Dtype {
    /// Every dtype that values are rounded to, with its name; from the widest on.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("f32", Self::F32),
        ("f16", Self::F16),
        ("bf16", Self::Bf16),
        ("q8", Self::Q8),
        ("q5_1", Self::Q5_1),
        ("q4_1", Self::Q4_1),
        ("q4", Self::Q4),
    ];

    /// Those that only files have, from the widest on.
    const K_QUANTS: &'static [(&'static str, Self)] = &[("q6_k", Self::Q6K), ("q5_k", Self::Q5K), ("q4_k", Self::Q4K)];

    /// Every dtype that a matrix can have, those that only files have included.
    pub(crate) fn every() -> impl DoubleEndedIterator<Item = (&'static str, Self)> {
        Self::ALL.iter().chain(Self::K_QUANTS).copied()
    }

    /// Whether values are rounded to whole numbers in blocks with a scale.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Whether it is one of GGUF's K-quants.
    pub fn is_k_quant(self) -> bool {
        matches!(self, Self::Q6K | Self::Q5K | Self::Q4K)
    }

    /// What a matrix of it is stored as: K-quants in the blocks of 32 that are nearest. (One that is put together of several
    /// kinds is stored in 8 bits from the CPU; a GPU holds it as the widest of them.)
    pub fn stored_as(self) -> Self {
        match self {
            Self::Q6K => Self::Q8,
            Self::Q5K => Self::Q5_1,
            Self::Q4K => Self::Q4_1,
            other => other,
        }
    }

    /// The largest weight that no rounding to this dtype makes infinite. In blocks, scales and minima are f16.
    pub(crate) fn largest_weight(self) -> f32 {
        let f16_max = half::f16::MAX.to_f32();
        match self {
            Self::F32 => f32::MAX,
            Self::Bf16 => half::bf16::MAX.to_f32(),
            Self::F16 | Self::Q5_1 | Self::Q4_1 | Self::Q5K | Self::Q4K => f16_max,
            Self::Q8 | Self::Q6K => 127.0 * f16_max,
            Self::Q4 => 8.0 * f16_max,
        }
    }

    /// Whether blocks have a minimum besides.
    pub fn has_minima(self) -> bool {
        matches!(self, Self::Q5_1 | Self::Q4_1)
    }

    /// The dtype called `name`, if it is one of those that `is_allowed` says.
    ///
    /// # Errors
    /// The names that are allowed.
    pub fn parse(name: &str, is_allowed: impl Fn(Self) -> bool) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, dtype)| *known == name && is_allowed(*dtype));
        found.map(|(_, dtype)| *dtype).ok_or_else(|| format!("must be {}, got `{name}`", Self::names(is_allowed)))
    }

    /// The names of the dtypes that `is_allowed` says, for people: "`f32`, `f16` or `bf16`".
    pub fn names(is_allowed: impl Fn(Self) -> bool) -> String {
        let allowed = Self::ALL.iter().filter(|(_, dtype)| is_allowed(*dtype));
        let names: Vec<_> = allowed.map(|(name, _)| format!("`{name}`")).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => names.concat(),
        }
    }

    /// How embeddings are held in a model of this dtype. They are where rounding hurts most (they are `lm_head` too
    /// where the two are tied), so they keep 8 bits.
    pub fn for_embeddings(self) -> Self {
        if self.is_quantized() { Self::Q8 } else { self }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::every().find(|(_, dtype)| dtype == self).map_or("", |(name, _)| name))
    }
}
