//! Token ids become batches: windows at random places, each batch a pure function of the seed and the step.
//! The loader has no state, so a resumed run draws the very batches that the unbroken one would have.

use anyhow::{Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};
use hearth_model::TokenId;

/// Draws batches from one split.
#[derive(Debug)]
pub struct Loader<'a> {
    token_ids: &'a [TokenId],
    batch_size: usize,
    seq_len: usize,
    seed: u64,
}

/// Which batch of a run: an optimizer step, and the forward pass within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIndex {
    /// Optimizer step from 0.
    pub step: usize,
    /// Forward pass within the step, from 0.
    pub micro_step: usize,
}

/// Windows of text laid end to end: `batch_size` rows of `seq_len` tokens, and for each token the one that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Rows.
    pub batch_size: usize,
    /// Tokens in a row.
    pub seq_len: usize,
    /// What the model reads, `batch_size * seq_len` long.
    pub input_ids: Vec<TokenId>,
    /// What it should predict at each place, as long.
    pub target_ids: Vec<TokenId>,
}

impl<'a> Loader<'a> {
    /// A loader of windows of `seq_len` tokens; refuses a split that does not hold one window and its last target.
    pub fn new(token_ids: &'a [TokenId], batch_size: usize, seq_len: usize, seed: u64) -> Result<Loader<'a>> {
        ensure!(
            token_ids.len() > seq_len,
            "the training split has {} tokens, and a context of {seq_len} needs at least {}\nhint: a longer text, or a \
             smaller `--context`",
            token_ids.len(),
            seq_len + 1
        );
        Ok(Loader { token_ids, batch_size, seq_len, seed })
    }

    /// The batch at `index`: every window of the split is as likely as any other, in every row.
    pub fn batch(&self, index: BatchIndex) -> Batch {
        let n_starts = (self.token_ids.len() - self.seq_len) as u64;
        let key = mix(mix(mix(self.seed) ^ index.step as u64) ^ index.micro_step as u64);
        let mut batch = Batch::empty(self.seq_len);
        for row in 0..self.batch_size {
            // The high half of a 64 x 64 bit product maps 64 random bits onto 0..n_starts; the bias, n_starts / 2^64, is
            // far below anything a run can show.
            let start = (u128::from(mix(key ^ row as u64)) * u128::from(n_starts)) >> 64;
            batch.push_window(self.token_ids, start as usize);
        }
        batch
    }
}

impl Batch {
    /// A batch without rows.
    pub(crate) fn empty(seq_len: usize) -> Batch {
        Batch { batch_size: 0, seq_len, input_ids: Vec::new(), target_ids: Vec::new() }
    }

    /// Adds the window of `token_ids` that starts at `start`. The split must reach one token past it.
    pub(crate) fn push_window(&mut self, token_ids: &[TokenId], start: usize) {
        let end = start + self.seq_len;
        self.batch_size += 1;
        self.input_ids.extend_from_slice(&token_ids[start..end]);
        self.target_ids.extend_from_slice(&token_ids[start + 1..=end]);
    }

    /// Targets in the batch.
    pub fn n_targets(&self) -> usize {
        self.target_ids.len()
    }

    /// Inputs and targets on the device, each `[batch_size * seq_len]`.
    pub fn to_device(&self, device: &Device) -> (Tensor<1, Int>, Tensor<1, Int>) {
        let upload = |token_ids: &[TokenId]| {
            let ids: Vec<i32> = token_ids.iter().map(|&id| id as i32).collect();
            let len = ids.len();
            Tensor::from_data(TensorData::new(ids, [len]), device)
        };
        (upload(&self.input_ids), upload(&self.target_ids))
    }
}

/// The finalizer of SplitMix64 after its increment ([Steele, Lea and Flood, 2014](https://doi.org/10.1145/2714064.2660195)):
/// neighbouring inputs give unrelated outputs.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn at(step: usize, micro_step: usize) -> BatchIndex {
        BatchIndex { step, micro_step }
    }

    #[test]
    fn a_batch_depends_on_seed_step_and_micro_step_alone() {
        let ids: Vec<TokenId> = (0..1000).collect();
        let loader = Loader::new(&ids, 4, 16, 7).unwrap();
        let later = loader.batch(at(5, 1));
        assert_eq!(later, Loader::new(&ids, 4, 16, 7).unwrap().batch(at(5, 1)));
        for other in [loader.batch(at(6, 1)), loader.batch(at(5, 0)), loader.batch(at(1, 5))] {
            assert_ne!(later, other);
        }
        assert_ne!(later, Loader::new(&ids, 4, 16, 8).unwrap().batch(at(5, 1)));
    }

    #[test]
    fn targets_are_the_inputs_one_place_on() {
        let ids: Vec<TokenId> = (0..100).collect();
        let batch = Loader::new(&ids, 3, 10, 0).unwrap().batch(at(0, 0));
        assert_eq!((batch.batch_size, batch.seq_len, batch.n_targets()), (3, 10, 30));
        for (input, target) in batch.input_ids.iter().zip(&batch.target_ids) {
            assert_eq!(input + 1, *target);
        }
    }

    #[test]
    fn every_window_is_drawn_the_first_and_the_last_too() {
        let ids: Vec<TokenId> = (0..20).collect();
        let loader = Loader::new(&ids, 8, 10, 3).unwrap();
        let mut counts = [0_usize; 10];
        for step in 0..500 {
            for row in loader.batch(at(step, 0)).input_ids.chunks(10) {
                counts[row[0] as usize] += 1;
            }
        }
        // 4000 draws over 10 windows: 400 each, with a standard deviation of 19. Six of them is one in a hundred million.
        assert!(counts.iter().all(|count| count.abs_diff(400) < 6 * 19), "{counts:?}");
    }

    #[test]
    fn a_split_of_one_window_serves_and_a_shorter_one_is_refused() {
        let ids: Vec<TokenId> = (0..11).collect();
        assert_eq!(Loader::new(&ids, 1, 10, 0).unwrap().batch(at(9, 0)).target_ids[9], 10);
        let error = Loader::new(&ids[..10], 1, 10, 0).unwrap_err().to_string();
        assert!(error.contains("10 tokens") && error.contains("at least 11"), "{error}");
    }
}
