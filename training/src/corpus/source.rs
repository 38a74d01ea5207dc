//! Sources of documents: files and folders.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    json::read_json,
    open::{BytesRead, open_stream},
    parquet,
    piece::{Cutting, Piece},
    text::{NotUtf8, read_text, send_document},
};

/// A source from the command line: a file or a folder, and its weight in a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSpec {
    /// The file or folder.
    pub path: PathBuf,
    /// Its weight, if given.
    pub weight: Option<f64>,
}

impl SourceSpec {
    /// Parses `PATH` or `PATH=WEIGHT`. If a file with the whole name exists, the name is a path.
    ///
    /// # Errors
    /// The weight is not positive.
    pub fn parse(text: &str) -> Result<SourceSpec> {
        let whole = SourceSpec { path: PathBuf::from(text), weight: None };
        let Some((path, weight)) = text.rsplit_once('=') else { return Ok(whole) };
        let Ok(weight) = weight.parse::<f64>() else { return Ok(whole) };
        if whole.path.exists() {
            return Ok(whole);
        }
        ensure!(
            weight.is_finite() && weight > 0.0,
            "the weight of `{path}` must be positive, got {weight}\nhint: remove the source, or set a weight above 0"
        );
        Ok(SourceSpec { path: PathBuf::from(path), weight: Some(weight) })
    }
}

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

/// Settings for reading documents.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The field or column of the text, in jsonl and Parquet.
    pub text_field: String,
    /// The separator between documents in a text file; `None`: one document per file.
    pub separator: Option<String>,
    /// Whether documents may be split into pieces.
    pub cutting: Cutting,
}

/// The files of a source: the file itself, or all files in the folder and its subfolders, ordered by name. Hidden files
/// are skipped.
///
/// # Errors
/// The path does not exist or cannot be read, or the folder has no files.
pub fn list_files(path: &Path) -> Result<Vec<SourceFile>> {
    let metadata = fs::metadata(path).with_context(|| {
        format!("cannot read the source `{}`\nhint: use files or folders on this machine", path.display())
    })?;
    if !metadata.is_dir() {
        let kind = kind_of(path).unwrap_or(FileKind::Text);
        return Ok(vec![SourceFile { path: path.to_owned(), kind, n_bytes: metadata.len(), is_found: false }]);
    }
    let mut files = Vec::new();
    list_folder(path, &mut files)?;
    if files.is_empty() {
        bail!("the folder `{}` has no files\nhint: hidden files are ignored", path.display());
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

/// The contents of a file, by its name. `None` for a `.bin` file without `train` or `val` in its name.
fn kind_of(path: &Path) -> Option<FileKind> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = [".gz", ".zst", ".zstd"].iter().find_map(|extension| name.strip_suffix(extension)).unwrap_or(&name);
    Some(match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("jsonl" | "ndjson" | "json") => FileKind::Json,
        Some("parquet") => FileKind::Parquet,
        Some("bin") if name.contains("train") || name.contains("val") => FileKind::Tokens,
        Some("bin") => return None,
        _ => FileKind::Text,
    })
}

/// Whether a file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was read completely.
    Read,
    /// It was found in a folder and is not text.
    NotText,
}

/// Reads the documents of a file and passes their pieces to `sink`.
///
/// # Errors
/// The file cannot be read or is damaged; the message has its name and, if known, the line or row. Errors of `sink`.
pub fn read_documents(
    file: &SourceFile,
    options: &ReadOptions,
    bytes_read: &BytesRead,
    sink: &mut dyn FnMut(Piece) -> Result<()>,
) -> Result<Outcome> {
    let ReadOptions { text_field, separator, cutting } = options;
    let path = &file.path;
    match file.kind {
        FileKind::Text => {
            let separator = separator.as_deref();
            if file.is_found {
                // Read completely before passing it on: half a document is not a document.
                let reader = open_stream(path, &BytesRead::default())?;
                match read_text(path, reader, separator, *cutting, &mut |_| Ok(())) {
                    Err(error) if error.is::<NotUtf8>() => {
                        bytes_read.add(file.n_bytes);
                        return Ok(Outcome::NotText);
                    }
                    read => read?,
                }
            }
            read_text(path, open_stream(path, bytes_read)?, separator, *cutting, sink)?;
        }
        FileKind::Json => read_json(path, open_stream(path, bytes_read)?, text_field, *cutting, sink)?,
        FileKind::Parquet => {
            parquet::read_column(path, text_field, bytes_read, &mut |text| send_document(text, *cutting, sink))?;
        }
        FileKind::Tokens => bail!(
            "`{}` has tokens, not text\nhint: use it with `hearth-train prepare` and the tokenizer that made it",
            path.display()
        ),
    }
    Ok(Outcome::Read)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_weight_stands_behind_the_last_equals_sign() {
        let parse = |text: &str| SourceSpec::parse(text).unwrap();
        assert_eq!(parse("a/b.txt"), SourceSpec { path: "a/b.txt".into(), weight: None });
        assert_eq!(parse("a=b=0.5"), SourceSpec { path: "a=b".into(), weight: Some(0.5) });
        assert_eq!(parse("a=b").weight, None);
        for wrong in ["a=0", "a=-1", "a=inf", "a=nan"] {
            assert!(SourceSpec::parse(wrong).unwrap_err().to_string().contains("`a` must be positive"), "{wrong}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run=2");
        fs::write(&path, "x").unwrap();
        assert_eq!(parse(path.to_str().unwrap()), SourceSpec { path, weight: None });
    }

    #[test]
    fn a_folder_is_all_its_files_in_order_but_hidden_ones() {
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
        let error = format!("{:#}", list_files(&dir.path().join("missing")).unwrap_err());
        assert!(error.contains("missing") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn of_a_folder_what_is_no_text_is_left_out_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("picture");
        fs::write(&path, [&b"text ".repeat(100_000)[..], b"\xff"].concat()).unwrap();
        let options = ReadOptions { text_field: "text".into(), separator: None, cutting: Cutting::Pieces };
        let read = |path: &Path| {
            let mut n_pieces = 0;
            let mut sink = |_| {
                n_pieces += 1;
                Ok(())
            };
            let outcome = read_documents(&list_files(path).unwrap()[0], &options, &BytesRead::default(), &mut sink);
            (outcome.map_err(|error| error.to_string()), n_pieces)
        };
        assert_eq!(read(dir.path()), (Ok(Outcome::NotText), 0));
        assert!(read(&path).0.unwrap_err().contains("0xff at offset 500000"));
    }
}
