//! The results of a request's work: events for the client, and [`Progress`] for the worker.

use std::time::Instant;

use hearth_model::gpt::kv_cache::PageKey;

use crate::{
    event::{Event, EventSender, Failure, FinishReason, StopCause},
    timeline::Timeline,
};

/// Event senders of a request's answers, and data for their final events.
#[derive(Debug)]
pub(crate) struct EventSenders {
    senders: Vec<EventSender>,
    /// Events that are not sent yet, each with the index of its answer.
    queued: Vec<(usize, Event)>,
    /// Number of prompt tokens found in the prefix cache.
    pub(super) n_cached: usize,
    pub(super) timeline: Timeline,
}

impl EventSenders {
    pub(super) fn new(senders: Vec<EventSender>, arrived: Instant) -> Self {
        let timeline = Timeline::new(arrived, senders.len());
        Self { senders, queued: Vec::new(), n_cached: 0, timeline }
    }

    pub(super) fn n_answers(&self) -> usize {
        self.senders.len()
    }

    /// Whether the client has disconnected from all answers.
    pub(super) fn is_closed(&self) -> bool {
        self.senders.iter().all(EventSender::is_closed)
    }

    /// Adds an event of one of the answers, which [`send`](Self::send) sends.
    pub(super) fn queue(&mut self, answer: usize, event: Event) {
        self.queued.push((answer, event));
    }

    /// Adds the final event of one of the answers, with the `text` that was held back until now.
    pub(super) fn queue_end(&mut self, answer: usize, reason: FinishReason, cause: Option<StopCause>, text: String) {
        self.queue_end_of_thinking(answer, (reason, cause), text, None);
    }

    /// As [`queue_end`](Self::queue_end), for an answer with a number of thinking tokens.
    pub(super) fn queue_end_of_thinking(
        &mut self,
        answer: usize,
        (reason, cause): (FinishReason, Option<StopCause>),
        text: String,
        thought_tokens: Option<usize>,
    ) {
        let cached_tokens = if answer == 0 { self.n_cached } else { 0 };
        let spans = self.timeline.spans();
        self.queue(answer, Event::Finished { reason, cause, text, cached_tokens, thought_tokens, spans });
    }

    /// Sends the queued events. What they report must be counted before, so that a client finds it in the metrics.
    pub(super) fn send(&mut self) {
        for (answer, event) in self.queued.drain(..) {
            if let Some(sender) = self.senders.get(answer) {
                sender.send(Ok(event));
            }
        }
    }

    /// Ends all answers.
    pub(super) fn fail(&self, failure: &Failure) {
        self.senders.iter().for_each(|sender| sender.send(Err(failure.clone())));
    }
}

/// The effect of a step's row on its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No effect on the request: the row belonged to the prompt, or the request waits for other rows.
    Nothing,
    /// Another token, and the key of the last page if the token fills it.
    Token(Option<PageKey>),
    /// As [`Token`](Self::Token), but the grammar is still processing this token: see `Job::poll_held`.
    Held(Option<PageKey>),
    /// The grammar of a held request allows more tokens.
    Resumed,
    /// New sequences: for each, the index of the sequence that it extends by a token, and the key of its last page if
    /// the token fills it.
    Branches(Vec<(usize, Option<PageKey>)>),
    /// The request has ended, and its events are queued: each answer's reason and number of tokens.
    Ended(Vec<(FinishReason, usize)>),
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::{super::event::channel, *};

    /// The worker updates the metrics between queueing and sending, so a client sees them once it has the event.
    #[test]
    fn queued_events_reach_the_stream_once_and_only_on_send() {
        let (source, mut stream) = channel();
        let mut senders = EventSenders::new(vec![source.sender(0)], Instant::now());
        senders.queue(0, Event::Embedding(vec![1.0]));
        senders.queue_end(0, FinishReason::Stop, None, String::new());
        let mut next = || stream.poll_recv(&mut Context::from_waker(Waker::noop()));
        assert!(next().is_pending());
        senders.send();
        assert!(matches!(next(), Poll::Ready(Some((0, Ok(Event::Embedding(_)))))));
        assert!(matches!(next(), Poll::Ready(Some((0, Ok(Event::Finished { .. }))))));
        senders.send();
        assert!(next().is_pending(), "each once");
    }
}
