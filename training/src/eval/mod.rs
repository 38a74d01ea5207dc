//! How good a model is on text that it was not trained on.

mod loss;

pub(crate) use loss::read_floats;
pub use loss::{Score, Windows, score};
