//! Packs texts into the steps of a runner, and passes the rows to whoever needs them.

use anyhow::Result;
use hearth_model::{
    TokenId,
    decode::model_runner::{ModelRunner, StepOutput},
    gpt::kv_cache::{PageTable, StepPart},
};

/// Rows of a step: enough for the kernels of matrices to be bound by arithmetic.
pub(super) const ROWS_PER_STEP: usize = 1024;

/// A text, or the rest of one whose beginning is in the cache.
#[derive(Debug)]
pub(super) struct PackedText<'a> {
    pub(super) table: PageTable,
    /// The tokens to append.
    pub(super) ids: &'a [TokenId],
    /// Where the tokens of the second text of a pair begin, if it is one.
    pub(super) second_text: Option<usize>,
}

/// Rows of a step that belong to one text.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedRows {
    /// The index of the text.
    pub(super) text: usize,
    /// The first row in the step.
    pub(super) row: usize,
    /// The index of the first row's token in the text's `ids`.
    pub(super) start: usize,
    /// Number of rows.
    pub(super) n_rows: usize,
}

/// Receives the output of a step, and its rows.
type TakeStep<'a> = dyn FnMut(&ModelRunner, &StepOutput, &[PackedRows]) -> Result<()> + 'a;

/// Appends the tokens of all texts, in steps of at most `rows_per_step` rows, and passes each step to `take`.
pub(super) fn run(
    runner: &mut ModelRunner,
    texts: &mut [PackedText<'_>],
    rows_per_step: usize,
    take: &mut TakeStep<'_>,
) -> Result<()> {
    let mut n_done = vec![0; texts.len()];
    loop {
        let (mut token_ids, mut rows, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (at, text) in texts.iter_mut().enumerate() {
            let start = n_done[at];
            let n_rows = (text.ids.len() - start).min(rows_per_step - token_ids.len());
            if n_rows > 0 {
                rows.push(PackedRows { text: at, row: token_ids.len(), start, n_rows });
                token_ids.extend_from_slice(&text.ids[start..start + n_rows]);
                parts.push(StepPart {
                    table: &mut text.table,
                    n_new: n_rows,
                    adapter: None,
                    second_text: text.second_text,
                    n_hidden: 0,
                    source_len: 0,
                });
                n_done[at] += n_rows;
            }
        }
        if token_ids.is_empty() {
            return Ok(());
        }
        let output = runner.step(&token_ids, &mut parts)?;
        take(runner, &output, &rows)?;
    }
}

/// Consecutive items that are computed together: they fill a step twice, so that only the last step may be small.
pub(super) fn batches<T>(items: &[T], rows_per_step: usize, n_rows_of: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut batches, mut start, mut n_rows) = (Vec::new(), 0, 0);
    for (at, item) in items.iter().enumerate() {
        if at > start && n_rows + n_rows_of(item) > 2 * rows_per_step {
            batches.push(&items[start..at]);
            (start, n_rows) = (at, 0);
        }
        n_rows += n_rows_of(item);
    }
    if start < items.len() {
        batches.push(&items[start..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_take_items_for_two_steps_unless_one_item_is_larger() {
        let found = batches(&[3, 4, 5, 30, 1, 1], 6, |&n| n);
        assert_eq!(found, [&[3, 4, 5][..], &[30], &[1, 1]]);
        assert!(batches(&[], 6, |&n: &usize| n).is_empty());
    }
}
