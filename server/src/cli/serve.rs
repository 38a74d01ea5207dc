//! `hearth serve`: the HTTP server.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;
use hearth_engine::observer::Observer;
use hearth_model::{files::open_files, model_source::ModelSource, ops};
use tokio::{
    net::{TcpListener, TcpSocket, lookup_host},
    runtime,
    sync::mpsc,
    task::spawn_blocking,
};

use super::download;
use crate::{
    api::{
        guard::{options::ApiOptions, preparation::MIN_PREPARING_THREADS},
        wire::state::AppState,
    },
    config::ServerConfig,
    engine::Engine,
    serve::{Ended, serve},
    telemetry::exporter::{Exporter, SpanSender},
};

/// Timeout for exporting the last spans.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Connections that may wait to be accepted; the kernel may allow fewer. `TcpListener::bind` allows only 128: in larger
/// bursts, clients wait for seconds until they try again.
const BACKLOG: u32 = 4096;

/// The arguments of `hearth serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) config: ServerConfig,
}

/// Serves until SIGTERM or ctrl-c.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    ops::limit_arenas();
    // Blocking threads tokenize prompts: more threads than cores would only use more memory, in more allocator arenas.
    let n_blocking = thread::available_parallelism().map_or(2, usize::from).max(MIN_PREPARING_THREADS);
    let runtime = runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(n_blocking).build();
    let runtime = runtime.context("cannot start the runtime")?;
    let exporter = args.config.exporter()?;
    let outcome = runtime.block_on(run_async(&args.config, exporter.as_ref().map(Exporter::sender)));
    // Loading a model cannot be interrupted, and dropped requests are not awaited.
    runtime.shutdown_background();
    if exporter.is_some_and(|exporter| !exporter.finish(LAST_SPANS)) {
        tracing::warn!("the last spans were not exported within {} s", LAST_SPANS.as_secs());
    }
    outcome
}

async fn run_async(config: &ServerConfig, spans: Option<SpanSender>) -> anyhow::Result<()> {
    // Before loading the model, so that a port that is in use is reported immediately.
    config.check()?;
    config.kv_events.check()?;
    let serve_options = config.serve_options()?;
    let listener = bind(&config.host, config.port).await?;
    config.model.model.as_ref().map_or(Ok(()), ModelSource::require_path)?;
    let address = listener.local_addr().context("cannot get the listening address")?;
    let api_options = ApiOptions { spans, ..config.api_options(address.ip())? };
    tracing::info!("listening on {}://{address}", api_options.scheme);
    if !address.ip().to_canonical().is_loopback() && api_options.keys.is_open() {
        tracing::warn!(
            "no API key is set: anyone who can reach {address} can use this server; set `--api-key-file`, or listen on \
             127.0.0.1 (`--host`)"
        );
    }
    for warning in config.warnings(open_files::raise_limit()) {
        tracing::warn!("{warning}");
    }
    let events = kv_events(config).await?;
    let state = AppState::loading_with(config.model.model_id(), api_options);
    let serving = serve(listener, state.clone(), signals()?, serve_options);
    tokio::pin!(serving);

    let (started, models, options) = (Instant::now(), config.clone(), config.engine_options());
    let ended = tokio::select! {
        ended = &mut serving => ended?,
        engine = spawn_blocking(move || Engine::start_observed(move || models.load(&mut download::to_log()), options, events)) => {
            let engine = engine.map_err(|error| anyhow!("cannot start the engine: {error}"))??;
            log_ready(&state, &engine, started.elapsed());
            state.set_engine(engine);
            serving.await?
        }
    };
    if ended == Ended::Drained
        && let Some(engine) = state.engine()
    {
        engine.stop();
    }
    tracing::info!("stopped");
    Ok(())
}

/// Publishes the events of the prefix cache, if they are wanted.
#[cfg(feature = "kv-events")]
async fn kv_events(config: &ServerConfig) -> anyhow::Result<Option<Arc<dyn Observer>>> {
    let events = crate::kv_events::KvEvents::bind(&config.kv_events).await?;
    Ok(events.map(|events| events as Arc<dyn Observer>))
}

#[cfg(not(feature = "kv-events"))]
async fn kv_events(_config: &ServerConfig) -> anyhow::Result<Option<Arc<dyn Observer>>> {
    Ok(None)
}

async fn bind(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    listen(host, port).await.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => "\nhint: another program uses this port; choose another with `--port`",
            io::ErrorKind::PermissionDenied => {
                "\nhint: ports below 1024 need privileges; choose another with `--port`"
            }
            _ => {
                "\nhint: `--host` must be an address or a name of this machine, such as `127.0.0.1`, `::1`, `localhost`, or \
                 `0.0.0.0` for all of its addresses"
            }
        };
        anyhow!("cannot listen on `{host}:{port}`: {error}{hint}")
    })
}

/// Listens on the first address of the host that allows it.
async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut outcome = Err(io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any address"));
    for address in lookup_host((host, port)).await? {
        outcome = listen_on(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server need not wait until the system has forgotten old connections. Not on Windows, where this
    // option would let another process take the port of a running server.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn log_ready(state: &AppState, engine: &Engine, elapsed: Duration) {
    let model = engine.model();
    let stats = engine.stats().borrow().clone();
    tracing::info!(
        parameters = model.config.n_params(),
        context_tokens = model.limits.max_seq_len,
        kv_cache_pages = stats.n_pages,
        kv_cache_dtype = %stats.kv_dtype,
        load_ms = elapsed.as_millis() as u64,
        "model `{}` is ready",
        state.model_id()
    );
}

/// Sends one message for each SIGTERM or ctrl-c.
fn signals() -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(2);
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .context("cannot listen for SIGTERM")?;
    tokio::spawn(async move {
        loop {
            #[cfg(unix)]
            tokio::select! {
                _ = terminate.recv() => {}
                interrupted = tokio::signal::ctrl_c() => if interrupted.is_err() { return },
            }
            #[cfg(not(unix))]
            if tokio::signal::ctrl_c().await.is_err() {
                return;
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn listen_backlog_holds_hundreds_of_unaccepted_connections() {
        const N: usize = 300;
        let most: usize = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
        let listener = bind("127.0.0.1", 0).await.unwrap();
        let address = listener.local_addr().unwrap();
        let waiting: Result<Vec<_>, _> =
            (0..N.min(most)).map(|_| TcpStream::connect_timeout(&address, Duration::from_secs(5))).collect();
        assert!(waiting.is_ok(), "{waiting:?}");
    }
}
