//! Requests to the hub. Errors that may be temporary (no connection, a timeout, 429, 5xx) are retried.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use ureq::{
    Agent, Body,
    config::RedirectAuthHeaders,
    http::{Response, StatusCode, header},
};

use super::{
    Checksum, HubFile, HubOptions, Repo, RepoKind, Snapshot,
    cache::{create_parent, io_error},
    hub_error,
};
use crate::error::{Error, Result};

/// Attempts in a row without a byte of progress.
const MAX_TRIES: u32 = 5;
/// The longest pause before a retry, also if the hub asks for more.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Limit for each read and write, and for establishing a connection.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Larger API responses are rejected. A page lists at most 1,000 files.
const MAX_JSON_BYTES: u64 = 16 << 20;
/// More pages of files are rejected.
const MAX_PAGES: usize = 1_000;
const CHUNK_BYTES: usize = 1 << 16;

/// The hub's answer to a request for the commit of a revision.
#[derive(Debug, Deserialize)]
pub(super) struct Commit {
    pub(super) sha: String,
}

/// A file or folder of a repository.
#[derive(Debug, Deserialize)]
pub(super) struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    size: u64,
    oid: String,
    lfs: Option<Lfs>,
}

/// The contents of a large file.
#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl TreeEntry {
    pub(super) fn into_file(self) -> Option<HubFile> {
        let (checksum, n_bytes) = match self.lfs {
            Some(lfs) => (Checksum::Sha256(lfs.oid), lfs.size),
            None => (Checksum::Git(self.oid), self.size),
        };
        (self.kind == "file").then_some(HubFile { path: self.path, n_bytes, checksum })
    }
}

/// Talks to the hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    retry_delay: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Why an attempt failed.
enum Failure {
    /// The request may succeed later, after the pause if the hub states one.
    Transient(String, Option<Duration>),
    /// The request cannot succeed.
    Final(Error),
}

impl Client {
    pub(super) fn new(options: HubOptions) -> Result<Client> {
        let HubOptions { endpoint, token, retry_delay, .. } = options;
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            let what = format!("must be a URL with http or https, got `{endpoint}`");
            return Err(hub_error("HF_ENDPOINT", &what, "for example `https://huggingface.co`"));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(TIMEOUT))
            .timeout_connect(Some(TIMEOUT))
            .timeout_per_read(Some(TIMEOUT))
            .timeout_per_write(Some(TIMEOUT))
            // Large files are redirected to another host, which must not see the token. Renamed repositories are
            // redirected within the hub, which needs it.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("hearth/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Client { agent: config.new_agent(), endpoint, token, retry_delay })
    }

    /// The commit of the repository's revision.
    pub(super) fn commit(&self, repo: &Repo) -> Result<Commit> {
        let url = format!("{}/{}/revision/{}", self.api(repo), repo.id, escaped(&repo.revision).replace('/', "%2F"));
        Ok(self.json(repo, &url)?.0)
    }

    /// All entries of the repository at a commit.
    pub(super) fn tree(&self, repo: &Repo, commit: &str) -> Result<Vec<TreeEntry>> {
        let mut url = format!("{}/{}/tree/{commit}?recursive=true", self.api(repo), repo.id);
        let mut entries: Vec<TreeEntry> = Vec::new();
        for _ in 0..MAX_PAGES {
            let (page, next): (Vec<TreeEntry>, _) = self.json(repo, &url)?;
            entries.extend(page);
            let Some(next) = next else { return Ok(entries) };
            if !next.starts_with(&format!("{}/", self.endpoint)) {
                return Err(hub_error(
                    &repo.to_string(),
                    &format!("the list of files continues elsewhere: `{next}`"),
                    "",
                ));
            }
            url = next;
        }
        Err(hub_error(&repo.to_string(), &format!("the list of files has more than {MAX_PAGES} pages"), ""))
    }

    fn api(&self, repo: &Repo) -> String {
        format!("{}/api/{}", self.endpoint, repo.kind.plural())
    }

    /// A response of the API, and the URL of its next page.
    fn json<T: DeserializeOwned>(&self, repo: &Repo, url: &str) -> Result<(T, Option<String>)> {
        let name = repo.to_string();
        let mut retries = self.retries(&name);
        loop {
            match self.json_once(repo, url) {
                Ok(answer) => return Ok(answer),
                Err(failure) => retries.wait(failure)?,
            }
        }
    }

    fn json_once<T: DeserializeOwned>(&self, repo: &Repo, url: &str) -> Result<(T, Option<String>), Failure> {
        let name = repo.to_string();
        let mut response = self.get(url, 0)?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(repo, &name, &response));
        }
        let next = next_page(&response);
        let body = response.body_mut().with_config().limit(MAX_JSON_BYTES).read_to_vec().map_err(transient)?;
        let value = serde_json::from_slice(&body).map_err(|error| {
            let what = format!("`{url}` does not answer as the hub does: {error}");
            Failure::Final(hub_error(&name, &what, "`HF_ENDPOINT` must be a Hugging Face hub"))
        })?;
        Ok((value, next))
    }

    /// Downloads the contents of `file`, appending to the part that is already at `path`.
    pub(super) fn download(
        &self,
        snapshot: &Snapshot,
        file: &HubFile,
        path: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let repo = &snapshot.repo;
        let url = self.url_of(snapshot, file);
        let name = format!("{repo}:{}", file.path);
        let mut partial = Partial::open(path)?;
        let mut retries = self.retries(&name);
        while partial.n_bytes != file.n_bytes {
            let before = partial.n_bytes;
            if let Err(failure) = self.download_on(repo, &url, file, &mut partial, progress) {
                if partial.n_bytes > before {
                    retries = self.retries(&name);
                }
                retries.wait(failure)?;
            }
        }
        progress(partial.n_bytes);
        Ok(())
    }

    /// The first `n_bytes` of `file`.
    pub(super) fn start_of(&self, snapshot: &Snapshot, file: &HubFile, n_bytes: u64) -> Result<Vec<u8>> {
        let url = self.url_of(snapshot, file);
        let name = format!("{}:{}", snapshot.repo, file.path);
        let mut retries = self.retries(&name);
        loop {
            match self.start_once(&snapshot.repo, (&name, &url), n_bytes) {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => retries.wait(failure)?,
            }
        }
    }

    fn start_once(&self, repo: &Repo, (name, url): (&str, &str), n_bytes: u64) -> Result<Vec<u8>, Failure> {
        let mut response = self.get(url, 0)?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(repo, name, &response));
        }
        let mut bytes = Vec::new();
        let read = response.body_mut().as_reader().take(n_bytes).read_to_end(&mut bytes);
        match read {
            Ok(n) if n as u64 == n_bytes => Ok(bytes),
            Ok(_) => Err(Failure::Transient("the connection was closed early".to_owned(), None)),
            Err(error) => Err(Failure::Transient(error.to_string(), None)),
        }
    }

    fn url_of(&self, Snapshot { repo, commit, .. }: &Snapshot, file: &HubFile) -> String {
        let folder = match repo.kind {
            RepoKind::Model => "",
            RepoKind::Dataset => "datasets/",
        };
        format!("{}/{folder}{}/resolve/{commit}/{}", self.endpoint, repo.id, escaped(&file.path))
    }

    /// Requests the part of `file` that `partial` does not have yet.
    fn download_on(
        &self,
        repo: &Repo,
        url: &str,
        file: &HubFile,
        partial: &mut Partial,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        if partial.n_bytes > file.n_bytes {
            partial.clear()?;
        }
        let mut response = self.get(url, partial.n_bytes)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if first_byte(&response) == Some(partial.n_bytes) => {}
            StatusCode::OK => partial.clear()?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                partial.clear()?;
                return Err(Failure::Transient("the server sent another part of the file".to_owned(), None));
            }
            _ => return Err(self.refused(repo, &format!("{repo}:{}", file.path), &response)),
        }
        let mut body = response.body_mut().as_reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        while partial.n_bytes < file.n_bytes {
            let wanted = usize::try_from(file.n_bytes - partial.n_bytes).map_or(CHUNK_BYTES, |n| n.min(CHUNK_BYTES));
            match body.read(&mut chunk[..wanted]) {
                Ok(0) => return Err(Failure::Transient("the connection was closed early".to_owned(), None)),
                Ok(n) => partial.append(&chunk[..n])?,
                Err(error) => return Err(Failure::Transient(error.to_string(), None)),
            }
            progress(partial.n_bytes);
        }
        Ok(())
    }

    /// Requests `url` from byte `start` on.
    fn get(&self, url: &str, start: u64) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        request.call().map_err(transient)
    }

    /// The error for an unsuccessful response.
    fn refused(&self, repo: &Repo, name: &str, response: &Response<Body>) -> Failure {
        let text = |header: &str| response.headers().get(header).and_then(|value| value.to_str().ok());
        let status = response.status();
        // The hub's reason, such as `RepoNotFound`.
        let says = text("x-error-message").map(|message| format!(": {message}")).unwrap_or_default();
        let kind = repo.kind;
        let access = "private and gated repositories need an access token in `HF_TOKEN`, and gated ones that you have agreed to \
                      their terms";
        let (what, hint) = match (status.as_u16(), text("x-error-code")) {
            (429 | 500 | 502 | 503 | 504, _) => {
                let delay = text("retry-after").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
                return Failure::Transient(format!("the hub answered {status}{says}"), delay);
            }
            (404, Some("RevisionNotFound")) => {
                (format!("the {kind} has no such revision{says}"), "use a branch, a tag or a commit".to_owned())
            }
            (404, Some("EntryNotFound")) => (format!("the {kind} has no such file{says}"), String::new()),
            (401 | 403, Some("GatedRepo")) => {
                let page = match repo.kind {
                    RepoKind::Model => "",
                    RepoKind::Dataset => "datasets/",
                };
                let token =
                    if self.token.is_some() { "" } else { ", and set `HF_TOKEN` to an access token of your account" };
                let hint = format!("agree to its terms at {}/{page}{}{token}", self.endpoint, repo.id);
                (format!("the {kind} is gated, and the hub does not give you access{says}"), hint)
            }
            (401, code) if self.token.is_some() && code != Some("RepoNotFound") => {
                (format!("the hub does not accept the access token{says}"), "check `HF_TOKEN`".to_owned())
            }
            (401 | 404, _) => (
                format!("the hub has no such {kind}, or does not show it to you{says}"),
                format!("check the name; {access}"),
            ),
            (403, _) => (format!("the hub does not give you access to this {kind}{says}"), access.to_owned()),
            _ => (format!("the hub answered {status}{says}"), String::new()),
        };
        Failure::Final(hub_error(name, &what, &hint))
    }

    fn retries<'a>(&self, name: &'a str) -> Retries<'a> {
        Retries { name, n_tries: 0, delay: self.retry_delay }
    }
}

/// A file that grows.
struct Partial {
    file: File,
    n_bytes: u64,
    path: PathBuf,
}

impl Partial {
    /// Opens the file that an earlier download left, or creates it.
    fn open(path: &Path) -> Result<Partial> {
        create_parent(path)?;
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(io_error("create", path))?;
        let n_bytes = file.metadata().map_err(io_error("read", path))?.len();
        Ok(Partial { file, n_bytes, path: path.to_owned() })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::Final(io_error("write", &self.path)(error)))?;
        self.n_bytes += bytes.len() as u64;
        Ok(())
    }

    fn clear(&mut self) -> Result<(), Failure> {
        if self.n_bytes == 0 {
            return Ok(());
        }
        self.file.set_len(0).map_err(|error| Failure::Final(io_error("write", &self.path)(error)))?;
        self.n_bytes = 0;
        Ok(())
    }
}

/// Attempts of one request.
struct Retries<'a> {
    name: &'a str,
    n_tries: u32,
    delay: Duration,
}

impl Retries<'_> {
    /// Waits before the next attempt, or returns the error if there is none.
    fn wait(&mut self, failure: Failure) -> Result<()> {
        let (what, asked) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Transient(what, asked) => (what, asked),
        };
        self.n_tries += 1;
        if self.n_tries == MAX_TRIES {
            let what = format!("{MAX_TRIES} requests to the hub failed; the last: {what}");
            return Err(hub_error(
                self.name,
                &what,
                "check the connection, `HF_ENDPOINT` and `HTTPS_PROXY`, and try again: downloads continue where they \
                 stopped; with `HF_HUB_OFFLINE=1`, what was downloaded before is used",
            ));
        }
        let pause = asked.unwrap_or(self.delay).min(MAX_DELAY);
        tracing::warn!("`{}`: {what}: trying again in {:.0} s", self.name, pause.as_secs_f64());
        thread::sleep(pause);
        self.delay *= 2;
        Ok(())
    }
}

fn transient(error: ureq::Error) -> Failure {
    Failure::Transient(error.to_string(), None)
}

/// Where a partial answer starts.
fn first_byte(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// The URL of the next page of a list (RFC 8288).
fn next_page(response: &Response<Body>) -> Option<String> {
    let links = response.headers().get(header::LINK)?.to_str().ok()?;
    let link = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    Some(link.trim().strip_prefix('<')?.split_once('>')?.0.to_owned())
}

/// A path as part of a URL.
fn escaped(path: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.bytes().map(escape).collect()
}
