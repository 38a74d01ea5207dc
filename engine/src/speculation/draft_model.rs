//! Drafts by a smaller model with the same vocabulary. It samples with a copy of the sequence's own sampler and random
//! stream: if both models have similar distributions, the same random number gives the same token.

use std::collections::HashMap;

use hearth_model::{
    Result, TokenId,
    decode::{
        model_runner::ModelRunner,
        sampling::{LogitDemand, Sampler},
    },
    gpt::kv_cache::{PageTable, StepPart},
};

use super::DraftJob;
use crate::scheduler::RequestId;

/// Maximum number of rows per pass when catching up with a prompt.
const MAX_ROWS: usize = 512;

/// Number of missing tokens that take about as long to compute as one.
const SHORT_LAG: usize = 4;

/// The draft model and its cache.
#[derive(Debug)]
pub(super) struct DraftModel {
    runner: ModelRunner,
    max_seq_len: usize,
    /// For each sequence, the tokens that the draft model has computed: a prefix of the sequence.
    tables: HashMap<RequestId, PageTable>,
    /// Whether the last draft did not have to catch up with a long text.
    is_steady: bool,
}

/// The drafting state of a sequence.
struct DraftState<'a> {
    job: DraftJob<'a>,
    table: PageTable,
    sampler: Sampler,
    token_ids: Vec<TokenId>,
    is_done: bool,
}

impl DraftState<'_> {
    /// Its next input: missing tokens of the text, or the last draft token.
    fn input(&self, room: usize) -> Vec<TokenId> {
        let (known, start) = (self.job.sequence.token_ids(), self.table.len());
        match start.checked_sub(known.len()) {
            None => known.range(start..known.len()).take(room).collect(),
            Some(start) => self.token_ids.get(start..).unwrap_or_default().to_vec(),
        }
    }

    fn is_caught_up(&self) -> bool {
        self.table.len() >= self.job.sequence.token_ids().len()
    }
}

impl DraftModel {
    pub(super) fn new(runner: ModelRunner, max_seq_len: usize) -> Self {
        Self { runner, max_seq_len, tables: HashMap::new(), is_steady: true }
    }

    /// Whether the last draft did not have to catch up with a long text.
    pub(super) fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// Drafts up to `n_tokens` tokens for each job, `room` in total. Sequences whose draft model has much text to catch
    /// up with get no drafts yet.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn draft(&mut self, jobs: Vec<DraftJob<'_>>, mut room: usize) -> Result<Vec<(RequestId, Vec<TokenId>)>> {
        self.is_steady = true;
        let mut states = Vec::new();
        for mut job in jobs {
            let n_known = job.sequence.token_ids().len();
            // The last draft token is not an input, so it may be one beyond the draft model's context.
            job.n_tokens = job.n_tokens.min(room).min((self.max_seq_len + 1).saturating_sub(n_known));
            if job.n_tokens == 0 || !job.sequence.token_ids().range(0..n_known).all(|id| self.knows(id)) {
                continue;
            }
            room -= job.n_tokens;
            let fresh = || self.runner.cache().table();
            let table = self.tables.remove(&job.id).unwrap_or_else(fresh);
            self.is_steady &= n_known - table.len() <= SHORT_LAG;
            let (sampler, token_ids) = (job.sequence.sampler().clone(), Vec::new());
            states.push(DraftState { job, table, sampler, token_ids, is_done: false });
        }
        self.make_room(&mut states);
        while self.round(&mut states)? {}
        let mut drafted = Vec::new();
        for DraftState { job, table, token_ids, .. } in states {
            self.tables.insert(job.id, table);
            drafted.push((job.id, token_ids));
        }
        drafted.retain(|(_, token_ids)| !token_ids.is_empty());
        Ok(drafted)
    }

    /// Removes rejected drafts: keeps the first `n_known` computed tokens.
    pub(super) fn roll_back(&mut self, id: RequestId, n_known: usize) {
        if let Some(table) = self.tables.get_mut(&id) {
            table.truncate(n_known);
        }
    }

    pub(super) fn forget(&mut self, id: RequestId) {
        self.tables.remove(&id);
    }

    fn knows(&self, id: TokenId) -> bool {
        (id as usize) < self.runner.gpt().config().vocab_size
    }

    /// Frees pages for all drafts, and skips sequences for which there are too few.
    fn make_room(&mut self, states: &mut [DraftState<'_>]) {
        let pages_needed = |state: &DraftState<'_>| {
            let n_tokens = state.job.sequence.token_ids().len() + state.job.n_tokens - 1;
            state.table.pages_needed(n_tokens.saturating_sub(state.table.len()))
        };
        let pool = self.runner.cache().pool().clone();
        if states.iter().map(&pages_needed).sum::<usize>() > pool.n_free() {
            // Drops sequences outside this step, which can be recomputed.
            self.tables.clear();
        }
        let mut free = pool.n_free();
        for state in states {
            let needed = pages_needed(state);
            state.is_done = needed > free;
            free = free.saturating_sub(if state.is_done { 0 } else { needed });
        }
    }

    /// Runs one forward pass for all sequences that need it; returns `false` if none does.
    fn round(&mut self, states: &mut [DraftState<'_>]) -> Result<bool> {
        let mut room = MAX_ROWS;
        let (mut parts, mut ends, mut in_round, mut needs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut step_ids = Vec::new();
        for (index, state) in states.iter_mut().enumerate().filter(|(_, state)| !state.is_done) {
            let token_ids = state.input(room);
            if token_ids.is_empty() {
                // Earlier sequences use all rows of this pass, so this one gets no drafts in this step.
                state.is_done = true;
                continue;
            }
            room -= token_ids.len();
            step_ids.extend_from_slice(&token_ids);
            ends.push(step_ids.len() - 1);
            in_round.push(index);
            needs.push(if self.runner.reads_parts() {
                state.job.sequence.draft_needs(&state.sampler, state.token_ids.len())
            } else {
                LogitDemand::Whole
            });
            parts.push(StepPart::new(&mut state.table, token_ids.len()));
        }
        if parts.is_empty() {
            return Ok(false);
        }
        let output = self.runner.step(&step_ids, &mut parts)?;
        let logits = self.runner.read_logits(&output, &ends, &needs)?;
        for (index, logits) in in_round.into_iter().zip(logits.iter()) {
            let Some(state) = states.get_mut(index) else { continue };
            if !state.is_caught_up() {
                // The rest of a long text is computed in the next step.
                state.is_done = true;
                continue;
            }
            match state.job.sequence.sample_draft(&mut state.sampler, state.token_ids.len(), &logits) {
                Some(id) => {
                    state.token_ids.push(id);
                    state.is_done = state.token_ids.len() == state.job.n_tokens || !self.knows(id);
                }
                None => state.is_done = true,
            }
        }
        Ok(true)
    }
}
