//! Inputs of recurrent layers: rows of sequences, each with a state, and the shapes of the operations.

use std::{iter::StepBy, ops::Range, sync::Arc};

use burn::tensor::Tensor;

/// Columns of a value head whose state lies together: `[k_dim, STATE_COLUMNS]` values that stay in L1 for many rows.
pub(in crate::ops) const STATE_COLUMNS: usize = 32;

/// Consecutive rows of one sequence or document. They follow one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentSpan {
    /// The rows of the step.
    pub(crate) rows: Range<usize>,
    /// Whether the span starts its sequence: the state before it is then zero, and not read.
    pub(crate) is_first: bool,
    /// The slot of the pool in which the sequence's state is kept. `None`: the state is dropped after the last row.
    pub(crate) slot: Option<usize>,
}

/// The rows of a step or of a batch, as recurrent layers see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentRows {
    spans: Arc<Vec<RecurrentSpan>>,
    n_rows: usize,
}

impl RecurrentRows {
    /// `batch` sequences of `seq_len` rows, one after the other, without states before or after them. With `positions`
    /// (`[batch * seq_len]`, the position of each row in its document), a row at 0 begins a new document.
    ///
    /// # Panics
    /// Unless there is a position for each row.
    pub(crate) fn dense(batch: usize, seq_len: usize, positions: Option<&[u32]>) -> Self {
        let n_rows = batch * seq_len;
        assert!(positions.is_none_or(|positions| positions.len() == n_rows), "a position for each of {n_rows} rows");
        let begins = |row: usize| row.is_multiple_of(seq_len) || positions.is_some_and(|positions| positions[row] == 0);
        let mut starts: Vec<_> = (0..n_rows).filter(|&row| begins(row)).collect();
        starts.push(n_rows);
        let span = |ends: &[usize]| RecurrentSpan { rows: ends[0]..ends[1], is_first: true, slot: None };
        Self { spans: Arc::new(starts.windows(2).map(span).collect()), n_rows }
    }

    /// Sequences of a step over a pool: for each the number of its rows, the position of the first of them, and its slot. A
    /// sequence at position 0 begins from zeros, whatever its slot contains.
    ///
    /// # Panics
    /// If two sequences share a slot, or one has no rows: bodies write states in parallel.
    pub(crate) fn stepped(sequences: impl IntoIterator<Item = (usize, usize, usize)>) -> Self {
        let mut n_rows = 0;
        let span = |(len, start, slot): (usize, usize, usize)| {
            assert!(len > 0, "a sequence without rows");
            n_rows += len;
            RecurrentSpan { rows: n_rows - len..n_rows, is_first: start == 0, slot: Some(slot) }
        };
        let spans: Vec<_> = sequences.into_iter().map(span).collect();
        let mut slots: Vec<_> = spans.iter().map(|span| span.slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "two sequences of a step share a slot");
        Self { spans: Arc::new(spans), n_rows }
    }

    /// The spans, in the order of their rows; together they have all rows.
    pub(crate) fn spans(&self) -> &[RecurrentSpan] {
        &self.spans
    }

    /// Rows of all spans.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }
}

/// Where the states of one operation are: in each slot of `pool [n_slots, slot_len]`, from value `first` on. Operations of
/// one layer share a pool.
#[derive(Debug)]
pub(crate) struct StatePart<'a> {
    pub(crate) pool: &'a mut Tensor<2>,
    pub(crate) first: usize,
}

/// A depthwise causal convolution over the rows of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct ShortConv {
    /// `[channels, kernel]`; the last column multiplies the row itself.
    pub(crate) weight: Tensor<2>,
    /// `[channels]`.
    pub(crate) bias: Option<Tensor<1>>,
    /// Whether SiLU is applied to the sum.
    pub(crate) has_silu: bool,
}

impl ShortConv {
    /// Values of a sequence's state: the inputs before the next row, `[kernel - 1, channels]`, the oldest first.
    pub(crate) fn state_len(channels: usize, kernel: usize) -> usize {
        (kernel - 1) * channels
    }
}

/// Heads of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentHeads {
    /// Heads of queries and keys (in Mamba-2: groups).
    pub(crate) n_k_heads: usize,
    /// Heads of values; a multiple of `n_k_heads`.
    pub(crate) n_v_heads: usize,
    /// Width of a query and of a key (in Mamba-2: `d_state`).
    pub(crate) k_dim: usize,
    /// Width of a value (in Mamba-2: `head_dim`).
    pub(crate) v_dim: usize,
    /// Whether every `n_k_heads`-th value head shares a key head, as in GGUF files; otherwise consecutive ones do.
    pub(crate) is_tiled: bool,
}

impl RecurrentHeads {
    /// Width of all queries, or of all keys.
    pub(crate) fn k_width(&self) -> usize {
        self.n_k_heads * self.k_dim
    }

    /// Width of all values, and of the output.
    pub(crate) fn v_width(&self) -> usize {
        self.n_v_heads * self.v_dim
    }

    /// Width of queries, keys and values side by side.
    pub(crate) fn width(&self) -> usize {
        2 * self.k_width() + self.v_width()
    }

    /// Blocks of [`STATE_COLUMNS`] columns in a value head.
    pub(in crate::ops) fn n_blocks(&self) -> usize {
        self.v_dim.div_ceil(STATE_COLUMNS)
    }

    /// Values of a block of a head's state.
    pub(in crate::ops) fn block_len(&self) -> usize {
        self.k_dim * STATE_COLUMNS
    }

    /// Values of a sequence's state: `[n_v_heads, n_blocks, k_dim, STATE_COLUMNS]`. The last block's columns beyond the head
    /// are 0.
    pub(crate) fn state_len(&self) -> usize {
        self.n_v_heads * self.n_blocks() * self.block_len()
    }
}

/// How the state, a matrix `[k_dim, v_dim]` per value head, follows from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum RecurrentRule {
    /// The gated delta rule: the value already stored at the key is subtracted from the new value. Queries and keys are
    /// normalized. Rows are queries, keys, values.
    GatedDelta,
    /// Mamba-2's state space: the value is added. Rows are values (`x`), keys (`B`), queries (`C`).
    StateSpace,
}

/// A recurrence over rows; the rule defines their layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Recurrence {
    pub(in crate::ops) rule: RecurrentRule,
    pub(in crate::ops) heads: RecurrentHeads,
}

impl Recurrence {
    /// Added to the sum of squares of a query or key.
    pub(in crate::ops) const EPS: f32 = 1e-6;

    /// Where in a row the queries, keys and values begin.
    pub(in crate::ops) fn starts(&self) -> [usize; 3] {
        let (k_width, v_width) = (self.heads.k_width(), self.heads.v_width());
        match self.rule {
            RecurrentRule::GatedDelta => [0, k_width, 2 * k_width],
            RecurrentRule::StateSpace => [v_width + k_width, v_width, 0],
        }
    }

    /// Where in a row the values of `head` are.
    pub(in crate::ops) fn value(&self, head: usize) -> Range<usize> {
        let (first, width) = (self.starts()[2], self.heads.v_dim);
        first + head * width..first + (head + 1) * width
    }

    /// The key head of a value head.
    pub(in crate::ops) fn key_head(&self, head: usize) -> usize {
        let RecurrentHeads { n_k_heads, n_v_heads, is_tiled, .. } = self.heads;
        if is_tiled { head % n_k_heads } else { head / (n_v_heads / n_k_heads) }
    }

    /// The value heads of a key head.
    pub(in crate::ops) fn value_heads(&self, key_head: usize) -> StepBy<Range<usize>> {
        let RecurrentHeads { n_k_heads, n_v_heads, is_tiled, .. } = self.heads;
        let n_shared = n_v_heads / n_k_heads;
        match is_tiled {
            true => (key_head..n_v_heads).step_by(n_k_heads),
            false => (key_head * n_shared..(key_head + 1) * n_shared).step_by(1),
        }
    }

    /// Factor of the queries.
    pub(in crate::ops) fn scale(&self) -> f32 {
        match self.rule {
            RecurrentRule::GatedDelta => 1.0 / (self.heads.k_dim as f32).sqrt(),
            RecurrentRule::StateSpace => 1.0,
        }
    }
}

/// Where a gated norm applies its gate, `silu(z)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateOrder {
    /// The normalized and scaled values are multiplied by it (Qwen 3.5).
    AfterNorm,
    /// The values are multiplied by it before they are normalized (Mamba-2).
    BeforeNorm,
}

/// How a gated RMSNorm normalizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GatedNormOptions {
    /// Values that are normalized together: a head's, or a group's; divides the row.
    pub(crate) width: usize,
    /// Added to the mean square under the root.
    pub(crate) eps: f64,
    /// When the gate is applied.
    pub(crate) order: GateOrder,
}
