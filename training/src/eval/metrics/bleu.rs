//! BLEU ([Papineni et al. 2002](https://aclanthology.org/P02-1040/)) of a corpus: tokenizer `13a`, orders 1 to 4, exponential
//! smoothing, the closest reference length.

use std::collections::HashMap;

use super::{
    corpus::{Case, Corpus, Segment, SignedScore},
    ngrams,
    text::trim_end,
    tokenizer_13a::tokenize_13a,
};

/// The largest order of n-grams.
const MAX_ORDER: usize = 4;

/// sacrebleu's value for the logarithm of 0.
const LOG_OF_ZERO: f64 = -9_999_999_999.0;

/// Counts of a segment, or their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    hypothesis_len: usize,
    reference_len: usize,
    correct: [usize; MAX_ORDER],
    total: [usize; MAX_ORDER],
}

/// BLEU of `corpus`, from 0 to 100.
pub fn bleu(corpus: &Corpus, case: Case) -> SignedScore {
    let sum = corpus.segments().iter().map(|segment| Counts::of(segment, case)).fold(Counts::default(), Counts::plus);
    let (score, precisions, brevity) = sum.score();
    let precisions: Vec<String> = precisions.iter().map(|precision| format!("{precision:.1}")).collect();
    let ratio = if sum.reference_len > 0 { sum.hypothesis_len as f64 / sum.reference_len as f64 } else { 0.0 };
    SignedScore {
        name: "BLEU".to_owned(),
        score,
        signature: corpus.signature(&[("case", case.name()), ("eff", "no"), ("tok", "13a"), ("smooth", "exp")]),
        details: format!(
            "{} (BP = {brevity:.3} ratio = {ratio:.3} hyp_len = {} ref_len = {})",
            precisions.join("/"),
            sum.hypothesis_len,
            sum.reference_len
        ),
    }
}

impl Counts {
    fn of(segment: &Segment, case: Case) -> Self {
        let tokens = |text: &str| tokenize_13a(trim_end(&case.apply(text)));
        let hypothesis = tokens(&segment.hypothesis);
        let references: Vec<Vec<String>> = segment.references.iter().map(|reference| tokens(reference)).collect();
        let mut counts = Counts { hypothesis_len: hypothesis.len(), ..Counts::default() };
        counts.reference_len = closest_len(hypothesis.len(), references.iter().map(Vec::len));
        for order in 1..=MAX_ORDER {
            // The maximum number of occurrences in any one reference.
            let mut wanted: HashMap<&[String], usize> = HashMap::new();
            for reference in &references {
                for (ngram, count) in ngrams::counts(reference, order) {
                    let most = wanted.entry(ngram).or_insert(0);
                    *most = count.max(*most);
                }
            }
            let found = ngrams::counts(&hypothesis, order);
            counts.total[order - 1] = found.values().sum();
            counts.correct[order - 1] = ngrams::matches(&found, &wanted);
        }
        counts
    }

    fn plus(mut self, other: Self) -> Self {
        self.hypothesis_len += other.hypothesis_len;
        self.reference_len += other.reference_len;
        let add = |to: &mut [usize; MAX_ORDER], counts: [usize; MAX_ORDER]| {
            to.iter_mut().zip(counts).for_each(|(to, count)| *to += count);
        };
        add(&mut self.correct, other.correct);
        add(&mut self.total, other.total);
        self
    }

    /// The score, the precisions in percent, and the brevity penalty.
    fn score(&self) -> (f64, [f64; MAX_ORDER], f64) {
        let (hypothesis_len, reference_len) = (self.hypothesis_len as f64, self.reference_len as f64);
        let brevity = match () {
            () if self.hypothesis_len >= self.reference_len => 1.0,
            () if self.hypothesis_len > 0 => (1.0 - reference_len / hypothesis_len).exp(),
            () => 0.0,
        };
        let mut precisions = [0.0; MAX_ORDER];
        if self.correct.iter().all(|&count| count == 0) {
            return (0.0, precisions, brevity);
        }
        let mut smoothing = 1.0;
        for (order, precision) in precisions.iter_mut().enumerate() {
            let (correct, total) = (self.correct[order] as f64, self.total[order] as f64);
            if self.total[order] == 0 {
                break;
            }
            *precision = if self.correct[order] == 0 {
                smoothing *= 2.0;
                100.0 / (smoothing * total)
            } else {
                100.0 * correct / total
            };
        }
        let log = |precision: f64| if precision == 0.0 { LOG_OF_ZERO } else { precision.ln() };
        // Folded from 0 rather than summed: Rust's sum of floats begins with -0.
        let logs = precisions.iter().fold(0.0, |sum, &precision| sum + log(precision));
        (brevity * (logs / MAX_ORDER as f64).exp(), precisions, brevity)
    }
}

/// The length that is closest to `len`; of two, the shorter.
fn closest_len(len: usize, lens: impl Iterator<Item = usize>) -> usize {
    lens.min_by_key(|&other| (other.abs_diff(len), other)).unwrap_or(0)
}

/// BLEU of one text against several references as in [NLTK](https://www.nltk.org/api/nltk.translate.bleu_score.html), with its
/// smoothing method 1, which Self-BLEU ([Zhu et al. 2018](https://arxiv.org/abs/1802.01886)) is computed with: an order without
/// matches counts as 0.1 of one. From 0 to 1. `tokens` and references are words or ids.
pub fn sentence_bleu<T: Eq + std::hash::Hash>(tokens: &[T], references: &References<'_, T>, max_order: usize) -> f64 {
    let mut logs = 0.0;
    for order in 1..=max_order {
        let found = ngrams::counts(tokens, order);
        let total: usize = found.values().sum();
        let correct: usize = found.iter().map(|(ngram, &count)| count.min(references.most(ngram))).sum();
        if order == 1 && correct == 0 {
            return 0.0;
        }
        let correct = if correct == 0 { 0.1 } else { correct as f64 };
        logs += (correct / total.max(1) as f64).ln();
    }
    let reference_len = closest_len(tokens.len(), references.lens.iter().copied());
    let brevity = match tokens.len() {
        0 => 0.0,
        len if len >= reference_len => 1.0,
        len => (1.0 - reference_len as f64 / len as f64).exp(),
    };
    brevity * (logs / max_order as f64).exp()
}

/// The references of [`sentence_bleu`].
#[derive(Debug)]
pub struct References<'a, T> {
    lens: Vec<usize>,
    /// For each n-gram, the maximum number of occurrences in one text, the index of that text, and the maximum in other
    /// texts.
    most: HashMap<&'a [T], NgramMaximum>,
    /// The text that is no reference.
    left_out: Option<usize>,
    all_lens: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct NgramMaximum {
    count: usize,
    text: usize,
    elsewhere: usize,
}

impl<'a, T: Eq + std::hash::Hash> References<'a, T> {
    /// These texts, with n-grams up to `max_order`.
    pub fn new(texts: &'a [Vec<T>], max_order: usize) -> Self {
        let mut most: HashMap<&[T], NgramMaximum> = HashMap::new();
        for (text, tokens) in texts.iter().enumerate() {
            for order in 1..=max_order {
                for (ngram, count) in ngrams::counts(tokens, order) {
                    let most = most.entry(ngram).or_insert(NgramMaximum { count: 0, text, elsewhere: 0 });
                    if count > most.count {
                        *most = NgramMaximum { count, text, elsewhere: most.count };
                    } else {
                        most.elsewhere = most.elsewhere.max(count);
                    }
                }
            }
        }
        let all_lens: Vec<usize> = texts.iter().map(Vec::len).collect();
        Self { lens: all_lens.clone(), most, left_out: None, all_lens }
    }

    /// Makes all texts but this one the references, until the next call.
    pub fn leave_out(&mut self, text: usize) {
        self.left_out = Some(text);
        self.lens = self.all_lens.clone();
        self.lens.remove(text);
    }

    fn most(&self, ngram: &[T]) -> usize {
        match self.most.get(ngram) {
            Some(most) if Some(most.text) == self.left_out => most.elsewhere,
            Some(most) => most.count,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bleu_closest_reference_length_is_the_shorter_of_two_on_a_tie() {
        assert_eq!(closest_len(5, [7, 3, 9].into_iter()), 3);
        assert_eq!(closest_len(5, [7, 6].into_iter()), 6);
    }

    #[test]
    fn references_leave_out_gives_the_bleu_without_that_text() {
        let texts: Vec<Vec<u32>> = vec![vec![1, 2, 1, 2, 3], vec![1, 2, 3, 4], vec![2, 3, 4, 1, 2], vec![1, 1, 1]];
        let mut all = References::new(&texts, 3);
        for (at, tokens) in texts.iter().enumerate() {
            let others: Vec<Vec<u32>> =
                texts.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, text)| text.clone()).collect();
            all.leave_out(at);
            let expected = sentence_bleu(tokens, &References::new(&others, 3), 3);
            assert_eq!(sentence_bleu(tokens, &all, 3), expected);
        }
    }
}
