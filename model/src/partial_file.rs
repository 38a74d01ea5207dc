//! Files that are there when they are complete.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file that is written as `PATH.hearth-partial`, and renamed to `PATH` by [`finish`](Self::finish). If it is dropped
/// before that, it is removed, and what was at `PATH` stays. If `PATH` is a link, it stays, and the file that it leads to
/// is replaced, or created if it does not exist. The permissions of a replaced file are kept. Anything but a file, such as
/// `/dev/stdout` or a named pipe, is written to directly.
#[derive(Debug)]
pub struct PartialFile {
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
                return Ok(Self { file, moves: None });
            }
            Ok(found) => Some(found.permissions()),
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => None,
            Err(reason) => return Err(reason),
        };
        let place = resolve(path)?;
        let partial = beside(&place);
        let file = File::create(&partial).map_err(|reason| match reason.kind() {
            io::ErrorKind::NotFound => {
                let what = format!("the folder `{}` does not exist", parent_of(&place).display());
                io::Error::new(io::ErrorKind::NotFound, what)
            }
            _ => reason,
        })?;
        let partial = Self { file: BufWriter::new(file), moves: Some((partial, place)) };
        if let Some(permissions) = permissions {
            partial.file.get_ref().set_permissions(permissions)?;
        }
        Ok(partial)
    }

    /// Where the file `path` is while it is written.
    pub fn partial_path(path: &Path) -> PathBuf {
        match resolve(path) {
            Ok(place) if path.is_symlink() => beside(&place),
            _ => beside(path),
        }
    }

    /// Flushes the file to disk, and moves it to its place.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be moved.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        let Some((partial, place)) = &self.moves else { return Ok(()) };
        self.file.get_ref().sync_all()?;
        fs::rename(partial, place)
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
            // Not there any more if the file is finished.
            let _ = fs::remove_file(partial);
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".hearth-partial");
    name.into()
}

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
        let partial = PartialFile::partial_path(&first);
        assert_eq!(partial, path.join("target.hearth-partial"));
        let mut file = PartialFile::create(&first).unwrap();
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
