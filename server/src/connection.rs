//! One client's connection: it is cut when the client takes too long to say what it wants or to take what it gets.
//!
//! hyper has one timer for request heads, which would also be the time that a connection may lie idle between requests.
//! A slow head is an attack or a dead line, an idle connection is a client with a pool; so the two are told apart here,
//! below hyper, by whether a request is being served.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
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

use crate::api::guarded::guarded;

/// Largest head of a request. Larger ones are answered with 431.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Longest patience, so that a larger one does not overflow the clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// For the TLS handshake, and from a request's first byte to the end of its head.
    pub head: Duration,
    /// Between two requests, and for taking anything of an answer that waits to be sent.
    pub idle: Duration,
}

/// Serves one connection to its end, of its first request if it may not live on (`keep_alive`), or, once `draining` turns
/// true, of the request in flight.
pub(crate) async fn serve_connection<Io>(
    io: Io,
    router: Router,
    (timeouts, keep_alive): (ConnectionTimeouts, bool),
    mut draining: watch::Receiver<bool>,
) where
    Io: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let requests = Arc::new(Requests::default());
    let io = Watched::new(io, timeouts, Arc::clone(&requests));
    let service = Counted { router: TowerToHyperService::new(router), requests: Arc::clone(&requests) };
    let mut builder = http1::Builder::new();
    // `Watched` has the timers. With one of its own hyper looks for the next request right after an answer, not only
    // when something comes, and that starts ours.
    builder.timer(TokioTimer::new()).header_read_timeout(LONGEST).max_buf_size(MAX_HEAD_BYTES).keep_alive(keep_alive);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    // An error says that the server has gone: that is an end too.
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

/// How many requests a connection has begun and ended.
#[derive(Debug, Default)]
struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
    /// No more are to follow.
    is_last: AtomicBool,
}

/// Counts a request as ended when it goes: with the last of the answer, or when nobody waits for that any more.
struct InFlight(Arc<Requests>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The API, telling the connection below when a request is being served.
struct Counted {
    router: TowerToHyperService<Router>,
    requests: Arc<Requests>,
}

impl Service<hyper::Request<Incoming>> for Counted {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        self.requests.begun.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(Arc::clone(&self.requests));
        let answer = self.router.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body: Body| guarded(body, in_flight))) })
    }
}

/// A connection's bytes, with an end to patience.
struct Watched<Io> {
    io: Io,
    timeouts: ConnectionTimeouts,
    requests: Arc<Requests>,
    /// Requests that had begun when the reading timer was last looked at.
    n_seen: u64,
    reading: Reading,
    read_timer: Timer,
    write_timer: Timer,
}

/// What is being waited for while no request is served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The first byte of the next request.
    Nothing,
    /// The rest of a head.
    Head,
}

/// Runs from when it is first asked about until it is stopped.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether `patience` is over.
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
            // Whoever connects has something to say.
            reading: Reading::Head,
            read_timer: Timer::default(),
            write_timer: Timer::default(),
        }
    }

    /// Notices that requests came and went since the last look; `true` while one is being served.
    fn is_serving(&mut self) -> bool {
        let begun = self.requests.begun.load(Ordering::Relaxed);
        if begun != self.n_seen {
            self.n_seen = begun;
            self.reading = Reading::Nothing;
            self.read_timer.stop();
        }
        begun != self.requests.ended.load(Ordering::Relaxed)
    }

    /// Lets a write wait only so long.
    fn bound<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer.stop();
            return written;
        }
        let over = self.write_timer.poll_over(self.timeouts.idle, context);
        over.map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")))
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
            // As if the client had hung up: hyper itself would wait for a first request.
            buffer.set_filled(before);
            return Poll::Ready(Ok(()));
        }
        if read.is_ready() {
            if buffer.filled().len() > before && this.reading == Reading::Nothing {
                this.reading = Reading::Head;
                this.read_timer.stop();
            }
            // A head that comes in drops, faster than it is read, must not outlive its time either.
            if this.reading == Reading::Head && this.read_timer.poll_over(this.timeouts.head, context).is_ready() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request's head takes too long")));
            }
            return read;
        }
        let patience = match this.reading {
            Reading::Nothing => this.timeouts.idle,
            Reading::Head => this.timeouts.head,
        };
        let over = this.read_timer.poll_over(patience, context);
        over.map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Watched<Io> {
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
        let shut = Pin::new(&mut self.io).poll_shutdown(context);
        self.bound(shut, context)
    }
}
