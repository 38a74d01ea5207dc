//! What comes back from the engine: the events of a request, and the stream that carries them from the inference
//! thread to whoever asked. Token ids, text and counts; no HTTP.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use hearth_model::{TokenId, sampling::TokenLogprobs};
use tokio::sync::mpsc;

use crate::metrics::{Outcome, Spans};

/// What happens to a request, in this order: prompt log-probabilities if asked for, tokens, then one end.
#[derive(Clone, Debug)]
pub enum Event {
    /// One entry per prompt token; the first has none, as nothing predicts it.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
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

/// The events of the requests submitted together. Dropping it cancels what has not ended.
#[derive(Debug)]
pub struct EventStream(pub(super) mpsc::UnboundedReceiver<(usize, Event)>);

impl EventStream {
    /// The next event and the index of its request. `None` after the last one, or when the engine is gone.
    pub async fn recv(&mut self) -> Option<(usize, Event)> {
        self.0.recv().await
    }

    /// As [`recv`](Self::recv), for hand-written streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        self.0.poll_recv(context)
    }
}

/// Where a sequence's events go. Never blocks: a slow client's events pile up here, at most `max_tokens` of them.
#[derive(Debug)]
pub(crate) struct EventSender {
    pub(super) index: usize,
    pub(super) sender: mpsc::UnboundedSender<(usize, Event)>,
}

impl EventSender {
    /// A client that has gone is noticed before the next step.
    pub(super) fn send(&self, event: Event) {
        let _ = self.sender.send((self.index, event));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}
