//! Creates a prepared data set from documents: reads, splits, tokenizes and writes them, a few megabytes at a time.

mod mixture;
mod output;
mod split_assign;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use hearth_model::{
    TokenId,
    files::digest::Digest,
    hub::Download,
    text::tokenizer::{EncodeOptions, Tokenizer},
    weights::model_dir,
};
use rayon::prelude::*;

pub use self::{mixture::StoppingStrategy, output::Counts};
use self::{
    mixture::{Mixture, TokenText},
    output::{End, Lengths, Output, SplitOutput},
    split_assign::{Assigner, Part},
};
use crate::{
    data::{
        corpus::{
            BytesRead, Conversation, ConversationEncoder, Encoder, FileKind, FileSplit, Files, LeftOut, Marks, Note,
            Notes, Origin, ReadOptions, SourceFile, SourceSpec, TextsBeside, check_separator, files_of,
            read_in_batches, read_tokens,
        },
        shard::{
            DATA_FILE, Manifest, SHARD_VERSION, SourceInfo, Split, SplitInfo, SplitRule, TOKENIZER_DIR, TokenWidth,
            WriterSettings,
        },
    },
    output_files,
};

/// Default fraction of documents in the validation split, if documents are split by hash.
pub const HASH_VAL_FRACTION: f64 = 0.01;
/// Default fraction of the text in the validation split, if it is the end of the text: nanoGPT's.
pub const TAIL_VAL_FRACTION: f64 = 0.1;

/// The tokenizer's files, named as in a model dir, that are copied to a data set.
const TOKENIZER_FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
];

/// Settings of `prepare`.
#[derive(Clone, Debug)]
pub struct PrepareSettings {
    /// The sources of documents.
    pub sources: Vec<SourceSpec>,
    /// Sources of documents for the validation split only.
    pub validation: Vec<Origin>,
    /// The tokenizer's folder.
    pub tokenizer: PathBuf,
    /// The data set's folder, which must not exist or be empty.
    pub out: PathBuf,
    /// How documents are split; `None`: the end of the text for a single text file, otherwise by hash.
    pub split: Option<SplitBy>,
    /// Fraction of the validation split; `None`: [`HASH_VAL_FRACTION`] or [`TAIL_VAL_FRACTION`].
    pub val_fraction: Option<f64>,
    /// Field or column of the text, in jsonl and Parquet.
    pub text_field: String,
    /// The separator between documents in text files.
    pub separator: Option<String>,
    /// When a mixture of weighted sources ends.
    pub stopping: StoppingStrategy,
    /// Tokens per shard.
    pub shard_tokens: u64,
}

/// Progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// From now on, this folder has the written files, until it is complete.
    Begin(PathBuf),
    /// A source is downloaded.
    Download(Download),
    /// Documents are encoded.
    Encode {
        /// Bytes read from files, before decompression.
        bytes_read: u64,
        /// Total bytes to read.
        bytes_total: u64,
        /// Tokens written.
        tokens: u64,
    },
}

/// A finished data set.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Its manifest.
    pub manifest: Manifest,
    /// Files in folders that are not text, and were skipped.
    pub not_text: Vec<PathBuf>,
    /// Files that were left out.
    pub left_out: Vec<LeftOut>,
    /// Notes about the documents.
    pub notes: Notes,
}

/// Ways to split documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitBy {
    /// Documents by their hash: the same document is always in the same split.
    Hash,
    /// The end of each source, as nanoGPT does.
    Tail,
}

/// How the documents of `files` are split.
fn split_rule(settings: &PrepareSettings, files: &[Files]) -> Result<SplitRule> {
    let all: Vec<&SourceFile> = files.iter().flat_map(|files| &files.files).collect();
    if all.iter().all(|file| file.kind == FileKind::Tokens) {
        ensure!(
            settings.split.is_none() && settings.val_fraction.is_none(),
            "`--split` and `--val-fraction` are for documents, but all sources are token files, which their names split\nhint: leave \
             them out; `train` or `val` in its name says which split a file belongs to"
        );
        return Ok(SplitRule::Files);
    }
    let of_val = all.iter().find(|file| file.split == FileSplit::Val && file.kind != FileKind::Tokens);
    let val_name = settings.validation.first().map(ToString::to_string);
    if let Some(name) = val_name.or_else(|| of_val.map(|file| file.path.display().to_string())) {
        ensure!(
            settings.split.is_none() && settings.val_fraction.is_none(),
            "`--split` and `--val-fraction` hold out documents, but there is a validation split already: `{name}`\nhint: leave them \
             out, or name only the files to train on"
        );
        return Ok(SplitRule::Files);
    }
    let is_one_text = matches!(all.as_slice(), [file] if file.kind == FileKind::Text) && settings.separator.is_none();
    let split = settings.split.unwrap_or(if is_one_text { SplitBy::Tail } else { SplitBy::Hash });
    Ok(match split {
        SplitBy::Hash => SplitRule::Hash { val_fraction: settings.val_fraction.unwrap_or(HASH_VAL_FRACTION) },
        SplitBy::Tail => SplitRule::Tail { val_fraction: settings.val_fraction.unwrap_or(TAIL_VAL_FRACTION) },
    })
}

/// Prepares a data set. The folder appears only when it is complete.
///
/// # Errors
/// Settings, tokenizer, a source or the folder are invalid; the message names which.
pub fn prepare(settings: &PrepareSettings, progress: &mut dyn FnMut(Progress)) -> Result<Prepared> {
    let PrepareSettings { sources, separator, .. } = settings;
    ensure!(!sources.is_empty(), "there are no sources\nhint: use files or folders with text");
    check_separator(separator.as_deref())?;
    let mixture = Mixture::new(sources, settings.stopping)?;
    check_val_fraction(settings.val_fraction)?;
    let tokenizer = OpenTokenizer::open(&settings.tokenizer)?;
    // Find possible errors before anything is downloaded.
    let staged = output_files::stage(&settings.out)?;
    progress(Progress::Begin(staged.path().to_owned()));
    let mut download = |found| progress(Progress::Download(found));
    let origins: Vec<&Origin> = sources.iter().map(|source| &source.origin).collect();
    let [files, val_files] = files_of(&origins, &settings.validation, TextsBeside::ByName, &mut download)?;
    let mut notes = Notes::default();
    let mut left_out = Vec::new();
    for files in files.iter().chain(&val_files) {
        notes.extend(files.notes.clone());
        left_out.extend(files.left_out.iter().cloned());
    }
    let rule = split_rule(settings, &files)?;

    for (name, bytes) in &tokenizer.files {
        staged.write(&format!("{TOKENIZER_DIR}/{name}"), bytes)?;
    }
    let writer = WriterSettings {
        width: TokenWidth::of_vocab(tokenizer.vocab_size),
        tokenizer: tokenizer.hash,
        shard_tokens: settings.shard_tokens,
    };
    let n_bytes: u64 = files.iter().chain(&val_files).flat_map(|files| &files.files).map(|file| file.n_bytes).sum();
    let n_passes = if matches!(rule, SplitRule::Tail { .. }) { 2 } else { 1 };
    let mut work = Work {
        settings,
        tokenizer: &tokenizer,
        rule,
        bytes_read: BytesRead::default(),
        bytes_total: n_bytes * n_passes,
        tokens: 0,
        conversations: 0,
        not_text: Vec::new(),
        notes,
        progress,
    };
    let held_out: Vec<_> = settings.validation.iter().zip(&val_files).collect();
    let (counts, splits) = match &mixture {
        None => {
            let mut output = Output::new(staged.path(), "", writer, Lengths::Unrecorded)?;
            let mut counts = Vec::new();
            for (source, files) in sources.iter().zip(&files) {
                counts.push(work.source(&source.origin, &files.files, &mut output)?);
            }
            for (origin, files) in held_out {
                counts.push(work.source(origin, &files.files, &mut output)?);
            }
            (counts, output.finish()?)
        }
        Some(mixture) => {
            let spool = staged.path().join("spool");
            fs::create_dir(&spool).with_context(|| format!("cannot create `{}`", spool.display()))?;
            let mut spooled = Vec::new();
            for (index, (source, files)) in sources.iter().zip(&files).enumerate() {
                let mut output = Output::new(&spool, &format!("{index}-"), writer, Lengths::Recorded)?;
                work.source(&source.origin, &files.files, &mut output)?;
                spooled.push(output.into_spooled()?);
            }
            let mut output = Output::new(staged.path(), "", writer, Lengths::Unrecorded)?;
            let n_bytes = tokenizer.token_bytes();
            let text = TokenText { n_bytes: &n_bytes, eos: tokenizer.eos_id };
            let mut counts = mixture.compose(&spooled, text, &mut output)?;
            drop(spooled);
            for (origin, files) in held_out {
                counts.push(work.source(origin, &files.files, &mut output)?);
            }
            fs::remove_dir_all(&spool).with_context(|| format!("cannot remove `{}`", spool.display()))?;
            (counts, output.finish()?)
        }
    };
    let Work { not_text, conversations, notes, .. } = work;
    let commits = files.iter().chain(&val_files).map(|files| files.commit.clone()).collect();
    let contents = Contents { commits, conversations, counts, splits };
    let rule =
        if holds_nothing_out(settings, rule, &contents.splits) { SplitRule::Hash { val_fraction: 0.0 } } else { rule };
    let manifest = manifest(settings, &tokenizer, rule, contents);
    check_splits(&manifest)?;
    staged.write(DATA_FILE, (serde_json::to_string_pretty(&manifest)? + "\n").as_bytes())?;
    staged.commit()?;
    Ok(Prepared { manifest, not_text, left_out, notes })
}

fn check_val_fraction(val_fraction: Option<f64>) -> Result<()> {
    ensure!(
        val_fraction.is_none_or(|val_fraction| (0.0..1.0).contains(&val_fraction)),
        "`--val-fraction` must be at least 0 and below 1, got {}\nhint: for example `--val-fraction 0.01`",
        val_fraction.unwrap_or_default()
    );
    Ok(())
}

/// A tokenizer as [`prepare()`] uses it, and its files to be copied.
#[derive(Debug)]
pub struct OpenTokenizer {
    tokenizer: Tokenizer,
    encoder: Encoder,
    /// For conversations, if it has a chat template.
    conversations: Option<ConversationEncoder>,
    files: Vec<(&'static str, Vec<u8>)>,
    hash: Digest,
    vocab_size: usize,
    eos_id: Option<TokenId>,
    /// The tokens that begin a document.
    beginning: Vec<TokenId>,
    /// The strings in texts that represent tokens.
    marks: Marks,
}

impl OpenTokenizer {
    /// Opens the tokenizer in the folder `dir`.
    ///
    /// # Errors
    /// A file is missing or broken.
    pub fn open(dir: &Path) -> Result<OpenTokenizer> {
        let tokenizer = model_dir::load_tokenizer(dir)
            .with_context(|| format!("cannot open the tokenizer `{}`", dir.display()))
            .map_err(with_tokenizer_hint)?;
        let mut files = Vec::new();
        for name in TOKENIZER_FILES {
            let path = dir.join(name);
            match fs::read(&path) {
                Ok(bytes) => files.push((name, bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", path.display())),
            }
        }
        let [(_, json), ..] = files.as_slice() else { bail!("the tokenizer `{}` has no files", dir.display()) };
        let encoder = Encoder::new(&tokenizer, json)?;
        let conversations = ConversationEncoder::from_dir(dir, &tokenizer)?;
        let (hash, vocab_size) = (Digest::of(json), tokenizer.vocab_size());
        let eos_id = tokenizer.eos().map(|eos| eos.id);
        let beginning = beginning_of(&tokenizer)?;
        let marks = Marks::new(&tokenizer, conversations.as_ref().map(ConversationEncoder::template));
        Ok(OpenTokenizer { tokenizer, encoder, conversations, files, hash, vocab_size, eos_id, beginning, marks })
    }

    /// Whether only white space follows the last end-of-text token: some chat templates end a conversation with it.
    fn is_ended(&self, ids: &[TokenId]) -> bool {
        let Some(last) = ids.iter().rposition(|&id| Some(id) == self.eos_id) else { return false };
        ids[last + 1..].iter().all(|&id| self.tokenizer.token_bytes(id).iter().all(u8::is_ascii_whitespace))
    }

    /// The number of tokens that a document becomes: a conversation, or else `text`.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn n_tokens(&self, text: &str, conversation: Option<&Conversation>) -> Result<usize> {
        let (ids, _) = self.encode(text, false, conversation)?;
        let is_text = conversation.is_none();
        let n_before = if is_text && !ids.is_empty() { self.beginning.len() } else { 0 };
        let has_end = self.eos_id.is_some() && (is_text || !self.is_ended(&ids));
        Ok(n_before + ids.len() + usize::from(has_end))
    }

    /// The ids of a conversation, or else of `text`, a part of a document, and notes about it.
    fn encode(
        &self,
        text: &str,
        is_rendered: bool,
        conversation: Option<&Conversation>,
    ) -> Result<(Vec<TokenId>, Vec<Note>)> {
        let Some(conversation) = conversation else {
            let ids = match is_rendered {
                true => self.tokenizer.encode(text, EncodeOptions::RENDERED).context("cannot encode the text")?,
                false => self.encoder.encode(text)?,
            };
            return Ok((ids, Vec::new()));
        };
        let Some(encoder) = &self.conversations else {
            bail!(
                "{}: it is a conversation, but the tokenizer has no chat template\nhint: use a tokenizer made by `hearth-train \
                 tokenizer --chat`",
                conversation.place
            )
        };
        encoder.encode(conversation).with_context(|| conversation.place.clone())
    }

    /// Bytes of text per token id.
    fn token_bytes(&self) -> Vec<u32> {
        (0..self.vocab_size as TokenId).map(|id| self.tokenizer.text_bytes(&[id]) as u32).collect()
    }
}

/// The tokens that the tokenizer adds at the beginning of a document. Empty if they are also its end token.
fn beginning_of(tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
    let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.eos().is_none_or(|eos| eos.id != bos.id)) else {
        return Ok(Vec::new());
    };
    let added = tokenizer.encode("", EncodeOptions { add_special_tokens: true, ..EncodeOptions::TEXT })?;
    Ok(added.into_iter().take_while(|&id| id == bos.id).collect())
}

fn with_tokenizer_hint(error: anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}\nhint: give a folder made by `hearth-train tokenizer`, or a model dir")
}

/// State that all sources share while they are read.
struct Work<'a> {
    settings: &'a PrepareSettings,
    tokenizer: &'a OpenTokenizer,
    rule: SplitRule,
    bytes_read: BytesRead,
    bytes_total: u64,
    tokens: u64,
    conversations: u64,
    not_text: Vec<PathBuf>,
    notes: Notes,
    progress: &'a mut dyn FnMut(Progress),
}

impl Work<'_> {
    fn report(&mut self) {
        let (bytes_read, bytes_total, tokens) = (self.bytes_read.get(), self.bytes_total, self.tokens);
        (self.progress)(Progress::Encode { bytes_read, bytes_total, tokens });
    }

    /// Reads a source and writes its tokens to `output`.
    fn source(&mut self, source: &Origin, files: &[SourceFile], output: &mut Output) -> Result<Counts> {
        let before = output.counts();
        let is_tokens = |file: &SourceFile| file.kind == FileKind::Tokens;
        for file in files.iter().filter(|file| is_tokens(file)) {
            self.token_file(file, output)?;
        }
        for split in Split::ALL {
            output.split(split).end_open_document()?;
        }
        let texts: Vec<SourceFile> = files.iter().filter(|file| !is_tokens(file)).cloned().collect();
        if !texts.is_empty() {
            self.texts(source, &texts, output)?;
        }
        let counts = output.counts() - before;
        ensure!(
            counts.tokens > 0,
            "the source `{source}` has no text: {} files, all empty\nhint: remove it, or use another folder",
            files.len()
        );
        Ok(counts)
    }

    fn texts(&mut self, source: &Origin, files: &[SourceFile], output: &mut Output) -> Result<()> {
        let options = ReadOptions {
            text_field: self.settings.text_field.clone(),
            separator: self.settings.separator.clone(),
            marks: self.tokenizer.marks.clone(),
            cutting: self.tokenizer.encoder.cutting(),
        };
        let bytes_read = self.bytes_read.clone();
        let n_chars = match self.rule {
            SplitRule::Tail { .. } => {
                let mut n_chars = 0;
                read_in_batches(files, &options, &bytes_read, |batch| {
                    n_chars += batch.par_iter().map(|part| part.piece.text.chars().count() as u64).sum::<u64>();
                    self.report();
                    Ok(())
                })?;
                n_chars
            }
            _ => 0,
        };
        let mut assigner = Assigner::new(self.rule, n_chars, source)?;
        let report = read_in_batches(files, &options, &bytes_read, |batch| {
            let mut parts: Vec<Part> = batch.into_iter().flat_map(|part| assigner.assign(part)).collect();
            if self.rule == SplitRule::Files {
                parts.iter_mut().for_each(|part| part.split = split_of(&files[part.file]));
            }
            self.encode(files, &parts, output)?;
            self.report();
            Ok(())
        })?;
        self.notes.extend(report.notes);
        self.not_text.extend(report.not_text.into_iter().map(|index| files[index].path.clone()));
        Ok(())
    }

    fn encode(&mut self, files: &[SourceFile], parts: &[Part], output: &mut Output) -> Result<()> {
        let encode = |part: &Part| {
            let encoded = self.tokenizer.encode(&part.text, part.is_rendered, part.conversation.as_ref());
            encoded.with_context(|| format!("`{}`", files[part.file].path.display()))
        };
        // If there are several errors, the first in the order of the documents is reported, whichever thread is faster.
        let encoded: Vec<Result<(Vec<TokenId>, Vec<Note>)>> = parts.par_iter().map(encode).collect();
        let encoded = encoded.into_iter().collect::<Result<Vec<_>>>()?;
        for (part, (ids, notes)) in parts.iter().zip(&encoded) {
            for note in notes {
                let place = part.conversation.as_ref().map_or("", |conversation| &conversation.place);
                self.notes.add(note.clone(), &format!("`{}`, {place}", files[part.file].path.display()));
            }
            let split = output.split(part.split);
            let is_chat = part.conversation.is_some() || part.is_rendered;
            if !is_chat && split.is_between_documents() && !ids.is_empty() {
                split.push(&self.tokenizer.beginning, 0)?;
            }
            // For a chat, the text that the template writes.
            let n_bytes = if is_chat { self.tokenizer.tokenizer.text_bytes(ids) } else { part.text.len() as u64 };
            self.conversations += u64::from(is_chat && part.end.is_some());
            split.push(ids, n_bytes)?;
            match part.end {
                Some(End::Document) => {
                    let is_ended = is_chat && self.tokenizer.is_ended(ids);
                    split.end_document(self.tokenizer.eos_id.filter(|_| !is_ended))?;
                }
                Some(End::Cut) => split.end_document(None)?,
                None => {}
            }
            self.tokens += ids.len() as u64;
        }
        Ok(())
    }

    /// Copies the tokens of a token file. Its last document stays open, since it may continue in the split's next file.
    fn token_file(&mut self, file: &SourceFile, output: &mut Output) -> Result<()> {
        let token_bytes = self.tokenizer.token_bytes();
        let (eos, bytes_read) = (self.tokenizer.eos_id, self.bytes_read.clone());
        let split: &mut SplitOutput = output.split(split_of(file));
        let mut is_start = true;
        let vocabulary = (self.tokenizer.vocab_size, self.settings.tokenizer.as_path());
        read_tokens(&file.path, vocabulary, &bytes_read, &mut |ids| {
            // llm.c writes the end-of-text token in front of each document, and cuts documents where a file is full.
            let mut is_start = std::mem::take(&mut is_start);
            if is_start && (eos.is_none() || ids.first().copied() == eos) {
                split.end_open_document()?;
            }
            for document in ids.split_inclusive(|&id| Some(id) == eos) {
                split.push(document, document.iter().map(|&id| u64::from(token_bytes[id as usize])).sum())?;
                // At the start of a file, the token ends no document.
                let is_leading = std::mem::take(&mut is_start) && document.len() == 1;
                if !is_leading && document.last().copied() == eos {
                    split.end_document(None)?;
                }
            }
            self.tokens += ids.len() as u64;
            self.report();
            Ok(())
        })
    }
}

/// The split that a file is for by its name.
fn split_of(file: &SourceFile) -> Split {
    match file.split {
        FileSplit::Train => Split::Train,
        FileSplit::Val => Split::Val,
    }
}

/// Counts of what was read and written.
struct Contents {
    /// The commits of the sources, followed by those of the validation sources, if they are from the hub.
    commits: Vec<Option<String>>,
    conversations: u64,
    /// Counts of each source.
    counts: Vec<Counts>,
    /// The training and the validation split.
    splits: [SplitInfo; 2],
}

/// Whether nothing was held out because there are few documents, although the user did not ask for it.
fn holds_nothing_out(settings: &PrepareSettings, rule: SplitRule, [train, val]: &[SplitInfo; 2]) -> bool {
    let is_default = settings.split.is_none() && settings.val_fraction.is_none();
    is_default && matches!(rule, SplitRule::Hash { .. }) && val.documents == 0 && train.documents > 0
}

fn manifest(settings: &PrepareSettings, tokenizer: &OpenTokenizer, split: SplitRule, contents: Contents) -> Manifest {
    let Contents { commits, conversations, counts, splits: [train, val] } = contents;
    let names = settings.sources.iter().map(|source| (source.origin.to_string(), source.weight));
    let names = names.chain(settings.validation.iter().map(|origin| (origin.to_string(), None)));
    let sources = names.zip(commits).zip(counts);
    let sources = sources.map(|(((path, weight), commit), counts)| SourceInfo {
        path,
        commit,
        weight,
        share: counts.train_tokens as f64 / train.tokens as f64,
        documents: counts.documents,
        tokens: counts.tokens,
        bytes: counts.bytes,
        epochs: counts.epochs,
    });
    let sources = sources.collect();
    let mut manifest = Manifest {
        version: SHARD_VERSION,
        hash: Digest([0; 32]),
        tokenizer_hash: tokenizer.hash,
        vocab_size: tokenizer.vocab_size,
        eos_id: tokenizer.eos_id,
        conversations,
        split,
        train,
        val,
        sources,
    };
    manifest.hash = manifest.compute_hash();
    manifest
}

/// Rejects a data set that is too small for training or evaluation.
fn check_splits(manifest: &Manifest) -> Result<()> {
    for split in Split::ALL {
        let n_tokens = manifest.split_info(split).tokens;
        let documents = manifest.train.documents + manifest.val.documents;
        let hint = match manifest.split {
            SplitRule::Hash { .. } => {
                "hold out more documents with `--val-fraction`, or none with `--val-fraction 0`; name \
                                       files for validation with `--val`; split a text with `--separator`, or hold out \
                                       its end with `--split tail`"
            }
            SplitRule::Tail { .. } => "use a longer text",
            SplitRule::Files => "add a file with `train` in its name and one with `val`",
        };
        let is_wanted_empty = split == Split::Val
            && matches!(manifest.split, SplitRule::Hash { val_fraction: 0.0 } | SplitRule::Tail { val_fraction: 0.0 });
        ensure!(
            n_tokens >= 2 || is_wanted_empty,
            "the {split} split has {n_tokens} tokens in {documents} documents, but needs at least 2 tokens\nhint: {hint}"
        );
    }
    Ok(())
}
