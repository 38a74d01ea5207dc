//! The contents of the cache: models that can be opened, and leftovers of others.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    Hub, HubFile, HubModel, MAIN, ModelPart, Repo, RepoKind,
    cache::{RepoCache, io_error},
    repository_files,
};
use crate::{
    error::Result,
    weights::repository::{self, ModelFiles, RepositoryFile},
};

/// A model in the cache, or other files of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Its name, as `--model` takes it.
    pub name: String,
    /// The commit; empty for [`CachedFormat::Leftover`].
    pub commit: String,
    /// The format.
    pub format: CachedFormat,
    /// The number of files.
    pub n_files: usize,
    /// Their total size.
    pub n_bytes: u64,
    /// Whether all files of the model are in the cache.
    pub is_whole: bool,
    /// When one of the files was last read, if the system reports it.
    pub last_used: Option<SystemTime>,
    /// The model dir or GGUF file, or the folder of the repository.
    pub path: PathBuf,
}

/// The kind of an entry of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedFormat {
    /// A model dir, or a part of one.
    ModelDir,
    /// A GGUF file.
    Gguf,
    /// Files of a repository without a model, such as a tokenizer alone.
    Other,
    /// Downloads that were not finished, and contents that no revision has.
    Leftover,
}

/// The models in the cache at `cache`, by name.
///
/// # Errors
/// The folder cannot be read. That it does not exist is no error.
pub fn models(cache: &Path) -> Result<Vec<CachedModel>> {
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("read", cache)(error)),
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("models--")).map(|id| id.replacen("--", "/", 1));
        let Some(repo) = id.and_then(|id| Repo::parse(RepoKind::Model, &id)) else { continue };
        found.extend(models_of(cache, &repo));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn models_of(cache: &Path, repo: &Repo) -> Vec<CachedModel> {
    let folder = RepoCache::new(cache, repo);
    let mut found = Vec::new();
    for commit in folder.commits() {
        let revisions = folder.revisions(&commit);
        let is_main = revisions.iter().any(|revision| revision == MAIN);
        let revision = if is_main { MAIN } else { revisions.first().map_or(commit.as_str(), String::as_str) };
        let repo = Repo { revision: revision.to_owned(), ..repo.clone() };
        found.extend(models_at(cache, &repo, &commit));
    }
    let unused = folder.unused_blobs();
    if !unused.is_empty() {
        found.push(CachedModel {
            name: repo.to_string(),
            commit: String::new(),
            format: CachedFormat::Leftover,
            n_files: unused.len(),
            n_bytes: unused.iter().map(|blob| blob.n_bytes).sum(),
            is_whole: false,
            last_used: last_used(unused.iter().map(|blob| blob.path.as_path())),
            path: folder.dir().to_owned(),
        });
    }
    found
}

/// The models of a snapshot: its model dir, and each GGUF file.
fn models_at(cache: &Path, repo: &Repo, commit: &str) -> Vec<CachedModel> {
    let folder = RepoCache::new(cache, repo);
    let dir = folder.snapshot_dir(commit);
    let files = folder.found_files(commit);
    let as_found = repository_files(&files);
    // The files of the repository, if the hub was asked for them: the cache may have fewer.
    let listed = folder.listing(commit).unwrap_or_default();
    let as_listed = repository_files(&listed);
    let choices = repository::choices(&as_found);
    let offline = Hub { client: None, cache: cache.to_owned() };
    let entry = |choice: Option<&str>, format, of_it: Vec<&HubFile>, path| {
        let model = HubModel::of(repo, choice);
        CachedModel {
            name: model.to_string(),
            commit: commit.to_owned(),
            format,
            n_files: of_it.len(),
            n_bytes: of_it.iter().map(|file| file.n_bytes).sum(),
            is_whole: format != CachedFormat::Other
                && matches!(model.in_cache(&offline, ModelPart::Whole), Ok(Some(_))),
            last_used: last_used(
                of_it.iter().map(|file| dir.join(&file.path)).collect::<Vec<_>>().iter().map(PathBuf::as_path),
            ),
            path,
        }
    };
    let mut found = Vec::new();
    let rest: Vec<_> =
        files.iter().filter(|file| !choices.iter().any(|(_, parts)| parts.contains(&file.path.as_str()))).collect();
    let is_dir =
        |files: &[RepositoryFile<'_>]| matches!(repository::choose("", files, None), Ok(ModelFiles::Dir { .. }));
    if is_dir(&as_found) || is_dir(&as_listed) && !rest.is_empty() {
        found.push(entry(None, CachedFormat::ModelDir, rest, dir.clone()));
    } else if choices.is_empty() && !rest.is_empty() {
        found.push(entry(None, CachedFormat::Other, rest, dir.clone()));
    }
    for (name, parts) in &choices {
        let of_it = files.iter().filter(|file| parts.contains(&file.path.as_str())).collect();
        let first = parts.first().copied().unwrap_or_default();
        let is_clear = repository::choose("", &as_listed, Some(name)).is_ok() || as_listed.is_empty();
        found.push(entry(Some(if is_clear { name } else { first }), CachedFormat::Gguf, of_it, dir.join(first)));
    }
    found
}

fn last_used<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<SystemTime> {
    let times = paths.filter_map(|path| {
        let metadata = fs::metadata(path).ok()?;
        metadata.accessed().or_else(|_| metadata.modified()).ok()
    });
    times.max()
}
