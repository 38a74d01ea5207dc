//! What comes back from the engine: the events of a request, and the stream that carries them from the inference
//! thread to whoever asked. Token ids, text and counts; no HTTP.

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

use hearth_model::{TokenId, sampling::TokenLogprobs};
use tokio::sync::mpsc;

use crate::metrics::{Outcome, Spans};

/// What happens to a request, in this order: prompt log-probabilities if asked for, tokens, then one end.
#[derive(Clone, Debug)]
pub enum Event {
    /// One entry per prompt token; the first has none, as nothing predicts it.
    PromptLogprobs(Arc<Vec<Option<TokenLogprobs>>>),
    /// A token was generated.
    Token {
        /// Its id.
        id: TokenId,
        /// Text that is settled by now. May be empty, and may stem from earlier tokens.
        text: String,
        /// Characters of generated text before the token's own.
        offset: usize,
        /// Its log-probability and the alternatives, if asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The request is done.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What exactly, if it is [`FinishReason::Stop`].
        cause: Option<StopCause>,
        /// Text that was held back until now.
        text: String,
        /// Tokens of the prompt that were found in the cache. Answers that share a prompt tell it once.
        cached_tokens: usize,
        /// Where the time went.
        spans: Spans,
    },
    /// The whole answer to a request for an embedding, `[d_model]`.
    Embedding(Vec<f32>),
    /// The request's deadline, this long after its arrival, has passed.
    TimedOut(Duration),
    /// The request cannot be finished as it is: a parameter, and what is wrong with it.
    Refused {
        /// The parameter, as clients write it.
        param: &'static str,
        /// For the client.
        message: String,
    },
    /// The request cannot be finished; the message is for the client.
    Failed(String),
    /// The engine has been stopped before the request was finished.
    Stopped,
    /// Events came faster than they were received, until there were too many: the request was cancelled.
    Overrun,
}

/// Why a generation ended.
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

/// What stopped a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// One of the tokens that end it.
    Token(TokenId),
    /// One of the stop strings.
    Text(String),
}

/// Events of one submission that may wait to be received, in bytes: a client that takes its answer slowly is not to fill
/// the memory with it.
const MAX_BACKLOG_BYTES: usize = 64 << 20;

impl Event {
    /// Roughly what it takes while it waits to be received.
    fn n_bytes(&self) -> usize {
        let reported = |logprobs: &TokenLogprobs| size_of_val(logprobs.top.as_slice()) + size_of::<TokenLogprobs>();
        let beside = match self {
            Self::PromptLogprobs(logprobs) => logprobs.iter().flatten().map(reported).sum(),
            Self::Token { text, logprobs, .. } => text.len() + logprobs.as_ref().map_or(0, reported),
            Self::Finished { text, .. } => text.len(),
            Self::Embedding(vector) => size_of_val(vector.as_slice()),
            _ => 0,
        };
        size_of::<(usize, Self)>() + beside
    }
}

/// What waits to be received.
#[derive(Debug, Default)]
struct Backlog {
    n_bytes: AtomicUsize,
    is_overrun: AtomicBool,
}

/// The events of the requests submitted together. Dropping it cancels what has not ended.
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::UnboundedReceiver<(usize, Event)>,
    backlog: Arc<Backlog>,
}

/// Where the events of a submission come from.
#[derive(Debug)]
pub(super) struct EventSource {
    sender: mpsc::UnboundedSender<(usize, Event)>,
    backlog: Arc<Backlog>,
}

/// The two ends of a submission's way back.
pub(super) fn channel() -> (EventSource, EventStream) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let backlog = Arc::new(Backlog::default());
    (EventSource { sender, backlog: Arc::clone(&backlog) }, EventStream { receiver, backlog })
}

impl EventSource {
    /// The way back of one answer.
    pub(super) fn sender(&self, index: usize) -> EventSender {
        EventSender { index, sender: self.sender.clone(), backlog: Arc::clone(&self.backlog) }
    }
}

impl EventStream {
    /// The next event and the index of its request. `None` after the last one, or when the engine is gone.
    pub async fn recv(&mut self) -> Option<(usize, Event)> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`recv`](Self::recv), for hand-written streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        let received = ready!(self.receiver.poll_recv(context));
        if let Some((_, event)) = &received {
            self.backlog.n_bytes.fetch_sub(event.n_bytes(), Ordering::Relaxed);
        }
        let is_overrun = received.is_none() && self.backlog.is_overrun.swap(false, Ordering::Relaxed);
        Poll::Ready(if is_overrun { Some((0, Event::Overrun)) } else { received })
    }
}

/// Where a sequence's events go. Never blocks: a slow client's events pile up here, up to a bound.
#[derive(Debug)]
pub(crate) struct EventSender {
    index: usize,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    backlog: Arc<Backlog>,
}

impl EventSender {
    /// A client that has gone is noticed before the next step, and so is one that has fallen too far behind.
    pub(super) fn send(&self, event: Event) {
        let n_bytes = event.n_bytes();
        let before = self.backlog.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        if before > MAX_BACKLOG_BYTES {
            self.backlog.is_overrun.store(true, Ordering::Relaxed);
        }
        if !self.backlog.is_overrun.load(Ordering::Relaxed) {
            let _ = self.sender.send((self.index, event));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.backlog.is_overrun.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_falls_too_far_behind_is_cancelled_and_told() {
        let (source, mut stream) = channel();
        let senders = [source.sender(0), source.sender(1)];
        drop(source);
        let text = "x".repeat(1 << 20);
        let event = || Event::Token { id: 1, text: text.clone(), offset: 0, logprobs: None };
        // Whoever keeps up gets any number of them.
        for _ in 0..200 {
            senders[0].send(event());
            assert!(matches!(stream.recv().await, Some((0, Event::Token { .. }))));
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
            assert!(matches!(stream.recv().await, Some((_, Event::Token { .. }))));
        }
        assert!(matches!(stream.recv().await, Some((_, Event::Overrun))));
        assert!(stream.recv().await.is_none());
    }
}
