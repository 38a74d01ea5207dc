//! The engine's output: the events of a request, and the stream that carries them from the inference thread to the API.
//! Token ids, text and counts; no HTTP.

use std::{
    future::poll_fn,
    mem::size_of,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hearth_model::{Error, TokenId, sampling::TokenLogprobs};
use tokio::sync::mpsc;

use crate::metrics::{Outcome, PhaseTimes};

/// An event of a request, in this order: prompt log-probabilities if requested, tokens or a vector, then `Finished`.
#[derive(Clone, Debug)]
pub enum Event {
    /// One entry per prompt token; the first token has no log-probability.
    PromptLogprobs(Arc<Vec<Option<TokenLogprobs>>>),
    /// A token was generated.
    Token {
        /// Its id.
        id: TokenId,
        /// Text that is now complete. May be empty, and may include text of earlier tokens.
        text: String,
        /// Offset in characters of the token in the generated text.
        offset: usize,
        /// Its log-probability and the alternatives, if requested.
        logprobs: Option<TokenLogprobs>,
    },
    /// The request is complete.
    Finished {
        /// The finish reason.
        reason: FinishReason,
        /// The stop token or stop string, for [`FinishReason::Stop`].
        cause: Option<StopCause>,
        /// Text that was held back until now.
        text: String,
        /// Number of prompt tokens found in the prefix cache. Reported once by answers that share a prompt.
        cached_tokens: usize,
        /// Durations of the phases.
        spans: PhaseTimes,
    },
    /// The requested vector, `[d_model]`.
    Embedding(Vec<f32>),
}

/// Why a request ends without being finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request's deadline, this long after its arrival, has passed.
    TimedOut(Duration),
    /// The request is invalid: a parameter, and the error.
    Refused {
        /// The parameter's name in requests.
        param: &'static str,
        /// The message for the client.
        message: String,
    },
    /// The request failed, with a message for the client.
    Failed(String),
    /// The engine was stopped before the request was complete.
    Stopped,
    /// The receiver is too slow: too many events were waiting, and the request was cancelled.
    Overrun,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error {
            Error::Param { name, .. } => Self::Refused { param: name, message: error.to_string() },
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<&Failure> for Outcome {
    fn from(failure: &Failure) -> Self {
        if matches!(failure, Failure::TimedOut(_)) { Self::Abort } else { Self::Error }
    }
}

/// An event of one answer, by its index in the submission, or the failure that ends it.
pub(super) type Outgoing = (usize, Result<Event, Failure>);

/// The reason for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
}

impl From<FinishReason> for Outcome {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// The cause of a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// A token that ends generation.
    Token(TokenId),
    /// A stop string.
    Text(String),
}

/// Maximum size in bytes of the waiting events of a submission, so that slow clients cannot fill the memory.
const MAX_BACKLOG_BYTES: usize = 64 << 20;

/// Approximate size of a waiting event in bytes.
fn n_bytes(outgoing: &Result<Event, Failure>) -> usize {
    size_of::<Outgoing>() + outgoing.as_ref().map_or(0, Event::n_bytes)
}

impl Event {
    /// Approximate size of its allocations in bytes.
    fn n_bytes(&self) -> usize {
        let reported = |logprobs: &TokenLogprobs| size_of_val(logprobs.top.as_slice()) + size_of::<TokenLogprobs>();
        match self {
            // The answers to a prompt share them, and requests for too many are rejected.
            Self::PromptLogprobs(_) => 0,
            Self::Token { text, logprobs, .. } => text.len() + logprobs.as_ref().map_or(0, reported),
            Self::Finished { text, .. } => text.len(),
            Self::Embedding(vector) => size_of_val(vector.as_slice()),
        }
    }
}

/// The waiting events.
#[derive(Debug, Default)]
struct Backlog {
    n_bytes: AtomicUsize,
    is_overrun: AtomicBool,
}

/// The events of requests that were submitted together. Dropping it cancels unfinished requests.
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::UnboundedReceiver<Outgoing>,
    backlog: Arc<Backlog>,
}

/// The sending side of a submission's events.
#[derive(Debug)]
pub(super) struct EventSource {
    sender: mpsc::UnboundedSender<Outgoing>,
    backlog: Arc<Backlog>,
}

/// Both ends of a submission's event channel.
pub(super) fn channel() -> (EventSource, EventStream) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let backlog = Arc::new(Backlog::default());
    (EventSource { sender, backlog: Arc::clone(&backlog) }, EventStream { receiver, backlog })
}

impl EventSource {
    /// The sender of one answer.
    pub(super) fn sender(&self, index: usize) -> EventSender {
        EventSender { index, sender: self.sender.clone(), backlog: Arc::clone(&self.backlog) }
    }
}

impl EventStream {
    /// The next event and the index of its request. `None` after the last one, or if the engine has stopped.
    pub async fn recv(&mut self) -> Option<Outgoing> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`recv`](Self::recv), for hand-written streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        let received = ready!(self.receiver.poll_recv(context));
        if let Some((_, outgoing)) = &received {
            self.backlog.n_bytes.fetch_sub(n_bytes(outgoing), Ordering::Relaxed);
        }
        let is_overrun = received.is_none() && self.backlog.is_overrun.swap(false, Ordering::Relaxed);
        Poll::Ready(if is_overrun { Some((0, Err(Failure::Overrun))) } else { received })
    }
}

/// Sends the events of one answer. Never blocks: events for a slow client wait, up to [`MAX_BACKLOG_BYTES`].
#[derive(Debug)]
pub(crate) struct EventSender {
    index: usize,
    sender: mpsc::UnboundedSender<Outgoing>,
    backlog: Arc<Backlog>,
}

impl EventSender {
    /// Sends an event, or drops it if the client has disconnected or is too slow.
    pub(super) fn send(&self, outgoing: Result<Event, Failure>) {
        let before = self.backlog.n_bytes.fetch_add(n_bytes(&outgoing), Ordering::Relaxed);
        if before > MAX_BACKLOG_BYTES {
            self.backlog.is_overrun.store(true, Ordering::Relaxed);
        }
        if !self.backlog.is_overrun.load(Ordering::Relaxed) {
            let _ = self.sender.send((self.index, outgoing));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.backlog.is_overrun.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_prompt_logprobs_do_not_overrun_the_event_backlog() {
        let (source, _stream) = channel();
        let top = vec![(0, 0.0); 20];
        let prompt = Arc::new(vec![Some(TokenLogprobs { id: 0, logprob: 0.0, rank: 1, top }); 10_000]);
        for answer in 0..128 {
            let sender = source.sender(answer);
            sender.send(Ok(Event::PromptLogprobs(Arc::clone(&prompt))));
            assert!(!sender.is_closed(), "{answer}");
        }
    }

    #[tokio::test]
    async fn client_exceeding_the_event_backlog_is_cancelled_with_overrun() {
        let (source, mut stream) = channel();
        let senders = [source.sender(0), source.sender(1)];
        drop(source);
        let text = "x".repeat(1 << 20);
        let event = || Ok(Event::Token { id: 1, text: text.clone(), offset: 0, logprobs: None });
        // A client that keeps up receives any number of events.
        for _ in 0..200 {
            senders[0].send(event());
            assert!(matches!(stream.recv().await, Some((0, Ok(Event::Token { .. })))));
        }
        let mut n_sent = 0;
        while !senders[0].is_closed() {
            senders[n_sent % 2].send(event());
            n_sent += 1;
        }
        assert!(n_sent * text.len() <= MAX_BACKLOG_BYTES + (2 << 20), "{n_sent} events");
        assert!(senders[1].is_closed(), "all answers of the submission");
        drop(senders);
        for _ in 1..n_sent {
            assert!(matches!(stream.recv().await, Some((_, Ok(Event::Token { .. })))));
        }
        assert!(matches!(stream.recv().await, Some((_, Err(Failure::Overrun)))));
        assert!(stream.recv().await.is_none());
    }
}
