//! A body that owns a guard. With a response's, the guard is dropped once the body is sent completely or the client has
//! disconnected; with a request's, once the body has been received or is not wanted any more.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
};
use hyper::body::{Frame, SizeHint};

/// `body`, with `guard` dropped together with it.
pub(crate) fn drop_with_body<Guard: Send + Unpin + 'static>(body: Body, guard: Guard) -> Body {
    drop_with_sent_body(body, guard, |_| {})
}

/// As [`drop_with_body`], but calls `sent` before the guard is dropped if the body was read to its end. `sent` is not
/// called if the body fails, or is dropped earlier, for example because the client has disconnected.
pub(crate) fn drop_with_sent_body<Guard: Send + Unpin + 'static>(
    body: Body,
    mut guard: Guard,
    sent: fn(&mut Guard),
) -> Body {
    // An empty body is not polled.
    if body.is_end_stream() {
        sent(&mut guard);
    }
    Body::new(Guarded { body, guard, sent })
}

struct Guarded<Guard> {
    body: Body,
    guard: Guard,
    sent: fn(&mut Guard),
}

impl<Guard: Unpin> HttpBody for Guarded<Guard> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        // A body whose last frame is known is not polled again.
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            let Self { guard, sent, .. } = &mut *self;
            sent(guard);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use axum::body::to_bytes;
    use tokio_stream::iter;

    use super::*;

    #[tokio::test]
    async fn response_body_counts_as_sent_only_when_read_to_its_end() {
        let piece = || Ok(Bytes::from_static(b"x"));
        let failure = || Err(Error::new("malformed"));
        for (pieces, is_whole) in [
            (vec![], true),
            (vec![piece(), piece()], true),
            (vec![failure()], false),
            (vec![piece(), failure()], false),
        ] {
            let is_sent = Arc::new(AtomicBool::new(false));
            let body = Body::from_stream(iter(pieces));
            let body =
                drop_with_sent_body(body, Arc::clone(&is_sent), |is_sent| is_sent.store(true, Ordering::Relaxed));
            assert_eq!(to_bytes(body, usize::MAX).await.is_ok(), is_whole);
            assert_eq!(is_sent.load(Ordering::Relaxed), is_whole);
        }
    }
}
