//! A [`Job`] is one request in the engine: its event senders, arrival time, deadline, and scheduling parameters. It
//! processes the model's rows as one of three tasks: a growing sequence, a beam search, or an embedding.

use std::{
    collections::BTreeSet,
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    adapters::ServedAdapter,
    beams::Beams,
    embedding::TextEmbedding,
    event::{EventSender, EventSource, Failure},
    event_senders::{EventSenders, Progress},
    observer::Observer,
    outcome::Outcome,
    prefix_cache::PrefixChain,
    request::{EngineRequest, Strategy},
    scheduler::Arrival,
    sequence::Sequence,
    tenant::QueuePlaces,
    token_ids::TokenIds,
};
use hearth_model::{
    Result, TokenId,
    decode::sampling::{LogitDemand, LogitRow},
    gpt::{
        kv_cache::{PAGE_SIZE, PageKey},
        lora::LoadedAdapter,
    },
    text::tokenizer::Tokenizer,
};

/// Data that all requests of a submission share.
#[derive(Debug)]
pub(crate) struct SubmissionContext<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Places in the queue, if there is one; each request takes one per answer.
    pub(crate) queue_places: Option<QueuePlaces>,
    pub(crate) arrived: Instant,
}

/// The engine's state of a request.
#[derive(Debug)]
pub(crate) struct Job {
    senders: EventSenders,
    /// Held while the request waits; released when it starts.
    queue_place: Option<QueuePlaces>,
    /// Keys of the prompt's pages, until they are passed to the scheduler.
    prompt_keys: Vec<PageKey>,
    /// Other answers to the same prompt. They fork from this sequence at the end of the prompt.
    forks: Vec<Job>,
    task: Task,
}

#[derive(Debug)]
enum Task {
    /// Token by token.
    Sequence(Box<Sequence>),
    /// Several partial answers in parallel.
    Beams(Box<Beams>),
    /// A prefill without an answer.
    Embedding(Box<TextEmbedding>),
}

impl Job {
    /// The jobs of requests that are submitted together. Answers are numbered across the requests; consecutive requests
    /// with the same prompt share a job until the prompt is computed.
    pub(crate) fn of_requests(
        requests: Vec<EngineRequest>,
        source: &EventSource,
        context: &mut SubmissionContext<'_>,
    ) -> Vec<Self> {
        let mut jobs: Vec<Self> = Vec::new();
        let mut n_before = 0;
        for request in requests {
            let indices = n_before..n_before + request.n_answers();
            n_before = indices.end;
            let senders = indices.map(|index| source.sender(index)).collect();
            match jobs.last_mut().filter(|first| first.request().shares_prompt(&request)) {
                Some(first) => first.add_fork(request, senders, context),
                None => jobs.push(Self::new(request, senders, context)),
            }
        }
        jobs
    }

    /// `senders` has one entry per answer.
    fn new(request: EngineRequest, senders: Vec<EventSender>, context: &mut SubmissionContext<'_>) -> Self {
        let parts = request.parts();
        let mut chain = PrefixChain::new(parts.prefix_salt);
        if let Some(adapter) = &parts.adapter {
            chain = chain.of_adapter(adapter.digest());
        }
        if !parts.source_ids.is_empty() {
            chain = chain.of_source(&parts.source_ids);
        }
        let prompt_keys = match parts.strategy {
            // Not added to the prefix cache: they would evict pages of prompts.
            Strategy::Embed { .. } => Vec::new(),
            Strategy::Sample | Strategy::Beams { .. } => chain.extend(&parts.prompt_ids),
        };
        let task = match parts.strategy {
            Strategy::Sample => Task::Sequence(Box::new(Sequence::new(request, chain, context.tokenizer))),
            Strategy::Beams { width, kind, .. } => {
                Task::Beams(Box::new(Beams::new(request, (width, kind), chain, context.tokenizer)))
            }
            Strategy::Embed { pooling } => Task::Embedding(Box::new(TextEmbedding::new(request, pooling))),
        };
        Self { prompt_keys, ..Self::with(task, senders, context) }
    }

    fn with(task: Task, senders: Vec<EventSender>, context: &mut SubmissionContext<'_>) -> Self {
        Self {
            queue_place: context.queue_places.as_mut().map(|places| places.split(senders.len())),
            senders: EventSenders::new(senders, context.arrived),
            prompt_keys: Vec::new(),
            forks: Vec::new(),
            task,
        }
    }

    /// Adds another answer to the same prompt, which is computed once.
    fn add_fork(&mut self, request: EngineRequest, senders: Vec<EventSender>, context: &mut SubmissionContext<'_>) {
        if let Task::Sequence(first) = &self.task {
            let fork = Task::Sequence(Box::new(first.fork(request, context.tokenizer)));
            self.senders.timeline.add_answers(senders.len());
            self.forks.push(Self::with(fork, senders, context));
        }
    }

    /// At the last row of the prompt, takes the other answers, with this one's prompt log-probabilities and times.
    pub(crate) fn take_forks(&mut self, position: usize) -> Vec<Self> {
        if position + 1 != self.n_prompt() {
            return Vec::new();
        }
        let mut forks = std::mem::take(&mut self.forks);
        for fork in &mut forks {
            fork.senders.timeline = self.senders.timeline.clone();
            if let (Task::Sequence(fork), Task::Sequence(first)) = (&mut fork.task, &self.task) {
                fork.share_prompt_logprobs(first);
            }
        }
        forks
    }

    /// Number of other answers that wait for its prompt to be computed.
    pub(crate) fn n_forks(&self) -> usize {
        self.forks.len()
    }

    pub(crate) fn request(&self) -> &EngineRequest {
        match &self.task {
            Task::Sequence(sequence) => sequence.request(),
            Task::Beams(beams) => beams.request(),
            Task::Embedding(embedding) => embedding.request(),
        }
    }

    fn n_prompt(&self) -> usize {
        self.request().parts().prompt_ids.len()
    }

    /// Scheduling parameters; called once.
    pub(crate) fn arrival(&mut self) -> Arrival {
        let keys = std::mem::take(&mut self.prompt_keys);
        let (request, parts) = (self.request(), self.request().parts());
        let wants_all_rows = self.wants_hidden() || parts.prompt_logprobs.is_some();
        Arrival {
            n_prompt: parts.prompt_ids.len(),
            n_source: parts.n_source_places(),
            width: request.width(),
            tenant: parts.tenant,
            priority: parts.priority,
            keys,
            state_places: message_boundaries(&parts.prompt_ids, &parts.stop.stop_token_ids),
            uses_prefix_cache: !wants_all_rows,
            adapter: parts.adapter_id().cloned(),
        }
    }

    /// The adapter that computes its rows.
    pub(crate) fn adapter(&self) -> Option<&Arc<LoadedAdapter>> {
        self.request().parts().adapter.as_deref().map(ServedAdapter::loaded)
    }

    pub(crate) fn token_ids(&self, branch: usize) -> TokenIds<'_> {
        match &self.task {
            Task::Sequence(sequence) => sequence.token_ids(),
            Task::Beams(beams) => beams.token_ids(branch),
            Task::Embedding(embedding) => TokenIds::of(&embedding.request().parts().prompt_ids),
        }
    }

    /// The sequence, if it is one.
    pub(crate) fn sequence(&self) -> Option<&Sequence> {
        match &self.task {
            Task::Sequence(sequence) => Some(sequence),
            Task::Beams(_) | Task::Embedding(_) => None,
        }
    }

    /// [`sequence`](Self::sequence).
    pub(crate) fn sequence_mut(&mut self) -> Option<&mut Sequence> {
        match &mut self.task {
            Task::Sequence(sequence) => Some(sequence),
            Task::Beams(_) | Task::Embedding(_) => None,
        }
    }

    /// Whether the client has disconnected.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.senders.is_closed()
    }

    /// Its deadline, if that has passed.
    pub(crate) fn missed_deadline(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.senders.timeline.arrived());
        self.request().parts().deadline.filter(|deadline| age > *deadline)
    }

    /// Records that a step computes some of the request's tokens. `n_cached` prompt tokens were in the prefix cache.
    pub(crate) fn started(&mut self, n_cached: usize, observer: &dyn Observer) {
        self.queue_place = None;
        let parts = self.request().parts();
        // The padding of the source's last page is not counted as tokens.
        let n_filled = parts.n_source_places() - parts.source_ids.len();
        self.senders.n_cached = n_cached.saturating_sub(n_filled);
        if let Some(queued) = self.senders.timeline.start() {
            observer.started(queued, self.n_prompt());
        }
    }

    /// Number of generated tokens; 0 until a beam search is over.
    pub(crate) fn n_completion(&self) -> usize {
        match &self.task {
            Task::Sequence(sequence) => sequence.n_completion(),
            Task::Beams(beams) => beams.n_completion(),
            Task::Embedding(_) => 0,
        }
    }

    /// The part that is needed of the logits at `position`, if the tokens `ahead` extend the sequence up to there.
    pub(crate) fn needs(&self, position: usize, ahead: &[TokenId]) -> LogitDemand {
        let own = match &self.task {
            Task::Sequence(sequence) => sequence.needs(position, ahead),
            Task::Beams(_) | Task::Embedding(_) => LogitDemand::Whole,
        };
        self.forks.iter().map(|fork| fork.needs(position, ahead)).fold(own, LogitDemand::and)
    }

    /// Whether the request needs the hidden states of all rows, and no logits.
    pub(crate) fn wants_hidden(&self) -> bool {
        matches!(self.task, Task::Embedding(_))
    }

    /// Whether the row at `position` of a chunk is needed for requested data about the prompt.
    pub(crate) fn wants_prompt_row(&self, position: usize) -> bool {
        matches!(&self.task, Task::Sequence(sequence) if sequence.wants_prompt_row(position))
    }

    /// Processes the raw logits of the row at `position` of a branch, at least the part that it [needs](Self::needs).
    /// After a preemption, a row may be passed again.
    ///
    /// # Errors
    /// The logits are invalid; the request cannot continue.
    pub(crate) fn advance(
        &mut self,
        (branch, position): (usize, usize),
        logits: &LogitRow<'_>,
        observer: &dyn Observer,
    ) -> Result<Progress> {
        self.senders.timeline.has_logits();
        let n_before = self.n_completion();
        let progress = match &mut self.task {
            Task::Sequence(sequence) => sequence.advance(&mut self.senders, position, logits),
            Task::Beams(beams) => {
                self.senders.timeline.has_first_beams();
                beams.advance(&mut self.senders, (branch, position), logits)
            }
            Task::Embedding(_) => Ok(Progress::Nothing),
        };
        let new_tokens = n_before..self.n_completion();
        match self.task {
            Task::Beams(_) => observer.beam_tokens(new_tokens.len()),
            _ => new_tokens.for_each(|_| observer.token(self.senders.timeline.token())),
        }
        progress
    }

    /// Pools the final hidden states from position `start` on, row by row, each `[d_model]`.
    ///
    /// # Errors
    /// A hidden state is not a number.
    pub(crate) fn pool(&mut self, start: usize, hidden: &[f32], d_model: usize) -> Result<Progress> {
        match &mut self.task {
            Task::Embedding(embedding) => embedding.advance(&mut self.senders, start, hidden, d_model),
            Task::Sequence(_) | Task::Beams(_) => Ok(Progress::Nothing),
        }
    }

    /// The result of a held request: it [continues](Progress::Resumed) or has ended. `None` while its grammar is still
    /// processing the last token.
    pub(crate) fn poll_held(&mut self) -> Option<Result<Progress>> {
        match &mut self.task {
            Task::Sequence(sequence) => sequence.poll_held(&mut self.senders),
            Task::Beams(_) | Task::Embedding(_) => None,
        }
    }

    /// Sends the events that its rows have queued.
    pub(crate) fn send_events(&mut self) {
        self.senders.send();
    }

    /// Ends all its answers with a failure.
    pub(crate) fn fail(&self, failure: &Failure) {
        self.senders.fail(failure);
        self.forks.iter().for_each(|fork| fork.fail(failure));
    }

    /// The number of tokens of each unfinished answer, including those that wait for the prompt.
    pub(crate) fn n_tokens_by_answer(&self) -> Vec<usize> {
        let own = iter::once(self.n_completion()).chain(iter::repeat(0)).take(self.senders.n_answers());
        own.chain(self.forks.iter().flat_map(Self::n_tokens_by_answer)).collect()
    }

    /// Counts an answer that has ended with `n_tokens` tokens.
    pub(crate) fn count_end(&self, outcome: Outcome, n_tokens: usize, observer: &dyn Observer) {
        let parts = self.request().parts();
        let adapter = parts.adapter_id().map(|id| &*id.name);
        observer.ended(&self.senders.timeline.end(outcome, n_tokens, parts.stop.max_tokens, adapter));
    }
}

/// Maximum number of messages of a prompt whose states are kept. States of earlier messages were kept when those
/// messages were new, and one prompt must not push out the states of others.
const MAX_MESSAGE_STATES: usize = 8;

/// The last page boundary in each of the last messages of a prompt. In chat templates, the token that ends an answer
/// also ends the messages before it.
fn message_boundaries(prompt_ids: &[TokenId], end_ids: &BTreeSet<TokenId>) -> Vec<usize> {
    let ends = prompt_ids.iter().enumerate().filter(|(_, id)| end_ids.contains(id)).map(|(index, _)| index + 1);
    let mut boundaries: Vec<usize> = ends.map(|end| end / PAGE_SIZE * PAGE_SIZE).filter(|&at| at > 0).collect();
    boundaries.dedup();
    boundaries.split_off(boundaries.len().saturating_sub(MAX_MESSAGE_STATES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_of_messages_are_the_last_page_boundaries_before_their_ends() {
        let ends = [9, 20, 25, 47, 100].map(|end| end - 1);
        let ids: Vec<TokenId> = (0..120).map(|at| if ends.contains(&at) { 7 + at as TokenId % 2 } else { 1 }).collect();
        assert_eq!(message_boundaries(&ids, &[7, 8].into()), [16, 32, 96]);
        assert_eq!(message_boundaries(&ids, &BTreeSet::new()), [0; 0]);
        let pages = message_boundaries(&[7; 100 * PAGE_SIZE], &[7].into());
        assert_eq!(pages, (93..=100).map(|page| page * PAGE_SIZE).collect::<Vec<_>>(), "the last ones");
    }
}
