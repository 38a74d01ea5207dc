//! What the work on a request leads to: events for whoever asked, and progress for the worker.

use std::time::Instant;

use hearth_model::kv_cache::PageKey;

use super::event::{Event, EventSender, Failure, FinishReason, StopCause};
use crate::metrics::Timeline;

/// The way back to whoever asked: where the events of each of its answers go, and what all their ends tell.
#[derive(Debug)]
pub(crate) struct Replies {
    senders: Vec<EventSender>,
    /// Tokens of the prompt that were found in the cache.
    pub(super) n_cached: usize,
    pub(super) timeline: Timeline,
}

impl Replies {
    pub(super) fn new(senders: Vec<EventSender>, arrived: Instant) -> Self {
        Self { senders, n_cached: 0, timeline: Timeline::new(arrived) }
    }

    pub(super) fn n_answers(&self) -> usize {
        self.senders.len()
    }

    /// Whether nobody waits for any of the answers.
    pub(super) fn is_closed(&self) -> bool {
        self.senders.iter().all(EventSender::is_closed)
    }

    /// Sends an event of one of the answers.
    pub(super) fn send(&self, answer: usize, event: Event) {
        if let Some(sender) = self.senders.get(answer) {
            sender.send(Ok(event));
        }
    }

    /// Sends the end of one of the answers, with the `text` that was held back until now.
    pub(super) fn finish(&self, answer: usize, reason: FinishReason, cause: Option<StopCause>, text: String) {
        let cached_tokens = if answer == 0 { self.n_cached } else { 0 };
        self.send(answer, Event::Finished { reason, cause, text, cached_tokens, spans: self.timeline.spans() });
    }

    /// Ends all answers.
    pub(super) fn fail(&self, failure: &Failure) {
        self.senders.iter().for_each(|sender| sender.send(Err(failure.clone())));
    }
}

/// What a row of a step led to in its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No effect on the request: the row belonged to the prompt, or the request waits for other rows.
    Nothing,
    /// Another token; the key of the last page, if it is now full.
    Token(Option<PageKey>),
    /// The same, but whether anything follows is still being found out: see `Job::settle`.
    Held(Option<PageKey>),
    /// Something follows the token that the request was held with.
    GoesOn,
    /// Other sequences: the index of each one's parent, which it continues by a token, and the name of its last page if
    /// that is full now.
    Branches(Vec<(usize, Option<PageKey>)>),
    /// The request has ended: each answer's reason and number of tokens. Its events are out.
    Ended(Vec<(FinishReason, usize)>),
}
