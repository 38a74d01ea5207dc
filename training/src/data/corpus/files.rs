//! Files of documents, and the split and format that their names show.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// The contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// UTF-8 text.
    Text,
    /// One JSON object per line, or an array of objects.
    Json,
    /// A table as text, with this separator: CSV or TSV.
    Table(u8),
    /// A table with a text column.
    Parquet,
    /// Tokens: nanoGPT's or llm.c's.
    Tokens,
}

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSplit {
    /// To be trained on.
    Train,
    /// For validation.
    Val,
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
    /// The file's purpose, by its name if it was found in a folder or is a token file.
    pub split: FileSplit,
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
        let is_test = kind_of(path) == Some(FileKind::Tokens) && split_of_name(path) == Some(NamedSplit::Test);
        let kind = kind_of(path).filter(|_| !is_test).with_context(|| {
            format!(
                "the name of `{}` does not say whether it has tokens for training or for validation\nhint: rename it, as in \
                 `{TOKEN_NAMES}`; give text another extension than `.bin`",
                path.display()
            )
        })?;
        let split = split_by_name(path, kind);
        return Ok(vec![SourceFile { path: path.to_owned(), kind, n_bytes: metadata.len(), is_found: false, split }]);
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
        let is_description = DESCRIPTIONS.iter().any(|name| entry.file_name() == *name);
        if is_description || entry.file_name().as_encoded_bytes().starts_with(b".") {
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
            let split = split_by_name(&path, kind);
            files.push(SourceFile { path, kind, n_bytes: metadata.len(), is_found: true, split });
        }
    }
    Ok(())
}

/// Files of tokens have always been split by their names; all others are trained on if they are named themselves.
fn split_by_name(path: &Path, kind: FileKind) -> FileSplit {
    match split_of_name(path) {
        Some(NamedSplit::Val) if kind == FileKind::Tokens => FileSplit::Val,
        _ => FileSplit::Train,
    }
}

fn split_of_name(path: &Path) -> Option<NamedSplit> {
    named_split(&path.file_name()?.to_string_lossy())
}

/// The split in the name of a file, unless it is the training split.
pub(super) fn held_out_by_name(path: &Path) -> Option<&'static str> {
    match split_of_name(path)? {
        NamedSplit::Train => None,
        NamedSplit::Val => Some("validation"),
        NamedSplit::Test => Some("test"),
    }
}

/// Names of token files, for messages.
const TOKEN_NAMES: &str = "train.bin` or `news_val_0.bin";

/// Words in names for the splits of a data set, as in the Python library `datasets`.
const SPLIT_WORDS: [(NamedSplit, &[&str]); 3] = [
    (NamedSplit::Train, &["train", "training"]),
    (NamedSplit::Val, &["validation", "valid", "dev", "val"]),
    (NamedSplit::Test, &["test", "testing", "eval", "evaluation"]),
];

/// A split named by a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedSplit {
    Train,
    Val,
    Test,
}

/// The split that a path within a data set names: by one of its folders, outermost first, or else by its file name. A
/// word counts if there are no letters around it.
pub(super) fn named_split(path: &str) -> Option<NamedSplit> {
    path.split(['/', '\\']).find_map(|part| {
        let part = part.to_lowercase();
        SPLIT_WORDS.iter().find(|(_, words)| has_word(&part, words)).map(|(split, _)| *split)
    })
}

fn has_word(name: &str, words: &[&str]) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    words.iter().flat_map(|word| name.match_indices(word)).any(|(start, found)| {
        !is_letter(name[..start].chars().next_back()) && !is_letter(name[start + found.len()..].chars().next())
    })
}

/// A file that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name within its source.
    pub name: String,
    /// Why.
    pub why: WhyLeftOut,
}

impl LeftOut {
    pub(super) fn new(name: String, why: WhyLeftOut) -> LeftOut {
        LeftOut { name, why }
    }
}

/// Why a file is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyLeftOut {
    /// By its name it is for tests.
    ForTests,
    /// By its name it is for validation, which the command does not need.
    ForValidation,
    /// By its name it is for validation, but others are named for that.
    Replaced,
    /// The file's name shows no split, but another file's name shows the training split.
    NoSplit,
    /// A text file next to files of examples.
    NotExamples,
}

impl fmt::Display for WhyLeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyLeftOut::ForTests => "for tests, by name",
            WhyLeftOut::ForValidation => "for validation, by name",
            WhyLeftOut::Replaced => "for validation, by name, but `--val` names others",
            WhyLeftOut::NoSplit => "of no split, by name, beside files for training",
            WhyLeftOut::NotExamples => "text beside files of examples",
        })
    }
}

/// The files of the folder `source`, each with its split, and the names of the files that are left out as test data. A
/// file whose name shows no split is used for training. Only names of data files count, not names of source code or
/// notes.
pub(super) fn split_files(source: &Path, files: Vec<SourceFile>) -> (Vec<SourceFile>, Vec<LeftOut>) {
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    for file in files {
        let inner = file.path.strip_prefix(source).unwrap_or(&file.path).to_string_lossy().into_owned();
        let name = match file.kind {
            FileKind::Text if !is_text_name(&inner.to_lowercase()) => None,
            FileKind::Tokens => inner.rsplit(['/', '\\']).next(),
            _ => Some(inner.as_str()),
        };
        match name.filter(|_| file.is_found).and_then(named_split) {
            Some(NamedSplit::Test) => left_out.push(LeftOut::new(inner, WhyLeftOut::ForTests)),
            Some(NamedSplit::Val) => kept.push(SourceFile { split: FileSplit::Val, ..file }),
            Some(NamedSplit::Train) | None => kept.push(file),
        }
    }
    (kept, left_out)
}

/// Whether a file is a text by its name, which may also show that it is compressed.
pub(super) fn is_text_name(name: &str) -> bool {
    let name = without_compression(name);
    name.ends_with(".txt") || name.ends_with(".text")
}

/// Files that describe a data set.
pub(super) const DESCRIPTIONS: [&str; 4] =
    ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

fn without_compression(name: &str) -> &str {
    [".gz", ".zst", ".zstd"].iter().find_map(|extension| name.strip_suffix(extension)).unwrap_or(name)
}

/// The contents of a file, by its name. `None` for a `.bin` file without a split in its name.
pub fn kind_of(path: &Path) -> Option<FileKind> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    Some(match without_compression(&name).rsplit_once('.').map(|(_, extension)| extension) {
        Some("jsonl" | "ndjson" | "json") => FileKind::Json,
        Some("csv") => FileKind::Table(b','),
        Some("tsv" | "tab") => FileKind::Table(b'\t'),
        Some("parquet") => FileKind::Parquet,
        Some("bin") => {
            named_split(&name)?;
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
    fn split_of_a_file_is_a_whole_word_of_its_path() {
        use NamedSplit::{Test, Train, Val};
        for (path, split) in [
            ("val.bin", Some(Val)),
            ("train.bin", Some(Train)),
            ("fineweb_val_000000.bin", Some(Val)),
            ("wiki2Validation.bin", Some(Val)),
            ("retrieval_train.bin", Some(Train)),
            ("medieval-train.bin", Some(Train)),
            ("interval_000.bin", None),
            ("data/train-00000-of-00002.parquet", Some(Train)),
            ("data/test_sft-00000-of-00001.parquet", Some(Test)),
            ("en/dev.jsonl.gz", Some(Val)),
            ("valid/0.csv", Some(Val)),
            ("eval.jsonl", Some(Test)),
            ("train/test.jsonl", Some(Train)),
            ("TEST/part.tsv", Some(Test)),
            ("my_validation_set.jsonl", Some(Val)),
            ("latest.jsonl", None),
            ("tests/a.jsonl", None),
            ("devices.jsonl", None),
        ] {
            assert_eq!(named_split(path), split, "{path}");
        }
        assert_eq!(kind_of(Path::new("interval_000.bin")), None);
    }

    #[test]
    fn files_for_tests_are_left_out_of_a_folder_and_those_for_validation_found() {
        let dir = tempfile::tempdir().unwrap();
        let names = [
            "data/test-00000-of-00001.parquet",
            "data/train-00000-of-00001.parquet",
            "data/validation-0.parquet",
            "dataset_info.json",
            "more.jsonl",
            "test.csv",
            "test.txt",
            "test_model.py",
            "train.py",
            "valid.tsv.gz",
        ];
        for name in names {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let (files, left_out) = split_files(dir.path(), list_files(dir.path()).unwrap());
        let left_out: Vec<_> = left_out.into_iter().map(|one| one.name).collect();
        assert_eq!(left_out, ["data/test-00000-of-00001.parquet", "test.csv", "test.txt"]);
        let of = |split: FileSplit| -> Vec<String> {
            let files = files.iter().filter(|file| file.split == split);
            files.map(|file| file.path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(of(FileSplit::Val), ["data/validation-0.parquet", "valid.tsv.gz"]);
        assert_eq!(
            of(FileSplit::Train),
            ["data/train-00000-of-00001.parquet", "more.jsonl", "test_model.py", "train.py"]
        );
    }
}
