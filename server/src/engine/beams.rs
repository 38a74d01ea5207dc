//! A beam search on its way: several sequences that share their past, and one search that decides which of them go on.
//!
//! Nothing is known of the answers until the search is over; their events are sent then.

use hearth_model::{
    Result, TokenId,
    kv_cache::PageKey,
    sampling::beam::{BeamParams, BeamSearch, Hypothesis},
    tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
};

use super::{
    Event, EventSender, FinishReason, QueuePlace, StopCause,
    prefix_cache::PrefixChain,
    request::{GenerateRequest, SpecialTokens, StopText},
    scheduler::Arrival,
    sequence::Intake,
    text::{Matched, TextAssembler},
};
use crate::metrics::Timeline;

/// What the worker keeps for a beam search from its arrival to its end.
#[derive(Debug)]
pub(crate) struct Beams {
    request: GenerateRequest,
    /// One per answer.
    events: Vec<EventSender>,
    queue_place: Option<QueuePlace>,
    search: BeamSearch,
    width: usize,
    branches: Vec<Branch>,
    /// Names of the prompt's pages, until the scheduler has them.
    prompt_keys: Vec<PageKey>,
    tokenizer: Tokenizer,
    n_cached: usize,
    pub(crate) timeline: Timeline,
}

#[derive(Clone, Debug)]
struct Branch {
    /// Prompt and generated tokens.
    token_ids: Vec<TokenId>,
    chain: PrefixChain,
    /// Its logits were seen, but not yet those of all others: a step has room for some only.
    is_expanded: bool,
}

/// Whether a beam search goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BeamProgress {
    /// Other beams of the same length are still to be computed.
    Waits,
    /// The index of each new beam's parent, and the name of its last page if that is full now.
    Goes(Vec<(usize, Option<PageKey>)>),
    /// Each answer's reason and length.
    Ended(Vec<(FinishReason, usize)>),
}

impl Beams {
    /// A search that has one beam, the prompt.
    pub(crate) fn new(
        request: GenerateRequest,
        events: Vec<EventSender>,
        params: BeamParams,
        intake: &Intake<'_>,
    ) -> Self {
        let token_ids = request.parts().prompt_ids.clone();
        let mut chain = PrefixChain::new(intake.secret, request.parts().cache_salt.as_deref());
        let prompt_keys = chain.extend(&token_ids);
        Self {
            width: params.width,
            search: BeamSearch::new(params),
            branches: vec![Branch { token_ids, chain, is_expanded: false }],
            prompt_keys,
            events,
            queue_place: Some(intake.queue_place.clone()),
            tokenizer: intake.tokenizer.clone(),
            n_cached: 0,
            timeline: Timeline::new(intake.arrived),
            request,
        }
    }

    pub(crate) fn request(&self) -> &GenerateRequest {
        &self.request
    }

    pub(crate) fn arrival(&mut self) -> Arrival {
        Arrival {
            n_prompt: self.request.parts().prompt_ids.len(),
            width: self.width,
            priority: self.request.parts().priority,
            keys: std::mem::take(&mut self.prompt_keys),
            reads_kept_pages: true,
        }
    }

    pub(crate) fn token_ids(&self, branch: usize) -> &[TokenId] {
        self.branches.get(branch).map_or(&[], |branch| &branch.token_ids)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.iter().all(EventSender::is_closed)
    }

    pub(crate) fn started(&mut self, n_cached: usize) {
        self.queue_place = None;
        self.n_cached = n_cached;
    }

    /// Ends every answer with the same event.
    pub(crate) fn end_with(&self, event: &Event) {
        self.events.iter().for_each(|events| events.send(event.clone()));
    }

    /// Takes the raw logits of a beam's last row, `[vocab_size]`. After a preemption they may come a second time.
    ///
    /// # Errors
    /// The logits are not what a working model gives; the search cannot go on.
    pub(crate) fn advance(&mut self, branch: usize, logits: &[f32]) -> Result<BeamProgress> {
        match self.branches.get_mut(branch) {
            Some(branch) if !branch.is_expanded => branch.is_expanded = true,
            _ => return Ok(BeamProgress::Waits),
        }
        self.search.expand(branch, logits)?;
        if !self.branches.iter().all(|branch| branch.is_expanded) {
            return Ok(BeamProgress::Waits);
        }
        let parents = self.search.select();
        if parents.is_empty() {
            return Ok(BeamProgress::Ended(self.finish()));
        }
        let grown = parents.iter().zip(self.search.beams()).filter_map(|(&parent, beam)| {
            let Branch { mut token_ids, mut chain, .. } = self.branches.get(parent)?.clone();
            token_ids.extend(beam.token_ids.last());
            let key = chain.grown(&token_ids);
            Some((Branch { token_ids, chain, is_expanded: false }, (parent, key)))
        });
        let (branches, steps): (Vec<Branch>, Vec<_>) = grown.unzip();
        self.branches = branches;
        Ok(BeamProgress::Goes(steps))
    }

    fn finish(&mut self) -> Vec<(FinishReason, usize)> {
        // The search is over: what stays here is never looked at again.
        let nothing = BeamSearch::new(BeamParams { width: 1, ..self.search.params().clone() });
        let best = std::mem::replace(&mut self.search, nothing).into_best(self.events.len());
        let mut best = best.into_iter();
        let outcomes = self.events.iter().enumerate().map(|(index, events)| {
            let n_cached = if index == 0 { self.n_cached } else { 0 };
            match best.next() {
                Some(hypothesis) => self.tell(events, hypothesis, n_cached),
                // There are fewer answers than were asked for.
                None => {
                    let reason = FinishReason::Stop;
                    let (text, cause, spans) = (String::new(), None, self.timeline.spans());
                    events.send(Event::Finished { reason, cause, text, cached_tokens: n_cached, spans });
                    (reason, 0)
                }
            }
        });
        outcomes.collect()
    }

    fn tell(&self, events: &EventSender, hypothesis: Hypothesis, cached_tokens: usize) -> (FinishReason, usize) {
        let Hypothesis { token_ids, logprobs, is_ended, .. } = hypothesis;
        let parts = self.request.parts();
        let options = DecodeOptions { skip_special_tokens: parts.text.special_tokens == SpecialTokens::Skip };
        let detokenizer = Detokenizer::new(&self.tokenizer, options).with_prefix(&parts.prompt_ids);
        let mut text = TextAssembler::new(detokenizer, Vec::new());
        let mut logprobs = logprobs.into_iter();
        let n_tokens = token_ids.len();
        let cause = token_ids.last().filter(|_| is_ended).map(|&id| StopCause::Token(id));
        for (index, id) in token_ids.into_iter().enumerate() {
            let offset = text.n_chars();
            let is_end = is_ended && index + 1 == n_tokens && parts.text.stop_text == StopText::Cut;
            let text = if is_end { String::new() } else { text.pass(id) };
            events.send(Event::Token { id, text, offset, logprobs: logprobs.next() });
        }
        let reason = if is_ended { FinishReason::Stop } else { FinishReason::Length };
        let (Matched::Text(text) | Matched::Stopped(text)) = text.finish();
        events.send(Event::Finished { reason, cause, text, cached_tokens, spans: self.timeline.spans() });
        (reason, n_tokens)
    }
}
