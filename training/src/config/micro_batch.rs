//! The size of a micro-batch: a number of rows, or whatever fits.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use super::TrainConfig;

/// Rows in one forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatchSize {
    /// As many as fit in memory and divide a step; determined before the run begins, see
    /// [`memory_fit`](crate::plan::memory_fit).
    Auto,
    /// This many.
    Rows(usize),
}

const AUTO: &str = "auto";

impl MicroBatchSize {
    /// The number of rows; 1 for `Auto`, until a size has been found.
    pub fn rows(self) -> usize {
        match self {
            Self::Auto => 1,
            Self::Rows(rows) => rows,
        }
    }
}

impl fmt::Display for MicroBatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Rows(rows) => write!(f, "{rows}"),
        }
    }
}

impl Serialize for MicroBatchSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Rows(rows) => rows.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for MicroBatchSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RowsOrAuto)
    }
}

struct RowsOrAuto;

impl Visitor<'_> for RowsOrAuto {
    type Value = MicroBatchSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of rows, or `auto`")
    }

    fn visit_u64<E: de::Error>(self, rows: u64) -> Result<MicroBatchSize, E> {
        usize::try_from(rows)
            .map(MicroBatchSize::Rows)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(rows), &self))
    }

    fn visit_i64<E: de::Error>(self, rows: i64) -> Result<MicroBatchSize, E> {
        usize::try_from(rows)
            .map(MicroBatchSize::Rows)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(rows), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<MicroBatchSize, E> {
        match text {
            AUTO => Ok(MicroBatchSize::Auto),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

impl TrainConfig {
    /// Tokens per micro-batch.
    pub fn micro_batch_tokens(&self) -> usize {
        self.data.micro_batch_size.rows().saturating_mul(self.model.max_seq_len)
    }

    /// Micro-batches per step.
    pub fn micro_steps(&self) -> usize {
        self.data.tokens_per_step.map_or(1, |tokens| tokens / self.micro_batch_tokens().max(1))
    }

    /// Tokens per step.
    pub fn tokens_per_step(&self) -> usize {
        self.micro_batch_tokens() * self.micro_steps()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use crate::config::Layers;

    #[test]
    fn micro_steps_are_tokens_per_step_over_micro_batch_tokens() {
        let layers = Layers {
            preset: Some("tiny".to_owned()),
            sets: vec!["data.tokens_per_step=768".to_owned()],
            ..Layers::default()
        };
        let config = layers.resolve().unwrap();
        config.validate().unwrap();
        assert_eq!((config.micro_batch_tokens(), config.micro_steps(), config.tokens_per_step()), (256, 3, 768));
    }
}
