//! Runs the API on a listener until it is told to stop, and then in an orderly way: no new work, what is in flight may
//! finish within a time limit. The caller owns the socket and the signals, so that tests bring their own.

use std::{future::pending, io, time::Duration};

use axum::serve::ListenerExt;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::api::{router::app, state::AppState};

/// After inference has failed, connections get this long to be told.
const FAREWELL: Duration = Duration::from_secs(5);

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
    /// The socket broke.
    #[error("cannot accept connections: {0}")]
    Io(#[from] io::Error),
    /// The engine is gone; only a restart helps.
    #[error("inference failed: {0}")]
    Inference(String),
}

/// Serves until the first of `signals`, then drains for `drain_timeout` at most; a second signal ends it at once.
///
/// # Errors
/// The listener fails, or inference does.
pub async fn serve(
    listener: TcpListener,
    state: AppState,
    mut signals: mpsc::Receiver<()>,
    drain_timeout: Duration,
) -> Result<Ended, ServeError> {
    // A token is a small packet, and waiting to fill a larger one would delay it.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!("cannot set TCP_NODELAY: {error}");
        }
    });
    let (stop_accepting, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app(state.clone())).with_graceful_shutdown(async {
        // The sender is dropped only when this function ends, and the server with it.
        let _ = stopped.await;
    });
    let mut server = Box::pin(server.into_future());
    let failed = tokio::select! {
        outcome = &mut server => return finished(outcome),
        what = state.inference_failure() => Some(what),
        () = next(&mut signals) => None,
    };
    state.start_draining();
    let _ = stop_accepting.send(());
    if let Some(what) = failed {
        // Clients in flight have their error events; this lets them arrive.
        let _ = timeout(FAREWELL, server).await;
        return Err(ServeError::Inference(what));
    }
    tracing::info!(
        "shutting down: requests in flight get {} s, a second signal ends them at once",
        drain_timeout.as_secs()
    );
    tokio::select! {
        outcome = &mut server => finished(outcome),
        what = state.inference_failure() => Err(ServeError::Inference(what)),
        () = tokio::time::sleep(drain_timeout) => {
            tracing::warn!("the drain timeout of {} s is over, requests in flight are cut off", drain_timeout.as_secs());
            Ok(Ended::CutShort)
        }
        () = next(&mut signals) => {
            tracing::warn!("second signal, requests in flight are cut off");
            Ok(Ended::CutShort)
        }
    }
}

fn finished(outcome: io::Result<()>) -> Result<Ended, ServeError> {
    outcome.map(|()| Ended::Drained).map_err(ServeError::Io)
}

/// The next signal; never, when nobody is left to give one.
async fn next(signals: &mut mpsc::Receiver<()>) {
    if signals.recv().await.is_none() {
        pending().await
    }
}
