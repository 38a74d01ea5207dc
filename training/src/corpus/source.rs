//! Sources of documents: files, folders and data sets of the hub.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail, ensure};
use hearth_model::hub::{Download, Hub, HubOptions};

use super::{
    files::{FileKind, SourceFile, kind_of, list_files},
    hub_dataset::{Downloaded, HubDataset},
    json::read_json,
    open::{BytesRead, open_stream},
    parquet,
    piece::{Cutting, Piece},
    text::{NotUtf8, read_text, send_document},
};

/// A source from the command line, and its weight in a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSpec {
    /// Where the documents are.
    pub origin: Origin,
    /// Its weight, if given.
    pub weight: Option<f64>,
}

impl SourceSpec {
    /// Parses `ORIGIN` or `ORIGIN=WEIGHT`. If a file with the whole name exists, the name is a path.
    ///
    /// # Errors
    /// The weight is not positive.
    pub fn parse(text: &str) -> Result<SourceSpec> {
        let whole = || SourceSpec { origin: Origin::parse(text), weight: None };
        let Some((origin, weight)) = text.rsplit_once('=') else { return Ok(whole()) };
        let Ok(weight) = weight.parse::<f64>() else { return Ok(whole()) };
        if Path::new(text).exists() {
            return Ok(whole());
        }
        ensure!(
            weight.is_finite() && weight > 0.0,
            "the weight of `{origin}` must be positive, got {weight}\nhint: remove the source, or set a weight above 0"
        );
        Ok(SourceSpec { origin: Origin::parse(origin), weight: Some(weight) })
    }
}

/// Where documents are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file or folder.
    Path(PathBuf),
    /// A data set of the hub.
    Hub(HubDataset),
}

impl Origin {
    /// `org/name` is a data set of the hub, unless it is a path: a file or folder that exists, or a name that looks like
    /// that of a file, or one in a folder that exists.
    pub fn parse(text: &str) -> Origin {
        let path = Path::new(text);
        let is_file_name =
            |part: &str| kind_of(part.as_ref()).is_some_and(|kind| kind != FileKind::Text) || part.ends_with(".txt");
        let (id, inner) = text.split_once(':').map_or((text, None), |(id, inner)| (id, Some(inner)));
        let looks_like_path =
            path.exists() || inner.is_none() && is_file_name(id) || Path::new(id).parent().is_some_and(Path::is_dir);
        match HubDataset::parse(text) {
            Some(dataset) if !looks_like_path => Origin::Hub(dataset),
            _ => Origin::Path(path.to_owned()),
        }
    }

    /// Its files, downloaded if needed.
    ///
    /// # Errors
    /// Those of [`list_files`] and [`HubDataset::download`].
    pub fn files(&self, progress: &mut dyn FnMut(Download)) -> Result<Files> {
        match self {
            Origin::Path(path) => Ok(Files { files: list_files(path)?, commit: None }),
            Origin::Hub(dataset) => {
                let hub = Hub::new(HubOptions::from_env()?)?;
                let Downloaded { files, commit } = dataset.download(&hub, progress)?;
                Ok(Files { files, commit: Some(commit) })
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Path(path) => path.display().fmt(f),
            Origin::Hub(dataset) => dataset.fmt(f),
        }
    }
}

/// The files of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The files.
    pub files: Vec<SourceFile>,
    /// The commit that they are from, of a data set of the hub.
    pub commit: Option<String>,
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
    use std::fs;

    use super::*;

    #[test]
    fn source_weight_follows_the_last_equals_sign() {
        let parse = |text: &str| SourceSpec::parse(text).unwrap();
        let spec = |path: &str, weight| SourceSpec { origin: Origin::Path(path.into()), weight };
        assert_eq!(parse("a/b.txt"), spec("a/b.txt", None));
        assert_eq!(parse("a=b=0.5"), spec("a=b", Some(0.5)));
        assert_eq!(parse("a=b").weight, None);
        for wrong in ["a=0", "a=-1", "a=inf", "a=nan"] {
            assert!(SourceSpec::parse(wrong).unwrap_err().to_string().contains("`a` must be positive"), "{wrong}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run=2");
        fs::write(&path, "x").unwrap();
        assert_eq!(parse(path.to_str().unwrap()), spec(path.to_str().unwrap(), None));
    }

    #[test]
    fn origin_parse_distinguishes_hub_ids_from_paths() {
        for id in ["org/name", "org/name@v1", "org/name:data/train.parquet", "org/name:en"] {
            assert_eq!(Origin::parse(id), Origin::Hub(HubDataset::parse(id).unwrap()));
        }
        // `src` is a folder here.
        for path in ["org/name.txt", "org/data.jsonl.gz", "src/absent", "name", "a/b/c", "/a/b", "./a"] {
            assert_eq!(Origin::parse(path), Origin::Path(path.into()));
        }
        let weighted = SourceSpec::parse("org/name:en=0.25").unwrap();
        assert_eq!((weighted.origin.to_string().as_str(), weighted.weight), ("org/name:en", Some(0.25)));
    }

    #[test]
    fn non_utf8_file_in_a_folder_is_skipped_whole_but_rejected_by_itself() {
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
