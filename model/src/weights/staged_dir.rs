//! Replaces a model dir as a whole: whoever opens it finds the old model or the new one, never files of both.
//!
//! The new folder is written beside the old one, on the same file system, and then takes its place. For the model dir
//! `DIR`:
//!
//! 1. `DIR.hearth-partial` is made and locked (`flock`). Every file in it is flushed to the disk when it is written.
//! 2. Files of `DIR` that are no part of a model (a `README.md`, say) get a hard link in it, or a copy where the file
//!    system has no hard links. Files of the old model (see [`is_model_file`]) do not. A file that is in both is the new
//!    one's.
//! 3. Its folders are flushed. Then it takes the place of `DIR`:
//!    - on Linux the two are exchanged (`renameat2` with `RENAME_EXCHANGE`), which is one step. `DIR.hearth-partial` is
//!      the old folder then.
//!    - on other systems, and on file systems that cannot exchange, `DIR` is renamed to `DIR.hearth-old`, then
//!      `DIR.hearth-partial` to `DIR`, then `DIR.hearth-old` to `DIR.hearth-partial`.
//! 4. The parent folder is flushed, and the old folder removed.
//!
//! A process can die between any two of these steps. Then:
//!
//! - If `DIR` is there, it is whole. `DIR.hearth-partial` and `DIR.hearth-old` are leftovers; the next save removes them.
//! - If `DIR` is missing and `DIR.hearth-old` is there, the swap was interrupted. `DIR.hearth-old` is always a whole model:
//!   whoever opens or saves `DIR` next renames it back ([`mend`]).
//!
//! The lock on `DIR.hearth-partial` says that its writer is alive: a second writer is refused. The parent folder is locked
//! while the folders change places (steps 3 and 4) and while `DIR.hearth-partial` is made: a reader that finds `DIR` missing
//! waits for that lock. Locks end with their process. Where folders cannot be locked (not on Unix, or some network file
//! systems), two processes must not save to one folder at a time.
//!
//! A reader opens a model dir file by file, and the folder may be replaced in between: [`read_whole`] then reads again.
//!
//! Some folders cannot be replaced: mount points, and the working directory, which would leave every process that works
//! there in a deleted folder. They are refused before anything is written. A first model may go to such a folder if it is
//! empty ([`StagedDir::creating`]): it is written in `DIR/.hearth-partial` and moved up, `config.json` last.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

pub(super) use self::disk::NewFile;
use super::layout::{CONFIG_FILE, is_model_file};
use crate::error::{Error, Result};

mod disk;

/// Suffix of the folder that is being written, and of the old one after the exchange. A leftover if its writer is dead.
const PARTIAL: &str = ".hearth-partial";
/// Suffix of the old folder during a swap without exchange.
const ASIDE: &str = ".hearth-old";

/// Attempts to read a model dir that is replaced during each of them.
const MAX_READS: usize = 10;

/// A folder that is being written and then replaces a model dir as a whole. Dropping it before [`commit`](Self::commit)
/// removes it and leaves the model dir as it was.
#[derive(Debug)]
pub struct StagedDir {
    /// The folder to be replaced, by the name that no link leads to.
    target: PathBuf,
    path: PathBuf,
    mode: Mode,
    is_placed: bool,
    /// Folders above that were not there, the deepest first.
    new_parents: Vec<PathBuf>,
    _lock: DirLock,
}

/// How the folder comes to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// From beside; what is there is replaced.
    Replace,
    /// From beside; there is nothing, or an empty folder.
    Create,
    /// From within an empty folder.
    Fill,
}

impl StagedDir {
    /// A new folder that will replace `dir`, which may be missing, and be a link to a folder.
    ///
    /// # Errors
    /// [`Error::File`] when `dir` is no folder or cannot be replaced, or when another process is writing it;
    /// [`Error::Io`] when the new folder cannot be made.
    pub fn replacing(dir: &Path) -> Result<Self> {
        mend(dir)?;
        let target = resolve(dir).map_err(|reason| io_error("write", dir, reason))?;
        if !is_there(&target)? {
            return Self::beside(target, Mode::Replace);
        }
        check_replaceable(&target)?;
        match Self::beside(target.clone(), Mode::Replace) {
            Err(Error::Io { path, reason, .. }) if is_forbidden(&reason) => {
                Err(not_replaceable(&target, &target, format!("`{}` cannot be made: {reason}", path.display())))
            }
            staged => staged,
        }
    }

    /// A new folder that will be `dir`, which must be missing or empty. One that is empty and cannot be replaced (a mount
    /// point, the working directory) is filled.
    ///
    /// # Errors
    /// Those of [`replacing`](Self::replacing); [`Error::File`] when there is anything in `dir`.
    pub fn creating(dir: &Path) -> Result<Self> {
        mend(dir)?;
        let target = resolve(dir).map_err(|reason| io_error("write", dir, reason))?;
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
        disk::create_dir_all(parent).map_err(|reason| io_error("create", parent, reason))?;
        let lock = stage(&path).inspect_err(|_| remove_empty(&new_parents))?;
        let staged = Self { target, path, mode, is_placed: false, new_parents, _lock: lock };
        staged.remove_aside()?;
        Ok(staged)
    }

    /// Removes the old folder of a swap that ended before the old folder was removed. Half of it is never at its name.
    fn remove_aside(&self) -> Result<()> {
        let (aside, old) = (beside(&self.target, ASIDE), self.path.join("old"));
        if !aside.is_dir() {
            return Ok(());
        }
        disk::rename(&aside, &old)
            .and_then(|()| disk::remove_dir_all(&old))
            .map_err(|reason| io_error("remove", &aside, reason))
    }

    /// Where the files of the folder are written until it takes its place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file and flushes it to the disk. `name` may be in a folder, which is made.
    ///
    /// # Errors
    /// [`Error::Io`] with the file that could not be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        file.write_at(0, bytes)?;
        file.finish()
    }

    /// A new file of the folder.
    pub(super) fn create(&self, name: &str) -> Result<NewFile> {
        let path = self.path.join(name);
        let parent = parent_of(&path);
        if parent != self.path {
            disk::create_dir_all(parent).map_err(|reason| io_error("create", parent, reason))?;
        }
        NewFile::create(path)
    }

    /// Puts the folder in its place.
    ///
    /// # Errors
    /// [`Error::Io`] with the file or folder for which that failed. The old folder is whole then, but where the last step,
    /// flushing the parent folder, failed: then the new one is.
    pub fn commit(mut self) -> Result<()> {
        // Nobody must take one of the folders for a leftover before they are in their places.
        let _lock = DirLock::wait_for(parent_of(&self.path));
        match self.mode {
            Mode::Replace if is_there(&self.target)? => self.replace(),
            Mode::Replace | Mode::Create => self.create_target(),
            Mode::Fill => self.move_up(),
        }
    }

    /// Renames the folder to where nothing is, or an empty folder: the system refuses it otherwise.
    fn create_target(&mut self) -> Result<()> {
        let target = &self.target;
        let io = |reason| io_error("create", target, reason);
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
        let io = |reason| io_error("replace", target, reason);
        keep_others(target, &self.path, Path::new(""))?;
        disk::like(target, &self.path).map_err(io)?;
        sync_tree(&self.path)?;
        // If something else than a missing exchange is wrong, the renames fail too and report it.
        disk::exchange(&self.path, target).or_else(|_| self.swap_in_steps())?;
        self.is_placed = true;
        let old = &self.path;
        disk::sync_dir(parent_of(target))?;
        // Again, for files that were made in the old folder in between. The new folder is in its place, so that errors
        // from here on are no failure to save.
        let removed = keep_others(old, target, Path::new(""))
            .and_then(|()| disk::remove_dir_all(old).map_err(|reason| io_error("remove", old, reason)));
        if let Err(error) = removed {
            tracing::warn!("the replaced model is still on disk until the next save: {error}");
        }
        Ok(())
    }

    /// The exchange where the file system has none.
    fn swap_in_steps(&self) -> Result<()> {
        let target = &self.target;
        let aside = beside(target, ASIDE);
        let io = |reason| io_error("replace", target, reason);
        disk::rename(target, &aside).map_err(io)?;
        if let Err(reason) = disk::rename(&self.path, target) {
            disk::rename(&aside, target).map_err(io)?;
            return Err(io(reason));
        }
        // Where it is removed from. If that fails, it stays for the next save to remove.
        drop(disk::rename(&aside, &self.path));
        Ok(())
    }

    /// Moves the files to the folder above, `config.json` last: without it, a folder is no model dir.
    fn move_up(&mut self) -> Result<()> {
        sync_tree(&self.path)?;
        let mut names = entries(&self.path)?;
        names.sort_by_key(|name| name == CONFIG_FILE);
        for name in names {
            let place = self.target.join(&name);
            disk::rename(&self.path.join(&name), &place).map_err(|reason| io_error("create", &place, reason))?;
        }
        disk::sync_dir(&self.target)
    }
}

impl Drop for StagedDir {
    fn drop(&mut self) {
        if !self.is_placed {
            // What went wrong before matters more.
            drop(disk::remove_dir_all(&self.path));
            remove_empty(&self.new_parents);
        }
    }
}

/// Renames the folder `dir` back that an interrupted swap has left aside: see the module. If its writer is alive, waits
/// for it to end the swap.
///
/// # Errors
/// [`Error::Io`] when the folder was left aside and cannot be renamed.
pub fn mend(dir: &Path) -> Result<()> {
    let Ok(target) = resolve(dir) else { return Ok(()) };
    let aside = beside(&target, ASIDE);
    if is_there(&target)? || !aside.is_dir() {
        return Ok(());
    }
    let _lock = DirLock::wait_for(parent_of(&target));
    // Its writer, or another reader, may have been faster.
    if is_there(&target)? || !aside.is_dir() {
        return Ok(());
    }
    disk::rename(&aside, &target).map_err(|reason| io_error("restore", &target, reason))?;
    disk::sync_dir(parent_of(&target))
}

/// What `read` makes of the model dir `dir`, which is one folder from beginning to end: `read` is called again if the
/// folder was replaced meanwhile.
///
/// # Errors
/// Whatever `read` reports; [`Error::File`] when the folder is replaced all the time.
pub(super) fn read_whole<T>(dir: &Path, mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..MAX_READS {
        mend(dir)?;
        let (was_there, opened) = (dir.is_dir(), OpenDir::new(dir));
        let result = read();
        let is_same = match opened {
            Some(opened) => opened.is_at(dir),
            // It may have come just now.
            None => was_there == dir.is_dir(),
        };
        if is_same {
            return result;
        }
    }
    Err(Error::File {
        path: dir.to_owned(),
        what: format!("was replaced {MAX_READS} times while it was read"),
        hint: "another process saves models to it: try again".to_owned(),
    })
}

/// Makes the folder `path`, or empties the one that a process has left there, and locks it.
fn stage(path: &Path) -> Result<DirLock> {
    let io = |reason| io_error("create", path, reason);
    let refuse = |what: &str, hint: &str| {
        Err(Error::File { path: path.to_owned(), what: what.to_owned(), hint: hint.to_owned() })
    };
    let _lock = DirLock::wait_for(parent_of(path));
    match disk::create_dir(path) {
        Err(reason) if reason.kind() != io::ErrorKind::AlreadyExists => return Err(io(reason)),
        _ => {}
    }
    // Not behind a link either: what it leads to belongs to somebody else.
    if !fs::symlink_metadata(path).map_err(io)?.is_dir() {
        return refuse("is in the way: it is not a folder", "remove it");
    }
    let Some(lock) = DirLock::try_on(path).map_err(io)? else {
        return refuse("another process is writing it", "wait for that process to end, or write to another folder");
    };
    for name in entries(path)? {
        disk::remove(&path.join(name)).map_err(io)?;
    }
    Ok(lock)
}

/// Refuses a folder that cannot be replaced.
fn check_replaceable(target: &Path) -> Result<()> {
    let refuse = |path: &Path, what: &str| Err(not_replaceable(target, path, what.to_owned()));
    if !target.is_dir() {
        return Err(Error::File {
            path: target.to_owned(),
            what: "is not a folder".to_owned(),
            hint: "give a folder, or a path where nothing is".to_owned(),
        });
    }
    if target.file_name().is_none() || disk::is_mount_point(target) {
        return refuse(target, "is a mount point");
    }
    if env::current_dir().is_ok_and(|here| here.starts_with(target)) {
        return refuse(target, "is the working directory, or holds it");
    }
    match mount_point_in(target)? {
        Some(mounted) => refuse(&mounted, "is a mount point"),
        None => Ok(()),
    }
}

fn not_replaceable(target: &Path, path: &Path, what: String) -> Error {
    let below = target.join("model");
    let hint = format!("a model dir is replaced as a whole: give a folder within it, such as `{}`", below.display());
    Error::File { path: path.to_owned(), what, hint }
}

/// A mount point somewhere in `dir`: what is mounted there would be removed with the old folder.
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

/// Links the files of the folder `from` into the folder `to`, but for those of a model and those that are there. `within`
/// is the folder in both.
fn keep_others(from: &Path, to: &Path, within: &Path) -> Result<()> {
    for name in entries(&from.join(within))? {
        let relative = within.join(name);
        let (source, place) = (from.join(&relative), to.join(&relative));
        let io = |reason| io_error("keep", &source, reason);
        let is_dir = fs::symlink_metadata(&source).map_err(io)?.is_dir();
        let is_free = fs::symlink_metadata(&place).is_err();
        if is_dir {
            if is_free {
                disk::create_dir(&place).and_then(|()| disk::like(&source, &place)).map_err(io)?;
            }
            keep_others(from, to, &relative)?;
            if is_free && !entries(&source)?.is_empty() {
                // All in it were the model's.
                drop(fs::remove_dir(&place));
            }
        } else if is_free && !is_model_file(&relative) {
            disk::link(&source, &place).map_err(io)?;
        }
    }
    Ok(())
}

/// Refuses a folder with anything in it but what a process has left there that was filling it. Says whether there is such
/// a leftover.
fn require_empty(dir: &Path) -> Result<bool> {
    let entries = if dir.is_dir() { entries(dir)? } else { vec!["".into()] };
    match entries.as_slice() {
        [] => Ok(false),
        [name] if name == PARTIAL => Ok(true),
        _ => Err(Error::File {
            path: dir.to_owned(),
            what: "is there already, and not empty".to_owned(),
            hint: "name a folder that does not exist".to_owned(),
        }),
    }
}

fn is_forbidden(reason: &io::Error) -> bool {
    matches!(reason.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Makes the entries of `dir` and of all folders in it last. Files were flushed when they were written.
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
    names.map_err(|reason| io_error("read", dir, reason))
}

/// The deepest first, as far as they are empty.
fn remove_empty(dirs: &[PathBuf]) {
    for dir in dirs {
        drop(fs::remove_dir(dir));
    }
}

/// The folder that `dir` means, by the name that no link leads to. It need not be there, nor its parents.
fn resolve(dir: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(dir) {
        Err(reason) if reason.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    if let Ok(link) = fs::read_link(dir) {
        return resolve(&parent_of(dir).join(link));
    }
    match dir.file_name() {
        Some(name) => Ok(resolve(parent_of(dir))?.join(name)),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Whether there is anything at `path`.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|reason| io_error("read", path, reason))
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn beside(target: &Path, suffix: &str) -> PathBuf {
    let mut path = target.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn io_error(action: &'static str, path: &Path, reason: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), reason }
}

/// An open folder, to find out whether another one has taken its name.
#[derive(Debug)]
struct OpenDir(File);

impl OpenDir {
    /// `None` if there is no folder, or the system does not open folders.
    fn new(dir: &Path) -> Option<Self> {
        (cfg!(unix) && dir.is_dir()).then(|| File::open(dir).ok().map(Self)).flatten()
    }

    /// Whether it is the folder that `dir` leads to.
    fn is_at(&self, dir: &Path) -> bool {
        let names = self.0.metadata().and_then(|own| Ok([own, fs::metadata(dir)?].map(|found| identity(&found))));
        names.is_ok_and(|[own, found]| own == found)
    }
}

/// Device and inode, which tell folders apart while they are open.
#[cfg(unix)]
fn identity(found: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;

    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) {}

/// An exclusive lock on a folder, until it is dropped or its process ends. Holds nothing where folders cannot be locked.
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
            // Folders cannot be locked here.
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
