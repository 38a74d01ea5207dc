//! One growing sequence of tokens: what it was asked for, what it has so far, and where its events go.

use std::collections::BTreeSet;

use hearth_model::{
    Result, TokenId,
    sampling::{Sampler, TokenLogprobs, token_logprobs},
    tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
};

use super::{
    Event, EventSender, FinishReason, QueuePlace,
    request::{GenerateRequest, StopConditions},
    scheduler::Extent,
    text::{Matched, TextAssembler},
};

/// What the worker keeps for a request from its arrival to its end.
#[derive(Debug)]
pub(crate) struct Sequence {
    request: GenerateRequest,
    events: EventSender,
    /// Held while the sequence waits; given back when it starts.
    queue_place: Option<QueuePlace>,
    sampler: Sampler,
    text: TextAssembler,
    /// Prompt and generated tokens.
    token_ids: Vec<TokenId>,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
}

/// Whether a sequence goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Goes,
    Ended,
}

impl Sequence {
    pub(crate) fn new(
        request: GenerateRequest,
        events: EventSender,
        queue_place: QueuePlace,
        tokenizer: &Tokenizer,
    ) -> Self {
        let parts = request.parts();
        let options = DecodeOptions { skip_special_tokens: true };
        let detokenizer = Detokenizer::new(tokenizer, options).with_prefix(&parts.prompt_ids);
        Self {
            sampler: Sampler::new(parts.sampling.clone(), parts.choice, &parts.prompt_ids),
            text: TextAssembler::new(detokenizer, parts.stop.stop_strings.clone()),
            token_ids: parts.prompt_ids.clone(),
            // The first token of a prompt is predicted by nothing.
            prompt_logprobs: vec![None],
            queue_place: Some(queue_place),
            events,
            request,
        }
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent { n_prompt: self.n_prompt(), max_tokens: self.request.parts().stop.max_tokens }
    }

    pub(crate) fn token_ids(&self) -> &[TokenId] {
        &self.token_ids
    }

    /// Tokens generated so far.
    pub(crate) fn n_completion(&self) -> usize {
        self.token_ids.len() - self.n_prompt()
    }

    /// Whether the client has gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// The sequence has left the queue.
    pub(crate) fn started(&mut self) {
        self.queue_place = None;
    }

    /// Whether the row at `position`, which is computed now, says something that was asked for besides the next token:
    /// the log-probability of the prompt token behind it.
    pub(crate) fn wants_prompt_row(&self, position: usize) -> bool {
        self.request.parts().prompt_logprobs.is_some() && position + 1 < self.n_prompt()
    }

    /// Takes the raw logits of the row at `position`, `[vocab_size]`: those of a prompt row that was asked for, or of
    /// the last row, which give the next token.
    ///
    /// # Errors
    /// The logits are not what a working model gives; the sequence cannot go on.
    pub(crate) fn advance(&mut self, position: usize, logits: &[f32]) -> Result<Progress> {
        if position + 1 < self.n_prompt() {
            let n_top = self.request.parts().prompt_logprobs.unwrap_or(0);
            let id = self.token_ids.get(position + 1).copied();
            self.prompt_logprobs.push(id.map(|id| token_logprobs(logits, id, n_top)));
            return Ok(Progress::Goes);
        }
        if self.request.parts().prompt_logprobs.is_some() && self.n_completion() == 0 {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send(Event::PromptLogprobs(logprobs));
        }
        if self.request.parts().stop.max_tokens == 0 {
            return Ok(self.end(FinishReason::Length));
        }
        self.draw(logits)
    }

    /// Ends the sequence with an error that its client gets to see.
    pub(crate) fn fail(&self, message: &str) {
        self.send(Event::Failed(message.to_owned()));
    }

    fn n_prompt(&self) -> usize {
        self.request.parts().prompt_ids.len()
    }

    fn draw(&mut self, logits: &[f32]) -> Result<Progress> {
        let StopConditions { min_tokens, max_tokens, stop_token_ids, .. } = &self.request.parts().stop;
        let may_stop = self.n_completion() + 1 > *min_tokens;
        let barred = if may_stop { None } else { Some(without(logits, stop_token_ids)) };
        let id = self.sampler.sample(barred.as_deref().unwrap_or(logits), self.token_ids.len())?;
        let logprobs = self.request.parts().logprobs.map(|n_top| token_logprobs(logits, id, n_top));
        let (is_stop_token, is_last) = (stop_token_ids.contains(&id), self.n_completion() + 1 == *max_tokens);
        self.sampler.accept(id);
        self.token_ids.push(id);
        let offset = self.text.n_chars();
        let matched = match (is_stop_token && may_stop, may_stop) {
            (true, _) => Matched::Text(String::new()),
            (false, true) => self.text.push(id),
            (false, false) => Matched::Text(self.text.pass(id)),
        };
        let (text, is_stopped) = match matched {
            Matched::Text(text) => (text, false),
            Matched::Stopped(text) => (text, true),
        };
        self.send(Event::Token { id, text, offset, logprobs });
        Ok(if is_stopped {
            self.send(Event::Finished { reason: FinishReason::Stop, text: String::new() });
            Progress::Ended
        } else if is_stop_token && may_stop {
            self.end(FinishReason::Stop)
        } else if is_last {
            self.end(FinishReason::Length)
        } else {
            Progress::Goes
        })
    }

    /// Gives out what was held back, which may hold a stop string after all once it is whole.
    fn end(&mut self, reason: FinishReason) -> Progress {
        let (reason, text) = match self.text.finish() {
            Matched::Text(text) => (reason, text),
            Matched::Stopped(text) => (FinishReason::Stop, text),
        };
        self.send(Event::Finished { reason, text });
        Progress::Ended
    }

    fn send(&self, event: Event) {
        self.events.send(event);
    }
}

/// The logits with some tokens ruled out.
fn without(logits: &[f32], ids: &BTreeSet<TokenId>) -> Vec<f32> {
    let mut allowed = logits.to_vec();
    for &id in ids {
        if let Some(logit) = allowed.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    allowed
}
