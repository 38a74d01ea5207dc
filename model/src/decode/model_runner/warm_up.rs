//! Compiling kernels before they are needed.

use std::collections::BTreeSet;

use burn::tensor::{DType, Tensor};

use super::{ModelRunner, StepOutput};
use crate::{
    decode::sampling::LogitDemand,
    error::Result,
    gpt::kv_cache::{PAGE_SIZE, PageTable, StepPart},
    ops::{Ints, StagingBuffer, Upload},
};

/// Numbers of rows that together use every kernel. On a GPU, kernels for few rows depend on the number of rows; from
/// 128 rows, matrix products use other kernels.
const WARM_UP_ROWS: [usize; 5] = [1, 2, 4, 8, 256];
/// Number of tokens that fill more than one attention tile, which uses further kernels.
const WARM_UP_CONTEXT: usize = 160;

impl ModelRunner {
    /// Compiles all kernels that steps of up to `max_batch_tokens` rows use on a GPU. Does nothing on the CPU.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) if the device fails.
    pub fn warm_up(&mut self, max_batch_tokens: usize) -> Result<()> {
        if !self.reads_parts() {
            return Ok(());
        }
        let context = self.gpt.config().max_seq_len.min(self.cache.n_pages() * PAGE_SIZE);
        let most = context.saturating_sub(1).min(max_batch_tokens);
        for n_rows in WARM_UP_ROWS.map(|n_rows| n_rows.min(most).max(1)) {
            let mut table = self.cache.table();
            let output = self.warm_up_step(&mut table, n_rows)?;
            self.warm_up_logits(&output, &(0..n_rows.min(9)).collect::<Vec<_>>())?;
            self.warm_up_logits(&output, &[n_rows - 1])?;
            self.read_hidden(&output, 0..1)?;
        }
        // A long prompt in several steps, the next tokens, and tokens of a fork, whose last page is copied.
        let mut table = self.cache.table();
        while table.len() < context.saturating_sub(PAGE_SIZE).min(WARM_UP_CONTEXT) {
            let n_rows = most.min(WARM_UP_CONTEXT + 1 - table.len());
            self.warm_up_step(&mut table, n_rows)?;
        }
        let mut fork = table.fork();
        // The ids of a step that is launched at once.
        let device = self.gpt.device();
        let ids = Ints::new(vec![0], &device);
        StagingBuffer::new(&[Upload::Ints(&ids)], &device).take_ids(Tensor::zeros([1, 2], (&device, DType::I32)));
        for table in [&mut fork, &mut table] {
            let output = self.warm_up_step(table, 1)?;
            // Reading the logits waits until the device has run all launches.
            self.warm_up_logits(&output, &[0])?;
        }
        Ok(())
    }

    /// Reads whole rows, and parts of rows with one pass and with several.
    fn warm_up_logits(&mut self, output: &StepOutput, rows: &[usize]) -> Result<()> {
        let best = |n| LogitDemand::Best { n, also: BTreeSet::new() };
        for needs in [LogitDemand::Whole, best(1), best(LogitDemand::MAX_BEST)] {
            self.read_logits(output, rows, &vec![needs; rows.len()])?;
        }
        Ok(())
    }

    fn warm_up_step(&mut self, table: &mut PageTable, n_rows: usize) -> Result<StepOutput> {
        self.step(&vec![0; n_rows], &mut [StepPart::new(table, n_rows)])
    }
}
