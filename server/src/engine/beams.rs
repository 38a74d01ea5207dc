//! The state of a beam search: several sequences with a common past, and a search that selects which of them continue.
//!
//! The answers are only known at the end; their events are sent then.

use hearth_model::{
    Result, TokenId,
    sampling::{
        LogitRow,
        beam::{BeamKind, BeamParams, BeamSearch, Hypothesis},
    },
    tokenizer::Tokenizer,
};

use super::{
    event::{Event, FinishReason, StopCause},
    event_senders::{EventSenders, Progress},
    prefix_cache::PrefixChain,
    request::{EngineRequest, StopConditions, StopText},
    sequence::assembler,
    text::{Matched, TextAssembler},
    token_ids::TokenIds,
};

/// A beam search.
#[derive(Debug)]
pub(crate) struct Beams {
    request: EngineRequest,
    search: BeamSearch,
    branches: Vec<Branch>,
    tokenizer: Tokenizer,
    /// Number of tokens of all answers; 0 until the search is over.
    n_completion: usize,
}

#[derive(Clone, Debug)]
struct Branch {
    /// Generated tokens.
    output: Vec<TokenId>,
    chain: PrefixChain,
    /// Detokenizes the generated text and searches it for stop strings.
    text: TextAssembler,
    /// Whether its logits have been processed since the last selection: a step may have room for only some branches.
    is_expanded: bool,
}

impl Beams {
    /// A search with one beam, the prompt. `chain` is at the end of the prompt.
    pub(crate) fn new(
        request: EngineRequest,
        (width, kind): (usize, BeamKind),
        chain: PrefixChain,
        tokenizer: &Tokenizer,
    ) -> Self {
        let (parts, text) = (request.parts(), assembler(&request, tokenizer));
        let params = BeamParams {
            width,
            kind,
            temperature: parts.sampling.temperature,
            end_ids: parts.stop.stop_token_ids.clone(),
            min_tokens: parts.stop.min_tokens,
            max_tokens: parts.stop.max_tokens,
            n_top: parts.logprobs,
        };
        Self {
            search: BeamSearch::new(params),
            branches: vec![Branch { output: Vec::new(), chain, text, is_expanded: false }],
            tokenizer: tokenizer.clone(),
            n_completion: 0,
            request,
        }
    }

    pub(crate) fn request(&self) -> &EngineRequest {
        &self.request
    }

    pub(crate) fn n_completion(&self) -> usize {
        self.n_completion
    }

    pub(crate) fn token_ids(&self, branch: usize) -> TokenIds<'_> {
        let branch = self.branches.get(branch);
        branch.map_or(TokenIds::of(&[]), |branch| self.with_prompt(&branch.output))
    }

    fn with_prompt<'a>(&'a self, output: &'a [TokenId]) -> TokenIds<'a> {
        TokenIds { prompt: &self.request.parts().prompt_ids, output }
    }

    /// Processes the raw logits of a beam's last row, over the whole vocabulary. After a preemption, a row may be
    /// passed again.
    ///
    /// # Errors
    /// The logits are invalid; the search cannot continue.
    pub(crate) fn advance(
        &mut self,
        senders: &mut EventSenders,
        branch: usize,
        logits: &LogitRow<'_>,
    ) -> Result<Progress> {
        let Some(Branch { text, output, is_expanded, .. }) = self.branches.get_mut(branch) else {
            return Ok(Progress::Nothing);
        };
        if std::mem::replace(is_expanded, true) {
            return Ok(Progress::Nothing);
        }
        let parts = self.request.parts();
        let may_stop = output.len() + 1 > parts.stop.min_tokens;
        let searches_stops = may_stop && !parts.stop.stop_strings.is_empty();
        let completes = |id| searches_stops && matches!(text.clone().push(id), Matched::Stopped(_));
        self.search.expand(branch, logits.whole()?, completes)?;
        if !self.branches.iter().all(|branch| branch.is_expanded) {
            return Ok(Progress::Nothing);
        }
        let parents = self.search.select();
        if parents.is_empty() {
            return Ok(Progress::Ended(self.finish(senders)));
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
        Ok(Progress::Branches(steps))
    }

    fn finish(&mut self, senders: &mut EventSenders) -> Vec<(FinishReason, usize)> {
        // The replaced search is not used again.
        let nothing = BeamSearch::new(BeamParams { width: 1, ..self.search.params().clone() });
        let best = std::mem::replace(&mut self.search, nothing).into_best(senders.n_answers());
        let mut best = best.into_iter();
        let ends = (0..senders.n_answers()).map(|answer| match best.next() {
            Some(hypothesis) => self.queue(senders, answer, hypothesis),
            // There are fewer answers than requested.
            None => {
                senders.queue_end(answer, FinishReason::Stop, None, String::new());
                (FinishReason::Stop, 0)
            }
        });
        let ends: Vec<_> = ends.collect();
        self.n_completion = ends.iter().map(|(_, n_tokens)| n_tokens).sum();
        ends
    }

    /// Queues all events of an answer.
    fn queue(&self, senders: &mut EventSenders, answer: usize, hypothesis: Hypothesis) -> (FinishReason, usize) {
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
            senders.queue(answer, Event::Token { id, text, offset, logprobs: logprobs.next() });
        }
        let is_stopped = text.stop_string().is_some();
        // The held-back text may turn out to contain a stop string.
        let (Matched::Text(rest) | Matched::Stopped(rest)) =
            if is_stopped { Matched::Text(String::new()) } else { text.finish() };
        let stop_string = text.stop_string().map(|stop| StopCause::Text(stop.to_owned()));
        let cause = stop_string.or(end_id.map(StopCause::Token));
        let reason = if cause.is_some() { FinishReason::Stop } else { FinishReason::Length };
        senders.queue_end(answer, reason, cause, rest);
        (reason, n_tokens)
    }
}

/// Adds the `n`-th token. No token stops the answer before `min_tokens`.
fn push(text: &mut TextAssembler, id: TokenId, n: usize, min_tokens: usize) -> String {
    if n <= min_tokens {
        return text.pass(id);
    }
    let (Matched::Text(text) | Matched::Stopped(text)) = text.push(id);
    text
}
