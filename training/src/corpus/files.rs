//! Files of documents, and what their names say of their contents.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::shard::Split;

/// The contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// UTF-8 text.
    Text,
    /// One JSON object per line, or an array of objects.
    Json,
    /// A table with a text column.
    Parquet,
    /// Tokens: nanoGPT's or llm.c's.
    Tokens,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path.
    pub path: PathBuf,
    /// Its contents, determined by its name.
    pub kind: FileKind,
    /// Its size on disk in bytes.
    pub n_bytes: u64,
    /// Whether it was found in a folder: such files are skipped if they are not text.
    pub is_found: bool,
}

/// The files of a source: the file itself, or all files in the folder and its subfolders, ordered by name. Hidden files
/// are skipped.
///
/// # Errors
/// The path does not exist or cannot be read, or the folder has no files.
pub fn list_files(path: &Path) -> Result<Vec<SourceFile>> {
    let metadata = fs::metadata(path).with_context(|| {
        format!("cannot read the source `{}`\nhint: use files or folders on this machine, or the id of a data set of the hub (`org/name`)", path.display())
    })?;
    if !metadata.is_dir() {
        let kind = kind_of(path).with_context(|| {
            format!(
                "the name of `{}` does not say whether it has tokens for training or for validation\nhint: rename it, as in \
                 `{TOKEN_NAMES}`; give text another extension than `.bin`",
                path.display()
            )
        })?;
        return Ok(vec![SourceFile { path: path.to_owned(), kind, n_bytes: metadata.len(), is_found: false }]);
    }
    let mut files = Vec::new();
    list_folder(path, &mut files)?;
    if files.is_empty() {
        bail!(
            "the folder `{}` has no files\nhint: ignored are hidden files, and `.bin` files with other names than `{TOKEN_NAMES}`",
            path.display()
        );
    }
    Ok(files)
}

fn list_folder(dir: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let read = || {
        let mut entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        Ok::<_, std::io::Error>(entries)
    };
    for entry in read().with_context(|| format!("cannot read the folder `{}`", dir.display()))? {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // Links to files are followed. Links to folders are not: they could form a cycle.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder {
            list_folder(&path, files)?;
        } else if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
            && let Some(kind) = kind_of(&path)
        {
            files.push(SourceFile { path, kind, n_bytes: metadata.len(), is_found: true });
        }
    }
    Ok(())
}

/// Names of token files, for messages.
const TOKEN_NAMES: &str = "train.bin` or `news_val_0.bin";

/// The words of paths that name the split for training.
pub(super) const TRAIN_WORDS: [&str; 2] = ["train", "training"];
/// The words of paths that name the split for validation.
pub(super) const VAL_WORDS: [&str; 3] = ["val", "valid", "validation"];

/// Whether one of `words` occurs in `path` without letters around it, as the Python library `datasets` finds splits by name.
pub(super) fn has_word(path: &str, words: &[&str]) -> bool {
    let path = path.to_lowercase();
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    words.iter().flat_map(|word| path.match_indices(word)).any(|(start, found)| {
        !is_letter(path[..start].chars().next_back()) && !is_letter(path[start + found.len()..].chars().next())
    })
}

/// The split of a file of tokens, by its name: `val.bin`, `fineweb_val_000000.bin`.
pub fn split_of(path: &Path) -> Split {
    named_split(path).unwrap_or(Split::Train)
}

fn named_split(path: &Path) -> Option<Split> {
    let name = path.file_name()?.to_string_lossy();
    let is_for = |words: &[&str]| has_word(&name, words);
    is_for(&TRAIN_WORDS).then_some(Split::Train).or_else(|| is_for(&VAL_WORDS).then_some(Split::Val))
}

/// The contents of a file, by its name. `None` for a `.bin` file without a split in its name.
pub fn kind_of(path: &Path) -> Option<FileKind> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = [".gz", ".zst", ".zstd"].iter().find_map(|extension| name.strip_suffix(extension)).unwrap_or(&name);
    Some(match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("jsonl" | "ndjson" | "json") => FileKind::Json,
        Some("parquet") => FileKind::Parquet,
        Some("bin") => {
            named_split(path)?;
            FileKind::Tokens
        }
        _ => FileKind::Text,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn list_files_walks_a_folder_in_order_without_hidden_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["b.jsonl.zst", "a/z.txt", "a/y.rs", ".git/config", ".hidden", "model.bin", "train.bin", "c.PARQUET"]
        {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let files = list_files(dir.path()).unwrap();
        let found: Vec<_> = files
            .iter()
            .map(|file| (file.path.strip_prefix(dir.path()).unwrap().to_str().unwrap(), file.kind))
            .collect();
        let expected = [
            ("a/y.rs", FileKind::Text),
            ("a/z.txt", FileKind::Text),
            ("b.jsonl.zst", FileKind::Json),
            ("c.PARQUET", FileKind::Parquet),
            ("train.bin", FileKind::Tokens),
        ];
        assert_eq!(found, expected);
        for (name, message) in [("missing", "missing"), ("model.bin", "does not say")] {
            let error = format!("{:#}", list_files(&dir.path().join(name)).unwrap_err());
            assert!(error.contains(name) && error.contains(message) && error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn split_of_a_token_file_is_a_whole_word_of_its_name() {
        for (name, split) in [
            ("val.bin", Some(Split::Val)),
            ("train.bin", Some(Split::Train)),
            ("fineweb_val_000000.bin", Some(Split::Val)),
            ("fineweb_train_000001.bin", Some(Split::Train)),
            ("wiki2Validation.bin", Some(Split::Val)),
            ("retrieval_train.bin", Some(Split::Train)),
            ("medieval-train.bin", Some(Split::Train)),
            ("val/train.bin", Some(Split::Train)),
            ("interval_000.bin", None),
        ] {
            let path = Path::new(name);
            assert_eq!(kind_of(path), split.map(|_| FileKind::Tokens), "{name}");
            assert!(split.is_none_or(|split| split_of(path) == split), "{name}");
        }
    }
}
