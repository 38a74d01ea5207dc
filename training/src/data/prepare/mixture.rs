//! Mixtures of sources with given weights: each contributes a number of training tokens, in whole documents except one.

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use hearth_model::TokenId;

use super::output::{Counts, Length, Output, Spooled};
use crate::data::{corpus::SourceSpec, shard::Split};

/// Tokens copied at a time.
const BLOCK: usize = 1 << 16;

/// Maximum number of repetitions of a source. More is a mistake in the weights, and may fill the disk.
const MAX_EPOCHS: u64 = 10_000;

/// When a mixture is complete; the names are from the Python library `datasets`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum StoppingStrategy {
    /// When the first source is exhausted: nothing is repeated.
    #[default]
    FirstExhausted,
    /// When all sources are exhausted: nothing is left out.
    AllExhausted,
}

/// The weights of all sources.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    names: Vec<String>,
    weights: Vec<f64>,
    stopping: StoppingStrategy,
}

impl Mixture {
    /// The mixture of weighted sources; `None` if no source has a weight.
    pub(super) fn new(sources: &[SourceSpec], stopping: StoppingStrategy) -> Result<Option<Mixture>> {
        let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
        if weights.is_empty() {
            ensure!(
                stopping == StoppingStrategy::default(),
                "`--stopping-strategy` is for a mixture, but no source has a weight\nhint: leave it out, or add a weight to all \
                 sources, as in `SOURCE=1`"
            );
            return Ok(None);
        }
        if let Some(source) = sources.iter().find(|source| source.weight.is_none()) {
            bail!(
                "the source `{}` has no weight, but others have one\nhint: add a weight to all sources, as in `{}=1`, or to none",
                source.origin,
                source.origin
            );
        }
        let names = sources.iter().map(|source| source.origin.to_string()).collect();
        Ok(Some(Mixture { names, weights, stopping }))
    }

    /// Number of training tokens from each source, given its `available` tokens.
    fn targets(&self, available: &[u64]) -> Vec<u64> {
        let sum: f64 = self.weights.iter().sum();
        let totals = self.weights.iter().zip(available).map(|(weight, &n)| n as f64 * sum / weight);
        let total = match self.stopping {
            StoppingStrategy::FirstExhausted => totals.fold(f64::INFINITY, f64::min),
            StoppingStrategy::AllExhausted => totals.fold(0.0, f64::max),
        };
        let targets = self.weights.iter().map(|weight| (total * weight / sum).round() as u64);
        match self.stopping {
            // Rounding must not exceed the available tokens.
            StoppingStrategy::FirstExhausted => targets.zip(available).map(|(target, &n)| target.min(n)).collect(),
            StoppingStrategy::AllExhausted => targets.collect(),
        }
    }

    /// Rejects `targets` that leave a source out or repeat one too often, given the tokens that each has.
    fn check_targets(&self, targets: &[u64], available: &[u64]) -> Result<()> {
        if let Some(index) = targets.iter().position(|&target| target == 0) {
            bail!(
                "the source `{}` would give no token to the mixture, which has {}: its weight {} is too small\nhint: give it a larger \
                 weight, or leave it out",
                self.names[index],
                targets.iter().sum::<u64>(),
                self.weights[index]
            );
        }
        let is_too_often = |(&target, &n): (&u64, &u64)| target > n.saturating_mul(MAX_EPOCHS);
        if let Some(index) = targets.iter().zip(available).position(is_too_often) {
            bail!(
                "the source `{}` would be repeated more than {MAX_EPOCHS} times, until another one is exhausted\nhint: correct \
                 the weights, or use `--stopping-strategy first_exhausted`",
                self.names[index]
            );
        }
        Ok(())
    }

    /// Writes the mixture. Validation documents are reduced in the same proportion as training documents, never
    /// repeated.
    pub(super) fn compose(
        &self,
        sources: &[[Spooled; 2]],
        text: TokenText<'_>,
        output: &mut Output,
    ) -> Result<Vec<Counts>> {
        let available: Vec<u64> = sources.iter().map(|[train, _]| train.tokens.len()).collect();
        if let Some(index) = available.iter().position(|&n| n == 0) {
            bail!(
                "the source `{}` has no training documents: all were held out\nhint: hold out less with `--val-fraction`",
                self.names[index]
            );
        }
        let targets = self.targets(&available);
        self.check_targets(&targets, &available)?;
        let mut counts = Vec::new();
        for (([train, val], &n), target) in sources.iter().zip(&available).zip(targets) {
            let before = output.counts();
            for _ in 0..target / n {
                copy(train, n, text, output, Split::Train)?;
            }
            copy(train, target % n, text, output, Split::Train)?;
            let share = (target as f64 / n as f64).min(1.0);
            let n_val = val.tokens.len();
            copy(val, (n_val as f64 * share).round() as u64, text, output, Split::Val)?;
            let written = output.counts() - before;
            ensure!(written.train_tokens == target, "{} tokens were written, expected {target}", written.train_tokens);
            counts.push(Counts { epochs: target as f64 / n as f64, ..written });
        }
        Ok(counts)
    }
}

/// Copies documents with `n_wanted` tokens in total, spread evenly over the source; the last is cut to fit.
fn copy(source: &Spooled, n_wanted: u64, text: TokenText<'_>, output: &mut Output, split: Split) -> Result<()> {
    let n_all = source.tokens.len();
    let mut ids = vec![0; BLOCK];
    let (mut n_seen, mut n_copied) = (0, 0);
    let output = output.split(split);
    for document in source.documents()? {
        let Length { tokens, bytes } = document?;
        let start = n_seen;
        n_seen += tokens;
        // Copies a document whenever the copied fraction falls behind the fraction seen, so it never stays behind.
        let is_due = u128::from(n_copied) * u128::from(n_all) < u128::from(n_wanted) * u128::from(n_seen);
        if !is_due {
            continue;
        }
        let n_taken = tokens.min(n_wanted - n_copied);
        let mut position = start;
        while position < start + n_taken {
            let n = (start + n_taken - position).min(BLOCK as u64) as usize;
            source.tokens.read(position, &mut ids[..n]);
            position += n as u64;
            // Bytes of whole documents were counted when they were read.
            let mut n_bytes = 0;
            if n_taken < tokens {
                if let Some(eos) = text.eos
                    && position == start + n_taken
                {
                    ids[n - 1] = eos;
                }
                n_bytes = text.count_bytes(&ids[..n]);
            }
            output.push(&ids[..n], n_bytes)?;
        }
        if n_taken == tokens {
            output.push(&[], bytes)?;
        }
        output.end_document(None)?;
        n_copied += n_taken;
    }
    Ok(())
}

/// Tokenizer data for documents that are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenText<'a> {
    /// Bytes of text per token id.
    pub(super) n_bytes: &'a [u32],
    /// The token that ends a document, also a cut one.
    pub(super) eos: Option<TokenId>,
}

impl TokenText<'_> {
    fn count_bytes(self, ids: &[TokenId]) -> u64 {
        ids.iter().map(|&id| self.n_bytes.get(id as usize).map_or(0, |&n| u64::from(n))).sum()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::corpus::Origin;

    fn mixture(weights: &[f64], stopping: StoppingStrategy) -> Mixture {
        let names = (0..weights.len()).map(|index| format!("source-{index}")).collect();
        Mixture { names, weights: weights.to_vec(), stopping }
    }

    #[test]
    fn mixture_targets_match_the_weights_of_the_sources() {
        let cases: [(&[f64], &[u64]); 4] = [
            (&[1.0, 1.0], &[1_000_000, 30_000]),
            (&[0.7, 0.2, 0.1], &[1_000_000, 999_999, 12_345]),
            (&[3.0, 1.0], &[50_000, 50_001]),
            (&[1e-3, 1.0], &[5_000, 7_000_000]),
        ];
        for (weights, available) in cases {
            for stopping in [StoppingStrategy::FirstExhausted, StoppingStrategy::AllExhausted] {
                let targets = mixture(weights, stopping).targets(available);
                let total: u64 = targets.iter().sum();
                for (index, target) in targets.iter().enumerate() {
                    let (share, wanted) = (*target as f64 / total as f64, weights[index] / weights.iter().sum::<f64>());
                    assert!((share - wanted).abs() < 1e-3 * wanted, "{weights:?} {available:?}: {targets:?}");
                }
                let (mut fits, mut covers) = (targets.iter().zip(available), targets.iter().zip(available));
                match stopping {
                    StoppingStrategy::FirstExhausted => assert!(fits.all(|(target, n)| target <= n), "{targets:?}"),
                    StoppingStrategy::AllExhausted => {
                        assert!(covers.all(|(target, n)| target + 1 >= *n), "{targets:?}")
                    }
                }
            }
        }
    }

    #[test]
    fn source_to_be_repeated_over_10000_times_is_rejected_by_name() {
        for (weights, available, refused) in [
            ([1.0, 1.0], [10_000, 1], None),
            ([1.0, 1.0], [10_001, 1], Some("source-1")),
            ([1.0, 1e-12], [1, 1], Some("source-0")),
            ([1e-300, 1.0], [1_000_000, 1_000_000], Some("source-1")),
        ] {
            let mixture = mixture(&weights, StoppingStrategy::AllExhausted);
            let checked = mixture.check_targets(&mixture.targets(&available), &available);
            match (checked, refused) {
                (Ok(()), None) => {}
                (Err(error), Some(name)) => {
                    let error = error.to_string();
                    let what = format!("`{name}` would be repeated more than 10000 times");
                    assert!(error.contains(&what) && error.contains("\nhint: "), "{error}");
                }
                (checked, _) => unreachable!("{weights:?} {available:?}: {checked:?}"),
            }
        }
    }

    #[test]
    fn source_whose_weight_is_too_small_for_a_token_is_rejected_by_name() {
        for stopping in [StoppingStrategy::FirstExhausted, StoppingStrategy::AllExhausted] {
            let refused = |weights: &[f64], available: &[u64]| {
                let mixture = mixture(weights, stopping);
                mixture.check_targets(&mixture.targets(available), available).err().map(|error| error.to_string())
            };
            let error = refused(&[1.0, 1e-5], &[10_000, 10_000]);
            // The second source is exhausted only after a billion tokens of the first.
            let expected = match stopping {
                StoppingStrategy::FirstExhausted => {
                    "`source-1` would give no token to the mixture, which has 10000: its weight 0.00001 is too small\nhint: "
                }
                StoppingStrategy::AllExhausted => "`source-0` would be repeated more than 10000 times",
            };
            assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{error:?}");
            assert_eq!(refused(&[1.0, 1e-3], &[10_000, 10_000]), None);
        }
    }

    #[test]
    fn mixture_rejects_a_source_without_weight_if_another_has_one() {
        let spec = |path: &str, weight| SourceSpec { origin: Origin::Path(path.into()), weight };
        let stopping = StoppingStrategy::default();
        assert!(Mixture::new(&[spec("a", None), spec("b", None)], stopping).unwrap().is_none());
        assert!(Mixture::new(&[spec("a", Some(1.0)), spec("b", Some(2.0))], stopping).unwrap().is_some());
        let error = Mixture::new(&[spec("a", Some(1.0)), spec("b.txt", None)], stopping).unwrap_err().to_string();
        assert!(error.contains("`b.txt` has no weight"), "{error}");
        let error = Mixture::new(&[spec("a", None)], StoppingStrategy::AllExhausted).unwrap_err().to_string();
        assert!(error.contains("`--stopping-strategy`") && error.contains("\nhint: "), "{error}");
    }
}
