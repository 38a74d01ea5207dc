//! The input of one forward pass.

use hearth_model::gpt::kv_cache::PAGE_SIZE;

use super::SequenceId;

/// Maximum number of known tokens of a sequence in a step with drafts. There is more than one if a sequence with a
/// state was rolled back because drafts were rejected; each rejection adds tokens.
const MAX_BEFORE_DRAFTS: usize = 4;

/// Tokens between two places where a step of a sequence with a state and drafts ends, so that the state there can be kept; a multiple of
/// [`PAGE_SIZE`].
pub(super) const DRAFTED_TOKENS_PER_STATE: usize = 4 * PAGE_SIZE;

/// The part of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The sequence.
    pub id: SequenceId,
    /// Position of the first token in its sequence: the number of tokens computed before.
    pub start: usize,
    /// Number of tokens, at least 1.
    pub n_tokens: usize,
    /// Number of draft tokens at its end: see [`Scheduler::add_drafts`](super::Scheduler::add_drafts).
    pub n_drafts: usize,
    /// Whether the chunk includes the sequence's last known token, whose row predicts a new one.
    pub predicts: bool,
}

impl Chunk {
    /// Position after the last token that is not a draft token.
    pub fn known_end(&self) -> usize {
        self.start + self.n_tokens - self.n_drafts
    }

    /// Whether drafts may follow the chunk's known tokens: it decodes, or recomputes only a few tokens.
    pub fn may_have_drafts(&self) -> bool {
        self.predicts && self.n_tokens - self.n_drafts <= MAX_BEFORE_DRAFTS
    }
}

/// One forward pass: decoding rows and prefill chunks together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// One entry per sequence, in the order of the rows.
    pub chunks: Vec<Chunk>,
}
