//! A prepared data set, opened.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail, ensure};
use hearth_model::{
    TokenId,
    files::digest::Digest,
    text::{chat::ChatTemplate, tokenizer::Tokenizer},
};

use super::{
    file::ShardFile,
    manifest::{DATA_FILE, Manifest, ShardInfo, Split, SplitInfo, TOKENIZER_DIR},
    tokens::Tokens,
    verified::verify,
};

/// A folder written by `prepare` whose manifest, tokenizer and shards belong together.
#[derive(Clone, Debug)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Manifest,
    train: Tokens,
    val: Tokens,
}

impl Dataset {
    /// Opens the folder `dir` and maps its shards. Reads a shard to verify its checksum, and again after it has changed.
    ///
    /// # Errors
    /// A file is missing, damaged, or does not belong to the others. The message names it, the value found and the
    /// value expected.
    pub fn open(dir: &Path) -> Result<Dataset> {
        let manifest = Manifest::read(dir)?;
        let hash = manifest.compute_hash();
        ensure!(
            hash == manifest.hash,
            "`{}` is damaged: its shards have the hash {}, but it lists {}\nhint: prepare the data again",
            dir.join(DATA_FILE).display(),
            hash.short(),
            manifest.hash.short()
        );
        let path = dir.join(TOKENIZER_DIR).join("tokenizer.json");
        let tokenizer = Digest::of(&fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?);
        ensure!(
            tokenizer == manifest.tokenizer_hash,
            "`{}` (hash {}) is not the tokenizer that `{}` was prepared with (hash {})\nhint: prepare the data again with \
             this tokenizer, or restore the old one",
            path.display(),
            tokenizer.short(),
            dir.display(),
            manifest.tokenizer_hash.short()
        );
        let (train, val) = (open_shards(dir, &manifest, Split::Train)?, open_shards(dir, &manifest, Split::Val)?);
        verify(dir, &train.iter().chain(&val).collect::<Vec<_>>(), SystemTime::now())?;
        let train = tokens_of(dir, &manifest, Split::Train, train)?;
        let val = tokens_of(dir, &manifest, Split::Val, val)?;
        Ok(Dataset { dir: dir.to_owned(), manifest, train, val })
    }

    /// The tokens of a split.
    pub fn split(&self, split: Split) -> &Tokens {
        match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
        }
    }

    /// Identifies tokenizer and tokens: equal hashes mean equal training data.
    pub fn hash(&self) -> Digest {
        self.manifest.hash
    }

    /// SHA-256 of the tokenizer's `tokenizer.json`.
    pub fn tokenizer_hash(&self) -> Digest {
        self.manifest.tokenizer_hash
    }

    /// The folder with the tokenizer's files, laid out like a model dir.
    pub fn tokenizer_dir(&self) -> PathBuf {
        self.dir.join(TOKENIZER_DIR)
    }

    /// Opens the tokenizer.
    ///
    /// # Errors
    /// As [`Tokenizer::from_dir`], and fewer tokens than the manifest has.
    pub fn open_tokenizer(&self) -> Result<Tokenizer> {
        let dir = self.tokenizer_dir();
        let expected = self.manifest.vocab_size;
        let tokenizer = Tokenizer::from_dir(&dir)?.for_vocabulary(expected);
        let found = tokenizer.vocab_size();
        ensure!(
            found == expected,
            "the tokenizer `{}` has {found} tokens, but `{}` expects {expected}\nhint: prepare the data again",
            dir.display(),
            self.dir.join(DATA_FILE).display()
        );
        Ok(tokenizer)
    }

    /// Whether `end`, the token that ends documents, also ends the turns of conversations in the data: then it does not
    /// separate documents. `tokenizer` is the data's.
    ///
    /// # Errors
    /// The chat template cannot be read.
    pub fn ends_turns(&self, end: TokenId, tokenizer: &Tokenizer) -> Result<bool> {
        if self.manifest.conversations == 0 {
            return Ok(false);
        }
        let template = ChatTemplate::from_dir(&self.tokenizer_dir())?;
        Ok(template.and_then(|template| template.end_of_turn(tokenizer)) == Some(end))
    }

    /// Counts, sources and shards.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// The shards of a split, as the manifest lists them; their checksums are not checked.
fn open_shards(dir: &Path, manifest: &Manifest, split: Split) -> Result<Vec<ShardFile>> {
    let mut files = Vec::new();
    for shard in &manifest.split_info(split).shards {
        let path = dir.join(&shard.file);
        let shown = path.display();
        let file = ShardFile::open(&path)?;
        let found = file.header().tokenizer;
        if found != manifest.tokenizer_hash {
            bail!(
                "`{shown}` has tokens of another tokenizer (hash {}) than `{}` (hash {})\nhint: the files of two data sets \
                 are mixed up: prepare the data again",
                found.short(),
                dir.join(TOKENIZER_DIR).display(),
                manifest.tokenizer_hash.short()
            );
        }
        let (found, expected) = ((file.n_tokens(), file.checksum()), (shard.tokens, shard.sha256));
        ensure!(
            found == expected,
            "`{shown}` does not match `{}`: it has {} tokens and the checksum {}, expected {} and {}\nhint: \
             the files of two data sets are mixed up: prepare the data again",
            dir.join(DATA_FILE).display(),
            found.0,
            found.1.short(),
            expected.0,
            expected.1.short()
        );
        files.push(file);
    }
    Ok(files)
}

fn tokens_of(dir: &Path, manifest: &Manifest, split: Split, files: Vec<ShardFile>) -> Result<Tokens> {
    let SplitInfo { tokens, bytes, .. } = manifest.split_info(split);
    let split_tokens = Tokens::from_shards(files, *bytes);
    ensure!(
        split_tokens.len() == *tokens,
        "`{}` lists {tokens} tokens in the {split} split, but its shards have {}\nhint: prepare the data again",
        dir.join(DATA_FILE).display(),
        split_tokens.len()
    );
    Ok(split_tokens)
}

/// The tokens of shards that were just written, without verifying them again.
///
/// # Errors
/// A file cannot be opened.
pub fn open_tokens(dir: &Path, shards: &[ShardInfo], n_bytes: u64) -> Result<Tokens> {
    let files = shards.iter().map(|shard| ShardFile::open(&dir.join(&shard.file))).collect::<Result<_>>()?;
    Ok(Tokens::from_shards(files, n_bytes))
}
