//! Writes the shards of both splits, and counts their contents.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    ops::Sub,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use hearth_model::TokenId;

use crate::data::shard::{ShardInfo, Split, SplitInfo, SplitWriter, Tokens, WriterSettings, open_tokens};

/// How a document ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At the end of a document's text: the end-of-text token follows.
    Document,
    /// In the middle: the rest is in the other split.
    Cut,
}

/// Counts of the tokens written for a source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Tokens of the training split.
    pub train_tokens: u64,
    /// How many times its training documents occur.
    pub epochs: f64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            documents: self.documents - before.documents,
            tokens: self.tokens - before.tokens,
            bytes: self.bytes - before.bytes,
            train_tokens: self.train_tokens - before.train_tokens,
            epochs: self.epochs,
        }
    }
}

/// Whether the lengths of documents are recorded, for [`Spooled::documents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    Recorded,
    Unrecorded,
}

/// Both splits.
#[derive(Debug)]
pub(super) struct Output {
    train: SplitOutput,
    val: SplitOutput,
}

impl Output {
    /// Shards in `dir` with a prefix.
    pub(super) fn new(dir: &Path, prefix: &str, settings: WriterSettings, lengths: Lengths) -> Result<Output> {
        let split = |split: Split| SplitOutput::new(dir, &format!("{prefix}{split}"), settings, lengths);
        Ok(Output { train: split(Split::Train)?, val: split(Split::Val)? })
    }

    pub(super) fn split(&mut self, split: Split) -> &mut SplitOutput {
        match split {
            Split::Train => &mut self.train,
            Split::Val => &mut self.val,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let (train, val) = (&self.train.info, &self.val.info);
        Counts {
            documents: train.documents + val.documents,
            tokens: train.tokens + val.tokens,
            bytes: train.bytes + val.bytes,
            train_tokens: train.tokens,
            epochs: 1.0,
        }
    }

    pub(super) fn finish(self) -> Result<[SplitInfo; 2]> {
        Ok([self.train.finish()?, self.val.finish()?])
    }

    /// Finishes the shards, to be read again.
    pub(super) fn into_spooled(self) -> Result<[Spooled; 2]> {
        Ok([self.train.into_spooled()?, self.val.into_spooled()?])
    }
}

/// One split.
#[derive(Debug)]
pub(super) struct SplitOutput {
    dir: PathBuf,
    writer: SplitWriter,
    info: SplitInfo,
    lengths: Option<(PathBuf, BufWriter<File>)>,
    document: Length,
}

/// The length of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) tokens: u64,
    pub(super) bytes: u64,
}

impl SplitOutput {
    fn new(dir: &Path, name: &str, settings: WriterSettings, lengths: Lengths) -> Result<SplitOutput> {
        let path = dir.join(format!("{name}.lengths"));
        let lengths = match lengths {
            Lengths::Recorded => {
                let file = File::create(&path).with_context(|| format!("cannot write `{}`", path.display()))?;
                Some((path, BufWriter::new(file)))
            }
            Lengths::Unrecorded => None,
        };
        let writer = SplitWriter::new(dir, name, settings);
        let (info, document) = (SplitInfo::default(), Length::default());
        Ok(SplitOutput { dir: dir.to_owned(), writer, info, lengths, document })
    }

    /// Adds tokens to the current document, which represent `n_bytes` bytes of text.
    pub(super) fn push(&mut self, ids: &[TokenId], n_bytes: u64) -> Result<()> {
        self.writer.push(ids)?;
        self.info.tokens += ids.len() as u64;
        self.info.bytes += n_bytes;
        self.document.tokens += ids.len() as u64;
        self.document.bytes += n_bytes;
        Ok(())
    }

    /// Whether the next token begins a document.
    pub(super) fn is_between_documents(&self) -> bool {
        self.document == Length::default()
    }

    /// Ends the current document, with an end-of-text token if the tokenizer has one.
    pub(super) fn end_document(&mut self, eos: Option<TokenId>) -> Result<()> {
        if let Some(eos) = eos {
            self.push(&[eos], 0)?;
        }
        self.info.documents += 1;
        let document = std::mem::take(&mut self.document);
        if let Some((path, lengths)) = &mut self.lengths {
            lengths
                .write_all(&document.tokens.to_le_bytes())
                .and_then(|()| lengths.write_all(&document.bytes.to_le_bytes()))
                .with_context(|| format!("cannot write `{}`", path.display()))?;
        }
        Ok(())
    }

    /// Ends the current document, if there is one, without an end-of-text token.
    pub(super) fn end_open_document(&mut self) -> Result<()> {
        if self.is_between_documents() { Ok(()) } else { self.end_document(None) }
    }

    fn finish(self) -> Result<SplitInfo> {
        Ok(SplitInfo { shards: self.writer.finish()?, ..self.info })
    }

    fn into_spooled(self) -> Result<Spooled> {
        let Some((path, mut file)) = self.lengths else { anyhow::bail!("the lengths of documents were not recorded") };
        file.flush().with_context(|| format!("cannot write `{}`", path.display()))?;
        let shards: Vec<ShardInfo> = self.writer.finish()?;
        let tokens = open_tokens(&self.dir, &shards, self.info.bytes)?;
        Ok(Spooled { tokens, n_documents: self.info.documents, lengths: path })
    }
}

/// A source's tokens of one split, for mixing.
#[derive(Debug)]
pub(super) struct Spooled {
    pub(super) tokens: Tokens,
    n_documents: u64,
    lengths: PathBuf,
}

impl Spooled {
    /// The lengths of the documents, in order.
    pub(super) fn documents(&self) -> Result<impl Iterator<Item = Result<Length>>> {
        let name = || format!("cannot read `{}`", self.lengths.display());
        let mut file = BufReader::new(File::open(&self.lengths).with_context(name)?);
        Ok((0..self.n_documents).map(move |_| {
            let mut number = || {
                let mut bytes = [0; 8];
                file.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
            };
            let read = number().and_then(|tokens| Ok(Length { tokens, bytes: number()? }));
            read.with_context(name)
        }))
    }
}
