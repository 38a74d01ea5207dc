//! `data.json`: the manifest of a prepared data set.

use std::{fmt, fs, path::Path};

use anyhow::{Context, Result, bail};
use hearth_model::{
    TokenId,
    files::digest::{Digest, Digester},
};
use serde::{Deserialize, Serialize};

/// The manifest's file name. A folder without it is not a prepared data set.
pub const DATA_FILE: &str = "data.json";
/// The folder with the copy of the tokenizer.
pub const TOKENIZER_DIR: &str = "tokenizer";
/// Version of `data.json` and of the shards.
pub const SHARD_VERSION: u32 = 1;

/// Training or validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// The training split.
    Train,
    /// The validation split.
    Val,
}

impl Split {
    /// Both splits.
    pub const ALL: [Split; 2] = [Split::Train, Split::Val];

    /// Its name in file names and messages.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Val => "val",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Contents of `data.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SHARD_VERSION`].
    pub version: u32,
    /// Identifies splits and tokenizer: see [`Manifest::compute_hash`].
    pub hash: Digest,
    /// SHA-256 of the tokenizer's `tokenizer.json`.
    pub tokenizer_hash: Digest,
    /// One more than the tokenizer's largest id.
    pub vocab_size: usize,
    /// The token that ends each document, if the tokenizer has one.
    pub eos_id: Option<TokenId>,
    /// Documents that are conversations, in both splits and before any is repeated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub conversations: u64,
    /// How the validation split was chosen.
    pub split: SplitRule,
    /// The training split.
    pub train: SplitInfo,
    /// The validation split.
    pub val: SplitInfo,
    /// Where the documents came from.
    pub sources: Vec<SourceInfo>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// How documents were split into training and validation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case", deny_unknown_fields)]
pub enum SplitRule {
    /// By the SHA-256 of each document: a document is always in the same split.
    Hash {
        /// Fraction of documents in the validation split.
        val_fraction: f64,
    },
    /// The end of each source's text.
    Tail {
        /// Fraction of the text in the validation split.
        val_fraction: f64,
    },
    /// By the names of the files: nanoGPT's `train.bin` and `val.bin`, llm.c's shards.
    Files,
}

/// A split's size and its shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitInfo {
    /// Documents.
    pub documents: u64,
    /// Tokens, including end-of-text tokens.
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Its shards, in order.
    pub shards: Vec<ShardInfo>,
}

/// A shard, with data that its header repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardInfo {
    /// File name.
    pub file: String,
    /// Tokens.
    pub tokens: u64,
    /// The checksum in its header.
    pub sha256: Digest,
}

/// A source of documents, and its part of the data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// The file, folder or data set from the command line.
    pub path: String,
    /// The commit of a data set of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Its weight in the mixture, if weights were given.
    pub weight: Option<f64>,
    /// Its fraction of the training split's tokens.
    pub share: f64,
    /// Documents, in both splits.
    pub documents: u64,
    /// Tokens, in both splits.
    pub tokens: u64,
    /// Bytes of text, in both splits.
    pub bytes: u64,
    /// How many times its training documents occur in the training split: below 1 if some were left out, above 1 if
    /// some are repeated.
    pub epochs: f64,
}

impl Manifest {
    /// The data of `split`.
    pub fn split_info(&self, split: Split) -> &SplitInfo {
        match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
        }
    }

    /// The digest of everything that determines what a model is trained on: the tokenizer and the shards, in order.
    pub fn compute_hash(&self) -> Digest {
        let mut digester = Digester::new();
        digester.update(&self.version.to_le_bytes());
        digester.update(&self.tokenizer_hash.0);
        for split in Split::ALL {
            let info = self.split_info(split);
            digester.update(split.name().as_bytes());
            digester.update(&(info.shards.len() as u64).to_le_bytes());
            for shard in &info.shards {
                digester.update(&shard.sha256.0);
            }
        }
        digester.finish()
    }

    /// Reads `DIR/data.json`.
    pub(super) fn read(dir: &Path) -> Result<Manifest> {
        /// Later versions may have other fields, so the version is checked first.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }

        let path = dir.join(DATA_FILE);
        let shown = path.display();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(_) if dir.is_file() => bail!(
                "`{}` is a file, not a folder of prepared data\nhint: make one with `hearth-train prepare {} --tokenizer DIR \
                 --out DATA`",
                dir.display(),
                dir.display()
            ),
            Err(_) if matches!(dir.try_exists(), Ok(false)) => bail!(
                "there is no prepared data at `{}`\nhint: create it with `hearth-train prepare SOURCES... --tokenizer DIR \
                 --out {}`",
                dir.display(),
                dir.display()
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "`{}` is not prepared data: it has no `{DATA_FILE}`\nhint: create it with `hearth-train prepare SOURCES... \
                 --tokenizer DIR --out DATA`",
                dir.display()
            ),
            Err(error) => {
                let hint = "this user must be able to open the folder, on each machine that trains";
                return Err(error).with_context(|| format!("cannot read `{shown}`\nhint: {hint}"));
            }
        };
        let again = "hint: prepare the data again";
        let Version { version } =
            serde_json::from_slice(&text).map_err(|error| anyhow::anyhow!("`{shown}` is damaged: {error}\n{again}"))?;
        if version != SHARD_VERSION {
            bail!(
                "`{shown}` has version {version}, expected {SHARD_VERSION}\n{again} with this version of `hearth-train`"
            );
        }
        serde_json::from_slice(&text).map_err(|error| anyhow::anyhow!("`{shown}` is damaged: {error}\n{again}"))
    }
}
