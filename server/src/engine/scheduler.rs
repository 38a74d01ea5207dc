//! Decides what the next step computes: which sequences run, and how many tokens of each.
//!
//! Pure: counts in, a [`Step`] out. No tensors, no clock, no channels and no token ids may come in here, so that whole
//! workloads can be simulated in a test.
//!
//! The rules:
//! - first come, first served: a waiting sequence starts only after every sequence that came before it has started;
//! - a sequence starts when a place in the batch is free and its worst case (prompt and `max_tokens`) fits into the
//!   pages that nobody else has reserved, so that a running sequence can never run out of pages;
//! - a step serves decoding sequences first, then prefills in chunks with what is left of the step's token budget, so
//!   that a long prompt delays the tokens of others by one chunk at most.

use std::collections::VecDeque;

/// Names a sequence for as long as the engine runs; later sequences have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// What a scheduler may spend.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequences that run at once.
    pub max_batch_size: usize,
    /// Tokens computed in one step, over all sequences; at least `max_batch_size`, or decoding could starve.
    pub max_batch_tokens: usize,
    /// Pages in the KV cache.
    pub n_pages: usize,
    /// Tokens that one page holds.
    pub page_size: usize,
}

impl Limits {
    /// Pages that the keys and values of `n_tokens` tokens fill.
    pub fn pages_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.page_size)
    }
}

/// The size of a sequence, all that the scheduler knows of it.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Tokens of the prompt, at least 1.
    pub n_prompt: usize,
    /// Tokens that may be generated.
    pub max_tokens: usize,
}

impl Extent {
    /// Tokens whose keys and values are cached in the worst case. The last generated token is never fed back.
    pub fn max_cached(&self) -> usize {
        self.n_prompt + self.max_tokens.saturating_sub(1)
    }
}

/// The part of one sequence that a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose tokens.
    pub id: SequenceId,
    /// Position of the first token in its sequence: the number of tokens computed before.
    pub start: usize,
    /// Tokens to compute, at least 1.
    pub n_tokens: usize,
    /// Whether the chunk reaches the last token known so far, so that its last row predicts a new one.
    pub predicts: bool,
}

/// What one forward pass computes: a flat mix of decoding rows and chunks of prefill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// One entry per sequence, in the order of the rows.
    pub chunks: Vec<Chunk>,
}

#[derive(Clone, Debug)]
struct Entry {
    id: SequenceId,
    extent: Extent,
    /// Tokens known: prompt and generated.
    n_tokens: usize,
    /// Tokens whose keys and values are in the cache.
    n_computed: usize,
}

impl Entry {
    fn remaining(&self) -> usize {
        self.n_tokens - self.n_computed
    }
}

/// The state that decisions are made from.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Entry>,
    /// In order of arrival.
    running: Vec<Entry>,
    n_reserved_pages: usize,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(limits: Limits) -> Self {
        Self { limits, waiting: VecDeque::new(), running: Vec::new(), n_reserved_pages: 0 }
    }

    /// Puts a sequence at the end of the queue. Its worst case must fit into the whole cache (the engine's limits see to
    /// that before a request is accepted), or it would wait for ever.
    pub fn add(&mut self, id: SequenceId, extent: Extent) {
        self.waiting.push_back(Entry { id, extent, n_tokens: extent.n_prompt, n_computed: 0 });
    }

    /// Forgets a sequence, finished or cancelled, wherever it is, and what it reserved. Unknown ids change nothing.
    pub fn remove(&mut self, id: SequenceId) {
        self.waiting.retain(|entry| entry.id != id);
        if let Some(index) = self.running.iter().position(|entry| entry.id == id) {
            let entry = self.running.remove(index);
            self.n_reserved_pages -= self.limits.pages_for(entry.extent.max_cached());
        }
    }

    /// The next step. Empty exactly when there is nothing to do.
    pub fn schedule(&mut self) -> Step {
        self.admit();
        let mut budget = self.limits.max_batch_tokens;
        let mut step = Step::default();
        let (decoding, prefilling): (Vec<&Entry>, Vec<&Entry>) =
            self.running.iter().partition(|entry| entry.remaining() == 1);
        for entry in decoding.into_iter().chain(prefilling) {
            let n_tokens = entry.remaining().min(budget);
            if n_tokens == 0 {
                break;
            }
            budget -= n_tokens;
            let predicts = n_tokens == entry.remaining();
            step.chunks.push(Chunk { id: entry.id, start: entry.n_computed, n_tokens, predicts });
        }
        step
    }

    /// Takes note that `step` was computed: each chunk that predicts gave its sequence one more token. Sequences that
    /// have ended meanwhile are left out.
    pub fn advance(&mut self, step: &Step) {
        for chunk in &step.chunks {
            if let Some(entry) = self.running.iter_mut().find(|entry| entry.id == chunk.id) {
                entry.n_computed += chunk.n_tokens;
                entry.n_tokens += usize::from(chunk.predicts);
            }
        }
    }

    /// Sequences in the queue.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that have started.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    fn admit(&mut self) {
        while self.running.len() < self.limits.max_batch_size {
            let Some(entry) = self.waiting.front() else { break };
            let n_pages = self.limits.pages_for(entry.extent.max_cached());
            if self.n_reserved_pages + n_pages > self.limits.n_pages {
                break;
            }
            self.n_reserved_pages += n_pages;
            self.running.extend(self.waiting.pop_front());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { max_batch_size: 4, max_batch_tokens: 8, n_pages: 100, page_size: 4 };

    fn chunk(id: u64, start: usize, n_tokens: usize, predicts: bool) -> Chunk {
        Chunk { id: SequenceId(id), start, n_tokens, predicts }
    }

    #[test]
    fn decoding_goes_before_prefill_and_prefill_is_cut_to_the_budget() {
        let mut scheduler = Scheduler::new(LIMITS);
        scheduler.add(SequenceId(1), Extent { n_prompt: 3, max_tokens: 5 });
        scheduler.add(SequenceId(2), Extent { n_prompt: 20, max_tokens: 5 });
        let first = scheduler.schedule();
        assert_eq!(first.chunks, [chunk(1, 0, 3, true), chunk(2, 0, 5, false)]);
        scheduler.advance(&first);
        let second = scheduler.schedule();
        assert_eq!(second.chunks, [chunk(1, 3, 1, true), chunk(2, 5, 7, false)]);
        scheduler.advance(&second);
        scheduler.remove(SequenceId(1));
        assert_eq!(scheduler.schedule().chunks, [chunk(2, 12, 8, true)]);
    }

    #[test]
    fn a_sequence_waits_for_a_place_and_for_its_worst_case_in_pages() {
        let mut scheduler = Scheduler::new(Limits { n_pages: 5, ..LIMITS });
        // 8 + 8 = 16 tokens, of which 15 are cached: 4 of the 5 pages.
        scheduler.add(SequenceId(1), Extent { n_prompt: 8, max_tokens: 8 });
        scheduler.add(SequenceId(2), Extent { n_prompt: 4, max_tokens: 2 });
        scheduler.add(SequenceId(3), Extent { n_prompt: 1, max_tokens: 1 });
        assert_eq!(scheduler.schedule().chunks, [chunk(1, 0, 8, true)]);
        // The third would fit, but the second came first.
        assert_eq!((scheduler.n_running(), scheduler.n_waiting()), (1, 2));
        scheduler.remove(SequenceId(1));
        assert_eq!(scheduler.schedule().chunks, [chunk(3, 0, 1, true), chunk(2, 0, 4, true)]);
    }

    #[derive(Clone, Debug)]
    struct Job {
        arrives: usize,
        n_prompt: usize,
        /// Tokens after which it stops by itself, at most `max_tokens`.
        stops_after: usize,
        max_tokens: usize,
        /// Steps after its arrival at which its client goes away.
        cancelled_after: Option<usize>,
    }

    fn job() -> impl Strategy<Value = Job> {
        (0usize..40, 1usize..60, 0usize..20, 0usize..20, proptest::option::weighted(0.2, 0usize..30)).prop_map(
            |(arrives, n_prompt, stops_after, max_tokens, cancelled_after)| Job {
                arrives,
                n_prompt,
                stops_after: stops_after.min(max_tokens),
                max_tokens,
                cancelled_after,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn every_sequence_ends_once_within_the_limits(
            mut jobs in proptest::collection::vec(job(), 1..25),
            max_batch_size in 1usize..6,
            extra_tokens in 0usize..20,
            n_pages in 20usize..40,
        ) {
            jobs.sort_by_key(|job| job.arrives);
            // 20 pages hold the largest job: 59 + 18 tokens.
            let limits = Limits { max_batch_size, max_batch_tokens: max_batch_size + extra_tokens, n_pages, page_size: 4 };
            let mut scheduler = Scheduler::new(limits);
            let mut cached: BTreeMap<usize, usize> = BTreeMap::new();
            let mut generated = vec![0usize; jobs.len()];
            let mut ended = vec![0usize; jobs.len()];
            let mut started: BTreeSet<usize> = BTreeSet::new();
            // Every step computes at least one token, so the work bounds the time.
            let deadline = 100 + jobs.iter().map(|job| job.n_prompt + job.max_tokens).sum::<usize>();
            let mut clock = 0;
            while ended.contains(&0) {
                prop_assert!(clock < deadline, "no end after {clock} steps");
                for (index, job) in jobs.iter().enumerate() {
                    if job.arrives == clock {
                        scheduler.add(SequenceId(index as u64), Extent { n_prompt: job.n_prompt, max_tokens: job.max_tokens });
                    }
                    if job.cancelled_after.is_some_and(|after| job.arrives + after == clock) && ended[index] == 0 {
                        scheduler.remove(SequenceId(index as u64));
                        cached.remove(&index);
                        ended[index] += 1;
                    }
                }
                let step = scheduler.schedule();
                prop_assert!(step.chunks.iter().map(|chunk| chunk.n_tokens).sum::<usize>() <= limits.max_batch_tokens);
                prop_assert!(scheduler.n_running() <= limits.max_batch_size);
                prop_assert_eq!(step.chunks.is_empty(), scheduler.n_running() + scheduler.n_waiting() == 0);
                for chunk in &step.chunks {
                    let index = chunk.id.0 as usize;
                    prop_assert!(chunk.n_tokens >= 1);
                    let n_cached = cached.entry(index).or_default();
                    prop_assert_eq!(chunk.start, *n_cached, "a chunk follows the one before");
                    *n_cached += chunk.n_tokens;
                    if started.insert(index) {
                        let skipped = (0..index).find(|&other| jobs[other].arrives < jobs[index].arrives && ended[other] == 0 && !started.contains(&other) && scheduler.running.iter().all(|entry| entry.id != SequenceId(other as u64)));
                        prop_assert_eq!(skipped, None, "first come, first served");
                    }
                }
                // Whoever is decoding gets its token in every step.
                for index in 0..jobs.len() {
                    if generated[index] > 0 && ended[index] == 0 {
                        prop_assert!(step.chunks.iter().any(|chunk| chunk.id.0 as usize == index && chunk.predicts));
                    }
                }
                let n_used: usize = cached.values().map(|&n_tokens| limits.pages_for(n_tokens)).sum();
                prop_assert!(n_used <= limits.n_pages, "{n_used} pages used of {}", limits.n_pages);
                scheduler.advance(&step);
                for chunk in step.chunks.iter().filter(|chunk| chunk.predicts) {
                    let index = chunk.id.0 as usize;
                    generated[index] += 1;
                    if generated[index] >= jobs[index].stops_after.max(1) {
                        scheduler.remove(chunk.id);
                        cached.remove(&index);
                        ended[index] += 1;
                    }
                }
                clock += 1;
            }
            prop_assert!(ended.iter().all(|&times| times == 1));
            prop_assert_eq!(scheduler.n_reserved_pages, 0);
            prop_assert_eq!(scheduler.n_running() + scheduler.n_waiting(), 0);
        }
    }
}
