//! Runs the API on a listener until it is told to stop, and then in an orderly way: no new work, what is in flight may
//! finish within a time limit. Who asks meanwhile is told so: a balancer sees `/ready` at 503, not a dead host. The caller
//! owns the socket and the signals, so that tests bring their own.

use std::{convert::Infallible, future::pending, io, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    api::{router::app, state::AppState},
    connection::{ConnectionTimeouts, serve_connection},
    engine::Engine,
};

/// After inference has failed, connections get this long to be told.
const FAREWELL: Duration = Duration::from_secs(5);

/// Requests that are cut off get this long to be told: hardly anything, since whoever cuts them off is waiting.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// When the system gives no more sockets, it is asked again after this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How connections are served.
#[derive(Clone)]
pub struct ServeOptions {
    /// How long draining may take.
    pub drain_timeout: Duration,
    /// How long a client may take.
    pub timeouts: ConnectionTimeouts,
    /// Connections that are served at once; others wait until one of these ends.
    pub max_connections: usize,
    /// `None`: plain HTTP.
    pub tls: Option<TlsAcceptor>,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request in flight was answered.
    Drained,
    /// Time ran out, or a second signal came: some were not.
    CutShort,
}

/// Why serving failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine is gone; only a restart helps.
    #[error("inference failed: {0}")]
    Inference(String),
}

/// Serves until the first of `signals`, then drains for a time; a second signal ends it at once.
///
/// # Errors
/// Inference fails.
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
        // Whoever knocks from now on is turned away by the system.
        drop(listener);
        // Clients in flight have their error events; this lets them arrive.
        let _ = timeout(FAREWELL, connections.all_ended()).await;
        return Err(ServeError::Inference(what));
    }
    tracing::info!(
        "shutting down: requests in flight get {} s, a second signal ends them at once",
        drain_timeout.as_secs()
    );
    let mut latecomers = connections.for_latecomers();
    let ended = tokio::select! {
        () = connections.all_ended() => Ended::Drained,
        never = latecomers.accept_all(&listener) => match never {},
        what = state.inference_failure() => return Err(ServeError::Inference(what)),
        () = sleep(drain_timeout) => {
            tracing::warn!("the drain timeout of {} s is over, requests in flight are cut off", drain_timeout.as_secs());
            Ended::CutShort
        }
        () = next(&mut signals) => {
            tracing::warn!("second signal, requests in flight are cut off");
            Ended::CutShort
        }
    };
    if ended == Ended::CutShort {
        let told = async {
            // It waits for the step in progress.
            let _ = spawn_blocking(move || state.engine().map(Engine::stop)).await;
            connections.all_ended().await;
        };
        let _ = timeout(LAST_WORDS, told).await;
    }
    Ok(ended)
}

/// The next signal; never, when nobody is left to give one.
async fn next(signals: &mut mpsc::Receiver<()>) {
    if signals.recv().await.is_none() {
        pending().await
    }
}

/// All connections. Dropping it cuts them off.
struct Connections {
    router: Router,
    options: ServeOptions,
    /// Whether a connection may bring more than one request.
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

    /// Of those who come while the others end: one request each, and nobody waits for them.
    fn for_latecomers(&self) -> Self {
        Self { keep_alive: false, ..Self::new(self.router.clone(), self.options.clone()) }
    }

    /// Takes in connections for ever.
    async fn accept_all(&mut self, listener: &TcpListener) -> Infallible {
        loop {
            // A place first: while there is none, clients wait in the system's own queue.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return pending().await };
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream, place),
                // The client has given up already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn serve(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // A token is a small packet, and waiting to fill a larger one would delay it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot set TCP_NODELAY: {error}");
        }
        let (router, timeouts, tls) = (self.router.clone(), self.options.timeouts, self.options.tls.clone());
        let (keep_alive, draining) = (self.keep_alive, self.draining.subscribe());
        self.tasks.spawn(async move {
            let _place = place;
            match tls {
                None => serve_connection(stream, router, (timeouts, keep_alive), draining).await,
                Some(tls) => match timeout(timeouts.head, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve_connection(stream, router, (timeouts, keep_alive), draining).await,
                    Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
            }
        });
    }

    /// Tells connections to end with the request in flight.
    fn start_draining(&self) {
        self.draining.send_replace(true);
    }

    async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}
