//! ROUGE-L ([Lin 2004](https://aclanthology.org/W04-1013/)) of sentences: the F-score of the longest common subsequence of words,
//! as `rouge-score` has it without a stemmer.

use serde::Serialize;

use super::corpus::Corpus;
use crate::eval::subsequence::longest_common;

/// Precision, recall and their harmonic mean, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RougeScore {
    /// Share of the hypothesis that is in the reference, in this order.
    pub precision: f64,
    /// Share of the reference that is in the hypothesis, in this order.
    pub recall: f64,
    /// The harmonic mean.
    pub f_measure: f64,
}

/// The mean over segments; with several references, a segment's score is the one with the largest F-measure.
pub fn rouge_l(corpus: &Corpus) -> RougeScore {
    let scores = corpus.segments().iter().map(|segment| {
        let hypothesis = tokens(&segment.hypothesis);
        let scores = segment.references.iter().map(|reference| score(&tokens(reference), &hypothesis));
        // The first of equals.
        scores.reduce(|best, score| if score.f_measure > best.f_measure { score } else { best }).unwrap_or_default()
    });
    let n = corpus.segments().len() as f64;
    let sum = scores.fold(RougeScore::default(), |sum, score| RougeScore {
        precision: sum.precision + score.precision,
        recall: sum.recall + score.recall,
        f_measure: sum.f_measure + score.f_measure,
    });
    RougeScore { precision: sum.precision / n, recall: sum.recall / n, f_measure: sum.f_measure / n }
}

/// Runs of ASCII letters and digits, in lower case: other characters are between words.
fn tokens(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let words = lower.split(|character: char| !character.is_ascii_lowercase() && !character.is_ascii_digit());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn score(reference: &[String], hypothesis: &[String]) -> RougeScore {
    if reference.is_empty() || hypothesis.is_empty() {
        return RougeScore::default();
    }
    let common = longest_common(reference, hypothesis) as f64;
    let (precision, recall) = (common / hypothesis.len() as f64, common / reference.len() as f64);
    let f_measure = if precision + recall > 0.0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 };
    RougeScore { precision, recall, f_measure }
}
