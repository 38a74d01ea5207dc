//! Statistics of a set of texts: how likely, how similar, how repetitive they are. Texts are lists of token ids.

use std::collections::HashMap;

use hearth_model::TokenId;
use hearth_training::eval::metrics::bleu::{References, sentence_bleu};

/// Most frequent tokens that the Zipf coefficient is fitted to, as in the paper.
const ZIPF_RANKS: usize = 5000;
/// The shortest phrase that counts as a repetition, and how often it must occur.
const REPEATED_LEN: usize = 2;
const REPEATED_TIMES: usize = 3;

/// Perplexity of a selection of texts (indices, with repetitions): `exp` of the mean negative log-probability of all their tokens.
/// NaN without tokens.
pub fn perplexity(logprobs: &[Vec<f32>], selection: &[usize]) -> f64 {
    let (mut nats, mut n_tokens) = (0.0, 0);
    for &text in selection {
        nats -= logprobs[text].iter().map(|&logprob| f64::from(logprob)).sum::<f64>();
        n_tokens += logprobs[text].len();
    }
    (nats / n_tokens as f64).exp()
}

/// Self-BLEU ([Zhu et al. 2018](https://arxiv.org/abs/1802.01886)): of each text, its BLEU with all others as references, orders
/// up to `max_order`. Large where texts are alike.
pub fn self_bleu(texts: &[Vec<TokenId>], max_order: usize) -> Vec<f64> {
    let mut others = References::new(texts, max_order);
    let score = |(at, text): (usize, &Vec<TokenId>)| {
        others.leave_out(at);
        sentence_bleu(text, &others, max_order)
    };
    texts.iter().enumerate().map(score).collect()
}

/// Whether a text ends in a loop: a phrase of at least two tokens, three times or more in a row at its end ([Holtzman et al.
/// 2019](https://arxiv.org/abs/1904.09751), section 5).
pub fn ends_in_repetition(text: &[TokenId]) -> bool {
    (REPEATED_LEN..=text.len() / REPEATED_TIMES).any(|len| {
        let phrase = &text[text.len() - len..];
        (2..=REPEATED_TIMES).all(|time| text[text.len() - time * len..].starts_with(phrase))
    })
}

/// N-grams of texts as small numbers, so that many selections of texts can be counted quickly.
#[derive(Clone, Debug)]
pub struct NgramTable {
    /// For each text, its n-grams with their counts.
    texts: Vec<Vec<(usize, usize)>>,
    n_distinct: usize,
}

impl NgramTable {
    /// The n-grams of `order` neighbours in `texts`.
    pub fn new(texts: &[Vec<TokenId>], order: usize) -> Self {
        let mut numbers: HashMap<&[TokenId], usize> = HashMap::new();
        let mut counted = Vec::with_capacity(texts.len());
        for text in texts {
            let mut ids: Vec<usize> = text
                .windows(order)
                .map(|ngram| {
                    let next = numbers.len();
                    *numbers.entry(ngram).or_insert(next)
                })
                .collect();
            ids.sort_unstable();
            counted.push(ids.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect());
        }
        Self { texts: counted, n_distinct: numbers.len() }
    }

    /// How often each n-gram occurs in a selection of texts.
    fn counts(&self, selection: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; self.n_distinct];
        for &(ngram, count) in selection.iter().flat_map(|&text| &self.texts[text]) {
            counts[ngram] += count;
        }
        counts
    }

    /// Distinct-n ([Li et al. 2016](https://arxiv.org/abs/1510.03055)): different n-grams divided by all. Falls with the number of
    /// tokens, so only sets of equal size compare. NaN without n-grams.
    pub fn distinct(&self, selection: &[usize]) -> f64 {
        let counts = self.counts(selection);
        let n_all: usize = counts.iter().sum();
        counts.iter().filter(|count| **count > 0).count() as f64 / n_all as f64
    }

    /// Counts in descending order: the rank-frequency distribution.
    pub fn frequencies(&self, selection: &[usize]) -> Vec<usize> {
        let mut counts = self.counts(selection);
        counts.retain(|&count| count > 0);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    /// The Zipf coefficient: minus the slope of log frequency over log rank, by least squares, over the most frequent 5000.
    /// NaN with fewer than two different n-grams.
    pub fn zipf(&self, selection: &[usize]) -> f64 {
        let frequencies = self.frequencies(selection);
        let points = (1..=ZIPF_RANKS).zip(frequencies);
        -slope(points.map(|(rank, frequency)| ((rank as f64).ln(), (frequency as f64).ln())))
    }
}

/// The slope of the line with the least squared distances.
fn slope(points: impl Iterator<Item = (f64, f64)>) -> f64 {
    let points: Vec<(f64, f64)> = points.collect();
    let n = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(&|point| point.0), mean(&|point| point.1));
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_averages_over_the_tokens_of_all_texts() {
        let (half, eighth) = (0.5_f32.ln(), 0.125_f32.ln());
        let logprobs = vec![vec![half, half], vec![eighth]];
        // (1 + 1 + 3) bits over 3 tokens.
        let expected = 2_f64.powf(5.0 / 3.0);
        assert!((perplexity(&logprobs, &[0, 1]) - expected).abs() < 1e-6);
        assert!((perplexity(&logprobs, &[1, 1]) - 8.0).abs() < 1e-6, "drawn twice");
        assert!(perplexity(&[vec![]], &[0]).is_nan());
    }

    #[test]
    fn zipf_coefficient_is_the_exponent_of_a_power_law() {
        for exponent in [0.5, 1.0, 2.0] {
            // Token r occurs about 10^6 / r^exponent times.
            let counts: Vec<(usize, usize)> =
                (1..=100).map(|rank| (rank - 1, (1e6 / (rank as f64).powf(exponent)).round() as usize)).collect();
            let table = NgramTable { texts: vec![counts], n_distinct: 100 };
            assert!((table.zipf(&[0]) - exponent).abs() < 2e-3, "{} is not {exponent}", table.zipf(&[0]));
        }
        let table = NgramTable::new(&[vec![5, 5, 5]], 1);
        assert!(table.zipf(&[0]).is_nan(), "a line needs two points");
    }

    #[test]
    fn distinct_ngrams_are_counted_over_all_selected_texts() {
        let texts = vec![vec![1, 2, 1, 2], vec![1, 2, 3], vec![7]];
        let words = NgramTable::new(&texts, 1);
        assert_eq!(words.distinct(&[0, 1, 2]), 4.0 / 8.0);
        assert_eq!(words.distinct(&[0, 0]), 2.0 / 8.0);
        assert_eq!(words.frequencies(&[0, 1, 2]), [3, 3, 1, 1]);
        // 1 2, 2 1, 1 2; 1 2, 2 3.
        assert_eq!(NgramTable::new(&texts, 2).distinct(&[0, 1, 2]), 3.0 / 5.0);
        assert!(NgramTable::new(&texts, 2).distinct(&[2]).is_nan());
    }

    #[test]
    fn ends_in_repetition_detects_a_loop_repeated_three_times() {
        for (text, expected) in [
            (&[9, 1, 2, 1, 2, 1, 2][..], true),
            (&[1, 2, 1, 2], false),
            (&[1, 2, 1, 2, 1, 2, 9], false),
            (&[4, 5, 6, 4, 5, 6, 4, 5, 6], true),
            // Two tokens, three times.
            (&[8, 3, 3, 3, 3, 3, 3], true),
            (&[8, 3, 3, 3, 3, 3], false),
            (&[], false),
        ] {
            assert_eq!(ends_in_repetition(text), expected, "{text:?}");
        }
    }

    #[test]
    fn self_bleu_is_one_for_equal_texts_and_zero_for_disjoint_texts() {
        let text = vec![1, 2, 3, 4, 5, 6];
        let alike = self_bleu(&[text.clone(), text.clone(), text.clone()], 4);
        assert!(alike.iter().all(|score| (score - 1.0).abs() < 1e-12), "{alike:?}");
        let unlike = self_bleu(&[text, vec![7, 8, 9, 10], vec![11, 12, 13, 14]], 4);
        assert_eq!(unlike, [0.0; 3]);
    }
}
