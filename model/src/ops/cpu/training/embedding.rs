//! Embedding lookup.

use burn::backend::flex::FlexTensor;

use super::{dims, tensor, values};
use crate::ops::{cpu::thread_pool, training::TrainingOp};

/// Columns of the table per task.
const COLUMNS: usize = 64;

/// Input: the table `[n_entries, width]`. Output: the rows `ids`, `[ids.len(), width]`.
#[derive(Debug)]
pub(in crate::ops) struct Embed {
    /// Each is below `n_entries`.
    pub(in crate::ops) ids: Vec<i32>,
}

impl Embed {
    fn rows(&self) -> impl Iterator<Item = usize> {
        self.ids.iter().map(|&id| usize::try_from(id).unwrap_or(usize::MAX))
    }
}

impl TrainingOp<FlexTensor> for Embed {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let [n_entries, width] = dims(&inputs[0]);
        let table = values(&inputs[0]);
        let mut output = Vec::with_capacity(self.ids.len() * width);
        for row in self.rows() {
            assert!(row < n_entries, "id {row} of a table of {n_entries}");
            output.extend_from_slice(&table[row * width..][..width]);
        }
        (tensor(output, [self.ids.len(), width]), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: &[FlexTensor],
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [n_entries, width] = dims(&inputs[0]);
        let gradient = values(gradient);
        let mut output = vec![0.0; n_entries * width];
        let shared = thread_pool::SharedMut::new(&mut output);
        // Each task has its own columns and visits all rows in order.
        thread_pool::parallel_for(width.div_ceil(COLUMNS), |piece| {
            let columns = piece * COLUMNS..width.min((piece + 1) * COLUMNS);
            for (n, row) in self.rows().enumerate() {
                #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
                // SAFETY: no other task has these columns.
                let sum = unsafe { shared.part(row * width + columns.start..row * width + columns.end) };
                let added = &gradient[n * width + columns.start..][..columns.len()];
                sum.iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
            }
        });
        vec![Some(tensor(output, [n_entries, width]))]
    }
}
