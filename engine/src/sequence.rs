//! One growing sequence of tokens: its request, its sampler, and its output so far.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    bound_answer::{Bound, BoundAnswer},
    draft_length::Acceptance,
    event::{Event, FinishReason, StopCause},
    event_senders::{EventSenders, Progress},
    prefix_cache::PrefixChain,
    request::{EngineRequest, LogprobsMode, RequestParts, SpecialTokens, StopConditions, StopText},
    text::{Matched, TextAssembler},
    thinking::{Thinking, ThinkingStep},
    token_ids::TokenIds,
};
use hearth_model::{
    Result, TokenId,
    decode::{
        constraint::{Outlook, Watch},
        sampling::{LogitDemand, LogitRow, Sampler, TokenLogprobs, logprobs_of, token_logprobs},
    },
    gpt::kv_cache::PageKey,
    text::tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
};

/// An answer that grows token by token.
#[derive(Debug)]
pub(crate) struct Sequence {
    request: EngineRequest,
    sampler: Sampler,
    /// The state of the answer's grammar. Recomputed tokens are not sampled again, so it survives a preemption.
    constraint: Option<BoundAnswer>,
    /// The state of the grammar of parts of the answer. It reads only sampled tokens, never tokens of rejected drafts.
    watch: Option<Watch>,
    /// Its thoughts, if they are known.
    thinking: Option<Thinking>,
    text: TextAssembler,
    /// Generated tokens. The prompt is in the request, shared by all answers to it.
    output: Vec<TokenId>,
    /// Log-probabilities of the prompt's rows so far, including the first token's. Not added twice if rows are
    /// recomputed.
    prompt_logprobs: Arc<Vec<Option<TokenLogprobs>>>,
    chain: PrefixChain,
    /// Acceptance rate of the sequence's drafts.
    pub(crate) acceptance: Acceptance,
}

impl Sequence {
    /// A sequence without output. `chain` is at the end of the prompt.
    pub(crate) fn new(request: EngineRequest, chain: PrefixChain, tokenizer: &Tokenizer) -> Self {
        let text = assembler(&request, tokenizer);
        Self::with_text(request, chain, text, tokenizer)
    }

    /// Another answer to the same prompt.
    pub(crate) fn fork(&self, request: EngineRequest, tokenizer: &Tokenizer) -> Self {
        let (ours, theirs) = (self.request.parts(), request.parts());
        let reads_alike = ours.text == theirs.text && ours.stop.stop_strings == theirs.stop.stop_strings;
        let text = if reads_alike { self.text.clone() } else { assembler(&request, tokenizer) };
        Self::with_text(request, self.chain.clone(), text, tokenizer)
    }

    fn with_text(request: EngineRequest, chain: PrefixChain, text: TextAssembler, tokenizer: &Tokenizer) -> Self {
        let parts = request.parts();
        let thinking = parts.thinking.clone().map(|rules| Thinking::new(rules, &parts.prompt_ids, tokenizer));
        let start = thinking.as_ref().and_then(Thinking::answer_start);
        let mut watch = parts.watch.clone();
        if thinking.as_ref().is_some_and(Thinking::is_open) {
            watch.iter_mut().for_each(Watch::silence);
        }
        Self {
            constraint: parts.constraint.as_ref().map(|empty| BoundAnswer::new(empty, start)),
            watch,
            thinking,
            sampler: Sampler::sharing(parts.sampling.clone(), parts.choice, parts.own_prompt_ids()),
            text,
            output: Vec::new(),
            // The first token of a prompt has no log-probability.
            prompt_logprobs: Arc::new(vec![None]),
            chain,
            acceptance: Acceptance::default(),
            request,
        }
    }

    pub(crate) fn request(&self) -> &EngineRequest {
        &self.request
    }

    /// Copies the prompt's log-probabilities from a sequence with the same prompt.
    pub(crate) fn share_prompt_logprobs(&mut self, other: &Self) {
        self.prompt_logprobs = Arc::clone(&other.prompt_logprobs);
    }

    pub(crate) fn token_ids(&self) -> TokenIds<'_> {
        TokenIds { prompt: &self.request.parts().prompt_ids, output: &self.output }
    }

    /// Number of generated tokens.
    pub(crate) fn n_completion(&self) -> usize {
        self.output.len()
    }

    /// Maximum number of draft tokens that the sequence can use besides the token of the next step. 0 before the first
    /// token, because other answers may fork there.
    pub(crate) fn max_drafts(&self) -> usize {
        match self.n_completion() {
            0 => 0,
            // The sequence is held after each token, so drafts would be rejected.
            _ if self.constraint.as_ref().is_some_and(BoundAnswer::is_slow) => 0,
            _ if self.watch.as_ref().is_some_and(Watch::is_slow) => 0,
            n_completion => self.request.parts().stop.max_tokens.saturating_sub(n_completion + 1),
        }
    }

    /// The sampler in its current state, for drafting.
    pub(crate) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The token that would be sampled from these logits after `n_ahead` more tokens, which `sampler`, a copy of the
    /// sequence's sampler, has accepted. `None` if no token can be sampled.
    pub(crate) fn sample_draft(&self, sampler: &mut Sampler, n_ahead: usize, logits: &LogitRow<'_>) -> Option<TokenId> {
        let id = sampler.sample(self.allowed(n_ahead, logits), self.token_ids().len() + n_ahead).ok()?;
        sampler.accept(id);
        Some(id)
    }

    /// The part of a row that [`sample_draft`](Self::sample_draft) needs.
    pub(crate) fn draft_needs(&self, sampler: &Sampler, n_ahead: usize) -> LogitDemand {
        sampler.needs(self.barred(n_ahead), &[])
    }

    /// The part of the row at `position` that [`advance`](Self::advance) needs, if the tokens `ahead` extend the
    /// sequence up to there.
    pub(crate) fn needs(&self, position: usize, ahead: &[TokenId]) -> LogitDemand {
        let RequestParts { logprobs, logprobs_mode, logprobs_of, thinking, .. } = self.request.parts();
        let is_of_prompt = position + 1 < self.n_prompt();
        // A forced token may have any rank, so its log-probability needs the whole row.
        let may_force = thinking.as_ref().is_some_and(|thinking| thinking.budget.is_some());
        let reports_raw = logprobs.is_some() && (*logprobs_mode == LogprobsMode::Raw || may_force);
        let reports_raw = reports_raw || logprobs_of.is_some();
        if is_of_prompt || reports_raw || self.constraint.is_some() {
            return LogitDemand::Whole;
        }
        // Tokens that are barred now may be allowed at `position`, but not the other way round.
        let barred = self.barred(0);
        match self.outlook(ahead) {
            Some(Outlook::Bound) => LogitDemand::Whole,
            Some(Outlook::Free(forbidden)) if !forbidden.is_empty() => {
                self.sampler.needs(&barred.union(&forbidden).copied().collect(), ahead)
            }
            _ => self.sampler.needs(barred, ahead),
        }
    }

    /// The restriction by a grammar of parts of the answer after the tokens `ahead`. `None` without such a grammar.
    fn outlook(&self, ahead: &[TokenId]) -> Option<Outlook> {
        let watch = self.watch.as_ref()?;
        if ahead.is_empty() || watch.is_bound() {
            return Some(watch.outlook());
        }
        let (mut watch, mut thinking) = (watch.clone(), self.thinking.clone());
        for &id in ahead {
            let step = thinking.as_mut().map(|thinking| thinking.accept(id, false));
            // The rest of a text that the grammar does not allow is never needed.
            if follow(&mut watch, id, step, thinking.as_ref()).is_err() || watch.is_bound() {
                return Some(Outlook::Bound);
            }
        }
        Some(watch.outlook())
    }

    /// The tokens that would end the sequence too early after `n_ahead` more tokens.
    fn barred(&self, n_ahead: usize) -> &BTreeSet<TokenId> {
        static NONE: BTreeSet<TokenId> = BTreeSet::new();
        let StopConditions { min_tokens, stop_token_ids, .. } = &self.request.parts().stop;
        if self.n_completion() + n_ahead < *min_tokens { stop_token_ids } else { &NONE }
    }

    /// The logits after `n_ahead` more tokens, without tokens that would end the sequence too early.
    fn allowed<'a>(&self, n_ahead: usize, logits: &'a LogitRow<'_>) -> LogitRow<'a> {
        match self.barred(n_ahead) {
            barred if barred.is_empty() => logits.into(),
            barred => logits.without(barred),
        }
    }

    /// Whether the row at `position` is needed for the requested log-probability of the prompt token after it. Once the
    /// prompt's log-probabilities are sent, which is before the first token, no row is needed again after a preemption.
    pub(crate) fn wants_prompt_row(&self, position: usize) -> bool {
        let is_new = self.n_completion() == 0 && position + 1 >= self.prompt_logprobs.len();
        self.request.parts().prompt_logprobs.is_some() && position + 1 < self.n_prompt() && is_new
    }

    /// Processes the raw logits of the row at `position`, or the part that it [needs](Self::needs): a requested prompt
    /// row, or the last row, which gives the next token.
    ///
    /// # Errors
    /// The logits are invalid; the sequence cannot continue.
    pub(crate) fn advance(
        &mut self,
        senders: &mut EventSenders,
        position: usize,
        logits: &LogitRow<'_>,
    ) -> Result<Progress> {
        if position + 1 < self.n_prompt() {
            let n_top = self.request.parts().prompt_logprobs.unwrap_or(0);
            let id = self.token_ids().get(position + 1);
            let logits = logits.whole()?;
            let logprobs = id.map(|id| token_logprobs(logits, id, n_top));
            Arc::make_mut(&mut self.prompt_logprobs).push(logprobs);
            return Ok(Progress::Nothing);
        }
        if self.request.parts().prompt_logprobs.is_some() && self.n_completion() == 0 {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            senders.queue(0, Event::PromptLogprobs(logprobs));
        }
        if self.request.parts().stop.max_tokens == 0 {
            return Ok(self.end(senders, FinishReason::Length, None));
        }
        self.draw(senders, logits)
    }

    /// The result of a held sequence: it [continues](Progress::Resumed) or has ended. `None` while the result is not
    /// ready.
    pub(crate) fn poll_held(&mut self, senders: &mut EventSenders) -> Option<Result<Progress>> {
        let accepted = match &mut self.constraint {
            Some(constraint) => constraint.accepted()?,
            None => self.watch.as_mut()?.accepted()?,
        };
        Some(accepted.map(|is_complete| match is_complete {
            true => self.end(senders, FinishReason::Stop, None),
            false if self.n_completion() >= self.request.parts().stop.max_tokens => {
                self.end(senders, FinishReason::Length, None)
            }
            false => Progress::Resumed,
        }))
    }

    pub(crate) fn n_prompt(&self) -> usize {
        self.request.parts().prompt_ids.len()
    }

    fn draw(&mut self, senders: &mut EventSenders, logits: &LogitRow<'_>) -> Result<Progress> {
        let StopConditions { min_tokens, max_tokens, stop_token_ids, .. } = &self.request.parts().stop;
        let may_stop = self.n_completion() + 1 > *min_tokens;
        let mut forced = self.thinking.as_ref().and_then(Thinking::forced);
        let is_thinking = self.thinking.as_ref().is_some_and(Thinking::is_open);
        let allowed = match &self.constraint {
            // A constrained answer ends when it is complete, whatever the minimum length.
            Some(constraint) if forced.is_none() && !is_thinking => {
                LogitRow::Whole(constraint.restrict(logits.whole()?, stop_token_ids)?.into())
            }
            None if forced.is_none() => self.watched(logits)?,
            _ => self.allowed(0, logits),
        };
        let position = self.token_ids().len();
        let mut sampled = match forced {
            Some(id) => id,
            None => self.sampler.sample(&allowed, position)?,
        };
        if let Some(thinking) = self.thinking.as_mut().filter(|_| forced.is_none() && is_thinking)
            && self.constraint.is_some()
        {
            // The answer must follow the grammar after the thought: no token may contain parts of both.
            let mut barred = BTreeSet::new();
            while thinking.would_begin_answer(sampled) {
                barred.insert(sampled);
                sampled = self.sampler.sample(allowed.without(&barred), position)?;
            }
            if stop_token_ids.contains(&sampled) {
                thinking.close();
                forced = thinking.forced();
            }
        }
        let id = forced.unwrap_or(sampled);
        let asked = self.request.parts();
        let logprobs = match (&asked.logprobs_of, asked.logprobs, asked.logprobs_mode) {
            (Some(of), ..) => Some(logprobs_of(logits.whole()?, id, of)),
            (None, None, _) => None,
            (None, Some(n_top), LogprobsMode::Raw) => Some(token_logprobs(logits.whole()?, id, n_top)),
            (None, Some(n_top), LogprobsMode::Processed) => {
                Some(self.sampler.logprobs(&allowed, position, (id, n_top))?)
            }
        };
        let is_stop_token = forced.is_none() && stop_token_ids.contains(&id);
        let is_last = self.n_completion() + 1 == *max_tokens;
        let is_in_call = self.watch.as_ref().is_some_and(Watch::is_bound)
            || self.constraint.as_ref().is_some_and(BoundAnswer::has_begun);
        let step = self.thinking.as_mut().filter(|_| !is_stop_token).map(|thinking| thinking.accept(id, is_in_call));
        self.sampler.accept(id);
        self.output.push(id);
        let offset = self.text.n_chars();
        let bound = match (&mut self.constraint, &self.request.parts().constraint) {
            (Some(constraint), Some(empty)) if !is_stop_token => constraint.accept(id, step, empty)?,
            (None, _) if !is_stop_token => self.accept_watched(id, step)?,
            _ => Bound::Open,
        };
        let stop_text = if self.constraint.is_some() { StopText::Cut } else { self.request.parts().text.stop_text };
        let matched = match (is_stop_token && may_stop, stop_text) {
            (true, StopText::Cut) => Matched::Text(String::new()),
            _ if may_stop && step.is_some_and(ThinkingStep::begins_answer) => self.text.push_after_blanks(id),
            _ if may_stop && !step.is_some_and(ThinkingStep::is_before_answer) => self.text.push(id),
            _ => Matched::Text(self.text.pass(id)),
        };
        let (text, is_stopped) = match matched {
            Matched::Text(text) => (text, false),
            Matched::Stopped(text) => (text, true),
        };
        senders.queue(0, Event::Token { id, text, offset, logprobs });
        Ok(if is_stopped {
            self.finished(senders, FinishReason::Stop, self.stop_string(), String::new())
        } else if bound == Bound::Complete || is_stop_token && may_stop {
            self.end(senders, FinishReason::Stop, is_stop_token.then_some(StopCause::Token(id)))
        } else if bound == Bound::Later {
            Progress::Held(self.page_key())
        } else if is_last {
            self.end(senders, FinishReason::Length, None)
        } else {
            self.constraint.iter().for_each(BoundAnswer::prepare);
            self.watch.iter().for_each(Watch::prepare);
            Progress::Token(self.page_key())
        })
    }

    /// The logits of the next token, without tokens that the grammar of parts of the answer forbids.
    fn watched<'a>(&self, logits: &'a LogitRow<'_>) -> Result<LogitRow<'a>> {
        match &self.watch {
            Some(watch) if watch.is_bound() => {
                let end_ids = &self.request.parts().stop.stop_token_ids;
                Ok(LogitRow::Whole(watch.restrict(logits.whole()?, end_ids)?.into()))
            }
            Some(watch) => Ok(match watch.outlook() {
                Outlook::Free(forbidden) if !forbidden.is_empty() => self.allowed(0, logits).without(&forbidden),
                _ => self.allowed(0, logits),
            }),
            None => Ok(self.allowed(0, logits)),
        }
    }

    /// Adds a token to the parts of the answer.
    fn accept_watched(&mut self, id: TokenId, step: Option<ThinkingStep>) -> Result<Bound> {
        let Some(watch) = &mut self.watch else { return Ok(Bound::Open) };
        if watch.is_slow() {
            watch.accept_elsewhere(id);
            return Ok(Bound::Later);
        }
        Ok(if follow(watch, id, step, self.thinking.as_ref())? { Bound::Complete } else { Bound::Open })
    }

    /// The key of the last page, if the last token fills it. Must be called once for each token: it advances the chain.
    fn page_key(&mut self) -> Option<PageKey> {
        self.chain.grown(TokenIds { prompt: &self.request.parts().prompt_ids, output: &self.output })
    }

    /// Ends the answer with the held-back text, which may turn out to contain a stop string.
    fn end(&mut self, senders: &mut EventSenders, reason: FinishReason, cause: Option<StopCause>) -> Progress {
        match self.text.finish() {
            Matched::Text(text) => self.finished(senders, reason, cause, text),
            Matched::Stopped(text) => self.finished(senders, FinishReason::Stop, self.stop_string(), text),
        }
    }

    fn finished(
        &self,
        senders: &mut EventSenders,
        reason: FinishReason,
        cause: Option<StopCause>,
        text: String,
    ) -> Progress {
        let thought_tokens = self.thinking.as_ref().map(Thinking::n_tokens);
        senders.queue_end_of_thinking(0, (reason, cause), text, thought_tokens);
        Progress::Ended(vec![(reason, self.n_completion())])
    }

    fn stop_string(&self) -> Option<StopCause> {
        self.text.stop_string().map(|stop| StopCause::Text(stop.to_owned()))
    }
}

/// Adds a token to the watched text, which excludes thoughts. Returns whether the text is complete.
///
/// # Errors
/// As [`Watch::accept`].
fn follow(watch: &mut Watch, id: TokenId, step: Option<ThinkingStep>, thinking: Option<&Thinking>) -> Result<bool> {
    match (step, thinking) {
        (Some(step), _) if step.is_open => {
            watch.silence();
            Ok(false)
        }
        (Some(step), Some(thinking)) if step.was_open => watch.wake(thinking.after_thought()),
        _ => watch.accept(id),
    }
}

/// A text assembler at the start of the answer.
pub(super) fn assembler(request: &EngineRequest, tokenizer: &Tokenizer) -> TextAssembler {
    let parts = request.parts();
    let options = DecodeOptions { skip_special_tokens: parts.text.special_tokens == SpecialTokens::Skip };
    let detokenizer = Detokenizer::new(tokenizer, options).with_prefix(&parts.own_prompt_ids());
    TextAssembler::new(detokenizer, Arc::clone(&parts.stop.stop_strings)).with_stop_text(parts.text.stop_text)
}
