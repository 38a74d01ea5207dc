//! Models and data sets of the Hugging Face hub, by name: lists the files of a repository and downloads them.
//!
//! [`HubModel`] is a model by name, with the choice of its files; [`inventory`] lists the models in the cache, [`removal`]
//! removes them.
//!
//! Blocking. Files go into the hub's own cache (`~/.cache/huggingface/hub`), in the layout of the Python library
//! `huggingface_hub`, so both use each other's downloads. A download continues where an earlier one stopped, is
//! verified against the checksum that the hub states, and appears in the cache only when it is complete. Two processes
//! may download the same file: the second waits for the first.
//!
//! The settings are those of `huggingface_hub`: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`,
//! `HF_HUB_OFFLINE`, and the older names `HUGGING_FACE_HUB_TOKEN` and `HUGGINGFACE_HUB_CACHE`. The HTTP interface is
//! described in the hub's [documentation](https://huggingface.co/docs/hub/api).

mod cache;
mod client;
pub mod inventory;
mod model;
mod outline;
pub mod removal;

use std::{
    env,
    ffi::OsString,
    fmt, fs,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::{
    cache::RepoCache,
    client::{Client, Commit, TreeEntry},
};
pub use self::{
    model::{HubModel, ModelPart, PulledModel},
    outline::{Outline, Sizes},
};
use crate::{
    error::{Error, Result},
    files::byte_size::ByteSize,
    weights::repository::RepositoryFile,
};

/// The hub itself.
pub const ENDPOINT: &str = "https://huggingface.co";

/// The kind of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl RepoKind {
    /// As it is in the paths of the API and of the cache.
    fn plural(self) -> &'static str {
        match self {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
        }
    }
}

impl fmt::Display for RepoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RepoKind::Model => "model",
            RepoKind::Dataset => "data set",
        })
    }
}

/// A repository at a revision. Displayed as `org/name` or `org/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repo {
    kind: RepoKind,
    id: String,
    revision: String,
}

/// The revision of an id that names none.
const MAIN: &str = "main";

impl Repo {
    /// Parses `org/name` or `org/name@revision`; the revision is a branch, a tag or a commit. `None` if `text` is
    /// neither.
    pub fn parse(kind: RepoKind, text: &str) -> Option<Repo> {
        let (id, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let (org, name) = id.split_once('/')?;
        // The hub's own rules: https://huggingface.co/docs/huggingface_hub/package_reference/utilities#validators
        let is_name = |part: &str| {
            let is_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            (1..=96).contains(&part.len())
                && part.chars().all(is_char)
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
                && !part.contains("--")
                && !part.contains("..")
        };
        let is_valid = is_name(org) && is_name(name) && is_inner_path(revision);
        is_valid.then(|| Repo { kind, id: id.to_owned(), revision: revision.to_owned() })
    }

    /// `org/name`.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if self.revision != MAIN { write!(f, "@{}", self.revision) } else { Ok(()) }
    }
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubFile {
    /// Its path in the repository, with `/`.
    pub path: String,
    /// Its size in bytes.
    pub n_bytes: u64,
    checksum: Checksum,
}

/// The files by path and size, from which `repository` finds the model.
fn repository_files(files: &[HubFile]) -> Vec<RepositoryFile<'_>> {
    files.iter().map(|file| RepositoryFile { path: &file.path, n_bytes: file.n_bytes }).collect()
}

/// The checksum that identifies a file's contents. Its digits are also the name of the file in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Checksum {
    /// SHA-256, of large files.
    Sha256(String),
    /// For all other files, git's object id: SHA-1 of a header and the contents.
    Git(String),
}

impl Checksum {
    fn digits(&self) -> &str {
        let (Checksum::Sha256(digits) | Checksum::Git(digits)) = self;
        digits
    }
}

/// The files of a repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The repository.
    pub repo: Repo,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// All its files, ordered by path.
    pub files: Vec<HubFile>,
}

/// A repository as far as it is known without asking the hub.
#[derive(Debug)]
struct CachedSnapshot {
    snapshot: Snapshot,
    /// Whether `snapshot` has the files that the hub listed. If not, it has the files that another program downloaded,
    /// which may not be all.
    is_listed: bool,
}

/// Progress of a download. Displayed as `downloading ..: 12.0 MB of 1.50 GB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// The model or the data set.
    pub name: String,
    /// Bytes in the cache so far.
    pub bytes: u64,
    /// Total bytes of its files.
    pub bytes_total: u64,
}

impl fmt::Display for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bytes, bytes_total } = self;
        write!(f, "downloading `{name}`: {} of {}", ByteSize(*bytes), ByteSize(*bytes_total))
    }
}

/// Settings of a [`Hub`].
#[derive(Clone)]
pub struct HubOptions {
    /// The URL of the hub, or of a mirror.
    pub endpoint: String,
    /// The access token, for private and gated repositories.
    pub token: Option<String>,
    /// The cache.
    pub cache: PathBuf,
    /// Uses only the cache.
    pub is_offline: bool,
    /// Pause before the first retry; it then doubles.
    pub retry_delay: Duration,
}

impl HubOptions {
    /// Reads the settings of `huggingface_hub` from the environment.
    ///
    /// # Errors
    /// There is no home folder for the cache, or the file of the token cannot be read.
    pub fn from_env() -> Result<HubOptions> {
        Self::of_variables(&|name| env::var_os(name), env::home_dir().as_deref())
    }

    /// The settings of the variables that `get` returns, for a user with the home folder `user_home`.
    fn of_variables(get: &dyn Fn(&str) -> Option<OsString>, user_home: Option<&Path>) -> Result<HubOptions> {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().trim().to_owned());
        let path = |name: &str| set(name).map(|value| expand_home(Path::new(&value), user_home));
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|dir| dir.join("huggingface")))
            .or_else(|| user_home.map(|dir| dir.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let Some(cache) = cache.or_else(|| Some(home.as_ref()?.join("hub"))) else {
            return Err(hub_error("the hub", "there is no folder for downloads", "set `HF_HOME` to a folder"));
        };
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
        let token = match (text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")), token_file) {
            (Some(token), _) => Some(token),
            (None, Some(path)) => match fs::read_to_string(&path) {
                Ok(token) => Some(token.trim().to_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(reason) => return Err(Error::io("read", &path)(reason)),
            },
            (None, None) => None,
        };
        let is_offline = text("HF_HUB_OFFLINE")
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let token = token.filter(|token| !token.is_empty());
        Ok(HubOptions { endpoint, token, cache, is_offline, retry_delay: Duration::from_secs(1) })
    }
}

/// `path` with a leading `~` replaced by the home folder, if that is known.
fn expand_home(path: &Path, user_home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user_home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

impl fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HubOptions { endpoint, token, cache, is_offline, retry_delay } = self;
        f.debug_struct("HubOptions")
            .field("endpoint", endpoint)
            .field("token", &token.as_ref().map(|_| "..."))
            .field("cache", cache)
            .field("is_offline", is_offline)
            .field("retry_delay", retry_delay)
            .finish()
    }
}

/// The hub, or its cache alone.
#[derive(Debug)]
pub struct Hub {
    /// `None`: offline.
    client: Option<Client>,
    cache: PathBuf,
}

impl Hub {
    /// A hub with `options`. Nothing is requested yet.
    ///
    /// # Errors
    /// The endpoint is not a URL.
    pub fn new(options: HubOptions) -> Result<Hub> {
        let cache = options.cache.clone();
        let client = if options.is_offline { None } else { Some(Client::new(options)?) };
        Ok(Hub { client, cache })
    }

    /// The files of `repo`, as the hub lists them. Offline, or if the revision is a commit: as listed before.
    ///
    /// # Errors
    /// There is no such repository or revision, it is not accessible, the hub does not answer, or, offline, it was not
    /// downloaded before.
    pub fn snapshot(&self, repo: &Repo) -> Result<Snapshot> {
        let cache = RepoCache::new(&self.cache, repo);
        let is_fixed = is_commit(&repo.revision);
        let (commit, files) = match (&self.client, self.known(repo)) {
            (None, Some(known)) => return Ok(known.snapshot),
            (Some(_), Some(CachedSnapshot { snapshot, is_listed: true })) if is_fixed => return Ok(snapshot),
            (None, None) => {
                let what = format!(
                    "the {} was not downloaded before, and downloads are disabled (`HF_HUB_OFFLINE`)",
                    repo.kind
                );
                return Err(hub_error(&repo.to_string(), &what, "unset `HF_HUB_OFFLINE` to download it"));
            }
            (Some(client), _) => {
                let Commit { sha } = client.commit(repo)?;
                if !is_commit(&sha) {
                    return Err(hub_error(&repo.to_string(), &format!("`{sha}` is not the id of a commit"), ""));
                }
                let mut files =
                    client.tree(repo, &sha)?.into_iter().filter_map(TreeEntry::into_file).collect::<Vec<_>>();
                files.sort_by(|a, b| a.path.cmp(&b.path));
                for file in &files {
                    check_file(repo, file)?;
                }
                cache.keep_listing(&repo.revision, &sha, &files)?;
                (sha, files)
            }
        };
        Ok(Snapshot { repo: repo.clone(), commit, files })
    }

    /// The files of `repo` known from the cache: the files that the hub listed before or, for a model without such a
    /// list, the files that another program downloaded.
    fn known(&self, repo: &Repo) -> Option<CachedSnapshot> {
        let cache = RepoCache::new(&self.cache, repo);
        let commit = cache.commit(&repo.revision)?;
        let (files, is_listed) = match cache.listing(&commit) {
            Some(files) => (files, true),
            // Not for data sets: without a list, nothing shows whether all files are there.
            None if repo.kind == RepoKind::Model => (cache.found_files(&commit), false),
            None => return None,
        };
        if files.is_empty() {
            return None;
        }
        Some(CachedSnapshot { snapshot: Snapshot { repo: repo.clone(), commit, files }, is_listed })
    }

    /// The path of `file`, if it is in the cache.
    fn find(&self, snapshot: &Snapshot, file: &HubFile) -> Result<Option<PathBuf>> {
        RepoCache::new(&self.cache, &snapshot.repo).find(&snapshot.commit, file)
    }

    /// The folder with the files of `snapshot` in the cache.
    fn snapshot_dir(&self, snapshot: &Snapshot) -> PathBuf {
        RepoCache::new(&self.cache, &snapshot.repo).snapshot_dir(&snapshot.commit)
    }

    /// Whether only the cache is used.
    fn is_offline(&self) -> bool {
        self.client.is_none()
    }

    /// Downloads the `files` that are not in the cache, and returns the paths of all. `name` is for progress and
    /// messages.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch); or the disk has too little room for the missing files.
    pub fn fetch_all(
        &self,
        snapshot: &Snapshot,
        files: &[&HubFile],
        name: &str,
        progress: &mut dyn FnMut(Download),
    ) -> Result<Vec<PathBuf>> {
        self.require_room(snapshot, files, name)?;
        let bytes_total = files.iter().map(|file| file.n_bytes).sum();
        let (mut paths, mut done) = (Vec::new(), 0);
        for file in files {
            let mut report = |bytes| progress(Download { name: name.to_owned(), bytes: done + bytes, bytes_total });
            paths.push(self.fetch(snapshot, file, &mut report)?);
            done += file.n_bytes;
        }
        Ok(paths)
    }

    /// Fails if the disk of the cache is known to have too little room. Room may still run out later.
    fn require_room(&self, snapshot: &Snapshot, files: &[&HubFile], name: &str) -> Result<()> {
        let cache = RepoCache::new(&self.cache, &snapshot.repo);
        let mut missing = 0;
        for file in files {
            if cache.find(&snapshot.commit, file)?.is_none() {
                missing += file.n_bytes.saturating_sub(cache.collected_bytes(file));
            }
        }
        match cache::free_bytes(&self.cache) {
            Some(free) if !self.is_offline() && missing > free => {
                let (missing, free) = (ByteSize(missing), ByteSize(free));
                let what = format!(
                    "there is no room for it: {missing} are to be downloaded, but the disk of `{}` has {free} left",
                    self.cache.display()
                );
                Err(hub_error(name, &what, NO_ROOM_HINT))
            }
            _ => Ok(()),
        }
    }

    /// Downloads `file` of `snapshot` unless it is in the cache, and returns its path there. `progress` is called with
    /// the number of bytes downloaded so far.
    ///
    /// # Errors
    /// The download fails, the contents do not have the stated checksum, the disk is full or cannot be written; or,
    /// offline, the file was not downloaded before. The downloaded part is kept, and the next call continues there.
    pub fn fetch(&self, snapshot: &Snapshot, file: &HubFile, progress: &mut dyn FnMut(u64)) -> Result<PathBuf> {
        let cache = RepoCache::new(&self.cache, &snapshot.repo);
        if let Some(path) = cache.find(&snapshot.commit, file)? {
            progress(file.n_bytes);
            return Ok(path);
        }
        let name = format!("{}:{}", snapshot.repo, file.path);
        let Some(client) = &self.client else {
            let what = "the file was not downloaded before, and downloads are disabled (`HF_HUB_OFFLINE`)";
            return Err(hub_error(&name, what, "unset `HF_HUB_OFFLINE` to download it"));
        };
        let _lock = cache.lock(file)?;
        // Another process may have been faster.
        if let Some(path) = cache.find(&snapshot.commit, file)? {
            progress(file.n_bytes);
            return Ok(path);
        }
        client.download(snapshot, file, &cache.incomplete(file), progress)?;
        cache.verify(&name, file)?;
        cache.place(&snapshot.commit, file)
    }
}

const NO_ROOM_HINT: &str = "free some room (`hearth list` and `hearth rm` show and remove models), or set `HF_HOME` to a folder on \
                            another disk; a download continues where it stopped";

/// Whether `text` is the id of a commit.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hexadecimal(text)
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether `path` stays in the folder that it is joined to, on every system.
fn is_inner_path(path: &str) -> bool {
    let is_normal = |component| matches!(component, Component::Normal(_));
    !path.is_empty()
        && !path.contains(['\\', ':', '\0'])
        && !path.split('/').any(|part| part.is_empty() || part == ".")
        && Path::new(path).components().all(is_normal)
}

/// Rejects a file with an invalid path or checksum: both become paths in the cache, and the hub must not decide where
/// files are written.
fn check_file(repo: &Repo, file: &HubFile) -> Result<()> {
    let length = match file.checksum {
        Checksum::Sha256(_) => 64,
        Checksum::Git(_) => 40,
    };
    let digits = file.checksum.digits();
    if is_inner_path(&file.path) && digits.len() == length && is_hexadecimal(digits) {
        return Ok(());
    }
    let what = format!("the hub lists a file with an invalid path or checksum: `{}`, `{digits}`", file.path);
    Err(hub_error(&repo.to_string(), &what, ""))
}

fn hub_error(name: &str, what: &str, hint: &str) -> Error {
    Error::Hub { name: name.to_owned(), what: what.to_owned(), hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn repo_ids_and_revisions_are_validated_by_the_rules_of_the_hub() {
        let shown = |text: &str| Repo::parse(RepoKind::Dataset, text).map(|repo| repo.to_string());
        for id in ["a/b", "roneneldan/TinyStories", "a.b-c/d_e.f", "a/b@v1.0", "a/b@refs/pr/1"] {
            assert_eq!(shown(id).as_deref(), Some(id));
        }
        assert_eq!(shown("a/b@main").unwrap(), "a/b");
        for wrong in
            ["", "a", "a/", "/b", "a/b/c", "a b/c", "../b", "a/..", "a/b@", "a/b@../x", "-a/b", "a--b/c", "a/b@x//y"]
        {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn is_inner_path_accepts_only_relative_paths_inside_the_folder() {
        for path in ["a", "a/b.c", "..a", "a/.b"] {
            assert!(is_inner_path(path), "{path}");
        }
        for path in ["", "/a", "a//b", "..", "a/../b", "a/./b", "a/", "a\\b", "C:a", "a\0"] {
            assert!(!is_inner_path(path), "{path}");
        }
    }

    #[test]
    fn hub_options_expand_the_home_folder_and_read_older_variable_names() {
        let user = tempfile::tempdir().unwrap();
        let home = user.path();
        let options = |variables: &[(&str, &str)]| {
            let get =
                |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value));
            HubOptions::of_variables(&get, Some(home)).unwrap()
        };
        for (variables, expected) in [
            (&[("XDG_CACHE_HOME", "~/xdg")][..], "xdg/huggingface/hub"),
            (&[], ".cache/huggingface/hub"),
            (&[("HF_HOME", "~")], "hub"),
            (&[("HF_HOME", "~/big/hf")], "big/hf/hub"),
            (&[("HF_HOME", "~/hf"), ("HF_HUB_CACHE", "~/own")], "own"),
            (&[("HF_HOME", "~/hf"), ("HUGGINGFACE_HUB_CACHE", "~/older")], "older"),
            (&[("HF_HUB_CACHE", "~/own"), ("HUGGINGFACE_HUB_CACHE", "~/older")], "own"),
        ] {
            assert_eq!(options(variables).cache, home.join(expected), "{variables:?}");
        }
        // Only a whole first part `~` is the home folder.
        for path in ["/abs/~/hf", "rel/~", "~other/hf"] {
            assert_eq!(options(&[("HF_HUB_CACHE", path)]).cache, Path::new(path));
        }
        let older = ("HUGGING_FACE_HUB_TOKEN", "hf_older");
        assert_eq!(options(&[older]).token.as_deref(), Some("hf_older"));
        assert_eq!(options(&[("HF_TOKEN", "hf_new"), older]).token.as_deref(), Some("hf_new"));
        fs::write(home.join("token"), "hf_stored\n").unwrap();
        assert_eq!(options(&[("HF_HOME", "~")]).token.as_deref(), Some("hf_stored"));
        assert_eq!(options(&[("HF_HOME", "~"), older]).token.as_deref(), Some("hf_older"));
        assert_eq!(options(&[("HF_TOKEN_PATH", "~/token")]).token.as_deref(), Some("hf_stored"));
        assert_eq!(options(&[]).token, None);
    }
}
