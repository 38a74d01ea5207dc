//! Drafts by the served model's own prediction head. After each step the head computes the rows that the model has
//! computed, from their hidden states and the tokens that follow; then it continues from its own hidden states for the
//! length of the draft.
//!
//! The head has its own pages. If the beginning of a text was found in the prefix cache, the head sees only the rest.

use std::collections::HashMap;

use burn::tensor::{Device, Tensor};
use hearth_model::{
    Result, TokenId,
    decode::{
        model_runner::PredictionRunner,
        read_logits::read_logits,
        sampling::{LogitDemand, Sampler},
    },
    gpt::kv_cache::{PageTable, StepPart},
};

use super::{ComputedRows, DraftJob};
use crate::scheduler::RequestId;

/// The head, and its state for each sequence.
#[derive(Debug)]
pub(super) struct HeadDrafter {
    runner: PredictionRunner,
    /// Whether only parts of logits are read off the device.
    reads_parts: bool,
    states: HashMap<RequestId, HeadState>,
}

/// The rows of a sequence that the head has computed.
#[derive(Debug)]
struct HeadState {
    table: PageTable,
    /// The position of the first computed row.
    first: usize,
    /// The head's hidden state of the last row, `[1, d_model]`.
    last: Option<Tensor<2>>,
}

impl HeadState {
    /// The position after the last row.
    fn end(&self) -> usize {
        self.first + self.table.len()
    }
}

/// A sequence that gets drafts.
struct Drafting<'a> {
    job: DraftJob<'a>,
    state: HeadState,
    /// The head's hidden state, from which the next draft follows.
    hidden: Tensor<2>,
    sampler: Sampler,
    token_ids: Vec<TokenId>,
    is_done: bool,
}

impl HeadDrafter {
    pub(super) fn new(runner: PredictionRunner, device: &Device) -> Self {
        Self { runner, reads_parts: *device != Device::flex(), states: HashMap::new() }
    }

    pub(super) fn forget(&mut self, id: RequestId) {
        self.states.remove(&id);
    }

    /// Computes the rows of a step of the model, whose hidden states are `hidden [n_rows, d_model]`, up to the last row
    /// whose next token is known.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn follow(&mut self, computed: Vec<ComputedRows<'_>>, hidden: &Tensor<2>) -> Result<()> {
        let pool = self.runner.cache().pool().clone();
        let (mut next_ids, mut rows, mut followed) = (Vec::new(), Vec::new(), Vec::new());
        for ComputedRows { id, sequence, start, rows: of_step } in computed {
            let mut state =
                self.states.remove(&id).unwrap_or_else(|| HeadState { table: pool.table(), first: start, last: None });
            if state.end() < start {
                // The rows in between were not computed here, but found in the prefix cache.
                state = HeadState { table: pool.table(), first: start, last: None };
            }
            // Rows of rejected drafts, and the last token's row, have no next token yet.
            let end = (start + of_step.len()).min(sequence.token_ids().len() - 1);
            let begin = state.end().max(start).min(end);
            next_ids.extend(sequence.token_ids().range(begin + 1..end + 1));
            rows.push(of_step.start + begin - start..of_step.start + end - start);
            followed.push((id, state, end - begin));
        }
        let room = |followed: &[(RequestId, HeadState, usize)]| {
            pool.pages_needed(followed.iter().map(|(_, state, n_new)| (&state.table, *n_new))) <= pool.n_free()
        };
        if !room(&followed) {
            // Sequences outside this step must start anew with their next rows.
            self.states.clear();
        }
        if next_ids.is_empty() || !room(&followed) {
            self.states
                .extend(followed.into_iter().filter(|(.., n_new)| *n_new == 0).map(|(id, state, _)| (id, state)));
            return Ok(());
        }
        let pieces = rows.into_iter().filter(|rows| !rows.is_empty());
        let hidden = Tensor::cat(pieces.map(|rows| hidden.clone().narrow(0, rows.start, rows.len())).collect(), 0);
        let mut parts: Vec<_> = followed
            .iter_mut()
            .filter(|(.., n_new)| *n_new > 0)
            .map(|(_, state, n_new)| StepPart::new(&mut state.table, *n_new))
            .collect();
        let output = self.runner.step(&next_ids, hidden, &mut parts)?;
        let mut behind = 0;
        for (id, mut state, n_new) in followed {
            behind += n_new;
            if n_new > 0 {
                state.last = Some(output.clone().narrow(0, behind - 1, 1));
            }
            self.states.insert(id, state);
        }
        Ok(())
    }

    /// Drafts up to `n_tokens` tokens for each job, `room` in total.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn draft(&mut self, jobs: Vec<DraftJob<'_>>, mut room: usize) -> Result<Vec<(RequestId, Vec<TokenId>)>> {
        let mut free = self.runner.cache().pool().n_free();
        let mut drafting = Vec::new();
        for mut job in jobs {
            let n_known = job.sequence.token_ids().len();
            job.n_tokens = job.n_tokens.min(room);
            let is_there = |state: &HeadState| state.last.is_some() && state.end() + 1 == n_known;
            if job.n_tokens == 0 || !self.states.get(&job.id).is_some_and(is_there) {
                continue;
            }
            let Some(state) = self.states.remove(&job.id) else { continue };
            let needed = state.table.pages_needed(job.n_tokens - 1);
            let Some(hidden) = state.last.clone().filter(|_| needed <= free) else {
                self.states.insert(job.id, state);
                continue;
            };
            (room, free) = (room - job.n_tokens, free - needed);
            let sampler = job.sequence.sampler().clone();
            drafting.push(Drafting { job, state, hidden, sampler, token_ids: Vec::new(), is_done: false });
        }
        while self.sample(&mut drafting)? {
            self.advance(&mut drafting)?;
        }
        let mut drafted = Vec::new();
        for Drafting { job, mut state, token_ids, .. } in drafting {
            // Rows computed from the head's own hidden states are replaced by rows from the model's.
            state.table.truncate((job.sequence.token_ids().len() - 1) - state.first);
            self.states.insert(job.id, state);
            if !token_ids.is_empty() {
                drafted.push((job.id, token_ids));
            }
        }
        Ok(drafted)
    }

    /// Samples a token for each sequence that gets more; whether some get more after that.
    fn sample(&self, drafting: &mut [Drafting<'_>]) -> Result<bool> {
        let mut active: Vec<_> = drafting.iter_mut().filter(|drafting| !drafting.is_done).collect();
        if active.is_empty() {
            return Ok(false);
        }
        let needs = active.iter().map(|drafting| match self.reads_parts {
            true => drafting.job.sequence.draft_needs(&drafting.sampler, drafting.token_ids.len()),
            false => LogitDemand::Whole,
        });
        let needs: Vec<_> = needs.collect();
        let hidden = Tensor::cat(active.iter().map(|drafting| drafting.hidden.clone()).collect(), 0);
        let logits = read_logits(self.runner.head().logits(hidden), &needs)?;
        for (drafting, logits) in active.iter_mut().zip(logits.iter()) {
            let n_ahead = drafting.token_ids.len();
            let sampled = drafting.job.sequence.sample_draft(&mut drafting.sampler, n_ahead, &logits);
            drafting.token_ids.extend(sampled);
            drafting.is_done = sampled.is_none() || drafting.token_ids.len() == drafting.job.n_tokens;
        }
        Ok(drafting.iter().any(|drafting| !drafting.is_done))
    }

    /// Computes the head's row of the last token that was sampled, for each sequence that gets more.
    fn advance(&mut self, drafting: &mut [Drafting<'_>]) -> Result<()> {
        let mut active: Vec<_> = drafting.iter_mut().filter(|drafting| !drafting.is_done).collect();
        let next_ids: Vec<_> = active.iter().filter_map(|drafting| drafting.token_ids.last().copied()).collect();
        let hidden = Tensor::cat(active.iter().map(|drafting| drafting.hidden.clone()).collect(), 0);
        let mut parts: Vec<_> = active.iter_mut().map(|drafting| StepPart::new(&mut drafting.state.table, 1)).collect();
        let output = self.runner.step(&next_ids, hidden, &mut parts)?;
        for (row, drafting) in active.into_iter().enumerate() {
            drafting.hidden = output.clone().narrow(0, row, 1);
        }
        Ok(())
    }
}
