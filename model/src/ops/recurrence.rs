//! Recurrences over the rows of a sequence with a matrix as state: the gated delta rule and Mamba-2's state space.
//!
//! For each value head, with the log `g` of a decay and a factor `b` for each row: `S = e^g S + k d^T` and the output `S^T q`,
//! where `d` is `b (v - e^g S^T k)` for the gated delta rule and `b v` for a state space. Serving takes this form for prompts
//! too, so a row's bits do not depend on how its sequence is cut into steps.

use burn::tensor::{Device, Tensor, activation};

use super::{
    cpu,
    training::apply,
    types::{Placement, Recurrence, RecurrentHeads, RecurrentRows, RecurrentRule, STATE_COLUMNS, StatePart},
};

/// The gated delta rule ([Yang et al., 2024](https://arxiv.org/abs/2412.06464), 3.1) over `qkv [n_rows, 2 k_width +
/// v_width]`: queries, keys and values side by side. `gates [n_rows, 2 n_v_heads]` are the logs of the decays and then the
/// betas, see [`delta_gates`]. Queries and keys are normalized to length 1 here, and queries divided by `sqrt(k_dim)`.
///
/// Returns `[n_rows, v_width]`. With `state`, a span that continues its sequence begins with the state in its slot, and
/// stores the state after its last row there.
///
/// # Panics
/// Unless the shapes agree, and spans have slots of `state` exactly if it is given.
pub(crate) fn gated_delta(
    qkv: Tensor<2>,
    gates: Tensor<2>,
    heads: RecurrentHeads,
    rows: &RecurrentRows,
    state: Option<StatePart<'_>>,
) -> Tensor<2> {
    recurrence(qkv, gates, None, Recurrence { rule: RecurrentRule::GatedDelta, heads }, rows, state)
}

/// Mamba-2's state space ([Dao and Gu, 2024](https://arxiv.org/abs/2405.21060), 2) over `xbc [n_rows, v_width + 2 k_width]`:
/// `x`, `B` and `C` side by side. `gates [n_rows, 2 n_v_heads]` are the logs of the decays and then the time steps, see
/// [`state_space_gates`]. `skip [n_v_heads]` times `x` is added to the output (`D`).
///
/// Returns `[n_rows, v_width]`; states are handled as in [`gated_delta`].
///
/// # Panics
/// As [`gated_delta`].
pub(crate) fn state_space(
    xbc: Tensor<2>,
    gates: Tensor<2>,
    skip: Tensor<1>,
    heads: RecurrentHeads,
    rows: &RecurrentRows,
    state: Option<StatePart<'_>>,
) -> Tensor<2> {
    recurrence(xbc, gates, Some(skip), Recurrence { rule: RecurrentRule::StateSpace, heads }, rows, state)
}

fn recurrence(
    x: Tensor<2>,
    gates: Tensor<2>,
    skip: Option<Tensor<1>>,
    recurrence: Recurrence,
    rows: &RecurrentRows,
    state: Option<StatePart<'_>>,
) -> Tensor<2> {
    let (heads, n_rows) = (recurrence.heads, rows.n_rows());
    assert!(heads.n_v_heads.is_multiple_of(heads.n_k_heads), "value heads share key heads evenly: {heads:?}");
    assert_eq!(x.dims(), [n_rows, heads.width()], "queries, keys and values");
    assert_eq!(gates.dims(), [n_rows, 2 * heads.n_v_heads], "decays and factors");
    assert!(skip.as_ref().is_none_or(|skip| skip.dims() == [heads.n_v_heads]), "a factor for each head");
    check_states(rows, &state, heads.state_len());
    match (Placement::of(&x.device()), state) {
        (Placement::Cpu, state) => {
            let (x, gates, skip) = (cpu::values(x), cpu::values(gates), skip.map(cpu::values));
            let operands = cpu::RecurrentOperands {
                recurrence,
                x: x.as_slice(),
                gates: gates.as_slice(),
                skip: skip.as_ref().map(|skip| skip.as_slice()),
            };
            let output = with_states(state, |states| cpu::recurrence(&operands, rows.spans(), states));
            cpu::tensor(output, [n_rows, heads.v_width()])
        }
        (Placement::CpuTraining, None) => {
            let inputs = [x.into(), gates.into()].into_iter().chain(skip.map(Into::into));
            apply(inputs.collect(), cpu::Recur { recurrence, rows: rows.clone() })
        }
        (_, state) => recurrence_reference(x, gates, skip, recurrence, rows, state),
    }
}

/// [`gated_delta`] and [`state_space`] in plain Burn operations, one row after the other.
pub(in crate::ops) fn recurrence_reference(
    x: Tensor<2>,
    gates: Tensor<2>,
    skip: Option<Tensor<1>>,
    recurrence: Recurrence,
    rows: &RecurrentRows,
    mut state: Option<StatePart<'_>>,
) -> Tensor<2> {
    let Recurrence { rule, heads } = recurrence;
    let RecurrentHeads { n_k_heads, n_v_heads, k_dim, v_dim, is_tiled } = heads;
    let device = x.device();
    let mut outputs = Vec::new();
    for span in rows.spans() {
        let kept = state
            .as_ref()
            .zip(span.slot)
            .map(|(part, slot)| [slot..slot + 1, part.first..part.first + heads.state_len()]);
        let mut s = match (&state, &kept) {
            (Some(part), Some(place)) if !span.is_first => matrices(part.pool.clone().slice(place.clone()), heads),
            _ => Tensor::zeros([n_v_heads, k_dim, v_dim], &device),
        };
        for row in span.rows.clone() {
            let part = |first: usize, [n_heads, width]: [usize; 2]| {
                x.clone().slice([row..row + 1, first..first + n_heads * width]).reshape([n_heads, 1, width])
            };
            let [q_start, k_start, v_start] = recurrence.starts();
            let [q, k] = [q_start, k_start].map(|start| {
                let heads = part(start, [n_k_heads, k_dim]);
                let heads = match rule {
                    RecurrentRule::GatedDelta => {
                        let squares = heads.clone().square().sum_dim(2);
                        heads * (squares + Recurrence::EPS).sqrt().recip()
                    }
                    RecurrentRule::StateSpace => heads,
                };
                // One for each value head, as a column.
                let along = if is_tiled { 0 } else { 1 };
                heads.repeat_dim(along, n_v_heads / n_k_heads).reshape([n_v_heads, k_dim, 1])
            });
            let v = part(v_start, [n_v_heads, v_dim]);
            let gate =
                |first: usize| gates.clone().slice([row..row + 1, first..first + n_v_heads]).reshape([n_v_heads, 1, 1]);
            s = s * gate(0).exp();
            let new = match rule {
                RecurrentRule::GatedDelta => v.clone() - (s.clone() * k.clone()).sum_dim(1),
                RecurrentRule::StateSpace => v.clone(),
            };
            s = s + k * (new * gate(n_v_heads));
            let output = (s.clone() * (q * recurrence.scale())).sum_dim(1);
            let output = match &skip {
                Some(skip) => output + v * skip.clone().reshape([n_v_heads, 1, 1]),
                None => output,
            };
            outputs.push(output.reshape([1, n_v_heads * v_dim]));
        }
        if let (Some(part), Some(place)) = (&mut state, kept) {
            let blocks = blocks(s, heads);
            part.pool.inplace(|pool| pool.slice_assign(place, blocks));
        }
    }
    Tensor::cat(outputs, 0)
}

/// A slot's `[1, state_len]` as matrices `[n_v_heads, k_dim, v_dim]`.
fn matrices(state: Tensor<2>, heads: RecurrentHeads) -> Tensor<3> {
    let RecurrentHeads { n_v_heads, k_dim, v_dim, .. } = heads;
    let n_blocks = heads.n_blocks();
    let blocks = state.reshape([n_v_heads, n_blocks, k_dim, STATE_COLUMNS]).swap_dims(1, 2);
    blocks.reshape([n_v_heads, k_dim, n_blocks * STATE_COLUMNS]).slice([0..n_v_heads, 0..k_dim, 0..v_dim])
}

/// The opposite of [`matrices`].
fn blocks(s: Tensor<3>, heads: RecurrentHeads) -> Tensor<2> {
    let RecurrentHeads { n_v_heads, k_dim, v_dim, .. } = heads;
    let n_blocks = heads.n_blocks();
    let n_missing = n_blocks * STATE_COLUMNS - v_dim;
    let padded = match n_missing {
        0 => s,
        _ => Tensor::cat(vec![s.clone(), Tensor::zeros([n_v_heads, k_dim, n_missing], &s.device())], 2),
    };
    padded.reshape([n_v_heads, k_dim, n_blocks, STATE_COLUMNS]).swap_dims(1, 2).reshape([1, heads.state_len()])
}

/// The gates of [`gated_delta`] from `ba [n_rows, 2 n_v_heads]`, the projections for the betas and then those for the decays:
/// `-e^a_log softplus(a + dt_bias)`, and the sigmoid of `b`. `a_log` and `dt_bias` are `[n_v_heads]`.
pub(crate) fn delta_gates(ba: Tensor<2>, a_log: Tensor<1>, dt_bias: Tensor<1>) -> Tensor<2> {
    let dims @ [n_rows, width] = ba.dims();
    if Placement::of(&ba.device()) == Placement::Cpu {
        let [a_log, dt_bias] = [a_log, dt_bias].map(cpu::values);
        let gates = cpu::delta_gates(cpu::values(ba).as_slice(), a_log.as_slice(), dt_bias.as_slice());
        return cpu::tensor(gates, dims);
    }
    let (b, a) = (ba.clone().slice([0..n_rows, 0..width / 2]), ba.slice([0..n_rows, width / 2..width]));
    let decay = softplus(a + dt_bias.unsqueeze()) * a_log.exp().neg().unsqueeze();
    Tensor::cat(vec![decay, activation::sigmoid(b)], 1)
}

/// The gates of [`state_space`] from the projections `dt [n_rows, n_v_heads]`: the time steps `softplus(dt + dt_bias)`,
/// within `limits`, and the logs of the decays, `-e^a_log` times the time steps. `a_log` and `dt_bias` are `[n_v_heads]`.
pub(crate) fn state_space_gates(dt: Tensor<2>, a_log: Tensor<1>, dt_bias: Tensor<1>, limits: [f64; 2]) -> Tensor<2> {
    if Placement::of(&dt.device()) == Placement::Cpu {
        let [n_rows, n_heads] = dt.dims();
        let [a_log, dt_bias] = [a_log, dt_bias].map(cpu::values);
        let limits = limits.map(|limit| limit as f32);
        let bias = [a_log.as_slice(), dt_bias.as_slice()];
        let gates = cpu::state_space_gates(n_rows, cpu::columns(dt).rows(), bias, limits);
        return cpu::tensor(gates, [n_rows, 2 * n_heads]);
    }
    let steps = softplus(dt + dt_bias.unsqueeze());
    let steps = match limits {
        [0.0, f64::INFINITY] => steps,
        [least, most] => steps.clamp(least, most),
    };
    Tensor::cat(vec![steps.clone() * a_log.exp().neg().unsqueeze(), steps], 1)
}

/// `ln(1 + e^x)`, without overflow: `max(x, 0) + ln(1 + e^-|x|)`.
fn softplus(x: Tensor<2>) -> Tensor<2> {
    activation::relu(x.clone()) + x.abs().neg().exp().log1p()
}

/// A pool of `n_slots` states of `state_len` values, all 0.
pub(crate) fn new_states(n_slots: usize, state_len: usize, device: &Device) -> Tensor<2> {
    match Placement::of(device) {
        Placement::Cpu => cpu::pool_of_zeros::<f32>([n_slots, state_len]),
        _ => Tensor::zeros([n_slots, state_len], device),
    }
}

/// Copies the state in slot `from` to slot `to` of a pool.
///
/// # Panics
/// If the pool has no such slot.
pub(crate) fn copy_state(pool: &mut Tensor<2>, from: usize, to: usize) {
    let [_, state_len] = pool.dims();
    match Placement::of(&pool.device()) {
        Placement::Cpu => cpu::update::<f32>(pool, |values| {
            values.copy_within(from * state_len..(from + 1) * state_len, to * state_len);
        }),
        _ => pool.inplace(|pool| {
            let state = pool.clone().slice([from..from + 1, 0..state_len]);
            pool.slice_assign([to..to + 1, 0..state_len], state)
        }),
    }
}

/// Runs `run` on the states of `part` in memory of the CPU, in place unless another tensor shares the pool.
pub(super) fn with_states<T>(part: Option<StatePart<'_>>, run: impl FnOnce(Option<&cpu::States<'_>>) -> T) -> T {
    let Some(StatePart { pool, first }) = part else { return run(None) };
    let [_, slot_len] = pool.dims();
    let mut result = None;
    cpu::update::<f32>(pool, |values| result = Some(run(Some(&cpu::States::new(values, slot_len, first)))));
    result.unwrap_or_else(|| unreachable!("`update` calls its closure"))
}

/// Checks what bodies rely on: the rows have slots if and only if there is a pool, and the slots are in it.
pub(super) fn check_states(rows: &RecurrentRows, state: &Option<StatePart<'_>>, state_len: usize) {
    let [n_slots, slot_len] = state.as_ref().map_or([0, 0], |state| state.pool.dims());
    let first = state.as_ref().map_or(0, |state| state.first);
    assert!(
        state.is_none() || first + state_len <= slot_len,
        "{state_len} values from {first} on in slots of {slot_len}"
    );
    for span in rows.spans() {
        assert_eq!(span.slot.is_some(), state.is_some(), "a pool for spans with slots, and no other");
        assert!(span.slot.is_none_or(|slot| slot < n_slots), "slot {:?} of {n_slots}", span.slot);
    }
}
