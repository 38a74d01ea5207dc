//! The cache on disk, in the layout of `huggingface_hub`:
//!
//! - `datasets--org--name/refs/main`: the commit of a revision
//! - `datasets--org--name/blobs/DIGITS`: contents under their checksums; `.incomplete` while they are downloaded
//! - `datasets--org--name/snapshots/COMMIT/PATH`: links to blobs (copies where the system has no links)
//! - `.locks/datasets--org--name/DIGITS.lock`: locked while a file is downloaded
//! - `datasets--org--name/hearth/COMMIT.json`: the files of a commit. Only Hearth writes it: without it, nothing shows
//!   offline whether a snapshot is complete.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::{Checksum, HubFile, NO_ROOM_HINT, Repo, hub_error, is_commit};
use crate::{
    error::{Error, Result},
    files::{digest::read_chunks, partial_file::PartialFile, regular_file},
};

/// Suffix of contents that are being downloaded.
const INCOMPLETE: &str = ".incomplete";

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

    /// The files in a snapshot's folder, whoever has put them there; ordered by path.
    pub(super) fn found_files(&self, commit: &str) -> Vec<HubFile> {
        let dir = self.snapshot_dir(commit);
        let mut files = Vec::new();
        for path in inner_files(&dir) {
            let Ok(metadata) = fs::metadata(dir.join(&path)) else { continue };
            // The name of the contents, if the file is a link to them.
            let digits = linked_blob(&dir.join(&path)).unwrap_or_default();
            let checksum = if digits.len() == 64 { Checksum::Sha256(digits) } else { Checksum::Git(digits) };
            files.push(HubFile { path, n_bytes: metadata.len(), checksum });
        }
        files
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

    /// The path of `file` in the snapshot, if the cache has its contents. Contents that are missing from the snapshot
    /// are linked into it.
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
        let digits = file.checksum.digits();
        let lock = self.open_lock(digits)?;
        lock.lock().map_err(io_error("lock", &self.lock_path(digits)))?;
        Ok(lock)
    }

    /// The file that is locked while the contents `digits` are downloaded.
    pub(super) fn open_lock(&self, digits: &str) -> Result<File> {
        let path = self.lock_path(digits);
        create_parent(&path)?;
        File::create(&path).map_err(io_error("create", &path))
    }

    pub(super) fn lock_path(&self, digits: &str) -> PathBuf {
        self.locks.join(format!("{digits}.lock"))
    }

    /// Where the contents of `file` are collected.
    pub(super) fn incomplete(&self, file: &HubFile) -> PathBuf {
        self.dir.join("blobs").join(format!("{}{INCOMPLETE}", file.checksum.digits()))
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

    /// Bytes of `file` that an earlier download has left.
    pub(super) fn collected_bytes(&self, file: &HubFile) -> u64 {
        fs::metadata(self.incomplete(file)).map_or(0, |found| found.len())
    }

    fn blob(&self, file: &HubFile) -> PathBuf {
        self.dir.join("blobs").join(file.checksum.digits())
    }

    pub(super) fn snapshot_dir(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    fn snapshot_path(&self, commit: &str, file: &HubFile) -> PathBuf {
        self.snapshot_dir(commit).join(&file.path)
    }

    /// Adds the file, whose contents are in the cache, to the snapshot. Replaces a dangling link.
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

/// A file in the folder of contents.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    pub(super) path: PathBuf,
    pub(super) n_bytes: u64,
}

impl Blob {
    /// The checksum that names it, also while it is incomplete.
    pub(super) fn digits(&self) -> &str {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_suffix(INCOMPLETE).unwrap_or(name)
    }
}

/// The contents of a repository in the cache, whichever program put them there.
impl RepoCache {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The commits that have a folder.
    pub(super) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join("snapshots")).into_iter().flatten().flatten();
        let mut commits: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_commit(name)).collect();
        commits.sort();
        commits
    }

    /// The branches and tags that are at `commit`.
    pub(super) fn revisions(&self, commit: &str) -> Vec<String> {
        let mut revisions = inner_files(&self.dir.join("refs"));
        revisions.retain(|revision| self.commit(revision).is_some_and(|found| found == commit));
        revisions
    }

    /// The files that name `commit` or list its files.
    pub(super) fn records(&self, commit: &str) -> Vec<PathBuf> {
        let refs = self.revisions(commit).into_iter().map(|revision| self.dir.join("refs").join(revision));
        refs.chain([self.listing_path(commit)]).collect()
    }

    /// All contents, including incomplete ones.
    pub(super) fn blobs(&self) -> Vec<Blob> {
        let blobs = fs::read_dir(self.dir.join("blobs")).into_iter().flatten().flatten();
        let blobs = blobs.filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some(Blob { path: entry.path(), n_bytes: metadata.len() })
        });
        blobs.collect()
    }

    /// The contents that no snapshot uses.
    pub(super) fn unused_blobs(&self) -> Vec<Blob> {
        let used = self.used_blobs(&|_, _| true);
        self.blobs().into_iter().filter(|blob| !used.contains(blob.digits())).collect()
    }

    /// The checksums of the contents of the files for which `counts`, called with commit and path, returns true.
    pub(super) fn used_blobs(&self, counts: &dyn Fn(&str, &str) -> bool) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for commit in self.commits() {
            let (dir, listing) = (self.snapshot_dir(&commit), self.listing(&commit).unwrap_or_default());
            for path in inner_files(&dir).into_iter().filter(|path| counts(&commit, path)) {
                // Where files are not links, the list of the commit names the contents.
                let listed = || Some(listing.iter().find(|file| file.path == path)?.checksum.digits().to_owned());
                used.extend(linked_blob(&dir.join(&path)).or_else(listed));
            }
        }
        used
    }

    /// Removes everything.
    pub(super) fn remove(&self) -> Result<()> {
        // The folder may be a link to another disk.
        let real = self.dir.canonicalize().map_err(io_error("read", &self.dir))?;
        fs::remove_dir_all(&real).map_err(io_error("remove", &real))?;
        if real != self.dir && self.dir.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            fs::remove_file(&self.dir).map_err(io_error("remove", &self.dir))?;
        }
        Ok(())
    }
}

/// The checksum of the file at `path`, of the kind that `file` states.
fn digits_of(path: &Path, file: &HubFile) -> io::Result<String> {
    let contents = File::open(path)?;
    let mut context = match file.checksum {
        Checksum::Sha256(_) => Context::new(&SHA256),
        Checksum::Git(_) => {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            context.update(format!("blob {}\0", contents.metadata()?.len()).as_bytes());
            context
        }
    };
    read_chunks(contents, |chunk| context.update(chunk))?;
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Deeper folders of a snapshot are not looked into.
const MAX_DEPTH: usize = 8;

/// The files in `dir` and its folders, by their paths there with `/`; ordered. Links to files count, links to folders are not
/// followed.
pub(super) fn inner_files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![(dir.to_owned(), String::new(), 0)];
    while let Some((dir, prefix, depth)) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (Ok(kind), Some(name)) = (entry.file_type(), entry.file_name().to_str().map(str::to_owned)) else {
                continue;
            };
            let path = format!("{prefix}{name}");
            if kind.is_dir() && depth < MAX_DEPTH {
                pending.push((entry.path(), format!("{path}/"), depth + 1));
            } else if !kind.is_dir() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The name of the contents that the link at `path` points to; `None` if it is not a link.
pub(super) fn linked_blob(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// Free bytes on the disk of `path`, which need not exist yet; `None` if the system does not report it.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let existing = path.ancestors().find(|path| path.exists())?;
        let found = rustix::fs::statvfs(existing).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        None
    }
}

/// Writes a small file as a whole.
fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    create_parent(path)?;
    let write = || {
        let mut file = PartialFile::create(path)?;
        file.write_all(contents)?;
        file.finish()
    };
    write().map_err(io_error("write", path))
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
    move |reason| match reason.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let what = format!("there is no room left: cannot {action} it: {reason}");
            hub_error(&path.display().to_string(), &what, NO_ROOM_HINT)
        }
        _ => Error::io(action, path)(reason),
    }
}
