//! Runs the API on a listener until it is stopped, with graceful shutdown: no new work is accepted, and requests in
//! flight may finish within a time limit. Meanwhile the listener still responds, so that load balancers see `/ready` at
//! 503 and not a dead host. The caller owns the socket and the signals; tests bring their own.

use std::{convert::Infallible, future::pending, io, sync::Arc, time::Duration};

use axum::Router;
use hearth_engine::tenant::TenantId;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    api::{router::app, wire::state::AppState},
    connection::{ConnectionOptions, ConnectionTimeouts, serve_connection},
};

/// Time for connections to send error responses after inference has failed.
const FAREWELL: Duration = Duration::from_secs(5);

/// Time for connections to send error responses after requests were cancelled. Short, because the caller waits for the
/// end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Pause before accepting again after the system ran out of sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Settings for serving connections.
#[derive(Clone)]
pub struct ServeOptions {
    /// Maximum duration of draining.
    pub drain_timeout: Duration,
    /// Timeouts for clients.
    pub timeouts: ConnectionTimeouts,
    /// Maximum number of open connections; further ones wait.
    pub max_connections: usize,
    /// `None`: plain HTTP.
    pub tls: Option<TlsAcceptor>,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request in flight was answered.
    Drained,
    /// Requests in flight were cancelled, because of the time limit or a second signal.
    CutShort,
}

/// Why serving failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine has failed; only a restart helps.
    #[error("inference failed: {0}")]
    Inference(String),
}

/// Serves until the first of `signals`, then drains within the time limit; a second signal ends it immediately.
///
/// # Errors
/// Inference has failed.
pub async fn serve(
    listener: TcpListener,
    state: AppState,
    mut signals: mpsc::Receiver<()>,
    options: ServeOptions,
) -> Result<Ended, ServeError> {
    let drain_timeout = options.drain_timeout;
    let mut connections = Connections::new(app(state.clone()), options);
    let failed = tokio::select! {
        never = connections.accept_all(&listener) => match never {},
        what = state.inference_failure() => Some(what),
        () = next(&mut signals) => None,
    };
    state.start_draining();
    connections.start_draining();
    if let Some(what) = failed {
        // The system rejects new connections from here on.
        drop(listener);
        // Lets the error events of requests in flight reach their clients.
        let _ = timeout(FAREWELL, connections.all_ended()).await;
        return Err(ServeError::Inference(what));
    }
    tracing::info!(
        "shutting down: requests in flight have {} s to finish; a second signal cancels them",
        drain_timeout.as_secs()
    );
    let mut latecomers = connections.for_latecomers();
    let ended = tokio::select! {
        () = connections.all_ended() => Ended::Drained,
        never = latecomers.accept_all(&listener) => match never {},
        what = state.inference_failure() => return Err(ServeError::Inference(what)),
        () = sleep(drain_timeout) => {
            tracing::warn!("the drain timeout of {} s is over: cancelling the requests in flight", drain_timeout.as_secs());
            Ended::CutShort
        }
        () = next(&mut signals) => {
            tracing::warn!("second signal: cancelling the requests in flight");
            Ended::CutShort
        }
    };
    if ended == Ended::CutShort {
        state.stop_receiving();
        let told = async {
            // Waits for the step in progress.
            let _ = spawn_blocking(move || state.engine().map(|engine| engine.stop())).await;
            connections.all_ended().await;
        };
        let _ = timeout(LAST_WORDS, told).await;
    }
    Ok(ended)
}

/// The next signal; waits for ever if the sender is gone.
async fn next(signals: &mut mpsc::Receiver<()>) {
    if signals.recv().await.is_none() {
        pending().await
    }
}

/// All connections. Dropping it closes them.
struct Connections {
    router: Router,
    options: ServeOptions,
    /// Whether a connection may have more than one request.
    keep_alive: bool,
    places: Arc<Semaphore>,
    draining: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Connections {
    fn new(router: Router, options: ServeOptions) -> Self {
        let places = Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS)));
        let draining = watch::Sender::new(false);
        Self { router, options, keep_alive: true, places, draining, tasks: JoinSet::new() }
    }

    /// For connections during the shutdown: one request each, and the shutdown does not wait for them.
    fn for_latecomers(&self) -> Self {
        Self { keep_alive: false, ..Self::new(self.router.clone(), self.options.clone()) }
    }

    /// Accepts connections for ever.
    async fn accept_all(&mut self, listener: &TcpListener) -> Infallible {
        loop {
            // Get a permit first: while there is none, clients wait in the system's backlog.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return pending().await };
            match listener.accept().await {
                Ok((stream, address)) => self.serve(stream, TenantId::of_address(address.ip()), place),
                // The client has already disconnected.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn serve(&mut self, stream: TcpStream, tenant: TenantId, place: OwnedSemaphorePermit) {
        // A token is a small packet, which must not wait for more data.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot set TCP_NODELAY: {error}");
        }
        let (router, timeouts, tls) = (self.router.clone(), self.options.timeouts, self.options.tls.clone());
        let options = ConnectionOptions { timeouts, keep_alive: self.keep_alive, tenant };
        let draining = self.draining.subscribe();
        self.tasks.spawn(async move {
            let _place = place;
            match tls {
                None => serve_connection(stream, router, options, draining).await,
                Some(tls) => match timeout(timeouts.head, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve_connection(stream, router, options, draining).await,
                    Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
                    Err(_) => tracing::debug!("TLS handshake timed out"),
                },
            }
        });
    }

    /// Makes connections end after the request in flight.
    fn start_draining(&self) {
        self.draining.send_replace(true);
    }

    async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}
