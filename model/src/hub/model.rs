//! A model of the hub by name: the choice of its files, and its path in the cache.

use std::{
    fmt,
    fs::{File, FileTimes},
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    CachedSnapshot, Download, Hub, HubFile, Repo, RepoKind, Snapshot, hub_error, is_inner_path, repository_files,
};
use crate::{
    error::Result,
    weights::repository::{self, ModelFiles, NoModel},
};

/// `org/name`, `org/name@revision`, each also with `:FILE` or `:QUANTIZATION` for one of several GGUF files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubModel {
    pub(super) repo: Repo,
    choice: Option<String>,
}

/// The files of a model that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// All.
    Whole,
    /// All files except configuration and weights, such as the tokenizer's. All files if the model is a GGUF file.
    BesideWeights,
}

/// A model that was downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledModel {
    /// The model dir or GGUF file in the cache.
    pub path: PathBuf,
    /// The commit.
    pub commit: String,
    /// The number of files.
    pub n_files: usize,
    /// Their total size.
    pub n_bytes: u64,
}

impl HubModel {
    /// Parses the name of a model; `None` if `text` is not one.
    pub fn parse(text: &str) -> Option<HubModel> {
        let (id, choice) = text.split_once(':').map_or((text, None), |(id, choice)| (id, Some(choice)));
        let is_valid = choice.is_none_or(|choice| is_inner_path(choice) && !choice.contains(char::is_control));
        let repo = is_valid.then(|| Repo::parse(RepoKind::Model, id)).flatten()?;
        Some(HubModel { repo, choice: choice.map(str::to_owned) })
    }

    /// The model of a repository that `choice` chooses.
    pub(super) fn of(repo: &Repo, choice: Option<&str>) -> HubModel {
        HubModel { repo: repo.clone(), choice: choice.map(str::to_owned) }
    }

    /// The repository.
    pub fn repo(&self) -> &Repo {
        &self.repo
    }

    /// The GGUF file or quantization, if the name has one.
    pub fn choice(&self) -> Option<&str> {
        self.choice.as_deref()
    }

    /// The path of the model in the cache. It is downloaded if the cache does not have all of it; a complete model is
    /// used without asking the hub.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn open(&self, hub: &Hub, part: ModelPart, progress: &mut dyn FnMut(Download)) -> Result<PathBuf> {
        let path = match self.in_cache(hub, part)? {
            Some(path) => path,
            None => self.pull(hub, part, progress)?.path,
        };
        mark_used(&path);
        Ok(path)
    }

    /// Downloads the files of the model that the cache lacks, at the newest commit of its revision.
    ///
    /// # Errors
    /// The hub does not have the model, denies it or does not answer; the repository has no model, or several and the
    /// name does not say which; the disk is full; or, offline, it was not downloaded before.
    pub fn pull(&self, hub: &Hub, part: ModelPart, progress: &mut dyn FnMut(Download)) -> Result<PulledModel> {
        let snapshot = hub.snapshot(&self.repo)?;
        let files = self.choose(&snapshot, part).map_err(|NoModel { mut what, mut hint }| {
            if hub.is_offline() {
                let off = "downloads are disabled (`HF_HUB_OFFLINE`): only what was downloaded before is known";
                match what.strip_prefix("the repository has neither") {
                    Some(rest) => {
                        (what, hint) = (format!("what was downloaded of it has neither{rest}"), off.to_owned())
                    }
                    None => hint += &format!("\nhint: {off}"),
                }
            }
            hub_error(&self.repo.to_string(), &what, &hint)
        })?;
        let (mut paths, index) = match &files {
            ModelFiles::Dir { paths, index } => (paths.clone(), index.as_ref()),
            ModelFiles::Gguf { parts } => (parts.clone(), None),
        };
        if let Some(index) = index {
            let index_path = hub.fetch(&snapshot, self.file(&snapshot, index)?, &mut |_| {})?;
            paths.push(index.clone());
            paths.extend(repository::shards(&index_path)?);
        }
        let wanted = paths.iter().map(|path| self.file(&snapshot, path)).collect::<Result<Vec<_>>>()?;
        let places = hub.fetch_all(&snapshot, &wanted, &self.to_string(), progress)?;
        let path = match (files, places.into_iter().next()) {
            (ModelFiles::Gguf { .. }, Some(first)) => first,
            _ => hub.snapshot_dir(&snapshot),
        };
        let n_bytes = wanted.iter().map(|file| file.n_bytes).sum();
        Ok(PulledModel { path, n_files: wanted.len(), n_bytes, commit: snapshot.commit })
    }

    /// The path of the model, if it is in the cache whole.
    pub(super) fn in_cache(&self, hub: &Hub, part: ModelPart) -> Result<Option<PathBuf>> {
        let Some(CachedSnapshot { snapshot, is_listed }) = hub.known(&self.repo) else { return Ok(None) };
        let Ok(files) = self.choose(&snapshot, part) else { return Ok(None) };
        let find = |path: &str| match snapshot.file(path) {
            Some(file) => hub.find(&snapshot, file),
            None => Ok(None),
        };
        match files {
            ModelFiles::Gguf { parts } => {
                let mut places = Vec::new();
                for part in &parts {
                    let Some(place) = find(part)? else { return Ok(None) };
                    places.push(place);
                }
                Ok(places.into_iter().next())
            }
            ModelFiles::Dir { mut paths, index } => {
                // Another program may have downloaded the weights alone.
                if !is_listed && !repository::has_tokenizer(&paths) {
                    return Ok(None);
                }
                if let Some(index) = index {
                    let Some(place) = find(&index)? else { return Ok(None) };
                    paths.extend(repository::shards(&place)?);
                }
                for path in &paths {
                    if find(path)?.is_none() {
                        return Ok(None);
                    }
                }
                Ok(Some(hub.snapshot_dir(&snapshot)))
            }
        }
    }

    /// The files of the model in a snapshot.
    pub(super) fn choose(&self, snapshot: &Snapshot, part: ModelPart) -> Result<ModelFiles, NoModel> {
        let files = repository_files(&snapshot.files);
        let chosen = repository::choose(&self.repo.to_string(), &files, self.choice())?;
        Ok(match (chosen, part) {
            (ModelFiles::Dir { .. }, ModelPart::BesideWeights) => {
                ModelFiles::Dir { paths: repository::beside_weights(&files), index: None }
            }
            (chosen, _) => chosen,
        })
    }

    pub(super) fn file<'a>(&self, snapshot: &'a Snapshot, path: &str) -> Result<&'a HubFile> {
        snapshot.file(path).ok_or_else(|| {
            let what = format!("the index of its weights names `{path}`, which the repository does not have");
            hub_error(&self.repo.to_string(), &what, "the repository is incomplete: use another revision or model")
        })
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repo.fmt(f)?;
        self.choice.as_ref().map_or(Ok(()), |choice| write!(f, ":{choice}"))
    }
}

impl Snapshot {
    fn file(&self, path: &str) -> Option<&HubFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Sets the time of the last access, which `hearth list` shows and many systems do not keep. Not being allowed to is no
/// error.
fn mark_used(path: &Path) {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    if let Ok(file) = File::open(file) {
        let _ = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn hub_model_name_may_have_a_revision_and_a_file_choice() {
        for name in ["a/b", "a/b@v1", "a/b:Q4_K_M", "a/b@refs/pr/1:dir/m.gguf"] {
            assert_eq!(HubModel::parse(name).unwrap().to_string(), name);
        }
        for wrong in ["a", "a/b:", "a/b:../x", "a/b:/x", "a/b:x:y", "a/b/c:x", "./a", "a/b:\u{1b}"] {
            assert_eq!(HubModel::parse(wrong), None, "{wrong}");
        }
    }
}
