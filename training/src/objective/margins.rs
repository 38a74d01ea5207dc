//! Margins of a cross-encoder, which read both texts of a pair at once, as the aim of text vectors ([Hofstätter et al.,
//! 2020](https://arxiv.org/abs/2010.02666); `MarginMSELoss` of [sentence-transformers](https://www.sbert.net)).

use std::iter::zip;

/// The losses of triples of an anchor, a positive and a negative: the squares of how far the difference of the anchor's two products is
/// from the margin.
pub(super) struct MarginLosses<'a> {
    vectors: &'a [Vec<f64>],
    /// For each triple, by how much the difference is too large.
    excesses: Vec<f64>,
    /// Triples whose positive has the larger product.
    pub(super) n_nearest: usize,
}

impl<'a> MarginLosses<'a> {
    /// Of the vectors of texts, three for each of `margins`.
    pub(super) fn new(vectors: &'a [Vec<f64>], margins: &[f64]) -> MarginLosses<'a> {
        let differences: Vec<f64> = vectors.chunks_exact(3).map(|triple| product(&triple[0], &apart(triple))).collect();
        MarginLosses {
            vectors,
            excesses: zip(&differences, margins).map(|(difference, margin)| difference - margin).collect(),
            n_nearest: differences.iter().filter(|difference| **difference > 0.0).count(),
        }
    }

    /// One for each triple.
    pub(super) fn losses(&self) -> Vec<f64> {
        self.excesses.iter().map(|excess| excess * excess).collect()
    }

    /// The gradient, by each text's vector, of the sum of the losses divided by `n_triples`.
    pub(super) fn gradients(&self, n_triples: f64) -> Vec<Vec<f64>> {
        let of_triple = |(triple, excess): (&[Vec<f64>], &f64)| {
            let slope = 2.0 * excess / n_triples;
            let scaled = |vector: &[f64], scale: f64| vector.iter().map(|value| value * scale).collect::<Vec<f64>>();
            [scaled(&apart(triple), slope), scaled(&triple[0], slope), scaled(&triple[0], -slope)]
        };
        zip(self.vectors.chunks_exact(3), &self.excesses).flat_map(of_triple).collect()
    }
}

/// From the negative of a triple to its positive.
fn apart(triple: &[Vec<f64>]) -> Vec<f64> {
    zip(&triple[1], &triple[2]).map(|(positive, negative)| positive - negative).collect()
}

fn product(one: &[f64], other: &[f64]) -> f64 {
    zip(one, other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_a_margin_matches_the_formula_and_its_gradient_finite_differences() {
        let vectors =
            vec![vec![1.0, -2.0], vec![0.5, 1.0], vec![2.0, 0.25], vec![3.0, 1.0], vec![1.0, 1.0], vec![0.0, 1.0]];
        let margins = [0.5, 2.0];
        let found = MarginLosses::new(&vectors, &margins);
        // Products of the first: -1.5 and 1.5; of the second: 4 and 1.
        assert_eq!(found.losses(), [3.5 * 3.5, 1.0]);
        assert_eq!(found.n_nearest, 1);
        let loss = |vectors: &[Vec<f64>]| MarginLosses::new(vectors, &margins).losses().iter().sum::<f64>() / 2.0;
        for (text, gradient) in found.gradients(2.0).iter().enumerate() {
            for (at, found) in gradient.iter().enumerate() {
                let moved = |by: f64| {
                    let mut moved = vectors.clone();
                    moved[text][at] += by;
                    loss(&moved)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((found - slope).abs() < 1e-6, "{text}, {at}: {found} and {slope}");
            }
        }
    }
}
