//! Describes a model before it is downloaded: its configuration, and the sizes of its files.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{Hub, HubFile, HubModel, ModelPart, Snapshot, hub_error};
use crate::{
    error::{Error, Result},
    weights::repository::{self, ModelFiles},
};

/// Bytes at the start of a GGUF file that hold its metadata: more than vocabularies of 300,000 tokens need.
const HEADER_BYTES: u64 = 32 << 20;

/// A model of the hub, with its configuration but without its weights.
#[derive(Debug)]
pub struct Outline {
    path: PathBuf,
    sizes: Option<Sizes>,
    /// Holds the files that are not in the cache.
    _folder: Option<TempDir>,
}

/// Sizes of a model that is not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the files with weights.
    pub weight_bytes: u64,
    /// Bytes of all files.
    pub download_bytes: u64,
}

impl Outline {
    /// A model dir or GGUF file from which the configuration can be read. If the model is not in the cache, there are
    /// no weights: the dir has no weight files, and the values of the GGUF file are zeros.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sizes of the files; `None` if the model is in the cache.
    pub fn sizes(&self) -> Option<Sizes> {
        self.sizes
    }
}

impl HubModel {
    /// Downloads only the files that describe the model, and does not keep them. A model in the cache is used from
    /// there.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn outline(&self, hub: &Hub) -> Result<Outline> {
        if let Some(path) = self.in_cache(hub, ModelPart::Whole)? {
            return Ok(Outline { path, sizes: None, _folder: None });
        }
        let snapshot = hub.snapshot(&self.repo)?;
        let files = self.choose(&snapshot, ModelPart::Whole);
        let files = files.map_err(|refused| hub_error(&self.repo.to_string(), &refused.what, &refused.hint))?;
        let folder = TempDir::new().map_err(Error::io("make", Path::new("a temporary folder")))?;
        let place = |path: &str| folder.path().join(path.rsplit('/').next().unwrap_or_default());
        let (paths, path) = match files {
            ModelFiles::Gguf { parts } => {
                for part in &parts {
                    hub.fetch_header(&snapshot, self.file(&snapshot, part)?, &place(part))?;
                }
                let first = parts.first().map(|part| place(part)).unwrap_or_default();
                (parts, first)
            }
            ModelFiles::Dir { mut paths, index } => {
                let config = paths.first().cloned();
                for name in config.iter().chain(&index) {
                    hub.fetch_aside(&snapshot, self.file(&snapshot, name)?, &place(name))?;
                }
                if let Some(index) = index {
                    paths.extend(repository::shards(&place(&index))?);
                    paths.push(index);
                }
                (paths, folder.path().to_owned())
            }
        };
        let mut sizes = Sizes { weight_bytes: 0, download_bytes: 0 };
        for path in &paths {
            let n_bytes = self.file(&snapshot, path)?.n_bytes;
            sizes.download_bytes += n_bytes;
            if [".safetensors", ".gguf"].iter().any(|ending| path.ends_with(ending)) {
                sizes.weight_bytes += n_bytes;
            }
        }
        Ok(Outline { path, sizes: Some(sizes), _folder: Some(folder) })
    }
}

impl Hub {
    /// Downloads `file` to `path`, outside the cache.
    fn fetch_aside(&self, snapshot: &Snapshot, file: &HubFile, path: &Path) -> Result<()> {
        match &self.client {
            Some(client) => client.download(snapshot, file, path, &mut |_| {}),
            None => Err(offline(snapshot)),
        }
    }

    /// A file at `path` that begins as the GGUF file `file`, and is as long.
    fn fetch_header(&self, snapshot: &Snapshot, file: &HubFile, path: &Path) -> Result<()> {
        let Some(client) = &self.client else { return Err(offline(snapshot)) };
        let start = client.start_of(snapshot, file, file.n_bytes.min(HEADER_BYTES))?;
        let write = || {
            let mut written = File::create(path)?;
            written.write_all(&start)?;
            written.set_len(file.n_bytes)
        };
        write().map_err(|error| {
            // If files cannot have holes.
            let _ = fs::remove_file(path);
            Error::io("write", path)(error)
        })
    }
}

fn offline(snapshot: &Snapshot) -> Error {
    let what = "the model was not downloaded before, and downloads are disabled (`HF_HUB_OFFLINE`)";
    hub_error(&snapshot.repo.to_string(), what, "unset `HF_HUB_OFFLINE`")
}
