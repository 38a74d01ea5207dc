//! A server that speaks the hub's API, with repositories in memory and faults on demand. Also used by the tests of
//! `hearth-training` and `hearth-server`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::json;

/// The only commit.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The token that private repositories ask for.
pub(crate) const TOKEN: &str = "hf_secret";
/// Files of this size and more are large: redirected to another host, and known by their SHA-256.
const LARGE: usize = 1000;
/// A file whose size in the list is that of no disk.
pub(crate) const HUGE: &str = "huge.gguf";
/// Entries on a page of a listing.
const PAGE: usize = 2;

/// Name, such as `datasets/org/name`, and files with their contents.
pub(crate) type Repository<'a> = (&'a str, &'a [(&'a str, &'a [u8])]);

/// What the next answer to a request of contents, or with `Status` to any request, does wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The connection is closed after so many bytes of the body.
    CutAfter(usize),
    /// The whole file is sent, whatever range was asked for.
    NoRanges,
    /// One bit of the contents is wrong.
    Damage,
    /// This status.
    Status(u16),
}

/// The server; its threads end with the process.
pub(crate) struct StandInHub {
    /// Its URL.
    pub(crate) url: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    port: u16,
    /// `datasets/org/name` to files by path.
    repos: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    faults: Mutex<VecDeque<Fault>>,
    requests: Mutex<Vec<String>>,
    /// Of each answer with contents: their checksum, the first byte that the request asked for, and the bytes sent.
    sent: Mutex<Vec<(String, usize, usize)>>,
}

impl StandInHub {
    /// Serves `repos`. Repositories of the organization `private` ask for a token; those of `gated` show their list to all, and
    /// their files to those with a token.
    pub(crate) fn new(repos: &[Repository<'_>]) -> StandInHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files =
            |files: &[(&str, &[u8])]| files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec())).collect();
        let repos = repos.iter().map(|(name, found)| ((*name).to_owned(), files(found))).collect();
        let shared = Arc::new(Shared { port, repos, ..Shared::default() });
        let for_threads = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&for_threads);
                // A client that hangs up is no concern of the server.
                thread::spawn(move || drop(shared.answer(stream.unwrap())));
            }
        });
        StandInHub { url: format!("http://127.0.0.1:{port}"), shared }
    }

    /// The next answers have these faults, one each.
    pub(crate) fn fail(&self, faults: &[Fault]) {
        self.shared.faults.lock().unwrap().extend(faults);
    }

    /// Method, path and authorization of the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.requests.lock().unwrap())
    }

    /// The requests for the file with these contents since the last call for it: the first byte that each asked for, and
    /// the number of bytes it was sent.
    pub(crate) fn sent(&self, contents: &[u8]) -> Vec<(usize, usize)> {
        let mut sent = self.shared.sent.lock().unwrap();
        let digits = checksum(contents);
        let (of_file, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *sent).into_iter().partition(|(of, ..)| *of == digits);
        *sent = others;
        of_file.into_iter().map(|(_, start, n_bytes)| (start, n_bytes)).collect()
    }
}

/// The checksum that names `contents` on the hub.
pub(crate) fn checksum(contents: &[u8]) -> String {
    let digest = if contents.len() >= LARGE {
        digest(&SHA256, contents)
    } else {
        digest(&SHA1_FOR_LEGACY_USE_ONLY, &[format!("blob {}\0", contents.len()).as_bytes(), contents].concat())
    };
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is [sent](StandInHub::sent) of a file of `length` bytes if each of its answers is cut after so many bytes, the
/// last one is whole, and no byte is sent twice.
pub(crate) fn continued(length: usize, cuts: &[usize]) -> Vec<(usize, usize)> {
    let (mut sent, mut start) = (Vec::new(), 0);
    for cut in cuts.iter().copied().chain([length]) {
        if start < length {
            let n_bytes = cut.min(length - start);
            sent.push((start, n_bytes));
            start += n_bytes;
        }
    }
    sent
}

impl Shared {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut start, mut token, mut host) = (0, None, String::new());
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "range" => start = value["bytes=".len()..].trim_end_matches('-').parse().unwrap(),
                "authorization" => token = Some(value["Bearer ".len()..].to_owned()),
                "host" => host = value.to_owned(),
                _ => {}
            }
        }
        let seen = format!(
            "{} {path}{}",
            host.split(':').next().unwrap_or_default(),
            token.as_deref().map_or("", |_| " with token")
        );
        self.requests.lock().unwrap().push(seen);
        let mut reply = Reply(stream);
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let is_contents = path.starts_with("/storage/") || path.contains("/resolve/");
            let is_due = matches!(faults.front(), Some(Fault::Status(_))) || faults.front().is_some() && is_contents;
            let is_redirect = is_contents && !path.starts_with("/storage/") && self.large(&path).is_some();
            if is_due && !is_redirect { faults.pop_front() } else { None }
        };
        if let Some(Fault::Status(status)) = fault {
            return reply.send(status, "retry-after: 0\r\nx-error-message: as asked\r\n", b"");
        }
        if path.starts_with("/api/") && path.contains("/private/") && token.as_deref() != Some(TOKEN) {
            return reply.send(401, "x-error-code: RepoNotFound\r\nx-error-message: Repository not found\r\n", b"");
        }
        if path.starts_with("/gated/") && token.as_deref() != Some(TOKEN) {
            return reply.send(403, "x-error-code: GatedRepo\r\nx-error-message: Access is restricted\r\n", b"");
        }
        if path.starts_with("/api/") && token.as_deref().is_some_and(|token| token != TOKEN) {
            return reply.send(401, "x-error-message: Invalid credentials in Authorization header\r\n", b"");
        }
        if let Some(digits) = path.strip_prefix("/storage/") {
            let contents = self.repos.values().flatten().find(|(_, contents)| checksum(contents) == digits);
            return self.contents(contents.unwrap().1, start, fault, &mut reply);
        }
        if let Some(rest) = path.strip_prefix("/api/") {
            return self.api(rest, &mut reply);
        }
        match (self.large(&path), self.file(&path)) {
            (Some(contents), _) => {
                let location = format!("location: http://localhost:{}/storage/{}\r\n", self.port, checksum(contents));
                reply.send(302, &location, b"")
            }
            (None, Some(contents)) => self.contents(contents, start, fault, &mut reply),
            (None, None) => reply.send(404, "x-error-code: EntryNotFound\r\n", b""),
        }
    }

    fn api(&self, path: &str, reply: &mut Reply) -> std::io::Result<()> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.splitn(5, '/').collect();
        let &[kind, org, name, what, revision] = parts.as_slice() else { return reply.send(404, "", b"") };
        let Some(files) = self.repos.get(&format!("{kind}/{org}/{name}")) else {
            return reply.send(404, "x-error-code: RepoNotFound\r\n", b"");
        };
        if revision != "main" && revision != "v1%2Fa" && revision != COMMIT {
            return reply.send(404, "x-error-code: RevisionNotFound\r\n", b"");
        }
        if what == "revision" {
            return reply.send(200, "", json!({ "sha": COMMIT, "id": format!("{org}/{name}") }).to_string().as_bytes());
        }
        let first: usize = query.split_once("cursor=").map_or(0, |(_, cursor)| cursor.parse().unwrap());
        let entries: Vec<_> =
            files.iter().skip(first).take(PAGE).map(|(path, contents)| entry(path, contents)).collect();
        let next = if first + PAGE < files.len() {
            let url = format!("http://127.0.0.1:{}/api/{path}?recursive=true&cursor={}", self.port, first + PAGE);
            format!("link: <{url}>; rel=\"next\"\r\n")
        } else {
            String::new()
        };
        reply.send(200, &next, json!(entries).to_string().as_bytes())
    }

    /// Sends `contents` from the byte `asked` on.
    fn contents(&self, contents: &[u8], asked: usize, fault: Option<Fault>, reply: &mut Reply) -> std::io::Result<()> {
        if asked >= contents.len() && asked > 0 {
            return reply.send(416, "", b"");
        }
        let start = if matches!(fault, Some(Fault::NoRanges)) { 0 } else { asked };
        let mut body = contents[start..].to_vec();
        if matches!(fault, Some(Fault::Damage)) {
            body[0] ^= 1;
        }
        let range = format!("content-range: bytes {start}-{}/{}\r\n", contents.len() - 1, contents.len());
        let (status, headers) = if start > 0 { (206, range.as_str()) } else { (200, "") };
        let end = if let Some(Fault::CutAfter(n)) = fault { n.min(body.len()) } else { body.len() };
        // Before it is sent: the client may be done before the next line of this thread.
        self.sent.lock().unwrap().push((checksum(contents), asked, end));
        reply.head(status, headers, body.len())?;
        reply.0.write_all(&body[..end])
    }

    /// The file of `/[datasets/]org/name/resolve/COMMIT/path`.
    fn file(&self, path: &str) -> Option<&Vec<u8>> {
        let (repo, rest) = path.trim_start_matches('/').split_once("/resolve/")?;
        let repo = if repo.starts_with("datasets/") { repo.to_owned() } else { format!("models/{repo}") };
        self.repos.get(&repo)?.get(&rest.split_once('/')?.1.replace("%20", " "))
    }

    fn large(&self, path: &str) -> Option<&Vec<u8>> {
        self.file(path).filter(|contents| contents.len() >= LARGE)
    }
}

fn entry(path: &str, contents: &[u8]) -> serde_json::Value {
    let digits = checksum(contents);
    let stated = if path == HUGE { 1 << 60 } else { contents.len() };
    let lfs = (contents.len() >= LARGE).then(|| json!({ "oid": digits, "size": stated, "pointerSize": 134 }));
    // A large file's own object is a pointer.
    let size = if lfs.is_some() { 134 } else { contents.len() };
    let oid = if lfs.is_some() { "0".repeat(40) } else { digits };
    let mut entry = json!({ "type": "file", "path": path, "size": size, "oid": oid });
    if let Some(lfs) = lfs {
        entry["lfs"] = lfs;
    }
    entry
}

struct Reply(TcpStream);

impl Reply {
    fn send(&mut self, status: u16, headers: &str, body: &[u8]) -> std::io::Result<()> {
        self.head(status, headers, body.len())?;
        self.0.write_all(body)
    }

    fn head(&mut self, status: u16, headers: &str, length: usize) -> std::io::Result<()> {
        let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n");
        self.0.write_all(head.as_bytes())
    }
}
