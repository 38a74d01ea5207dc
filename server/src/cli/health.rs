//! `hearth health`: checks that the server with these settings is healthy, for probes and container images.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context, anyhow, bail, ensure};
use axum::{
    body::{Body, Bytes, to_bytes},
    http::{Request, header},
};
use clap::Args;
use serde_json::Value;
use tokio::{net::TcpStream, runtime, time::timeout};
use tokio_rustls::rustls::pki_types::ServerName;

use super::{http_client::exchange, output::print};
use crate::{config::ServerConfig, tls};

/// Timeout for the whole check. Docker's timeout for the image's health check is 5 s.
const PATIENCE: Duration = Duration::from_secs(4);

/// Maximum size of the response's body.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The settings that define the server's address, by their ids on the command line, and their help.
const RELEVANT: [(&str, &str); 3] = [
    ("host", "Address that the server listens on"),
    ("port", "Port that the server listens on"),
    ("tls_cert", "PEM file with the server's certificate chain; speaks HTTPS"),
];

/// The arguments of `hearth health`: all of `hearth serve`, so that its command line and variables can be passed unchanged.
/// Those that do not say where the server is have no effect and are hidden from the help.
#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    config: ServerConfig,
}

/// Hides the flags without effect from the help.
pub(super) fn hide_irrelevant(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| match RELEVANT.iter().find(|(id, _)| *id == arg.get_id().as_str()) {
        Some((_, help)) => arg.help(*help),
        None => arg.hide(true),
    })
}

/// The address of the server, as seen from its own machine.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    host: String,
    port: u16,
}

/// Prints one line if the server is healthy.
///
/// # Errors
/// The server is not healthy or does not respond in time.
pub(crate) fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let config = &args.config;
    ensure!(config.port != 0, "`--port` must be the port that the server listens on, got 0");
    let address = Address::of(&config.host, config.port);
    let scheme = if config.http.tls_cert.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}/health");
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let asked = runtime.block_on(async { timeout(PATIENCE, ask(config, &address)).await });
    // The system's name lookup may still be running.
    runtime.shutdown_background();
    let (status, body) = match asked {
        Ok(answer) => answer.with_context(|| format!("`{url}`"))?,
        Err(_) => bail!("`{url}` did not answer within {} s", PATIENCE.as_secs()),
    };
    if status != 200 {
        bail!("`{url}` answered {status}{}", message(&body).map_or_else(String::new, |message| format!(": {message}")));
    }
    print(&format!("`{url}` is healthy\n"))
}

/// The status and the body of the response. A body that cannot be read is empty.
async fn ask(config: &ServerConfig, address: &Address) -> anyhow::Result<(u16, Bytes)> {
    let connector = config.http.tls_cert.as_deref().map(tls::connector).transpose()?;
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await.context("cannot connect")?;
    let request = Request::get("/health").header(header::HOST, address.to_string()).header(header::CONNECTION, "close");
    let request = request.body(Body::empty())?;
    let answered = match connector {
        None => exchange(stream, request).await,
        Some(connector) => {
            // The connector accepts one certificate and does not check names.
            let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let stream = connector.connect(name, stream).await;
            let stream = stream.map_err(|error| match tls::explained(&error, &address.host, "--tls-cert") {
                // One line: it is kept by whoever runs health checks.
                Some(why) => anyhow!("cannot speak TLS: {}", why.lines().next().unwrap_or_default()),
                None => anyhow!(error).context("cannot speak TLS"),
            })?;
            exchange(stream, request).await
        }
    };
    let response = answered.map_err(|error| match error.chain().any(|cause| cause.is::<io::Error>()) {
        true => error,
        false => anyhow!("the response is not HTTP/1.1: does the server use TLS (`--tls-cert`)?"),
    })?;
    let status = response.status().as_u16();
    Ok((status, to_bytes(response.into_body(), MAX_ANSWER_BYTES).await.unwrap_or_default()))
}

/// The first line of an error's message.
fn message(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body.pointer("/error/message")?.as_str()?.lines().next()?.to_owned())
}

impl Address {
    /// A server that listens on all addresses is contacted over loopback.
    fn of(host: &str, port: u16) -> Self {
        let host = match host.parse() {
            Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.to_string(),
            Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.to_string(),
            _ => host.to_owned(),
        };
        Self { host, port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_connects_to_wildcard_hosts_over_loopback() {
        for (host, shown) in [
            ("0.0.0.0", "127.0.0.1:80"),
            ("::", "[::1]:80"),
            ("0:0::0", "[::1]:80"),
            ("::1", "[::1]:80"),
            ("10.1.2.3", "10.1.2.3:80"),
            ("localhost", "localhost:80"),
        ] {
            assert_eq!(Address::of(host, 80).to_string(), shown);
        }
    }

    #[test]
    fn health_check_shows_the_first_line_of_an_error_message() {
        let body = br#"{"error": {"message": "inference failed: x\nhint: y"}}"#;
        assert_eq!(message(body).as_deref(), Some("inference failed: x"));
        assert_eq!(message(b"{}"), None);
    }
}
