//! Replaces a model dir atomically: readers find the old model or the new one, never files of both.
//!
//! The new folder is written beside the old one, on the same file system, and then takes its place. For the model dir
//! `DIR`:
//!
//! 1. `DIR.hearth-partial` is created and locked (`flock`). Every file in it is flushed to disk when it is written.
//! 2. Files of `DIR` that are not part of a model (such as a `README.md`) are hard-linked into it, or copied if the
//!    file system has no hard links. Files of the old model (see [`is_model_file`]) are not. If both folders have a
//!    file, the new one counts.
//! 3. Its folders are flushed. Then it replaces `DIR`:
//!    - on Linux the two are exchanged (`renameat2` with `RENAME_EXCHANGE`), which is one step. `DIR.hearth-partial` is
//!      the old folder then.
//!    - on other systems, and on file systems that cannot exchange, `DIR` is renamed to `DIR.hearth-old`, then
//!      `DIR.hearth-partial` to `DIR`, then `DIR.hearth-old` to `DIR.hearth-partial`.
//! 4. The parent folder is flushed, and the old folder removed.
//!
//! A process can crash between any two of these steps. Then:
//!
//! - If `DIR` exists, it is complete. `DIR.hearth-partial` and `DIR.hearth-old` are leftovers; the next save removes
//!   them.
//! - If `DIR` is missing and `DIR.hearth-old` exists, the swap was interrupted. `DIR.hearth-old` is always a complete
//!   model: the next process that opens or saves `DIR` renames it back ([`mend`]).
//!
//! The lock on `DIR.hearth-partial` shows that its writer is running: a second writer is rejected. The parent folder is
//! locked during the replacement (steps 3 and 4) and while `DIR.hearth-partial` is created: a reader that finds `DIR`
//! missing waits for that lock. Locks end with their process. If folders cannot be locked (on systems other than Unix,
//! or some network file systems), two processes must not save to one folder at the same time.
//!
//! A reader opens a model dir file by file, and the folder may be replaced meanwhile: [`read_whole`] then reads again.
//!
//! Some folders cannot be replaced: mount points, and the working directory, since processes in it would be left in a
//! deleted folder. They are rejected before anything is written. A first model can be saved to such a folder if it is
//! empty ([`StagedDir::creating`]): it is written to `DIR/.hearth-partial` and its files moved up, `config.json` last.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

pub(super) use self::disk::NewFile;
use super::file_names::{CONFIG_FILE, is_model_file};
use crate::{
    error::{Error, Result},
    files::partial_file::{PARTIAL, beside, is_at, parent_of, resolve},
};

mod disk;

/// Suffix of the old folder during a swap without exchange.
const ASIDE: &str = ".hearth-old";

/// Number of attempts to read a model dir that is replaced during each of them.
const MAX_READS: usize = 10;

/// A folder that is being written and then replaces a model dir atomically. Dropping it before [`commit`](Self::commit)
/// removes it and leaves the model dir unchanged.
#[derive(Debug)]
pub struct StagedDir {
    /// The folder to replace, with links resolved.
    target: PathBuf,
    path: PathBuf,
    mode: Mode,
    is_placed: bool,
    /// Parent folders that were created, the deepest first.
    new_parents: Vec<PathBuf>,
    _lock: DirLock,
}

/// How the folder gets to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Written next to the target, which it replaces.
    Replace,
    /// Written next to the target, which is missing or empty.
    Create,
    /// Written inside the empty target.
    Fill,
}

impl StagedDir {
    /// A new folder that will replace `dir`, which may be missing or a link to a folder.
    ///
    /// # Errors
    /// [`Error::File`] if `dir` is not a folder or cannot be replaced, or if another process is writing it;
    /// [`Error::Io`] if the new folder cannot be created.
    pub fn replacing(dir: &Path) -> Result<Self> {
        mend(dir)?;
        let target = resolve(dir).map_err(Error::io("write", dir))?;
        if !is_there(&target)? {
            return Self::beside(target, Mode::Replace);
        }
        check_replaceable(&target)?;
        match Self::beside(target.clone(), Mode::Replace) {
            Err(Error::Io { path, reason, .. }) if is_forbidden(&reason) => {
                Err(not_replaceable(&target, &target, format!("`{}` cannot be created: {reason}", path.display())))
            }
            staged => staged,
        }
    }

    /// Removes the leftovers of crashed writers next to the folders in `parent`; no other process may be writing there.
    /// A folder that they had moved aside is moved back.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder cannot be read or removed.
    pub fn remove_leftovers(parent: &Path) -> Result<()> {
        let entries = fs::read_dir(parent).map_err(Error::io("read", parent))?;
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if let Some(of) = name.strip_suffix(ASIDE) {
                mend(&parent.join(of))?;
            }
            if (name.ends_with(ASIDE) || name.ends_with(PARTIAL)) && path.is_dir() {
                fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Removes the staged folder `path` of this process before it exits, from another thread than the one that writes
    /// it. If the folder is being moved to its place, waits for that and removes nothing.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be removed.
    pub fn remove_unfinished(path: &Path) -> Result<()> {
        let _lock = DirLock::wait_for(parent_of(path));
        if !is_there(path)? {
            return Ok(());
        }
        disk::remove_dir_all(path).map_err(Error::io("remove", path))
    }

    /// A new folder that will become `dir`, which must be missing or empty. An empty folder that cannot be replaced (a
    /// mount point, the working directory) is filled.
    ///
    /// # Errors
    /// As [`replacing`](Self::replacing); [`Error::File`] if `dir` is not empty.
    pub fn creating(dir: &Path) -> Result<Self> {
        mend(dir)?;
        let target = resolve(dir).map_err(Error::io("write", dir))?;
        if !is_there(&target)? {
            return Self::beside(target, Mode::Create);
        }
        let has_leftover = require_empty(&target)?;
        if !has_leftover && check_replaceable(&target).is_ok() {
            match Self::beside(target.clone(), Mode::Create) {
                Err(Error::Io { reason, .. }) if is_forbidden(&reason) => {}
                staged => return staged,
            }
        }
        let path = target.join(PARTIAL);
        let lock = stage(&path)?;
        Ok(Self { target, path, mode: Mode::Fill, is_placed: false, new_parents: Vec::new(), _lock: lock })
    }

    fn beside(target: PathBuf, mode: Mode) -> Result<Self> {
        let path = beside(&target, PARTIAL);
        let parent = parent_of(&target);
        let missing = parent.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let new_parents: Vec<_> = missing.map(Path::to_owned).collect();
        disk::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let lock = stage(&path).inspect_err(|_| remove_empty(&new_parents))?;
        let staged = Self { target, path, mode, is_placed: false, new_parents, _lock: lock };
        staged.remove_aside()?;
        Ok(staged)
    }

    /// Removes the old folder of a swap that was interrupted before. It is always complete under its name.
    fn remove_aside(&self) -> Result<()> {
        let (aside, old) = (beside(&self.target, ASIDE), self.path.join("old"));
        if !aside.is_dir() {
            return Ok(());
        }
        disk::rename(&aside, &old).and_then(|()| disk::remove_dir_all(&old)).map_err(Error::io("remove", &aside))
    }

    /// The path of the staged folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file and flushes it to disk. `name` may contain folders, which are created.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        file.write_at(0, bytes)?;
        file.finish()
    }

    /// Creates a file in the folder.
    pub(super) fn create(&self, name: &str) -> Result<NewFile> {
        let path = self.path.join(name);
        let parent = parent_of(&path);
        if parent != self.path {
            disk::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }
        NewFile::create(path)
    }

    /// Moves the folder to its place.
    ///
    /// # Errors
    /// [`Error::Io`] with the file or folder that failed. The old folder is then complete, or the new one if the last
    /// step, flushing the parent folder, failed.
    pub fn commit(mut self) -> Result<()> {
        // Other processes must not treat the folders as leftovers before they are in place.
        let _lock = DirLock::wait_for(parent_of(&self.path));
        match self.mode {
            Mode::Replace if is_there(&self.target)? => self.replace(),
            Mode::Replace | Mode::Create => self.create_target(),
            Mode::Fill => self.move_up(),
        }
    }

    /// Renames the folder to a path that is missing or an empty folder; otherwise the system returns an error.
    fn create_target(&mut self) -> Result<()> {
        let target = &self.target;
        let io = Error::io("create", target);
        if is_there(target)? {
            disk::like(target, &self.path).map_err(io)?;
        }
        sync_tree(&self.path)?;
        disk::rename(&self.path, target).map_err(io)?;
        self.is_placed = true;
        disk::sync_dir(parent_of(target))
    }

    fn replace(&mut self) -> Result<()> {
        let target = &self.target;
        let io = Error::io("replace", target);
        keep_others(target, &self.path, Path::new(""))?;
        disk::like(target, &self.path).map_err(io)?;
        sync_tree(&self.path)?;
        // If the exchange failed for another reason, the renames fail too and report it.
        disk::exchange(&self.path, target).or_else(|_| self.swap_in_steps())?;
        self.is_placed = true;
        let old = &self.path;
        disk::sync_dir(parent_of(target))?;
        // Again, for files that were created in the old folder meanwhile. The new folder is in place, so later errors
        // do not mean that saving failed.
        let removed = keep_others(old, target, Path::new(""))
            .and_then(|()| disk::remove_dir_all(old).map_err(Error::io("remove", old)));
        if let Err(error) = removed {
            tracing::warn!("cannot remove the replaced model; the next save removes it: {error}");
        }
        Ok(())
    }

    /// The replacement for file systems without exchange.
    fn swap_in_steps(&self) -> Result<()> {
        let target = &self.target;
        let aside = beside(target, ASIDE);
        let io = Error::io("replace", target);
        disk::rename(target, &aside).map_err(io)?;
        if let Err(reason) = disk::rename(&self.path, target) {
            disk::rename(&aside, target).map_err(io)?;
            return Err(io(reason));
        }
        // To the path where it is removed. If this fails, the next save removes it.
        drop(disk::rename(&aside, &self.path));
        Ok(())
    }

    /// Moves the files to the parent folder, `config.json` last: without it, a folder is not a model dir.
    fn move_up(&mut self) -> Result<()> {
        sync_tree(&self.path)?;
        let mut names = entries(&self.path)?;
        names.sort_by_key(|name| name == CONFIG_FILE);
        for name in names {
            let place = self.target.join(&name);
            disk::rename(&self.path.join(&name), &place).map_err(Error::io("create", &place))?;
        }
        disk::sync_dir(&self.target)
    }
}

impl Drop for StagedDir {
    fn drop(&mut self) {
        if !self.is_placed {
            // An earlier error is more important.
            drop(disk::remove_dir_all(&self.path));
            remove_empty(&self.new_parents);
        }
    }
}

/// Renames the folder `dir` back after an interrupted swap: see the module. If the writer is running, waits for it to
/// finish.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be renamed.
pub fn mend(dir: &Path) -> Result<()> {
    let Ok(target) = resolve(dir) else { return Ok(()) };
    let aside = beside(&target, ASIDE);
    if is_there(&target)? || !aside.is_dir() {
        return Ok(());
    }
    let _lock = DirLock::wait_for(parent_of(&target));
    // Its writer or another reader may have been faster.
    if is_there(&target)? || !aside.is_dir() {
        return Ok(());
    }
    disk::rename(&aside, &target).map_err(Error::io("restore", &target))?;
    disk::sync_dir(parent_of(&target))
}

/// Runs `read` on the model dir `dir`, again if the folder is replaced meanwhile, so that all files belong to one
/// model.
///
/// # Errors
/// Any that `read` returns; [`Error::File`] if the folder is replaced during every attempt.
pub(super) fn read_whole<T>(dir: &Path, mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..MAX_READS {
        mend(dir)?;
        let (was_there, opened) = (dir.is_dir(), OpenDir::new(dir));
        let result = read();
        let is_same = match opened {
            Some(opened) => opened.is_at(dir),
            // It may just have been created.
            None => was_there == dir.is_dir(),
        };
        if is_same {
            return result;
        }
    }
    Err(Error::file(dir, format!("was replaced {MAX_READS} times while it was being read"))
        .with_hint("another process is saving models to it: try again"))
}

/// Creates the folder `path`, or empties a leftover, and locks it.
fn stage(path: &Path) -> Result<DirLock> {
    let io = Error::io("create", path);
    let _lock = DirLock::wait_for(parent_of(path));
    match disk::create_dir(path) {
        Err(reason) if reason.kind() != io::ErrorKind::AlreadyExists => return Err(io(reason)),
        _ => {}
    }
    // Links are not followed: their target does not belong to this save.
    if !fs::symlink_metadata(path).map_err(io)?.is_dir() {
        return Err(Error::file(path, "exists and is not a folder").with_hint("remove it"));
    }
    let Some(lock) = DirLock::try_on(path).map_err(io)? else {
        return Err(Error::file(path, "another process is writing it")
            .with_hint("wait for that process to end, or write to another folder"));
    };
    for name in entries(path)? {
        disk::remove(&path.join(name)).map_err(io)?;
    }
    Ok(lock)
}

/// Rejects folders that cannot be replaced.
fn check_replaceable(target: &Path) -> Result<()> {
    let refuse = |path: &Path, what: &str| Err(not_replaceable(target, path, what.to_owned()));
    if !target.is_dir() {
        return Err(Error::file(target, "is not a folder").with_hint("use a folder, or a path that does not exist"));
    }
    if target.file_name().is_none() || disk::is_mount_point(target) {
        return refuse(target, "is a mount point");
    }
    if env::current_dir().is_ok_and(|here| here.starts_with(target)) {
        return refuse(target, "is the working directory or contains it");
    }
    match mount_point_in(target)? {
        Some(mounted) => refuse(&mounted, "is a mount point"),
        None => Ok(()),
    }
}

fn not_replaceable(target: &Path, path: &Path, what: String) -> Error {
    let below = target.join("model");
    let hint = format!("a model dir is replaced as a whole: use a folder inside it, such as `{}`", below.display());
    Error::file(path, what).with_hint(hint)
}

/// A mount point anywhere in `dir`: its contents would be removed with the old folder.
fn mount_point_in(dir: &Path) -> Result<Option<PathBuf>> {
    for name in entries(dir)? {
        let path = dir.join(name);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            continue;
        }
        if disk::is_mount_point(&path) {
            return Ok(Some(path));
        }
        if let Some(found) = mount_point_in(&path)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Links the files of the folder `from` into the folder `to`, except those of a model and those that exist. `within` is
/// the subfolder in both.
fn keep_others(from: &Path, to: &Path, within: &Path) -> Result<()> {
    for name in entries(&from.join(within))? {
        let relative = within.join(name);
        let (source, place) = (from.join(&relative), to.join(&relative));
        let io = Error::io("keep", &source);
        let is_dir = fs::symlink_metadata(&source).map_err(io)?.is_dir();
        let is_free = fs::symlink_metadata(&place).is_err();
        if is_dir {
            if is_free {
                disk::create_dir(&place).and_then(|()| disk::like(&source, &place)).map_err(io)?;
            }
            keep_others(from, to, &relative)?;
            if is_free && !entries(&source)?.is_empty() {
                // All of its files belonged to the model.
                drop(fs::remove_dir(&place));
            }
        } else if is_free && !is_model_file(&relative) {
            disk::link(&source, &place).map_err(io)?;
        }
    }
    Ok(())
}

/// Rejects a folder that is not empty, except for the leftover of an interrupted save. Returns whether there is such a
/// leftover.
fn require_empty(dir: &Path) -> Result<bool> {
    let entries = if dir.is_dir() { entries(dir)? } else { vec!["".into()] };
    match entries.as_slice() {
        [] => Ok(false),
        [name] if name == PARTIAL => Ok(true),
        _ => Err(Error::file(dir, "already exists and is not empty").with_hint("use a folder that does not exist")),
    }
}

fn is_forbidden(reason: &io::Error) -> bool {
    matches!(reason.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Flushes the entries of `dir` and all its subfolders. Files were flushed when they were written.
fn sync_tree(dir: &Path) -> Result<()> {
    for name in entries(dir)? {
        let path = dir.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            sync_tree(&path)?;
        }
    }
    disk::sync_dir(dir)
}

fn entries(dir: &Path) -> Result<Vec<OsString>> {
    let names = fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    names.map_err(Error::io("read", dir))
}

/// Removes empty folders, the deepest first.
fn remove_empty(dirs: &[PathBuf]) {
    for dir in dirs {
        drop(fs::remove_dir(dir));
    }
}

/// Whether there is anything at `path`.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(Error::io("read", path))
}

/// An open folder, to detect that another one has taken its name.
#[derive(Debug)]
struct OpenDir(File);

impl OpenDir {
    /// `None` if there is no folder, or the system cannot open folders.
    fn new(dir: &Path) -> Option<Self> {
        (cfg!(unix) && dir.is_dir()).then(|| File::open(dir).ok().map(Self)).flatten()
    }

    /// Whether `dir` is this folder.
    fn is_at(&self, dir: &Path) -> bool {
        is_at(&self.0, dir)
    }
}

/// An exclusive lock on a folder, until it is dropped or its process ends. Does nothing if folders cannot be locked.
#[derive(Debug)]
struct DirLock {
    _file: Option<File>,
}

impl DirLock {
    /// `None` if another process holds the lock.
    fn try_on(dir: &Path) -> io::Result<Option<Self>> {
        let opened = if cfg!(unix) { Some(File::open(dir)?) } else { None };
        match opened.as_ref().map(File::try_lock) {
            Some(Err(fs::TryLockError::WouldBlock)) => Ok(None),
            Some(Ok(())) => Ok(Some(Self { _file: opened })),
            // The system cannot lock folders.
            Some(Err(fs::TryLockError::Error(_))) | None => Ok(Some(Self { _file: None })),
        }
    }

    /// Waits until no other process holds the lock.
    fn wait_for(dir: &Path) -> Self {
        Self { _file: OpenDir::new(dir).map(|opened| opened.0).filter(|file| file.lock().is_ok()) }
    }
}

#[cfg(test)]
mod tests;
