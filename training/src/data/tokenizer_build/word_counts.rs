//! Word counts of a corpus in bounded memory: the input for learning BPE merges.

use ahash::AHashMap;
use compact_str::CompactString;

use crate::data::corpus::WordSplit;

/// Maximum number of distinct words while counting; each takes about a hundred bytes.
const MAX_WORDS: usize = 1_000_000;

/// Maximum number of distinct words that merges are learned from, which takes about a thousand bytes for each.
const MAX_LEARNED: usize = 250_000;

/// Bytes of the longest word. Longer runs of one kind of character are no words: Chinese without punctuation, DNA, base64.
const LONGEST_WORD: usize = 256;

/// Longer runs are counted in pieces of at most this many bytes.
const PIECE: usize = 64;

/// Counts words. When there are too many different ones, the rarest are dropped: all that have been seen at most once,
/// then all seen at most twice, and so on. A word that is dropped and seen again begins at one. The dropped words
/// depend only on the text and the order in which it is added.
///
/// The threshold only rises. After all words seen at most `n` times were dropped, a new word has to be seen `n + 2`
/// times before there are too many words again, or it is dropped; the first words need 2. So of two words that are
/// equally frequent, one that appears only late in a corpus may be dropped, and one from its beginning kept: mix
/// languages instead of adding one after the other.
#[derive(Clone, Debug)]
pub struct WordCounts {
    split: WordSplit,
    counts: AHashMap<CompactString, u64>,
    max_words: usize,
    n_bytes: u64,
    n_dropped: u64,
    /// Words seen at most this many times may have been dropped.
    floor: u64,
}

impl WordCounts {
    /// No words so far.
    pub fn new(split: WordSplit) -> WordCounts {
        WordCounts { split, counts: AHashMap::new(), max_words: MAX_WORDS, n_bytes: 0, n_dropped: 0, floor: 0 }
    }

    /// An empty count for a small part of a text: drops nothing, so that the dropped words do not depend on how a text
    /// is divided among threads.
    pub fn of_part(split: WordSplit) -> WordCounts {
        WordCounts { max_words: usize::MAX, ..WordCounts::new(split) }
    }

    /// Counts the words of `text`, which must not begin or end within a word.
    pub fn add(&mut self, text: &str) {
        self.n_bytes += text.len() as u64;
        for word in self.split.words(text).flat_map(pieces) {
            match self.counts.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    self.counts.insert(CompactString::new(word), 1);
                }
            }
        }
        self.prune();
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: WordCounts) {
        self.n_bytes += other.n_bytes;
        self.n_dropped += other.n_dropped;
        self.floor = self.floor.max(other.floor);
        if self.counts.is_empty() {
            self.counts = other.counts;
        } else {
            for (word, count) in other.counts {
                *self.counts.entry(word).or_default() += count;
            }
        }
        self.prune();
    }

    /// Drops the rarest words if there are too many.
    fn prune(&mut self) {
        while self.counts.len() > self.max_words {
            self.floor += 1;
            let before = self.counts.len();
            self.counts.retain(|_, count| *count > self.floor);
            self.n_dropped += (before - self.counts.len()) as u64;
        }
    }

    /// How the words were split.
    pub fn split(&self) -> WordSplit {
        self.split
    }

    /// Bytes of text counted.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Number of distinct words.
    pub fn n_words(&self) -> usize {
        self.counts.len()
    }

    /// How many times words were dropped to save memory, and the highest count of a dropped word.
    pub fn dropped(&self) -> Option<(u64, u64)> {
        (self.n_dropped > 0).then_some((self.n_dropped, self.floor))
    }

    /// Number of words from which merges are learned: all, or the most frequent.
    pub fn n_learned(&self) -> usize {
        self.counts.len().min(MAX_LEARNED)
    }

    /// The counts of the words that merges are learned from, in the alphabet of byte-level BPE.
    pub(super) fn byte_level(&self) -> AHashMap<CompactString, u64> {
        let alphabet = byte_alphabet();
        let spell = |word: &str| word.bytes().map(|byte| alphabet[usize::from(byte)]).collect();
        self.most_frequent(MAX_LEARNED).into_iter().map(|(word, count)| (spell(word), count)).collect()
    }

    /// The `most` words with the highest counts; among equal counts, the first in byte order.
    fn most_frequent(&self, most: usize) -> Vec<(&str, u64)> {
        let mut words: Vec<_> = self.words().collect();
        if words.len() > most {
            words.select_nth_unstable_by(most, |(one, n), (other, m)| m.cmp(n).then_with(|| one.cmp(other)));
            words.truncate(most);
        }
        words
    }

    /// Each word and its count, in no particular order.
    pub fn words(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(word, &count)| (word.as_str(), count))
    }

    #[cfg(test)]
    fn get(&self, word: &str) -> Option<u64> {
        self.counts.get(word).copied()
    }
}

/// The word, or the pieces of a long one.
fn pieces(mut word: &str) -> impl Iterator<Item = &str> {
    let most = if word.len() > LONGEST_WORD { PIECE } else { LONGEST_WORD };
    std::iter::from_fn(move || {
        let (piece, rest) = word.split_at(word.floor_char_boundary(most));
        word = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A visible character for each byte: the byte itself if it is visible in Latin-1, else a character from U+0100 on
/// (GPT-2's alphabet).
pub(super) fn byte_alphabet() -> [char; 256] {
    let mut stand_ins = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        visible @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(visible),
        _ => stand_ins.next().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn word_counts_add_up_over_texts_and_merges() {
        let mut counts = WordCounts::new(WordSplit::Gpt2);
        counts.add("the cat and the dog");
        let mut other = WordCounts::new(WordSplit::Gpt2);
        other.add(" the cat");
        counts.merge(other);
        assert_eq!((counts.get("the"), counts.get(" the"), counts.get(" cat")), (Some(1), Some(2), Some(2)));
        assert_eq!((counts.n_bytes(), counts.n_words(), counts.dropped()), (27, 5, None));
        counts.add(&"x".repeat(LONGEST_WORD));
        assert_eq!(counts.n_words(), 6);
        counts.add(&"x".repeat(LONGEST_WORD + 1));
        assert_eq!((counts.get(&"x".repeat(PIECE)), counts.get("x")), (Some(4), Some(1)));
        // Long words are cut between characters, here of three bytes each.
        counts.add(&"語".repeat(100));
        assert_eq!((counts.get(&"語".repeat(21)), counts.get(&"語".repeat(16))), (Some(4), Some(1)));
    }

    #[test]
    fn rarest_words_are_dropped_beyond_max_words() {
        let mut counts = WordCounts::new(WordSplit::Gpt2);
        counts.max_words = 100;
        for round in 0..300 {
            counts.add(&format!(" common r{round}x"));
        }
        assert_eq!(counts.get(" common"), Some(300));
        assert!(counts.n_words() <= 100);
        assert!(counts.dropped().is_some_and(|(n, floor)| n > 100 && floor >= 1));
    }

    #[test]
    fn most_frequent_breaks_ties_between_words_by_byte_order() {
        let mut counts = WordCounts::new(WordSplit::Gpt2);
        counts.add("c b a d d a e a");
        let mut found = counts.most_frequent(3);
        found.sort_unstable();
        // Among the words that occur once, ` b` is the first.
        assert_eq!(found, [(" a", 3), (" b", 1), (" d", 2)]);
        assert_eq!(counts.most_frequent(100).len(), counts.n_words());
    }

    #[test]
    fn dropped_words_do_not_depend_on_how_the_texts_are_divided() {
        let texts: Vec<String> = (0..50).map(|n: u32| format!(" w{} v{} x y", n * n % 17, n * n % 31)).collect();
        let counted = |parts: usize| {
            let mut all = WordCounts::new(WordSplit::Gpt2);
            all.max_words = 20;
            // Batches of ten texts, each divided into parts that are counted separately.
            for batch in texts.chunks(10) {
                let mut whole = WordCounts::of_part(WordSplit::Gpt2);
                for part in batch.chunks(10_usize.div_ceil(parts)) {
                    let mut counts = WordCounts::of_part(WordSplit::Gpt2);
                    part.iter().for_each(|text| counts.add(text));
                    whole.merge(counts);
                }
                all.merge(whole);
            }
            let mut words: Vec<_> = all.words().map(|(word, count)| (word.to_owned(), count)).collect();
            words.sort_unstable();
            (words, all.dropped())
        };
        let one = counted(1);
        assert!(one.1.is_some());
        assert_eq!(counted(2), one);
        assert_eq!(counted(10), one);
    }

    #[test]
    fn byte_alphabet_has_the_256_characters_of_the_tokenizers_library() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet[usize::from(b' ')], 'Ġ');
        let theirs = ByteLevel::alphabet();
        assert!(alphabet.iter().all(|character| theirs.contains(character)));
        assert_eq!(alphabet.iter().collect::<std::collections::HashSet<_>>().len(), 256);
    }
}
