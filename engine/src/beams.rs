//! The state of a beam search: several sequences with a common past, and a search that selects which of them continue.
//!
//! The answers are only known at the end; their events are sent then.

use hearth_model::{
    Result, TokenId,
    decode::sampling::{
        LogitRow,
        beam::{BeamKind, BeamParams, BeamRules, BeamSearch, Hypothesis},
    },
    text::tokenizer::Tokenizer,
};

use crate::{
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
    /// Number of tokens over all answers; 0 until the search is over.
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
            rules: BeamRules::of(&parts.sampling, &parts.own_prompt_ids()),
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

    /// Processes the raw logits of a beam's last row, at `position`, over the whole vocabulary. After a preemption, a
    /// row may be passed again, even after the row that completed its step's selection: the beam then has another last
    /// row already, and ignores it.
    ///
    /// # Errors
    /// The logits are invalid; the search cannot continue.
    pub(crate) fn advance(
        &mut self,
        senders: &mut EventSenders,
        (branch, position): (usize, usize),
        logits: &LogitRow<'_>,
    ) -> Result<Progress> {
        let parts = self.request.parts();
        let Some(Branch { text, output, is_expanded, .. }) = self.branches.get_mut(branch) else {
            return Ok(Progress::Nothing);
        };
        let is_last = position + 1 == parts.prompt_ids.len() + output.len();
        if !is_last || std::mem::replace(is_expanded, true) {
            return Ok(Progress::Nothing);
        }
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{path::Path, time::Instant};

    use hearth_model::decode::sampling::beam::{BeamGroups, EarlyStopping};
    use serde_json::json;

    use super::{
        super::{
            event::channel,
            request::{ModelLimits, RequestParts, Strategy},
        },
        *,
    };

    /// After a preemption, the rows of all beams are recomputed, and an already processed row may come after the last
    /// unprocessed one.
    #[test]
    fn beam_row_behind_the_selection_of_its_step_is_ignored() {
        let json = json!({
            "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": { "a": 0, "b": 1, "c": 2 }, "unk_token": "a" },
        });
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap();
        let kind = BeamKind::Best { length_penalty: 0.0, early_stopping: EarlyStopping::Full, groups: BeamGroups::ONE };
        let parts = RequestParts {
            prompt_ids: [0].into(),
            stop: StopConditions { max_tokens: 3, ..StopConditions::default() },
            strategy: Strategy::Beams { width: 2, n_best: 2, kind },
            ..RequestParts::default()
        };
        let limits = ModelLimits {
            vocab_size: 3,
            max_seq_len: 8,
            max_batch_size: 2,
            n_pages: 8,
            is_recurrent: false,
            is_encoder: false,
            max_source_len: 0,
        };
        let request = EngineRequest::new(parts, &limits).unwrap();
        let mut beams = Beams::new(request, (2, kind), PrefixChain::new(None), &tokenizer);
        let (source, _stream) = channel();
        let mut senders = EventSenders::new(vec![source.sender(0), source.sender(1)], Instant::now());
        let mut advance = |beams: &mut Beams, place, logits: [f32; 3]| {
            beams.advance(&mut senders, place, &LogitRow::from(&logits)).unwrap()
        };
        // The beams are `b` and `c`, then `bb` and `cb`.
        let progress = advance(&mut beams, (0, 0), [-9.0, 1.0, 0.0]);
        assert_eq!(progress, Progress::Branches(vec![(0, None), (0, None)]));
        let to_b = [-9.0, 1.0, -9.0];
        assert_eq!(advance(&mut beams, (1, 1), to_b), Progress::Nothing);
        assert_eq!(advance(&mut beams, (0, 1), to_b), Progress::Branches(vec![(0, None), (1, None)]));
        assert_eq!(advance(&mut beams, (1, 1), to_b), Progress::Nothing);
        assert!(beams.branches.iter().all(|branch| !branch.is_expanded), "its own row is still to come");
    }
}
