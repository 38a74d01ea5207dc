//! Batches of tokens. A batch is a pure function of (seed, step, micro-step): the loader has no state, so a resumed run
//! gets the same batches as an uninterrupted one, and jumping to step 1,000,000 costs no more than step 1.

mod documents;
mod items;
mod masking;
mod pairs;
mod permutation;
mod prefetch;
mod source;
mod translations;

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};
use hearth_model::{TokenId, gpt::attention::AttentionContext};

pub use self::{
    documents::{Documents, Packing},
    items::{BatchItems, Items},
    masking::{MaskSettings, Masking},
    pairs::Pairs,
    permutation::Permutation,
    prefetch::Prefetcher,
    source::{MaskedRows, RowSource},
    translations::{SourceRows, Translations},
};
use crate::data::shard::Tokens;

/// The order of a split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// The split is cut into rows of `seq_len` inputs, or consists of rows of documents; every epoch visits each row
    /// exactly once, in a random order.
    #[default]
    Permuted,
    /// Each row starts at a uniformly random token (as in nanoGPT).
    RandomWindows,
}

/// Settings of the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderSettings {
    /// Seed of the order of rows.
    pub seed: u64,
    /// Inputs per row.
    pub seq_len: usize,
    /// Rows per batch.
    pub micro_batch_size: usize,
    /// Order of rows.
    pub order: RowOrder,
    /// Batches per optimizer step.
    pub n_micro_batches: usize,
}

/// Makes batches from one split. Clones share the tokens.
#[derive(Clone, Debug)]
pub struct Loader {
    source: RowSource,
    settings: LoaderSettings,
    /// Rows per epoch.
    n_rows: u64,
    /// Number of rows of the whole run: the last step has only the rest. `None`: every step is full.
    last_row: Option<u64>,
    /// Hides tokens of the rows.
    masked: Option<Arc<MaskedRows>>,
}

/// Rows of equal length: `batch_size` rows of `seq_len` tokens, and the successor of each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Rows.
    pub batch_size: usize,
    /// Tokens in a row.
    pub seq_len: usize,
    /// The inputs: `[batch_size, seq_len]`, row-major.
    pub inputs: Vec<TokenId>,
    /// The targets, in the same shape.
    pub targets: Vec<TokenId>,
    /// The weight of each target in the loss, in the same shape, 0 for targets that are ignored; `None`: all are 1.
    pub weights: Option<Vec<f32>>,
    /// Whether each target belongs to a document or example without being trained (weight 0), in the same shape, if rows hold
    /// documents or examples. False for trained targets and for padding.
    pub context_tokens: Option<Vec<bool>>,
    /// The position of each input in its document, in the same shape, if rows hold documents; `None`: each row is one.
    pub positions: Option<Vec<u32>>,
    /// If the rows are pairs of a better and a worse answer: the log-probabilities of each pair's answers under the reference
    /// model.
    pub references: Option<Vec<[f32; 2]>>,
    /// If each row is a text that becomes a vector: the rows that belong together.
    pub items: Option<BatchItems>,
    /// The source rows of an encoder-decoder.
    pub sources: Option<SourceRows>,
    /// Epochs completed before the first row of this batch. With random windows, an epoch is as many tokens as the
    /// split has.
    pub epoch: u64,
}

impl Loader {
    /// A loader over a split.
    ///
    /// # Errors
    /// The split has less than one row and its last target, or a setting is zero.
    pub fn new(source: &RowSource, settings: LoaderSettings) -> Result<Loader> {
        let LoaderSettings { seq_len, micro_batch_size, n_micro_batches, .. } = settings;
        ensure!(
            seq_len > 0 && micro_batch_size > 0 && n_micro_batches > 0,
            "a batch needs at least 1 token, row and micro-batch, got {seq_len}, {micro_batch_size} and {n_micro_batches}"
        );
        let n_rows = source.n_rows(seq_len);
        ensure!(
            n_rows > 0,
            "the training split has {} tokens, but a row of {seq_len} tokens requires at least {}\nhint: use a longer text, or a \
             shorter context (`model.max_seq_len`)",
            source.n_tokens(),
            seq_len + 1
        );
        let (source, masked) = match source {
            RowSource::Masked(masked) => (masked.rows.clone(), Some(masked.clone())),
            source => (source.clone(), None),
        };
        Ok(Loader { source, settings, n_rows, last_row: None, masked })
    }

    /// A loader for a run of `n_rows` rows, whose last step has only the rest.
    #[must_use]
    pub fn ending_after(self, n_rows: Option<u64>) -> Loader {
        Loader { last_row: n_rows, ..self }
    }

    /// The loader's settings.
    pub fn settings(&self) -> &LoaderSettings {
        &self.settings
    }

    /// Rows per epoch: all tokens but the first are targets once, except a remainder shorter than a row.
    pub fn rows_per_epoch(&self) -> u64 {
        self.n_rows
    }

    /// The number of rows of the run before micro-step `micro_step` of `step`. 128 bits, so no step overflows.
    fn rows_before(&self, step: u64, micro_step: usize) -> u128 {
        let LoaderSettings { micro_batch_size, n_micro_batches, .. } = self.settings;
        (u128::from(step) * n_micro_batches as u128 + micro_step as u128) * micro_batch_size as u128
    }

    /// Micro-batches of `step`, from 0: fewer than in others in the last step of a run that ends before it is full.
    pub fn n_micro_batches(&self, step: u64) -> usize {
        let LoaderSettings { micro_batch_size, n_micro_batches, .. } = self.settings;
        let Some(last) = self.last_row else { return n_micro_batches };
        let left = u128::from(last).saturating_sub(self.rows_before(step, 0)).div_ceil(micro_batch_size as u128);
        usize::try_from(left).unwrap_or(usize::MAX).min(n_micro_batches)
    }

    /// The batch of micro-step `micro_step`, which must be below [`n_micro_batches`](Self::n_micro_batches), of optimizer step
    /// `step`, both from 0.
    pub fn batch(&self, step: u64, micro_step: usize) -> Batch {
        let LoaderSettings { seq_len, micro_batch_size, .. } = self.settings;
        match &self.masked {
            None => self.plain_batch(step, micro_step, seq_len),
            Some(masked) => {
                let batch = self.plain_batch(step, micro_step, masked.text_len(seq_len));
                masked.masked(batch, step, micro_step as u64 * micro_batch_size as u64)
            }
        }
    }

    /// [`batch`](Self::batch) as the split has it, in rows of `seq_len`.
    fn plain_batch(&self, step: u64, micro_step: usize, seq_len: usize) -> Batch {
        let LoaderSettings { seed, micro_batch_size, order, .. } = self.settings;
        let first = self.rows_before(step, micro_step);
        let left = self.last_row.map_or(u128::MAX, |last| u128::from(last).saturating_sub(first));
        let n_rows = left.min(micro_batch_size as u128) as u64;
        let epoch_at = |row: u128| ((row / u128::from(self.n_rows)) as u64, (row % u128::from(self.n_rows)) as u64);
        let epoch = epoch_at(first).0;
        let mut permutation = Permutation::new(seed, epoch, self.n_rows);
        let mut row_at = |row: u64| {
            let (epoch, position) = epoch_at(first + u128::from(row));
            if permutation.epoch() != epoch {
                permutation = Permutation::new(seed, epoch, self.n_rows);
            }
            permutation.at(position)
        };
        let rows = 0..n_rows;
        let tokens = match &self.source {
            RowSource::Stream(tokens) => tokens,
            RowSource::Documents(documents) => {
                let numbers: Vec<u64> = rows.map(row_at).collect();
                return Batch { epoch, ..documents.batch(&numbers) };
            }
            RowSource::Pairs(pairs) => {
                let numbers: Vec<u64> = rows.map(row_at).collect();
                return Batch { epoch, ..pairs.batch(&numbers) };
            }
            RowSource::Items(items) => {
                let numbers: Vec<u64> = rows.map(row_at).collect();
                return Batch { epoch, ..items.batch(&numbers) };
            }
            RowSource::Translations(translations) => {
                let numbers: Vec<u64> = rows.map(row_at).collect();
                return Batch { epoch, ..translations.batch(&numbers) };
            }
            RowSource::Masked(_) => unreachable!("a loader has the rows behind masks"),
        };
        let mut batch = Batch { epoch, ..Batch::empty(seq_len) };
        let n_starts = tokens.len() - seq_len as u64;
        let window_key = mix(mix(mix(seed) ^ step));
        let first_in_step = micro_step as u64 * micro_batch_size as u64;
        for row in rows {
            let start = match order {
                RowOrder::Permuted => row_at(row) * seq_len as u64,
                // The high half of a 64 x 64 bit product maps 64 random bits onto 0..n_starts; the bias, n_starts /
                // 2^64, is negligible.
                RowOrder::RandomWindows => {
                    ((u128::from(mix(window_key ^ (first_in_step + row))) * u128::from(n_starts)) >> 64) as u64
                }
            };
            batch.push_row(tokens, start);
        }
        batch
    }
}

impl Batch {
    /// A batch without rows.
    pub(crate) fn empty(seq_len: usize) -> Batch {
        Batch {
            batch_size: 0,
            seq_len,
            inputs: Vec::new(),
            targets: Vec::new(),
            weights: None,
            context_tokens: None,
            positions: None,
            references: None,
            items: None,
            sources: None,
            epoch: 0,
        }
    }

    /// Adds the row of `tokens` that starts at `start`. The split must extend one token beyond it.
    pub(crate) fn push_row(&mut self, tokens: &Tokens, start: u64) {
        let mut row = vec![0; self.seq_len + 1];
        tokens.read(start, &mut row);
        self.batch_size += 1;
        self.inputs.extend_from_slice(&row[..self.seq_len]);
        self.targets.extend_from_slice(&row[1..]);
    }

    /// Targets in the batch.
    pub fn n_targets(&self) -> usize {
        self.targets.len()
    }

    /// Number of inputs, including an encoder's, without padding.
    pub fn n_tokens(&self) -> usize {
        let of_sources = self.sources.as_ref().map_or(0, |sources| sources.lens.iter().sum());
        let own = match &self.weights {
            None => self.inputs.len(),
            Some(weights) => weights.iter().filter(|weight| **weight > 0.0).count() + self.n_context_tokens(),
        };
        own + of_sources
    }

    /// The sum of the targets' weights.
    pub fn total_weight(&self) -> f64 {
        match &self.weights {
            None => self.n_targets() as f64,
            Some(weights) => weights.iter().map(|&weight| f64::from(weight)).sum(),
        }
    }

    /// Tokens of examples that are no targets.
    pub fn n_context_tokens(&self) -> usize {
        self.context_tokens.iter().flatten().filter(|is_context| **is_context).count()
    }

    /// The context of a forward pass over the inputs; with a seed, values are dropped.
    pub fn context(&self, dropout_seed: Option<u64>) -> AttentionContext<'static> {
        let Batch { batch_size, seq_len, .. } = *self;
        let mut context = match dropout_seed {
            Some(seed) => AttentionContext::training(batch_size, seq_len, seed),
            None => AttentionContext::dense(batch_size, seq_len),
        };
        if let (AttentionContext::Dense(dense), Some(items)) = (&mut context, &self.items)
            && !items.second_texts.is_empty()
        {
            dense.second_texts = Some(Arc::new(items.second_texts.clone()));
        }
        match &self.positions {
            Some(positions) => context.with_positions(Arc::new(positions.clone())),
            None => context,
        }
    }

    /// Inputs and targets on the device, each `[batch_size * seq_len]`.
    pub fn to_device(&self, device: &Device) -> (Tensor<1, Int>, Tensor<1, Int>) {
        (ids_on(&self.inputs, device), ids_on(&self.targets, device))
    }

    /// The token after each target, and its weight in the loss of a prediction head: 0 where the text of the target ends.
    pub fn second_targets(&self) -> (Vec<TokenId>, Vec<f32>) {
        let second = |at: usize| {
            let next = at + 1;
            let is_of_row = !next.is_multiple_of(self.seq_len);
            let is_of_text = || self.positions.as_ref().is_none_or(|positions| positions[next] == positions[at] + 1);
            let weight = || self.weights.as_ref().map_or(1.0, |weights| weights[next]);
            if is_of_row && is_of_text() { (self.targets[next], weight()) } else { (0, 0.0) }
        };
        (0..self.targets.len()).map(second).unzip()
    }
}

/// Token ids on the device.
pub(crate) fn ids_on(token_ids: &[TokenId], device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = token_ids.iter().map(|&id| id as i32).collect();
    let len = ids.len();
    Tensor::from_data(TensorData::new(ids, [len]), device)
}

/// The numbers below `n` in order, `size` at a time.
fn in_batches(n: u64, size: usize) -> impl Iterator<Item = Vec<u64>> {
    (0..n).step_by(size).map(move |first| (first..n.min(first + size as u64)).collect())
}

/// SplitMix64's finalizer after its increment ([Steele, Lea and Flood, 2014](https://doi.org/10.1145/2714064.2660195)):
/// adjacent inputs give unrelated outputs.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn tokens(n: u32) -> RowSource {
        Tokens::from_ids((0..n).collect(), 0).into()
    }

    fn settings(micro_batch_size: usize, seq_len: usize, order: RowOrder) -> LoaderSettings {
        LoaderSettings { seed: 7, seq_len, micro_batch_size, order, n_micro_batches: 2 }
    }

    const ORDERS: [RowOrder; 2] = [RowOrder::Permuted, RowOrder::RandomWindows];

    #[test]
    fn in_batches_puts_the_remaining_rows_in_the_last_batch() {
        assert_eq!(in_batches(5, 2).collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(in_batches(4, 4).collect::<Vec<_>>(), [[0, 1, 2, 3]]);
        assert_eq!(in_batches(0, 3).count(), 0);
    }

    #[test]
    fn batch_is_a_function_of_seed_step_and_micro_step() {
        let tokens = tokens(1000);
        for order in ORDERS {
            let settings = settings(4, 16, order);
            let loader = Loader::new(&tokens, settings).unwrap();
            let later = loader.batch(5, 1);
            assert_eq!(later, Loader::new(&tokens, settings).unwrap().batch(5, 1));
            for other in [loader.batch(6, 1), loader.batch(5, 0), loader.batch(1, 1)] {
                assert_ne!(later, other);
            }
            let other_seed = LoaderSettings { seed: 8, ..settings };
            assert_ne!(later, Loader::new(&tokens, other_seed).unwrap().batch(5, 1));
        }
    }

    #[test]
    fn batch_targets_are_the_inputs_shifted_by_one_token() {
        for order in ORDERS {
            let batch = Loader::new(&tokens(100), settings(3, 10, order)).unwrap().batch(0, 0);
            assert_eq!((batch.batch_size, batch.seq_len, batch.n_targets()), (3, 10, 30));
            for (input, target) in batch.inputs.iter().zip(&batch.targets) {
                assert_eq!(input + 1, *target);
            }
        }
    }

    /// First tokens of the rows of steps `steps`, in order.
    fn starts(loader: &Loader, steps: std::ops::Range<u64>) -> Vec<TokenId> {
        let indices = steps.flat_map(|step| (0..loader.settings().n_micro_batches).map(move |micro| (step, micro)));
        let batches = indices.map(|(step, micro_step)| loader.batch(step, micro_step));
        batches.flat_map(|batch| batch.inputs.chunks(batch.seq_len).map(|row| row[0]).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn each_epoch_visits_every_row_once_in_a_different_order() {
        // 101 rows of 5 tokens; the remaining 3 tokens are in no row. With 6 rows a step, epochs begin within batches.
        let loader = Loader::new(&tokens(101 * 5 + 1 + 3), settings(3, 5, RowOrder::Permuted)).unwrap();
        assert_eq!(loader.rows_per_epoch(), 101);
        let visited = starts(&loader, 0..101);
        let epochs: Vec<_> = visited.chunks(101).collect();
        assert_eq!(epochs.len(), 6);
        let all: Vec<TokenId> = (0..101).map(|row| row * 5).collect();
        for (index, epoch) in epochs.iter().enumerate() {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, all, "epoch {index}");
            assert!(epochs[..index].iter().all(|earlier| earlier != epoch), "epoch {index}");
        }
        assert_eq!(loader.batch(16, 1).epoch, 0, "row 99 is in the first epoch, and so the batch");
        assert_eq!(loader.batch(17, 0).epoch, 1);
    }

    #[test]
    fn batches_from_step_1000000_still_visit_each_row_once_per_epoch() {
        let loader = Loader::new(&tokens(1000), settings(4, 16, RowOrder::Permuted)).unwrap();
        let far = 1_000_000;
        let visited = starts(&loader, far..far + 40);
        // The whole epochs of 62 rows within these 320 rows.
        let into_epoch = (far * 8 % 62) as usize;
        for epoch in visited[62 - into_epoch..].chunks_exact(62) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..62).map(|row| row * 16).collect::<Vec<_>>());
        }
        assert_eq!(loader.batch(u64::MAX, 1).batch_size, 4);
    }

    #[test]
    fn last_step_of_a_run_has_only_the_rows_that_are_left() {
        // Two epochs of 101 rows, in steps of 2 times 6 rows: 16 full steps, and one of 10 rows.
        let settings = settings(6, 5, RowOrder::Permuted);
        let whole = Loader::new(&tokens(101 * 5 + 1), settings).unwrap();
        let loader = whole.clone().ending_after(Some(202));
        for step in 0..16 {
            assert_eq!(loader.n_micro_batches(step), 2);
            assert_eq!(loader.batch(step, 1), whole.batch(step, 1));
        }
        assert_eq!((loader.n_micro_batches(16), loader.n_micro_batches(17)), (2, 0));
        assert_eq!([0, 1].map(|micro_step| loader.batch(16, micro_step).batch_size), [6, 4]);
        let mut visited: Vec<TokenId> = Vec::new();
        for (step, micro_step) in (0..17).flat_map(|step| [(step, 0), (step, 1)]) {
            visited.extend(loader.batch(step, micro_step).inputs.chunks(5).map(|row| row[0]));
        }
        visited.sort_unstable();
        assert_eq!(visited, (0..202).map(|n| n / 2 * 5).collect::<Vec<_>>(), "each row twice");
        // A step with room for more micro-batches than there are rows.
        assert_eq!(whole.ending_after(Some(197)).n_micro_batches(16), 1);
    }

    #[test]
    fn rows_of_a_step_do_not_depend_on_the_micro_batch_size() {
        let tokens = tokens(1000);
        for order in ORDERS {
            let cut = |micro_batch_size, n_micro_batches| {
                let settings = LoaderSettings { seed: 1, seq_len: 8, micro_batch_size, order, n_micro_batches };
                starts(&Loader::new(&tokens, settings).unwrap(), 3..50)
            };
            assert_eq!(cut(8, 1), cut(1, 8), "{order:?}");
            assert_eq!(cut(8, 1), cut(4, 2), "{order:?}");
        }
    }

    #[test]
    fn random_windows_order_draws_every_window_equally_often() {
        let loader = Loader::new(&tokens(20), settings(4, 10, RowOrder::RandomWindows)).unwrap();
        let mut counts = [0_usize; 10];
        for start in starts(&loader, 0..500) {
            counts[start as usize] += 1;
        }
        // 4000 draws over 10 windows: 400 each, with a standard deviation of 19. Six of them is one in a hundred million.
        assert!(counts.iter().all(|count| count.abs_diff(400) < 6 * 19), "{counts:?}");
    }

    #[test]
    fn loader_accepts_a_split_of_one_row_and_rejects_a_shorter_one() {
        for order in ORDERS {
            assert_eq!(Loader::new(&tokens(11), settings(1, 10, order)).unwrap().batch(9, 0).targets[9], 10);
            let error = Loader::new(&tokens(10), settings(1, 10, order)).unwrap_err().to_string();
            assert!(
                error.contains("10 tokens") && error.contains("at least 11") && error.contains("\nhint: "),
                "{error}"
            );
        }
        assert!(Loader::new(&tokens(10), settings(0, 1, RowOrder::Permuted)).is_err());
    }
}
