//! chrF ([Popović 2015](https://aclanthology.org/W15-3049/)) and chrF++ ([Popović
//! 2017](https://aclanthology.org/W17-4770/)): the F-score of character n-grams of orders 1 to 6 without white space, for chrF++
//! also of words of orders 1 and 2; recall counts twice.

use std::collections::HashMap;

use super::{
    corpus::{Case, Corpus, SignedScore},
    ngrams, text,
};

/// The largest order of character n-grams.
const CHAR_ORDER: usize = 6;
/// Weight of recall relative to precision.
const BETA: f64 = 2.0;

/// The n-grams that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChrfKind {
    /// N-grams of characters: chrF.
    #[default]
    Chars,
    /// Also of words, one and two: chrF++.
    CharsAndWords,
}

impl ChrfKind {
    fn word_order(self) -> usize {
        match self {
            Self::Chars => 0,
            Self::CharsAndWords => 2,
        }
    }
}

/// N-grams of one order: in the hypothesis, in the reference, in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    hypothesis: usize,
    reference: usize,
    matches: usize,
}

/// chrF of `corpus`, from 0 to 100.
pub fn chrf(corpus: &Corpus, kind: ChrfKind, case: Case) -> SignedScore {
    let n_orders = CHAR_ORDER + kind.word_order();
    let mut sum = vec![Counts::default(); n_orders];
    for segment in corpus.segments() {
        let hypothesis = Pieces::of(&case.apply(&segment.hypothesis));
        let mut best: Option<(f64, Vec<Counts>)> = None;
        for reference in &segment.references {
            let counts = hypothesis.compare(&Pieces::of(&case.apply(reference)), kind);
            let score = f_score(&counts);
            if best.as_ref().is_none_or(|(best, _)| score > *best) {
                best = Some((score, counts));
            }
        }
        for (sum, counts) in sum.iter_mut().zip(best.into_iter().flat_map(|(_, counts)| counts)) {
            sum.hypothesis += counts.hypothesis;
            sum.reference += counts.reference;
            sum.matches += counts.matches;
        }
    }
    let (char_order, word_order) = (CHAR_ORDER.to_string(), kind.word_order().to_string());
    let settings = [("case", case.name()), ("eff", "yes"), ("nc", &*char_order), ("nw", &*word_order), ("space", "no")];
    SignedScore {
        name: format!("chrF2{}", "+".repeat(kind.word_order())),
        score: f_score(&sum),
        signature: corpus.signature(&settings),
        details: String::new(),
    }
}

/// A text's characters without white space, and its words with punctuation apart.
struct Pieces {
    chars: Vec<char>,
    words: Vec<String>,
}

impl Pieces {
    fn of(text: &str) -> Self {
        let chars = text.chars().filter(|&character| !text::is_space(character)).collect();
        Self { chars, words: text::words(text).flat_map(apart).collect() }
    }

    fn compare(&self, reference: &Pieces, kind: ChrfKind) -> Vec<Counts> {
        let chars = (1..=CHAR_ORDER)
            .map(|order| compare(&ngrams::counts(&self.chars, order), &ngrams::counts(&reference.chars, order)));
        let words = (1..=kind.word_order())
            .map(|order| compare(&ngrams::counts(&self.words, order), &ngrams::counts(&reference.words, order)));
        chars.chain(words).collect()
    }
}

fn compare<T: Eq + std::hash::Hash>(hypothesis: &HashMap<&[T], usize>, reference: &HashMap<&[T], usize>) -> Counts {
    Counts {
        // If the reference has no n-grams, the hypothesis's n-grams do not count either.
        hypothesis: if reference.is_empty() { 0 } else { hypothesis.values().sum() },
        reference: reference.values().sum(),
        matches: ngrams::matches(hypothesis, reference),
    }
}

/// A word with ASCII punctuation split off: the last character, or else the first.
fn apart(word: &str) -> Vec<String> {
    let is_single = word.chars().nth(1).is_none();
    let is_punctuation = |character: &char| character.is_ascii_punctuation();
    let (first, last) = (word.chars().next().filter(is_punctuation), word.chars().next_back().filter(is_punctuation));
    match (first, last) {
        _ if is_single => vec![word.to_owned()],
        (_, Some(last)) => vec![word[..word.len() - last.len_utf8()].to_owned(), last.to_string()],
        (Some(first), None) => vec![first.to_string(), word[first.len_utf8()..].to_owned()],
        (None, None) => vec![word.to_owned()],
    }
}

/// The F-score of the means of precision and recall over the orders that both sides have, from 0 to 100.
fn f_score(counts: &[Counts]) -> f64 {
    let (mut precision, mut recall, mut n_orders) = (0.0, 0.0, 0_u32);
    for Counts { hypothesis, reference, matches } in
        counts.iter().filter(|counts| counts.hypothesis > 0 && counts.reference > 0)
    {
        precision += *matches as f64 / *hypothesis as f64;
        recall += *matches as f64 / *reference as f64;
        n_orders += 1;
    }
    if n_orders > 0 {
        precision /= f64::from(n_orders);
        recall /= f64::from(n_orders);
    }
    if precision + recall == 0.0 {
        return 0.0;
    }
    let factor = BETA * BETA;
    let score = (1.0 + factor) * precision * recall / (factor * precision + recall);
    100.0 * score
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chrf_splits_punctuation_off_one_side_of_a_word() {
        assert_eq!(apart("(word)"), ["(word", ")"]);
        assert_eq!(apart("(word"), ["(", "word"]);
        assert_eq!(apart("."), ["."]);
        assert_eq!(apart("wörd"), ["wörd"]);
        assert_eq!(apart(".."), [".", "."]);
    }
}
