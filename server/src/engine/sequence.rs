//! One growing sequence of tokens: what it was asked for, what it has so far, and where its events go.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use hearth_model::{
    Result, TokenId,
    constraint::Constraint,
    kv_cache::PageKey,
    sampling::{LogitRow, RowNeeds, Sampler, TokenLogprobs, token_logprobs},
    tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Event, EventSender, FinishReason, QueuePlace, StopCause,
    prefix_cache::PrefixChain,
    request::{GenerateRequest, LogprobsMode, RequestParts, SpecialTokens, StopConditions, StopText},
    scheduler::Arrival,
    speculation::Acceptance,
    text::{Matched, TextAssembler},
    token_ids::TokenIds,
};
use crate::metrics::Timeline;

/// What is the same for all requests that are submitted together.
#[derive(Debug)]
pub(crate) struct Intake<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// See [`GptConfig::text_len_matters_beyond`].
    pub(crate) text_len_matters_beyond: Option<usize>,
    /// Of which each takes as many as it has answers.
    pub(crate) queue_places: OwnedSemaphorePermit,
    pub(crate) arrived: Instant,
}

impl Intake<'_> {
    /// Names for the pages of a request's text.
    pub(crate) fn chain(&self, parts: &RequestParts) -> PrefixChain {
        let n_prompt = parts.prompt_ids.len();
        // Prompts up to there give the same pages, whatever their length.
        let length = self.text_len_matters_beyond.is_some_and(|most| n_prompt > most).then_some(n_prompt);
        PrefixChain::new(parts.prefix_salt, length)
    }

    /// Places in the queue for so many answers.
    pub(crate) fn take_places(&mut self, n_answers: usize) -> QueuePlace {
        QueuePlace { _permit: self.queue_places.split(n_answers) }
    }
}

/// What the worker keeps for a request from its arrival to its end.
#[derive(Debug)]
pub(crate) struct Sequence {
    request: GenerateRequest,
    events: EventSender,
    /// Held while the sequence waits; given back when it starts.
    queue_place: Option<QueuePlace>,
    sampler: Sampler,
    /// Where the answer stands in its grammar. What a preemption computes again is not drawn again, so it stays.
    constraint: Option<Constraint>,
    text: TextAssembler,
    /// Generated tokens. The prompt is in the request, and shared by all answers to it.
    output: Vec<TokenId>,
    /// Of the prompt's rows so far, the first token's included. Never taken twice, even if rows are computed again.
    prompt_logprobs: Arc<Vec<Option<TokenLogprobs>>>,
    /// Other answers to the same prompt. They go on from where this one stands at the end of the prompt.
    forks: Vec<Sequence>,
    chain: PrefixChain,
    /// Names of the prompt's pages, until the scheduler has them.
    prompt_keys: Vec<PageKey>,
    n_cached: usize,
    pub(crate) timeline: Timeline,
    /// How guesses at its tokens fared.
    pub(crate) acceptance: Acceptance,
}

/// What a row of logits led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It belonged to the prompt.
    PromptRow,
    /// One more token; the name of the last page, if that is full now.
    Token(Option<PageKey>),
    /// The same, but whether anything follows is still being found out: see [`settle`](Sequence::settle).
    Held(Option<PageKey>),
    /// Something follows the token that the sequence was held with.
    GoesOn,
    /// The sequence has ended.
    Ended(FinishReason),
}

impl Sequence {
    pub(crate) fn new(request: GenerateRequest, events: EventSender, intake: &mut Intake<'_>) -> Self {
        let text = assembler(&request, intake.tokenizer);
        let mut chain = intake.chain(request.parts());
        let prompt_keys = chain.extend(&request.parts().prompt_ids);
        Self { prompt_keys, ..Self::with(request, events, intake, (text, chain)) }
    }

    /// At the end of its prompt: `text` has seen it, and `chain` has named its pages.
    fn with(
        request: GenerateRequest,
        events: EventSender,
        intake: &mut Intake<'_>,
        (text, chain): (TextAssembler, PrefixChain),
    ) -> Self {
        let parts = request.parts();
        Self {
            constraint: parts.constraint.clone(),
            sampler: Sampler::sharing(parts.sampling.clone(), parts.choice, Arc::clone(&parts.prompt_ids)),
            text,
            output: Vec::new(),
            // The first token of a prompt is predicted by nothing.
            prompt_logprobs: Arc::new(vec![None]),
            forks: Vec::new(),
            chain,
            prompt_keys: Vec::new(),
            n_cached: 0,
            queue_place: Some(intake.take_places(1)),
            timeline: Timeline::new(intake.arrived),
            acceptance: Acceptance::default(),
            events,
            request,
        }
    }

    pub(crate) fn request(&self) -> &GenerateRequest {
        &self.request
    }

    pub(crate) fn arrival(&mut self) -> Arrival {
        Arrival {
            n_prompt: self.n_prompt(),
            width: 1,
            priority: self.request.parts().priority,
            keys: std::mem::take(&mut self.prompt_keys),
            reads_kept_pages: self.request.parts().prompt_logprobs.is_none(),
        }
    }

    /// Adds another answer to the same prompt, which is not gone through once more for it.
    pub(crate) fn add_fork(&mut self, request: GenerateRequest, events: EventSender, intake: &mut Intake<'_>) {
        let (ours, theirs) = (self.request.parts(), request.parts());
        let reads_alike = ours.text == theirs.text && ours.stop.stop_strings == theirs.stop.stop_strings;
        let text = if reads_alike { self.text.clone() } else { assembler(&request, intake.tokenizer) };
        let fork = Self::with(request, events, intake, (text, self.chain.clone()));
        self.forks.push(fork);
    }

    /// Answers to the same prompt that wait for it to be computed.
    pub(crate) fn n_forks(&self) -> usize {
        self.forks.len()
    }

    /// At the last row of the prompt: the other answers, which need what this one has learned of the prompt.
    pub(crate) fn take_forks(&mut self, position: usize) -> Vec<Sequence> {
        if position + 1 != self.n_prompt() {
            return Vec::new();
        }
        let mut forks = std::mem::take(&mut self.forks);
        for fork in &mut forks {
            fork.prompt_logprobs = Arc::clone(&self.prompt_logprobs);
            fork.timeline = self.timeline.clone();
        }
        forks
    }

    pub(crate) fn token_ids(&self) -> TokenIds<'_> {
        TokenIds { prompt: &self.request.parts().prompt_ids, output: &self.output }
    }

    /// Tokens generated so far.
    pub(crate) fn n_completion(&self) -> usize {
        self.output.len()
    }

    /// Tokens that may be guessed ahead: as many as it can take besides the one that the next step gives anyway. None
    /// before the first, at which others may fork.
    pub(crate) fn n_guessable(&self) -> usize {
        match self.n_completion() {
            0 => 0,
            // No guess is looked at before the token ahead of it is accepted.
            _ if self.constraint.as_ref().is_some_and(Constraint::is_slow) => 0,
            n_completion => self.request.parts().stop.max_tokens.saturating_sub(n_completion + 1),
        }
    }

    /// As it stands, for guessing what it will draw.
    pub(crate) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// What it would draw from such logits after `n_ahead` more tokens, which `sampler`, a copy of its own, has accepted.
    /// `None` where it could draw nothing.
    pub(crate) fn guess(&self, sampler: &mut Sampler, n_ahead: usize, logits: &LogitRow<'_>) -> Option<TokenId> {
        let id = sampler.sample(self.allowed(n_ahead, logits), self.token_ids().len() + n_ahead).ok()?;
        sampler.accept(id);
        Some(id)
    }

    /// What [`guess`](Self::guess) needs of a row.
    pub(crate) fn guess_needs(&self, sampler: &Sampler, n_ahead: usize) -> RowNeeds {
        sampler.needs(self.barred(n_ahead), &[])
    }

    /// What [`advance`](Self::advance) needs of the row at `position`, when `ahead` is what the sequence has more up to
    /// there than now.
    pub(crate) fn needs(&self, position: usize, ahead: &[TokenId]) -> RowNeeds {
        let RequestParts { logprobs, logprobs_mode, .. } = self.request.parts();
        let is_of_prompt = position + 1 < self.n_prompt();
        let reports_raw = logprobs.is_some() && *logprobs_mode == LogprobsMode::Raw;
        if is_of_prompt || reports_raw || self.constraint.is_some() {
            return RowNeeds::Whole;
        }
        // What is barred now may not be barred any more by then.
        let own = self.sampler.needs(self.barred(0), ahead);
        self.forks.iter().map(|fork| fork.needs(position, ahead)).fold(own, RowNeeds::and)
    }

    /// The tokens that would end the sequence too early after `n_ahead` more.
    fn barred(&self, n_ahead: usize) -> &BTreeSet<TokenId> {
        static NONE: BTreeSet<TokenId> = BTreeSet::new();
        let StopConditions { min_tokens, stop_token_ids, .. } = &self.request.parts().stop;
        if self.n_completion() + n_ahead < *min_tokens { stop_token_ids } else { &NONE }
    }

    /// The logits after `n_ahead` more tokens without those that would end the sequence too early.
    fn allowed<'a>(&self, n_ahead: usize, logits: &'a LogitRow<'_>) -> LogitRow<'a> {
        match self.barred(n_ahead) {
            barred if barred.is_empty() => logits.into(),
            barred => logits.without(barred),
        }
    }

    /// Whether the client has gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// The sequence has left the queue; so many tokens of its prompt were computed before.
    pub(crate) fn started(&mut self, n_cached: usize) {
        self.queue_place = None;
        self.n_cached = n_cached;
    }

    /// Whether the row at `position`, which is computed now, says something that was asked for besides the next token:
    /// the log-probability of the prompt token behind it.
    pub(crate) fn wants_prompt_row(&self, position: usize) -> bool {
        let is_new = position + 1 >= self.prompt_logprobs.len();
        self.request.parts().prompt_logprobs.is_some() && position + 1 < self.n_prompt() && is_new
    }

    /// Takes the raw logits of the row at `position`, as far as it [needs](Self::needs) them: those of a prompt row that
    /// was asked for, or of the last row, which give the next token.
    ///
    /// # Errors
    /// The logits are not what a working model gives; the sequence cannot go on.
    pub(crate) fn advance(&mut self, position: usize, logits: &LogitRow<'_>) -> Result<Progress> {
        if position + 1 < self.n_prompt() {
            let n_top = self.request.parts().prompt_logprobs.unwrap_or(0);
            let id = self.token_ids().get(position + 1);
            let logits = logits.whole()?;
            let logprobs = id.map(|id| token_logprobs(logits, id, n_top));
            Arc::make_mut(&mut self.prompt_logprobs).push(logprobs);
            return Ok(Progress::PromptRow);
        }
        if self.request.parts().prompt_logprobs.is_some() && self.n_completion() == 0 {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send(Event::PromptLogprobs(logprobs));
        }
        if self.request.parts().stop.max_tokens == 0 {
            return Ok(self.end(FinishReason::Length, None));
        }
        self.draw(logits)
    }

    /// What became of a sequence that was held: it [goes on](Progress::GoesOn) or has ended. `None` while that is still
    /// being found out.
    pub(crate) fn settle(&mut self) -> Option<Result<Progress>> {
        let accepted = self.constraint.as_mut()?.accepted()?;
        Some(accepted.map(|is_complete| match is_complete {
            true => self.end(FinishReason::Stop, None),
            false if self.n_completion() >= self.request.parts().stop.max_tokens => {
                self.end(FinishReason::Length, None)
            }
            false => Progress::GoesOn,
        }))
    }

    /// Ends the sequence, and those that would fork from it, with the same event.
    pub(crate) fn end_with(&self, event: &Event) {
        self.send(event.clone());
        self.forks.iter().for_each(|fork| fork.end_with(event));
    }

    pub(crate) fn n_prompt(&self) -> usize {
        self.request.parts().prompt_ids.len()
    }

    fn draw(&mut self, logits: &LogitRow<'_>) -> Result<Progress> {
        let StopConditions { min_tokens, max_tokens, stop_token_ids, .. } = &self.request.parts().stop;
        let may_stop = self.n_completion() + 1 > *min_tokens;
        let allowed = match &self.constraint {
            // Its answer ends where it is complete: there is no least number of tokens.
            Some(constraint) => LogitRow::Whole(constraint.restrict(logits.whole()?, stop_token_ids)?.into()),
            None => self.allowed(0, logits),
        };
        let position = self.token_ids().len();
        let id = self.sampler.sample(&allowed, position)?;
        let logprobs = match (self.request.parts().logprobs, self.request.parts().logprobs_mode) {
            (None, _) => None,
            (Some(n_top), LogprobsMode::Raw) => Some(token_logprobs(logits.whole()?, id, n_top)),
            (Some(n_top), LogprobsMode::Processed) => Some(self.sampler.logprobs(&allowed, position, (id, n_top))?),
        };
        let (is_stop_token, is_last) = (stop_token_ids.contains(&id), self.n_completion() + 1 == *max_tokens);
        self.sampler.accept(id);
        self.output.push(id);
        let offset = self.text.n_chars();
        let (is_complete, is_held) = match &mut self.constraint {
            Some(constraint) if !is_stop_token && constraint.is_slow() => {
                constraint.accept_elsewhere(id);
                (false, true)
            }
            Some(constraint) if !is_stop_token => (constraint.accept(id)?, false),
            _ => (false, false),
        };
        let stop_text = if self.constraint.is_some() { StopText::Cut } else { self.request.parts().text.stop_text };
        let matched = match (is_stop_token && may_stop, stop_text) {
            (true, StopText::Cut) => Matched::Text(String::new()),
            _ if may_stop => self.text.push(id),
            _ => Matched::Text(self.text.pass(id)),
        };
        let (text, is_stopped) = match matched {
            Matched::Text(text) => (text, false),
            Matched::Stopped(text) => (text, true),
        };
        self.send(Event::Token { id, text, offset, logprobs });
        Ok(if is_stopped {
            self.finished(FinishReason::Stop, self.stop_string(), String::new())
        } else if is_complete || is_stop_token && may_stop {
            self.end(FinishReason::Stop, is_stop_token.then_some(StopCause::Token(id)))
        } else if is_held {
            Progress::Held(self.page_key())
        } else if is_last {
            self.end(FinishReason::Length, None)
        } else {
            if let Some(constraint) = &self.constraint {
                constraint.prepare();
            }
            Progress::Token(self.page_key())
        })
    }

    /// The name of the last page, if the last token fills it.
    fn page_key(&mut self) -> Option<PageKey> {
        self.chain.grown(TokenIds { prompt: &self.request.parts().prompt_ids, output: &self.output })
    }

    /// Gives out what was held back, which may hold a stop string after all once it is whole.
    fn end(&mut self, reason: FinishReason, cause: Option<StopCause>) -> Progress {
        match self.text.finish() {
            Matched::Text(text) => self.finished(reason, cause, text),
            Matched::Stopped(text) => self.finished(FinishReason::Stop, self.stop_string(), text),
        }
    }

    fn finished(&self, reason: FinishReason, cause: Option<StopCause>, text: String) -> Progress {
        let spans = self.timeline.spans();
        self.send(Event::Finished { reason, cause, text, cached_tokens: self.n_cached, spans });
        Progress::Ended(reason)
    }

    fn stop_string(&self) -> Option<StopCause> {
        self.text.stop_string().map(|stop| StopCause::Text(stop.to_owned()))
    }

    fn send(&self, event: Event) {
        self.events.send(event);
    }
}

/// At the start of the answer.
pub(super) fn assembler(request: &GenerateRequest, tokenizer: &Tokenizer) -> TextAssembler {
    let parts = request.parts();
    let options = DecodeOptions { skip_special_tokens: parts.text.special_tokens == SpecialTokens::Skip };
    let detokenizer = Detokenizer::new(tokenizer, options).with_prefix(&parts.prompt_ids);
    TextAssembler::new(detokenizer, Arc::clone(&parts.stop.stop_strings)).with_stop_text(parts.text.stop_text)
}
