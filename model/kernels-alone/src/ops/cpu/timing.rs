//! Timing of products and attention on shapes of a small model.

mod stored;

use std::time::Instant;

use super::{
    Conv, RecurrentOperands, States, append_values, attention_paged, huge_pages::zeros, matmul::linear, measure,
    packed_matrix::Panels, pool_layout::pool_len, thread_pool, training,
};
use crate::ops::{
    AttentionOptions, Dtype, PagedRows, Precision, Slots,
    types::{Recurrence, RecurrentHeads, RecurrentRows, RecurrentRule},
};

/// The matrices of a block of SmolLM2-135M: `[d_out, d_in]`.
const MATRICES: [[usize; 2]; 4] = [[960, 576], [576, 576], [3072, 576], [576, 1536]];
/// Copies, so that weights come from memory as they do in a model.
const COPIES: usize = 30;

pub(super) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

pub(super) fn run() {
    let only = std::env::args().nth(1);
    println!(
        "{} threads; {:.1} GB/s; f32 {:.1} G multiply-adds/s, 8 bits {:.1}",
        thread_pool::n_threads(),
        measure::read_bandwidth(1 << 29) / 1e9,
        measure::multiply_rate(Dtype::F32) / 1e9,
        measure::multiply_rate(Dtype::Q8) / 1e9
    );
    for (name, dtype) in Dtype::ALL {
        if only.as_deref().is_some_and(|only| !only.split(',').any(|only| only == *name)) || name.ends_with('k') {
            continue;
        }
        let values: Vec<Vec<f32>> = MATRICES.iter().map(|[d_out, d_in]| noise(d_out * d_in, 1)).collect();
        let all: Vec<Panels> = (0..COPIES)
            .flat_map(|_| {
                MATRICES
                    .iter()
                    .zip(&values)
                    .map(|(dims, values)| Panels::from_rows(&crate::ops::MatrixRows::of(values, *dims), *dtype))
            })
            .collect();
        time_products(name, &all);
    }
    stored::run(only.as_deref());
    if only.as_deref().is_none_or(|only| only.contains("attention")) {
        attention::<f32>("f32");
        attention::<half::f16>("f16");
        attention::<i8>("q8");
    }
    if only.as_deref().is_none_or(|only| only.contains("recurrent")) {
        recurrent();
    }
    if only.as_deref().is_some_and(|only| only.contains("low-rank")) {
        training::time_frozen();
        training::time_low_rank();
    }
    for (name, precision) in [("training-f32", Precision::F32), ("training-bf16", Precision::Bf16)] {
        if only.as_deref().is_none_or(|only| only.contains(name)) {
            training::time(precision);
        }
    }
}

/// Times products with all of these matrices, one after the other.
fn time_products(name: &str, all: &[Panels]) {
    let n_bytes: usize = all.iter().map(Panels::n_bytes).sum();
    let n_weights: usize = all.iter().map(|panels| panels.dims()[0] * panels.dims()[1]).sum();
    print!("{name:>8} {:.2} bits", 8.0 * n_bytes as f64 / n_weights as f64);
    for n_rows in [1, 2, 4, 8, 16, 64, 512] {
        let widest = all.iter().map(|panels| panels.dims()[1]).max().unwrap_or_default();
        let inputs = noise(n_rows * widest, 2);
        let passes = if n_rows > 100 { 4 } else { 12 };
        let best = (0..passes)
            .map(|_| {
                let start = Instant::now();
                for panels in all {
                    std::hint::black_box(linear(&inputs[..n_rows * panels.dims()[1]], panels, None));
                }
                start.elapsed().as_secs_f64()
            })
            .fold(f64::INFINITY, f64::min);
        print!("  {n_rows}: {:.1} GB/s {:.1} G", n_bytes as f64 / best / 1e9, (n_rows * n_weights) as f64 / best / 1e9);
    }
    println!();
}

/// The gated delta rule and the convolution before it with the heads of Qwen 3.5 0.8B, decoding and in a prompt.
fn recurrent() {
    let heads = RecurrentHeads { n_k_heads: 16, n_v_heads: 16, k_dim: 128, v_dim: 128, is_tiled: false };
    let recurrence = Recurrence { rule: RecurrentRule::GatedDelta, heads };
    let (state_len, n_slots) = (heads.state_len(), CACHE_BYTES / 4 / heads.state_len());
    let mut pool = zeros::<f32>(n_slots * state_len);
    let mut inputs = zeros::<f32>(n_slots * 3 * heads.width());
    let weight = noise(4 * heads.width(), 4);
    let conv = Conv { weight: &weight, bias: None, channels: heads.width(), kernel: 4, has_silu: true };
    for (n_sequences, len) in [(1, 1), (4, 1), (16, 1), (1, 512)] {
        let n_rows = n_sequences * len;
        let (x, gates) = (noise(n_rows * heads.width(), 1), noise(n_rows * 2 * heads.n_v_heads, 2));
        let gates: Vec<f32> = gates
            .into_iter()
            .enumerate()
            .map(|(n, gate)| if n / 16 % 2 == 0 { -gate.abs() } else { gate.abs() })
            .collect();
        let operands = RecurrentOperands { recurrence, x: &x, gates: &gates, skip: None };
        let steps = if len > 1 { 2 } else { n_slots / n_sequences };
        let mut best = [f64::INFINITY; 2];
        for _ in 0..8 {
            for (n, best) in best.iter_mut().enumerate() {
                let begin = Instant::now();
                for step in 0..steps {
                    // Every step has other slots, so that states come from memory.
                    let spans = (0..n_sequences).map(|n| (len, 1, step * n_sequences + n));
                    let rows = RecurrentRows::stepped(spans);
                    if n == 0 {
                        let states = States::new(&mut pool, state_len, 0);
                        std::hint::black_box(super::recurrence(&operands, rows.spans(), Some(&states)));
                    } else {
                        let states = States::new(&mut inputs, 3 * heads.width(), 0);
                        std::hint::black_box(conv.forward(
                            super::StridedRows::of(&x, heads.width()),
                            rows.spans(),
                            Some(&states),
                        ));
                    }
                }
                *best = best.min(begin.elapsed().as_secs_f64() / steps as f64);
            }
        }
        println!(
            "{n_sequences} x {len} rows: gated delta {:.0} us, {:.1} GB/s, {:.0} rows/s; convolution {:.0} us",
            best[0] * 1e6,
            (2 * 4 * n_sequences * state_len) as f64 / best[0] / 1e9,
            n_rows as f64 / best[0],
            best[1] * 1e6
        );
    }
}

/// Bytes of keys and values that single rows go through, so that they come from memory as they do in a model.
const CACHE_BYTES: usize = 1 << 28;

/// Attention with the heads of SmolLM2-135M (9 to 3) and of a model of 1B (32 to 8).
fn attention<E: super::PagedElement>(name: &str) {
    for (n_heads, n_kv_heads, head_dim) in [(9, 3, 64), (32, 8, 64)] {
        let (scale, softcap, sliding_window, alibi_slopes, relative) = (0.125, None, None, None, None);
        let bidirectional = false;
        let options = AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap,
            sliding_window,
            bidirectional,
            alibi_slopes,
            relative,
        };
        print!("attention in {name}, {n_heads} to {n_kv_heads} heads:");
        for (start, n_rows) in [(128usize, 1usize), (2048, 1), (8192, 1), (0, 512), (0, 2048)] {
            let n_keys = (start + n_rows).next_multiple_of(16);
            let heads = [n_kv_heads, head_dim];
            let pools = [1, 2].map(|seed| {
                let mut pool = zeros::<E>(pool_len::<E>(n_keys / 16, heads));
                let (rows, slots) =
                    (noise(n_keys * n_kv_heads * head_dim, seed), (0..n_keys as i32).collect::<Vec<_>>());
                // Where the numbers are does not matter here.
                append_values(&mut pool, &rows, &slots, heads);
                pool
            });
            let bytes = 2 * size_of_val(&*pools[0]);
            let copies = if n_rows == 1 { CACHE_BYTES.div_ceil(bytes) } else { 1 };
            let layers: Vec<[Vec<E>; 2]> = (0..copies)
                .map(|_| {
                    pools.each_ref().map(|pool| {
                        let mut copy = zeros::<E>(pool.len());
                        copy.copy_from_slice(pool);
                        copy
                    })
                })
                .collect();
            let queries = noise(n_rows * n_heads * head_dim, 3);
            let slots = Slots::new((0..(start + n_rows) as i32).collect(), &burn::tensor::Device::flex());
            let sequences = [PagedRows { rows: 0..n_rows, start, first_key: 0, slots }];
            let best = (0..if n_rows > 1 { 4 } else { 10 })
                .map(|_| {
                    let begin = Instant::now();
                    for [keys, values] in &layers {
                        std::hint::black_box(attention_paged(&queries, [keys, values], &sequences, (&options, None)));
                    }
                    begin.elapsed().as_secs_f64() / copies as f64
                })
                .fold(f64::INFINITY, f64::min);
            let n_seen: usize = (0..n_rows).map(|row| start + row + 1).sum();
            let products = 2 * n_seen * n_heads * head_dim;
            print!("  {n_rows} behind {start}: {:.1} G ({:.0} us", products as f64 / best / 1e9, best * 1e6);
            if n_rows == 1 {
                print!(", {:.1} GB/s", bytes as f64 / best / 1e9);
            }
            print!(")");
        }
        println!();
    }
}
