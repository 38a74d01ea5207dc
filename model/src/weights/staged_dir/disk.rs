//! The file system operations for replacing a folder. Each is a step before which a process can crash: tests count the
//! steps, stop at each one, and make each one fail.

use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

/// A file that is being written.
#[derive(Debug)]
pub(in super::super) struct NewFile {
    file: File,
    path: PathBuf,
}

impl NewFile {
    pub(super) fn create(path: PathBuf) -> Result<Self> {
        let created = step("create", &path).and_then(|()| File::create(&path));
        created.map_err(Error::io("create", &path)).map(|file| Self { file, path: path.clone() })
    }

    /// Writes `bytes` at byte `offset` of the file.
    pub(in super::super) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = step("write", &self.path).and_then(|()| {
            self.file.seek(SeekFrom::Start(offset))?;
            self.file.write_all(bytes)
        });
        written.map_err(Error::io("write", &self.path))
    }

    /// Flushes the file to the disk.
    pub(in super::super) fn finish(self) -> Result<()> {
        let flushed = step("flush", &self.path).and_then(|()| self.file.sync_all());
        flushed.map_err(Error::io("write", &self.path))
    }
}

pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    step("create", path)?;
    fs::create_dir(path)
}

pub(super) fn create_dir_all(path: &Path) -> io::Result<()> {
    step("create", path)?;
    fs::create_dir_all(path)
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step("rename", from)?;
    fs::rename(from, to)
}

/// Atomically exchanges two folders.
pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    step("exchange", one)?;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};

        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = other;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Links a file, or link, under another name; copies it if the file system has no hard links.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    step("link", to)?;
    let Err(reason) = fs::hard_link(from, to) else { return Ok(()) };
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_file() {
        fs::copy(from, to)?;
        return File::open(to)?.sync_all();
    }
    #[cfg(unix)]
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    Err(reason)
}

/// Copies the permissions of the folder `from` to the folder `to`.
pub(super) fn like(from: &Path, to: &Path) -> io::Result<()> {
    step("set permissions", to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}

/// Removes a file, or a folder with its contents.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        return remove_dir_all(path);
    }
    step("remove", path)?;
    fs::remove_file(path)
}

/// Removes a folder with its contents.
pub(super) fn remove_dir_all(path: &Path) -> io::Result<()> {
    step("remove", path)?;
    fs::remove_dir_all(path)
}

/// Flushes the entries of `dir`. Only Unix can open folders as files; other systems flush entries themselves.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    let flush = || if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) };
    step("flush", dir).and_then(|()| flush()).map_err(Error::io("write", dir))
}

/// Whether the folder `dir` is a mount point.
pub(super) fn is_mount_point(dir: &Path) -> bool {
    // Windows does not need it.
    let _ = dir;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

        let found = statx(CWD, dir, AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
        if found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
            return true;
        }
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;

        let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
        let parent = dir.parent().map(device);
        matches!((device(dir), parent), (Ok(own), Some(Ok(parent))) if own != parent)
    }
    #[cfg(not(unix))]
    false
}

/// Called before each step.
#[cfg(not(test))]
fn step(_: &'static str, _: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use watched::step;
#[cfg(test)]
pub(in super::super) use watched::watch;

/// Lets tests observe each step of their thread before it happens, and make it fail.
#[cfg(test)]
mod watched {
    use std::{cell::RefCell, io, path::Path};

    pub(in super::super::super) type Watch = dyn FnMut(&'static str, &Path) -> io::Result<()>;

    thread_local!(static WATCH: RefCell<Option<Box<Watch>>> = const { RefCell::new(None) });

    pub(in super::super::super) fn watch(watch: Option<Box<Watch>>) {
        WATCH.set(watch);
    }

    pub(super) fn step(what: &'static str, path: &Path) -> io::Result<()> {
        WATCH.with_borrow_mut(|watch| watch.as_mut().map_or(Ok(()), |watch| watch(what, path)))
    }
}
