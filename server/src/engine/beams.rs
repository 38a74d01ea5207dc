//! A beam search on its way: several sequences that share their past, and one search that decides which of them go on.
//!
//! Nothing is known of the answers until the search is over; their events are sent then.

use hearth_model::{
    Result, TokenId,
    kv_cache::PageKey,
    sampling::{
        LogitRow,
        beam::{BeamParams, BeamSearch, Hypothesis},
    },
    tokenizer::Tokenizer,
};

use super::{
    Event, EventSender, FinishReason, QueuePlace, StopCause,
    prefix_cache::PrefixChain,
    request::{GenerateRequest, StopConditions, StopText},
    scheduler::Arrival,
    sequence::{Intake, assembler},
    text::{Matched, TextAssembler},
    token_ids::TokenIds,
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
    /// Generated tokens.
    output: Vec<TokenId>,
    chain: PrefixChain,
    /// The generated text, looked through for stop strings.
    text: TextAssembler,
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
        intake: &mut Intake<'_>,
    ) -> Self {
        let mut chain = intake.chain(request.parts());
        let prompt_keys = chain.extend(&request.parts().prompt_ids);
        let text = assembler(&request, intake.tokenizer);
        Self {
            width: params.width,
            search: BeamSearch::new(params),
            branches: vec![Branch { output: Vec::new(), chain, text, is_expanded: false }],
            prompt_keys,
            events,
            queue_place: Some(intake.take_places(request.n_answers())),
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

    pub(crate) fn token_ids(&self, branch: usize) -> TokenIds<'_> {
        let branch = self.branches.get(branch);
        branch.map_or(TokenIds::of(&[]), |branch| self.with_prompt(&branch.output))
    }

    fn with_prompt<'a>(&'a self, output: &'a [TokenId]) -> TokenIds<'a> {
        TokenIds { prompt: &self.request.parts().prompt_ids, output }
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

    /// Takes the raw logits of a beam's last row, all of them. After a preemption they may come a second time.
    ///
    /// # Errors
    /// The logits are not what a working model gives; the search cannot go on.
    pub(crate) fn advance(&mut self, branch: usize, logits: &LogitRow<'_>) -> Result<BeamProgress> {
        let Some(Branch { text, output, is_expanded, .. }) = self.branches.get_mut(branch) else {
            return Ok(BeamProgress::Waits);
        };
        if std::mem::replace(is_expanded, true) {
            return Ok(BeamProgress::Waits);
        }
        let parts = self.request.parts();
        let may_stop = output.len() + 1 > parts.stop.min_tokens;
        let looks = may_stop && !parts.stop.stop_strings.is_empty();
        let completes = |id| looks && matches!(text.clone().push(id), Matched::Stopped(_));
        self.search.expand(branch, logits.whole()?, completes)?;
        if !self.branches.iter().all(|branch| branch.is_expanded) {
            return Ok(BeamProgress::Waits);
        }
        let parents = self.search.select();
        if parents.is_empty() {
            return Ok(BeamProgress::Ended(self.finish()));
        }
        let grown = parents.iter().zip(self.search.beams()).filter_map(|(&parent, beam)| {
            let Branch { mut output, mut chain, mut text, .. } = self.branches.get(parent)?.clone();
            let id = *beam.token_ids.last()?;
            output.push(id);
            push(&mut text, id, beam.token_ids.len(), self.request.parts().stop.min_tokens);
            let key = chain.grown(self.with_prompt(&output));
            Some((Branch { output, chain, text, is_expanded: false }, (parent, key)))
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
        let StopConditions { min_tokens, stop_token_ids, .. } = &self.request.parts().stop;
        let cuts = self.request.parts().text.stop_text == StopText::Cut;
        let mut text = assembler(&self.request, &self.tokenizer);
        let mut logprobs = logprobs.into_iter();
        let n_tokens = token_ids.len();
        let end_id = token_ids.last().copied().filter(|id| is_ended && stop_token_ids.contains(id));
        for (n, id) in (1..).zip(token_ids) {
            let offset = text.n_chars();
            let is_cut = end_id.is_some() && n == n_tokens && cuts;
            let text = if is_cut { String::new() } else { push(&mut text, id, n, *min_tokens) };
            events.send(Event::Token { id, text, offset, logprobs: logprobs.next() });
        }
        let is_stopped = text.stop_string().is_some();
        // What was held back may hold a stop string after all once it is whole.
        let (Matched::Text(rest) | Matched::Stopped(rest)) =
            if is_stopped { Matched::Text(String::new()) } else { text.finish() };
        let stop_string = text.stop_string().map(|stop| StopCause::Text(stop.to_owned()));
        let cause = stop_string.or(end_id.map(StopCause::Token));
        let reason = if cause.is_some() { FinishReason::Stop } else { FinishReason::Length };
        events.send(Event::Finished { reason, cause, text: rest, cached_tokens, spans: self.timeline.spans() });
        (reason, n_tokens)
    }
}

/// Adds the `n`-th token. Before there are `min_tokens`, none stops the answer.
fn push(text: &mut TextAssembler, id: TokenId, n: usize, min_tokens: usize) -> String {
    if n <= min_tokens {
        return text.pass(id);
    }
    let (Matched::Text(text) | Matched::Stopped(text)) = text.push(id);
    text
}
