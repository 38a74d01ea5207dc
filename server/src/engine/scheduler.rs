//! Schedules steps: which requests run, how many tokens of each sequence are computed, and which request is preempted.
//!
//! Without tensors, clock, channels and token ids: the input is counts and page tables, the output a [`Step`], so that
//! tests can simulate whole workloads. Its only time is the number of steps.
//!
//! The rules:
//! - Requests are ranked by the step they arrived at plus [`AGEING_STEPS`] per level of `priority`, then by their
//!   number: first come, first served among equals, and one level of priority is worth so many steps of waiting. The
//!   rank never changes.
//! - A waiting request starts when no better one waits, when the batch has places for all the sequences it may grow
//!   into, and when every token known so far, its own and those of all who run, finds a page, with one page to spare for
//!   each running sequence. Nothing is reserved for tokens to come. With an adapter, it starts when that is among those of
//!   running requests, or these are fewer than may be; those behind it wait with it, so that none is passed for ever.
//! - When the pages do not suffice for a step, the running request with the worst rank gives back all of its pages and
//!   waits again. What it had is computed anew later; its tokens and their random stream do not notice.
//! - When a request with several sequences is computed again, the first goes ahead, and the others take from it the full
//!   pages that they have in common, of the prompt at least: they take no more pages than before.
//! - A step serves decoding sequences first, then prefills in order of rank with what is left of the token budget. A
//!   prefill leaves half of that to those behind it, as far as they need it, so that a short prompt need not wait for the
//!   end of a long one.
//! - A held request, which waits for a result, keeps its rank, its place and its pages, unless a better one needs them,
//!   and takes no part in steps.
//! - The remaining room may be used for draft tokens of decoding sequences. They do not affect the rules above, and
//!   their pages are free again after the step.
//!
//! # Nothing starves
//! The running request with the best rank, if it is not held, computes at least one token in every step and is never
//! preempted (a request that could not run alone is refused before it gets here). So the best request of all, once it
//! runs, ends after at most as many steps as it has tokens, `n_prompt + max_tokens`; and a request starts at the latest
//! after the tokens of all requests that are ranked before it or came before it, each counted once more for every
//! request that is ranked before it but came after it and so may have preempted it. Among requests of equal
//! priority there is none of those: the wait is at most the tokens of the requests that came before, in steps.
//! Requests of priority `p` that come more than `AGEING_STEPS * (p - p')` steps later do not count even if their
//! priority `p'` is better.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use hearth_model::kv_cache::{PAGE_SIZE, PageKey, PagePool, PageTable};

use super::adapters::AdapterId;
use crate::metrics::Totals;

/// Number of steps of waiting that one priority level is worth.
pub const AGEING_STEPS: i64 = 128;

/// Identifies a request for as long as the engine runs; later requests have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Identifies one of a request's sequences. Only beam searches have several.
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
}

/// A request for the scheduler. The caller ensures that it can run alone: that there are `width` places, and the pages
/// of [`most_pages`].
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Tokens of the prompt, at least 1.
    pub n_prompt: usize,
    /// Maximum number of its sequences, at least 1.
    pub width: usize,
    /// Lower values are scheduled first.
    pub priority: i32,
    /// Keys of the prompt's full pages, in order.
    pub keys: Vec<PageKey>,
    /// Whether it uses the prefix cache. False if every position is needed.
    pub reads_kept_pages: bool,
    /// Its adapter.
    pub adapter: Option<AdapterId>,
}

/// The maximum number of pages of a request's sequences if each has `n_tokens`: full pages of the prompt are shared.
pub fn most_pages(width: usize, n_prompt: usize, n_tokens: usize) -> usize {
    let n_common = n_prompt / PAGE_SIZE;
    n_common + width * (n_tokens.div_ceil(PAGE_SIZE) - n_common)
}

/// The part of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The sequence.
    pub id: SequenceId,
    /// Position of the first token in its sequence: the number of tokens computed before.
    pub start: usize,
    /// Number of tokens, at least 1.
    pub n_tokens: usize,
    /// Number of draft tokens at its end: see [`Scheduler::add_drafts`].
    pub n_drafts: usize,
    /// Whether the chunk includes the last known token, whose row predicts a new one.
    pub predicts: bool,
}

impl Chunk {
    /// Position after the last known token.
    pub fn known_end(&self) -> usize {
        self.start + self.n_tokens - self.n_drafts
    }
}

/// One forward pass: decoding rows and prefill chunks together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// One entry per sequence, in the order of the rows.
    pub chunks: Vec<Chunk>,
}

/// Smaller ranks come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The step of arrival, shifted by the priority.
    due: i64,
    id: RequestId,
}

#[derive(Debug)]
struct ScheduledRequest {
    width: usize,
    is_held: bool,
    reads_kept_pages: bool,
    adapter: Option<AdapterId>,
    /// Tokens of the prompt that were in the prefix cache; known after the first start.
    n_cached: Option<usize>,
    sequences: Vec<ScheduledSequence>,
}

/// The computed tokens; empty while the request waits.
#[derive(Debug)]
struct ScheduledSequence {
    table: PageTable,
    /// Known tokens: prompt and generated.
    n_tokens: usize,
    /// Keys of its full pages; shared with sequences of the same past.
    keys: Arc<Vec<PageKey>>,
}

impl ScheduledRequest {
    /// When recomputing, the number of tokens that a sequence can share with the first one: their common full pages.
    /// `None` once they are shared.
    fn n_to_take(&self, branch: usize) -> usize {
        let (Some(first), Some(sequence)) = (self.sequences.first(), self.sequences.get(branch)) else { return 0 };
        if branch == 0 || !sequence.table.is_empty() {
            return 0;
        }
        // At least one token must be computed, to get logits.
        let usable = sequence.n_tokens.saturating_sub(1) / PAGE_SIZE;
        let common =
            first.keys.iter().zip(sequence.keys.iter()).take(usable).take_while(|(ours, theirs)| ours == theirs);
        common.count() * PAGE_SIZE
    }

    /// Shares pages with those sequences that can take them now.
    fn share_within(&mut self) {
        for branch in 1..self.sequences.len() {
            let n_tokens = self.n_to_take(branch);
            if let [first, others @ ..] = self.sequences.as_mut_slice()
                && let Some(sequence) = others.get_mut(branch - 1)
                && (1..=first.table.len()).contains(&n_tokens)
            {
                sequence.table = first.table.fork();
                sequence.table.truncate(n_tokens);
            }
        }
    }

    fn named_sequences(&self, rank: &Rank) -> impl Iterator<Item = (SequenceId, &ScheduledSequence)> {
        let request = rank.id;
        self.sequences.iter().enumerate().map(move |(branch, sequence)| (SequenceId { request, branch }, sequence))
    }
}

impl ScheduledSequence {
    fn remaining(&self) -> usize {
        self.n_tokens - self.table.len()
    }

    /// Adds the name of its next full page, if there is one. From here on the names are its own.
    fn name_page(&mut self, key: Option<PageKey>) {
        if let Some(key) = key {
            Arc::make_mut(&mut self.keys).push(key);
        }
    }

    /// Keeps the pages that are full, from the one on that holds position `start`.
    fn keep_from(&self, start: usize) {
        let keys = self.keys.iter().enumerate().take(self.table.len() / PAGE_SIZE);
        for (index, &key) in keys.skip(start / PAGE_SIZE) {
            self.table.keep(index, key);
        }
    }
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    ranks: HashMap<RequestId, Rank>,
    waiting: BTreeMap<Rank, ScheduledRequest>,
    running: BTreeMap<Rank, ScheduledRequest>,
    /// Number of requests with an adapter.
    n_adapted: usize,
    n_steps: i64,
    totals: Totals,
}

impl Scheduler {
    /// An empty scheduler. `pool` is that of the cache on which steps run.
    pub fn new(limits: Limits, pool: PagePool) -> Self {
        Self {
            limits,
            pool,
            ranks: HashMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            n_adapted: 0,
            n_steps: 0,
            totals: Totals::default(),
        }
    }

    /// Adds a request to the queue.
    pub fn add(&mut self, id: RequestId, arrival: Arrival) {
        let Arrival { n_prompt, width, priority, keys, reads_kept_pages, adapter } = arrival;
        let rank = Rank { due: self.n_steps + i64::from(priority) * AGEING_STEPS, id };
        let sequence = ScheduledSequence {
            table: self.pool.table().of_prompt(n_prompt),
            n_tokens: n_prompt,
            keys: Arc::new(keys),
        };
        self.ranks.insert(id, rank);
        self.n_adapted += usize::from(adapter.is_some());
        self.waiting.insert(
            rank,
            ScheduledRequest {
                width,
                is_held: false,
                reads_kept_pages,
                adapter,
                n_cached: None,
                sequences: vec![sequence],
            },
        );
    }

    /// Adds a request that continues from another one's position, shares its pages and ranks right after it. If the
    /// batch has no place, or a better request waits, it joins the queue and uses the prefix cache.
    pub fn fork(&mut self, parent: RequestId, child: RequestId) {
        let Some(parent_rank) = self.ranks.get(&parent).copied() else { return };
        let Some(request) = self.running.get(&parent_rank).or_else(|| self.waiting.get(&parent_rank)) else { return };
        let rank = Rank { id: child, ..parent_rank };
        let is_next = self.waiting.first_key_value().is_none_or(|(first, _)| rank < *first);
        let starts = is_next && self.n_places_taken() < self.limits.max_batch_size;
        let copies = request.sequences.iter().map(|sequence| {
            let mut table = sequence.table.fork();
            if !starts {
                table.truncate(0);
            }
            ScheduledSequence { table, n_tokens: sequence.n_tokens, keys: Arc::clone(&sequence.keys) }
        });
        // Tokens that the child did not compute are reported by its parent.
        let child_request = ScheduledRequest {
            width: 1,
            is_held: false,
            reads_kept_pages: true,
            adapter: request.adapter.clone(),
            n_cached: Some(0),
            sequences: copies.collect(),
        };
        self.ranks.insert(child, rank);
        self.n_adapted += usize::from(child_request.adapter.is_some());
        if starts { &mut self.running } else { &mut self.waiting }.insert(rank, child_request);
    }

    /// A sequence has another token. `key` is that of its last page, if the token fills it.
    pub fn push_token(&mut self, id: SequenceId, key: Option<PageKey>) {
        if let Some(sequence) = self.sequence_mut(id) {
            sequence.n_tokens += 1;
            sequence.name_page(key);
        }
    }

    /// Replaces a running request's sequences: each entry extends the sequence with that index by a token; several may
    /// extend the same one. `key` as in [`push_token`](Self::push_token).
    pub fn branch(&mut self, id: RequestId, parents: &[(usize, Option<PageKey>)]) {
        let Some(request) = self.ranks.get(&id).and_then(|rank| self.running.get_mut(rank)) else { return };
        let branches = parents.iter().filter_map(|&(parent, key)| {
            let sequence = request.sequences.get(parent)?;
            let (table, keys) = (sequence.table.fork(), Arc::clone(&sequence.keys));
            let mut branch = ScheduledSequence { table, n_tokens: sequence.n_tokens + 1, keys };
            branch.name_page(key);
            Some(branch)
        });
        request.sequences = branches.collect();
    }

    /// Excludes a request from steps until it is released.
    pub fn hold(&mut self, id: RequestId, is_held: bool) {
        if let Some(request) = self.request_mut(id) {
            request.is_held = is_held;
        }
    }

    /// Removes a finished or cancelled request, and releases its pages. Ignores unknown ids.
    pub fn remove(&mut self, id: RequestId) {
        let Some(rank) = self.ranks.remove(&id) else { return };
        let removed = self.waiting.remove(&rank).or_else(|| self.running.remove(&rank));
        self.n_adapted -= usize::from(removed.is_some_and(|request| request.adapter.is_some()));
    }

    /// The next step. Empty if there is nothing to do, or only held requests and such that wait for their pages; then
    /// the step is not counted.
    pub fn schedule(&mut self) -> Step {
        let step = self.next_step();
        self.n_steps += i64::from(!step.chunks.is_empty());
        step
    }

    fn next_step(&mut self) -> Step {
        self.running.values_mut().for_each(ScheduledRequest::share_within);
        let mut step = self.plan();
        if self.fits(&step) {
            while self.admit() {}
            return self.plan();
        }
        while !self.fits(&step) && self.running.len() > 1 {
            self.preempt();
            step = self.plan();
        }
        step
    }

    /// Number of further tokens that a step has room for.
    pub fn room(&self, step: &Step) -> usize {
        let n_tokens: usize = step.chunks.iter().map(|chunk| chunk.n_tokens).sum();
        self.limits.max_batch_tokens.saturating_sub(n_tokens)
    }

    /// Extends the chunks of decoding sequences by draft tokens, up to the number `offered` for each, as far as the
    /// step has room and pages are free. Other parts of the step do not change, and no request is preempted. After the
    /// step, [`roll_back`](Self::roll_back) removes rejected drafts.
    pub fn add_drafts(&self, step: &mut Step, offered: impl Fn(SequenceId) -> usize) {
        let (mut room, needed) = (self.room(step), self.pages_needed(step));
        let mut free = self.pool.n_free().saturating_sub(needed);
        for chunk in step.chunks.iter_mut().filter(|chunk| chunk.predicts && chunk.n_tokens == 1) {
            let end = chunk.start + chunk.n_tokens;
            // The rest of the last page is free.
            let room_in_pages = end.next_multiple_of(PAGE_SIZE) - end + free * PAGE_SIZE;
            let n_drafts = offered(chunk.id).min(room).min(room_in_pages);
            room -= n_drafts;
            free -= (end + n_drafts).div_ceil(PAGE_SIZE) - end.div_ceil(PAGE_SIZE);
            chunk.n_drafts = n_drafts;
            chunk.n_tokens += n_drafts;
        }
    }

    /// The page tables of a step's sequences, in the order of its chunks.
    pub fn tables(&mut self, step: &Step) -> Vec<&mut PageTable> {
        let mut tables = HashMap::new();
        for (rank, request) in &mut self.running {
            for (branch, sequence) in request.sequences.iter_mut().enumerate() {
                tables.insert(SequenceId { request: rank.id, branch }, &mut sequence.table);
            }
        }
        step.chunks.iter().filter_map(|chunk| tables.remove(&chunk.id)).collect()
    }

    /// Records that `step` was computed: full pages are added to the prefix cache. Requests that ended meanwhile are
    /// ignored.
    pub fn advance(&mut self, step: &Step) {
        for chunk in &step.chunks {
            if let Some(sequence) = self.sequence_mut(chunk.id) {
                sequence.keep_from(chunk.start);
            }
        }
    }

    /// Removes rejected drafts of a step, once its tokens are known. A sequence's last token has not been computed.
    pub fn roll_back(&mut self, step: &Step) {
        for chunk in step.chunks.iter().filter(|chunk| chunk.n_drafts > 0) {
            let Some(sequence) = self.sequence_mut(chunk.id) else { continue };
            sequence.table.truncate(sequence.n_tokens - 1);
            sequence.keep_from(chunk.start);
        }
    }

    /// Requests in the queue.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that have started.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// The names of the adapters of running and of waiting requests.
    pub fn adapters(&self) -> [Vec<Arc<str>>; 2] {
        if self.n_adapted == 0 {
            // Called after every step: the queue may be long.
            return <[_; 2]>::default();
        }
        let names = |requests: &BTreeMap<Rank, ScheduledRequest>| {
            let adapters = requests.values().filter_map(|request| request.adapter.as_ref());
            let names: BTreeSet<_> = adapters.map(|adapter| &adapter.name).collect();
            names.into_iter().cloned().collect()
        };
        [names(&self.running), names(&self.waiting)]
    }

    /// Tokens of a request's prompt found in the prefix cache when it started; `None` before.
    pub fn n_cached(&self, id: RequestId) -> Option<usize> {
        let rank = self.ranks.get(&id)?;
        self.running.get(rank).or_else(|| self.waiting.get(rank))?.n_cached
    }

    /// The totals so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Option<&mut ScheduledSequence> {
        self.request_mut(id.request)?.sequences.get_mut(id.branch)
    }

    fn request_mut(&mut self, id: RequestId) -> Option<&mut ScheduledRequest> {
        let rank = self.ranks.get(&id)?;
        self.running.get_mut(rank).or_else(|| self.waiting.get_mut(rank))
    }

    fn n_places_taken(&self) -> usize {
        self.running.values().map(|request| request.width).sum()
    }

    fn running_sequences(&self) -> impl Iterator<Item = (SequenceId, &ScheduledSequence)> {
        self.running.iter().flat_map(|(rank, request)| request.named_sequences(rank))
    }

    /// The running sequences that may take part in a step.
    fn free_sequences(&self) -> impl Iterator<Item = (SequenceId, &ScheduledSequence)> {
        let free = self.running.iter().filter(|(_, request)| !request.is_held);
        free.flat_map(|(rank, request)| {
            request.named_sequences(rank).filter(|(id, _)| request.n_to_take(id.branch) == 0)
        })
    }

    /// The next step of the running requests.
    fn plan(&self) -> Step {
        let mut budget = self.limits.max_batch_tokens;
        let mut chunks = Vec::new();
        let mut plan = |id: SequenceId, sequence: &ScheduledSequence, n_tokens: usize| {
            if n_tokens > 0 {
                let (start, predicts) = (sequence.table.len(), n_tokens == sequence.remaining());
                chunks.push(Chunk { id, start, n_tokens, n_drafts: 0, predicts });
            }
            n_tokens
        };
        for (id, sequence) in self.free_sequences().filter(|(_, sequence)| sequence.remaining() == 1) {
            budget -= plan(id, sequence, budget.min(1));
        }
        let prefilling = || self.free_sequences().filter(|(_, sequence)| sequence.remaining() > 1);
        let mut behind: usize = prefilling().map(|(_, sequence)| sequence.remaining()).sum();
        for (id, sequence) in prefilling() {
            behind -= sequence.remaining();
            let share = budget.div_ceil(2).max(budget.saturating_sub(behind));
            budget -= plan(id, sequence, sequence.remaining().min(share));
        }
        Step { chunks }
    }

    /// Whether there are enough pages for a step.
    fn fits(&self, step: &Step) -> bool {
        self.pages_needed(step) <= self.pool.n_free()
    }

    fn pages_needed(&self, step: &Step) -> usize {
        let n_new: HashMap<SequenceId, usize> = step.chunks.iter().map(|chunk| (chunk.id, chunk.n_tokens)).collect();
        let growth = self.running_sequences().filter_map(|(id, sequence)| Some((&sequence.table, *n_new.get(&id)?)));
        self.pool.pages_needed(growth)
    }

    /// Starts the next request, if possible.
    fn admit(&mut self) -> bool {
        let n_taken = self.n_places_taken();
        let Some(next) = self.waiting.first_entry() else { return false };
        if n_taken + next.get().width > self.limits.max_batch_size {
            return false;
        }
        if let Some(adapter) = &next.get().adapter {
            let running: BTreeSet<_> = self.running.values().filter_map(|request| request.adapter.as_ref()).collect();
            if !running.contains(adapter) && running.len() >= self.limits.max_adapters {
                return false;
            }
        }
        let (rank, mut request) = next.remove_entry();
        let (mut n_asked, mut n_shared) = (0, 0);
        if request.reads_kept_pages
            && let Some(first) = request.sequences.first_mut()
        {
            // One token at least has to be computed, for something to come out.
            let usable = first.n_tokens.saturating_sub(1) / PAGE_SIZE;
            n_asked = first.n_tokens;
            n_shared = first.table.share_kept(first.keys.get(..usable).unwrap_or(&first.keys));
        }
        let is_alone = self.running.is_empty();
        self.running.insert(rank, request);
        if !is_alone && self.pages_wanted() > self.pool.n_free() {
            self.put_back(rank);
            return false;
        }
        if let Some(request) = self.running.get_mut(&rank) {
            self.totals.prefix_queries += n_asked as u64;
            self.totals.prefix_hits += n_shared as u64;
            request.n_cached.get_or_insert(n_shared);
        }
        true
    }

    /// Pages that all known tokens of the running requests still need, plus one per sequence.
    fn pages_wanted(&self) -> usize {
        let known = self.running.values().flat_map(|request| {
            let sequences = request.sequences.iter().enumerate();
            sequences.map(|(branch, sequence)| (&sequence.table, sequence.remaining() - request.n_to_take(branch)))
        });
        self.pool.pages_needed(known) + self.running_sequences().count()
    }

    /// Preempts the running request with the worst rank.
    fn preempt(&mut self) {
        if let Some(&rank) = self.running.keys().next_back() {
            self.put_back(rank);
            self.totals.n_preemptions += 1;
        }
    }

    fn put_back(&mut self, rank: Rank) {
        if let Some(mut request) = self.running.remove(&rank) {
            for sequence in &mut request.sequences {
                sequence.table.truncate(0);
            }
            self.waiting.insert(rank, request);
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
