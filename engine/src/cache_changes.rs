//! What changed in the prefix cache, with the tokens of the pages that were added.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use hearth_model::{
    TokenId,
    gpt::kv_cache::{PAGE_SIZE, PageKey, PrefixChange},
};

use crate::{
    job::Job,
    observer::{CacheChange, StoredPage},
    scheduler::{RequestId, Scheduler, SequenceId, Step},
};

/// Describes `changes`, which `step` has made: what it kept are pages of its sequences, which must be there still.
pub(crate) fn of_step(
    changes: Vec<PrefixChange>,
    step: &Step,
    scheduler: &Scheduler,
    jobs: &BTreeMap<RequestId, Job>,
) -> Vec<CacheChange> {
    let places = places(step, scheduler);
    let stored = |key: PageKey| {
        let &(id, index) = places.get(&key)?;
        let job = jobs.get(&id.request)?;
        let token_ids: Vec<TokenId> =
            job.token_ids(id.branch).range(index * PAGE_SIZE..(index + 1) * PAGE_SIZE).collect();
        let parent = scheduler.page_keys(id).get(index.wrapping_sub(1)).copied();
        let adapter = job.request().parts().adapter_id().map(|adapter| Arc::clone(&adapter.name));
        Some(CacheChange::Stored(StoredPage { key, parent, token_ids, adapter }))
    };
    let described = changes.into_iter().filter_map(|change| match change {
        PrefixChange::Kept(key) => stored(key),
        PrefixChange::Removed(key) => Some(CacheChange::Removed(key)),
    });
    described.collect()
}

/// The sequences of a step and the indices of the pages in them that it may have kept, by key.
pub(crate) fn places(step: &Step, scheduler: &Scheduler) -> HashMap<PageKey, (SequenceId, usize)> {
    let of_chunk = step.chunks.iter().flat_map(|chunk| {
        let keys = scheduler.page_keys(chunk.id).iter().enumerate().skip(chunk.start / PAGE_SIZE);
        keys.map(|(index, key)| (*key, (chunk.id, index)))
    });
    of_chunk.collect()
}
