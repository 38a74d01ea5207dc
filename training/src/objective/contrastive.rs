//! Contrastive training of text vectors with in-batch negatives ([Henderson et al.,
//! 2017](https://arxiv.org/abs/1705.00652), 4.4; `MultipleNegativesRankingLoss` of
//! [sentence-transformers](https://www.sbert.net)): the vector of a text becomes closer to the vector of its matching
//! text than to all others in the batch.
//!
//! - Rows: pairs of an anchor and its positive, or these and a negative, each text a row.
//! - Loss: the mean over the pairs of the cross entropy of the anchor's positive among all positives and negatives of the batch,
//!   by their cosines divided by a temperature. A step is one micro-batch, since its texts are each other's negatives.
//! - With margins ([`margins`](super::margins)): the mean over the pairs of the square of how far they are missed.
//! - A step counts pairs.
//! - Score: the mean loss, and the share of anchors whose positive is the nearest of its batch, or with margins nearer than its negative.

use std::iter::zip;

use anyhow::Result;
use hearth_model::{gpt::Gpt, ops::Losses, text::tokenizer::Tokenizer};
use rayon::prelude::*;

use super::{
    Objective, RowKind, StepIndex, TextPooling, TrainingPass,
    margins::MarginLosses,
    text_vectors::{TextVectors, vectors_of},
};
use crate::{
    data::loader::{Batch, RowSource},
    eval::{Score, Windows},
    ranks::Group,
};

/// The least length of a vector that is divided by its length, as in PyTorch.
const MIN_NORM: f64 = 1e-12;

/// Contrastive training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contrastive {
    /// Divisor of cosines.
    pub(super) temperature: f64,
    pub(super) pooling: TextPooling,
    /// Texts of an item: 2, or 3 with a negative.
    pub(super) texts_per_item: usize,
    /// Whether the margins of the items are learned.
    pub(super) margins: bool,
}

/// The margins of a batch's items.
fn margins_of(batch: &Batch) -> &[f64] {
    batch.items.as_ref().map_or(&[], |items| &items.margins)
}

impl Objective for Contrastive {
    fn rows(&self) -> RowKind {
        RowKind::Texts(self.texts_per_item)
    }

    fn trains_vectors(&self) -> bool {
        true
    }

    fn uses_setting(&self, name: &str) -> bool {
        ["pooling", "negatives", "margins"].contains(&name) || name == "temperature" && !self.margins
    }

    fn takes_z_loss(&self) -> bool {
        false
    }

    fn step_size(&self, _n_tokens: usize, n_items: usize) -> (usize, &'static str) {
        (n_items, "pair")
    }

    fn weight(&self, batch: &Batch) -> f64 {
        batch.n_items() as f64
    }

    fn losses(&self, pass: &mut TrainingPass<'_>, index: StepIndex) -> Result<Losses> {
        let hidden = pass.hidden();
        let texts = TextVectors::new(pass.batch, hidden.clone().inner(), self.pooling)?;
        let weight = index.total_weight;
        let (losses, gradients) = match self.margins {
            true => {
                let found = MarginLosses::new(&texts.vectors, margins_of(pass.batch));
                (found.losses(), found.gradients(weight))
            }
            false => {
                let found = PairLosses::new(&texts.vectors, self.texts_per_item, self.temperature);
                let gradients = found.gradients(weight);
                (found.losses, gradients)
            }
        };
        Ok(texts.losses(pass, hidden, (losses.iter().sum::<f64>() / weight, &gradients)))
    }

    fn score(&self, gpt: &Gpt, source: &RowSource, windows: Windows, group: &Group) -> Result<Score> {
        let mut own = Vec::new();
        let batches = source.items().into_iter().flat_map(|items| items.batches(windows.batch_size));
        let batches = batches.take(windows.max_batches.unwrap_or(usize::MAX)).enumerate();
        for (_, batch) in batches.filter(|(number, _)| group.is_mine(*number)) {
            let vectors = vectors_of(gpt, &batch, self.pooling)?;
            let (losses, n_nearest) = match self.margins {
                true => {
                    let found = MarginLosses::new(&vectors, margins_of(&batch));
                    (found.losses(), found.n_nearest)
                }
                false => {
                    let found = PairLosses::new(&vectors, self.texts_per_item, self.temperature);
                    (found.losses, found.n_nearest)
                }
            };
            // Bits, since a message between ranks has not all floats.
            own.push((losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>(), n_nearest));
        }
        let (losses, n_nearest): (Vec<_>, Vec<usize>) = group.in_turn(own)?.into_iter().unzip();
        let losses: Vec<f64> = losses.into_iter().flatten().map(f64::from_bits).collect();
        let n = losses.len().max(1) as f64;
        let accuracy = Some(n_nearest.into_iter().sum::<usize>() as f64 / n);
        Ok(Score { loss: losses.iter().sum::<f64>() / n, n_targets: losses.len(), accuracy })
    }

    fn bits_per_byte(&self, _score: &Score, _source: &RowSource, _tokenizer: &Tokenizer) -> Option<f64> {
        None
    }
}

/// The losses of a batch's pairs, and the data for their gradients.
struct PairLosses {
    /// Losses in nats.
    losses: Vec<f64>,
    /// Number of anchors whose positive is the nearest.
    n_nearest: usize,
    texts_per_item: usize,
    temperature: f64,
    /// The length of each text's vector.
    norms: Vec<f64>,
    /// The vector of each text, of length 1.
    units: Vec<Vec<f64>>,
    /// For each anchor, the derivatives of its loss with respect to its cosines, times the temperature: to all
    /// positives, then to all negatives.
    slopes: Vec<Vec<f64>>,
}

impl PairLosses {
    /// From the vectors of texts, `texts_per_item` for each item: the anchor, its positive and perhaps a negative.
    fn new(vectors: &[Vec<f64>], texts_per_item: usize, temperature: f64) -> PairLosses {
        let norms: Vec<f64> = vectors.iter().map(|vector| dot(vector, vector).sqrt().max(MIN_NORM)).collect();
        let units: Vec<Vec<f64>> =
            zip(vectors, &norms).map(|(vector, norm)| vector.iter().map(|value| value / norm).collect()).collect();
        let n_items = vectors.len() / texts_per_item;
        let candidates = candidates(n_items, texts_per_item);
        let of_anchor = |item: usize| {
            let anchor = &units[item * texts_per_item];
            let scores: Vec<f64> = candidates.iter().map(|&text| dot(anchor, &units[text]) / temperature).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let loss = sum.ln() + most - scores[item];
            let is_nearest = scores.iter().enumerate().all(|(other, score)| other == item || *score < scores[item]);
            let mut slopes: Vec<f64> = weights.into_iter().map(|weight| weight / sum).collect();
            slopes[item] -= 1.0;
            (loss, is_nearest, slopes)
        };
        let found: Vec<_> = (0..n_items).into_par_iter().map(of_anchor).collect();
        let mut all = PairLosses {
            losses: Vec::with_capacity(n_items),
            n_nearest: 0,
            texts_per_item,
            temperature,
            norms,
            units,
            slopes: Vec::with_capacity(n_items),
        };
        for (loss, is_nearest, slopes) in found {
            all.losses.push(loss);
            all.n_nearest += usize::from(is_nearest);
            all.slopes.push(slopes);
        }
        all
    }

    /// The gradient, by each text's vector, of the sum of the losses divided by `n_pairs`.
    fn gradients(&self, n_pairs: f64) -> Vec<Vec<f64>> {
        let n = self.texts_per_item;
        let scale = (n_pairs * self.temperature).recip();
        let candidates = candidates(self.losses.len(), n);
        let of_text = |text: usize| {
            let (item, place) = (text / n, text % n);
            let unit = &self.units[text];
            let mut of_unit = vec![0.0; unit.len()];
            let mut add = |slope: f64, other: &[f64]| {
                zip(&mut of_unit, other).for_each(|(sum, value)| *sum += slope * scale * value);
            };
            match place {
                0 => zip(&self.slopes[item], &candidates).for_each(|(slope, &other)| add(*slope, &self.units[other])),
                _ => {
                    let column = (place - 1) * self.losses.len() + item;
                    let anchors = self.slopes.iter().enumerate();
                    anchors.for_each(|(anchor, slopes)| add(slopes[column], &self.units[anchor * n]));
                }
            }
            // Only the component that turns the vector counts.
            let along = dot(&of_unit, unit);
            zip(of_unit, unit).map(|(of, value)| (of - along * value) / self.norms[text]).collect()
        };
        (0..self.units.len()).into_par_iter().map(of_text).collect()
    }
}

/// The texts that an anchor is compared with: the positives of all items, then the negatives.
fn candidates(n_items: usize, texts_per_item: usize) -> Vec<usize> {
    (1..texts_per_item).flat_map(|place| (0..n_items).map(move |item| item * texts_per_item + place)).collect()
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    zip(one, other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(n: usize) -> Vec<Vec<f64>> {
        (0..n).map(|text| (0..4).map(|at| ((text * 5 + at * 3) % 11) as f64 / 4.0 - 1.2).collect()).collect()
    }

    #[test]
    fn loss_of_two_pairs_matches_the_formula() {
        let all = [vec![1.0, 0.0], vec![2.0, 0.0], vec![0.0, 3.0], vec![1.0, 1.0]];
        let found = PairLosses::new(&all, 2, 0.5);
        // Cosines of the first anchor: 1 and 1/sqrt(2); of the second: 0 and 1/sqrt(2).
        let half = 0.5_f64.sqrt();
        let loss = |own: f64, other: f64| (1.0 + ((other - own) / 0.5).exp()).ln();
        assert!((found.losses[0] - loss(1.0, half)).abs() < 1e-12);
        assert!((found.losses[1] - loss(half, 0.0)).abs() < 1e-12);
        assert_eq!(found.n_nearest, 2);
        // Without other texts there is nothing to learn.
        let alone = PairLosses::new(&all[..2], 2, 0.5);
        assert!(alone.losses == [0.0] && alone.gradients(1.0).iter().flatten().all(|value| *value == 0.0));
    }

    #[test]
    fn gradients_match_finite_differences_with_and_without_negatives() {
        for texts_per_item in [2, 3] {
            let all = vectors(4 * texts_per_item);
            let loss = |all: &[Vec<f64>]| PairLosses::new(all, texts_per_item, 0.3).losses.iter().sum::<f64>() / 4.0;
            let found = PairLosses::new(&all, texts_per_item, 0.3).gradients(4.0);
            for (text, gradient) in found.iter().enumerate() {
                for (at, found) in gradient.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut moved = all.clone();
                        moved[text][at] += by;
                        loss(&moved)
                    };
                    let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    assert!((found - slope).abs() < 1e-6, "{text}, {at}: {found} and {slope}");
                }
            }
        }
    }
}
