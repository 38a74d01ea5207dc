//! The size of a micro-batch: a number of rows, or whatever fits.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

/// Rows in one forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatchSize {
    /// As many as fit in memory and divide a step; found before the run begins, see [`memory_fit`](crate::plan::memory_fit).
    Auto,
    /// As many as this.
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
