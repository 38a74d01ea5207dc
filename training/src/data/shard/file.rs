//! A shard: its header, and its memory-mapped tokens.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use hearth_model::{
    TokenId,
    files::{
        digest::{Digest, Digester},
        mmap::Mmap,
    },
};

use super::manifest::SHARD_VERSION;

const MAGIC: [u8; 8] = *b"HEARTHTK";

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 96;
/// Header bytes covered by the checksum: all before it.
const CHECKED_BYTES: usize = 64;

/// Bytes digested at a time; they fit into a cache.
const PIECE_BYTES: usize = 1 << 20;

/// The width of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// 2 bytes: vocabularies of up to 65,536 tokens.
    U16,
    /// 4 bytes.
    U32,
}

impl TokenWidth {
    /// The narrowest type for ids below `vocab_size`.
    pub fn of_vocab(vocab_size: usize) -> TokenWidth {
        if vocab_size <= 1 << 16 { TokenWidth::U16 } else { TokenWidth::U32 }
    }

    /// Bytes of a token.
    pub fn n_bytes(self) -> usize {
        match self {
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        }
    }
}

/// The contents of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) width: TokenWidth,
    pub(super) n_tokens: u64,
    pub(super) tokenizer: Digest,
}

impl Header {
    /// The header with its checksum: `payload` has digested the tokens.
    pub(super) fn seal(&self, mut payload: Digester) -> ([u8; HEADER_BYTES], Digest) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&SHARD_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.width.n_bytes() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.n_tokens.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.tokenizer.0);
        payload.update(&bytes[..CHECKED_BYTES]);
        let checksum = payload.finish();
        bytes[CHECKED_BYTES..].copy_from_slice(&checksum.0);
        (bytes, checksum)
    }
}

/// A memory-mapped shard.
#[derive(Debug)]
pub(super) struct ShardFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    checksum: Digest,
}

impl ShardFile {
    /// Opens the shard and checks its header and size, but not its checksum: see [`verify`](Self::verify).
    pub(super) fn open(path: &Path) -> Result<ShardFile> {
        let shown = path.display();
        let again = "hint: prepare the data again, or copy the file again from an intact copy";
        let map = Mmap::open(path)?;
        let Some(header) = map.first_chunk::<HEADER_BYTES>() else {
            bail!(
                "`{shown}` is truncated: it has {} bytes, but its header alone has {HEADER_BYTES}\n{again}",
                map.len()
            );
        };
        ensure!(
            header.starts_with(&MAGIC),
            "`{shown}` is not a token shard: it starts with {:02x?}, expected {MAGIC:02x?} (`HEARTHTK`)\nhint: prepare the data \
             with `hearth-train prepare`, which also reads the files of nanoGPT and llm.c",
            &header[..8]
        );
        let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let version = number(8);
        ensure!(
            version == SHARD_VERSION,
            "`{shown}` has version {version} of the shard format, expected {SHARD_VERSION}\nhint: prepare the data again with \
             this version of `hearth-train`"
        );
        let width = match number(12) {
            2 => TokenWidth::U16,
            4 => TokenWidth::U32,
            other => bail!("`{shown}` stores tokens of {other} bytes, expected 2 or 4\n{again}"),
        };
        let n_tokens = u64::from(number(16)) | u64::from(number(20)) << 32;
        let expected = u128::from(n_tokens) * width.n_bytes() as u128 + HEADER_BYTES as u128;
        ensure!(
            map.len() as u128 == expected,
            "`{shown}` is truncated or damaged: it has {} bytes, expected {expected} for {n_tokens} tokens of {} bytes and \
             the header\n{again}",
            map.len(),
            width.n_bytes()
        );
        let digest_at = |at: usize| {
            let mut bytes = [0; 32];
            bytes.copy_from_slice(&header[at..at + 32]);
            Digest(bytes)
        };
        let (tokenizer, checksum) = (digest_at(32), digest_at(CHECKED_BYTES));
        let header = Header { width, n_tokens, tokenizer };
        Ok(ShardFile { path: path.to_owned(), map, header, checksum })
    }

    /// Reads the whole shard and verifies its checksum, then releases the memory.
    pub(super) fn verify(&self) -> Result<()> {
        let mut payload = Digester::new();
        for piece in self.payload().chunks(PIECE_BYTES) {
            payload.update(piece);
        }
        self.map.release();
        let (_, found) = self.header.seal(payload);
        ensure!(
            found == self.checksum,
            "`{}` is damaged: its contents have the checksum {}, but its header says {}\nhint: prepare the data again, or \
             copy the file again from an intact copy",
            self.path.display(),
            found.short(),
            self.checksum.short()
        );
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn checksum(&self) -> Digest {
        self.checksum
    }

    pub(super) fn n_tokens(&self) -> u64 {
        self.header.n_tokens
    }

    fn payload(&self) -> &[u8] {
        &self.map[HEADER_BYTES..]
    }

    /// Copies the tokens from `start` on to `out`.
    pub(super) fn read(&self, start: u64, out: &mut [TokenId]) {
        let n_bytes = self.header.width.n_bytes();
        let first = start as usize * n_bytes;
        let bytes = &self.payload()[first..first + out.len() * n_bytes];
        match self.header.width {
            TokenWidth::U16 => {
                for (id, token) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *id = TokenId::from(u16::from_le_bytes(*token));
                }
            }
            TokenWidth::U32 => {
                for (id, token) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *id = u32::from_le_bytes(*token);
                }
            }
        }
    }
}
