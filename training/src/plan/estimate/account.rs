//! Tracks a step's memory from operation to operation: the memory held, and its peak. Numbers are of f32 values.

use hearth_model::ops::RECOMPUTED_FROM;

/// The memory held, and its peak.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    held: usize,
    peak: usize,
}

impl Account {
    pub(super) fn take(&mut self, n_values: usize) {
        self.held = self.held.saturating_add(n_values);
        self.peak = self.peak.max(self.held);
    }

    pub(super) fn free(&mut self, n_values: usize) {
        debug_assert!(self.held >= n_values, "{n_values} of {}", self.held);
        self.held = self.held.saturating_sub(n_values);
    }

    /// Takes values that are freed before anything else is taken.
    pub(super) fn briefly(&mut self, n_values: usize) {
        self.take(n_values);
        self.free(n_values);
    }

    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

/// An operation on one activation, with parameters or without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Op {
    /// Values that the forward pass computes and only this operation holds, until its backward pass has ended.
    pub(super) kept: usize,
    /// Values of the gradient of its input.
    pub(super) of_input: usize,
    /// Values of the gradients of its parameters.
    pub(super) of_params: usize,
    /// Memory that backward uses and frees.
    pub(super) scratch: usize,
}

/// `op`, which needs its input of `input` values in the backward pass too. The input is kept; but if a norm or an
/// activation computed it from at least [`RECOMPUTED_FROM`] values (`recomputed_from`), it is recomputed instead.
pub(super) fn keeping(op: Op, input: usize, recomputed_from: Option<usize>) -> Op {
    match recomputed_from {
        Some(n_values) if n_values >= RECOMPUTED_FROM => Op { scratch: op.scratch + input, ..op },
        _ => Op { kept: op.kept + input, ..op },
    }
}

/// The forward pass of consecutive operations: their kept values.
pub(super) fn forward(account: &mut Account, ops: &[Op]) {
    ops.iter().for_each(|op| account.take(op.kept));
}

/// The backward pass of operations, last first. `freed` is the size of the gradient of the last output, or 0 if that stays
/// for other operations; returns the size of the gradient of the first input.
pub(super) fn backward(account: &mut Account, ops: &[Op], freed: usize) -> usize {
    let mut gradient = freed;
    for op in ops.iter().rev() {
        account.take(op.of_input + op.of_params);
        account.briefly(op.scratch);
        account.free(gradient + op.kept);
        gradient = op.of_input;
    }
    gradient
}
