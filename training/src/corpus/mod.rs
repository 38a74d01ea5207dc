//! Where training text comes from, and how a text becomes token ids. One file per kind of source.

mod encode;
mod split;
mod txt;

pub use encode::{chunks, encode_text};
pub use split::{Split, split_by_chars};
pub use txt::read_text;
