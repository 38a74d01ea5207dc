//! Attention over the pages of a cache, read where they lie.
//!
//! Each (row, head) is computed by itself, over its keys in the order of their positions: the result is the same bits
//! whether the row is decoded alone or is part of a chunk of prefill.

use std::ops::Range;

use rayon::prelude::*;

use super::{BASELINE_IS_FUSED, Isa, isa, math::exp, multiply_add};
use crate::ops::{AttentionOptions, PagedRows};

/// Partial sums of a dot product: one AVX-512 register.
const LANES: usize = 16;
/// Work below which other threads cost more than they bring, in multiply-adds.
const PARALLEL_WORK: usize = 1 << 17;

/// Queries `[n_rows, n_heads * head_dim]` over pools `[n_slots, n_kv_heads * head_dim]`: `[n_rows, n_heads * head_dim]`.
pub(in crate::ops) fn attention_paged(
    queries: &[f32],
    pools: [&[f32]; 2],
    sequences: &[PagedRows],
    options: &AttentionOptions,
) -> Vec<f32> {
    let AttentionOptions { n_heads, head_dim, .. } = *options;
    let mut output = vec![0.0; queries.len()];
    let rows: Vec<Row<'_>> = sequences.iter().flat_map(|sequence| sequence_rows(sequence, options)).collect();
    let n_keys: usize = rows.iter().map(|row| row.slots.len()).sum();
    let mix = |(number, output): (usize, &mut [f32])| {
        let query = &queries[number * head_dim..][..head_dim];
        mix_head(query, pools, &rows[number / n_heads], Head { number: number % n_heads, options }, output);
    };
    if 2 * n_keys * n_heads * head_dim < PARALLEL_WORK {
        output.chunks_mut(head_dim).enumerate().for_each(mix);
    } else {
        output.par_chunks_mut(head_dim).enumerate().for_each(mix);
    }
    output
}

/// One query row, and where its keys lie.
struct Row<'a> {
    /// In the order of their positions; the last is the row's own.
    slots: &'a [i32],
}

/// The rows of one sequence, each with the keys that it sees.
fn sequence_rows<'a>(sequence: &'a PagedRows, options: &AttentionOptions) -> impl Iterator<Item = Row<'a>> {
    let window = options.sliding_window;
    let keys_of = move |position: usize| -> Range<usize> {
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
        first.max(sequence.first_key) - sequence.first_key..position + 1 - sequence.first_key
    };
    let positions = sequence.start..sequence.start + sequence.rows.len();
    positions.map(move |position| Row { slots: &sequence.slots.host()[keys_of(position)] })
}

/// Which query head.
struct Head<'a> {
    number: usize,
    options: &'a AttentionOptions,
}

/// `softmax(q k^T * scale + bias) v` of one row and head.
fn mix_head(query: &[f32], pools: [&[f32]; 2], row: &Row<'_>, head: Head<'_>, output: &mut [f32]) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 => unsafe { avx512(query, pools, row, head, output) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx2 => unsafe { avx2(query, pools, row, head, output) },
        Isa::Baseline => portable::<BASELINE_IS_FUSED>(query, pools, row, head, output),
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx512f,fma")]
unsafe fn avx512(query: &[f32], pools: [&[f32]; 2], row: &Row<'_>, head: Head<'_>, output: &mut [f32]) {
    portable::<true>(query, pools, row, head, output);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(query: &[f32], pools: [&[f32]; 2], row: &Row<'_>, head: Head<'_>, output: &mut [f32]) {
    portable::<true>(query, pools, row, head, output);
}

#[inline(always)]
fn portable<const FUSED: bool>(
    query: &[f32],
    [keys, values]: [&[f32]; 2],
    row: &Row<'_>,
    head: Head<'_>,
    output: &mut [f32],
) {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, scale, .. } = *head.options;
    let kv_head = head.number * n_kv_heads / n_heads;
    let kv_row = |pool, slot: i32| -> &[f32] {
        let pool: &[f32] = pool;
        &pool[(slot as usize * n_kv_heads + kv_head) * head_dim..][..head_dim]
    };
    let slope = head.options.alibi_slopes.as_ref().map(|slopes| slopes[head.number]);
    let mut weights = Vec::with_capacity(row.slots.len());
    for (number, &slot) in row.slots.iter().enumerate() {
        let score = dot::<FUSED>(query, kv_row(keys, slot)) * scale as f32;
        let distance = (row.slots.len() - 1 - number) as f32;
        weights.push(slope.map_or(score, |slope| score - slope * distance));
    }
    let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for weight in &mut weights {
        *weight = exp::<FUSED>(*weight - largest);
    }
    let total: f32 = weights.iter().sum();
    for (weight, &slot) in weights.iter().zip(row.slots) {
        for (output, value) in output.iter_mut().zip(kv_row(values, slot)) {
            *output = multiply_add::<FUSED>(*weight, *value, *output);
        }
    }
    for output in output {
        *output /= total;
    }
}

/// The dot product, in [`LANES`] partial sums that are added pairwise at the end.
#[inline(always)]
fn dot<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] = multiply_add::<FUSED>(a[lane], b[lane], sums[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] = multiply_add::<FUSED>(*a, *b, sums[lane]);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}
