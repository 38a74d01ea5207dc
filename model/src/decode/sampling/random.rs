//! Random numbers without state: each is a pure function of its purpose and position.
//!
//! A request's tokens must not depend on other requests, on the batch they are computed in, or on a restart after
//! preemption. So there is no generator to advance: the number at a position is computed from the position by
//! [`philox`], with the seed as its key and (position, choice, purpose) as its counter.

use crate::philox::{halves, philox};

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
