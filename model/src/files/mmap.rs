//! The only memory map: weights and token shards are read from it without a copy.

use std::{ops::Deref, path::Path};

use crate::{
    error::{Error, Result},
    files::regular_file,
};

/// A whole file, mapped for reading.
#[derive(Debug)]
pub struct Mmap(memmap2::Mmap);

impl Mmap {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let io = Error::io("read", path);
        let file = regular_file::open(path).map_err(io)?;
        // SAFETY: the map is only read, as bytes, and every content is valid bytes. Another process that truncates the
        // file while it is mapped cannot be ruled out: the system then kills this process, as it would any program that
        // maps its weights. Hearth itself never writes in place: it renames whole files.
        #[expect(unsafe_code, reason = "mapping a file is unsafe by nature; see the comment above")]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Self(map))
    }

    /// Frees the memory of the pages that were read so far. Reading them again gets them from the file, or from the
    /// system's file cache. Without this, a model that is being loaded would be in memory twice: as stored in the file
    /// and as loaded.
    pub fn release(&self) {
        #[cfg(unix)]
        {
            // SAFETY: the map is of a file and was never written, so its pages can be read from the file again. If the
            // system refuses, the memory is kept.
            #[expect(unsafe_code, reason = "of maps of another kind the contents would be lost; see the comment above")]
            let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

impl Deref for Mmap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;

    /// KiB of the map of the file at `path` that are in memory, from `/proc/self/smaps`.
    fn resident(path: &Path) -> u32 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let (_, of_file) = maps.split_once(path.to_str().unwrap()).unwrap();
        let line = of_file.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    #[test]
    fn mmap_release_frees_resident_pages_that_can_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let bytes: Vec<u8> = (0..1u32 << 22).map(|n| (n % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let map = Mmap::open(&path).unwrap();
        assert!(map[..] == bytes[..] && resident(&path) >= 4096);
        map.release();
        assert_eq!(resident(&path), 0);
        assert!(map[..] == bytes[..]);
    }
}
