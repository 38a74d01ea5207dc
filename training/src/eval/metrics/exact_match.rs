//! Exact match: the share of hypotheses that equal a reference, white space at both ends apart.

use super::corpus::Corpus;

/// Exact matches in percent, from 0 to 100.
pub fn exact_match(corpus: &Corpus) -> f64 {
    let segments = corpus.segments();
    let n_equal = segments
        .iter()
        .filter(|segment| segment.references.iter().any(|reference| reference.trim() == segment.hypothesis.trim()))
        .count();
    100.0 * n_equal as f64 / segments.len() as f64
}
