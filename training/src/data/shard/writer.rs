//! Writes the tokens of a split to shards.

use std::{
    fs::File,
    io::{BufWriter, Seek, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use hearth_model::{
    TokenId,
    files::digest::{Digest, Digester},
};

use super::{
    file::{HEADER_BYTES, Header, TokenWidth},
    manifest::ShardInfo,
};

/// Default number of tokens per shard: 256 MiB of u16.
pub const SHARD_TOKENS: u64 = 1 << 27;

/// Settings that all shards of a data set share.
#[derive(Clone, Copy, Debug)]
pub struct WriterSettings {
    /// The width of a token; every id must fit.
    pub width: TokenWidth,
    /// SHA-256 of the tokenizer's `tokenizer.json`.
    pub tokenizer: Digest,
    /// Tokens in a shard.
    pub shard_tokens: u64,
}

/// Writes `NAME-00000.tokens`, `NAME-00001.tokens`, ... to a folder.
#[derive(Debug)]
pub struct SplitWriter {
    dir: PathBuf,
    name: String,
    settings: WriterSettings,
    done: Vec<ShardInfo>,
    open: Option<OpenShard>,
}

#[derive(Debug)]
struct OpenShard {
    path: PathBuf,
    file: BufWriter<File>,
    payload: Digester,
    n_tokens: u64,
}

impl SplitWriter {
    /// Creates no file before the first token.
    pub fn new(dir: &Path, name: &str, settings: WriterSettings) -> SplitWriter {
        SplitWriter { dir: dir.to_owned(), name: name.to_owned(), settings, done: Vec::new(), open: None }
    }

    /// Adds tokens to the split.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn push(&mut self, mut ids: &[TokenId]) -> Result<()> {
        let width = self.settings.width;
        while !ids.is_empty() {
            let mut shard = match self.open.take() {
                Some(shard) => shard,
                None => self.start()?,
            };
            let n = (self.settings.shard_tokens - shard.n_tokens).min(ids.len() as u64) as usize;
            let (now, later) = ids.split_at(n);
            shard.push(now, width)?;
            ids = later;
            if shard.n_tokens == self.settings.shard_tokens {
                self.close(shard)?;
            } else {
                self.open = Some(shard);
            }
        }
        Ok(())
    }

    /// Tokens written so far.
    pub fn n_tokens(&self) -> u64 {
        let done: u64 = self.done.iter().map(|shard| shard.tokens).sum();
        done + self.open.as_ref().map_or(0, |shard| shard.n_tokens)
    }

    /// Finishes the last shard. All shards are then flushed to disk.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(mut self) -> Result<Vec<ShardInfo>> {
        if let Some(shard) = self.open.take() {
            self.close(shard)?;
        }
        Ok(self.done)
    }

    fn start(&self) -> Result<OpenShard> {
        let path = self.dir.join(format!("{}-{:05}.tokens", self.name, self.done.len()));
        let create = || {
            let mut file = BufWriter::with_capacity(1 << 18, File::create(&path)?);
            // Filled in at the end: an unfinished shard has no magic.
            file.write_all(&[0; HEADER_BYTES])?;
            Ok::<_, std::io::Error>(file)
        };
        let file = create().with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(OpenShard { path, file, payload: Digester::new(), n_tokens: 0 })
    }

    fn close(&mut self, shard: OpenShard) -> Result<()> {
        let OpenShard { path, mut file, payload, n_tokens } = shard;
        let WriterSettings { width, tokenizer, .. } = self.settings;
        let (header, sha256) = Header { width, n_tokens, tokenizer }.seal(payload);
        let finish = || {
            file.rewind()?;
            file.write_all(&header)?;
            file.flush()?;
            file.get_ref().sync_all()
        };
        let mut finish = finish;
        finish().with_context(|| format!("cannot write `{}`", path.display()))?;
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.done.push(ShardInfo { file, tokens: n_tokens, sha256 });
        Ok(())
    }
}

impl OpenShard {
    fn push(&mut self, ids: &[TokenId], width: TokenWidth) -> Result<()> {
        let mut bytes = Vec::with_capacity(ids.len() * width.n_bytes());
        for &id in ids {
            match width {
                TokenWidth::U16 => {
                    let id =
                        u16::try_from(id).with_context(|| format!("the token id {id} does not fit into 16 bits"))?;
                    bytes.extend_from_slice(&id.to_le_bytes());
                }
                TokenWidth::U32 => bytes.extend_from_slice(&id.to_le_bytes()),
            }
        }
        self.payload.update(&bytes);
        self.file.write_all(&bytes).with_context(|| format!("cannot write `{}`", self.path.display()))?;
        self.n_tokens += ids.len() as u64;
        Ok(())
    }
}
