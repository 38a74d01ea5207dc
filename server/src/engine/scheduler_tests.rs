//! Simulates whole workloads with page tables and without a model. Time is counted in steps.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { max_batch_size: 4, max_batch_tokens: 8, max_adapters: 2 };

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
    Arrival { n_prompt, width: 1, priority: 0, keys: Vec::new(), reads_kept_pages: true, adapter: None }
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
    // The first prompt leaves half of the budget to those behind it, and the second leaves its rest to the third.
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
    scheduler.add(RequestId(4), Arrival { reads_kept_pages: false, ..known(33) });
    assert!(step(&mut scheduler).contains(&chunk(4, 0, 33, true)));
    // Once it has a token, every position has been computed, so it may use the prefix cache.
    scheduler.preempt();
    assert!(step(&mut scheduler).contains(&chunk(4, 32, 2, true)));
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
    scheduler.add(RequestId(2), Arrival { reads_kept_pages: false, ..arrival(7 * PAGE_SIZE - 1) });
    scheduler.hold(RequestId(1), true);
    scheduler.preempt();
    while !step(&mut scheduler)[0].predicts {}
    scheduler.remove(RequestId(2));
    scheduler.hold(RequestId(1), false);
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
    // The first sequence computes everything, the others what follows the prompt's full pages, with three more tokens.
    assert_eq!(n_computed, (N_PROMPT + 3) + 3 * (5 + 3));
}

#[test]
fn held_requests_are_not_scheduled_until_they_are_released() {
    // Two pages for each request, and no spare page.
    let mut scheduler = Scheduler::new(LIMITS, PagePool::new(4));
    scheduler.add(RequestId(1), arrival(2));
    scheduler.add(RequestId(2), arrival(2));
    assert_eq!(step(&mut scheduler), [chunk(1, 0, 2, true), chunk(2, 0, 2, true)]);
    scheduler.hold(RequestId(1), true);
    for start in 2..2 * PAGE_SIZE {
        assert_eq!(step(&mut scheduler), [chunk(2, start, 1, true)]);
    }
    scheduler.hold(RequestId(2), true);
    assert_eq!(step(&mut scheduler), []);
    assert_eq!(scheduler.totals().n_preemptions, 0);
    scheduler.hold(RequestId(1), false);
    assert_eq!(step(&mut scheduler), [chunk(1, 2, 1, true)]);
    // A request of higher rank takes the pages of a held one, which is recomputed once it is released.
    for start in 3..=2 * PAGE_SIZE {
        assert_eq!(step(&mut scheduler), [chunk(1, start, 1, true)]);
    }
    assert_eq!(scheduler.totals().n_preemptions, 1);
    scheduler.remove(RequestId(1));
    assert_eq!(step(&mut scheduler), []);
    scheduler.hold(RequestId(2), false);
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

#[derive(Clone, Debug)]
struct Job {
    arrives: usize,
    n_prompt: usize,
    /// Tokens after which it stops by itself, at most `max_tokens`.
    stops_after: usize,
    max_tokens: usize,
    priority: i32,
    /// Number of steps after its arrival at which its client disconnects.
    cancelled_after: Option<usize>,
    /// Prompts with the same number have a common prefix.
    text: u128,
    n_forks: usize,
    width: usize,
    /// Number of drafted tokens, and the maximum number of accepted ones.
    drafts: [usize; 2],
    /// Number of steps that it is held for after every third token of a sequence.
    held_for: usize,
}

impl Job {
    /// Number of steps that it takes at one token per step.
    fn work(&self) -> usize {
        (self.n_prompt + self.max_tokens) * self.width * (1 + self.n_forks)
    }

    fn due(&self) -> i64 {
        self.arrives as i64 + i64::from(self.priority) * AGEING_STEPS
    }

    fn n_pages(&self) -> usize {
        most_pages(self.width, self.n_prompt, self.n_prompt + self.max_tokens)
    }
}

fn job() -> impl Strategy<Value = Job> {
    let sizes = (1usize..90, 0usize..40, 1usize..40);
    let shape = (
        0u128..3,
        prop_oneof![4 => Just((0, 1)), 1 => (1usize..4).prop_map(|n| (n, 1)), 1 => (1usize..4).prop_map(|n| (0, n))],
    );
    let priority = prop_oneof![3 => Just(0), 1 => -1..=1];
    let drafts = prop_oneof![Just([0, 0]), [0usize..20, 0usize..20]];
    let held_for = prop_oneof![9 => Just(0), 1 => 1..=MOST_HELD];
    (0usize..60, sizes, (priority, drafts, held_for), proptest::option::weighted(0.2, 0usize..30), shape).prop_map(
        |(
            arrives,
            (n_prompt, stops_after, max_tokens),
            (priority, drafts, held_for),
            cancelled_after,
            (text, (n_forks, width)),
        )| Job {
            arrives,
            n_prompt,
            stops_after: stops_after.clamp(1, max_tokens),
            max_tokens,
            priority,
            cancelled_after,
            text,
            n_forks,
            width,
            drafts,
            held_for: if width == 1 { held_for } else { 0 },
        },
    )
}

const MOST_HELD: usize = 12;

/// A request in the simulation.
struct Live {
    job: usize,
    /// Tokens generated by each of its sequences.
    n_generated: usize,
    /// Beams that have been computed since the last branching.
    reported: BTreeSet<usize>,
    /// The step at which it is released.
    held_until: Option<usize>,
}

impl Live {
    fn new(job: usize) -> Self {
        Self { job, n_generated: 0, reported: BTreeSet::new(), held_until: None }
    }
}

struct Simulation {
    jobs: Vec<Job>,
    limits: Limits,
    pool: PagePool,
    scheduler: Scheduler,
    live: BTreeMap<RequestId, Live>,
    /// Number of each job's answers that have ended.
    n_ended: Vec<usize>,
    forked: BTreeSet<usize>,
    first_step: Vec<Option<usize>>,
    clock: usize,
}

impl Simulation {
    fn new(mut jobs: Vec<Job>, limits: Limits, n_pages: usize) -> Self {
        jobs.sort_by_key(|job| job.arrives);
        for job in &mut jobs {
            // Requests are validated before they are scheduled.
            job.width = job.width.min(limits.max_batch_size);
            if job.n_pages() > n_pages {
                job.width = 1;
            }
            assert!(job.n_pages() <= n_pages);
        }
        let pool = PagePool::new(n_pages);
        Self {
            n_ended: vec![0; jobs.len()],
            first_step: vec![None; jobs.len()],
            scheduler: Scheduler::new(limits, pool.clone()),
            forked: BTreeSet::new(),
            live: BTreeMap::new(),
            clock: 0,
            jobs,
            limits,
            pool,
        }
    }

    fn n_answers(&self, job: usize) -> usize {
        1 + self.jobs[job].n_forks
    }

    /// Adds and cancels requests. They are numbered by their job; forks have numbers after those of all jobs.
    fn arrive_and_leave(&mut self) {
        for (index, job) in self.jobs.iter().enumerate() {
            if job.arrives == self.clock {
                let keys = (0..job.n_prompt / PAGE_SIZE).map(|page| page_key(job.text << 64 | page as u128));
                let arrival = Arrival {
                    n_prompt: job.n_prompt,
                    width: job.width,
                    priority: job.priority,
                    keys: keys.collect(),
                    reads_kept_pages: index % 5 != 0,
                    adapter: (index % 3 > 0).then(|| adapter(index as u64 % 4)),
                };
                let request = RequestId(index as u64);
                self.scheduler.add(request, arrival);
                self.live.insert(request, Live::new(index));
            }
            if job.cancelled_after.is_some_and(|after| job.arrives + after == self.clock) {
                let gone: Vec<RequestId> =
                    self.live.iter().filter(|(_, live)| live.job == index).map(|(&request, _)| request).collect();
                let was_forked = self.forked.contains(&index);
                for request in gone {
                    self.scheduler.remove(request);
                    self.live.remove(&request);
                    // Answers that have not forked yet end with their parent.
                    self.n_ended[index] += if was_forked { 1 } else { 1 + job.n_forks };
                }
            }
        }
    }

    fn ranks(requests: &BTreeMap<Rank, ScheduledRequest>) -> Vec<Rank> {
        requests.keys().copied().collect()
    }

    fn release_held(&mut self) {
        for (&request, live) in &mut self.live {
            if live.held_until.take_if(|until| *until <= self.clock).is_some() {
                self.scheduler.hold(request, false);
            }
        }
    }

    fn is_held(&self, request: RequestId) -> bool {
        self.live.get(&request).is_some_and(|live| live.held_until.is_some())
    }

    fn step(&mut self) {
        self.arrive_and_leave();
        self.release_held();
        let before = Self::ranks(&self.scheduler.running);
        let planned = self.scheduler.schedule();
        let mut step = planned.clone();
        self.scheduler.add_drafts(&mut step, |id| self.n_drafts_of(id));
        let known = |chunk: &Chunk| Chunk { n_tokens: chunk.n_tokens - chunk.n_drafts, n_drafts: 0, ..*chunk };
        assert!(step.chunks.iter().map(known).eq(planned.chunks), "drafts change nothing else");
        let (running, waiting) = (Self::ranks(&self.scheduler.running), Self::ranks(&self.scheduler.waiting));
        if let Some(best) = before.first() {
            assert!(running.contains(best), "the best is never preempted");
        }
        for started in running.iter().filter(|rank| !before.contains(rank)) {
            assert!(waiting.iter().all(|waits| started < waits), "{started:?} overtakes one of {waiting:?}");
        }
        if running.iter().all(|rank| !self.is_held(rank.id)) {
            assert_eq!(step.chunks.is_empty(), running.is_empty() && waiting.is_empty());
        }
        assert!(step.chunks.iter().all(|chunk| !self.is_held(chunk.id.request)), "who is held has no part");
        assert!(step.chunks.iter().map(|chunk| chunk.n_tokens).sum::<usize>() <= self.limits.max_batch_tokens);
        assert!(
            self.scheduler.running.values().map(|request| request.sequences.len()).sum::<usize>()
                <= self.limits.max_batch_size
        );
        let adapters: BTreeSet<_> =
            self.scheduler.running.values().filter_map(|request| request.adapter.as_ref()).collect();
        assert!(adapters.len() <= self.limits.max_adapters, "{adapters:?} run");
        for (sequence_id, sequence) in self.scheduler.running_sequences() {
            let chunk = step.chunks.iter().find(|chunk| chunk.id == sequence_id);
            assert!(
                sequence.remaining() != 1
                    || self.is_held(sequence_id.request)
                    || chunk.is_some_and(|chunk| chunk.predicts),
                "who decodes gets its token"
            );
        }
        for request in self.scheduler.waiting.values() {
            assert!(request.sequences.iter().all(|sequence| sequence.table.is_empty()), "who waits holds no page");
        }
        for (table, chunk) in self.scheduler.tables(&step).into_iter().zip(&step.chunks) {
            assert!(chunk.n_tokens >= 1);
            assert_eq!(chunk.start, table.len(), "a chunk follows the one before");
            table.append(chunk.n_tokens).expect("the pool is never over-committed");
        }
        self.scheduler.advance(&step);
        for chunk in &step.chunks {
            if let Some(first) = self.first_step.get_mut(chunk.id.request.0 as usize) {
                first.get_or_insert(self.clock);
            }
        }
        for chunk in step.chunks.iter().filter(|chunk| chunk.predicts) {
            let n_accepted = self.jobs.get(chunk.id.request.0 as usize).map_or(0, |job| job.drafts[1]);
            for _ in 0..=n_accepted.min(chunk.n_drafts) {
                // It may have ended with an accepted draft, or be held.
                if self.live.contains_key(&chunk.id.request) && !self.is_held(chunk.id.request) {
                    self.predicted(chunk.id);
                }
            }
        }
        self.scheduler.roll_back(&step);
        let held: usize =
            self.scheduler.running_sequences().map(|(_, sequence)| sequence.table.len().div_ceil(PAGE_SIZE)).sum();
        assert!(self.pool.n_free() + held >= self.pool.n_pages(), "a page is held for nothing");
        self.clock += 1;
    }

    fn n_drafts_of(&self, id: SequenceId) -> usize {
        let Some(live) = self.live.get(&id.request) else { return 0 };
        let job = &self.jobs[live.job];
        if live.n_generated == 0 || job.width > 1 {
            0
        } else {
            job.drafts[0].min(job.max_tokens - live.n_generated - 1)
        }
    }

    fn predicted(&mut self, sequence: SequenceId) {
        let request = sequence.request;
        let live = self.live.get_mut(&request).expect("only live requests are computed");
        let index = live.job;
        let job = &self.jobs[index];
        if job.width > 1 {
            live.reported.insert(sequence.branch);
            let n_branches = if live.n_generated == 0 { 1 } else { job.width };
            if live.reported.len() < n_branches {
                return;
            }
            live.reported.clear();
            live.n_generated += 1;
            if live.n_generated == job.stops_after {
                return self.end(request);
            }
            let parents: Vec<_> =
                (0..job.width).map(|branch| ((self.clock + branch * branch) % n_branches, None)).collect();
            return self.scheduler.branch(request, &parents);
        }
        let mut grown = vec![request];
        if job.n_forks > 0 && self.forked.insert(index) {
            for fork in 0..job.n_forks {
                let child = RequestId((1000 * (fork + 1) + index) as u64);
                self.scheduler.fork(request, child);
                self.live.insert(child, Live::new(index));
                grown.push(child);
            }
        }
        for request in grown {
            let live = self.live.get_mut(&request).expect("live");
            live.n_generated += 1;
            let job = &self.jobs[index];
            if live.n_generated == job.stops_after {
                self.end(request);
                continue;
            }
            let n_tokens = job.n_prompt + live.n_generated;
            let name = page_key(1 << 100 | u128::from(request.0) << 32 | n_tokens as u128);
            self.scheduler
                .push_token(SequenceId { request, branch: 0 }, n_tokens.is_multiple_of(PAGE_SIZE).then_some(name));
            if job.held_for > 0 && live.n_generated.is_multiple_of(3) {
                live.held_until = Some(self.clock + job.held_for);
                self.scheduler.hold(request, true);
            }
        }
    }

    fn end(&mut self, request: RequestId) {
        self.scheduler.remove(request);
        let live = self.live.remove(&request).expect("ends once");
        self.n_ended[live.job] += 1;
    }

    fn is_over(&self) -> bool {
        (0..self.jobs.len()).all(|job| self.n_ended[job] >= self.n_answers(job))
    }

    /// The bound that the module's documentation states.
    fn longest_wait(&self, index: usize) -> usize {
        let job = &self.jobs[index];
        let rank = |index: usize| (self.jobs[index].due(), index);
        let before: Vec<usize> = (0..self.jobs.len())
            .filter(|&other| {
                other != index
                    && (rank(other) < rank(index) || self.jobs[other].arrives <= job.arrives && other < index)
            })
            .collect();
        let overtakers = |of: usize| {
            before
                .iter()
                .filter(|&&other| other > of && rank(other) < rank(of))
                .map(|&other| 1 + self.jobs[other].n_forks)
                .sum::<usize>()
        };
        before.iter().map(|&other| self.jobs[other].work() * (1 + overtakers(other))).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn simulated_requests_each_end_once_within_page_and_wait_limits(
        jobs in proptest::collection::vec(job(), 1..25),
        max_batch_size in 1usize..6,
        extra_tokens in 0usize..60,
        max_adapters in 1usize..4,
        // 9 pages hold the largest job: 89 + 39 tokens.
        n_pages in 9usize..30,
    ) {
        let limits = Limits { max_batch_size, max_batch_tokens: max_batch_size + extra_tokens, max_adapters };
        let mut simulation = Simulation::new(jobs, limits, n_pages);
        let total: usize = simulation.jobs.iter().map(Job::work).sum();
        let deadline = (100 + total * (1 + 4 * simulation.jobs.len())) * (1 + MOST_HELD);
        let is_held = simulation.jobs.iter().any(|job| job.held_for > 0);
        while !simulation.is_over() {
            prop_assert!(simulation.clock < deadline, "no end after {} steps", simulation.clock);
            simulation.step();
        }
        for job in 0..simulation.jobs.len() {
            prop_assert_eq!(simulation.n_ended[job], simulation.n_answers(job), "every answer ends exactly once");
            // The bound does not include times for which requests are held.
            if let Some(first) = simulation.first_step[job].filter(|_| !is_held) {
                let (waited, bound) = (first - simulation.jobs[job].arrives, simulation.longest_wait(job));
                prop_assert!(waited <= bound, "waited {waited} steps, the bound is {bound}");
            }
        }
        prop_assert_eq!(simulation.pool.n_free(), n_pages, "no page leaks");
        prop_assert_eq!(simulation.scheduler.n_places_taken() + simulation.scheduler.n_waiting(), 0);
        prop_assert!(simulation.scheduler.ranks.is_empty());
        prop_assert_eq!(simulation.scheduler.n_adapted, 0);
    }
}
