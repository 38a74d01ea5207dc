//! Inputs of a scheduler: its limits, and the requests that arrive.

use hearth_model::gpt::kv_cache::{PAGE_SIZE, PageKey};

use crate::{adapters::AdapterId, tenant::TenantId};

/// Identifies a request for as long as the engine runs; later requests have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Identifies one of a request's sequences. So far only beam searches have several; any request may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// The request.
    pub request: RequestId,
    /// Its index among the request's sequences.
    pub branch: usize,
}

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of sequences that run at once.
    pub max_batch_size: usize,
    /// Maximum number of tokens per step over all sequences; at least `max_batch_size`, or decoding could starve.
    pub max_batch_tokens: usize,
    /// Maximum number of different adapters among running requests, at least 1.
    pub max_adapters: usize,
    /// Tokens of a prompt between two states that are kept of it, a multiple of [`PAGE_SIZE`]. Only for models with recurrent
    /// layers.
    pub tokens_per_state: usize,
    /// Whether a step computes whole prompts only, as encoders need. None may be longer than `max_batch_tokens` less
    /// `max_batch_size`.
    pub whole_prompts: bool,
}

/// The usual [`Limits::tokens_per_state`].
pub const TOKENS_PER_STATE: usize = 1024;

/// A request for the scheduler. The caller ensures that it can run alone: that there are `width` places, and the pages
/// of [`most_pages`].
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Number of prompt tokens, at least 1.
    pub n_prompt: usize,
    /// Number of these tokens that belong to a source; they come first, in whole pages. A source is computed in one
    /// piece, so cached pages are used only if all of the source's pages are cached. 0 without an encoder.
    pub n_source: usize,
    /// Maximum number of the request's sequences, at least 1.
    pub width: usize,
    /// Who sent it.
    pub tenant: TenantId,
    /// Lower values are scheduled first, among requests of the same tenant.
    pub priority: i32,
    /// Keys of the prompt's full pages, in order.
    pub keys: Vec<PageKey>,
    /// Further page boundaries, in order, at which a state is kept: the last ones before the ends of messages.
    pub state_places: Vec<usize>,
    /// Whether it uses the prefix cache when it starts. False if every position of the prompt is needed. After its first
    /// token, it uses the prefix cache in any case.
    pub uses_prefix_cache: bool,
    /// Its adapter.
    pub adapter: Option<AdapterId>,
}

/// The maximum number of pages of a request's sequences if each has `n_tokens`: full pages of the prompt are shared.
pub fn most_pages(width: usize, n_prompt: usize, n_tokens: usize) -> usize {
    let n_common = n_prompt / PAGE_SIZE;
    n_common + width * (n_tokens.div_ceil(PAGE_SIZE) - n_common)
}
