//! Runs tests with every instruction set that the machine has, not only the best.

use std::cell::Cell;

use super::{Isa, PORTABLE_IS_FUSED};

thread_local! {
    /// What [`isa`](super::isa) returns on this thread instead of the best; other threads keep the best.
    static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// Runs `run` as on a machine that has no more than `level`.
pub(in crate::ops::cpu) fn with_isa<T>(level: Isa, run: impl FnOnce() -> T) -> T {
    FORCED.set(Some(level));
    let result = run();
    FORCED.set(None);
    result
}

pub(super) fn forced() -> Option<Isa> {
    FORCED.get()
}

/// All instruction sets of this machine.
pub(in crate::ops::cpu) fn every_isa() -> impl Iterator<Item = Isa> {
    super::here().map(|(_, isa)| *isa)
}

/// Whether products are added without being rounded first: such bodies agree to the bit.
pub(in crate::ops::cpu) fn is_fused(level: Isa) -> bool {
    level != Isa::Portable || PORTABLE_IS_FUSED
}

/// Numbers in -1..1, the same for equal seeds.
pub(in crate::ops) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

mod bodies {
    use burn::tensor::Device;
    use half::f16;

    use super::*;
    use crate::{
        config::{Activation, ClampedSwiglu, NormKind},
        ops::{
            AttentionOptions, NormOptions, PagedRows, Slots,
            cpu::{self, KvElement, pool_layout::pool_len},
            types::{
                GateOrder, GatedNormOptions, Recurrence, RecurrentHeads, RecurrentRows, RecurrentRule, STATE_COLUMNS,
            },
        },
    };

    /// Compares each instruction set with the best: equal bits if it has fused multiply-add, else close.
    fn check(what: &str, run: impl Fn() -> Vec<f32>) {
        check_within(2e-6, what, run);
    }

    /// As [`check`], with another tolerance for instruction sets without fused multiply-add.
    fn check_within(tolerance: f32, what: &str, run: impl Fn() -> Vec<f32>) {
        let expected = run();
        let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for level in every_isa() {
            let found = with_isa(level, &run);
            let is_equal = found.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits());
            assert!(is_equal || !is_fused(level), "{what} with {level:?}: other bits");
            let is_close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= tolerance * largest);
            assert!(is_close && found.len() == expected.len(), "{what} with {level:?}");
        }
    }

    #[test]
    fn norm_activation_and_soft_cap_agree_across_instruction_sets() {
        for width in [1, 16, 33, 576] {
            let (x, weight) = (noise(3 * width, 1), noise(width, 2));
            for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
                let options = NormOptions { kind, eps: 1e-5, weight_offset: 0.0 };
                check("norm", || cpu::norm(&x, &weight, Some(&weight), options));
            }
            for kind in
                [Activation::Relu, Activation::ReluSquared, Activation::Silu, Activation::GeluTanh, Activation::Gelu]
            {
                check("activate", || cpu::activate(&x, width, kind));
            }
            check("clamped_swiglu", || {
                let (mut gated, clamped) = (vec![0.0; x.len() / 2], ClampedSwiglu { alpha: 1.7, limit: 0.6 });
                cpu::clamped_swiglu_into(&x[..x.len() / 2 * 2], x.len() / 2, clamped, &mut gated);
                gated
            });
            check("soft_cap", || {
                let mut capped = x.clone();
                cpu::soft_cap(&mut capped, 0.3);
                capped
            });
        }
    }

    #[test]
    fn recurrent_layers_agree_across_instruction_sets() {
        let rows = RecurrentRows::stepped([(5, 3, 1), (2, 0, 0)]);
        for (k_dim, v_dim, kernel) in [(7, 5, 4), (16, 40, 3), (2, 64, 5)] {
            let heads = RecurrentHeads { n_k_heads: 2, n_v_heads: 4, k_dim, v_dim, is_tiled: false };
            let (x, mut gates) = (noise(7 * heads.width(), 1), noise(7 * 2 * heads.n_v_heads, 2));
            // States that grow would show the last bit of everything before.
            gates
                .chunks_mut(2 * heads.n_v_heads)
                .for_each(|row| row[..4].iter_mut().for_each(|gate| *gate = -gate.abs()));
            for rule in [RecurrentRule::GatedDelta, RecurrentRule::StateSpace] {
                let recurrence = Recurrence { rule, heads };
                check_within(1e-5, "recurrence", || {
                    let operands = cpu::RecurrentOperands { recurrence, x: &x, gates: &gates, skip: Some(&gates) };
                    let mut pool = noise(2 * heads.state_len(), 3);
                    for (n, value) in pool.iter_mut().enumerate() {
                        let block = n / heads.block_len() % heads.n_blocks();
                        if block * STATE_COLUMNS + n % STATE_COLUMNS >= v_dim {
                            *value = 0.0;
                        }
                    }
                    let states = cpu::States::new(&mut pool, heads.state_len(), 0);
                    let mut found = cpu::recurrence(&operands, rows.spans(), Some(&states));
                    found.extend(pool);
                    found
                });
            }
            let weight = noise(heads.width() * kernel, 4);
            check("convolution", || {
                let conv = cpu::Conv { weight: &weight, bias: None, channels: heads.width(), kernel, has_silu: true };
                let mut pool = noise(2 * kernel * heads.width(), 3);
                conv.forward(
                    cpu::StridedRows::of(&x, heads.width()),
                    rows.spans(),
                    Some(&cpu::States::new(&mut pool, kernel * heads.width(), 0)),
                )
            });
            check("gates of rows", || {
                let rows = cpu::StridedRows::of(&x, heads.width());
                let n_rows = x.len() / heads.width();
                let mut values = cpu::product(n_rows, rows, rows);
                cpu::gate_rows(&mut values, rows);
                values
            });
            check("gates", || {
                let (ones, other) = gates.split_at(4);
                let steps =
                    cpu::state_space_gates(gates.len() / 4, cpu::StridedRows::of(&gates, 4), [ones, ones], [0.1, 1.0]);
                [cpu::delta_gates(&gates, ones, &other[..4]), steps].concat()
            });
            for order in [GateOrder::BeforeNorm, GateOrder::AfterNorm] {
                let options = GatedNormOptions { width: v_dim, eps: 1e-5, order };
                let width = 4 * v_dim;
                check("gated norm", || {
                    cpu::gated_norm(
                        &x[..width],
                        cpu::StridedRows::of(&x[width..2 * width], width),
                        &weight[..v_dim],
                        options,
                    )
                });
            }
        }
    }

    #[test]
    fn paged_attention_agrees_across_instruction_sets() {
        for (n_heads, n_kv_heads, head_dim, sliding_window) in
            [(3, 3, 20, None), (6, 2, 64, Some(19)), (9, 1, 48, None), (8, 4, 128, None)]
        {
            let options = AttentionOptions {
                n_heads,
                n_kv_heads,
                head_dim,
                scale: 0.2,
                softcap: None,
                sliding_window,
                bidirectional: false,
                alibi_slopes: None,
                relative: None,
            };
            let width = n_kv_heads * head_dim;
            let (keys, values) = (noise(96 * width, 1), noise(96 * width, 2));
            let eight_bits =
                [(&keys, cpu::append_keys as fn(&mut [i8], &[f32], &[i32], [usize; 2])), (&values, cpu::append_values)]
                    .map(|(rows, append)| {
                        let mut pool = vec![0; pool_len::<i8>(6, [n_kv_heads, head_dim])];
                        append(&mut pool, rows, &(0..96).collect::<Vec<i32>>(), [n_kv_heads, head_dim]);
                        pool
                    });
            let [half_keys, half_values] = [&keys, &values].map(|pool| {
                let mut half = vec![f16::ZERO; pool.len()];
                f16::store(pool, 1.0, &mut half);
                half
            });
            let queries = noise(3 * n_heads * head_dim, 3);
            let sequence = |rows: std::ops::Range<usize>, start: usize| {
                let end = (start + rows.len()) as i32;
                let slots = Slots::new((0..end).collect(), &Device::flex());
                PagedRows { rows, start, first_key: 0, slots }
            };
            let sequences = [sequence(0..2, 70), sequence(2..3, 0)];
            let sinks = noise(n_heads, 4);
            let how = (&options, Some(&sinks[..]));
            check("attention", || cpu::attention_paged::<f32>(&queries, [&keys, &values], &sequences, how));
            check("attention in f16", || {
                cpu::attention_paged::<f16>(&queries, [&half_keys, &half_values], &sequences, how)
            });
            // A weight that is almost halfway between two whole numbers may become the other one.
            check_within(2e-3, "attention in 8 bits", || {
                cpu::attention_paged::<i8>(&queries, eight_bits.each_ref().map(Vec::as_slice), &sequences, how)
            });
        }
    }
}
