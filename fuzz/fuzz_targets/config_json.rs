//! Bytes as a `config.json`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(json) = serde_json::from_slice(bytes) {
        hearth_fuzz::weights::read_config(&json);
    }
});
