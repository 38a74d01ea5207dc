//! A request's sequences, and the pages that they have and share.

use std::sync::Arc;

use hearth_model::gpt::kv_cache::{PAGE_SIZE, PageKey, PageTable};

use super::{super::adapters::AdapterId, RequestId, SequenceId};
use crate::tenant::TenantId;

/// The order of a tenant's requests: smaller ranks come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// The step of arrival, shifted by the priority.
    pub(super) due: i64,
    pub(super) id: RequestId,
}

#[derive(Debug)]
pub(super) struct ScheduledRequest {
    pub(super) tenant: TenantId,
    pub(super) width: usize,
    /// Places of the source at the beginning of each sequence.
    pub(super) n_source: usize,
    pub(super) is_held: bool,
    pub(super) uses_prefix_cache: bool,
    pub(super) adapter: Option<AdapterId>,
    /// Number of prompt tokens found in the prefix cache at the first start; `None` before.
    pub(super) n_cached: Option<usize>,
    pub(super) sequences: Vec<ScheduledSequence>,
}

#[derive(Debug)]
pub(super) struct ScheduledSequence {
    /// The computed tokens; empty while the request waits.
    pub(super) table: PageTable,
    /// Number of tokens of the prompt.
    pub(super) n_prompt: usize,
    /// Number of known tokens: prompt and generated.
    pub(super) n_tokens: usize,
    /// Keys of the sequence's full pages; forks share them until they add their own.
    pub(super) keys: Arc<Vec<PageKey>>,
    /// The page boundaries in the prompt at which states are kept, in order.
    pub(super) state_places: Arc<[usize]>,
    /// The last kept state of the generated tokens; a later one replaces it.
    pub(super) last_kept: Option<PageKey>,
}

impl ScheduledRequest {
    /// When recomputing, the number of tokens that a sequence can share with the first one: their common full pages. 0
    /// once they are shared.
    pub(super) fn n_shareable(&self, branch: usize) -> usize {
        let (Some(first), Some(sequence)) = (self.sequences.first(), self.sequences.get(branch)) else { return 0 };
        // A state in the middle of the first sequence's text is no longer there.
        if branch == 0 || !sequence.table.is_empty() || sequence.table.has_states() {
            return 0;
        }
        // At least one token must be computed, to get logits.
        let usable = sequence.n_tokens.saturating_sub(1) / PAGE_SIZE;
        let common =
            first.keys.iter().zip(sequence.keys.iter()).take(usable).take_while(|(ours, theirs)| ours == theirs);
        common.count() * PAGE_SIZE
    }

    /// Shares the first sequence's pages with the sequences that can use them now.
    pub(super) fn share_within(&mut self) {
        for branch in 1..self.sequences.len() {
            let n_tokens = self.n_shareable(branch);
            if let [first, others @ ..] = self.sequences.as_mut_slice()
                && let Some(sequence) = others.get_mut(branch - 1)
                && (1..=first.table.len()).contains(&n_tokens)
            {
                sequence.table = first.table.fork();
                sequence.table.truncate(n_tokens);
            }
        }
    }

    pub(super) fn named_sequences(&self, rank: &Rank) -> impl Iterator<Item = (SequenceId, &ScheduledSequence)> {
        let request = rank.id;
        self.sequences.iter().enumerate().map(move |(branch, sequence)| (SequenceId { request, branch }, sequence))
    }
}

impl ScheduledSequence {
    /// A sequence with the same tokens and pages.
    pub(super) fn fork(&self) -> Self {
        Self {
            table: self.table.fork(),
            keys: Arc::clone(&self.keys),
            state_places: Arc::clone(&self.state_places),
            last_kept: None,
            ..*self
        }
    }

    pub(super) fn remaining(&self) -> usize {
        self.n_tokens - self.table.len()
    }

    /// Adds the key of its next full page, if any.
    pub(super) fn add_page_key(&mut self, key: Option<PageKey>) {
        if let Some(key) = key {
            Arc::make_mut(&mut self.keys).push(key);
        }
    }

    /// Adds its full pages to the prefix cache, from the one with position `start` on.
    pub(super) fn keep_from(&self, start: usize) {
        let keys = self.keys.iter().enumerate().take(self.table.len() / PAGE_SIZE);
        for (index, &key) in keys.skip(start / PAGE_SIZE) {
            self.table.keep(index, key);
        }
    }

    /// The number of tokens up to the next position in the known text at which a state is kept. `None` without states,
    /// or if there is no such position.
    pub(super) fn until_kept_state(&self, tokens_per_state: usize) -> Option<usize> {
        let at = self.table.len();
        if !self.table.has_states() {
            return None;
        }
        let next = (at / tokens_per_state + 1) * tokens_per_state;
        let next_place = self.state_places.get(self.state_places.partition_point(|&place| place <= at)).copied();
        let places = [next, self.last_boundary()].into_iter().chain(next_place);
        places.filter(|place| (at + 1..self.n_tokens).contains(place)).min().map(|place| place - at)
    }

    /// The last page boundary of the known text that leaves at least one token to compute.
    fn last_boundary(&self) -> usize {
        self.n_tokens.saturating_sub(1) / PAGE_SIZE * PAGE_SIZE
    }

    /// Keeps the state after the computed tokens, if it is at one of the places where that is done.
    pub(super) fn keep_state(&mut self, tokens_per_state: usize) {
        let len = self.table.len();
        let Some(&key) = self.keys.get((len / PAGE_SIZE).wrapping_sub(1)) else { return };
        if !self.table.has_states() || !len.is_multiple_of(PAGE_SIZE) {
            return;
        }
        let is_place = len.is_multiple_of(tokens_per_state) || self.state_places.binary_search(&len).is_ok();
        if is_place || len < self.n_prompt && len == self.last_boundary() {
            self.table.keep_state(key);
        } else if len >= self.n_prompt {
            self.table.keep_state(key);
            if let Some(before) = self.last_kept.replace(key).filter(|before| *before != key) {
                self.table.drop_kept_state(before);
            }
        }
    }
}
