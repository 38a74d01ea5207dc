//! Serves one client connection, and closes it if the client is too slow to send a request or to read the response.
//!
//! hyper has a single timer for request heads, which would also limit idle time between requests. But a slow head is an
//! attack or a dead line, while an idle connection belongs to a client's pool. So this layer below hyper distinguishes
//! the two, by whether a request is in progress.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use hearth_engine::tenant::TenantId;
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

use crate::api::guard::body_guard::{drop_with_body, drop_with_sent_body};

/// Maximum size of a request's head. Larger ones are a 431.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Time in which a client may send the rest of a body that was answered early, as in nginx. If the connection were closed
/// at once, the system would reset it while the client still sends, and the answer could be lost.
const LINGER_TIME: Duration = Duration::from_secs(30);

/// Maximum number of bytes that the client may send in [`LINGER_TIME`].
const LINGER_BYTES: usize = 64 << 20;

/// Upper limit of timeouts, so that adding one to the clock does not overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Timeouts for a client.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Timeout of the TLS handshake, and of reading a request's head from its first byte.
    pub head: Duration,
    /// Between two requests, and for stalled writes.
    pub idle: Duration,
}

/// How to serve a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionOptions {
    pub(crate) timeouts: ConnectionTimeouts,
    /// Whether it may have more than one request.
    pub(crate) keep_alive: bool,
    /// Who sends requests that have no API key.
    pub(crate) tenant: TenantId,
}

/// Serves one connection until it ends: after its first request without `keep_alive`, or once `draining` is true, after
/// the request in progress.
pub(crate) async fn serve_connection<Io>(
    io: Io,
    router: Router,
    ConnectionOptions { timeouts, keep_alive, tenant }: ConnectionOptions,
    mut draining: watch::Receiver<bool>,
) where
    Io: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let requests = Arc::new(Requests::default());
    let io = Watched::new(io, timeouts, Arc::clone(&requests));
    let service = Counted { router: TowerToHyperService::new(router), tenant, requests: Arc::clone(&requests) };
    let mut builder = http1::Builder::new();
    // `Watched` applies the timeouts, so hyper's own must never pass. It is set all the same: with it, hyper reads from
    // the connection right after each response, and this read starts the idle timer of `Watched`.
    builder.timer(TokioTimer::new()).header_read_timeout(LONGEST).max_buf_size(MAX_HEAD_BYTES).keep_alive(keep_alive);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    // The sender is gone when the server ends: then drain too.
    let drained = async { drop(draining.wait_for(|draining| *draining).await) };
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = drained => {
            requests.is_last.store(true, Ordering::Relaxed);
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!("a connection ended early: {error:?}");
    }
}

/// Number of requests that began and ended on a connection.
#[derive(Debug, Default)]
struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
    /// No further requests follow.
    is_last: AtomicBool,
    /// A request was answered before its body was received.
    is_cut_short: AtomicBool,
}

/// Counts a request as ended when dropped: after the response is sent, or when the client has disconnected.
struct InFlight(Arc<Requests>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Dropped with the body of a request.
struct BodyWatch {
    requests: Arc<Requests>,
    /// Whether the body was received to its end.
    is_received: bool,
}

impl Drop for BodyWatch {
    fn drop(&mut self) {
        if !self.is_received {
            self.requests.is_cut_short.store(true, Ordering::Relaxed);
        }
    }
}

/// The API, wrapped to count requests in progress and to add the client's address.
struct Counted {
    router: TowerToHyperService<Router>,
    tenant: TenantId,
    requests: Arc<Requests>,
}

impl Service<hyper::Request<Incoming>> for Counted {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        self.requests.begun.fetch_add(1, Ordering::Relaxed);
        let requests = Arc::clone(&self.requests);
        let in_flight = InFlight(Arc::clone(&requests));
        let watch = BodyWatch { requests: Arc::clone(&requests), is_received: false };
        let mut request =
            request.map(|body| drop_with_sent_body(Body::new(body), watch, |watch| watch.is_received = true));
        request.extensions_mut().insert(self.tenant);
        let answer = self.router.call(request);
        Box::pin(async move {
            let mut response = answer.await?.map(|body: Body| drop_with_body(body, in_flight));
            if requests.is_cut_short.load(Ordering::Relaxed) {
                // The rest of the body follows on the connection, so no further request can be read from it.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}

/// The connection's byte stream, with timeouts.
struct Watched<Io> {
    io: Io,
    timeouts: ConnectionTimeouts,
    requests: Arc<Requests>,
    /// Number of begun requests when the read timer was last checked.
    n_seen: u64,
    reading: Reading,
    read_timer: Timer,
    write_timer: Timer,
    /// Whether everything is sent and the writing side is closed.
    is_shut: bool,
    linger_timer: Timer,
    /// Number of bytes that may still be received after that.
    n_lingering: usize,
}

/// What the connection waits for while no request is in progress.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The first byte of the next request.
    Nothing,
    /// The rest of a head.
    Head,
}

/// A timer that starts when first polled and runs until stopped.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready once `patience` has passed.
    fn poll_over(&mut self, patience: Duration, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience.min(LONGEST))));
        sleep.as_mut().poll(context)
    }

    fn stop(&mut self) {
        self.0 = None;
    }
}

impl<Io> Watched<Io> {
    fn new(io: Io, timeouts: ConnectionTimeouts, requests: Arc<Requests>) -> Self {
        Self {
            io,
            timeouts,
            requests,
            n_seen: 0,
            // The timeout of a head applies from the start of a connection.
            reading: Reading::Head,
            read_timer: Timer::default(),
            write_timer: Timer::default(),
            is_shut: false,
            linger_timer: Timer::default(),
            n_lingering: LINGER_BYTES,
        }
    }

    /// Updates the state after requests began or ended; returns whether one is in progress.
    fn is_serving(&mut self) -> bool {
        let begun = self.requests.begun.load(Ordering::Relaxed);
        if begun != self.n_seen {
            self.n_seen = begun;
            self.reading = Reading::Nothing;
            self.read_timer.stop();
        }
        begun != self.requests.ended.load(Ordering::Relaxed)
    }

    /// Applies the timeout to a write.
    fn bound<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer.stop();
            return written;
        }
        let over = self.write_timer.poll_over(self.timeouts.idle, context);
        over.map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read the response")))
    }
}

impl<Io: AsyncRead + Unpin> Watched<Io> {
    /// Receives the rest of the client's data, until it closes the connection or a limit is reached. Ends when the
    /// server drains.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 8 << 10];
        while self.n_lingering > 0 && !self.requests.is_last.load(Ordering::Relaxed) {
            if self.linger_timer.poll_over(LINGER_TIME, context).is_ready() {
                break;
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            match (ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer)), buffer.filled().len()) {
                (Err(_), _) | (Ok(()), 0) => break,
                (Ok(()), n_bytes) => self.n_lingering = self.n_lingering.saturating_sub(n_bytes),
            }
        }
        Poll::Ready(())
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Watched<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let is_serving = this.is_serving();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(context, buffer);
        if is_serving {
            return read;
        }
        if this.requests.is_last.load(Ordering::Relaxed) {
            // Reports the end of the stream, as if the client had disconnected: hyper would keep waiting for a first
            // request.
            buffer.set_filled(before);
            return Poll::Ready(Ok(()));
        }
        if read.is_ready() {
            if buffer.filled().len() > before && this.reading == Reading::Nothing {
                this.reading = Reading::Head;
                this.read_timer.stop();
            }
            // A head that arrives in small pieces must not outlive the timeout.
            if this.reading == Reading::Head && this.read_timer.poll_over(this.timeouts.head, context).is_ready() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "timeout while receiving the request's head",
                )));
            }
            return read;
        }
        let patience = match this.reading {
            Reading::Nothing => this.timeouts.idle,
            Reading::Head => this.timeouts.head,
        };
        let over = this.read_timer.poll_over(patience, context);
        over.map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the connection is idle")))
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<Io> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.bound(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.bound(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.bound(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_shut {
            let shut = Pin::new(&mut this.io).poll_shutdown(context);
            ready!(this.bound(shut, context))?;
            this.is_shut = true;
        }
        if this.requests.is_cut_short.load(Ordering::Relaxed) {
            ready!(this.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}
