//! A running server: its address, and connections to it.

use std::{fmt, io, path::Path, time::Duration};

use anyhow::{Context, anyhow, bail, ensure};
use axum::{
    body::Body,
    http::{HeaderValue, Request, Response, Uri, header, uri::Scheme},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{cli::http_client::exchange, config::Secret, tls};

/// Timeout for opening the TCP connection. The time for an answer is not limited.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server with OpenAI's API.
pub(super) struct Remote {
    /// As it was given.
    url: String,
    host: String,
    port: u16,
    /// Prefix of the API's paths, without a slash at the end.
    prefix: String,
    /// The header `host`.
    authority: HeaderValue,
    tls: Option<TlsConnector>,
    /// The header `authorization`.
    key: Option<HeaderValue>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Remote {
    /// A server at `url`, with or without `/v1`. Nothing is sent yet.
    pub(super) fn new(url: &str, key: Option<&Secret>, certificate: Option<&Path>) -> anyhow::Result<Remote> {
        let invalid = || {
            anyhow!("`--url` must be the address of a server, got `{url}`\nhint: for example `http://127.0.0.1:8080`")
        };
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else { return Err(invalid()) };
        let is_https = *scheme == Scheme::HTTPS;
        ensure!((is_https || *scheme == Scheme::HTTP) && !authority.as_str().contains('@'), invalid());
        ensure!(is_https || certificate.is_none(), "`--tls-cert` requires a `--url` with https, got `{url}`");
        let key = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()))
                .map_err(|_| anyhow!("`--api-key` must consist of visible ASCII characters"))?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let tls = match (is_https, certificate) {
            (false, _) => None,
            (true, Some(certificate)) => Some(tls::connector(certificate)?),
            (true, None) => Some(tls::public_connector()?),
        };
        let path = uri.path().trim_end_matches('/');
        Ok(Remote {
            url: url.to_owned(),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| invalid())?,
            tls,
            key: key.transpose()?,
        })
    }

    /// The path of the API's `path` on this server.
    pub(super) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Sends a request over a separate connection, which ends when the response is dropped.
    pub(super) async fn send(&self, mut request: Request<Body>) -> anyhow::Result<Response<Body>> {
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("hearth/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = match timeout(CONNECT_TIMEOUT, connect).await {
            Ok(stream) => stream.with_context(|| format!("cannot connect to `{}`", self.url)),
            Err(_) => Err(anyhow!("`{}` does not answer within {} s", self.url, CONNECT_TIMEOUT.as_secs())),
        };
        let stream =
            stream.map_err(|error| anyhow!("{error:#}\nhint: is the server running? `hearth serve` starts one"))?;
        match &self.tls {
            None => exchange(stream, request).await.map_err(|error| {
                match error.chain().any(|cause| cause.is::<io::Error>()) {
                    true => error,
                    false => anyhow!(
                        "the response is not HTTP/1.1\nhint: the address of a server with TLS begins with `https://`"
                    ),
                }
            }),
            Some(connector) => {
                let name = ServerName::try_from(self.host.clone())
                    .map_err(|_| anyhow!("`{}` is not the name of a host", self.host))?;
                let Ok(stream) = timeout(CONNECT_TIMEOUT, connector.connect(name, stream)).await else {
                    bail!("`{}` does not answer in TLS within {} s", self.url, CONNECT_TIMEOUT.as_secs());
                };
                let stream = stream.map_err(|error| match tls::explained(&error, &self.host, "--tls-cert") {
                    Some(why) => anyhow!("cannot speak TLS with `{}`: {why}", self.url),
                    None => anyhow!(error).context(format!("cannot speak TLS with `{}`", self.url)),
                })?;
                exchange(stream, request).await
            }
        }
        .with_context(|| format!("`{}`", self.url))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn chat_url_accepts_an_optional_v1_path_and_rejects_invalid_urls() {
        for (url, host, port, path) in [
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, "/v1/models"),
            ("http://localhost:8080/", "localhost", 8080, "/v1/models"),
            ("http://localhost/v1/", "localhost", 80, "/v1/models"),
            ("https://example.org/llm/v1", "example.org", 443, "/llm/v1/models"),
            ("http://[::1]:9", "::1", 9, "/v1/models"),
        ] {
            let remote = Remote::new(url, None, None).unwrap();
            assert_eq!((remote.host.as_str(), remote.port), (host, port), "{url}");
            assert_eq!(remote.path("/v1/models"), path, "{url}");
        }
        for wrong in ["localhost:8080", "127.0.0.1", "ftp://x", "http://", "http://a@b", "x y"] {
            let error = Remote::new(wrong, None, None).unwrap_err().to_string();
            assert!(error.contains("`--url` must be the address of a server, got"), "{wrong}: {error}");
        }
        let key: Secret = "sk secret\n".parse().unwrap();
        let error = Remote::new("http://x", Some(&key), None).unwrap_err().to_string();
        assert_eq!(error, "`--api-key` must consist of visible ASCII characters");
    }
}
