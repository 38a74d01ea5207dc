//! Schedules steps: which requests run, how many tokens of each sequence are computed, and which request is preempted.
//!
//! It uses no tensors, clock, channels or token ids: the input is counts and page tables, the output a [`Step`], so
//! that tests can simulate whole workloads. Time is measured in steps.
//!
//! A *tenant* is the sender of a request ([`TenantId`]): an API key, or the address of a client. The places of the
//! batch are divided among tenants first, and then among each tenant's requests.
//!
//! The rules:
//! - A tenant's requests are ranked by their step of arrival plus [`AGEING_STEPS`] per level of `priority`, then by
//!   number: first come, first served within a priority, and one level is worth that many steps of waiting. The rank
//!   never changes.
//! - Tenants take places in rounds, one place each, as cards are dealt: a request stands in the round that is the number
//!   of places that its tenant's better requests take. Within a round, tenants stand in the order of their turns. A tenant
//!   gets the last turn when it sends a request while it has none, and again when its best running request ends.
//! - A waiting request starts if no other one stands before it, if the batch has places for all the sequences it may grow
//!   into, and if there are pages for all known tokens of all running requests including it, plus one page per running
//!   sequence. No pages are reserved for future tokens. A request with an adapter also waits while running requests use
//!   the maximum number of other adapters; requests behind it wait too, so that it is not overtaken for ever.
//! - If it cannot start, running requests of other tenants that stand in later rounds are preempted for it, the last one
//!   first, unless it could not start even then. Among equals nobody is preempted, so this does not go back and forth.
//! - If there are too few pages for a step, the running request that stands last is preempted. A preempted request
//!   releases its pages and waits again. Its tokens are kept and recomputed later.
//! - When a request with several sequences is recomputed, the first sequence is computed first, and the others share
//!   the full pages that they have in common with it, at least those of the prompt: they need no more pages than
//!   before.
//! - A step computes decoding sequences first, then prefills in the order in which they stand with the rest of the
//!   token budget. A prefill leaves half of the rest to the requests behind it, as far as they need it, so that a short
//!   prompt does not wait for the end of a long one.
//! - A held request, which waits for its grammar, takes no part in steps. It keeps its rank, its place and, unless a
//!   better request needs them, its pages.
//! - With recurrent layers, a sequence also has a state. The prefix cache keeps its state at some positions: at the
//!   last page boundary of each prompt and of each of its messages, every [`Limits::tokens_per_state`] tokens of a long
//!   prompt, and at the last page boundary of the generated tokens (with drafts, only every fourth boundary counts). A
//!   chunk ends at the next of these positions.
//! - With an encoder before the model, a prompt begins with its source, whose cached pages are used all or not at all.
//! - With [`Limits::whole_prompts`], a prompt is computed in one step, or waits for the next.
//! - The remaining room may be used for draft tokens of decoding sequences. They do not affect the rules above, and
//!   pages of rejected ones are free again after the step.
//!
//! # No tenant waits for another's queue
//! A tenant's only request starts in the next step, however many requests others have queued or run, if the best
//! request of each of them leaves places, pages and an adapter for it. From then on it takes part in every step.
//! Prompts of `k` other tenants leave it a share of at least `1 / 2^(k + 1)` of the tokens that are not decoded. So
//! next to one other tenant, a request for two tokens has them after `1 + n_prompt / s` steps, rounded up, where `s` is
//! a quarter of `max_batch_tokens - max_batch_size`. If the best requests of the others leave too little, it is next
//! when the best one of each has ended.
//!
//! # Nothing starves
//! The running request that stands first, if it is not held, computes at least one token in every step and is never
//! preempted, unless its own tenant starts one with a better rank (a request that could not run alone is rejected
//! earlier). So once it runs, it ends after at most `n_prompt + max_tokens` steps, its number of tokens, and its tenant
//! gets the last turn. So each tenant's best request gets to be first: before it, each other tenant has at most one turn.
//!
//! Within a tenant that is alone, the wait of a request, in steps, is at most the number of tokens of all requests that
//! have a better rank or arrived earlier. The tokens of each of these are counted once more for every request that may
//! preempt it, which is one with a better rank that arrived later. Requests of equal priority do not preempt earlier
//! ones, so there the wait is at most the number of tokens of earlier requests. Requests of priority `p'` that arrive more
//! than `AGEING_STEPS * (p - p')` steps after one of priority `p` do not delay it, even if `p'` is better. Beside `k`
//! other tenants, a turn of each of them may come before each of its tenant's turns.

mod arrival;
mod request;
mod standing;
mod step;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use hearth_model::gpt::kv_cache::{PAGE_SIZE, PageKey, PagePool, PageTable};

pub use self::{
    arrival::{Arrival, Limits, RequestId, SequenceId, TOKENS_PER_STATE, most_pages},
    step::{Chunk, Step},
};
use self::{
    request::{Rank, ScheduledRequest, ScheduledSequence},
    standing::Tenant,
    step::DRAFTED_TOKENS_PER_STATE,
};
use crate::{observer::Totals, tenant::TenantId};

/// Number of steps of waiting that one priority level is worth.
pub const AGEING_STEPS: i64 = 128;

/// The scheduler's state.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    ranks: HashMap<RequestId, (TenantId, Rank)>,
    /// Tenants that have requests.
    tenants: BTreeMap<TenantId, Tenant>,
    running: BTreeMap<Rank, ScheduledRequest>,
    /// Number of turns given to tenants so far.
    n_turns: u64,
    /// Number of requests with an adapter.
    n_adapted: usize,
    n_steps: i64,
    totals: Totals,
}

impl Scheduler {
    /// A scheduler without requests. `pool` has the pages of the KV cache.
    pub fn new(limits: Limits, pool: PagePool) -> Self {
        Self {
            limits,
            pool,
            ranks: HashMap::new(),
            tenants: BTreeMap::new(),
            running: BTreeMap::new(),
            n_turns: 0,
            n_adapted: 0,
            n_steps: 0,
            totals: Totals::default(),
        }
    }

    /// Adds a request to the queue.
    pub fn add(&mut self, id: RequestId, arrival: Arrival) {
        let Arrival { n_prompt, n_source, width, tenant, priority, keys, state_places, uses_prefix_cache, adapter } =
            arrival;
        let rank = Rank { due: self.n_steps + i64::from(priority) * AGEING_STEPS, id };
        let sequence = ScheduledSequence {
            table: self.pool.table(),
            n_prompt,
            n_tokens: n_prompt,
            keys: Arc::new(keys),
            state_places: state_places.into(),
            last_kept: None,
        };
        self.ranks.insert(id, (tenant, rank));
        self.n_adapted += usize::from(adapter.is_some());
        let sequences = vec![sequence];
        self.wait(
            rank,
            ScheduledRequest {
                tenant,
                width,
                n_source,
                is_held: false,
                uses_prefix_cache,
                adapter,
                n_cached: None,
                sequences,
            },
        );
    }

    /// Adds a request `child` that continues from the position of `parent`, shares the parent's pages and is ranked as
    /// if it had arrived in the same step. If the batch has no place, or a better request waits, it joins the queue and
    /// uses the prefix cache.
    pub fn fork(&mut self, parent: RequestId, child: RequestId) {
        let Some(&(tenant, parent_rank)) = self.ranks.get(&parent) else { return };
        let Some(request) = self.request(parent) else { return };
        let rank = Rank { id: child, ..parent_rank };
        let is_next = self
            .standing_to_start(tenant, rank)
            .is_some_and(|standing| self.next_to_start().is_none_or(|(next, _)| standing < next));
        let starts = is_next && self.n_places_taken() < self.limits.max_batch_size;
        let copies = request.sequences.iter().map(|sequence| {
            let mut copy = sequence.fork();
            if !starts {
                copy.table.truncate(0);
            }
            copy
        });
        // The parent reports cached tokens of the common prompt.
        let child_request = ScheduledRequest {
            tenant,
            width: 1,
            n_source: request.n_source,
            is_held: false,
            uses_prefix_cache: true,
            adapter: request.adapter.clone(),
            n_cached: Some(0),
            sequences: copies.collect(),
        };
        self.ranks.insert(child, (tenant, rank));
        self.n_adapted += usize::from(child_request.adapter.is_some());
        if starts { self.run(rank, child_request) } else { self.wait(rank, child_request) }
    }

    /// Adds a token to a sequence. `key` is the key of its last page, if the token fills it.
    pub fn push_token(&mut self, id: SequenceId, key: Option<PageKey>) {
        if let Some(request) = self.request_mut(id.request) {
            request.uses_prefix_cache = true;
        }
        if let Some(sequence) = self.sequence_mut(id) {
            sequence.n_tokens += 1;
            sequence.add_page_key(key);
        }
    }

    /// Replaces a running request's sequences: each entry extends the sequence with that index by a token; several may
    /// extend the same one. `key` as in [`push_token`](Self::push_token).
    pub fn branch(&mut self, id: RequestId, parents: &[(usize, Option<PageKey>)]) {
        let Some(request) = self.ranks.get(&id).and_then(|(_, rank)| self.running.get_mut(rank)) else { return };
        let branches = parents.iter().filter_map(|&(parent, key)| {
            let sequence = request.sequences.get(parent)?;
            let mut branch = sequence.fork();
            branch.n_tokens += 1;
            branch.add_page_key(key);
            Some(branch)
        });
        request.sequences = branches.collect();
    }

    /// Excludes a request from steps until it is [released](Self::release).
    pub fn hold(&mut self, id: RequestId) {
        if let Some(request) = self.request_mut(id) {
            request.is_held = true;
        }
    }

    /// Includes a request that was [held](Self::hold) in steps again.
    pub fn release(&mut self, id: RequestId) {
        if let Some(request) = self.request_mut(id) {
            request.is_held = false;
        }
    }

    /// Removes a finished or cancelled request, and releases its pages. Ignores unknown ids.
    pub fn remove(&mut self, id: RequestId) {
        let Some((tenant_id, rank)) = self.ranks.remove(&id) else { return };
        let mut of_tenant = self.running.iter().filter(|(_, request)| request.tenant == tenant_id);
        let was_best = of_tenant.next().is_some_and(|(best, _)| *best == rank);
        let removed = self.take_running(rank);
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else { return };
        if was_best {
            self.n_turns += 1;
            tenant.turn = self.n_turns;
        }
        let removed = removed.or_else(|| tenant.waiting.remove(&rank));
        if tenant.waiting.is_empty() && tenant.n_places == 0 {
            self.tenants.remove(&tenant_id);
        }
        self.n_adapted -= usize::from(removed.is_some_and(|request| request.adapter.is_some()));
    }

    /// The next step. Empty, and not counted, if no request can run.
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
            self.preempt_last();
            step = self.plan();
        }
        // A tenant with fewer places than others does not wait until pages are free.
        while self.next_may_preempt() && self.admit() {
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
        for chunk in step.chunks.iter_mut().filter(|chunk| chunk.may_have_drafts()) {
            let end = chunk.start + chunk.n_tokens;
            // The rest of the last page is available too.
            let room_in_pages = end.next_multiple_of(PAGE_SIZE) - end + free * PAGE_SIZE;
            let until_state = match self.pool.has_states() {
                true => end.next_multiple_of(DRAFTED_TOKENS_PER_STATE) - end,
                false => usize::MAX,
            };
            let n_drafts = offered(chunk.id).min(room).min(room_in_pages).min(until_state);
            room -= n_drafts;
            free -= (end + n_drafts).div_ceil(PAGE_SIZE) - end.div_ceil(PAGE_SIZE);
            chunk.n_drafts = n_drafts;
            chunk.n_tokens += n_drafts;
        }
    }

    /// The page tables of a step's sequences, in the order of its chunks. Tables of sequences with drafts are marked,
    /// so that rejected drafts can be rolled back.
    pub fn tables(&mut self, step: &Step) -> Vec<&mut PageTable> {
        let mut tables = HashMap::new();
        for (rank, request) in &mut self.running {
            for (branch, sequence) in request.sequences.iter_mut().enumerate() {
                tables.insert(SequenceId { request: rank.id, branch }, &mut sequence.table);
            }
        }
        let of_chunk = |chunk: &Chunk| {
            let table = tables.remove(&chunk.id)?;
            if chunk.n_drafts > 0 {
                table.mark();
            }
            Some(table)
        };
        step.chunks.iter().filter_map(of_chunk).collect()
    }

    /// Records that `step` was computed: full pages are added to the prefix cache. Requests that ended meanwhile are
    /// ignored.
    pub fn advance(&mut self, step: &Step) {
        let tokens_per_state = self.limits.tokens_per_state;
        for chunk in &step.chunks {
            if let Some(sequence) = self.sequence_mut(chunk.id) {
                sequence.keep_from(chunk.start);
                if chunk.n_drafts == 0 {
                    sequence.keep_state(tokens_per_state);
                }
            }
        }
    }

    /// Removes rejected drafts of a step, once its tokens are known. A sequence with a state is rolled back to before
    /// the step if any were rejected; its accepted tokens are recomputed.
    pub fn roll_back(&mut self, step: &Step) {
        let tokens_per_state = self.limits.tokens_per_state;
        for chunk in step.chunks.iter().filter(|chunk| chunk.n_drafts > 0) {
            let Some(sequence) = self.sequence_mut(chunk.id) else { continue };
            // The last token has not been computed yet.
            sequence.table.truncate(sequence.n_tokens - 1);
            sequence.table.unmark();
            sequence.keep_from(chunk.start);
            sequence.keep_state(tokens_per_state);
        }
    }

    /// The keys of a sequence's full pages, as far as they are known; none for unknown ids.
    pub fn page_keys(&self, id: SequenceId) -> &[PageKey] {
        let sequence = self.request(id.request).and_then(|request| request.sequences.get(id.branch));
        sequence.map_or(&[], |sequence| &sequence.keys)
    }

    /// Number of requests in the queue.
    pub fn n_waiting(&self) -> usize {
        self.tenants.values().map(|tenant| tenant.waiting.len()).sum()
    }

    /// Number of places in the batch that running requests take: the sum of their maximum numbers of sequences.
    pub fn n_places_taken(&self) -> usize {
        self.running.values().map(|request| request.width).sum()
    }

    /// The names of the adapters of running and of waiting requests.
    pub fn adapters(&self) -> [Vec<Arc<str>>; 2] {
        if self.n_adapted == 0 {
            // Called after every step, and the queue may be long.
            return <[_; 2]>::default();
        }
        fn names<'a>(requests: impl Iterator<Item = &'a ScheduledRequest>) -> Vec<Arc<str>> {
            let adapters = requests.filter_map(|request| request.adapter.as_ref());
            let names: BTreeSet<_> = adapters.map(|adapter| &adapter.name).collect();
            names.into_iter().cloned().collect()
        }
        let waiting = self.tenants.values().flat_map(|tenant| tenant.waiting.values());
        [names(self.running.values()), names(waiting)]
    }

    /// Number of a request's prompt tokens found in the prefix cache when it started; `None` before.
    pub fn n_cached(&self, id: RequestId) -> Option<usize> {
        self.request(id)?.n_cached
    }

    /// Counts of preemptions and prefix-cache hits so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Option<&mut ScheduledSequence> {
        self.request_mut(id.request)?.sequences.get_mut(id.branch)
    }

    fn request(&self, id: RequestId) -> Option<&ScheduledRequest> {
        let (tenant, rank) = self.ranks.get(&id)?;
        self.running.get(rank).or_else(|| self.tenants.get(tenant)?.waiting.get(rank))
    }

    fn request_mut(&mut self, id: RequestId) -> Option<&mut ScheduledRequest> {
        let (tenant, rank) = self.ranks.get(&id)?;
        self.running.get_mut(rank).or_else(|| self.tenants.get_mut(tenant)?.waiting.get_mut(rank))
    }

    fn running_sequences(&self) -> impl Iterator<Item = (SequenceId, &ScheduledSequence)> {
        self.running.iter().flat_map(|(rank, request)| request.named_sequences(rank))
    }

    /// The running sequences that can take part in a step, in the order in which their requests stand. Excludes held
    /// requests, and sequences that wait to share pages with the first sequence of their request.
    fn schedulable_sequences(&self) -> Vec<(SequenceId, &ScheduledSequence)> {
        let standings = self.standings();
        let running = standings.iter().filter_map(|standing| self.running.get_key_value(&standing.rank));
        let not_held = running.filter(|(_, request)| !request.is_held);
        let sequences = not_held.flat_map(|(rank, request)| {
            request.named_sequences(rank).filter(|(id, _)| request.n_shareable(id.branch) == 0)
        });
        sequences.collect()
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
        let sequences = self.schedulable_sequences();
        for &(id, sequence) in sequences.iter().filter(|(_, sequence)| sequence.remaining() == 1) {
            budget -= plan(id, sequence, budget.min(1));
        }
        let prefilling = || sequences.iter().copied().filter(|(_, sequence)| sequence.remaining() > 1);
        let mut behind: usize = prefilling().map(|(_, sequence)| sequence.remaining()).sum();
        for (id, sequence) in prefilling() {
            behind -= sequence.remaining();
            if self.limits.whole_prompts {
                let fits = sequence.remaining() <= budget;
                budget -= plan(id, sequence, if fits { sequence.remaining() } else { 0 });
                continue;
            }
            let share = budget.div_ceil(2).max(budget.saturating_sub(behind));
            let most = sequence.until_kept_state(self.limits.tokens_per_state).unwrap_or(share).min(share);
            budget -= plan(id, sequence, sequence.remaining().min(most));
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

    /// Starts the waiting request that stands first, if possible.
    fn admit(&mut self) -> bool {
        let Some((standing, tenant)) = self.next_to_start() else { return false };
        if self.try_to_start(tenant, standing.rank) {
            return true;
        }
        let behind = self.running_behind(standing, tenant);
        if behind.is_empty() || !self.has_room_without(&behind, tenant, standing.rank) {
            return false;
        }
        behind.into_iter().rev().any(|rank| {
            self.preempt(rank);
            self.try_to_start(tenant, standing.rank)
        })
    }

    /// Whether a waiting request could start if the requests `without` did not run. Shared pages are counted once per
    /// sequence, so the result may be false although there is room.
    fn has_room_without(&self, without: &[Rank], tenant: TenantId, rank: Rank) -> bool {
        let waiting = self.tenants.get(&tenant).and_then(|tenant| tenant.waiting.get(&rank));
        let without: BTreeSet<_> = without.iter().collect();
        let others = self.running.iter().filter(|(rank, _)| !without.contains(rank)).map(|(_, request)| request);
        let requests: Vec<&ScheduledRequest> = others.chain(waiting).collect();
        let adapters: BTreeSet<_> = requests.iter().filter_map(|request| request.adapter.as_ref()).collect();
        let sequences = requests.iter().flat_map(|request| &request.sequences);
        // One to spare for each.
        let n_pages: usize = sequences.map(|sequence| sequence.n_tokens.div_ceil(PAGE_SIZE) + 1).sum();
        requests.iter().map(|request| request.width).sum::<usize>() <= self.limits.max_batch_size
            && adapters.len() <= self.limits.max_adapters
            && n_pages <= self.pool.n_pages()
    }

    /// Starts a waiting request if there are places, pages and an adapter for it.
    fn try_to_start(&mut self, tenant: TenantId, rank: Rank) -> bool {
        let n_taken = self.n_places_taken();
        let Some(waiting) = self.tenants.get_mut(&tenant).map(|tenant| &mut tenant.waiting) else { return false };
        let Some(next) = waiting.get(&rank) else { return false };
        if n_taken + next.width > self.limits.max_batch_size {
            return false;
        }
        if let Some(adapter) = &next.adapter {
            let running: BTreeSet<_> = self.running.values().filter_map(|request| request.adapter.as_ref()).collect();
            if !running.contains(adapter) && running.len() >= self.limits.max_adapters {
                return false;
            }
        }
        let Some(mut request) = waiting.remove(&rank) else { return false };
        let (mut n_asked, mut n_shared) = (0, 0);
        if request.uses_prefix_cache
            && let Some(first) = request.sequences.first_mut()
        {
            // At least one token must be computed, to get logits.
            let usable = first.n_tokens.saturating_sub(1) / PAGE_SIZE;
            n_asked = first.n_tokens;
            n_shared = first.table.share_kept(first.keys.get(..usable).unwrap_or(&first.keys));
            if n_shared < request.n_source {
                first.table.truncate(0);
                n_shared = 0;
            }
        }
        let is_alone = self.running.is_empty();
        self.run(rank, request);
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
            sequences.map(|(branch, sequence)| (&sequence.table, sequence.remaining() - request.n_shareable(branch)))
        });
        self.pool.pages_needed(known) + self.running_sequences().count()
    }

    /// Preempts the running request that stands last.
    fn preempt_last(&mut self) {
        if let Some(last) = self.standings().last() {
            self.preempt(last.rank);
        }
    }

    fn preempt(&mut self, rank: Rank) {
        self.put_back(rank);
        self.totals.n_preemptions += 1;
    }

    fn put_back(&mut self, rank: Rank) {
        if let Some(mut request) = self.take_running(rank) {
            for sequence in &mut request.sequences {
                sequence.table.truncate(0);
            }
            self.wait(rank, request);
        }
    }
}

#[cfg(test)]
mod tests;
