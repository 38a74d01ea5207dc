//! Speculative decoding: guess the next tokens of a sequence cheaply, compute them all in one step, and keep those that
//! come true ([Leviathan et al. 2022](https://arxiv.org/abs/2211.17192)).
//!
//! A guess changes nothing of what is generated. The model's logits for every guessed token are handed to the sequence as
//! if they had come one step after the other, and it draws from them as ever, by its own parameters and random stream; a
//! guess has come true exactly when it is the token that was drawn. What was computed behind the first wrong one is
//! forgotten. So this module decides how fast an answer comes, never what it says, and it may go by the clock.
//!
//! It may know sequences and, for the draft model, tensors; the scheduler decides how many guesses a step has room for.

mod acceptance;
mod draft_model;
mod prompt_lookup;

use std::{collections::HashMap, time::Duration};

use hearth_model::{Result, TokenId, tokenizer::Tokenizer};

pub(crate) use self::acceptance::Acceptance;
use self::{
    acceptance::{Costs, Evidence},
    draft_model::DraftModel,
};
use super::{runner::Runner, scheduler::RequestId, sequence::Sequence};

/// Tokens that may be guessed ahead at most: more never pay, as one wrong guess spoils all behind it.
pub(super) const MAX_SPECULATIVE_TOKENS: usize = 16;

/// Where guesses come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// There are none.
    #[default]
    Off,
    /// What followed when the last few tokens appeared before, in the prompt or the answer.
    PromptLookup {
        /// Tokens that are guessed ahead at most, from 1 to 16.
        n_tokens: usize,
    },
    /// A smaller model with the same tokens.
    DraftModel {
        /// As above.
        n_tokens: usize,
    },
}

impl Speculation {
    /// Tokens that are guessed ahead at most.
    pub fn n_tokens(self) -> usize {
        match self {
            Self::Off => 0,
            Self::PromptLookup { n_tokens } | Self::DraftModel { n_tokens } => n_tokens,
        }
    }
}

/// The first token that is not the same in both, in words; `None` if all are.
pub(crate) fn difference(served: &Tokenizer, draft: &Tokenizer) -> Option<String> {
    let n_ids = served.vocab_size().max(draft.vocab_size()) as TokenId;
    let shown = |token: Option<String>| token.map_or("missing".to_owned(), |token| format!("`{token}`"));
    (0..n_ids).find_map(|id| {
        let (ours, theirs) = (served.token(id), draft.token(id));
        (ours != theirs).then(|| format!("token {id} is {} there, here {}", shown(theirs), shown(ours)))
    })
}

/// What is guessed to follow each sequence.
pub(crate) type Drafts = HashMap<RequestId, Draft>;

/// Guessed tokens, and what speaks for them.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) token_ids: Vec<TokenId>,
    evidence: Evidence,
}

/// A sequence that decodes in this step.
#[derive(Debug)]
pub(crate) struct Decoding<'a> {
    pub(crate) id: RequestId,
    pub(crate) sequence: &'a mut Sequence,
}

/// Makes guesses and learns from what became of them.
#[derive(Debug)]
pub(crate) struct Speculator {
    source: Source,
    n_tokens: usize,
    costs: Costs,
}

#[derive(Debug)]
enum Source {
    PromptLookup,
    DraftModel(Box<DraftModel>),
}

impl Speculator {
    pub(crate) fn by_prompt_lookup(n_tokens: usize) -> Self {
        Self { source: Source::PromptLookup, n_tokens, costs: Costs::default() }
    }

    /// `max_seq_len` is the draft model's.
    pub(crate) fn by_draft_model(runner: Runner, max_seq_len: usize, n_tokens: usize) -> Self {
        let model = Box::new(DraftModel::new(runner, max_seq_len));
        Self { source: Source::DraftModel(model), n_tokens, costs: Costs::default() }
    }

    /// Guesses for those sequences where it seems worth it. `room` is how many tokens a step may compute besides.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn draft(&mut self, decoding: Vec<Decoding<'_>>, room: usize) -> Result<Drafts> {
        let price = self.costs.price(decoding.len());
        let n_tokens = |sequence: &mut Sequence, evidence| {
            sequence.acceptance.worthwhile(evidence, price, self.n_tokens.min(room).min(sequence.n_guessable()))
        };
        match &mut self.source {
            Source::PromptLookup => {
                let found = decoding.into_iter().filter_map(|Decoding { id, sequence }| {
                    let found = prompt_lookup::look_up(sequence.token_ids(), self.n_tokens)?;
                    let evidence = Evidence::of_match(found.n_matched);
                    let mut token_ids = found.token_ids;
                    token_ids.truncate(n_tokens(sequence, evidence));
                    (!token_ids.is_empty()).then_some((id, Draft { token_ids, evidence }))
                });
                Ok(found.collect())
            }
            Source::DraftModel(model) => {
                let jobs = decoding.into_iter().filter_map(|Decoding { id, sequence }| {
                    let n_tokens = n_tokens(sequence, Evidence::Model);
                    (n_tokens > 0).then_some(draft_model::Job { id, sequence, n_tokens })
                });
                let drafted = model.draft(jobs.collect(), room)?;
                let named = |(id, token_ids)| (id, Draft { token_ids, evidence: Evidence::Model });
                Ok(drafted.into_iter().map(named).collect())
            }
        }
    }

    /// Whether the last [`draft`](Self::draft) did what it does at every step, so that its time says something.
    pub(crate) fn is_steady(&self) -> bool {
        match &self.source {
            Source::PromptLookup => true,
            Source::DraftModel(model) => model.is_steady(),
        }
    }

    /// A step of nothing but decoding took so long, guessing included.
    pub(crate) fn took(&mut self, time: Duration, n_guesses: usize) {
        self.costs.observe(time, n_guesses);
    }

    /// Of `n_verified` guesses at what follows the first `n_known` tokens of a sequence, the first `n_accepted` came true.
    /// `sequence` is `None` if it has ended with them.
    pub(crate) fn learn(&mut self, sequence: Option<&mut Sequence>, draft: &Draft, outcome: &Outcome) {
        let Outcome { id, n_known, n_verified, n_accepted } = *outcome;
        if let Some(sequence) = sequence {
            sequence.acceptance.learn(draft.evidence, n_verified, n_accepted);
        }
        if let Source::DraftModel(model) = &mut self.source {
            model.roll_back(id, n_known + n_accepted);
        }
    }

    /// The request is no more.
    pub(crate) fn forget(&mut self, id: RequestId) {
        if let Source::DraftModel(model) = &mut self.source {
            model.forget(id);
        }
    }
}

/// What became of the guesses at one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) id: RequestId,
    /// Tokens that were known before.
    pub(crate) n_known: usize,
    /// Guesses that were computed.
    pub(crate) n_verified: usize,
    /// The first so many came true.
    pub(crate) n_accepted: usize,
}
