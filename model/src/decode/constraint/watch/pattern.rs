//! The texts after which a grammar begins to hold, matched byte by byte.

/// A mark in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pattern: Pattern,
    /// The text that the grammar reads when the mark is complete. It may differ from the mark in white space.
    pub(super) read: Vec<u8>,
}

/// Where and how a mark is written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// These bytes, anywhere. `fallbacks[n]`: the length of the longest proper suffix of the first `n` bytes that is
    /// also their prefix.
    Anywhere { bytes: Vec<u8>, fallbacks: Vec<usize> },
    /// These items, at the start of the text, or after the end of another marked part.
    AtStart(Vec<Item>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Byte(u8),
    /// Any number of these bytes.
    Several(&'static [u8]),
}

/// How far a text has come in a mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    /// The number of bytes that the text ends with.
    Bytes(usize),
    /// The items that may come next, in order. None if the text cannot begin with the mark.
    Items(Vec<usize>),
}

impl Mark {
    /// A mark that counts anywhere. The grammar begins after it.
    pub fn anywhere(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallbacks = vec![0; bytes.len() + 1];
        let mut n = 0;
        for at in 1..bytes.len() {
            while n > 0 && bytes[n] != bytes[at] {
                n = fallbacks[n];
            }
            n += usize::from(bytes[n] == bytes[at]);
            fallbacks[at + 1] = n;
        }
        Self { pattern: Pattern::Anywhere { bytes, fallbacks }, read: Vec::new() }
    }

    /// Sets the text that the grammar reads when the mark is complete: the beginning of the grammar, which does not
    /// follow the mark again.
    #[must_use]
    pub fn reading(self, before: &str) -> Self {
        Self { read: before.as_bytes().to_vec(), ..self }
    }

    /// A mark that counts at the start of a text, and after the end of another marked part. Its pieces are `parts`; any
    /// number of the bytes `before` may precede the first piece, any number of `between` each other piece. The grammar
    /// begins with `read`: the mark itself, in the grammar's white space.
    pub fn at_start(parts: &[&str], [before, between]: [&'static [u8]; 2], read: &str) -> Self {
        let item = |(index, part): (usize, &&str)| {
            let blanks = Item::Several(if index == 0 { before } else { between });
            [blanks].into_iter().chain(part.bytes().map(Item::Byte)).collect::<Vec<_>>()
        };
        let items = parts.iter().enumerate().flat_map(item).collect();
        Self { pattern: Pattern::AtStart(items), read: read.as_bytes().to_vec() }
    }

    /// The bytes of a mark that counts anywhere.
    pub(super) fn literal(&self) -> Option<&[u8]> {
        match &self.pattern {
            Pattern::Anywhere { bytes, .. } => Some(bytes),
            Pattern::AtStart(_) => None,
        }
    }

    /// At the start of a text.
    pub(super) fn start(&self) -> Progress {
        match &self.pattern {
            Pattern::Anywhere { .. } => Progress::Bytes(0),
            Pattern::AtStart(items) => Progress::Items(with_skipped(items, [0])),
        }
    }

    /// Reads a byte. Returns whether it completes the mark.
    pub(super) fn step(&self, progress: &mut Progress, byte: u8) -> bool {
        match (&self.pattern, progress) {
            (Pattern::Anywhere { bytes, fallbacks }, Progress::Bytes(n)) => {
                while *n > 0 && bytes.get(*n) != Some(&byte) {
                    *n = fallbacks[*n];
                }
                *n += usize::from(bytes.get(*n) == Some(&byte));
                *n == bytes.len()
            }
            (Pattern::AtStart(items), Progress::Items(next)) if !next.is_empty() => {
                let after = next.iter().filter_map(|&at| match items.get(at)? {
                    Item::Byte(expected) => (*expected == byte).then_some(at + 1),
                    Item::Several(bytes) => bytes.contains(&byte).then_some(at),
                });
                *next = with_skipped(items, after.collect::<Vec<_>>());
                next.contains(&items.len())
            }
            _ => false,
        }
    }

    /// Whether no further text can complete the mark.
    pub(super) fn is_missed(progress: &Progress) -> bool {
        matches!(progress, Progress::Items(next) if next.is_empty())
    }
}

/// The items at which a text may continue, given that it may continue at `from`: an item that may repeat may also be
/// skipped.
fn with_skipped(items: &[Item], from: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut next: Vec<usize> = Vec::new();
    for mut at in from {
        loop {
            next.push(at);
            match items.get(at) {
                Some(Item::Several(_)) => at += 1,
                _ => break,
            }
        }
    }
    next.sort_unstable();
    next.dedup();
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes after which the mark is complete.
    fn ends(mark: &Mark, text: &str) -> Vec<usize> {
        let mut progress = mark.start();
        (1..).zip(text.bytes()).filter_map(|(end, byte)| mark.step(&mut progress, byte).then_some(end)).collect()
    }

    #[test]
    fn mark_that_counts_anywhere_is_found_also_after_its_own_beginning() {
        assert_eq!(ends(&Mark::anywhere("<t>"), "a <t> <<t>b<t <t>"), [5, 10, 17]);
        assert_eq!(ends(&Mark::anywhere("aab"), "aaab"), [4]);
        assert_eq!(ends(&Mark::anywhere("abab"), "ababab"), [4, 6]);
    }

    #[test]
    fn mark_at_the_start_of_a_text_may_have_blanks_between_its_parts() {
        let mark = Mark::at_start(&["{", "\"name\"", ":", "\"f\""], [b" \n;", b" \n"], "{\"name\": \"f\"");
        assert_eq!(ends(&mark, "\n{ \"name\" :\n\"f\", "), [15]);
        assert_eq!(ends(&mark, "{\"name\":\"f\""), [11]);
        assert_eq!(ends(&mark, "; {\"name\":\"f\""), [13]);
        assert_eq!(ends(&mark, "{;\"name\":\"f\""), [0; 0]);
        assert_eq!(ends(&mark, "a {\"name\":\"f\""), [0; 0]);
        assert_eq!(ends(&mark, "{\"name\":\"fg\""), [0; 0]);
    }
}
