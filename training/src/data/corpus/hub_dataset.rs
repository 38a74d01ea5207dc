//! Data sets of the Hugging Face hub as sources: which files of the repository have documents, and their download.

use std::{collections::BTreeSet, fmt};

use anyhow::{Result, bail};
use hearth_model::hub::{Download, Hub, HubFile, Repo, RepoKind};

use super::files::{
    DESCRIPTIONS, FileKind, FileSplit, LeftOut, NamedSplit, SourceFile, WhyLeftOut, is_text_name, kind_of, named_split,
};

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
    /// Files that are left out because of the split in their names.
    pub left_out: Vec<LeftOut>,
    /// The commit that they are from.
    pub commit: String,
}

impl HubDataset {
    /// Parses the id of a data set; `None` if `text` is not one.
    pub fn parse(text: &str) -> Option<HubDataset> {
        let (id, path) = text.split_once(':').map_or((text, None), |(id, path)| (id, Some(path)));
        let path = path.map(|path| path.trim_matches('/').to_owned());
        let is_valid = path.as_ref().is_none_or(|path| !path.is_empty());
        is_valid.then(|| Repo::parse(RepoKind::Dataset, id)).flatten().map(|repo| HubDataset { repo, path })
    }

    /// Downloads the files with documents, unless they are in the hub's cache.
    ///
    /// # Errors
    /// The hub does not have the data set or denies it; it has no files with documents, or several folders with them
    /// and no path selects one.
    pub fn download(&self, hub: &Hub, progress: &mut dyn FnMut(Download)) -> Result<Downloaded> {
        let snapshot = hub.snapshot(&self.repo)?;
        let Chosen { files: chosen, left_out } = self.choose(&snapshot.files)?;
        let wanted: Vec<_> = chosen.iter().map(|(file, _, _)| *file).collect();
        let paths = hub.fetch_all(&snapshot, &wanted, &self.to_string(), progress)?;
        let files = chosen.iter().zip(paths).map(|(&(file, kind, split), path)| SourceFile {
            path,
            kind,
            n_bytes: file.n_bytes,
            is_found: false,
            split,
        });
        Ok(Downloaded { files: files.collect(), left_out, commit: snapshot.commit })
    }

    /// The files with documents. A file that the path names is used whatever its name. Otherwise: Parquet files, or
    /// JSON files if there are none, or tables as text, or text files; only the training and the validation split, if
    /// file names show splits.
    fn choose<'a>(&self, all: &'a [HubFile]) -> Result<Chosen<'a>> {
        let Some(path) = &self.path else {
            let chosen = self.choose_in(all, "")?;
            let folders: BTreeSet<&str> = chosen.files.iter().map(|(file, _, _)| config_folder(&file.path)).collect();
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
            let kind = kind_of(path.as_ref()).unwrap_or(FileKind::Text);
            return Ok(Chosen { files: vec![(file, kind, FileSplit::Train)], left_out: Vec::new() });
        }
        self.choose_in(all, &format!("{path}/"))
    }

    fn choose_in<'a>(&self, all: &'a [HubFile], prefix: &str) -> Result<Chosen<'a>> {
        let inside = all.iter().filter(|file| file.path.starts_with(prefix));
        let typed: Vec<_> = inside.filter_map(|file| Some((file, kind_of_documents(&file.path)?))).collect();
        let ranks: [fn(FileKind) -> bool; 4] = [
            |kind| kind == FileKind::Parquet,
            |kind| kind == FileKind::Json,
            |kind| matches!(kind, FileKind::Table(_)),
            |kind| kind == FileKind::Text,
        ];
        let of_best_kind = ranks.iter().find_map(|is_wanted| {
            let files: Vec<_> = typed.iter().copied().filter(|&(_, kind)| is_wanted(kind)).collect();
            (!files.is_empty()).then_some(files)
        });
        if let Some(files) = of_best_kind {
            let split = |file: &HubFile| named_split(&file.path[prefix.len()..]);
            let has_train = files.iter().any(|(file, _)| split(file) == Some(NamedSplit::Train));
            let mut chosen = Chosen { files: Vec::new(), left_out: Vec::new() };
            for (file, kind) in files {
                match split(file) {
                    Some(NamedSplit::Val) => chosen.files.push((file, kind, FileSplit::Val)),
                    Some(NamedSplit::Test) => chosen.leave_out(file, WhyLeftOut::ForTests),
                    None if has_train => chosen.leave_out(file, WhyLeftOut::NoSplit),
                    Some(NamedSplit::Train) | None => chosen.files.push((file, kind, FileSplit::Train)),
                }
            }
            return Ok(chosen);
        }
        let shown: Vec<_> = all.iter().take(10).map(|file| format!("`{}`", file.path)).collect();
        bail!(
            "the data set `{self}` has no Parquet, JSON, CSV or text files{}; it has: {}{}\nhint: name a file or folder, as in `{}:{}`",
            if prefix.is_empty() { String::new() } else { format!(" in `{prefix}`") },
            shown.join(", "),
            if all.len() > shown.len() { ", ..." } else { "" },
            self.repo,
            all.first().map_or("data", |file| &file.path)
        )
    }
}

/// The files of a data set that are used, each with its kind and split, and the names of others.
struct Chosen<'a> {
    files: Vec<(&'a HubFile, FileKind, FileSplit)>,
    left_out: Vec<LeftOut>,
}

impl Chosen<'_> {
    fn leave_out(&mut self, file: &HubFile, why: WhyLeftOut) {
        self.left_out.push(LeftOut::new(file.path.clone(), why));
    }
}

impl fmt::Display for HubDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repo.fmt(f)?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, ":{path}"))
    }
}

/// The folder of a file, without a last part that names a split: files for training and validation are often in two folders.
fn config_folder(path: &str) -> &str {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (above, last) = folder.rsplit_once('/').unwrap_or(("", folder));
    if named_split(last).is_some() { above } else { folder }
}

/// The kind of a file that has documents, rather than a description of the data set.
fn kind_of_documents(path: &str) -> Option<FileKind> {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    let is_hidden = path.split('/').any(|part| part.starts_with('.'));
    let describes = DESCRIPTIONS.contains(&name.as_str()) || name == "requirements.txt" || name.starts_with("license");
    if is_hidden || describes {
        return None;
    }
    match kind_of(path.as_ref())? {
        FileKind::Text => is_text_name(&name).then_some(FileKind::Text),
        kind @ (FileKind::Json | FileKind::Table(_) | FileKind::Parquet) => Some(kind),
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
        Ok(chosen.files.into_iter().map(|(file, _, _)| file.path.clone()).collect())
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
        assert_eq!(chosen("a/b", &lines).unwrap(), ["constrained.jsonl.gz", "validation.jsonl"]);
        let splits = ["en/test/0.csv", "en/train/0.csv", "en/validation/0.csv", "en/more.csv"];
        let all = files(&splits);
        let found = HubDataset::parse("a/b").unwrap().choose(&all).unwrap();
        let found_splits: Vec<_> = found.files.iter().map(|(file, _, split)| (file.path.as_str(), *split)).collect();
        assert_eq!(found_splits, [(splits[1], FileSplit::Train), (splits[2], FileSplit::Val)]);
        let left_out = [(splits[0], WhyLeftOut::ForTests), (splits[3], WhyLeftOut::NoSplit)];
        assert_eq!(found.left_out, left_out.map(|(name, why)| LeftOut::new(name.to_owned(), why)));
        assert_eq!(chosen("a/b", &["LICENSE.txt", "book.txt", "notes.md"]).unwrap(), ["book.txt"]);
        assert_eq!(chosen("a/b", &["test.txt"]).unwrap(), [""; 0]);
    }

    #[test]
    fn hub_dataset_with_several_folders_is_rejected_listing_them() {
        let paths = ["de/train.parquet", "en/1/train.parquet", "en/2/train.parquet"];
        let error = chosen("a/b", &paths).unwrap_err();
        assert!(error.contains("in 3 folders\nhint: ") && error.contains("`a/b:de`, `a/b:en/1`"), "{error}");
        assert_eq!(chosen("a/b:en", &paths).unwrap(), ["en/1/train.parquet", "en/2/train.parquet"]);
        let error = chosen("a/b:fr", &paths).unwrap_err();
        assert!(error.contains("no Parquet, JSON, CSV or text files in `fr/`; it has: `de/train.parquet`"), "{error}");
    }
}
