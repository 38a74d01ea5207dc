//! Embedding lookup.

use std::collections::HashMap;

use burn::backend::flex::FlexTensor;

use super::{dims, tensor, values};
use crate::ops::{
    cpu::{
        tensors,
        thread_pool::{self, SharedMut},
    },
    types::TrainingOp,
};

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

    /// If the table is also the output matrix (tied embeddings), its gradient is large and must not exist twice.
    fn adds_to_gradient(&self) -> bool {
        true
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        sum: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [n_entries, width] = dims(&inputs[0]);
        let gradient = values(gradient);
        // The rows of an entry are added up first, and their sum is then added to the gradient from the output matrix.
        // With `optim.recompute` both gradients are computed separately and then added; this order gives the same bits.
        let mut entries = Vec::new();
        let mut numbers = HashMap::new();
        let mut number = |entry: usize| {
            *numbers.entry(entry).or_insert_with(|| {
                entries.push(entry);
                entries.len() - 1
            })
        };
        let row_numbers: Vec<usize> = self.rows().map(&mut number).collect();
        let mut sums = vec![0.0; entries.len() * width];
        let shared = SharedMut::new(&mut sums);
        // Each task has its own columns and visits all rows in order.
        thread_pool::parallel_for(width.div_ceil(COLUMNS), |piece| {
            let columns = piece * COLUMNS..width.min((piece + 1) * COLUMNS);
            for (n, number) in row_numbers.iter().enumerate() {
                #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
                // SAFETY: no other task has these columns.
                let sum = unsafe { shared.part(number * width + columns.start..number * width + columns.end) };
                let added = &gradient[n * width + columns.start..][..columns.len()];
                sum.iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
            }
        });
        let sum = sum.into_iter().next();
        let mut output = sum.map_or_else(|| tensor(vec![0.0; n_entries * width], [n_entries, width]), tensors::owning);
        let values = output.storage_mut::<f32>();
        for (entry, sum) in entries.into_iter().zip(sums.chunks_exact(width)) {
            values[entry * width..][..width].iter_mut().zip(sum).for_each(|(value, sum)| *value += sum);
        }
        vec![Some(output)]
    }
}
