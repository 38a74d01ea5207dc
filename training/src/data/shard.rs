//! A prepared data set: a folder of token shards that `hearth-train prepare` writes and training maps into memory.
//!
//! `DATA/` holds
//! - `data.json`: counts, sources and shards ([`Manifest`]);
//! - `tokenizer/`: a copy of the tokenizer that made the tokens;
//! - `train-00000.tokens`, ..., `val-00000.tokens`, ...: the tokens of each split, in order;
//! - `verified.json`: the shards that were read and found intact.
//!
//! # Format of a shard
//! A header of 96 bytes, then the tokens, all little-endian:
//!
//! | bytes | contents |
//! |---|---|
//! | 0..8 | magic, `HEARTHTK` |
//! | 8..12 | version of the format, 1 |
//! | 12..16 | bytes of a token: 2 (u16) or 4 (u32) |
//! | 16..24 | number of tokens |
//! | 24..32 | zeros |
//! | 32..64 | SHA-256 of the tokenizer's `tokenizer.json` |
//! | 64..96 | SHA-256 of the tokens, followed by bytes 0..64 of the header |

mod dataset;
mod file;
mod manifest;
mod tokens;
mod verified;
mod writer;

pub use self::{
    dataset::{Dataset, open_tokens},
    file::TokenWidth,
    manifest::{DATA_FILE, Manifest, SHARD_VERSION, ShardInfo, SourceInfo, Split, SplitInfo, SplitRule, TOKENIZER_DIR},
    tokens::Tokens,
    writer::{SHARD_TOKENS, SplitWriter, WriterSettings},
};
