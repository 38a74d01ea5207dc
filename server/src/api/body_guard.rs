//! A response body that owns a guard: the guard is dropped once the body is sent completely or the client has
//! disconnected.

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
    Body::new(Guarded { body, _guard: guard })
}

struct Guarded<Guard> {
    body: Body,
    _guard: Guard,
}

impl<Guard: Unpin> HttpBody for Guarded<Guard> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
