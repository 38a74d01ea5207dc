//! Remembers the shards that were read and found intact, so that opening a large data set does not read all of it each
//! time.
//!
//! `DATA/verified.json` stores the checksum of each shard and the file's metadata: its size, the times of the last
//! change of its contents and of its metadata, and its inode number. If any of these differs, the shard is read again.
//! If the folder is not writable, all shards are read each time.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use hearth_model::files::digest::Digest;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::file::ShardFile;

/// The file in the folder of a data set. It may be removed at any time.
const VERIFIED_FILE: &str = "verified.json";

/// A file that changed less than this before it was read is not remembered: it may change again and keep its time of change,
/// since the clocks of file systems tick every few milliseconds, some every two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// Shards that were found whole, by file name.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Verified {
    shards: BTreeMap<String, Stamp>,
}

/// Metadata of a shard that was found intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stamp {
    /// The checksum in its header.
    sha256: Digest,
    /// Bytes of the file.
    bytes: u64,
    /// Nanoseconds from 1970 to the last change of its contents.
    modified: i64,
    /// Nanoseconds from 1970 to the last change of the file or its metadata, if the system knows.
    changed: i64,
    /// The inode number, if the system has it.
    inode: u64,
}

impl Stamp {
    fn new(file: &ShardFile, metadata: &Metadata) -> Stamp {
        let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let modified = metadata.modified().map_or(0, |time| since_epoch(time) as i64);
        #[cfg(unix)]
        let (changed, inode) = {
            use std::os::unix::fs::MetadataExt;
            (metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(), metadata.ino())
        };
        #[cfg(not(unix))]
        let (changed, inode) = (modified, 0);
        Stamp { sha256: file.checksum(), bytes: metadata.len(), modified, changed, inode }
    }

    /// Whether the file last changed long enough before `now`.
    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
        self.modified.max(self.changed) + (SETTLED.as_nanos() as i64) < now
    }
}

/// Checks the checksums of the shards of the data set in `dir`, except shards that were checked before and have not
/// changed since; one thread per core. Returns how many were read.
///
/// # Errors
/// A shard is damaged.
pub(super) fn verify(dir: &Path, files: &[&ShardFile], now: SystemTime) -> Result<usize> {
    let path = dir.join(VERIFIED_FILE);
    // A file that is missing or cannot be read counts as empty.
    let known: Verified = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let checked = files.par_iter().map(|file| {
        let path = file.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let metadata = fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let stamp = Stamp::new(file, &metadata);
        let is_known = known.shards.get(&name) == Some(&stamp);
        if !is_known {
            file.verify()?;
        }
        Ok((name, stamp, is_known))
    });
    let checked: Vec<(String, Stamp, bool)> = checked.collect::<Result<_>>()?;
    let n_read = checked.iter().filter(|(_, _, is_known)| !is_known).count();
    if n_read > 0 {
        let settled = checked.into_iter().filter(|(_, stamp, _)| stamp.is_settled(now));
        let verified = Verified { shards: settled.map(|(name, stamp, _)| (name, stamp)).collect() };
        if let Err(error) = remember(&path, &verified) {
            tracing::debug!("cannot remember that the shards of `{}` are whole: {error:#}", dir.display());
        }
    }
    Ok(n_read)
}

fn remember(path: &Path, verified: &Verified) -> Result<()> {
    crate::output_files::write_whole(path, serde_json::to_string_pretty(verified)?.as_bytes())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use hearth_model::files::digest::Digester;

    use super::*;
    use crate::data::shard::file::{Header, TokenWidth};

    fn write_shard(path: &Path, tokens: &[u16]) {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let mut payload = Digester::new();
        payload.update(&bytes);
        let header =
            Header { width: TokenWidth::U16, n_tokens: tokens.len() as u64, tokenizer: Digest::of(b"tokenizer") };
        fs::write(path, [&header.seal(payload).0[..], &bytes].concat()).unwrap();
    }

    #[test]
    fn shards_are_verified_once_and_again_after_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("train-00000.tokens"), dir.path().join("val-00000.tokens")];
        write_shard(&paths[0], &[1, 2, 3]);
        write_shard(&paths[1], &[4, 5]);
        let verify_at = |now: SystemTime| {
            let files: Vec<ShardFile> = paths.iter().map(|path| ShardFile::open(path).unwrap()).collect();
            verify(dir.path(), &files.iter().collect::<Vec<_>>(), now)
        };
        let now = SystemTime::now();
        let later = now + 10 * SETTLED;
        assert_eq!(verify_at(now).unwrap(), 2);
        assert_eq!(verify_at(later).unwrap(), 2, "files that had just been written were not remembered");
        assert_eq!(verify_at(later).unwrap(), 0);

        // Another byte, in a file of the same size.
        let mut bytes = fs::read(&paths[0]).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&paths[0], bytes).unwrap();
        let error = verify_at(later).unwrap_err().to_string();
        assert!(error.contains("train-00000.tokens") && error.contains("damaged"), "{error}");
        write_shard(&paths[0], &[1, 2, 4]);
        assert_eq!(verify_at(later).unwrap(), 1);

        fs::write(dir.path().join(VERIFIED_FILE), "{").unwrap();
        assert_eq!(verify_at(later).unwrap(), 2, "what cannot be read was never remembered");
    }
}
