//! The web page at `/` and the API reference at `/docs`: the files of `web/`, embedded in the binary.

use std::sync::{LazyLock, OnceLock};

use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use hearth_model::files::digest::Digest;

/// The pages load everything from this server, have no inline scripts or styles, and send no forms. Other pages must
/// not frame them (clickjacking). Only the sanitizer may turn text into HTML.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types dompurify";

/// An embedded file.
pub(crate) struct File {
    /// The path that it is served at.
    pub(crate) path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// Computed on first use.
    tag: OnceLock<String>,
}

/// Files of `web/`, each with the path that it is served at, by content type.
macro_rules! files {
    ($($content_type:literal { $($path:literal: $name:literal,)* })*) => {
        LazyLock::new(|| vec![$($(File {
            path: $path,
            content_type: concat!($content_type, "; charset=utf-8"),
            bytes: include_bytes!(concat!("../../../../web/", $name)),
            tag: OnceLock::new(),
        },)*)*])
    };
}

/// All files.
pub(crate) static FILES: LazyLock<Vec<File>> = files! {
    "text/html" {
        "/": "index.html",
        "/docs": "docs.html",
    }
    "text/css" {
        "/chat.css": "chat.css",
        "/docs.css": "docs.css",
        "/style.css": "style.css",
        "/tools.css": "tools.css",
    }
    "image/svg+xml" {
        "/icon.svg": "icon.svg",
    }
    "text/javascript" {
        "/api.js": "api.js",
        "/attachments.js": "attachments.js",
        "/attention-arcs.js": "attention-arcs.js",
        "/attention-map.js": "attention-map.js",
        "/attention.js": "attention.js",
        "/chart.js": "chart.js",
        "/chat-list.js": "chat-list.js",
        "/chat-message.js": "chat-message.js",
        "/chat-run.js": "chat-run.js",
        "/chat-settings.js": "chat-settings.js",
        "/chat-thread.js": "chat-thread.js",
        "/chat.js": "chat.js",
        "/compare.js": "compare.js",
        "/complete.js": "complete.js",
        "/context-meter.js": "context-meter.js",
        "/conversation.js": "conversation.js",
        "/docs.js": "docs.js",
        "/dom.js": "dom.js",
        "/drawer.js": "drawer.js",
        "/event-stream.js": "event-stream.js",
        "/float16.js": "float16.js",
        "/highlight.js": "highlight.js",
        "/inspect-tokens.js": "inspect-tokens.js",
        "/inspect.js": "inspect.js",
        "/key.js": "key.js",
        "/logit-lens.js": "logit-lens.js",
        "/main.js": "main.js",
        "/math.js": "math.js",
        "/mathml.js": "mathml.js",
        "/measure.js": "measure.js",
        "/models.js": "models.js",
        "/notice.js": "notice.js",
        "/parameter-form.js": "parameter-form.js",
        "/parameters.js": "parameters.js",
        "/prometheus.js": "prometheus.js",
        "/reasoning.js": "reasoning.js",
        "/render.js": "render.js",
        "/server.js": "server.js",
        "/settings.js": "settings.js",
        "/shortcuts.js": "shortcuts.js",
        "/snippets.js": "snippets.js",
        "/store.js": "store.js",
        "/suggestions.js": "suggestions.js",
        "/tabs.js": "tabs.js",
        "/text-statistics.js": "text-statistics.js",
        "/theme.js": "theme.js",
        "/vendor/highlight/bash.min.js": "vendor/highlight/bash.min.js",
        "/vendor/highlight/c.min.js": "vendor/highlight/c.min.js",
        "/vendor/highlight/core.min.js": "vendor/highlight/core.min.js",
        "/vendor/highlight/cpp.min.js": "vendor/highlight/cpp.min.js",
        "/vendor/highlight/css.min.js": "vendor/highlight/css.min.js",
        "/vendor/highlight/diff.min.js": "vendor/highlight/diff.min.js",
        "/vendor/highlight/go.min.js": "vendor/highlight/go.min.js",
        "/vendor/highlight/java.min.js": "vendor/highlight/java.min.js",
        "/vendor/highlight/javascript.min.js": "vendor/highlight/javascript.min.js",
        "/vendor/highlight/json.min.js": "vendor/highlight/json.min.js",
        "/vendor/highlight/markdown.min.js": "vendor/highlight/markdown.min.js",
        "/vendor/highlight/python.min.js": "vendor/highlight/python.min.js",
        "/vendor/highlight/rust.min.js": "vendor/highlight/rust.min.js",
        "/vendor/highlight/sql.min.js": "vendor/highlight/sql.min.js",
        "/vendor/highlight/typescript.min.js": "vendor/highlight/typescript.min.js",
        "/vendor/highlight/xml.min.js": "vendor/highlight/xml.min.js",
        "/vendor/highlight/yaml.min.js": "vendor/highlight/yaml.min.js",
        "/vendor/katex.min.js": "vendor/katex.min.js",
        "/vendor/marked.esm.js": "vendor/marked.esm.js",
        "/vendor/purify.es.mjs": "vendor/purify.es.mjs",
    }
    "text/plain" {
        "/vendor/licences/dompurify.txt": "vendor/licences/dompurify.txt",
        "/vendor/licences/highlight.txt": "vendor/licences/highlight.txt",
        "/vendor/licences/katex.txt": "vendor/licences/katex.txt",
        "/vendor/licences/marked.txt": "vendor/licences/marked.txt",
    }
};

impl File {
    /// The response to a request with these headers: the file, or 304 if the browser has it.
    pub(crate) fn response(&self, headers: &HeaderMap) -> Response {
        let own: [(HeaderName, &str); 3] = [
            (header::CONTENT_TYPE, self.content_type),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (own, revalidated(headers, self.tag.get_or_init(|| entity_tag(self.bytes)), self.bytes)).into_response()
    }
}

/// The entity tag of a response body.
pub(crate) fn entity_tag(bytes: &[u8]) -> String {
    format!("\"{}\"", Digest::of(bytes).prefix(24))
}

/// The response to a request with these headers: `body`, or 304 if the browser has the body with this entity tag.
pub(crate) fn revalidated(headers: &HeaderMap, tag: &str, body: impl IntoResponse) -> Response {
    let given = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|given| given.to_str().ok());
    let mut known = given.flat_map(|given| given.split(',')).map(str::trim);
    // Proxies that compress make tags weak.
    let has_it = known.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag);
    // The body changes with the binary and the server's state, so browsers must revalidate.
    let own = [(header::CACHE_CONTROL, "no-cache"), (header::ETAG, tag)];
    if has_it { (StatusCode::NOT_MODIFIED, own).into_response() } else { (own, body).into_response() }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// Paths of the files in a folder, relative to `root`.
    fn files_in(dir: &Path, root: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let paths = entries.flat_map(|path| {
            if path.is_dir() {
                return files_in(&path, root);
            }
            BTreeSet::from([path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/")])
        });
        paths.collect()
    }

    #[test]
    fn embedded_page_files_match_the_web_folder_and_content_types() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web");
        let mut there = files_in(&root, &root);
        for notes in ["README.md", "vendor/README.md"] {
            assert!(there.remove(notes), "{notes}");
        }
        let served: BTreeSet<String> = FILES
            .iter()
            .map(|file| match file.path {
                "/" => "index.html".to_owned(),
                "/docs" => "docs.html".to_owned(),
                path => path.trim_start_matches('/').to_owned(),
            })
            .collect();
        assert_eq!(served, there);
        for file in FILES.iter() {
            let name = file.path.trim_start_matches('/');
            let on_disk = fs::read(root.join(match file.path {
                "/" => "index.html",
                "/docs" => "docs.html",
                _ => name,
            }));
            assert!(on_disk.unwrap() == file.bytes, "{}", file.path);
            let extension = name.rsplit_once('.').map_or("html", |(_, extension)| extension);
            let expected = match extension {
                "js" | "mjs" => "text/javascript",
                "svg" => "image/svg+xml",
                "txt" => "text/plain",
                "css" => "text/css",
                _ => "text/html",
            };
            assert!(file.content_type.starts_with(expected), "{}", file.path);
        }
    }
}
