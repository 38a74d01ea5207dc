//! Serving of recurrent layers: the same bits in steps of every size, in any company and slots, and as the references have it.

use super::*;
use crate::ops::{
    recurrence::{copy_state, gated_delta, new_states, recurrence_reference, state_space},
    short_conv::{short_conv, short_conv_reference},
    types::{Recurrence, RecurrentHeads, RecurrentRows, RecurrentRule, ShortConv, StatePart},
};

/// A layer of both kinds of recurrence, whose states are in one slot.
struct Layer {
    conv: ShortConv,
    heads: RecurrentHeads,
    skip: Tensor<1>,
    rule: RecurrentRule,
}

impl Layer {
    fn new(heads: RecurrentHeads, kernel: usize, rule: RecurrentRule) -> Self {
        let conv = ShortConv {
            weight: random([heads.width(), kernel], 1.0),
            bias: Some(random([heads.width()], 1.0)),
            has_silu: true,
        };
        Self { conv, heads, skip: random([heads.n_v_heads], 1.0), rule }
    }

    fn conv_len(&self) -> usize {
        let [channels, kernel] = self.conv.weight.dims();
        ShortConv::state_len(channels, kernel)
    }

    fn new_states(&self, n_slots: usize) -> Tensor<2> {
        new_states(n_slots, self.conv_len() + self.heads.state_len(), &Device::flex())
    }

    fn run(&self, [x, gates]: [Tensor<2>; 2], rows: &RecurrentRows, mut pool: Option<&mut Tensor<2>>) -> Tensor<2> {
        let state = pool.as_deref_mut().map(|pool| StatePart { pool, first: 0 });
        let x = short_conv(x, &self.conv, rows, state);
        let state = pool.map(|pool| StatePart { pool, first: self.conv_len() });
        match self.rule {
            RecurrentRule::GatedDelta => gated_delta(x, gates, self.heads, rows, state),
            RecurrentRule::StateSpace => state_space(x, gates, self.skip.clone(), self.heads, rows, state),
        }
    }

    fn reference(&self, [x, gates]: [Tensor<2>; 2], rows: &RecurrentRows, pool: &mut Tensor<2>) -> Tensor<2> {
        let x = short_conv_reference(x, &self.conv, rows, Some(StatePart { pool, first: 0 }));
        let recurrence = Recurrence { rule: self.rule, heads: self.heads };
        let skip = (self.rule == RecurrentRule::StateSpace).then(|| self.skip.clone());
        recurrence_reference(x, gates, skip, recurrence, rows, Some(StatePart { pool, first: self.conv_len() }))
    }

    /// Inputs of `n_rows` rows, with decays that last.
    fn inputs(&self, n_rows: usize) -> [Tensor<2>; 2] {
        let decays = random([n_rows, self.heads.n_v_heads], 0.3).abs().neg();
        let factors = random([n_rows, self.heads.n_v_heads], 0.2) + 0.5;
        [random([n_rows, self.heads.width()], 1.0), Tensor::cat(vec![decays, factors], 1)]
    }
}

fn part(inputs: &[Tensor<2>; 2], rows: std::ops::Range<usize>) -> [Tensor<2>; 2] {
    inputs.clone().map(|tensor| {
        let [_, width] = tensor.dims();
        tensor.slice([rows.clone(), 0..width])
    })
}

fn heads() -> impl Strategy<Value = RecurrentHeads> {
    let heads = prop_oneof![Just((1, 1)), Just((2, 4)), Just((1, 3)), Just((4, 4))];
    let widths = prop_oneof![Just((1, 1)), Just((7, 20)), Just((16, 32)), Just((24, 70)), Just((64, 64))];
    (heads, widths, any::<bool>()).prop_map(|((n_k_heads, n_v_heads), (k_dim, v_dim), is_tiled)| RecurrentHeads {
        n_k_heads,
        n_v_heads,
        k_dim,
        v_dim,
        is_tiled,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Two sequences in steps of any sizes, alternating and together, in slots that held something else.
    #[test]
    fn recurrent_layers_give_the_same_bits_in_steps_of_every_size(
        heads in heads(),
        kernel in 2..6usize,
        is_delta in any::<bool>(),
        steps in prop::collection::vec((0..3usize, 1..20usize, 1..20usize), 1..6),
    ) {
        let rule = if is_delta { RecurrentRule::GatedDelta } else { RecurrentRule::StateSpace };
        let layer = Layer::new(heads, kernel, rule);
        // In each step: the first sequence, the second or both.
        let lens = |n: usize| steps.iter().map(move |step| if step.0 == 1 - n { 0 } else { [step.1, step.2][n] });
        let inputs = [0, 1].map(|n| layer.inputs(lens(n).sum::<usize>().max(1)));
        let whole = [0, 1].map(|n| {
            let [x, _] = &inputs[n];
            layer.run(inputs[n].clone(), &RecurrentRows::dense(1, x.dims()[0], None), None)
        });
        let mut pool = layer.new_states(3) + 3.0;
        let mut outputs = [Vec::new(), Vec::new()];
        for n_step in 0..steps.len() {
            let spans: Vec<_> = (0..2).filter_map(|n| {
                let start = lens(n).take(n_step).sum::<usize>();
                let len = lens(n).nth(n_step).unwrap();
                (len > 0).then_some((n, start, len))
            }).collect();
            let parts: Vec<_> = spans.iter().map(|&(n, start, len)| part(&inputs[n], start..start + len)).collect();
            let joined = [0, 1].map(|at| Tensor::cat(parts.iter().map(|part| part[at].clone()).collect(), 0));
            let rows = RecurrentRows::stepped(spans.iter().map(|&(n, start, len)| (len, start, [2, 0][n])));
            let output = values(layer.run(joined, &rows, Some(&mut pool)));
            let mut output = output.as_slice();
            for (n, _, len) in spans {
                let (own, rest) = output.split_at(len * heads.v_width());
                outputs[n].extend_from_slice(own);
                output = rest;
            }
        }
        for (output, whole) in outputs.iter().zip(whole) {
            prop_assert!(output.is_empty() || *output == values(whole));
        }
        // Nobody has written to the other slot.
        let untouched = values(pool.slice([1..2, 0..layer.conv_len() + heads.state_len()]));
        prop_assert!(untouched.iter().all(|value| *value == 3.0));
    }

    #[test]
    fn recurrent_steps_match_their_references(
        heads in heads(),
        kernel in 2..6usize,
        is_delta in any::<bool>(),
        lens in prop::collection::vec(1..12usize, 1..4),
    ) {
        let rule = if is_delta { RecurrentRule::GatedDelta } else { RecurrentRule::StateSpace };
        let layer = Layer::new(heads, kernel, rule);
        let mut pools = [layer.new_states(4), layer.new_states(4)];
        for start in [0, 5] {
            let n_rows = lens.iter().sum();
            let inputs = layer.inputs(n_rows);
            // The first sequence starts anew in both steps.
            let spans = lens.iter().enumerate().map(|(n, len)| (*len, if n == 0 { 0 } else { start }, 3 - n));
            let rows = RecurrentRows::stepped(spans);
            let [pool, reference_pool] = &mut pools;
            let found = layer.run(inputs.clone(), &rows, Some(pool));
            // The delta rule subtracts the recalled value from the new one.
            assert_within(2e-5, found, layer.reference(inputs, &rows, reference_pool));
            assert_within(2e-5, pool.clone(), reference_pool.clone());
        }
    }
}

#[test]
fn copied_states_go_on_like_the_original() {
    let heads = RecurrentHeads { n_k_heads: 1, n_v_heads: 2, k_dim: 8, v_dim: 40, is_tiled: false };
    let layer = Layer::new(heads, 4, RecurrentRule::GatedDelta);
    let mut pool = layer.new_states(2);
    layer.run(layer.inputs(9), &RecurrentRows::stepped([(9, 0, 0)]), Some(&mut pool));
    copy_state(&mut pool, 0, 1);
    let next = layer.inputs(1);
    let [original, copy] =
        [0, 1].map(|slot| values(layer.run(next.clone(), &RecurrentRows::stepped([(1, 9, slot)]), Some(&mut pool))));
    assert_eq!(original, copy);
}

#[test]
#[should_panic(expected = "two sequences of a step share a slot")]
fn sequences_that_share_a_slot_are_rejected() {
    RecurrentRows::stepped([(1, 3, 2), (1, 0, 2)]);
}
