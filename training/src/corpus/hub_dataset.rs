//! Data sets of the Hugging Face hub as sources: which files of the repository have documents, and their download.

use std::{collections::BTreeSet, fmt};

use anyhow::{Result, bail};
use hearth_model::hub::{Download, Hub, HubFile, Repo, RepoKind};

use super::files::{FileKind, SourceFile, TRAIN_WORDS, VAL_WORDS, has_word, kind_of};

/// `org/name`, `org/name@revision`, each also with `:PATH` for one file or folder of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubDataset {
    repo: Repo,
    path: Option<String>,
}

/// The files of a data set in the hub's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downloaded {
    /// The files.
    pub files: Vec<SourceFile>,
    /// The commit that they are from.
    pub commit: String,
}

impl HubDataset {
    /// Parses the id of a data set; `None` if `text` is none.
    pub fn parse(text: &str) -> Option<HubDataset> {
        let (id, path) = text.split_once(':').map_or((text, None), |(id, path)| (id, Some(path)));
        let path = path.map(|path| path.trim_matches('/').to_owned());
        let is_valid = path.as_ref().is_none_or(|path| !path.is_empty());
        is_valid.then(|| Repo::parse(RepoKind::Dataset, id)).flatten().map(|repo| HubDataset { repo, path })
    }

    /// Downloads the files with documents, unless they are in the hub's cache.
    ///
    /// # Errors
    /// The hub does not have or give the data set; it has no files with documents, or several folders with them and no
    /// path says which.
    pub fn download(&self, hub: &Hub, progress: &mut dyn FnMut(Download)) -> Result<Downloaded> {
        let snapshot = hub.snapshot(&self.repo)?;
        let chosen = self.choose(&snapshot.files)?;
        let wanted: Vec<_> = chosen.iter().map(|(file, _)| *file).collect();
        let paths = hub.fetch_all(&snapshot, &wanted, &self.to_string(), progress)?;
        let files = chosen.iter().zip(paths).map(|(&(file, kind), path)| SourceFile {
            path,
            kind,
            n_bytes: file.n_bytes,
            is_found: false,
        });
        Ok(Downloaded { files: files.collect(), commit: snapshot.commit })
    }

    /// The files with documents. A file that the path names is taken as it is. Otherwise: Parquet files, or JSON files
    /// if there are none, or text files; those of the training split, if files name one.
    fn choose<'a>(&self, all: &'a [HubFile]) -> Result<Vec<(&'a HubFile, FileKind)>> {
        let Some(path) = &self.path else {
            let chosen = self.choose_in(all, "")?;
            let folders: BTreeSet<&str> = chosen.iter().map(|(file, _)| folder(&file.path)).collect();
            if folders.len() > 1 {
                let shown: Vec<_> = folders.iter().take(10).map(|folder| format!("`{}:{folder}`", self.repo)).collect();
                let more = if folders.len() > shown.len() { ", ..." } else { "" };
                bail!(
                    "the data set `{self}` has documents in {} folders\nhint: choose one, or a folder above several: {}{more}",
                    folders.len(),
                    shown.join(", ")
                );
            }
            return Ok(chosen);
        };
        if let Some(file) = all.iter().find(|file| file.path == *path) {
            return Ok(vec![(file, kind_of(path.as_ref()).unwrap_or(FileKind::Text))]);
        }
        self.choose_in(all, &format!("{path}/"))
    }

    fn choose_in<'a>(&self, all: &'a [HubFile], prefix: &str) -> Result<Vec<(&'a HubFile, FileKind)>> {
        let inside = all.iter().filter(|file| file.path.starts_with(prefix));
        let typed: Vec<_> = inside.filter_map(|file| Some((file, kind_of_documents(&file.path)?))).collect();
        for kind in [FileKind::Parquet, FileKind::Json, FileKind::Text] {
            let files: Vec<_> = typed.iter().copied().filter(|&(_, found)| found == kind).collect();
            let of = |words: &[&str]| {
                files.iter().copied().filter(|(file, _)| has_word(&file.path, words)).collect::<Vec<_>>()
            };
            let train = of(&TRAIN_WORDS);
            if !train.is_empty() {
                return Ok(train);
            }
            if !files.is_empty() {
                let held_out = of(&[&["test", "testing", "eval", "evaluation", "dev"][..], &VAL_WORDS].concat());
                let rest: Vec<_> = files.iter().copied().filter(|file| !held_out.contains(file)).collect();
                return Ok(if rest.is_empty() { files } else { rest });
            }
        }
        let shown: Vec<_> = all.iter().take(10).map(|file| format!("`{}`", file.path)).collect();
        bail!(
            "the data set `{self}` has no Parquet, JSON or text files{}; it has: {}{}\nhint: name a file or folder, as in `{}:{}`",
            if prefix.is_empty() { String::new() } else { format!(" in `{prefix}`") },
            shown.join(", "),
            if all.len() > shown.len() { ", ..." } else { "" },
            self.repo,
            all.first().map_or("data", |file| &file.path)
        )
    }
}

impl fmt::Display for HubDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repo.fmt(f)?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, ":{path}"))
    }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The kind of a file that has documents, rather than a description of the data set.
fn kind_of_documents(path: &str) -> Option<FileKind> {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    let is_hidden = path.split('/').any(|part| part.starts_with('.'));
    let describes = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "requirements.txt"];
    if is_hidden || describes.contains(&name.as_str()) || name.starts_with("license") {
        return None;
    }
    match kind_of(path.as_ref())? {
        FileKind::Text => {
            let is_text = |name: &str| name.ends_with(".txt") || name.ends_with(".text");
            let plain = [".gz", ".zst", ".zstd"].iter().find_map(|extension| name.strip_suffix(extension));
            is_text(plain.unwrap_or(&name)).then_some(FileKind::Text)
        }
        kind @ (FileKind::Json | FileKind::Parquet) => Some(kind),
        FileKind::Tokens => None,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    fn files(paths: &[&str]) -> Vec<HubFile> {
        let digits = "0".repeat(40);
        let file = |path: &&str| json!({ "path": path, "n_bytes": 1, "checksum": { "git": digits } });
        serde_json::from_value(paths.iter().map(file).collect()).unwrap()
    }

    fn chosen(id: &str, paths: &[&str]) -> Result<Vec<String>, String> {
        let all = files(paths);
        let chosen = HubDataset::parse(id).unwrap().choose(&all).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|(file, _)| file.path.clone()).collect())
    }

    #[test]
    fn hub_dataset_id_may_have_a_revision_and_a_path() {
        for id in ["a/b", "a/b@v1", "a/b:data/x.parquet", "a/b@v1:en"] {
            assert_eq!(HubDataset::parse(id).unwrap().to_string(), id);
        }
        assert_eq!(HubDataset::parse("a/b:en/").unwrap().to_string(), "a/b:en");
        for wrong in ["a", "./b", "a/b/c", "a/b:", "/a/b", "a/b:/"] {
            assert_eq!(HubDataset::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hub_dataset_choose_takes_the_training_split_in_the_best_format() {
        let tables = ["README.md", "data/test-0.parquet", "data/train-0.parquet", "data/train-1.parquet", "raw.txt"];
        assert_eq!(chosen("a/b", &tables).unwrap(), ["data/train-0.parquet", "data/train-1.parquet"]);
        assert_eq!(chosen("a/b:raw.txt", &tables).unwrap(), ["raw.txt"]);
        assert_eq!(chosen("a/b:data/test-0.parquet", &tables).unwrap(), ["data/test-0.parquet"]);
        let lines = [".gitattributes", "constrained.jsonl.gz", "dataset_infos.json", "validation.jsonl"];
        assert_eq!(chosen("a/b", &lines).unwrap(), ["constrained.jsonl.gz"]);
        assert_eq!(chosen("a/b", &["LICENSE.txt", "book.txt", "notes.md"]).unwrap(), ["book.txt"]);
        assert_eq!(chosen("a/b", &["test.txt"]).unwrap(), ["test.txt"]);
    }

    #[test]
    fn hub_dataset_with_several_folders_is_rejected_listing_them() {
        let paths = ["de/train.parquet", "en/1/train.parquet", "en/2/train.parquet"];
        let error = chosen("a/b", &paths).unwrap_err();
        assert!(error.contains("in 3 folders\nhint: ") && error.contains("`a/b:de`, `a/b:en/1`"), "{error}");
        assert_eq!(chosen("a/b:en", &paths).unwrap(), ["en/1/train.parquet", "en/2/train.parquet"]);
        let error = chosen("a/b:fr", &paths).unwrap_err();
        assert!(error.contains("no Parquet, JSON or text files in `fr/`; it has: `de/train.parquet`"), "{error}");
    }
}
