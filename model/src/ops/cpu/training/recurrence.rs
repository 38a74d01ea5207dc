//! The gated delta rule and Mamba-2's state space, backward.
//!
//! States are recomputed: first the states before every [`CHUNK`]th row of a span, and then, from the last chunk to the
//! first, the states of the chunk's rows. Only the inputs are kept between the passes. A task is a span and a key head
//! with its value heads, one block of columns after the other: so the gradients of the key and the query are added up
//! in one order.

use std::cell::RefCell;

use burn::backend::flex::FlexTensor;

use super::{dims, scratch::resized, tensor, values};
use crate::ops::{
    cpu::{
        self, RecurrentOperands,
        math::{exp, sum_of_pairs},
        recurrent::{Lanes, Pass, for_each_register, normalized_keys, recall},
        thread_pool::{self, SharedMut},
    },
    types::{Recurrence, RecurrentRows, RecurrentRule, RecurrentSpan, STATE_COLUMNS, TrainingOp},
};

/// Rows whose states are in memory together. The states of one block fit in L2.
const CHUNK: usize = 32;

/// Values of one row in a block's columns.
type Columns = [f32; STATE_COLUMNS];

/// Inputs: queries, keys and values `[n_rows, heads.width()]`, the gates `[n_rows, 2 n_v_heads]` and, with a skip, its factors
/// `[n_v_heads]`. See [`gated_delta`](crate::ops::recurrence::gated_delta).
#[derive(Debug)]
pub(in crate::ops) struct Recur {
    pub(in crate::ops) recurrence: Recurrence,
    pub(in crate::ops) rows: RecurrentRows,
}

/// Memory of one thread, reused for all its tasks.
#[derive(Default)]
struct Scratch {
    /// Normalized queries and keys of a span, and their gradients: `[n_rows, 2, k_dim]`.
    keys: Vec<f32>,
    of_keys: Vec<f32>,
    /// Decays and factors of a head, and the gradients of the logs and factors: `[n_rows, 2]`.
    gates: Vec<[f32; 2]>,
    of_gates: Vec<[f32; 2]>,
    /// A block's states before every chunk, `[n_chunks, k_dim, STATE_COLUMNS]`.
    kept: Vec<f32>,
    /// The states before the rows of a chunk, and the gradient of one.
    states: Vec<f32>,
    of_state: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Recur {
    fn operands<'a>(&self, inputs: &'a [FlexTensor]) -> RecurrentOperands<'a> {
        RecurrentOperands {
            recurrence: self.recurrence,
            x: values(&inputs[0]),
            gates: values(&inputs[1]),
            skip: inputs.get(2).map(values),
        }
    }
}

impl TrainingOp<FlexTensor> for Recur {
    fn forward(&self, inputs: &[FlexTensor], _wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let output = cpu::recurrence(&self.operands(inputs), self.rows.spans(), None);
        (tensor(output, [self.rows.n_rows(), self.recurrence.heads.v_width()]), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        _saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        _wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let operands = self.operands(inputs);
        let heads = self.recurrence.heads;
        let spans = self.rows.spans();
        let mut of_x = thread_pool::new_zeros(operands.x.len());
        let mut of_gates = thread_pool::new_zeros(operands.gates.len());
        let mut of_skips = vec![0.0; spans.len() * heads.n_v_heads];
        let shared = Gradients {
            of_x: SharedMut::new(&mut of_x),
            of_gates: SharedMut::new(&mut of_gates),
            of_skips: SharedMut::new(&mut of_skips),
        };
        thread_pool::parallel_for(spans.len() * heads.n_k_heads, |number| {
            let (span, key_head) = (number / heads.n_k_heads, number % heads.n_k_heads);
            let task =
                Task { operands: &operands, gradient: values(gradient), number: span, span: &spans[span], key_head };
            SCRATCH.with_borrow_mut(|scratch| backward(&task, &shared, scratch));
        });
        let of_skip = inputs.get(2).map(|_| {
            let mut sum = vec![0.0; heads.n_v_heads];
            super::add_rows(&mut sum, &of_skips);
            Some(tensor(sum, [heads.n_v_heads]))
        });
        let of_inputs = [Some(tensor(of_x, dims(&inputs[0]))), Some(tensor(of_gates, dims(&inputs[1])))];
        of_inputs.into_iter().chain(of_skip).collect()
    }
}

/// A span and a key head.
struct Task<'a> {
    operands: &'a RecurrentOperands<'a>,
    gradient: &'a [f32],
    /// The number of the span.
    number: usize,
    span: &'a RecurrentSpan,
    key_head: usize,
}

/// Outputs of tasks.
struct Gradients<'a> {
    of_x: SharedMut<'a, f32>,
    of_gates: SharedMut<'a, f32>,
    /// `[n_spans, n_v_heads]`.
    of_skips: SharedMut<'a, f32>,
}

for_each_register!(backward(task: &Task<'_>, gradients: &Gradients<'_>, scratch: &mut Scratch) = backward_body);

/// # Safety
/// As for [`Lanes`].
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
unsafe fn backward_body<L: Lanes, const FUSED: bool, const N: usize>(
    task: &Task<'_>,
    gradients: &Gradients<'_>,
    scratch: &mut Scratch,
) {
    let Task { operands, span, key_head, .. } = *task;
    let heads = operands.recurrence.heads;
    let (n_rows, k_dim, n_v_heads) = (span.rows.len(), heads.k_dim, heads.n_v_heads);
    let value_heads = operands.recurrence.value_heads(key_head);
    let first_head = value_heads.clone().next().unwrap_or_default();
    let Scratch { keys, of_keys, gates, of_gates, kept, states, of_state } = scratch;
    let keys = resized(keys, n_rows * 2 * k_dim);
    let of_keys = resized(of_keys, n_rows * 2 * k_dim);
    of_keys.fill(0.0);
    for (keys, row) in keys.chunks_exact_mut(2 * k_dim).zip(span.rows.clone()) {
        normalized_keys(operands, row, first_head, keys);
    }
    for head in value_heads {
        let gate_row = |row: usize| &operands.gates[row * 2 * n_v_heads..][..2 * n_v_heads];
        gates.clear();
        gates.extend(span.rows.clone().map(|row| [exp::<FUSED>(gate_row(row)[head]), gate_row(row)[n_v_heads + head]]));
        of_gates.clear();
        of_gates.resize(n_rows, [0.0; 2]);
        let mut of_skip = 0.0;
        for block in 0..heads.n_blocks() {
            let block = Block { task, head, first: block * STATE_COLUMNS, keys, gates, gradients };
            let memory = [
                resized(kept, n_rows.div_ceil(CHUNK) * heads.block_len()),
                resized(states, (CHUNK + 1) * heads.block_len()),
                resized(of_state, heads.block_len()),
            ];
            // SAFETY: the caller upholds the contract.
            of_skip += unsafe { block.backward::<L, N>(memory, of_keys, of_gates) };
        }
        for (row, of_gates) in span.rows.clone().zip(&*of_gates) {
            let first = row * 2 * n_v_heads + head;
            for (place, value) in [first, first + n_v_heads].into_iter().zip(of_gates) {
                // SAFETY: each row's heads are in one task.
                unsafe { gradients.of_gates.part(place..place + 1) }.fill(*value);
            }
        }
        let place = task.number * n_v_heads + head;
        // SAFETY: each span's heads are in one task.
        unsafe { gradients.of_skips.part(place..place + 1) }.fill(of_skip);
    }
    for (row, of_keys) in span.rows.clone().zip(of_keys.chunks_exact(2 * k_dim)) {
        let (of_query, of_key) = of_keys.split_at(k_dim);
        let [q_start, k_start, _] = operands.recurrence.starts();
        for (start, of, scale) in [(q_start, of_query, operands.recurrence.scale()), (k_start, of_key, 1.0)] {
            let first = row * heads.width() + start + key_head * k_dim;
            // SAFETY: each row's key heads are in one task.
            let place = unsafe { gradients.of_x.part(first..first + k_dim) };
            of_normalized(&operands.x[first..first + k_dim], of, scale, operands.recurrence.rule, place);
        }
    }
}

/// The gradient of `x` from the gradient `of` of `scale x / |x|`: `scale r (of - x r^2 (x of))`, where `r` is 1 over
/// the root.
#[inline(always)]
fn of_normalized(x: &[f32], of: &[f32], scale: f32, rule: RecurrentRule, of_x: &mut [f32]) {
    if rule == RecurrentRule::StateSpace {
        return of_x.copy_from_slice(of);
    }
    let r = 1.0 / (sum_of_pairs(x, x, |x, _| x * x) + Recurrence::EPS).sqrt();
    let along = sum_of_pairs(x, of, |x, of| x * of) * r * r;
    for ((of_x, x), of) in of_x.iter_mut().zip(x).zip(of) {
        *of_x = scale * r * (of - x * along);
    }
}

/// A block of columns of a head, from `first` on.
struct Block<'a> {
    task: &'a Task<'a>,
    head: usize,
    first: usize,
    keys: &'a [f32],
    gates: &'a [[f32; 2]],
    gradients: &'a Gradients<'a>,
}

/// The update of a block's state by a row of a chunk: `decay S + key delta`.
#[derive(Clone, Copy)]
struct Step {
    value: Columns,
    /// The product of the transposed state with the key, before the decay.
    recalled: Columns,
    /// `delta` is this times the row's factor.
    new: Columns,
    delta: Columns,
}

const NO_STEP: Step = Step {
    value: [0.0; STATE_COLUMNS],
    recalled: [0.0; STATE_COLUMNS],
    new: [0.0; STATE_COLUMNS],
    delta: [0.0; STATE_COLUMNS],
};

#[expect(unsafe_code, reason = "registers")]
impl Block<'_> {
    /// Adds the block's part to the gradients of keys, queries and gates, and stores the gradients of its values.
    /// Returns its part of the skip's gradient.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn backward<L: Lanes, const N: usize>(
        &self,
        [kept, states, of_state]: [&mut [f32]; 3],
        of_keys: &mut [f32],
        of_gates: &mut [[f32; 2]],
    ) -> f32 {
        let Task { operands, span, .. } = *self.task;
        let heads = operands.recurrence.heads;
        let (block_len, k_dim) = (heads.block_len(), heads.k_dim);
        let n_rows = span.rows.len();
        let first_value = operands.recurrence.value(self.head).start + self.first;
        let mut steps = [NO_STEP; CHUNK];
        // The states before each chunk; the first begins from 0.
        kept[..block_len].fill(0.0);
        for (chunk, start) in (0..(n_rows - 1) / CHUNK * CHUNK).step_by(CHUNK).enumerate() {
            kept.copy_within(chunk * block_len..(chunk + 1) * block_len, (chunk + 1) * block_len);
            // SAFETY: the caller upholds the contract.
            unsafe { self.forward::<L, N, false>(start, &mut kept[(chunk + 1) * block_len..], &mut steps) };
        }
        of_state.fill(0.0);
        let mut of_skip = 0.0;
        let mut of_output = self.of_output(n_rows - 1);
        // SAFETY: the caller upholds the contract.
        let mut of_delta = unsafe { self.enter::<L>(n_rows - 1, &of_output, of_state) };
        for (chunk, start) in (0..n_rows).step_by(CHUNK).enumerate().rev() {
            let len = CHUNK.min(n_rows - start);
            states[..block_len].copy_from_slice(&kept[chunk * block_len..(chunk + 1) * block_len]);
            // SAFETY: the caller upholds the contract.
            unsafe { self.forward::<L, N, true>(start, states, &mut steps[..len]) };
            for (n, step) in steps[..len].iter().enumerate().rev() {
                let row = start + n;
                let back = self.back(row, step, &of_output, &of_delta, &mut of_gates[row]);
                let mut of_value = back.of_new;
                if let Some(skip) = operands.skip {
                    for ((of_value, of_output), value) in of_value.iter_mut().zip(of_output).zip(step.value) {
                        *of_value += skip[self.head] * of_output;
                        of_skip += of_output * value;
                    }
                }
                let place = (span.rows.start + row) * heads.width() + first_value;
                // SAFETY: each row's block of a head is in one task.
                let place = unsafe { self.gradients.of_x.part(place..place + self.n_columns()) };
                place.copy_from_slice(&of_value[..place.len()]);
                let state = &states[n * block_len..(n + 1) * block_len];
                let of_keys = &mut of_keys[row * 2 * k_dim..][..2 * k_dim];
                // SAFETY: the caller upholds the contract.
                let of_decay = unsafe {
                    if row > 0 {
                        of_output = self.of_output(row - 1);
                        back.run::<L, true>(state, of_state, of_keys, &of_output, &mut of_delta)
                    } else {
                        back.run::<L, false>(state, of_state, of_keys, &of_output, &mut of_delta)
                    }
                };
                of_gates[row][0] += back.decay * of_decay;
            }
        }
        of_skip
    }

    fn n_columns(&self) -> usize {
        STATE_COLUMNS.min(self.task.operands.recurrence.heads.v_dim - self.first)
    }

    /// The gradient of the output of row `n` of the span.
    fn of_output(&self, n: usize) -> Columns {
        let heads = self.task.operands.recurrence.heads;
        let place = (self.task.span.rows.start + n) * heads.v_width() + self.head * heads.v_dim + self.first;
        let mut columns = [0.0; STATE_COLUMNS];
        columns[..self.n_columns()].copy_from_slice(&self.task.gradient[place..][..self.n_columns()]);
        columns
    }

    fn query_and_key(&self, n: usize) -> [&[f32]; 2] {
        let k_dim = self.task.operands.recurrence.heads.k_dim;
        let (query, key) = self.keys[2 * n * k_dim..][..2 * k_dim].split_at(k_dim);
        [query, key]
    }

    /// Computes a row of the span for each of `steps`, from `start` on, beginning with the first state in `states`.
    /// Each new state is written after the one before it if `KEEPS_ALL`, else over it.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn forward<L: Lanes, const N: usize, const KEEPS_ALL: bool>(
        &self,
        start: usize,
        states: &mut [f32],
        steps: &mut [Step],
    ) {
        let operands = self.task.operands;
        let Recurrence { rule, heads } = operands.recurrence;
        let (k_dim, block_len, n_columns) = (heads.k_dim, heads.block_len(), self.n_columns());
        let is_delta = rule == RecurrentRule::GatedDelta;
        assert!(states.len() >= if KEEPS_ALL { (steps.len() + 1) * block_len } else { block_len });
        for (n, step) in steps.iter_mut().enumerate() {
            let row = self.task.span.rows.start + start + n;
            let first = row * heads.width() + operands.recurrence.value(self.head).start + self.first;
            *step = NO_STEP;
            step.value[..n_columns].copy_from_slice(&operands.x[first..first + n_columns]);
        }
        let n_steps = steps.len();
        for column in (0..n_columns).step_by(N * L::WIDTH) {
            // SAFETY: the caller upholds the contract; columns are within a block.
            unsafe {
                let state = |n: usize| states.as_ptr().add(if KEEPS_ALL { n * block_len } else { 0 } + column);
                let key = |n: usize| self.query_and_key(start + n)[1].as_ptr();
                let mut recalled = [L::splat(0.0); N];
                if is_delta {
                    recalled = recall::<L, N>(state(0), key(0), k_dim);
                }
                for (n, step) in steps.iter_mut().enumerate() {
                    let [decay, factor] = self.gates[start + n].map(|gate| L::splat(gate));
                    let mut delta = [L::splat(0.0); N];
                    for (j, delta) in delta.iter_mut().enumerate() {
                        let at = column + j * L::WIDTH;
                        let value = L::load(step.value.as_ptr().add(at));
                        let new = if is_delta { value.minus(recalled[j].times(decay)) } else { value };
                        *delta = new.times(factor);
                        recalled[j].store(step.recalled.as_mut_ptr().add(at));
                        new.store(step.new.as_mut_ptr().add(at));
                        delta.store(step.delta.as_mut_ptr().add(at));
                    }
                    let pass = Pass { query: key(n), key: key(n), k_dim, decay, delta };
                    let (before, behind) = (state(n), state(n + 1).cast_mut());
                    (_, recalled) = match is_delta && n + 1 < n_steps {
                        true => pass.run::<false, true>(before, behind, key(n + 1)),
                        false => pass.run::<false, false>(before, behind, key(n)),
                    };
                }
            }
        }
    }

    /// Adds the contribution of row `n`'s output to the gradient of the state after the row, and returns the gradient
    /// of `delta`.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn enter<L: Lanes>(&self, n: usize, of_output: &Columns, of_state: &mut [f32]) -> Columns {
        let [query, key] = self.query_and_key(n);
        let mut of_delta = [0.0; STATE_COLUMNS];
        for ((row, query), key) in of_state.chunks_exact_mut(STATE_COLUMNS).zip(query).zip(key) {
            for column in (0..STATE_COLUMNS).step_by(L::WIDTH) {
                // SAFETY: the caller upholds the contract; columns are within a block.
                unsafe {
                    let place = row.as_mut_ptr().add(column);
                    let of_state = L::load(of_output.as_ptr().add(column)).times_plus(L::splat(*query), L::load(place));
                    of_state.store(place);
                    let sum = of_delta.as_mut_ptr().add(column);
                    of_state.times_plus(L::splat(*key), L::load(sum)).store(sum);
                }
            }
        }
        of_delta
    }

    /// Gradients for row `n`, from the gradients of its output and of its `delta`.
    ///
    /// Let `G` be the gradient of the state after the row (its own output's included), `d` the gradient of `delta`, and
    /// `S' = decay S + key delta` the state after the row. Gradients: `m = -factor d` of the value recalled by the key,
    /// `G delta + S (decay m)` of the key, `G S + m recalled` of the decay, `decay (G + key m)` of the state before the
    /// row, and `S' o` of the query.
    #[inline(always)]
    fn back(
        &self,
        n: usize,
        step: &Step,
        of_output: &Columns,
        of_delta: &Columns,
        of_gates: &mut [f32; 2],
    ) -> Back<'_> {
        let [decay, factor] = self.gates[n];
        let is_delta = self.task.operands.recurrence.rule == RecurrentRule::GatedDelta;
        let of_new = of_delta.map(|of_delta| of_delta * factor);
        let of_recalled = if is_delta { of_new.map(|of_new| -of_new) } else { [0.0; STATE_COLUMNS] };
        of_gates[0] += decay * dot(&of_recalled, &step.recalled);
        of_gates[1] += dot(of_delta, &step.new);
        Back {
            keys: self.query_and_key(n),
            keys_before: self.query_and_key(n.saturating_sub(1)),
            decay,
            delta: step.delta,
            of_new,
            of_recalled,
            decayed_recalled: of_recalled.map(|of_recalled| of_recalled * decay),
            decayed_output: of_output.map(|of_output| of_output * decay),
            along: dot(&step.delta, of_output),
        }
    }
}

/// A row's pass over a block backward.
struct Back<'a> {
    /// Key and query of the row, and of the row before.
    keys: [&'a [f32]; 2],
    keys_before: [&'a [f32]; 2],
    decay: f32,
    delta: Columns,
    of_new: Columns,
    of_recalled: Columns,
    decayed_recalled: Columns,
    decayed_output: Columns,
    /// The product of `delta` and the gradient of the output.
    along: f32,
}

/// Registers that hold a row's columns, at most.
const MOST: usize = 4;

#[expect(unsafe_code, reason = "registers")]
impl Back<'_> {
    /// Turns the gradient of the state after the row into the gradient of `state`, the one before it. Adds to the
    /// gradients of the query and the key, and returns a part of the decay's gradient. If there is a row before,
    /// `output_before` is the gradient of its output: it is added to the state's gradient, and `of_delta` becomes the
    /// gradient of that row's `delta`.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn run<L: Lanes, const HAS_BEFORE: bool>(
        &self,
        state: &[f32],
        of_state: &mut [f32],
        of_keys: &mut [f32],
        output_before: &Columns,
        of_delta: &mut Columns,
    ) -> f32 {
        let k_dim = self.keys[0].len();
        let (of_query, of_key) = of_keys.split_at_mut(k_dim);
        assert!(state.len() == k_dim * STATE_COLUMNS && of_state.len() == state.len());
        assert!(of_key.len() == k_dim && self.keys.iter().chain(&self.keys_before).all(|keys| keys.len() == k_dim));
        // SAFETY: the caller upholds the contract; values and columns are within a block.
        unsafe {
            let mut sums = Sums { of_decay: [L::splat(0.0); MOST], of_delta: [L::splat(0.0); MOST] };
            let mut i = 0;
            while i + 4 <= k_dim {
                let [mut of_keys, mut of_queries] = [[L::splat(0.0); 4]; 2];
                for p in 0..4 {
                    (of_queries[p], of_keys[p]) =
                        self.value::<L, HAS_BEFORE>(i + p, state, of_state, output_before, &mut sums);
                }
                let (of_keys, of_queries) = (L::sums(of_keys), L::sums(of_queries));
                for p in 0..4 {
                    of_key[i + p] += of_keys[p];
                    of_query[i + p] += of_queries[p] + self.keys[1][i + p] * self.along;
                }
                i += 4;
            }
            for i in i..k_dim {
                let (one, other) = self.value::<L, HAS_BEFORE>(i, state, of_state, output_before, &mut sums);
                let [of_query_sum, of_key_sum, ..] = L::sums([one, other, one, other]);
                of_key[i] += of_key_sum;
                of_query[i] += of_query_sum + self.keys[1][i] * self.along;
            }
            if HAS_BEFORE {
                for (j, column) in (0..STATE_COLUMNS).step_by(L::WIDTH).enumerate() {
                    sums.of_delta[j].store(of_delta.as_mut_ptr().add(column));
                }
            }
            L::sums([total(sums.of_decay); 4])[0]
        }
    }

    /// Computes value `i` of query and key: products whose sums are parts of their gradients.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    #[inline(always)]
    unsafe fn value<L: Lanes, const HAS_BEFORE: bool>(
        &self,
        i: usize,
        state: &[f32],
        of_state: &mut [f32],
        output_before: &Columns,
        sums: &mut Sums<L>,
    ) -> (L, L) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            let [key, query_before, key_before] = [self.keys[1], self.keys_before[0], self.keys_before[1]]
                .map(|values| L::splat(*values.get_unchecked(i)));
            let [mut of_query, mut of_key] = [[L::splat(0.0); MOST]; 2];
            for j in 0..STATE_COLUMNS / L::WIDTH {
                let column = j * L::WIDTH;
                let at = |values: &Columns| L::load(values.as_ptr().add(column));
                let place = of_state.as_mut_ptr().add(i * STATE_COLUMNS + column);
                let (of_state, state) = (L::load(place), L::load(state.as_ptr().add(i * STATE_COLUMNS + column)));
                of_query[j] = state.times(at(&self.decayed_output));
                of_key[j] = state.times_plus(at(&self.decayed_recalled), of_state.times(at(&self.delta)));
                sums.of_decay[j] = of_state.times_plus(state, sums.of_decay[j]);
                let mut of_before = key.times_plus(at(&self.of_recalled), of_state).times(L::splat(self.decay));
                if HAS_BEFORE {
                    of_before = at(output_before).times_plus(query_before, of_before);
                    sums.of_delta[j] = of_before.times_plus(key_before, sums.of_delta[j]);
                }
                of_before.store(place);
            }
            (total(of_query), total(of_key))
        }
    }
}

/// Sums over the values of a key, by column.
struct Sums<L> {
    of_decay: [L; MOST],
    of_delta: [L; MOST],
}

/// The sum of the registers of a row's columns, as wider registers are added.
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
unsafe fn total<L: Lanes>(columns: [L; MOST]) -> L {
    let [a, b, c, d] = columns;
    // SAFETY: the caller upholds the contract.
    unsafe { if STATE_COLUMNS / L::WIDTH == 2 { a.plus(b) } else { a.plus(c).plus(b.plus(d)) } }
}

#[inline(always)]
fn dot(one: &Columns, other: &Columns) -> f32 {
    sum_of_pairs(one, other, |one, other| one * other)
}
