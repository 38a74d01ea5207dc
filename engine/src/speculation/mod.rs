//! Speculative decoding: drafts the next tokens of a sequence cheaply, computes them all in one step, and keeps those
//! that are accepted ([Leviathan et al. 2022](https://arxiv.org/abs/2211.17192)).
//!
//! Drafts do not change the generated text. The sequence samples from the model's logits of every draft token as if
//! they came from separate steps, with its own parameters and random stream; a draft token is accepted if it equals the
//! sampled token. The tokens after the first rejected one are discarded. So this module affects only the speed of an
//! answer, and may depend on measured times.
//!
//! It may use sequences and, for the draft model, tensors; the scheduler decides how many draft tokens fit into a step.

mod draft_model;
mod prediction_head;
mod prompt_lookup;

use std::{collections::HashMap, ops::Range, time::Duration};

use burn::tensor::{Device, Tensor};
use hearth_model::{
    Result, TokenId,
    decode::model_runner::{ModelRunner, PredictionRunner},
    text::tokenizer::Tokenizer,
};

use self::{draft_model::DraftModel, prediction_head::HeadDrafter};
use super::{
    draft_length::{Costs, DraftSource},
    scheduler::RequestId,
    sequence::Sequence,
};

/// Maximum number of draft tokens per sequence and step: more never pay, because one rejected token invalidates all
/// after it.
pub(super) const MAX_DRAFT_TOKENS: usize = 16;

/// The source of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Off.
    #[default]
    Off,
    /// Prompt lookup: the tokens that followed an earlier occurrence of the last tokens, in the prompt or the answer.
    PromptLookup {
        /// Maximum number of draft tokens, from 1 to 16.
        n_tokens: usize,
    },
    /// A smaller model with the same vocabulary.
    DraftModel {
        /// As above.
        n_tokens: usize,
    },
    /// The model's own prediction head.
    PredictionHead {
        /// As above.
        n_tokens: usize,
    },
}

impl Speculation {
    /// Maximum number of draft tokens.
    pub fn n_tokens(self) -> usize {
        match self {
            Self::Off => 0,
            Self::PromptLookup { n_tokens } | Self::DraftModel { n_tokens } | Self::PredictionHead { n_tokens } => {
                n_tokens
            }
        }
    }
}

/// Describes the first token that differs between both; `None` if all are equal.
pub(crate) fn difference(served: &Tokenizer, draft: &Tokenizer) -> Option<String> {
    let [ours, theirs] = [served, draft].map(|tokenizer| tokenizer.vocab_size() as TokenId);
    let has_token = |id: &TokenId| served.token(*id).is_some() || draft.token(*id).is_some();
    let id = served.first_difference(draft).or_else(|| (ours.min(theirs)..ours.max(theirs)).find(has_token))?;
    let shown = |tokenizer: &Tokenizer| tokenizer.token(id).map_or("missing".to_owned(), |token| format!("`{token}`"));
    Some(format!("token {id} is {} in the draft model and {} in the served model", shown(draft), shown(served)))
}

/// The drafts of all sequences.
pub(crate) type Drafts = HashMap<RequestId, Draft>;

/// Draft tokens and their source.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) token_ids: Vec<TokenId>,
    source: DraftSource,
}

/// A sequence that decodes in this step.
#[derive(Debug)]
pub(crate) struct Decoding<'a> {
    pub(crate) id: RequestId,
    pub(crate) sequence: &'a mut Sequence,
}

/// A sequence to draft for.
#[derive(Debug)]
struct DraftJob<'a> {
    id: RequestId,
    sequence: &'a Sequence,
    /// Number of draft tokens, at least 1.
    n_tokens: usize,
}

/// Rows of a sequence that the served model has computed in a step, and whose next tokens are now known.
#[derive(Debug)]
pub(crate) struct ComputedRows<'a> {
    pub(crate) id: RequestId,
    pub(crate) sequence: &'a Sequence,
    /// The position of the first row in the sequence.
    pub(crate) start: usize,
    /// The rows in the step, rejected drafts among them.
    pub(crate) rows: Range<usize>,
}

/// Drafts tokens, and tracks acceptance and costs.
#[derive(Debug)]
pub(crate) struct Speculator {
    drafter: Drafter,
    n_tokens: usize,
    costs: Costs,
}

#[derive(Debug)]
enum Drafter {
    PromptLookup,
    DraftModel(Box<DraftModel>),
    PredictionHead(Box<HeadDrafter>),
}

impl Speculator {
    pub(crate) fn by_prompt_lookup(n_tokens: usize) -> Self {
        Self { drafter: Drafter::PromptLookup, n_tokens, costs: Costs::default() }
    }

    /// `max_seq_len` is the draft model's.
    pub(crate) fn by_draft_model(runner: ModelRunner, max_seq_len: usize, n_tokens: usize) -> Self {
        let model = Box::new(DraftModel::new(runner, max_seq_len));
        Self { drafter: Drafter::DraftModel(model), n_tokens, costs: Costs::default() }
    }

    /// `device` is the served model's.
    pub(crate) fn by_prediction_head(runner: PredictionRunner, device: &Device, n_tokens: usize) -> Self {
        let head = Box::new(HeadDrafter::new(runner, device));
        Self { drafter: Drafter::PredictionHead(head), n_tokens, costs: Costs::default() }
    }

    /// Drafts tokens for sequences where that is likely to pay. `room` is the number of further tokens in the step.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn draft(&mut self, decoding: Vec<Decoding<'_>>, room: usize) -> Result<Drafts> {
        let price = self.costs.price(decoding.len());
        let n_tokens = |sequence: &mut Sequence, source| {
            sequence.acceptance.n_drafts_that_pay(source, price, self.n_tokens.min(room).min(sequence.max_drafts()))
        };
        match &mut self.drafter {
            Drafter::PromptLookup => {
                let found = decoding.into_iter().filter_map(|Decoding { id, sequence }| {
                    let found = prompt_lookup::look_up(sequence.token_ids(), self.n_tokens)?;
                    let source = DraftSource::of_match(found.n_matched);
                    let mut token_ids = found.token_ids;
                    token_ids.truncate(n_tokens(sequence, source));
                    (!token_ids.is_empty()).then_some((id, Draft { token_ids, source }))
                });
                Ok(found.collect())
            }
            drafter @ (Drafter::DraftModel(_) | Drafter::PredictionHead(_)) => {
                let jobs = decoding.into_iter().filter_map(|Decoding { id, sequence }| {
                    let n_tokens = n_tokens(sequence, DraftSource::Model);
                    (n_tokens > 0).then_some(DraftJob { id, sequence, n_tokens })
                });
                let drafted = match drafter {
                    Drafter::DraftModel(model) => model.draft(jobs.collect(), room)?,
                    Drafter::PredictionHead(head) => head.draft(jobs.collect(), room)?,
                    Drafter::PromptLookup => Vec::new(),
                };
                let named = |(id, token_ids)| (id, Draft { token_ids, source: DraftSource::Model });
                Ok(drafted.into_iter().map(named).collect())
            }
        }
    }

    /// Whether the last [`draft`](Self::draft) was typical, so that its duration can be used.
    pub(crate) fn is_steady(&self) -> bool {
        match &self.drafter {
            Drafter::PromptLookup | Drafter::PredictionHead(_) => true,
            Drafter::DraftModel(model) => model.is_steady(),
        }
    }

    /// Whether it [follows](Self::follow) the steps of the served model.
    pub(crate) fn follows(&self) -> bool {
        matches!(self.drafter, Drafter::PredictionHead(_))
    }

    /// Passes the results of the served model's step to the drafters: `hidden [n_rows, d_model]` are the hidden states
    /// of all rows of the step.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn follow(&mut self, computed: Vec<ComputedRows<'_>>, hidden: &Tensor<2>) -> Result<()> {
        match &mut self.drafter {
            Drafter::PredictionHead(head) => head.follow(computed, hidden),
            Drafter::PromptLookup | Drafter::DraftModel(_) => Ok(()),
        }
    }

    /// Records the duration of a step that only decoded, including drafting.
    pub(crate) fn record_step_time(&mut self, time: Duration, n_drafts: usize) {
        self.costs.record_step_time(time, n_drafts);
    }

    /// Records which tokens of a draft were accepted. `sequence` is `None` if it has ended.
    pub(crate) fn record_acceptance(&mut self, sequence: Option<&mut Sequence>, draft: &Draft, outcome: &DraftResult) {
        let DraftResult { id, n_known, n_verified, n_accepted } = *outcome;
        if let Some(sequence) = sequence {
            sequence.acceptance.record_acceptance(draft.source, n_verified, n_accepted);
        }
        if let Drafter::DraftModel(model) = &mut self.drafter {
            model.roll_back(id, n_known + n_accepted);
        }
    }

    /// Removes the state of a request that has ended.
    pub(crate) fn forget(&mut self, id: RequestId) {
        match &mut self.drafter {
            Drafter::PromptLookup => {}
            Drafter::DraftModel(model) => model.forget(id),
            Drafter::PredictionHead(head) => head.forget(id),
        }
    }
}

/// The result of the draft for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftResult {
    pub(crate) id: RequestId,
    /// Number of tokens known before the step.
    pub(crate) n_known: usize,
    /// Number of draft tokens that the served model verified.
    pub(crate) n_verified: usize,
    /// Number of accepted draft tokens.
    pub(crate) n_accepted: usize,
}
