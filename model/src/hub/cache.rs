//! The cache on disk, in the layout of `huggingface_hub`:
//!
//! - `datasets--org--name/refs/main`: the commit of a revision
//! - `datasets--org--name/blobs/DIGITS`: contents under their checksums; `.incomplete` while they are downloaded
//! - `datasets--org--name/snapshots/COMMIT/PATH`: links to blobs (copies where the system has no links)
//! - `.locks/datasets--org--name/DIGITS.lock`: locked while a file is downloaded
//! - `datasets--org--name/hearth/COMMIT.json`: the files of a commit. Hearth's own: without it, nobody could know offline
//!   whether a snapshot is whole.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::{Checksum, HubFile, Repo, hub_error, is_commit};
use crate::{
    error::{Error, Result},
    regular_file,
};

/// The folders of one repository.
#[derive(Debug)]
pub(super) struct RepoCache {
    dir: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, repo: &Repo) -> Self {
        let name = format!("{}--{}", repo.kind.plural(), repo.id.replace('/', "--"));
        Self { dir: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    /// The commit of a revision, as far as known.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = regular_file::read_to_string(&self.dir.join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// The files of a commit, if they were listed before.
    pub(super) fn listing(&self, commit: &str) -> Option<Vec<HubFile>> {
        serde_json::from_slice(&regular_file::read(&self.listing_path(commit)).ok()?).ok()
    }

    fn listing_path(&self, commit: &str) -> PathBuf {
        self.dir.join("hearth").join(format!("{commit}.json"))
    }

    /// Records the commit of a revision and its files.
    pub(super) fn keep_listing(&self, revision: &str, commit: &str, files: &[HubFile]) -> Result<()> {
        let listing = serde_json::to_vec(files).map_err(|error| hub_error(commit, &error.to_string(), ""))?;
        replace(&self.listing_path(commit), &listing)?;
        if !is_commit(revision) {
            replace(&self.dir.join("refs").join(revision), commit.as_bytes())?;
        }
        Ok(())
    }

    /// The file in the snapshot, if it is there or its contents are.
    pub(super) fn find(&self, commit: &str, file: &HubFile) -> Result<Option<PathBuf>> {
        let path = self.snapshot_path(commit, file);
        let is_whole =
            |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == file.n_bytes);
        if is_whole(&path) {
            return Ok(Some(path));
        }
        if is_whole(&self.blob(file)) { self.link(commit, file).map(Some) } else { Ok(None) }
    }

    /// Waits until no other process downloads `file`, and keeps others waiting until the result is dropped.
    pub(super) fn lock(&self, file: &HubFile) -> Result<File> {
        let path = self.locks.join(format!("{}.lock", file.checksum.digits()));
        create_parent(&path)?;
        let lock = File::create(&path).map_err(io_error("create", &path))?;
        lock.lock().map_err(io_error("lock", &path))?;
        Ok(lock)
    }

    /// Where the contents of `file` are collected.
    pub(super) fn incomplete(&self, file: &HubFile) -> PathBuf {
        self.dir.join("blobs").join(format!("{}.incomplete", file.checksum.digits()))
    }

    /// Compares the collected contents with the stated size and checksum, and removes them if they differ.
    pub(super) fn verify(&self, name: &str, file: &HubFile) -> Result<()> {
        let path = self.incomplete(file);
        let digits = digits_of(&path, file).map_err(io_error("read", &path))?;
        if digits == file.checksum.digits() {
            return Ok(());
        }
        fs::remove_file(&path).map_err(io_error("remove", &path))?;
        let what = format!("the download has the checksum {digits}, but the hub states {}", file.checksum.digits());
        Err(hub_error(name, &what, "the download was damaged and is removed; try again"))
    }

    /// Moves verified contents to their place, and adds the file to the snapshot.
    pub(super) fn place(&self, commit: &str, file: &HubFile) -> Result<PathBuf> {
        let (incomplete, blob) = (self.incomplete(file), self.blob(file));
        let contents = File::open(&incomplete).map_err(io_error("open", &incomplete))?;
        contents.sync_all().map_err(io_error("write", &incomplete))?;
        fs::rename(&incomplete, &blob).map_err(io_error("create", &blob))?;
        self.link(commit, file)
    }

    fn blob(&self, file: &HubFile) -> PathBuf {
        self.dir.join("blobs").join(file.checksum.digits())
    }

    fn snapshot_path(&self, commit: &str, file: &HubFile) -> PathBuf {
        self.dir.join("snapshots").join(commit).join(&file.path)
    }

    /// Adds the file to the snapshot; its contents are there. A link that was left from contents that are gone is
    /// replaced.
    fn link(&self, commit: &str, file: &HubFile) -> Result<PathBuf> {
        let path = self.snapshot_path(commit, file);
        create_parent(&path)?;
        let temporary = temporary_beside(&path);
        #[cfg(unix)]
        let linked = {
            let up = "../".repeat(2 + file.path.matches('/').count());
            std::os::unix::fs::symlink(format!("{up}blobs/{}", file.checksum.digits()), &temporary)
        };
        #[cfg(not(unix))]
        let linked =
            fs::hard_link(self.blob(file), &temporary).or_else(|_| fs::copy(self.blob(file), &temporary).map(drop));
        linked.and_then(|()| fs::rename(&temporary, &path)).map_err(io_error("create", &path))?;
        Ok(path)
    }
}

/// The checksum of the file at `path`, of the kind that `file` states.
fn digits_of(path: &Path, file: &HubFile) -> io::Result<String> {
    let mut contents = File::open(path)?;
    let mut context = match file.checksum {
        Checksum::Sha256(_) => Context::new(&SHA256),
        Checksum::Git(_) => {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            context.update(format!("blob {}\0", contents.metadata()?.len()).as_bytes());
            context
        }
    };
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = contents.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        context.update(&buffer[..n]);
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a small file as a whole.
fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    create_parent(path)?;
    let temporary = temporary_beside(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(contents)?;
        fs::rename(&temporary, path)
    };
    write().map_err(|reason| {
        let _ = fs::remove_file(&temporary);
        io_error("write", path)(reason)
    })
}

/// A hidden name in the folder of `path` that no other thread or process uses.
fn temporary_beside(path: &Path) -> PathBuf {
    static N_NAMES: AtomicU64 = AtomicU64::new(0);
    let number = N_NAMES.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".hearth-{}-{number}.partial", std::process::id()))
}

pub(super) fn create_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent).map_err(io_error("create", parent))
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |reason| Error::Io { action, path: path.to_owned(), reason }
}
