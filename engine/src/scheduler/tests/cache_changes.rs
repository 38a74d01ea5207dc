//! Who follows the changes of the prefix cache knows which pages it has.

use std::collections::HashSet;

use hearth_model::gpt::kv_cache::PrefixChange;

use super::*;
use crate::cache_changes::places;

/// What somebody knows of a pool who is told its changes.
pub(super) struct Follower {
    pool: PagePool,
    kept: HashSet<PageKey>,
    n_stored: usize,
    n_removed: usize,
}

impl Follower {
    pub(super) fn new(pool: &PagePool) -> Self {
        pool.record_changes();
        Self { pool: pool.clone(), kept: HashSet::new(), n_stored: 0, n_removed: 0 }
    }

    /// Takes the changes that `step` has made: pages that were kept are those of its sequences.
    pub(super) fn follow(&mut self, step: &Step, scheduler: &Scheduler) {
        let changes = self.pool.take_changes();
        let places = places(step, scheduler);
        for change in changes {
            match change {
                PrefixChange::Kept(key) => {
                    assert!(self.kept.insert(key), "a page is kept twice");
                    let (id, index) = places[&key];
                    assert_eq!(scheduler.page_keys(id)[index], key);
                    self.n_stored += 1;
                }
                PrefixChange::Removed(key) => {
                    assert!(self.kept.remove(&key), "a page is removed that was not kept");
                    self.n_removed += 1;
                }
            }
        }
        let found = self.pool.kept_keys();
        assert_eq!(found.len(), self.kept.len());
        assert!(found.iter().all(|key| self.kept.contains(key)), "other pages are kept");
    }
}

/// Twenty steps a second for an hour: conversations that go on, prompts with common beginnings, and few pages.
#[test]
fn following_the_changes_of_an_hour_of_random_requests_gives_the_kept_pages() {
    let limits = Limits { max_batch_size: 8, max_batch_tokens: 64, ..LIMITS };
    let pool = PagePool::new(150);
    let mut scheduler = Scheduler::new(limits, pool.clone());
    let mut follower = Follower::new(&pool);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        // Knuth's generator of numbers modulo 2^64.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    // The text and the tokens of each request.
    let mut live: BTreeMap<RequestId, (u128, usize)> = BTreeMap::new();
    let mut n_requests = 0;
    for _ in 0..72_000 {
        if random(10) == 0 && live.len() < 30 {
            let (text, n_prompt) = (u128::from(random(40)), 1 + random(300) as usize);
            // The first four pages of eight texts are the same.
            let key = |page: usize| page_key(if page < 4 { text / 8 } else { 100 + text } << 64 | page as u128);
            let keys = (0..n_prompt / PAGE_SIZE).map(key).collect();
            let id = RequestId(n_requests);
            n_requests += 1;
            scheduler.add(id, Arrival { keys, ..arrival(n_prompt) });
            live.insert(id, (text, n_prompt));
        }
        let step = scheduler.schedule();
        for (table, chunk) in scheduler.tables(&step).into_iter().zip(&step.chunks) {
            table.append(chunk.n_tokens).expect("the scheduler counts pages");
        }
        scheduler.advance(&step);
        follower.follow(&step, &scheduler);
        for chunk in step.chunks.iter().filter(|chunk| chunk.predicts) {
            let (text, n_tokens) = live.get_mut(&chunk.id.request).unwrap();
            *n_tokens += 1;
            let key = page_key((200 + *text) << 64 | u128::from(chunk.id.request.0) << 32 | *n_tokens as u128);
            scheduler.push_token(chunk.id, n_tokens.is_multiple_of(PAGE_SIZE).then_some(key));
            // It ends, or its client goes.
            if random(60) == 0 || *n_tokens > 600 {
                live.remove(&chunk.id.request);
                scheduler.remove(chunk.id.request);
            }
        }
    }
    assert!(n_requests > 3000 && follower.n_stored > 10_000 && follower.n_removed > 10_000, "{n_requests} requests");
}
