//! Evaluation on the validation split.

mod loss;

pub use loss::{Score, Windows, score};
pub(crate) use loss::{read_floats, read_numbers};
