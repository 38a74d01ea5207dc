//! Files that appear only when they are complete.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// The ending of the name of a file or folder that is being written, and of an old folder after the exchange
/// (`weights/staged_dir.rs`). A leftover if its writer has crashed.
pub(crate) const PARTIAL: &str = ".hearth-partial";

/// A file that is written as `PATH.hearth-partial`, and renamed to `PATH` by [`finish`](Self::finish). If it is dropped
/// before that, it is removed, and the old `PATH` stays. While it is written it is locked: another writer of `PATH`
/// writes to `PATH.hearth-partial-2`, and so on, and the last one that finishes replaces `PATH`. The leftover of a
/// killed process is overwritten by the next one. If `PATH` is a link, it stays, and the file that it leads to is
/// replaced, or created if it does not exist. The permissions of a replaced file are kept. Anything but a file, such as
/// `/dev/stdout` or a named pipe, is written to directly.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// The path of the partial file and its final path; `None` if the final path is written to directly.
    moves: Option<(PathBuf, PathBuf)>,
}

impl PartialFile {
    /// Begins the file `path`.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written to, or the place is a folder, or a link to itself.
    pub fn create(path: &Path) -> io::Result<Self> {
        let permissions = match fs::metadata(path) {
            Ok(found) if !found.is_file() => {
                let file = BufWriter::new(File::options().write(true).open(path)?);
                return Ok(Self { path: path.to_owned(), file, moves: None });
            }
            Ok(found) => Some(found.permissions()),
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => None,
            Err(reason) => return Err(reason),
        };
        let place = resolve(path)?;
        let (file, partial) = claim(&place).map_err(|reason| match reason.kind() {
            io::ErrorKind::NotFound => {
                let what = format!("the folder `{}` does not exist", parent_of(&place).display());
                io::Error::new(io::ErrorKind::NotFound, what)
            }
            _ => reason,
        })?;
        let partial = Self { path: path.to_owned(), file: BufWriter::new(file), moves: Some((partial, place)) };
        if let Some(permissions) = permissions {
            partial.file.get_ref().set_permissions(permissions)?;
        }
        Ok(partial)
    }

    /// The path that was given to [`create`](Self::create).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the file while it is written; `None` if it is written directly to its final path.
    pub fn partial_path(&self) -> Option<&Path> {
        self.moves.as_ref().map(|(partial, _)| partial.as_path())
    }

    /// The partial file that a process leaves behind if it is killed while it writes `path` and no other process does.
    pub fn leftover(path: &Path) -> PathBuf {
        match resolve(path) {
            Ok(place) if path.is_symlink() => partial(&place, 1),
            _ => partial(path, 1),
        }
    }

    /// Flushes the file to disk, moves it to its place, and flushes the folder, so that the file survives a power
    /// failure.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be moved.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        if let Some((partial, place)) = &self.moves {
            self.file.get_ref().sync_all()?;
            fs::rename(partial, place)?;
            let place = place.clone();
            // Another writer may use the name of the partial file from now on.
            self.moves = None;
            // A folder may be writable without being readable.
            if cfg!(unix)
                && let Ok(folder) = File::open(parent_of(&place))
            {
                folder.sync_all()?;
            }
        }
        Ok(())
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.moves {
            let _ = fs::remove_file(partial);
        }
    }
}

/// Creates the partial file for `place`, empty and locked, or uses one that no running process writes to.
fn claim(place: &Path) -> io::Result<(File, PathBuf)> {
    let mut number = 1;
    loop {
        let partial = partial(place, number);
        // Not truncated before it is locked: until then it may be another writer's.
        let file = File::options().write(true).create(true).truncate(false).open(&partial)?;
        if !file.metadata()?.is_file() {
            return Ok((file, partial));
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => number += 1,
            // Where files cannot be locked, writers share a partial file.
            Ok(()) | Err(TryLockError::Error(_)) => {
                // Otherwise its writer moved or removed it before it was locked here.
                if is_at(&file, &partial) {
                    file.set_len(0)?;
                    return Ok((file, partial));
                }
            }
        }
    }
}

/// The `number`-th name, from 1 on, for a partial file of `path`.
fn partial(path: &Path, number: u32) -> PathBuf {
    if number == 1 { beside(path, PARTIAL) } else { beside(path, &format!("{PARTIAL}-{number}")) }
}

/// `path` with `ending` after its name.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Whether `path` leads to the open file or folder `file`.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let both = file.metadata().and_then(|own| Ok([own, fs::metadata(path)?].map(|found| identity(&found))));
    both.is_ok_and(|[own, found]| own == found)
}

/// Device and inode, which identify a file or folder while it is open.
#[cfg(unix)]
fn identity(found: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;

    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) {}

/// `path` with links resolved. Neither it nor its parents need to exist.
pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(reason) if reason.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    if let Ok(link) = fs::read_link(path) {
        return resolve(&parent_of(path).join(link));
    }
    match path.file_name() {
        Some(name) => Ok(resolve(parent_of(path))?.join(name)),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The folder that `path` is in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn partial_file_replaces_the_target_only_when_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.txt");
        fs::write(&path, "old").unwrap();
        let mut file = PartialFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let mut file = PartialFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        // A folder is not replaced.
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(PartialFile::create(&folder).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn two_writers_of_one_file_do_not_mix_their_contents() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("report.txt");
        let [mut first, mut second] = [(); 2].map(|()| PartialFile::create(&path).unwrap());
        assert_ne!(first.partial_path(), second.partial_path());
        first.write_all(b"first").unwrap();
        second.write_all(b"2nd").unwrap();
        first.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        // The first name is free again, whatever happens to the second.
        let mut third = PartialFile::create(&path).unwrap();
        assert_eq!(third.partial_path(), Some(&*PartialFile::leftover(&path)));
        third.write_all(b"third").unwrap();
        second.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2nd");
        third.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftover_of_a_killed_process_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.txt");
        fs::write(PartialFile::leftover(&path), "half of something long").unwrap();
        let mut file = PartialFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn partial_file_keeps_symlinks_devices_and_permissions() {
        use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("target", &link).unwrap();
        let write = |path: &Path| {
            let mut file = PartialFile::create(path).unwrap();
            file.write_all(b"new").unwrap();
            file.finish().unwrap();
        };
        write(&link);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
        let null = dir.path().join("null");
        symlink("/dev/null", &null).unwrap();
        write(&null);
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[cfg(unix)]
    #[test]
    fn partial_file_creates_the_missing_target_of_a_symlink() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        let (first, second, target) = (path.join("first"), path.join("folder/second"), path.join("target"));
        fs::create_dir(path.join("folder")).unwrap();
        symlink("folder/second", &first).unwrap();
        symlink("../target", &second).unwrap();
        let partial = PartialFile::leftover(&first);
        assert_eq!(partial, path.join("target.hearth-partial"));
        let mut file = PartialFile::create(&first).unwrap();
        assert_eq!(file.partial_path(), Some(&*partial));
        file.write_all(b"new").unwrap();
        assert!(partial.exists() && !target.exists());
        file.finish().unwrap();
        assert!(first.is_symlink() && second.is_symlink() && !partial.exists());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        // Symlinks into a missing folder or to themselves are rejected and left unchanged.
        let (astray, circle) = (path.join("astray"), path.join("circle"));
        symlink("missing/file", &astray).unwrap();
        symlink("circle", &circle).unwrap();
        let error = PartialFile::create(&astray).unwrap_err().to_string();
        assert!(error.contains("missing` does not exist"), "{error}");
        assert!(PartialFile::create(&circle).is_err());
        assert!(astray.is_symlink() && circle.is_symlink());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 5);
    }
}
