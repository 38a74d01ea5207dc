//! Random numbers without state: each is a pure function of its purpose and position.
//!
//! A request's tokens must not depend on other requests, on the batch they are computed in, or on a restart after
//! preemption. So there is no generator to advance: the number at a position is computed from the position, with
//! Philox4x32-10 (Salmon, Moraes, Dror and Shaw, ["Parallel random numbers: as easy as 1, 2, 3"][paper], SC 2011), with
//! the seed as its key and (position, choice, purpose) as its counter.
//!
//! [paper]: https://doi.org/10.1145/2063384.2063405

/// The purpose of a random number. Numbers for different purposes at the same position are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Sampling the token.
    Token = 0,
    /// Whether a step that acts only sometimes acts here.
    Coin = 1,
    /// The noise of a stochastic beam search.
    Gumbel = 2,
    /// The identity of a branch of a stochastic beam search.
    Branch = 3,
}

/// The random numbers of one choice of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    seed: u64,
    choice: u32,
}

impl RandomStream {
    /// The stream of the `choice`-th answer to a request with this seed.
    pub fn new(seed: u64, choice: u32) -> Self {
        Self { seed, choice }
    }

    /// A number in `[0, 1)`, a multiple of 2^-53. `position` is the token's index in its sequence.
    pub fn uniform(&self, position: usize, purpose: Purpose) -> f64 {
        (self.bits(position, purpose) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// 64 random bits.
    pub(super) fn bits(&self, position: usize, purpose: Purpose) -> u64 {
        let [position_low, position_high] = halves(position as u64);
        let [word_0, word_1, ..] =
            philox(halves(self.seed), [position_low, position_high, self.choice, purpose as u32]);
        u64::from(word_0) << 32 | u64::from(word_1)
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Ten rounds of Philox4x32, the number that the paper recommends with a safety margin.
fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    const N_ROUNDS: usize = 10;
    for _ in 0..N_ROUNDS {
        counter = round(key, counter);
        // Weyl sequences from the golden ratio and from the square root of 3, minus 1.
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

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
