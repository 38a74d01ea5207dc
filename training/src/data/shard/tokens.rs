//! The tokens of a split, in memory or mapped from shards.

use std::{ops::Range, sync::Arc};

use hearth_model::TokenId;

use super::file::ShardFile;

/// Tokens that are looked through at a time.
const SCANNED: usize = 1 << 16;

/// The tokens of a split. Clones share them.
#[derive(Clone, Debug)]
pub struct Tokens {
    store: Arc<Store>,
    /// The position of the first one in the store.
    start: u64,
    len: u64,
    n_bytes: u64,
}

#[derive(Debug)]
enum Store {
    Memory(Vec<TokenId>),
    /// Shards with the positions of their first tokens.
    Shards(Vec<(u64, ShardFile)>),
}

impl Tokens {
    /// Tokens in memory, which represent `n_bytes` bytes of text.
    pub fn from_ids(ids: Vec<TokenId>, n_bytes: u64) -> Tokens {
        Tokens { start: 0, len: ids.len() as u64, n_bytes, store: Arc::new(Store::Memory(ids)) }
    }

    /// The tokens of `files`, one after the other.
    pub(super) fn from_shards(files: Vec<ShardFile>, n_bytes: u64) -> Tokens {
        let mut len = 0;
        let place = |file: ShardFile| {
            let start = len;
            len += file.n_tokens();
            (start, file)
        };
        let shards = files.into_iter().map(place).collect();
        Tokens { start: 0, len, n_bytes, store: Arc::new(Store::Shards(shards)) }
    }

    /// The number of tokens.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the text that the tokens represent. Special tokens, such as the end-of-text token, represent none.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Copies the tokens from position `start` on to `out`, filling it.
    ///
    /// # Panics
    /// If the split ends before `out` is full.
    pub fn read(&self, start: u64, out: &mut [TokenId]) {
        assert!(
            start.checked_add(out.len() as u64).is_some_and(|end| end <= self.len),
            "{} tokens from {start} on are beyond the end of {} tokens",
            out.len(),
            self.len
        );
        let start = self.start + start;
        match &*self.store {
            Store::Memory(ids) => out.copy_from_slice(&ids[start as usize..start as usize + out.len()]),
            Store::Shards(shards) => {
                let first = shards.partition_point(|(shard_start, _)| *shard_start <= start).saturating_sub(1);
                let (mut start, mut out) = (start, out);
                for (shard_start, file) in &shards[first..] {
                    if out.is_empty() {
                        break;
                    }
                    let within = start - shard_start;
                    let n = (file.n_tokens() - within).min(out.len() as u64) as usize;
                    let (now, later) = out.split_at_mut(n);
                    file.read(within, now);
                    start += n as u64;
                    out = later;
                }
            }
        }
    }

    /// Copies all tokens to memory.
    pub fn to_vec(&self) -> Vec<TokenId> {
        self.read_range(0..self.len)
    }

    /// Copies the tokens in `range` to memory.
    ///
    /// # Panics
    /// If the range is not within the split.
    pub fn read_range(&self, range: Range<u64>) -> Vec<TokenId> {
        let mut ids = vec![0; (range.end - range.start) as usize];
        self.read(range.start, &mut ids);
        ids
    }

    /// The tokens in `range`, which represent `n_bytes` bytes of text. Nothing is copied.
    ///
    /// # Panics
    /// If the range is not within the split.
    pub fn part(&self, range: Range<u64>, n_bytes: u64) -> Tokens {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not within {} tokens", self.len);
        Tokens {
            store: Arc::clone(&self.store),
            start: self.start + range.start,
            len: range.end - range.start,
            n_bytes,
        }
    }

    /// The ranges of the documents, each of which ends with the token `end`; the last one may lack it. An `end` at the
    /// very start ends no document: llm.c writes it before each document.
    pub fn documents(&self, end: TokenId) -> Vec<Range<u64>> {
        let (mut documents, mut start) = (Vec::new(), 0);
        let mut ids = vec![0; SCANNED.min(self.len as usize)];
        for first in (0..self.len).step_by(SCANNED) {
            let ids = &mut ids[..(self.len - first).min(SCANNED as u64) as usize];
            self.read(first, ids);
            for (n, _) in ids.iter().enumerate().filter(|(_, id)| **id == end) {
                let behind = first + n as u64 + 1;
                if behind > 1 {
                    documents.push(start..behind);
                }
                start = behind;
            }
        }
        if start < self.len {
            documents.push(start..self.len);
        }
        documents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_parts_and_document_ranges_match_token_positions() {
        let tokens = Tokens::from_ids(vec![1, 0, 2, 3, 0, 4], 6);
        assert_eq!(tokens.documents(0), [0..2, 2..5, 5..6]);
        assert_eq!(tokens.documents(4).first(), Some(&(0..6)));
        let part = tokens.part(2..6, 4);
        assert_eq!((part.to_vec(), part.n_bytes()), (vec![2, 3, 0, 4], 4));
        assert_eq!(part.documents(0), [0..3, 3..4]);
        assert_eq!(part.part(1..3, 2).read_range(0..2), [3, 0]);
        assert!(tokens.part(6..6, 0).documents(0).is_empty());
        // As llm.c writes documents.
        assert_eq!(Tokens::from_ids(vec![0, 1, 2, 0, 3, 0, 0, 4], 4).documents(0), [1..4, 4..6, 6..7, 7..8]);
    }
}
