//! The engine's output: the events of a request, and the stream that carries them from the inference thread to the API.
//! Token ids, text and counts; no HTTP.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem::size_of,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use hearth_model::{Error, TokenId, decode::sampling::TokenLogprobs};

use crate::{outcome::Outcome, timeline::PhaseTimes};

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
        /// Number of tokens in thoughts, without their marks. `None` if thoughts are not tracked.
        thought_tokens: Option<usize>,
        /// Durations of the phases.
        spans: PhaseTimes,
    },
    /// The requested vector, `[d_model]`.
    Embedding(Vec<f32>),
}

/// Why a request ends without being finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request's deadline, this long after its arrival, has passed.
    #[error("the request was not complete {0:?} after its arrival")]
    TimedOut(Duration),
    /// The request is invalid: a parameter, and the error.
    #[error("{message}")]
    Refused {
        /// The parameter's name in requests.
        param: &'static str,
        /// The message for the client.
        message: String,
    },
    /// The request failed, with a message for the client.
    #[error("{0}")]
    Failed(String),
    /// The engine was stopped before the request was complete.
    #[error("the engine has stopped")]
    Stopped,
    /// The receiver is too slow: too many events were waiting, and the request was cancelled.
    #[error("too many events are waiting for their receiver")]
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
pub(crate) type Outgoing = (usize, Result<Event, Failure>);

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

/// The state that both ends of a submission's channel share.
#[derive(Debug, Default)]
struct Channel(Mutex<Backlog>);

/// The waiting events, and who is at the ends of the channel.
#[derive(Debug, Default)]
struct Backlog {
    events: VecDeque<Outgoing>,
    /// Approximate size of `events`.
    n_bytes: usize,
    is_overrun: bool,
    n_senders: usize,
    /// Whether the stream has been dropped.
    is_closed: bool,
    /// Wakes whoever waits for the next event.
    waker: Option<Waker>,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of requests that were submitted together. Dropping it cancels unfinished requests.
///
/// A task awaits them with [`recv`](Self::recv), a thread blocks on [`blocking_recv`](Self::blocking_recv).
#[derive(Debug)]
pub struct EventStream(Arc<Channel>);

/// A sending end; the stream ends when the last one is dropped.
#[derive(Debug)]
struct Sender(Arc<Channel>);

/// The sending side of a submission's events.
#[derive(Debug)]
pub(crate) struct EventSource(Sender);

/// Both ends of a submission's event channel.
pub(crate) fn channel() -> (EventSource, EventStream) {
    let channel = Arc::new(Channel::default());
    (EventSource(Sender::new(&channel)), EventStream(channel))
}

impl Sender {
    fn new(channel: &Arc<Channel>) -> Self {
        channel.lock().n_senders += 1;
        Self(Arc::clone(channel))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut backlog = self.0.lock();
        backlog.n_senders -= 1;
        let waker = if backlog.n_senders == 0 { backlog.waker.take() } else { None };
        drop(backlog);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl EventSource {
    /// The sender of one answer.
    pub(crate) fn sender(&self, index: usize) -> EventSender {
        EventSender { index, sender: Sender::new(&self.0.0) }
    }
}

impl Backlog {
    /// The next waiting event, and after the last one the overrun that ended them.
    fn pop(&mut self) -> Option<Outgoing> {
        match self.events.pop_front() {
            Some(outgoing) => {
                self.n_bytes -= n_bytes(&outgoing.1);
                Some(outgoing)
            }
            None => {
                let is_overrun = self.n_senders == 0 && std::mem::take(&mut self.is_overrun);
                is_overrun.then_some((0, Err(Failure::Overrun)))
            }
        }
    }
}

impl EventStream {
    /// The next event and the index of its request. `None` after the last one, or if the engine has stopped.
    pub async fn recv(&mut self) -> Option<Outgoing> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`recv`](Self::recv), for hand-written streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        let mut backlog = self.0.lock();
        let next = backlog.pop();
        if next.is_none() && backlog.n_senders > 0 {
            backlog.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(next)
    }

    /// The next event that is waiting already.
    pub(crate) fn try_recv(&mut self) -> Option<Outgoing> {
        self.0.lock().pop()
    }

    /// As [`recv`](Self::recv), but blocks the thread.
    pub fn blocking_recv(&mut self) -> Option<Outgoing> {
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut context = Context::from_waker(&waker);
        loop {
            match self.poll_recv(&mut context) {
                Poll::Ready(next) => return next,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        let mut backlog = self.0.lock();
        backlog.is_closed = true;
        backlog.events.clear();
    }
}

/// Wakes a thread that waits in [`EventStream::blocking_recv`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Sends the events of one answer. Never blocks: events for a slow client wait, up to [`MAX_BACKLOG_BYTES`].
#[derive(Debug)]
pub(crate) struct EventSender {
    index: usize,
    sender: Sender,
}

impl EventSender {
    /// Sends an event, or drops it if the client has disconnected or is too slow.
    pub(crate) fn send(&self, outgoing: Result<Event, Failure>) {
        let mut backlog = self.sender.0.lock();
        backlog.is_overrun |= backlog.n_bytes > MAX_BACKLOG_BYTES;
        if backlog.is_closed || backlog.is_overrun {
            return;
        }
        backlog.n_bytes += n_bytes(&outgoing);
        backlog.events.push_back((self.index, outgoing));
        let waker = backlog.waker.take();
        drop(backlog);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        let backlog = self.sender.0.lock();
        backlog.is_closed || backlog.is_overrun
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

    #[test]
    fn blocked_receiver_is_woken_by_an_event_and_by_the_last_sender() {
        let (source, mut stream) = channel();
        let sender = source.sender(3);
        drop(source);
        thread::scope(|scope| {
            let receiver = scope.spawn(move || (stream.blocking_recv(), stream.blocking_recv()));
            sender.send(Err(Failure::Stopped));
            drop(sender);
            assert!(matches!(receiver.join(), Ok((Some((3, Err(Failure::Stopped))), None))));
        });
    }

    #[test]
    fn client_exceeding_the_event_backlog_is_cancelled_with_overrun() {
        let (source, mut stream) = channel();
        let senders = [source.sender(0), source.sender(1)];
        drop(source);
        let text = "x".repeat(1 << 20);
        let event = || Ok(Event::Token { id: 1, text: text.clone(), offset: 0, logprobs: None });
        // A client that keeps up receives any number of events.
        for _ in 0..200 {
            senders[0].send(event());
            assert!(matches!(stream.blocking_recv(), Some((0, Ok(Event::Token { .. })))));
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
            assert!(matches!(stream.blocking_recv(), Some((_, Ok(Event::Token { .. })))));
        }
        assert!(matches!(stream.blocking_recv(), Some((_, Err(Failure::Overrun)))));
        assert!(stream.blocking_recv().is_none());
    }
}
