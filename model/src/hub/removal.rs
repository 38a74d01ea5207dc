//! Removes models from the cache, with the contents that nothing else in the cache uses.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use super::{
    HubModel,
    cache::{Blob, RepoCache, io_error},
    hub_error, inventory, repository_files,
};
use crate::{
    error::{Error, Result},
    weights::repository::{self, ModelFiles, NoModel},
};

/// A planned removal.
#[derive(Debug)]
pub struct Removal {
    folder: RepoCache,
    /// The revisions and lists of files of a snapshot that is removed whole.
    records: Vec<PathBuf>,
    /// The files in the snapshot.
    files: Vec<PathBuf>,
    /// The folder of a snapshot that is removed whole.
    snapshot: Option<PathBuf>,
    /// The contents that nothing else uses.
    blobs: Vec<Blob>,
    /// Whether the whole folder of the repository is removed.
    is_all: bool,
    /// Locked until all is removed, so that nobody downloads these contents meanwhile.
    _locks: Vec<File>,
}

impl Removal {
    /// Finds out what belongs to `model` alone in the cache at `cache`; removes nothing.
    ///
    /// # Errors
    /// The cache does not have the model, or another process is downloading files of it.
    pub fn plan(cache: &Path, model: &HubModel) -> Result<Removal> {
        let folder = RepoCache::new(cache, model.repo());
        let commits = folder.commits();
        let Some(commit) = folder.commit(&model.repo().revision).filter(|commit| commits.contains(commit)) else {
            // Downloads that were not finished have no snapshot.
            let unused = folder.unused_blobs();
            if commits.is_empty() && !unused.is_empty() && model.choice().is_none() {
                return Self::of_all(folder);
            }
            return Err(not_there(cache, model));
        };
        let found = folder.found_files(&commit);
        let of_it: BTreeSet<String> = match model.choice() {
            None => found.iter().map(|file| file.path.clone()).collect(),
            Some(choice) => {
                let name = model.repo().to_string();
                match repository::choose(&name, &repository_files(&found), Some(choice)) {
                    Ok(ModelFiles::Gguf { parts }) => parts.into_iter().collect(),
                    Ok(ModelFiles::Dir { .. }) => return Err(not_there(cache, model)),
                    Err(NoModel { what, hint }) => {
                        let what = format!("of this revision, the cache does not have it: {what}");
                        return Err(hub_error(&model.to_string(), &what, &hint));
                    }
                }
            }
        };
        let is_whole_snapshot = of_it.len() == found.len();
        if is_whole_snapshot && commits.len() == 1 {
            return Self::of_all(folder);
        }
        let dir = folder.snapshot_dir(&commit);
        let (used, mut freed) = (folder.used_blobs(&|at, path| at != commit || !of_it.contains(path)), Vec::new());
        let own = folder.used_blobs(&|at, path| at == commit && of_it.contains(path));
        let mut locks = Vec::new();
        for blob in folder.blobs() {
            let digits = blob.digits();
            if used.contains(digits) {
                continue;
            }
            match folder.try_lock(digits)? {
                Some(lock) => {
                    locks.push(lock);
                    freed.push(blob);
                }
                // Another process is downloading this blob for another revision: it is kept.
                None if !own.contains(digits) => {}
                None => return Err(busy(model)),
            }
        }
        Ok(Removal {
            records: if is_whole_snapshot { folder.records(&commit) } else { Vec::new() },
            files: of_it.iter().map(|path| dir.join(path)).collect(),
            snapshot: is_whole_snapshot.then_some(dir),
            blobs: freed,
            is_all: false,
            folder,
            _locks: locks,
        })
    }

    fn of_all(folder: RepoCache) -> Result<Removal> {
        let mut locks = Vec::new();
        let blobs = folder.blobs();
        for blob in &blobs {
            match folder.try_lock(blob.digits())? {
                Some(lock) => locks.push(lock),
                None => return Err(hub_error(&folder.dir().display().to_string(), BUSY, BUSY_HINT)),
            }
        }
        let commits = folder.commits();
        let files = commits.iter().flat_map(|commit| {
            let dir = folder.snapshot_dir(commit);
            folder.found_files(commit).into_iter().map(move |file| dir.join(file.path))
        });
        let files = files.collect();
        Ok(Removal { files, blobs, records: Vec::new(), snapshot: None, is_all: true, folder, _locks: locks })
    }

    /// The number of files that the model loses.
    pub fn n_files(&self) -> usize {
        self.files.len()
    }

    /// Bytes on the disk that become free.
    pub fn freed_bytes(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.n_bytes).sum()
    }

    /// Carries out the plan. The names of the files are removed before their contents, so that an interrupted removal
    /// leaves no model that looks complete.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn run(self) -> Result<()> {
        if self.is_all {
            return self.folder.remove();
        }
        self.records.iter().chain(&self.files).try_for_each(|path| remove_file(path))?;
        if let Some(dir) = &self.snapshot {
            fs::remove_dir_all(dir).map_err(io_error("remove", dir))?;
        }
        self.blobs.iter().try_for_each(|blob| remove_file(&blob.path))
    }
}

const BUSY: &str = "another process is downloading files of this model";
const BUSY_HINT: &str = "wait until it has ended, or end it";

fn busy(model: &HubModel) -> Error {
    hub_error(&model.to_string(), BUSY, BUSY_HINT)
}

fn not_there(cache: &Path, model: &HubModel) -> Error {
    let id = model.repo().id();
    let names: Vec<String> = inventory::models(cache)
        .unwrap_or_default()
        .into_iter()
        .filter(|found| {
            let rest = found.name.strip_prefix(id);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['@', ':']))
        })
        .map(|found| format!("`{}`", found.name))
        .collect();
    let hint = match names.as_slice() {
        [] => "`hearth list` shows what is there".to_owned(),
        names => format!("it has {}", names.join(", ")),
    };
    hub_error(&model.to_string(), &format!("the cache `{}` does not have it", cache.display()), &hint)
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(io_error("remove", path)),
    }
}

impl RepoCache {
    /// Locks the contents `digits` if no process downloads them.
    fn try_lock(&self, digits: &str) -> Result<Option<File>> {
        let path = self.lock_path(digits);
        let lock = self.open_lock(digits)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
        }
    }
}
