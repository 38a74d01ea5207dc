//! The tokens of a split, in memory or mapped from shards.

use std::sync::Arc;

use hearth_model::TokenId;

use super::file::ShardFile;

/// The tokens of a split. Clones share them.
#[derive(Clone, Debug)]
pub struct Tokens {
    store: Arc<Store>,
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
        Tokens { len: ids.len() as u64, n_bytes, store: Arc::new(Store::Memory(ids)) }
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
        Tokens { len, n_bytes, store: Arc::new(Store::Shards(shards)) }
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
        match &*self.store {
            Store::Memory(ids) => out.copy_from_slice(&ids[start as usize..start as usize + out.len()]),
            Store::Shards(shards) => {
                assert!(
                    start.checked_add(out.len() as u64).is_some_and(|end| end <= self.len),
                    "{} tokens from {start} on are beyond the end of {} tokens",
                    out.len(),
                    self.len
                );
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
        let mut ids = vec![0; self.len as usize];
        self.read(0, &mut ids);
        ids
    }
}
