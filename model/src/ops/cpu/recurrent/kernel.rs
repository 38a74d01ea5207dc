//! The recurrences, row by row.
//!
//! Each column of a head's state is independent of the others, given the key, the query and the gates. So work is divided
//! into spans, heads and blocks of columns, and a block stays in L1 for a whole chunk of rows. A row takes one pass over its
//! block: the state is updated, multiplied with the row's query, and with the next row's key, which recalls from it. Sums over the key's
//! values are four, of every fourth value, in the order of the values.

use std::cell::RefCell;

use super::{Lanes, States, for_each_register};
use crate::ops::{
    cpu::{
        math::{exp, sum},
        prefetch::prefetch,
        thread_pool::{self, SharedMut},
    },
    types::{Recurrence, RecurrentRule, RecurrentSpan, STATE_COLUMNS},
};

/// Rows whose normalized keys and queries are in L1 together with a block of the state.
const CHUNK: usize = 16;
/// Values of states times rows below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 15;
/// Tasks per thread that are enough: else a head's blocks are shared out.
const FEW_TASKS: usize = 3;
/// Rows of a block that are prefetched ahead.
const AHEAD: usize = 24;
/// Partial sums over the values of a key.
const PARTS: usize = 4;

/// The input of a recurrence.
pub(in crate::ops) struct RecurrentOperands<'a> {
    pub(in crate::ops) recurrence: Recurrence,
    /// Queries, keys and values, `[n_rows, heads.width()]`.
    pub(in crate::ops) x: &'a [f32],
    /// Logs of the decays, and factors: `[n_rows, 2 n_v_heads]`.
    pub(in crate::ops) gates: &'a [f32],
    /// Factors of the values that are added to the output: `[n_v_heads]`.
    pub(in crate::ops) skip: Option<&'a [f32]>,
}

/// [`gated_delta`](crate::ops::recurrence::gated_delta) or its like: `[n_rows, v_width]`.
pub(in crate::ops) fn recurrence(
    operands: &RecurrentOperands<'_>,
    spans: &[RecurrentSpan],
    states: Option<&States<'_>>,
) -> Vec<f32> {
    let heads = operands.recurrence.heads;
    let n_rows: usize = spans.iter().map(|span| span.rows.len()).sum();
    let mut output = thread_pool::new_zeros(n_rows * heads.v_width());
    let shared = SharedMut::new(&mut output);
    let n_heads = spans.len() * heads.n_v_heads;
    let n_enough = FEW_TASKS * thread_pool::n_threads();
    let blocks_per_task =
        if n_heads >= n_enough { heads.n_blocks() } else { (heads.n_blocks() * n_heads / n_enough).max(1) };
    let tasks_per_head = heads.n_blocks().div_ceil(blocks_per_task);
    let run = |number: usize| {
        let (head, part) = (number / tasks_per_head, number % tasks_per_head);
        let first = part * blocks_per_task;
        let task = Task {
            operands,
            span: &spans[head / heads.n_v_heads],
            head: head % heads.n_v_heads,
            blocks: first..heads.n_blocks().min(first + blocks_per_task),
            output: &shared,
        };
        task.run(states);
    };
    let n_tasks = n_heads * tasks_per_head;
    if n_rows * heads.v_width() * heads.k_dim < PARALLEL_WORK {
        (0..n_tasks).for_each(run);
    } else {
        thread_pool::parallel_for(n_tasks, run);
    }
    output
}

/// Some blocks of a head's state, for the rows of a span.
struct Task<'a> {
    operands: &'a RecurrentOperands<'a>,
    span: &'a RecurrentSpan,
    head: usize,
    blocks: std::ops::Range<usize>,
    output: &'a SharedMut<'a, f32>,
}

/// Memory of one thread, reused for all its tasks.
#[derive(Default)]
struct Scratch {
    state: Vec<f32>,
    /// `[CHUNK, 2, k_dim]`.
    keys: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Task<'_> {
    fn run(&self, states: Option<&States<'_>>) {
        let heads = self.operands.recurrence.heads;
        let (start, len) = (
            (self.head * heads.n_blocks() + self.blocks.start) * heads.block_len(),
            self.blocks.len() * heads.block_len(),
        );
        SCRATCH.with_borrow_mut(|Scratch { state, keys }| {
            keys.resize(keys.len().max(CHUNK * 2 * heads.k_dim), 0.0);
            let state = match (states, self.span.slot) {
                #[expect(unsafe_code, reason = "threads change disjoint parts of states")]
                // SAFETY: spans have different slots, and each block of a head is in one task.
                (Some(states), Some(slot)) => unsafe { states.part(slot, start, len) },
                _ => {
                    state.resize(state.len().max(len), 0.0);
                    &mut state[..len]
                }
            };
            if self.span.is_first {
                state.fill(0.0);
            }
            run_task(self, state, keys);
        });
    }
}

/// The query and the key of row `row` for value head `head`, as the recurrence takes them, to `keys [2, k_dim]`.
#[inline(always)]
pub(in crate::ops::cpu) fn normalized_keys(
    operands: &RecurrentOperands<'_>,
    row: usize,
    head: usize,
    keys: &mut [f32],
) {
    let Recurrence { rule, heads } = operands.recurrence;
    let [q_start, k_start, _] = operands.recurrence.starts();
    let (query, key) = keys.split_at_mut(heads.k_dim);
    let scale = operands.recurrence.scale();
    for (output, start, scale) in [(query, q_start, scale), (key, k_start, 1.0)] {
        let first = row * heads.width() + start + operands.recurrence.key_head(head) * heads.k_dim;
        let input = &operands.x[first..first + heads.k_dim];
        let factor = match rule {
            RecurrentRule::GatedDelta => scale / (sum(input, |x| x * x) + Recurrence::EPS).sqrt(),
            RecurrentRule::StateSpace => scale,
        };
        output.iter_mut().zip(input).for_each(|(output, input)| *output = input * factor);
    }
}

for_each_register!(run_task(task: &Task<'_>, state: &mut [f32], keys: &mut [f32]) = run_task_body);

/// # Safety
/// As for [`Lanes`].
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
unsafe fn run_task_body<L: Lanes, const FUSED: bool, const N: usize>(
    task: &Task<'_>,
    state: &mut [f32],
    keys: &mut [f32],
) {
    let Task { operands, span, head, ref blocks, output } = *task;
    let Recurrence { rule, heads } = operands.recurrence;
    let k_dim = heads.k_dim;
    for first in span.rows.clone().step_by(CHUNK) {
        let n_rows = CHUNK.min(span.rows.end - first);
        let mut gates = [[0.0; 2]; CHUNK];
        for (n, gates) in gates[..n_rows].iter_mut().enumerate() {
            normalized_keys(operands, first + n, head, &mut keys[n * 2 * k_dim..][..2 * k_dim]);
            let of_row = &operands.gates[(first + n) * 2 * heads.n_v_heads..][..2 * heads.n_v_heads];
            *gates = [exp::<FUSED>(of_row[head]), of_row[heads.n_v_heads + head]];
        }
        for (block, state) in blocks.clone().zip(state.chunks_exact_mut(heads.block_len())) {
            let columns = block * STATE_COLUMNS..heads.v_dim.min((block + 1) * STATE_COLUMNS);
            let mut values = [[0.0; STATE_COLUMNS]; CHUNK];
            let mut outputs = [[0.0; STATE_COLUMNS]; CHUNK];
            let first_value = operands.recurrence.value(head).start;
            for (n, values) in values[..n_rows].iter_mut().enumerate() {
                let row = (first + n) * heads.width() + first_value;
                values[..columns.len()].copy_from_slice(&operands.x[row + columns.start..row + columns.end]);
            }
            let rows = Rows {
                keys: &keys[..n_rows * 2 * k_dim],
                gates: &gates[..n_rows],
                values: &values,
                skip: operands.skip.map(|skip| skip[head]),
            };
            for column in (0..columns.len()).step_by(N * L::WIDTH) {
                // SAFETY: the caller upholds the contract.
                unsafe {
                    match rule {
                        RecurrentRule::GatedDelta => step::<L, N, true>(state, column, &rows, &mut outputs),
                        RecurrentRule::StateSpace => step::<L, N, false>(state, column, &rows, &mut outputs),
                    }
                }
            }
            for (n, outputs) in outputs[..n_rows].iter().enumerate() {
                let row = (first + n) * heads.v_width() + head * heads.v_dim;
                // SAFETY: each row's block of a head is in one task.
                let place = unsafe { output.part(row + columns.start..row + columns.end) };
                place.copy_from_slice(&outputs[..columns.len()]);
            }
        }
    }
}

/// A chunk of rows, for one block of a head.
struct Rows<'a> {
    /// `[n_rows, 2, k_dim]`.
    keys: &'a [f32],
    /// The decay and the factor of each row.
    gates: &'a [[f32; 2]],
    values: &'a [[f32; STATE_COLUMNS]; CHUNK],
    skip: Option<f32>,
}

/// Takes the rows of a chunk through `N` registers of columns of `state [k_dim, STATE_COLUMNS]`, from `column` on.
///
/// # Safety
/// As for [`Lanes`]; the columns are within a block.
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
unsafe fn step<L: Lanes, const N: usize, const IS_DELTA: bool>(
    state: &mut [f32],
    column: usize,
    rows: &Rows<'_>,
    outputs: &mut [[f32; STATE_COLUMNS]; CHUNK],
) {
    assert!(column + N * L::WIDTH <= STATE_COLUMNS);
    let k_dim = state.len() / STATE_COLUMNS;
    let n_rows = rows.gates.len();
    assert!(rows.keys.len() == n_rows * 2 * k_dim);
    // SAFETY: the caller upholds the contract; the columns are within the block.
    unsafe {
        let state = state.as_mut_ptr().add(column);
        let key = |row: usize| rows.keys.as_ptr().add((2 * row + 1) * k_dim);
        let mut recalled = [L::splat(0.0); N];
        if IS_DELTA {
            recalled = recall::<L, N>(state, key(0), k_dim);
        }
        for (n, &[decay, factor]) in rows.gates.iter().enumerate() {
            let (decay, factor) = (L::splat(decay), L::splat(factor));
            let values: [L; N] = std::array::from_fn(|j| L::load(rows.values[n].as_ptr().add(column + j * L::WIDTH)));
            let delta: [L; N] = std::array::from_fn(|j| match IS_DELTA {
                true => values[j].minus(recalled[j].times(decay)).times(factor),
                false => values[j].times(factor),
            });
            let pass = Pass { query: rows.keys.as_ptr().add(2 * n * k_dim), key: key(n), k_dim, decay, delta };
            let (sums, next) = match IS_DELTA && n + 1 < n_rows {
                true => pass.run::<true, true>(state, state, key(n + 1)),
                false => pass.run::<true, false>(state, state, key(n)),
            };
            recalled = next;
            for j in 0..N {
                let output = match rows.skip {
                    Some(skip) => values[j].times_plus(L::splat(skip), sums[j]),
                    None => sums[j],
                };
                output.store(outputs[n].as_mut_ptr().add(column + j * L::WIDTH));
            }
        }
    }
}

/// Runs `$body` for each value of a key in order, with the number of its partial sum as a constant, so that sums stay in
/// registers.
macro_rules! each_value {
    ($k_dim:expr, |$i:ident, $part:ident| $body:block) => {
        let mut first = 0;
        while first + PARTS <= $k_dim {
            each_value!(@some first, $i, $part, $body, 0, 1, 2, 3);
            first += PARTS;
        }
        each_value!(@rest first, $k_dim, $i, $part, $body, 0, 1, 2);
    };
    (@some $first:ident, $i:ident, $part:ident, $body:block, $($number:literal),*) => {$({
        const $part: usize = $number;
        let $i = $first + $part;
        $body
    })*};
    (@rest $first:ident, $k_dim:expr, $i:ident, $part:ident, $body:block, $($number:literal),*) => {$(
        if $first + $number < $k_dim {
            each_value!(@some $first, $i, $part, $body, $number);
        }
    )*};
}

/// Four partial sums.
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
unsafe fn added<L: Lanes, const N: usize>(sums: [[L; N]; PARTS]) -> [L; N] {
    // SAFETY: the caller upholds the contract.
    std::array::from_fn(|j| unsafe { sums[0][j].plus(sums[1][j]).plus(sums[2][j].plus(sums[3][j])) })
}

/// Reads the state at `key`: the transposed state times the key.
///
/// # Safety
/// As [`step`].
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
pub(in crate::ops::cpu) unsafe fn recall<L: Lanes, const N: usize>(
    state: *const f32,
    key: *const f32,
    k_dim: usize,
) -> [L; N] {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; PARTS];
        each_value!(k_dim, |i, PART| {
            let factor = L::splat(*key.add(i));
            let row = state.add(i * STATE_COLUMNS);
            prefetch(row.wrapping_add(AHEAD * STATE_COLUMNS));
            for (j, sum) in sums[PART].iter_mut().enumerate() {
                *sum = L::load(row.add(j * L::WIDTH)).times_plus(factor, *sum);
            }
        });
        added(sums)
    }
}

/// One row's pass over a block.
pub(in crate::ops::cpu) struct Pass<L, const N: usize> {
    pub(in crate::ops::cpu) query: *const f32,
    pub(in crate::ops::cpu) key: *const f32,
    pub(in crate::ops::cpu) k_dim: usize,
    pub(in crate::ops::cpu) decay: L,
    /// The new state is `decay * state + key * delta`.
    pub(in crate::ops::cpu) delta: [L; N],
}

impl<L: Lanes, const N: usize> Pass<L, N> {
    /// Writes the state that follows from `before` to `behind`; both may be the same memory. Returns the products of
    /// the new state with the query and with the `next` key, if they are requested.
    ///
    /// # Safety
    /// As [`step`].
    #[expect(unsafe_code, reason = "registers")]
    #[inline(always)]
    pub(in crate::ops::cpu) unsafe fn run<const HAS_QUERY: bool, const HAS_NEXT: bool>(
        &self,
        before: *const f32,
        behind: *mut f32,
        next: *const f32,
    ) -> ([L; N], [L; N]) {
        let Self { query, key, k_dim, decay, delta } = *self;
        // SAFETY: the caller upholds the contract.
        unsafe {
            let mut sums = [[L::splat(0.0); N]; PARTS];
            let mut recalled = [[L::splat(0.0); N]; PARTS];
            each_value!(k_dim, |i, PART| {
                let key = L::splat(*key.add(i));
                for j in 0..N {
                    let place = i * STATE_COLUMNS + j * L::WIDTH;
                    let value = key.times_plus(delta[j], L::load(before.add(place)).times(decay));
                    value.store(behind.add(place));
                    if HAS_QUERY {
                        sums[PART][j] = value.times_plus(L::splat(*query.add(i)), sums[PART][j]);
                    }
                    if HAS_NEXT {
                        recalled[PART][j] = value.times_plus(L::splat(*next.add(i)), recalled[PART][j]);
                    }
                }
            });
            (added(sums), added(recalled))
        }
    }
}
