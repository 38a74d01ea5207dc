//! Bytes as a `tokenizer.json`; one that opens must encode and decode without a panic.
#![no_main]

use std::path::Path;

use hearth_fuzz::text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_json(bytes, None, Path::new("tokenizer.json")) else { return };
    if let Ok(ids) = tokenizer.encode("Once upon a time, 3 naïve 猫s\n", EncodeOptions::PROMPT) {
        drop(tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: true }));
    }
});
