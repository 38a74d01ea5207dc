//! Bytes as a file of `torch.save`, and as a pickled tokenizer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hearth_fuzz::weights::import::read(bytes));
