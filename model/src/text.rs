//! Text to token ids and back.

pub mod chat;
pub mod tokenizer;
