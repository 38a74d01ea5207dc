//! The loss over a whole split: consecutive windows of the context's length, so that every token except the first is
//! predicted exactly once; the mean is over tokens, not over batches.

use anyhow::{Result, ensure};
use burn::tensor::{Tensor, Transaction};
use hearth_model::{gpt::Gpt, ops::Targets};
use std::f64::consts::LN_2;

use crate::{
    data::{
        loader::{Batch, Documents, MaskedRows, RowSource},
        shard::Tokens,
    },
    ranks::Group,
};

/// A split's loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Mean cross entropy in nats per token.
    pub loss: f64,
    /// Number of predicted tokens: in a whole split all but the first. Of preferences, the number of pairs.
    pub n_targets: usize,
    /// With preferences, the share of pairs whose better answer is preferred more than by the reference model.
    pub accuracy: Option<f64>,
}

impl Score {
    /// Perplexity: `exp(loss)`.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Bits per byte of text, which is comparable between tokenizers. `n_bytes`: the bytes of the predicted tokens.
    pub fn bits_per_byte(&self, n_bytes: f64) -> f64 {
        self.loss * self.n_targets as f64 / LN_2 / n_bytes
    }
}

/// How a split is divided into windows and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Windows per forward pass.
    pub batch_size: usize,
    /// Tokens per window; the last of a split may be shorter.
    pub seq_len: usize,
    /// Number of batches from the beginning of the split. `None`: all.
    pub max_batches: Option<usize>,
}

impl Windows {
    /// The batches that cover `source`.
    fn batches(self, source: &RowSource) -> Box<dyn Iterator<Item = Batch> + '_> {
        match source {
            RowSource::Stream(tokens) => Box::new(self.batches_of_stream(tokens)),
            RowSource::Masked(masked) => Box::new(self.masked_batches(masked)),
            RowSource::Translations(translations) => {
                Box::new(translations.batches(self.batch_size).take(self.max_batches.unwrap_or(usize::MAX)))
            }
            source => {
                let documents = source.documents().into_iter();
                Box::new(documents.flat_map(move |documents| self.batches_of_documents(documents)))
            }
        }
    }

    /// The batches that cover masked rows and have targets: with the same masks whatever the size of a batch.
    fn masked_batches(self, masked: &MaskedRows) -> impl Iterator<Item = Batch> {
        let windows = Windows { seq_len: masked.text_len(self.seq_len), ..self };
        let batches = windows.batches(masked.unmasked()).scan(0, |first_row, batch| {
            let n_rows = batch.batch_size as u64;
            let batch = masked.evaluated(batch, *first_row);
            *first_row += n_rows;
            Some(batch)
        });
        batches.filter(|batch| batch.total_weight() > 0.0)
    }

    /// The batches of `documents` that have targets.
    fn batches_of_documents(self, documents: &Documents) -> impl Iterator<Item = Batch> {
        let batches = documents.batches(self.batch_size).filter(|batch| batch.total_weight() > 0.0);
        batches.take(self.max_batches.unwrap_or(usize::MAX))
    }

    /// The batches that cover `tokens`: each token except the first is a target once, in order.
    pub fn batches_of_stream(self, tokens: &Tokens) -> impl Iterator<Item = Batch> {
        let Windows { batch_size, seq_len, max_batches } = self;
        let n_targets = tokens.len().saturating_sub(1) as usize;
        let n_full = n_targets / seq_len;
        let full = (0..n_full).step_by(batch_size).map(move |first| {
            let mut batch = Batch::empty(seq_len);
            for window in first..n_full.min(first + batch_size) {
                batch.push_row(tokens, (window * seq_len) as u64);
            }
            batch
        });
        let rest = (!n_targets.is_multiple_of(seq_len)).then(|| {
            let mut batch = Batch::empty(n_targets % seq_len);
            batch.push_row(tokens, (n_full * seq_len) as u64);
            batch
        });
        full.chain(rest).take(max_batches.unwrap_or(usize::MAX))
    }
}

/// The loss of `gpt` over a split; the model must be without autodiff and dropout (`valid()`). Reads back once, at the
/// end.
///
/// # Errors
/// A split without targets, or a device that fails.
pub fn score(gpt: &Gpt, source: &RowSource, windows: Windows) -> Result<Score> {
    score_in(&Group::default(), gpt, source, windows)
}

/// [`score`] by the ranks of `group`, which share the batches; all get it, with the bits that one rank alone would get.
///
/// # Errors
/// The same, and a rank that does not answer.
pub fn score_in(group: &Group, gpt: &Gpt, source: &RowSource, windows: Windows) -> Result<Score> {
    ensure!(source.has_targets(), "evaluation needs at least 2 tokens, got {}", source.n_tokens());
    let device = gpt.device();
    let mut losses: Vec<Tensor<1>> = Vec::new();
    let mut counts = Vec::new();
    for (number, batch) in windows.batches(source).enumerate() {
        counts.push(batch.total_weight() as usize);
        if !group.is_mine(number) {
            continue;
        }
        let (inputs, ids) = batch.to_device(&device);
        let hidden = gpt.forward(inputs, batch.context_with_source(gpt, &device, None));
        let total = batch.total_weight();
        let weights = batch.weights.map(|weights| weights.iter().map(|weight| weight / total as f32).collect());
        losses.push(gpt.loss(hidden, Targets { ids, weights }));
    }
    let own = if losses.is_empty() { Vec::new() } else { read_floats(Tensor::cat(losses, 0))? };
    // Bits, since a message between ranks has not all floats.
    let means = group.in_turn(own.into_iter().map(f32::to_bits).collect())?;
    let n_targets = counts.iter().sum();
    let means = means.into_iter().map(f32::from_bits);
    let total: f64 = means.zip(&counts).map(|(mean, &count)| f64::from(mean) * count as f64).sum();
    Ok(Score { loss: total / n_targets as f64, n_targets, accuracy: None })
}

/// Some numbers, `[1]` each, off the device in one read.
pub(crate) fn read_numbers<const N: usize>(numbers: [Tensor<1>; N]) -> Result<[f32; N]> {
    let floats = read_floats(Tensor::cat(numbers.to_vec(), 0))?;
    let n_floats = floats.len();
    floats.try_into().map_err(|_| anyhow::anyhow!("the device gave {n_floats} numbers, expected {N}"))
}

/// Reads a row of numbers from the device.
pub(crate) fn read_floats(values: Tensor<1>) -> Result<Vec<f32>> {
    let data = Transaction::default()
        .register(values)
        .try_execute()
        .map_err(|error| anyhow::anyhow!("the device failed: {error}"))?;
    let mut floats = Vec::new();
    for values in data {
        floats
            .extend(values.try_to_vec_as::<f32>().map_err(|error| anyhow::anyhow!("cannot read a number: {error:?}"))?);
    }
    Ok(floats)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::TokenId;

    use super::*;
    use crate::data::{loader::Packing, tokenizer_build::BuiltTokenizer};

    #[test]
    fn eval_windows_make_each_token_but_the_first_a_target_once() {
        for n_tokens in [2, 8, 9, 10, 16, 17, 63, 64, 65] {
            let ids: Vec<TokenId> = (0..n_tokens).collect();
            let tokens = Tokens::from_ids(ids.clone(), 0);
            for (batch_size, seq_len) in [(1, 8), (3, 8), (4, 1), (100, 100)] {
                let batches: Vec<_> =
                    Windows { batch_size, seq_len, max_batches: None }.batches_of_stream(&tokens).collect();
                let targets: Vec<TokenId> = batches.iter().flat_map(|batch| batch.targets.clone()).collect();
                assert_eq!(targets, ids[1..], "{n_tokens} tokens, {batch_size} x {seq_len}");
                for batch in batches {
                    assert!(batch.batch_size <= batch_size && batch.seq_len <= seq_len);
                    assert_eq!(batch.n_targets(), batch.batch_size * batch.seq_len);
                    assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| input + 1 == *target));
                }
            }
        }
    }

    #[test]
    fn max_batches_counts_only_batches_with_targets() {
        let tokenizer = BuiltTokenizer::characters("abcdefgh", 4).unwrap().open().unwrap();
        let examples = [false, false, true, true].map(|is_target| (vec![1, 2, 3], vec![false, is_target, is_target]));
        let documents = Documents::of_examples(examples, (4, Packing::Off), &tokenizer).unwrap();
        let windows = Windows { batch_size: 1, seq_len: 4, max_batches: Some(1) };
        let batches: Vec<Batch> = windows.batches_of_documents(&documents).collect();
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].total_weight(), 2.0);
    }

    #[test]
    fn loss_of_ln_2_is_1_bit_per_byte_and_perplexity_2() {
        let score = Score { loss: LN_2, n_targets: 100, accuracy: None };
        assert!((score.bits_per_byte(100.0) - 1.0).abs() < 1e-12);
        // Tokens of four bytes each: a quarter of the bits fall on each byte.
        assert!((score.bits_per_byte(400.0) - 0.25).abs() < 1e-12);
        assert!((score.perplexity() - 2.0).abs() < 1e-12);
    }
}
