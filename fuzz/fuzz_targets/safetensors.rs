//! Bytes as a weights file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let leaked: &'static mut [u8] = bytes.to_vec().leak();
    let start: *mut [u8] = leaked;
    // SAFETY: `start` was leaked from a vector of exactly this length just now, and nothing of it is used afterwards.
    unsafe {
        hearth_fuzz::weights::read_weights(&*start);
        drop(Box::from_raw(start));
    }
});
