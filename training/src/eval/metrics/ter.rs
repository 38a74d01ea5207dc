//! TER, the translation edit rate ([Snover et al. 2006](https://aclanthology.org/2006.amta-papers.25/)): insertions, deletions,
//! substitutions and shifts of phrases per word of the reference.
//!
//! The fewest edits with shifts are hard to find, so TER is defined by a greedy search; its limits are part of the
//! definition. They are taken from sacrebleu, which follows [Tercom](https://github.com/jhclark/tercom).

use std::ops::Range;

use super::{
    corpus::{Case, Corpus, SignedScore},
    text::{trim_end, words},
};

/// Most words that are shifted together.
const MAX_SHIFT_LEN: usize = 10;
/// Maximum distance of a phrase of the reference from its place in the hypothesis.
const MAX_SHIFT_DISTANCE: usize = 50;
/// Most shifts that are tried for one hypothesis.
const MAX_SHIFTS_TRIED: usize = 1000;
/// How far from the diagonal the edit distance looks.
const BEAM_WIDTH: usize = 25;
/// The cost of a cell that was not computed.
const UNKNOWN: usize = usize::MAX / 2;

/// TER of `corpus`: 100 times the edits per word of the reference. Sacrebleu's default is [`Case::Lower`].
pub fn ter(corpus: &Corpus, case: Case) -> SignedScore {
    let (mut n_edits, mut n_words) = (0.0, 0.0);
    for segment in corpus.segments() {
        let tokens = |text: &str| words(trim_end(&case.apply(text))).map(str::to_owned).collect::<Vec<_>>();
        let hypothesis = tokens(&segment.hypothesis);
        let references: Vec<Vec<String>> = segment.references.iter().map(|reference| tokens(reference)).collect();
        let edits = references.iter().map(|reference| edits(&hypothesis, reference)).min();
        n_edits += edits.unwrap_or_default() as f64;
        n_words += references.iter().map(Vec::len).sum::<usize>() as f64 / references.len() as f64;
    }
    let rate = match () {
        () if n_words > 0.0 => n_edits / n_words,
        () if n_edits > 0.0 => 1.0,
        () => 0.0,
    };
    let settings = [("case", case.name()), ("tok", "tercom"), ("norm", "no"), ("punct", "yes"), ("asian", "no")];
    SignedScore {
        name: "TER".to_owned(),
        score: 100.0 * rate,
        signature: corpus.signature(&settings),
        details: String::new(),
    }
}

/// Edits that turn `hypothesis` into `reference`, shifts included.
fn edits(hypothesis: &[String], reference: &[String]) -> usize {
    if reference.is_empty() {
        return hypothesis.len();
    }
    let mut words: Vec<&str> = hypothesis.iter().map(String::as_str).collect();
    let reference: Vec<&str> = reference.iter().map(String::as_str).collect();
    let (mut n_shifts, mut n_tried) = (0, 0);
    loop {
        let shift = best_shift(&words, &reference, &mut n_tried);
        // The shift during which the limit was reached is not made.
        match shift.filter(|_| n_tried < MAX_SHIFTS_TRIED) {
            Some(Shift { gain, words: shifted, .. }) if gain > 0 => {
                words = shifted;
                n_shifts += 1;
            }
            _ => return n_shifts + Alignment::of(&words, &reference).distance,
        }
    }
}

/// A shift that was tried.
struct Shift<'a> {
    /// The reduction of the edit distance.
    gain: isize,
    len: usize,
    start: usize,
    target: usize,
    words: Vec<&'a str>,
}

impl Shift<'_> {
    /// The largest gain is best, then the longest phrase, then the first one, then the first place.
    fn is_better_than(&self, other: &Shift<'_>) -> bool {
        let rank = |shift: &Shift<'_>| {
            (shift.gain, shift.len, std::cmp::Reverse(shift.start), std::cmp::Reverse(shift.target))
        };
        rank(self) > rank(other)
    }
}

/// The best shift of a phrase of `words` that also occurs in `reference`. Only phrases with an error are shifted, and
/// only to places with an error.
fn best_shift<'a>(words: &[&'a str], reference: &[&str], n_tried: &mut usize) -> Option<Shift<'a>> {
    let alignment = Alignment::of(words, reference);
    let mut best: Option<Shift<'a>> = None;
    for (start, in_reference, len) in common_phrases(words, reference) {
        let is_right = |errors: &[bool], range: Range<usize>| !errors[range].contains(&true);
        let phrase = start..start + len;
        if is_right(&alignment.hypothesis_errors, phrase.clone())
            || is_right(&alignment.reference_errors, in_reference..in_reference + len)
            || alignment.places[in_reference].is_some_and(|place| phrase.contains(&place))
        {
            continue;
        }
        let mut previous = None;
        // Try the place before the first word of the phrase in the reference, then the places after each of its words.
        for offset in 0..=len {
            let target = match (in_reference + offset).checked_sub(1) {
                None => 0,
                Some(at) => match alignment.places.get(at) {
                    Some(place) => place.map_or(0, |place| place + 1),
                    None => break,
                },
            };
            if previous.replace(target) == Some(target) {
                continue;
            }
            let words = shifted(words, phrase.clone(), target);
            let gain = alignment.distance as isize - Alignment::of(&words, reference).distance as isize;
            *n_tried += 1;
            let shift = Shift { gain, len, start, target, words };
            if best.as_ref().is_none_or(|best| shift.is_better_than(best)) {
                best = Some(shift);
            }
        }
        if *n_tried >= MAX_SHIFTS_TRIED {
            break;
        }
    }
    best
}

/// Phrases that are in both: their places in both and their lengths.
fn common_phrases(words: &[&str], reference: &[&str]) -> Vec<(usize, usize, usize)> {
    let mut phrases = Vec::new();
    for start in 0..words.len() {
        for in_reference in 0..reference.len() {
            if start.abs_diff(in_reference) > MAX_SHIFT_DISTANCE {
                continue;
            }
            let pairs = words[start..].iter().zip(&reference[in_reference..]).take(MAX_SHIFT_LEN);
            let n_equal = pairs.take_while(|(word, other)| word == other).count();
            phrases.extend((1..=n_equal).map(|len| (start, in_reference, len)));
        }
    }
    phrases
}

/// The words with the words of `phrase` moved before the word at `target`. If `target` is within the phrase, its
/// distance from the phrase's start is counted from the phrase's end instead.
fn shifted<'a>(words: &[&'a str], phrase: Range<usize>, target: usize) -> Vec<&'a str> {
    let Range { start, end } = phrase;
    if target < start {
        return [&words[..target], &words[start..end], &words[target..start], &words[end..]].concat();
    }
    let target = if target > end { target } else { (end + target - start).min(words.len()) };
    [&words[..start], &words[end..target], &words[start..end], &words[target..]].concat()
}

/// How a word is edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Keep,
    Substitute,
    /// A word of the hypothesis is removed.
    Delete,
    /// A word of the reference is added.
    Insert,
}

/// The shortest edits without shifts.
struct Alignment {
    distance: usize,
    /// For each word of the reference: the word of the hypothesis aligned with it, or the last one before; `None`
    /// before the first.
    places: Vec<Option<usize>>,
    hypothesis_errors: Vec<bool>,
    reference_errors: Vec<bool>,
}

impl Alignment {
    fn of(words: &[&str], reference: &[&str]) -> Self {
        let cells = distances(words, reference);
        let (mut row, mut column) = (words.len(), reference.len());
        let mut edits = Vec::with_capacity(row + column);
        while row > 0 || column > 0 {
            let (_, edit) = cells[row][column];
            edits.push(edit);
            row -= usize::from(edit != Edit::Insert);
            column -= usize::from(edit != Edit::Delete);
        }
        let mut alignment = Alignment {
            distance: cells[words.len()][reference.len()].0,
            places: Vec::with_capacity(reference.len()),
            hypothesis_errors: Vec::with_capacity(words.len()),
            reference_errors: Vec::with_capacity(reference.len()),
        };
        for edit in edits.into_iter().rev() {
            if edit != Edit::Insert {
                alignment.hypothesis_errors.push(edit != Edit::Keep);
            }
            if edit != Edit::Delete {
                alignment.reference_errors.push(edit != Edit::Keep);
                alignment.places.push(alignment.hypothesis_errors.len().checked_sub(1));
            }
        }
        alignment
    }
}

/// The edit distance of each beginning of `words` to each of `reference`, and the last edit. Cells far from the diagonal are not
/// computed.
fn distances(words: &[&str], reference: &[&str]) -> Vec<Vec<(usize, Edit)>> {
    let n_columns = reference.len() + 1;
    let mut cells = Vec::with_capacity(words.len() + 1);
    cells.push((0..n_columns).map(|column| (column, Edit::Insert)).collect::<Vec<_>>());
    let slope = if words.is_empty() { 1.0 } else { reference.len() as f64 / words.len() as f64 };
    let beam_width = match slope / 2.0 {
        half if half > BEAM_WIDTH as f64 => (half + BEAM_WIDTH as f64).ceil() as usize,
        _ => BEAM_WIDTH,
    };
    for (row, word) in (1..).zip(words) {
        let diagonal = (row as f64 * slope).floor() as usize;
        let first = diagonal.saturating_sub(beam_width);
        let end = if row == words.len() { n_columns } else { n_columns.min(diagonal + beam_width) };
        let above: &[(usize, Edit)] = &cells[row - 1];
        let mut line = vec![(UNKNOWN, Edit::Keep); n_columns];
        for column in first..end {
            let delete = (above[column].0 + 1, Edit::Delete);
            let Some(before) = column.checked_sub(1) else {
                line[column] = delete;
                continue;
            };
            let replace = match *word == reference[before] {
                true => (above[before].0, Edit::Keep),
                false => (above[before].0 + 1, Edit::Substitute),
            };
            // The first of the cheapest.
            for edit in [replace, delete, (line[before].0 + 1, Edit::Insert)] {
                if edit.0 < line[column].0 {
                    line[column] = edit;
                }
            }
        }
        cells.push(line);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        super::words(text).map(str::to_owned).collect()
    }

    #[test]
    fn ter_counts_a_shift_of_words_as_one_edit() {
        let edits = |hypothesis: &str, reference: &str| super::edits(&words(hypothesis), &words(reference));
        assert_eq!(edits("a b c d", "a b c d"), 0);
        assert_eq!(edits("c d a b", "a b c d"), 1);
        assert_eq!(edits("a x c", "a b c d"), 2);
        assert_eq!(edits("", "a b"), 2);
        assert_eq!(edits("a b", ""), 2);
    }

    #[test]
    fn ter_shifted_moves_a_range_of_words_as_a_block() {
        let text = ["a", "b", "c", "d", "e"];
        assert_eq!(shifted(&text, 2..4, 0), ["c", "d", "a", "b", "e"]);
        assert_eq!(shifted(&text, 0..2, 4), ["c", "d", "a", "b", "e"]);
        assert_eq!(shifted(&text, 1..3, 2), ["a", "d", "b", "c", "e"]);
    }
}
