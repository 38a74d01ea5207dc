//! Sentences in English and in Ostran, a language invented here: a translation task that is small enough for a CPU.
//!
//! `lexicon` has the words, `sentence` the structure that both languages express, and how each does. Sentence `index` of a
//! seed is a pure function of both. Ostran differs where word-for-word translation fails:
//!
//! - Order: subject, place, object, verb. Adjectives follow their noun, numbers precede it, `in` becomes a postposition, and
//!   adverbs begin the clause.
//! - Agreement: nouns have one of two classes, shown by their last letter. Plurals and adjectives have the endings of the
//!   noun's class, verbs those of the subject's number. Objects have the ending `-u`.
//! - One word for several, and none for one: `did not` becomes a particle after the verb, `the` an ending, `a` nothing, and
//!   the irregular past of English a particle before the verb.
//!
//! Some pairs of words ([`Split::Combinations`]) and all sentences of three clauses ([`Split::Lengths`]) are held out: to
//! translate them, a model must have learned rules instead of phrases.

mod lexicon;
mod sentence;

use self::sentence::Sentence;
use crate::draw::Draw;

/// The sentences to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// One or two clauses without any held-out pair of words.
    Training,
    /// One or two clauses with at least one pair (an adjective and its noun, or a verb and its object) that no sentence
    /// of the training split has. All words, and most other pairs, occur there.
    Combinations,
    /// Three clauses without held-out pairs: longer than any sentence of the training split.
    Lengths,
}

/// A sentence and its translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// English.
    pub source: String,
    /// Ostran.
    pub target: String,
    /// The English words, each replaced by the Ostran word of the dictionary: a translation without rules.
    pub word_for_word: String,
}

/// Sentence `index` of `seed`.
pub fn pair(split: Split, seed: u64, index: u64) -> Pair {
    // About one sentence in three has a held-out pair, so a few tries do.
    let mut draw = Draw::new(seed, split as u64, index);
    loop {
        let n_clauses = match split {
            Split::Training | Split::Combinations => 1 + draw.below(2),
            Split::Lengths => 3,
        };
        let sentence = Sentence::new(n_clauses, &mut draw);
        if sentence.has_held_out_pair() == (split == Split::Combinations) {
            return Pair {
                source: sentence.english(),
                target: sentence.ostran(),
                word_for_word: sentence.word_for_word(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bilingual_pairs_are_deterministic_with_one_translation_a_source() {
        let pairs: Vec<_> = (0..2000).map(|index| pair(Split::Training, 1, index)).collect();
        let target = |source: &str| {
            let found = pairs.iter().find(|pair| pair.source.contains(source));
            found.unwrap_or_else(|| unreachable!("no sentence has `{source}`")).target.clone()
        };
        assert_eq!(pair(Split::Training, 1, 7), pairs[7]);
        assert_ne!(pair(Split::Training, 2, 7), pairs[7]);
        // Each source has one translation.
        let sources: HashSet<_> = pairs.iter().map(|pair| &pair.source).collect();
        let both: HashSet<_> = pairs.iter().map(|pair| (&pair.source, &pair.target)).collect();
        assert_eq!(sources.len(), both.len());
        assert!(sources.len() > 1900, "{}", sources.len());
        assert!(target("did not").split(' ').any(|word| word == "ne"));
        assert!(target(" two ").contains("dov "));
    }

    #[test]
    fn held_out_splits_use_known_words_in_new_pairs_or_longer_sentences() {
        let words = |split, n| -> HashSet<String> {
            let pairs = (0..n).map(|index| pair(split, 5, index));
            pairs.flat_map(|pair| pair.target.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect()
        };
        let known = words(Split::Training, 20_000);
        for split in [Split::Combinations, Split::Lengths] {
            let new: Vec<_> = words(split, 500).into_iter().filter(|word| !known.contains(word)).collect();
            assert!(new.is_empty(), "{split:?}: {new:?}");
        }
        let longest = |split| (0..2000).map(|index| pair(split, 5, index).source.split(' ').count()).max();
        let shortest = (0..2000).map(|index| pair(Split::Lengths, 5, index).source.split(' ').count()).min();
        assert!(longest(Split::Lengths) > longest(Split::Training) && shortest > Some(8));
        let trained: HashSet<_> = (0..20_000).map(|index| pair(Split::Training, 5, index).source).collect();
        assert!((0..500).all(|index| !trained.contains(&pair(Split::Combinations, 5, index).source)));
    }
}
