//! Bytes as a GGUF file: its front, its tensors' values and its tokenizer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hearth_fuzz::weights::gguf::read(bytes));
