//! The next step of greedy texts, launched before the host has read the tokens of the last one.
//!
//! Otherwise a GPU idles while the host reads tokens and prepares the next step. Where each row is read for its most likely token
//! alone, the next step's inputs are known but for the token ids, and these are in the GPU's memory. So the next step of the same
//! rows is launched, with these ids, before the host waits for them. If the next step that is asked for has the same inputs, number
//! by number, its result is there already. Otherwise it is not used: it has only written keys and values behind the end of each
//! text, where nothing is read before it is written again.

use super::StepOutput;
use crate::{
    TokenId,
    gpt::{
        Gpt,
        forward_pass::{AttentionContext, ForwardPass},
        kv_cache::{KvCache, StepPart},
    },
    ops::{Ints, Upload, packed},
};

/// The inputs of the step that probably comes next.
#[derive(Debug)]
pub(super) struct NextStep {
    /// The sizes of its launches.
    pub(super) sizes: Vec<usize>,
    /// Its inputs as they are staged, with 0 for each token id.
    pub(super) numbers: Vec<i32>,
    pub(super) n_rows: usize,
}

/// A step that was launched before it was asked for.
#[derive(Debug)]
pub(super) struct StepAhead {
    inputs: NextStep,
    output: StepOutput,
}

impl NextStep {
    /// One more token for each of `parts`, which have got one each. `None` if a text needs another page or position for it, or the
    /// step cannot be captured.
    pub(super) fn after(gpt: &Gpt, cache: &mut KvCache, parts: &mut [StepPart<'_>]) -> Option<Self> {
        let (config, device) = (gpt.config(), gpt.device());
        let n_positions = if config.positions.are_learned() { config.max_seq_len } else { usize::MAX };
        let has_room =
            |part: &StepPart<'_>| part.n_new == 1 && part.table.len() < n_positions && part.table.has_room_of_its_own();
        if !parts.iter().all(has_room) {
            return None;
        }
        let step = cache.step(parts).ok()?;
        let pass = ForwardPass::new(config, AttentionContext::Paged(step), &device);
        let ids = Ints::new(vec![0; parts.len()], &device);
        let next = pass.uploads().map(|(uploads, sizes)| {
            let all: Vec<Upload<'_>> = std::iter::once(Upload::Ints(&ids)).chain(uploads).collect();
            Self { sizes, numbers: packed(&all), n_rows: parts.len() }
        });
        drop(pass);
        parts.iter_mut().for_each(|part| part.table.truncate(part.table.len() - 1));
        next
    }

    /// The same step launched, with its result.
    pub(super) fn launched(self, output: StepOutput) -> StepAhead {
        StepAhead { inputs: self, output }
    }
}

impl StepAhead {
    /// With the token ids that it has computed with.
    pub(super) fn with_ids(mut self, ids: &[TokenId]) -> Self {
        for (number, &id) in self.inputs.numbers.iter_mut().zip(ids) {
            *number = id as i32;
        }
        self
    }

    /// Its result, if it is the step with these inputs.
    pub(super) fn output_for(self, sizes: &[usize], numbers: &[i32]) -> Option<StepOutput> {
        (self.inputs.sizes == sizes && self.inputs.numbers == numbers).then_some(self.output)
    }
}
