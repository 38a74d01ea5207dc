//! Random numbers as a pure function of a key and a counter: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, ["Parallel random
//! numbers: as easy as 1, 2, 3"](https://doi.org/10.1145/2063384.2063405), SC 2011).

/// The low half and the high half.
#[inline(always)]
pub(crate) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Four random words. Ten rounds of Philox4x32: the number that the paper recommends with a safety margin.
// Inlined, so that loops over counters are compiled for the instructions of their callers.
#[inline(always)]
pub(crate) fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    const N_ROUNDS: usize = 10;
    for _ in 0..N_ROUNDS {
        counter = round(key, counter);
        // Weyl sequences from the golden ratio and from the square root of 3, minus 1.
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[inline(always)]
fn round(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [low_0, high_0] = halves(u64::from(counter[0]) * 0xD251_1F53);
    let [low_1, high_1] = halves(u64::from(counter[2]) * 0xCD9E_8D57);
    [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the paper's own library, Random123.
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
