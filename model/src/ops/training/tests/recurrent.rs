//! Recurrent layers: against `transformers` (`tests/golden/make_recurrent.py` makes the numbers), against their references, and
//! packed documents against separate ones.

use std::collections::HashMap;

use super::{super::super::types, *};
use crate::ops::{
    cpu::noise,
    gated_norm::{gated_norm, gated_norm_reference},
    recurrence::{delta_gates, gated_delta, new_states, recurrence_reference, state_space, state_space_gates},
    short_conv::{short_conv, short_conv_reference},
};
use types::{
    GateOrder, GatedNormOptions, Recurrence, RecurrentHeads, RecurrentRows, RecurrentRule, STATE_COLUMNS, ShortConv,
    StatePart,
};

fn golden(case: &str) -> Vec<Vec<f32>> {
    let cases = include_str!("../../../../tests/golden/recurrent.json");
    let mut cases: HashMap<String, Vec<Vec<f32>>> = serde_json::from_str(cases).unwrap();
    cases.remove(case).unwrap()
}

/// The leaf that the golden numbers' script has for `seed`, plus a number.
fn noise_leaf<const D: usize>(seed: u32, dims: [usize; D], plus: f32) -> Tensor<D> {
    let values: Vec<_> = noise(dims.iter().product(), seed).into_iter().map(|value| value + plus).collect();
    Tensor::from_data(TensorData::new(values, dims), &device()).require_grad()
}

/// [`outcome`] with the weights of the golden numbers.
fn golden_outcome(output: Tensor<2>, gradients_of: &[GradientOf<'_>]) -> Vec<Vec<f32>> {
    let weights = Tensor::<1>::from_data(noise(output.shape().num_elements(), 99).as_slice(), &device());
    let gradients = (output.clone().flatten(0, 1) * weights).sum().backward();
    let outputs = [values(output.inner())];
    outputs.into_iter().chain(gradients_of.iter().map(|of| of(&gradients))).collect()
}

#[test]
fn convolutions_give_the_numbers_of_transformers() {
    for (case, kernel, has_bias, has_silu) in [
        ("conv-4-silu", 4, false, true),
        ("conv-4-bias-silu", 4, true, true),
        ("conv-3", 3, false, false),
        ("conv-3-bias", 3, true, false),
    ] {
        let (x, weight, bias) = (noise_leaf(1, [18, 5], 0.0), noise_leaf(2, [5, kernel], 0.0), noise_leaf(3, [5], 0.0));
        let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&weight), &gradient(&bias)];
        let of = if has_bias { &of[..] } else { &of[..2] };
        let conv = ShortConv { weight: weight.clone(), bias: has_bias.then(|| bias.clone()), has_silu };
        let rows = RecurrentRows::dense(2, 9, None);
        assert_close(&golden_outcome(short_conv(x.clone(), &conv, &rows, None), of), &golden(case), case);
        assert_close(&golden_outcome(short_conv_reference(x.clone(), &conv, &rows, None), of), &golden(case), case);
    }
}

/// A slot's state as `transformers` has it, `[n_v_heads, k_dim, v_dim]`.
fn plain_state(state: &[f32], heads: RecurrentHeads) -> Vec<f32> {
    let RecurrentHeads { n_v_heads, k_dim, v_dim, .. } = heads;
    let value = |head: usize, i: usize, column: usize| {
        let block = head * heads.n_blocks() + column / STATE_COLUMNS;
        state[(block * k_dim + i) * STATE_COLUMNS + column % STATE_COLUMNS]
    };
    let indices = (0..n_v_heads).flat_map(|head| (0..k_dim).flat_map(move |i| (0..v_dim).map(move |c| (head, i, c))));
    indices.map(|(head, i, column)| value(head, i, column)).collect()
}

#[test]
fn recurrences_give_the_numbers_of_transformers() {
    let unlimited = [0.0, f64::INFINITY];
    for (case, limits) in [("gated-delta", unlimited), ("state-space", unlimited), ("state-space-limits", [0.03, 0.1])]
    {
        let is_delta = case == "gated-delta";
        let (n_rows, heads) = match is_delta {
            true => (70, RecurrentHeads { n_k_heads: 1, n_v_heads: 2, k_dim: 4, v_dim: 5, is_tiled: false }),
            false => (40, RecurrentHeads { n_k_heads: 2, n_v_heads: 4, k_dim: 4, v_dim: 3, is_tiled: false }),
        };
        let n_v_heads = heads.n_v_heads;
        let x = noise_leaf(1, [n_rows, heads.width()], 0.0);
        let raw = noise_leaf(2, [n_rows, if is_delta { 2 * n_v_heads } else { n_v_heads }], 0.0);
        let (a_log, dt_bias) = (noise_leaf(3, [n_v_heads], 0.0), noise_leaf(4, [n_v_heads], -3.0));
        let skip = noise_leaf(5, [n_v_heads], 0.0);
        let of: [GradientOf<'_>; 5] =
            [&gradient(&x), &gradient(&raw), &gradient(&a_log), &gradient(&dt_bias), &gradient(&skip)];
        let of = if is_delta { &of[..4] } else { &of[..] };
        let mut expected = golden(case);
        let expected_state = expected.remove(1);
        let gates = || match is_delta {
            true => delta_gates(raw.clone(), a_log.clone(), dt_bias.clone()),
            false => state_space_gates(raw.clone(), a_log.clone(), dt_bias.clone(), limits),
        };
        let rows = RecurrentRows::dense(1, n_rows, None);
        let run =
            |x: Tensor<2>, gates: Tensor<2>, skip: Tensor<1>, rows: &RecurrentRows, state: Option<StatePart<'_>>| {
                match is_delta {
                    true => gated_delta(x, gates, heads, rows, state),
                    false => state_space(x, gates, skip, heads, rows, state),
                }
            };
        let output = run(x.clone(), gates(), skip.clone(), &rows, None);
        assert_close(&golden_outcome(output, of), &expected, case);
        let rule = if is_delta { RecurrentRule::GatedDelta } else { RecurrentRule::StateSpace };
        let given = (!is_delta).then(|| skip.clone());
        let reference = recurrence_reference(x.clone(), gates(), given, Recurrence { rule, heads }, &rows, None);
        assert_close(&golden_outcome(reference, of), &expected, case);

        // Serving: with the fused body of the gates, and the final state.
        let [x, raw] = [&x, &raw].map(|tensor| tensor.clone().inner());
        let [a_log, dt_bias, skip] = [&a_log, &dt_bias, &skip].map(|tensor| tensor.clone().inner());
        let gates = match is_delta {
            true => delta_gates(raw, a_log, dt_bias),
            false => state_space_gates(raw, a_log, dt_bias, limits),
        };
        let mut pool = new_states(3, heads.state_len() + 7, &Device::flex());
        let state = Some(StatePart { pool: &mut pool, first: 7 });
        let output = values(run(x, gates, skip, &RecurrentRows::stepped([(n_rows, 0, 1)]), state));
        let slot = values(pool);
        let slot = &slot[heads.state_len() + 14..2 * heads.state_len() + 14];
        assert_close(&[output, plain_state(slot, heads)], &[expected[0].clone(), expected_state], case);
    }
}

#[test]
fn gated_norms_give_the_numbers_of_transformers() {
    for (case, order, n_weights) in [("norm-after", GateOrder::AfterNorm, 4), ("norm-before", GateOrder::BeforeNorm, 8)]
    {
        let (x, z) = (noise_leaf(1, [3, 8], 0.0), noise_leaf(2, [3, 8], 0.0));
        let weight = noise_leaf(3, [n_weights], 0.0);
        let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&z), &gradient(&weight)];
        let options = GatedNormOptions { width: 4, eps: 1e-5, order };
        let found = golden_outcome(gated_norm(x.clone(), z.clone(), weight.clone(), options), &of);
        assert_close(&found, &golden(case), case);
        let served = gated_norm(x.clone().inner(), z.clone().inner(), weight.clone().inner(), options);
        assert_close(&[values(served)], &golden(case)[..1], case);
        let reference = golden_outcome(gated_norm_reference(x.clone(), z.clone(), weight.clone(), options), &of);
        assert_close(&reference, &golden(case), case);
    }
}

#[test]
fn gated_norms_match_the_reference_forward_and_backward() {
    for order in [GateOrder::AfterNorm, GateOrder::BeforeNorm] {
        for (n_rows, n_groups, width, is_shared) in [(1, 1, 2, true), (70, 3, 17, false), (40, 2, 64, true)] {
            let (x, z) = (leaf(1, [n_rows, n_groups * width], 3.0), leaf(2, [n_rows, n_groups * width], 3.0));
            let weight = leaf(3, [if is_shared { width } else { n_groups * width }], 1.0);
            let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&z), &gradient(&weight)];
            let options = GatedNormOptions { width, eps: 1e-5, order };
            let found = outcome(gated_norm(x.clone(), z.clone(), weight.clone(), options), &of);
            let expected = outcome(gated_norm_reference(x.clone(), z.clone(), weight.clone(), options), &of);
            assert_close(&found, &expected, &format!("{order:?} {n_rows} x {n_groups} x {width}"));
        }
    }
}

/// Two sequences of documents: some of one row, and one that begins with the end of a document.
const POSITIONS: [u32; 2 * 12] = [0, 1, 2, 3, 0, 0, 1, 0, 1, 2, 3, 4, 7, 8, 0, 1, 2, 3, 4, 5, 6, 0, 1, 0];

#[test]
fn convolutions_match_the_reference_forward_and_backward() {
    for (batch, seq_len, channels, kernel, positions) in [
        (1, 1, 1, 4, None),
        (2, 12, 37, 4, None),
        (2, 12, 37, 3, Some(&POSITIONS[..])),
        (2, 12, 130, 4, Some(&POSITIONS[..])),
        (1, 70, 260, 2, None),
        (1, 9, 5, 6, None),
    ] {
        for has_silu in [false, true] {
            for has_bias in [false, true] {
                let x = leaf(1, [batch * seq_len, channels], 1.0);
                let (weight, bias) = (leaf(2, [channels, kernel], 1.0), leaf(3, [channels], 1.0));
                let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&weight), &gradient(&bias)];
                let of = if has_bias { &of[..] } else { &of[..2] };
                let conv = ShortConv { weight: weight.clone(), bias: has_bias.then(|| bias.clone()), has_silu };
                let rows = RecurrentRows::dense(batch, seq_len, positions);
                let found = outcome(short_conv(x.clone(), &conv, &rows, None), of);
                let expected = outcome(short_conv_reference(x.clone(), &conv, &rows, None), of);
                assert_close(
                    &found,
                    &expected,
                    &format!("{batch} x {seq_len} x {channels}, {kernel}, silu {has_silu}"),
                );
            }
        }
    }
}

/// Gates with decays that last, and factors around a half.
fn gates(seed: u64, n_rows: usize, n_v_heads: usize) -> Tensor<2> {
    let decays = leaf::<2>(seed, [n_rows, n_v_heads], 0.5).inner().abs().neg();
    let factors = leaf::<2>(seed + 1, [n_rows, n_v_heads], 0.4).inner() + 0.5;
    Tensor::from_data(Tensor::cat(vec![decays, factors], 1).into_data(), &device()).require_grad()
}

const HEADS: [RecurrentHeads; 4] = [
    RecurrentHeads { n_k_heads: 1, n_v_heads: 1, k_dim: 1, v_dim: 1, is_tiled: false },
    RecurrentHeads { n_k_heads: 2, n_v_heads: 4, k_dim: 8, v_dim: 6, is_tiled: true },
    RecurrentHeads { n_k_heads: 1, n_v_heads: 3, k_dim: 5, v_dim: 33, is_tiled: false },
    RecurrentHeads { n_k_heads: 2, n_v_heads: 2, k_dim: 16, v_dim: 64, is_tiled: false },
];

#[test]
fn recurrences_match_the_reference_forward_and_backward() {
    for heads in HEADS {
        for rule in [RecurrentRule::GatedDelta, RecurrentRule::StateSpace] {
            for (batch, seq_len, positions) in [(1, 1, None), (1, 70, None), (2, 12, Some(&POSITIONS[..]))] {
                let n_rows = batch * seq_len;
                let (x, gates) = (leaf(1, [n_rows, heads.width()], 1.0), gates(2, n_rows, heads.n_v_heads));
                let skip = leaf(4, [heads.n_v_heads], 1.0);
                let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&gates), &gradient(&skip)];
                let rows = RecurrentRows::dense(batch, seq_len, positions);
                let is_delta = rule == RecurrentRule::GatedDelta;
                let of = if is_delta { &of[..2] } else { &of[..] };
                let output = match is_delta {
                    true => gated_delta(x.clone(), gates.clone(), heads, &rows, None),
                    false => state_space(x.clone(), gates.clone(), skip.clone(), heads, &rows, None),
                };
                let found = outcome(output, of);
                let given = (!is_delta).then(|| skip.clone());
                let reference =
                    recurrence_reference(x.clone(), gates.clone(), given, Recurrence { rule, heads }, &rows, None);
                assert_close(&found, &outcome(reference, of), &format!("{rule:?}, {heads:?}, {batch} x {seq_len}"));
            }
        }
    }
}

/// A caller from within a parallel operation has one thread, any other has all.
#[test]
fn recurrent_layers_give_the_same_bits_with_one_thread_and_with_all() {
    let heads = RecurrentHeads { n_k_heads: 2, n_v_heads: 4, k_dim: 32, v_dim: 64, is_tiled: false };
    let run = || {
        let n_rows = 70;
        let (x, gates) = (leaf(1, [n_rows, heads.width()], 1.0), gates(2, n_rows, heads.n_v_heads));
        let (weight, scale) = (leaf(4, [heads.width(), 4], 1.0), leaf(5, [64], 1.0));
        let rows = RecurrentRows::dense(1, n_rows, None);
        let conv = ShortConv { weight: weight.clone(), bias: None, has_silu: true };
        let output = gated_delta(short_conv(x.clone(), &conv, &rows, None), gates.clone(), heads, &rows, None);
        let options = GatedNormOptions { width: 64, eps: 1e-6, order: GateOrder::AfterNorm };
        let output = gated_norm(output, leaf(6, [n_rows, heads.v_width()], 1.0), scale.clone(), options);
        outcome(output, &[&gradient(&x), &gradient(&gates), &gradient(&weight), &gradient(&scale)])
    };
    let mut alone = [const { Vec::new() }; 2];
    ops::parallel_for_each(&mut alone, |found| *found = run());
    assert!(alone.iter().all(|alone| *alone == run()));
}

/// Outputs and gradients of rows have the same bits; gradients of parameters are sums over the documents.
#[test]
fn packed_documents_equal_separate_ones() {
    let heads = HEADS[2];
    let n_rows = POSITIONS.len();
    let run = |part: std::ops::Range<usize>, batch: usize, positions: Option<&[u32]>| {
        let rows_of = |tensor: Tensor<2>| {
            let [_, width] = tensor.dims();
            Tensor::<2>::from_data(tensor.inner().slice([part.clone(), 0..width]).into_data(), &device()).require_grad()
        };
        let rows = RecurrentRows::dense(batch, part.len() / batch, positions);
        let (x, gates) = (rows_of(leaf(1, [n_rows, heads.width()], 1.0)), rows_of(gates(2, n_rows, heads.n_v_heads)));
        let weights = rows_of(leaf(3, [n_rows, heads.v_width()], 1.0)).inner().into_data();
        let (weight, bias) = (leaf(4, [heads.width(), 4], 1.0), leaf(5, [heads.width()], 1.0));
        let skip = leaf(6, [heads.n_v_heads], 1.0);
        let conv = ShortConv { weight: weight.clone(), bias: Some(bias.clone()), has_silu: true };
        let convolved = short_conv(x.clone(), &conv, &rows, None);
        let output = gated_delta(convolved.clone(), gates.clone(), heads, &rows, None)
            + state_space(convolved, gates.clone(), skip.clone(), heads, &rows, None);
        let gradients = (output.clone() * Tensor::from_data(weights, &device())).sum().backward();
        let by_row = [values(output.inner()), gradient(&x)(&gradients), gradient(&gates)(&gradients)];
        (by_row, [gradient(&weight)(&gradients), gradient(&bias)(&gradients), gradient(&skip)(&gradients)])
    };
    let (packed, packed_sums) = run(0..n_rows, 2, Some(&POSITIONS));
    let starts: Vec<_> = (0..n_rows).filter(|&row| row == 12 || POSITIONS[row] == 0).chain([n_rows]).collect();
    let separate: Vec<_> = starts.windows(2).map(|ends| run(ends[0]..ends[1], 1, None)).collect();
    for (n, packed) in packed.iter().enumerate() {
        let separate: Vec<f32> = separate.iter().flat_map(|(by_row, _)| by_row[n].clone()).collect();
        assert_eq!(*packed, separate, "tensor {n}");
    }
    for (n, packed) in packed_sums.iter().enumerate() {
        let sums = |at: usize| separate.iter().map(|(_, sums)| sums[n][at]).sum::<f32>();
        let separate: Vec<f32> = (0..packed.len()).map(sums).collect();
        assert_close(std::slice::from_ref(packed), &[separate], &format!("parameter {n}"));
    }
}
