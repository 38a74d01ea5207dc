//! Single decisions of the scheduler, with page tables and without a model.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod cache_changes;
mod simulation;
mod states;

use super::*;
use crate::adapters::AdapterId;

const LIMITS: Limits =
    Limits { max_batch_size: 4, max_batch_tokens: 8, max_adapters: 2, tokens_per_state: 64, whole_prompts: false };

fn id(request: u64) -> SequenceId {
    SequenceId { request: RequestId(request), branch: 0 }
}

/// A key for each number.
fn page_key(n: u128) -> PageKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&n.to_le_bytes());
    PageKey(bytes)
}

fn chunk(request: u64, start: usize, n_tokens: usize, predicts: bool) -> Chunk {
    Chunk { id: id(request), start, n_tokens, n_drafts: 0, predicts }
}

fn arrival(n_prompt: usize) -> Arrival {
    let tenant = TenantId::default();
    Arrival {
        n_prompt,
        n_source: 0,
        width: 1,
        tenant,
        priority: 0,
        keys: Vec::new(),
        state_places: Vec::new(),
        uses_prefix_cache: true,
        adapter: None,
    }
}

fn arrival_of(tenant: u128, n_prompt: usize) -> Arrival {
    Arrival { tenant: TenantId(tenant), ..arrival(n_prompt) }
}

fn adapter(number: u64) -> AdapterId {
    AdapterId { number, name: format!("adapter-{number}").into() }
}

/// Computes a step: tables grow, and each sequence that predicts receives a token.
fn run(scheduler: &mut Scheduler, step: &Step) {
    for (table, chunk) in scheduler.tables(step).into_iter().zip(&step.chunks) {
        assert_eq!(table.len(), chunk.start);
        table.append(chunk.n_tokens).expect("the scheduler counts pages");
    }
    scheduler.advance(step);
    for chunk in step.chunks.iter().filter(|chunk| chunk.predicts) {
        scheduler.push_token(chunk.id, None);
    }
}

fn step(scheduler: &mut Scheduler) -> Vec<Chunk> {
    let step = scheduler.schedule();
    run(scheduler, &step);
    step.chunks
}

#[test]
fn decode_is_scheduled_before_prefill_chunked_to_the_token_budget() {
    let mut scheduler = Scheduler::new(LIMITS, PagePool::new(100));
    scheduler.add(RequestId(1), arrival(3));
    scheduler.add(RequestId(2), arrival(20));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 3, true), chunk(2, 0, 5, false)]);
    assert_eq!(step(&mut scheduler), [chunk(1, 3, 1, true), chunk(2, 5, 7, false)]);
    scheduler.remove(RequestId(1));
    assert_eq!(step(&mut scheduler), [chunk(2, 12, 8, true)]);
}

#[test]
fn short_prompts_are_prefilled_beside_a_long_one() {
    let mut scheduler = Scheduler::new(LIMITS, PagePool::new(100));
    scheduler.add(RequestId(1), arrival(1000));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 8, false)]);
    scheduler.add(RequestId(2), arrival(2));
    scheduler.add(RequestId(3), arrival(9));
    // The first prompt leaves half of the budget to the prompts behind it, and the second leaves its rest to the third.
    assert_eq!(step(&mut scheduler), [chunk(1, 8, 4, false), chunk(2, 0, 2, true), chunk(3, 0, 2, false)]);
    assert_eq!(step(&mut scheduler), [chunk(2, 2, 1, true), chunk(1, 12, 4, false), chunk(3, 2, 3, false)]);
}

#[test]
fn kv_pages_are_taken_on_demand_and_the_newest_request_is_preempted() {
    // 4 pages of 16 tokens: a single request may grow to use all of them.
    let mut scheduler = Scheduler::new(Limits { max_batch_tokens: 64, ..LIMITS }, PagePool::new(4));
    scheduler.add(RequestId(1), arrival(15));
    scheduler.add(RequestId(2), arrival(15));
    assert_eq!(step(&mut scheduler).len(), 2);
    // Each request fills its first page and takes a second one.
    for _ in 0..17 {
        assert_eq!(step(&mut scheduler).len(), 2);
    }
    assert_eq!(scheduler.totals().n_preemptions, 0);
    // At 33 tokens the first request needs a third page, so the second is preempted.
    assert_eq!(step(&mut scheduler), [chunk(1, 32, 1, true)]);
    assert_eq!((scheduler.n_places_taken(), scheduler.n_waiting(), scheduler.totals().n_preemptions), (1, 1, 1));
    assert_eq!(step(&mut scheduler), [chunk(1, 33, 1, true)]);
    scheduler.remove(RequestId(1));
    // All its 33 tokens, prompt and generated, are recomputed.
    assert_eq!(step(&mut scheduler), [chunk(2, 0, 33, true)]);
}

#[test]
fn max_adapters_blocks_the_queue_in_order_until_one_is_unused() {
    let mut scheduler = Scheduler::new(LIMITS, PagePool::new(100));
    let with = |number: u64| Arrival { adapter: Some(adapter(number)), ..arrival(1) };
    scheduler.add(RequestId(1), with(1));
    scheduler.add(RequestId(2), with(2));
    scheduler.add(RequestId(3), with(1));
    scheduler.add(RequestId(4), with(3));
    scheduler.add(RequestId(5), arrival(1));
    let ids = |chunks: Vec<Chunk>| chunks.iter().map(|chunk| chunk.id.request.0).collect::<Vec<_>>();
    assert_eq!(ids(step(&mut scheduler)), [1, 2, 3], "the third adapter waits, and those behind it");
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
    assert_eq!(scheduler.adapters(), [names(&["adapter-1", "adapter-2"]), names(&["adapter-3"])]);
    scheduler.remove(RequestId(1));
    assert_eq!(ids(step(&mut scheduler)), [2, 3], "the first adapter is still in use");
    scheduler.remove(RequestId(3));
    assert_eq!(ids(step(&mut scheduler)), [2, 4, 5]);
    assert_eq!(scheduler.adapters(), [names(&["adapter-2", "adapter-3"]), names(&[])]);
}

#[test]
fn requests_start_in_priority_order_with_a_page_to_spare() {
    let mut scheduler = Scheduler::new(Limits { max_batch_size: 1, max_batch_tokens: 64, ..LIMITS }, PagePool::new(8));
    for (request, priority) in [(1, 0), (2, 0), (3, -1), (4, 1)] {
        scheduler.add(RequestId(request), Arrival { priority, ..arrival(5) });
    }
    for expected in [3, 1, 2, 4] {
        assert_eq!(step(&mut scheduler), [chunk(expected, 0, 5, true)]);
        scheduler.remove(RequestId(expected));
    }
    let mut scheduler = Scheduler::new(Limits { max_batch_tokens: 64, ..LIMITS }, PagePool::new(4));
    scheduler.add(RequestId(1), Arrival { priority: 1, ..arrival(32) });
    scheduler.add(RequestId(2), arrival(15));
    assert_eq!(step(&mut scheduler).len(), 1, "a page to spare for each");
    scheduler.remove(RequestId(2));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 32, true)]);
}

/// Requests with a better priority keep arriving: without ageing the waiting one would never start.
#[test]
fn low_priority_request_starts_once_it_has_aged() {
    let mut scheduler = Scheduler::new(Limits { max_batch_size: 1, max_batch_tokens: 8, ..LIMITS }, PagePool::new(8));
    scheduler.add(RequestId(0), Arrival { priority: 2, ..arrival(4) });
    let mut started = None;
    for clock in 0..2 * AGEING_STEPS + 10 {
        scheduler.add(RequestId(clock as u64 + 1), arrival(4));
        for chunk in step(&mut scheduler) {
            if chunk.id == id(0) {
                started.get_or_insert(clock);
            }
            scheduler.remove(chunk.id.request);
        }
    }
    assert_eq!(started, Some(2 * AGEING_STEPS));
}

#[test]
fn cached_prefix_pages_are_reused_but_the_last_token_is_computed() {
    let keys: Vec<PageKey> = (0..2).map(page_key).collect();
    let known = |n_prompt| Arrival { keys: keys.clone(), ..arrival(n_prompt) };
    let mut scheduler = Scheduler::new(Limits { max_batch_tokens: 64, ..LIMITS }, PagePool::new(16));
    scheduler.add(RequestId(1), known(35));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 35, true)]);
    scheduler.add(RequestId(2), known(40));
    scheduler.add(RequestId(3), known(32));
    let mut chunks = step(&mut scheduler);
    chunks.sort_by_key(|chunk| chunk.id);
    assert_eq!(chunks, [chunk(1, 35, 1, true), chunk(2, 32, 8, true), chunk(3, 16, 16, true)]);
    assert_eq!(scheduler.n_cached(RequestId(2)), Some(32));
    let totals = Totals { n_preemptions: 0, prefix_queries: 35 + 40 + 32, prefix_hits: 32 + 16 };
    assert_eq!(scheduler.totals(), totals);
    // A request that needs every position computes every position.
    scheduler.add(RequestId(4), Arrival { uses_prefix_cache: false, ..known(33) });
    assert!(step(&mut scheduler).contains(&chunk(4, 0, 33, true)));
    // Once it has a token, every position has been computed, so it may use the prefix cache.
    scheduler.preempt_last();
    assert!(step(&mut scheduler).contains(&chunk(4, 32, 2, true)));
}

/// A row of an encoder depends on all others of its source.
#[test]
fn cached_pages_of_a_source_are_used_all_or_not_at_all() {
    let about = |keys: [u128; 2]| Arrival { n_source: 32, keys: keys.map(page_key).into(), ..arrival(33) };
    let limits = Limits { max_batch_tokens: 128, whole_prompts: true, ..LIMITS };
    let mut scheduler = Scheduler::new(limits, PagePool::new(16));
    scheduler.add(RequestId(1), about([0, 1]));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 33, true)]);
    scheduler.add(RequestId(2), about([0, 1]));
    scheduler.add(RequestId(3), about([0, 2]));
    let mut chunks = step(&mut scheduler);
    chunks.sort_by_key(|chunk| chunk.id);
    assert_eq!(chunks, [chunk(1, 33, 1, true), chunk(2, 32, 1, true), chunk(3, 0, 33, true)]);
    assert_eq!((scheduler.n_cached(RequestId(2)), scheduler.n_cached(RequestId(3))), (Some(32), Some(0)));
}

#[test]
fn preempted_beams_share_prompt_pages_again_when_recomputed() {
    const N_PROMPT: usize = 3 * PAGE_SIZE + 5;
    let keys = || (0..3).map(page_key).collect();
    let beams = |priority| Arrival { width: 4, priority, keys: keys(), ..arrival(N_PROMPT) };
    // The last token is never computed: 7 pages, of which 4 are the beams' own.
    let n_tokens = 4 * PAGE_SIZE;
    assert_eq!(most_pages(4, N_PROMPT, n_tokens), 7);
    let mut scheduler = Scheduler::new(LIMITS, PagePool::new(7));
    scheduler.add(RequestId(1), beams(1));
    while !step(&mut scheduler)[0].predicts {}
    scheduler.branch(RequestId(1), &[(0, None); 4]);
    assert_eq!(step(&mut scheduler).len(), 4);
    // Another request takes all pages, and evicts those in the prefix cache.
    scheduler.add(RequestId(2), Arrival { uses_prefix_cache: false, ..arrival(7 * PAGE_SIZE - 1) });
    scheduler.hold(RequestId(1));
    scheduler.preempt_last();
    while !step(&mut scheduler)[0].predicts {}
    scheduler.remove(RequestId(2));
    scheduler.release(RequestId(1));
    let (mut n_computed, mut n_done) = (0, 0);
    while n_done < 4 {
        // They continue once all are recomputed: no token is pushed.
        let planned = scheduler.schedule();
        for (table, chunk) in scheduler.tables(&planned).into_iter().zip(&planned.chunks) {
            table.append(chunk.n_tokens).expect("the scheduler counts pages");
        }
        scheduler.advance(&planned);
        n_computed += planned.chunks.iter().map(|chunk| chunk.n_tokens).sum::<usize>();
        n_done += planned.chunks.iter().filter(|chunk| chunk.predicts).count();
    }
    // The first sequence computes everything, the others only the tokens after the prompt's full pages, and three more
    // tokens.
    assert_eq!(n_computed, (N_PROMPT + 3) + 3 * (5 + 3));
}

#[test]
fn held_requests_are_not_scheduled_until_they_are_released() {
    // Two pages for each request, and no spare page.
    let mut scheduler = Scheduler::new(LIMITS, PagePool::new(4));
    scheduler.add(RequestId(1), arrival(2));
    scheduler.add(RequestId(2), arrival(2));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 2, true), chunk(2, 0, 2, true)]);
    scheduler.hold(RequestId(1));
    for start in 2..2 * PAGE_SIZE {
        assert_eq!(step(&mut scheduler), [chunk(2, start, 1, true)]);
    }
    scheduler.hold(RequestId(2));
    assert_eq!(step(&mut scheduler), []);
    assert_eq!(scheduler.totals().n_preemptions, 0);
    scheduler.release(RequestId(1));
    assert_eq!(step(&mut scheduler), [chunk(1, 2, 1, true)]);
    // A request of higher rank takes the pages of a held one, which is recomputed once it is released.
    for start in 3..=2 * PAGE_SIZE {
        assert_eq!(step(&mut scheduler), [chunk(1, start, 1, true)]);
    }
    assert_eq!(scheduler.totals().n_preemptions, 1);
    scheduler.remove(RequestId(1));
    assert_eq!(step(&mut scheduler), []);
    scheduler.release(RequestId(2));
    let again: usize = (0..5).flat_map(|_| step(&mut scheduler)).map(|chunk| chunk.n_tokens).sum();
    assert_eq!(again, 2 * PAGE_SIZE + 1);
}

fn chunk_of(chunks: &[Chunk], request: u64) -> Option<&Chunk> {
    chunks.iter().find(|chunk| chunk.id == id(request))
}

#[test]
fn fork_shares_pages_if_it_can_start_and_waits_in_the_queue_otherwise() {
    let pool = PagePool::new(8);
    let mut scheduler = Scheduler::new(Limits { max_batch_size: 2, max_batch_tokens: 64, ..LIMITS }, pool.clone());
    scheduler.add(RequestId(1), Arrival { keys: vec![page_key(0)], ..arrival(20) });
    let first = scheduler.schedule();
    for (table, chunk) in scheduler.tables(&first).into_iter().zip(&first.chunks) {
        table.append(chunk.n_tokens).unwrap();
    }
    scheduler.advance(&first);
    scheduler.fork(RequestId(1), RequestId(2));
    scheduler.fork(RequestId(1), RequestId(3));
    (1..=3).for_each(|request| scheduler.push_token(id(request), None));
    assert_eq!((scheduler.n_places_taken(), scheduler.n_waiting(), pool.n_free()), (2, 1, 6));
    assert_eq!(step(&mut scheduler), [chunk(1, 20, 1, true), chunk(2, 20, 1, true)]);
    // The first sequence to write into the shared page copies it.
    assert_eq!(pool.n_free(), 5);
    scheduler.remove(RequestId(1));
    let chunks = step(&mut scheduler);
    assert_eq!(chunk_of(&chunks, 3), Some(&chunk(3, 16, 5, true)), "the full page is shared, the rest computed anew");
}

#[test]
fn draft_tokens_use_spare_pages_and_budget_and_are_rolled_back() {
    let pool = PagePool::new(4);
    let mut scheduler = Scheduler::new(Limits { max_batch_size: 4, max_batch_tokens: 32, ..LIMITS }, pool.clone());
    scheduler.add(RequestId(1), arrival(14));
    scheduler.add(RequestId(2), arrival(14));
    assert_eq!(step(&mut scheduler).len(), 2);
    let mut others = pool.table();
    others.append(1).unwrap();
    let mut with_drafts = scheduler.schedule();
    scheduler.add_drafts(&mut with_drafts, |_| 10);
    // Each page has 15 tokens, so one draft needs no new page; the last free page goes to the first request.
    let with = |request, n_drafts| Chunk { n_tokens: 1 + n_drafts, n_drafts, ..chunk(request, 14, 1, true) };
    assert_eq!(with_drafts.chunks, [with(1, 10), with(2, 1)]);
    for (table, chunk) in scheduler.tables(&with_drafts).into_iter().zip(&with_drafts.chunks) {
        table.append(chunk.n_tokens).unwrap();
    }
    assert_eq!(pool.n_free(), 0);
    scheduler.advance(&with_drafts);
    // The first request's first draft is accepted, the second one's is not.
    [1, 1, 2].into_iter().for_each(|request| scheduler.push_token(id(request), None));
    scheduler.roll_back(&with_drafts);
    assert_eq!(pool.n_free(), 1);
    assert_eq!(step(&mut scheduler), [chunk(1, 16, 1, true), chunk(2, 15, 1, true)]);
    // The token budget of 7: two known tokens, and five drafts.
    scheduler = Scheduler::new(Limits { max_batch_size: 2, max_batch_tokens: 7, ..LIMITS }, PagePool::new(20));
    scheduler.add(RequestId(1), arrival(3));
    scheduler.add(RequestId(2), arrival(3));
    assert_eq!(step(&mut scheduler).len(), 2);
    let mut with_drafts = scheduler.schedule();
    assert_eq!(scheduler.room(&with_drafts), 5);
    scheduler.add_drafts(&mut with_drafts, |_| 4);
    assert_eq!(with_drafts.chunks.iter().map(|chunk| chunk.n_drafts).collect::<Vec<_>>(), [4, 1]);
}

#[test]
fn page_filled_by_accepted_drafts_enters_the_prefix_cache() {
    let key = page_key(7);
    let mut scheduler = Scheduler::new(Limits { max_batch_tokens: 64, ..LIMITS }, PagePool::new(16));
    scheduler.add(RequestId(1), arrival(10));
    step(&mut scheduler);
    let mut with_drafts = scheduler.schedule();
    scheduler.add_drafts(&mut with_drafts, |_| 9);
    for (table, chunk) in scheduler.tables(&with_drafts).into_iter().zip(&with_drafts.chunks) {
        table.append(chunk.n_tokens).unwrap();
    }
    scheduler.advance(&with_drafts);
    // Seven new tokens, the fifth of which fills the page.
    (12..=18).for_each(|n_tokens| scheduler.push_token(id(1), (n_tokens == 16).then_some(key)));
    scheduler.roll_back(&with_drafts);
    scheduler.add(RequestId(2), Arrival { keys: vec![key], ..arrival(17) });
    assert_eq!(chunk_of(&step(&mut scheduler), 2), Some(&chunk(2, 16, 1, true)));
}

/// The places that each tenant's running requests take.
fn places(scheduler: &Scheduler) -> BTreeMap<u128, usize> {
    let mut places = BTreeMap::new();
    for request in scheduler.running.values() {
        *places.entry(request.tenant.0).or_default() += request.width;
    }
    places
}

#[test]
fn another_tenants_request_starts_at_once_beside_a_long_queue() {
    let limits = Limits { max_batch_size: 4, max_batch_tokens: 64, ..LIMITS };
    let mut scheduler = Scheduler::new(limits, PagePool::new(100));
    (1..=2048).for_each(|request| scheduler.add(RequestId(request), arrival_of(1, 8)));
    for _ in 0..10 {
        step(&mut scheduler);
    }
    // A better priority of the others does not count: it orders their own requests.
    scheduler.add(RequestId(3000), Arrival { priority: 1, ..arrival_of(2, 9) });
    let chunks = step(&mut scheduler);
    assert_eq!(chunk_of(&chunks, 3000), Some(&chunk(3000, 0, 9, true)));
    assert_eq!(chunks.len(), 4, "it takes the place of the newest: {chunks:?}");
    assert!(chunk_of(&step(&mut scheduler), 3000).is_some_and(|chunk| chunk.predicts), "the second token");
    scheduler.remove(RequestId(3000));
    // The preempted request continues where it was, before requests that have not begun.
    assert_eq!(chunk_of(&step(&mut scheduler), 4).map(|chunk| chunk.start + chunk.n_tokens), Some(8 + 10));
    assert_eq!(scheduler.totals().n_preemptions, 1);
}

#[test]
fn tenants_with_long_queues_get_equal_places_whatever_their_priorities() {
    let limits = Limits { max_batch_size: 6, max_batch_tokens: 64, ..LIMITS };
    let mut scheduler = Scheduler::new(limits, PagePool::new(100));
    for request in 0..300 {
        let tenant = 1 + u128::from(request % 3);
        let priority = if tenant == 1 { -100 } else { 0 };
        scheduler.add(RequestId(request), Arrival { priority, ..arrival_of(tenant, 4) });
    }
    for number in 0..100 {
        let chunks = step(&mut scheduler);
        assert_eq!(places(&scheduler), [(1, 2), (2, 2), (3, 2)].into());
        assert_eq!(scheduler.totals().n_preemptions, 0);
        // Answers of different lengths end.
        chunks.iter().filter(|chunk| number % (1 + chunk.id.request.0 % 7) == 0).for_each(|chunk| {
            scheduler.remove(chunk.id.request);
        });
    }
    // A beam search counts with its number of beams.
    let mut scheduler = Scheduler::new(limits, PagePool::new(100));
    scheduler.add(RequestId(1), Arrival { width: 3, ..arrival_of(1, 4) });
    scheduler.add(RequestId(2), Arrival { width: 3, ..arrival_of(1, 4) });
    (3..9).for_each(|request| scheduler.add(RequestId(request), arrival_of(2, 4)));
    step(&mut scheduler);
    assert_eq!(places(&scheduler), [(1, 3), (2, 3)].into());
}

#[test]
fn request_of_another_tenant_takes_pages_and_the_adapter_that_it_needs() {
    let limits = Limits { max_batch_size: 8, max_batch_tokens: 64, max_adapters: 1, ..LIMITS };
    let mut scheduler = Scheduler::new(limits, PagePool::new(8));
    for request in 1..=3 {
        scheduler.add(RequestId(request), arrival_of(1, 15));
        step(&mut scheduler);
    }
    assert_eq!(places(&scheduler), [(1, 3)].into());
    // Two full pages, and one to spare for each request.
    scheduler.add(RequestId(4), arrival_of(2, 40));
    let chunks = step(&mut scheduler);
    assert!(chunk_of(&chunks, 4).is_some() && chunk_of(&chunks, 1).is_some(), "{chunks:?}");
    scheduler.remove(RequestId(4));
    let mut scheduler = Scheduler::new(limits, PagePool::new(100));
    let with = |tenant, number| Arrival { adapter: Some(adapter(number)), ..arrival_of(tenant, 4) };
    scheduler.add(RequestId(1), arrival_of(1, 4));
    scheduler.add(RequestId(2), with(1, 1));
    step(&mut scheduler);
    scheduler.add(RequestId(3), with(2, 2));
    let running: Vec<u64> = step(&mut scheduler).iter().map(|chunk| chunk.id.request.0).collect();
    assert_eq!(BTreeSet::from_iter(running), [1, 3].into());
}

/// Each has a request that needs all pages: one after the other runs to its end, and none is computed twice.
#[test]
fn tenants_take_turns_where_only_one_request_fits() {
    let mut scheduler = Scheduler::new(Limits { max_batch_tokens: 64, ..LIMITS }, PagePool::new(4));
    let mut order = Vec::new();
    for request in 0..9 {
        // The first tenant sends four, the second three, the third two.
        let tenant = [1, 1, 1, 1, 2, 2, 2, 3, 3][request as usize];
        scheduler.add(RequestId(request), arrival_of(tenant, 50));
    }
    while let [chunk] = step(&mut scheduler)[..] {
        if chunk.start == 0 {
            order.push(chunk.id.request.0);
        }
        if chunk.start == 55 {
            scheduler.remove(chunk.id.request);
        }
    }
    assert_eq!(order, [0, 4, 7, 1, 5, 8, 2, 6, 3]);
    assert_eq!(scheduler.totals().n_preemptions, 0);
    assert!(scheduler.tenants.is_empty());
}
