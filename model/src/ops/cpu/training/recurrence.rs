//! The gated delta rule and Mamba-2's state space, backward.
//!
//! States are computed again: those before every [`CHUNK`]th row of a span first, and then, from the last chunk on, those of a
//! chunk's rows. Nothing but the inputs is kept between the passes. A task is a span and a key head with its value heads, one
//! block of columns after the other: so the gradients of the key and the query are added up in one order.

use std::cell::RefCell;

use burn::backend::flex::FlexTensor;

use super::{dims, scratch::resized, tensor, values};
use crate::ops::{
    cpu::{
        self, RecurrentOperands,
        math::{exp, sum_of_pairs},
        recurrent::{Lanes, for_each_register, normalized_keys},
        thread_pool::{self, SharedMut},
    },
    types::{Recurrence, RecurrentRows, RecurrentRule, RecurrentSpan, STATE_COLUMNS, TrainingOp},
};

/// Rows whose states are in memory together. A block's are in L2.
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
    /// Of the span.
    number: usize,
    span: &'a RecurrentSpan,
    key_head: usize,
}

/// Where tasks write.
struct Gradients<'a> {
    of_x: SharedMut<'a, f32>,
    of_gates: SharedMut<'a, f32>,
    /// `[n_spans, n_v_heads]`.
    of_skips: SharedMut<'a, f32>,
}

for_each_register!(backward(task: &Task<'_>, gradients: &Gradients<'_>, scratch: &mut Scratch) = backward_body);

/// # Safety
/// That of [`Lanes`].
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
    let group = n_v_heads / heads.n_k_heads;
    let Scratch { keys, of_keys, gates, of_gates, kept, states, of_state } = scratch;
    let keys = resized(keys, n_rows * 2 * k_dim);
    let of_keys = resized(of_keys, n_rows * 2 * k_dim);
    of_keys.fill(0.0);
    for (keys, row) in keys.chunks_exact_mut(2 * k_dim).zip(span.rows.clone()) {
        normalized_keys(operands, row, key_head * group, keys);
    }
    for head in key_head * group..(key_head + 1) * group {
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
            // SAFETY: the caller's contract.
            of_skip += unsafe { block.backward::<L>(memory, of_keys, of_gates) };
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

/// The gradient of `x` from that of `scale x / |x|`: `scale r (of - x r^2 (x of))`, where `r` is 1 over the root.
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

/// What a row of a chunk does to a block's state: `decay S + key delta`.
#[derive(Clone, Copy)]
struct Step {
    value: Columns,
    /// The product of the transposed state with the key, before the decay.
    recalled: Columns,
    /// What is multiplied by the factor to give `delta`.
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
    /// Adds the block's part to the gradients of keys, queries and gates, and stores those of its values. Returns its part of
    /// the skip's gradient.
    ///
    /// # Safety
    /// That of [`Lanes`].
    #[inline(always)]
    unsafe fn backward<L: Lanes>(
        &self,
        [kept, states, of_state]: [&mut [f32]; 3],
        of_keys: &mut [f32],
        of_gates: &mut [[f32; 2]],
    ) -> f32 {
        let Task { operands, span, gradient, .. } = *self.task;
        let heads = operands.recurrence.heads;
        let (block_len, k_dim) = (heads.block_len(), heads.k_dim);
        let n_rows = span.rows.len();
        let n_columns = STATE_COLUMNS.min(heads.v_dim - self.first);
        let first_value = operands.recurrence.value(self.head).start + self.first;
        // The states before each chunk but the first, which begins from 0.
        kept[..block_len].fill(0.0);
        for n in 0..(n_rows - 1) / CHUNK * CHUNK {
            let chunk = n / CHUNK;
            if n.is_multiple_of(CHUNK) {
                kept.copy_within(chunk * block_len..(chunk + 1) * block_len, (chunk + 1) * block_len);
            }
            let place = kept[(chunk + 1) * block_len..].as_mut_ptr();
            // SAFETY: the caller's contract.
            unsafe { self.step::<L>(n, place, place) };
        }
        of_state.fill(0.0);
        let mut of_skip = 0.0;
        for start in (0..n_rows).step_by(CHUNK).rev() {
            let len = CHUNK.min(n_rows - start);
            let chunk = start / CHUNK;
            states[..block_len].copy_from_slice(&kept[chunk * block_len..(chunk + 1) * block_len]);
            let mut steps = [NO_STEP; CHUNK];
            for (n, step) in steps[..len].iter_mut().enumerate() {
                let (before, behind) = states[n * block_len..].split_at_mut(block_len);
                // SAFETY: the caller's contract.
                *step = unsafe { self.step::<L>(start + n, before.as_ptr(), behind.as_mut_ptr()) };
            }
            for n in (0..len).rev() {
                let row = span.rows.start + start + n;
                let mut of_output = [0.0; STATE_COLUMNS];
                let place = row * heads.v_width() + self.head * heads.v_dim + self.first;
                of_output[..n_columns].copy_from_slice(&gradient[place..place + n_columns]);
                let state = &states[n * block_len..(n + 1) * block_len];
                let of_keys = &mut of_keys[(start + n) * 2 * k_dim..][..2 * k_dim];
                // SAFETY: the caller's contract.
                let mut of_value = unsafe {
                    self.step_back::<L>(
                        start + n,
                        state,
                        &steps[n],
                        &of_output,
                        of_state,
                        of_keys,
                        &mut of_gates[start + n],
                    )
                };
                if let Some(skip) = operands.skip {
                    for ((of_value, of_output), value) in of_value.iter_mut().zip(of_output).zip(steps[n].value) {
                        *of_value += skip[self.head] * of_output;
                        of_skip += of_output * value;
                    }
                }
                let place = row * heads.width() + first_value;
                // SAFETY: each row's block of a head is in one task.
                let place = unsafe { self.gradients.of_x.part(place..place + n_columns) };
                place.copy_from_slice(&of_value[..n_columns]);
            }
        }
        of_skip
    }

    /// Row `n` of the span: writes the state behind it to `behind`, which may be `before`.
    ///
    /// # Safety
    /// That of [`Lanes`]; both are blocks.
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, n: usize, before: *const f32, behind: *mut f32) -> Step {
        let operands = self.task.operands;
        let Recurrence { rule, heads } = operands.recurrence;
        let k_dim = heads.k_dim;
        let key = &self.keys[(2 * n + 1) * k_dim..][..k_dim];
        let [decay, factor] = self.gates[n];
        let n_columns = STATE_COLUMNS.min(heads.v_dim - self.first);
        let first = (self.task.span.rows.start + n) * heads.width();
        let first = first + operands.recurrence.value(self.head).start + self.first;
        let mut step = NO_STEP;
        step.value[..n_columns].copy_from_slice(&operands.x[first..first + n_columns]);
        step.new = step.value;
        // SAFETY: the caller's contract.
        unsafe {
            if rule == RecurrentRule::GatedDelta {
                for column in (0..STATE_COLUMNS).step_by(L::WIDTH) {
                    let mut sums = [L::splat(0.0); 4];
                    for (i, key) in key.iter().enumerate() {
                        let state = L::load(before.add(i * STATE_COLUMNS + column));
                        sums[i % 4] = state.times_plus(L::splat(*key), sums[i % 4]);
                    }
                    let sum = sums[0].plus(sums[1]).plus(sums[2].plus(sums[3]));
                    sum.store(step.recalled.as_mut_ptr().add(column));
                    let new = L::load(step.value.as_ptr().add(column)).minus(sum.times(L::splat(decay)));
                    new.store(step.new.as_mut_ptr().add(column));
                }
            }
            step.delta = step.new.map(|new| new * factor);
            for (i, key) in key.iter().enumerate() {
                for column in (0..STATE_COLUMNS).step_by(L::WIDTH) {
                    let state = L::load(before.add(i * STATE_COLUMNS + column)).times(L::splat(decay));
                    let delta = L::load(step.delta.as_ptr().add(column));
                    L::splat(*key).times_plus(delta, state).store(behind.add(i * STATE_COLUMNS + column));
                }
            }
        }
        step
    }

    /// Row `n` backward: turns the gradient of the state behind it into that of the state before it, `state`. Adds to the
    /// gradients of the query and key and of the gates, and returns that of the value without a skip.
    ///
    /// With the gradients `G` of the state behind the row (its own output's included) and `d = sum of key_i G_i` of `delta`: of
    /// what the key recalled `m = -factor d`, of the key `G delta + S (decay m)`, of the decay `G S + m recalled`, of the state
    /// before it `decay (G + key m)`. The query's is `S' o`, where `S' = decay S + key delta` is the state behind the row.
    ///
    /// # Safety
    /// That of [`Lanes`].
    #[expect(clippy::too_many_arguments, reason = "the operands of a row")]
    #[inline(always)]
    unsafe fn step_back<L: Lanes>(
        &self,
        n: usize,
        state: &[f32],
        step: &Step,
        of_output: &Columns,
        of_state: &mut [f32],
        of_keys: &mut [f32],
        of_gates: &mut [f32; 2],
    ) -> Columns {
        let k_dim = of_keys.len() / 2;
        let (query, key) = self.keys[2 * n * k_dim..][..2 * k_dim].split_at(k_dim);
        let [decay, factor] = self.gates[n];
        let is_delta = self.task.operands.recurrence.rule == RecurrentRule::GatedDelta;
        let (of_query, of_key) = of_keys.split_at_mut(k_dim);
        assert!(state.len() == k_dim * STATE_COLUMNS && of_state.len() == state.len());
        let mut of_delta = [0.0; STATE_COLUMNS];
        // SAFETY: the caller's contract; rows and columns are within a block.
        unsafe {
            for column in (0..STATE_COLUMNS).step_by(L::WIDTH) {
                let of_output = L::load(of_output.as_ptr().add(column));
                let mut sums = [L::splat(0.0); 4];
                for (i, (query, key)) in query.iter().zip(key).enumerate() {
                    let place = of_state.as_mut_ptr().add(i * STATE_COLUMNS + column);
                    let value = of_output.times_plus(L::splat(*query), L::load(place));
                    value.store(place);
                    sums[i % 4] = value.times_plus(L::splat(*key), sums[i % 4]);
                }
                let sum = sums[0].plus(sums[1]).plus(sums[2].plus(sums[3]));
                sum.store(of_delta.as_mut_ptr().add(column));
            }
            let of_new = of_delta.map(|of_delta| of_delta * factor);
            let of_recalled = if is_delta { of_new.map(|of_new| -of_new) } else { [0.0; STATE_COLUMNS] };
            let along = dot(&step.delta, of_output);
            let decayed_output = of_output.map(|of_output| of_output * decay);
            let decayed_recalled = of_recalled.map(|of_recalled| of_recalled * decay);
            let mut of_decay = [L::splat(0.0); 4];
            for i in 0..k_dim {
                let (mut of_key_sums, mut of_query_sums) = ([L::splat(0.0); 4], [L::splat(0.0); 4]);
                for (j, column) in (0..STATE_COLUMNS).step_by(L::WIDTH).enumerate() {
                    let at = |values: &Columns| L::load(values.as_ptr().add(column));
                    let place = of_state.as_mut_ptr().add(i * STATE_COLUMNS + column);
                    let (of_state, state) = (L::load(place), L::load(state.as_ptr().add(i * STATE_COLUMNS + column)));
                    of_query_sums[j] = state.times(at(&decayed_output));
                    let of_key = of_state.times(at(&step.delta));
                    of_key_sums[j] = if is_delta { state.times_plus(at(&decayed_recalled), of_key) } else { of_key };
                    of_decay[j] = of_state.times_plus(state, of_decay[j]);
                    let of_before = match is_delta {
                        true => L::splat(key[i]).times_plus(at(&of_recalled), of_state),
                        false => of_state,
                    };
                    of_before.times(L::splat(decay)).store(place);
                }
                of_key[i] += total(of_key_sums);
                of_query[i] += total(of_query_sums) + key[i] * along;
            }
            let of_decay = total(of_decay) + dot(&of_recalled, &step.recalled);
            of_gates[0] += of_decay * decay;
            of_gates[1] += dot(&of_delta, &step.new);
            of_new
        }
    }
}

/// The sum of a row's products, of which the registers hold [`STATE_COLUMNS`].
#[expect(unsafe_code, reason = "registers")]
#[inline(always)]
unsafe fn total<L: Lanes>(sums: [L; 4]) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        match STATE_COLUMNS / L::WIDTH {
            2 => sums[0].plus(sums[1]).sum(),
            // As the halves of wider registers are added.
            _ => sums[0].plus(sums[2]).plus(sums[1].plus(sums[3])).sum(),
        }
    }
}

#[inline(always)]
fn dot(one: &Columns, other: &Columns) -> f32 {
    sum_of_pairs(one, other, |one, other| one * other)
}
