//! Attention over the pages of the KV cache, which are read in place.
//!
//! Keys of a page's 16 tokens are stored side by side (see [`append_keys`](super::append_keys)), so that 16 scores are
//! one chain of multiply-adds over the head's dimensions, without sums across lanes. Values are stored row by row, and
//! a row of the output is one chain over the keys in the order of their positions. Several rows are computed together,
//! and a row leaves out the values of keys that it must not see, so its bits do not depend on whether it is decoded
//! alone or in a chunk of prefill. Pages in f16 or 8 bits are widened in registers, and a row reads its own key and value
//! back as rounded, as later rows will. The scales of 8-bit numbers multiply whole scores, and weights.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
mod avx512;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
mod tiled;

use std::{cell::Cell, ops::Range};

#[cfg(target_arch = "x86_64")]
use super::Isa;
use super::{
    KvElement, PORTABLE_IS_FUSED, isa,
    math::{exp, tanh},
    multiply_add,
    page_layout::PageLayout,
    thread_pool::{self, SharedMut},
};
use crate::ops::{AttentionOptions, PAGE_SIZE, PagedRows};

/// Keys in a page, and in an AVX-512 register.
const LANES: usize = 16;
const _: () = assert!(LANES == PAGE_SIZE);
/// Queries (rows times heads that share a key head) that read the keys together.
const MAX_QUERIES: usize = 8;
/// Bytes of a page that a task reads in one run, if it can choose.
const RUN_BYTES: usize = 1 << 14;
/// Scores of a task, at most: they fit into L2 beside the pages.
const MAX_SCORES: usize = 1 << 15;
/// Multiply-adds below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 17;

/// Queries `[n_rows, n_heads * head_dim]` over pools of keys and values: `[n_rows, n_heads * head_dim]`.
pub(in crate::ops) fn attention_paged<E: KvElement>(
    queries: &[f32],
    pools: [&[E]; 2],
    sequences: &[PagedRows],
    options: &AttentionOptions,
) -> Vec<f32> {
    let mut output = vec![0.0; queries.len()];
    attention_paged_into(queries, options.n_heads * options.head_dim, pools, (sequences, options), &mut output);
    output
}

/// The same, written to `output`; a row of queries begins every `stride` values.
pub(super) fn attention_paged_into<E: KvElement>(
    queries: &[f32],
    stride: usize,
    [keys, values]: [&[E]; 2],
    (sequences, options): (&[PagedRows], &AttentionOptions),
    output: &mut [f32],
) {
    // So that tasks of different sequences write different rows.
    assert!(sequences.is_sorted_by(|one, next| one.rows.end <= next.rows.start), "sequences share rows");
    let output = SharedMut::new(output);
    let pools = Pools { queries, stride, keys, values, options };
    let page_bytes = (options.head_dim + E::SCALE_LEN) * LANES * size_of::<E>();
    let n_together = heads_together(sequences.len(), thread_pool::n_threads(), page_bytes);
    let n_heads = |sequence: &PagedRows| {
        let n_scores = sequence.slots.host().len() * options.n_heads / options.n_kv_heads;
        if sequence.rows.len() == 1 { n_together.min(MAX_SCORES / n_scores.max(1)).max(1) } else { 1 }
    };
    let tasks = sequences.iter().flat_map(|sequence| tasks_of(sequence, n_heads(sequence), options));
    let tasks: Vec<Task<'_>> = tasks.collect();
    let work: usize = tasks.iter().map(|task| task.n_keys() * task.rows.len() * task.kv_heads.len()).sum();
    if 2 * work * options.n_heads / options.n_kv_heads * options.head_dim < PARALLEL_WORK {
        tasks.iter().for_each(|task| task.run(&pools, &output));
    } else {
        // The last tasks of a prompt have the most keys: they run first, so that no long task is left for the end.
        thread_pool::parallel_for(tasks.len(), |n| tasks[tasks.len() - 1 - n].run(&pools, &output));
    }
}

/// Key heads per task, where a head's part of a page is `page_bytes`: several, which are adjacent in memory, if there
/// are enough sequences to occupy all threads.
fn heads_together(n_sequences: usize, n_threads: usize, page_bytes: usize) -> usize {
    if n_sequences < 2 * n_threads { 1 } else { (RUN_BYTES / page_bytes.max(1)).max(1) }
}

/// The input of all tasks.
struct Pools<'a, E> {
    queries: &'a [f32],
    /// Distance between rows of queries, in values.
    stride: usize,
    keys: &'a [E],
    values: &'a [E],
    options: &'a AttentionOptions,
}

/// Some rows of one sequence, with the query heads of some adjacent key heads.
struct Task<'a> {
    sequence: &'a PagedRows,
    /// Among the sequence's rows.
    rows: Range<usize>,
    kv_heads: Range<usize>,
}

/// Tasks of at most `heads_per_task` key heads.
fn tasks_of<'a>(
    sequence: &'a PagedRows,
    heads_per_task: usize,
    options: &AttentionOptions,
) -> impl Iterator<Item = Task<'a>> {
    let n_kv_heads = options.n_kv_heads;
    let rows_per_task = (MAX_QUERIES * n_kv_heads / options.n_heads).max(1);
    let n_rows = sequence.rows.len();
    (0..n_rows).step_by(rows_per_task).flat_map(move |row| {
        let rows = row..n_rows.min(row + rows_per_task);
        (0..n_kv_heads).step_by(heads_per_task).map(move |kv_head| {
            let kv_heads = kv_head..n_kv_heads.min(kv_head + heads_per_task);
            Task { sequence, rows: rows.clone(), kv_heads }
        })
    })
}

/// One row of one query head.
struct Query<'a> {
    values: &'a [f32],
    /// Index of its output.
    output: usize,
    /// The positions that it sees.
    sees: Range<usize>,
    slope: Option<f32>,
    softcap: Option<f32>,
}

impl Task<'_> {
    /// Positions that some row of the task sees.
    fn sees(&self, options: &AttentionOptions) -> Range<usize> {
        let first = self.sequence.start + self.rows.start;
        window_start(first, options)..self.sequence.start + self.rows.end
    }

    /// The same positions in three parts, in order: those before the ones that all rows of the task see, those that all
    /// see, and those after them.
    fn seen(&self, options: &AttentionOptions) -> [Range<usize>; 3] {
        let sees = self.sees(options);
        let first = self.sequence.start + self.rows.start;
        // From the beginning of the last row's window to the first row's own position.
        let start = window_start(sees.end - 1, options);
        let end = (first + 1).max(start);
        [sees.start..start, start..end, end..sees.end]
    }

    fn n_keys(&self) -> usize {
        self.sequence.start + self.rows.end - self.sequence.first_key
    }

    fn run<E: KvElement>(&self, pools: &Pools<'_, E>, output: &SharedMut<'_, f32>) {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *pools.options;
        let group = n_heads / n_kv_heads;
        // Not collected: without a known length, the vector would grow step by step.
        let all = self
            .kv_heads
            .clone()
            .flat_map(|kv_head| self.rows.clone().map(move |row| (row, kv_head)))
            .flat_map(|(row, kv_head)| (0..group).map(move |head| (row, kv_head * group + head)))
            .map(|(row, head)| {
                let place = self.sequence.rows.start + row;
                let output = (place * n_heads + head) * head_dim;
                let values = &pools.queries[place * pools.stride + head * head_dim..][..head_dim];
                let position = self.sequence.start + row;
                let slope = pools.options.alibi_slopes.as_ref().map(|slopes| slopes[head]);
                let sees = window_start(position, pools.options)..position + 1;
                Query { values, output, sees, slope, softcap: pools.options.softcap.map(|cap| cap as f32) }
            });
        let n_queries = group * self.rows.len();
        let mut queries: Vec<Query<'_>> = Vec::with_capacity(n_queries * self.kv_heads.len());
        queries.extend(all);
        if n_queries <= MAX_QUERIES {
            return attend(&queries, self.kv_heads.clone(), self, pools, output);
        }
        // More queries per key head than are computed together.
        for (kv_head, queries) in self.kv_heads.clone().zip(queries.chunks(n_queries)) {
            for queries in queries.chunks(MAX_QUERIES) {
                attend(queries, kv_head..kv_head + 1, self, pools, output);
            }
        }
    }

    /// The slot of the key at `position`.
    fn slot(&self, position: usize) -> usize {
        self.sequence.slots.host()[position - self.sequence.first_key] as usize
    }

    /// The page of the keys from position `tile * 16`.
    fn page(&self, tile: usize) -> usize {
        self.slot((tile * LANES).max(self.sequence.first_key)) / LANES
    }
}

fn window_start(position: usize, options: &AttentionOptions) -> usize {
    options.sliding_window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// `softmax(q k^T * scale + bias) v` for the same number of queries per key head, at most [`MAX_QUERIES`].
fn attend<E: KvElement>(
    queries: &[Query<'_>],
    kv_heads: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    output: &SharedMut<'_, f32>,
) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx512 => unsafe { avx512::attend(queries, kv_heads, task, pools, output) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code compiled for instructions that the machine was found to have")]
        // SAFETY: `isa` found the instructions.
        Isa::Avx2 | Isa::AvxVnni => unsafe { avx2::attend(queries, kv_heads, task, pools, output) },
        _ => portable::<E, PORTABLE_IS_FUSED>(queries, kv_heads, task, pools, output),
    }
}

/// The tiles of 16 positions that overlap `sees`.
fn tiles(sees: &Range<usize>) -> Range<usize> {
    sees.start / LANES..sees.end.div_ceil(LANES)
}

impl<'a, E: KvElement> Pools<'a, E> {
    #[inline(always)]
    fn layout(&self) -> PageLayout {
        PageLayout::of::<E>([self.options.n_kv_heads, self.options.head_dim])
    }

    /// The keys of a page and head: `[head_dim]` lines of 16.
    #[inline(always)]
    fn key_lines(&self, page: usize, kv_head: usize) -> &'a [E] {
        &self.keys[self.layout().key_lines(page, kv_head)]
    }

    /// The values of a page.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn page_of_values(&self, page: usize) -> &'a [E] {
        &self.values[self.layout().page(page)]
    }

    /// The value of a slot and head: `[head_dim]`.
    #[inline(always)]
    fn value_row(&self, slot: usize, kv_head: usize) -> &'a [E] {
        &self.values[self.layout().value(slot, kv_head)]
    }

    /// Multiplies the scores of a page's keys, in rows of `width`, by the scales of the keys.
    #[inline(always)]
    fn scale_scores(&self, page: usize, kv_head: usize, scores: &mut [f32], width: usize) {
        multiply_by_scales(&self.keys[self.layout().scales(page, kv_head)], scores, width);
    }

    /// Multiplies the weights of a page's values, in rows of `width`, by the scales of the values.
    #[inline(always)]
    fn scale_weights(&self, page: usize, kv_head: usize, weights: &mut [f32], width: usize) {
        multiply_by_scales(&self.values[self.layout().scales(page, kv_head)], weights, width);
    }
}

/// Multiplies the first numbers of each row of `width` by the scales of a page's tokens, if its elements have scales.
#[inline(always)]
fn multiply_by_scales<E: KvElement>(scales: &[E], rows: &mut [f32], width: usize) {
    if E::SCALE_LEN == 0 {
        return;
    }
    let mut factors = [0.0; LANES];
    for (factor, scale) in factors.iter_mut().zip(scales.chunks_exact(E::SCALE_LEN)) {
        *factor = E::scale(scale);
    }
    for row in rows.chunks_mut(width) {
        row[..LANES].iter_mut().zip(&factors).for_each(|(number, factor)| *number *= factor);
    }
}

/// Replaces a query's scores, from position `first`, with weights; returns their sum.
#[inline(always)]
fn softmax<const FUSED: bool>(scores: &mut [f32], first: usize, query: &Query<'_>, scale: f32) -> f32 {
    let visible = query.sees.start.saturating_sub(first)..query.sees.end - first;
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let scale = match query.softcap {
        None => scale,
        Some(cap) => {
            for score in &mut scores[visible.clone()] {
                *score = cap * tanh::<FUSED>(*score * scale / cap);
            }
            1.0
        }
    };
    match query.slope {
        None => scores[visible].iter_mut().for_each(|score| *score *= scale),
        Some(slope) => {
            let n_visible = visible.len();
            for (n, score) in scores[visible].iter_mut().enumerate() {
                *score = *score * scale - slope * (n_visible - 1 - n) as f32;
            }
        }
    }
    let mut most = [f32::NEG_INFINITY; LANES];
    for scores in scores.as_chunks::<LANES>().0 {
        for (most, score) in most.iter_mut().zip(scores) {
            *most = if score > most { *score } else { *most };
        }
    }
    let largest = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    // Lanes are those of absolute positions, so the order of the sum does not depend on where the keys begin.
    let mut sums = [0.0; LANES];
    for scores in scores.as_chunks_mut::<LANES>().0 {
        for (sum, score) in sums.iter_mut().zip(scores) {
            *score = exp::<FUSED>(*score - largest);
            *sum += *score;
        }
    }
    sums.iter().sum()
}

thread_local! {
    static BUFFERS: Cell<Buffers> = const { Cell::new(Buffers::new()) };
}

/// A thread's buffers, reused for all tasks: a step has hundreds of tasks, and allocating for each took 2 to 5 % of the
/// inference thread's time.
#[derive(Default)]
struct Buffers {
    scores: Vec<f32>,
    totals: Vec<f32>,
    attn_out: Vec<f32>,
    /// A page widened to f32.
    widened: Vec<f32>,
}

impl Buffers {
    const fn new() -> Self {
        Self { scores: Vec::new(), totals: Vec::new(), attn_out: Vec::new(), widened: Vec::new() }
    }

    /// Takes the thread's buffers, to be returned with [`give_back`](Self::give_back): `n_queries` rows of `width`
    /// scores, which the caller must overwrite, and as many rows of `head_dim` zeros.
    fn take(n_queries: usize, width: usize, head_dim: usize) -> Self {
        let mut buffers = BUFFERS.take();
        buffers.scores.resize(n_queries * width, 0.0);
        buffers.totals.clear();
        buffers.attn_out.clear();
        buffers.attn_out.resize(n_queries * head_dim, 0.0);
        buffers
    }

    fn give_back(self) {
        BUFFERS.set(self);
    }
}

/// Plain Rust, which the compiler vectorizes: a page is widened once for all queries.
#[inline(always)]
fn portable<E: KvElement, const FUSED: bool>(
    queries: &[Query<'_>],
    kv_heads: Range<usize>,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    output: &SharedMut<'_, f32>,
) {
    let n_queries = queries.len() / kv_heads.len();
    for (kv_head, queries) in kv_heads.zip(queries.chunks(n_queries)) {
        portable_head::<E, FUSED>(queries, kv_head, task, pools, output);
    }
}

#[inline(always)]
fn portable_head<E: KvElement, const FUSED: bool>(
    queries: &[Query<'_>],
    kv_head: usize,
    task: &Task<'_>,
    pools: &Pools<'_, E>,
    output: &SharedMut<'_, f32>,
) {
    let head_dim = pools.options.head_dim;
    let tiles = tiles(&task.sees(pools.options));
    let first = tiles.start * LANES;
    let width = tiles.len() * LANES;
    let mut buffers = Buffers::take(queries.len(), width, head_dim);
    let Buffers { scores, totals, attn_out, widened } = &mut buffers;
    widened.resize(head_dim * LANES, 0.0);
    for tile in tiles.clone() {
        let page = task.page(tile);
        let lines = E::widen(pools.key_lines(page, kv_head), widened);
        for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(width)) {
            let mut sums = [0.0; LANES];
            for (line, &q) in lines.as_chunks::<LANES>().0.iter().zip(query.values) {
                for (sum, key) in sums.iter_mut().zip(line) {
                    *sum = multiply_add::<FUSED>(q, *key, *sum);
                }
            }
            scores[tile * LANES - first..][..LANES].copy_from_slice(&sums);
        }
        pools.scale_scores(page, kv_head, &mut scores[tile * LANES - first..], width);
    }
    let scale = pools.options.scale as f32;
    let rows = queries.iter().zip(scores.chunks_exact_mut(width));
    totals.extend(rows.map(|(query, scores)| softmax::<FUSED>(scores, first, query, scale)));
    for tile in tiles {
        pools.scale_weights(task.page(tile), kv_head, &mut scores[tile * LANES - first..], width);
    }
    let [before, all_see, behind] = task.seen(pools.options);
    let mut sum = WeightedSum { weights: scores, width, first, attn_out, widened };
    sum.add_values::<E, FUSED, false>(before, queries, kv_head, task, pools);
    sum.add_values::<E, FUSED, true>(all_see, queries, kv_head, task, pools);
    sum.add_values::<E, FUSED, false>(behind, queries, kv_head, task, pools);
    store(queries, attn_out, totals, head_dim, output);
    buffers.give_back();
}

/// Weighted sums of values for some queries, in the order of positions.
struct WeightedSum<'a> {
    /// `width` weights per query, from position `first`.
    weights: &'a [f32],
    width: usize,
    first: usize,
    /// The sums so far, `[n_queries, head_dim]`.
    attn_out: &'a mut [f32],
    /// Buffer for a row of values.
    widened: &'a mut [f32],
}

impl WeightedSum<'_> {
    /// Adds the weighted values at `positions`. Unless `ALL_SEE`, a query skips those that it must not see: their
    /// weight is 0, but 0 times an infinite value is NaN.
    #[inline(always)]
    fn add_values<E: KvElement, const FUSED: bool, const ALL_SEE: bool>(
        &mut self,
        positions: Range<usize>,
        queries: &[Query<'_>],
        kv_head: usize,
        task: &Task<'_>,
        pools: &Pools<'_, E>,
    ) {
        let head_dim = pools.options.head_dim;
        for position in positions {
            let values = E::widen(pools.value_row(task.slot(position), kv_head), self.widened);
            let sums = self.attn_out.chunks_exact_mut(head_dim);
            for ((query, weights), attn_out) in queries.iter().zip(self.weights.chunks_exact(self.width)).zip(sums) {
                if ALL_SEE || query.sees.contains(&position) {
                    let weight = weights[position - self.first];
                    for (attn_out, value) in attn_out.iter_mut().zip(values) {
                        *attn_out = multiply_add::<FUSED>(weight, *value, *attn_out);
                    }
                }
            }
        }
    }
}

/// Stores the output of each query: its weighted values divided by the sum of its weights.
#[inline(always)]
fn store(queries: &[Query<'_>], attn_out: &[f32], totals: &[f32], head_dim: usize, output: &SharedMut<'_, f32>) {
    for ((query, attn_out), total) in queries.iter().zip(attn_out.chunks_exact(head_dim)).zip(totals) {
        #[expect(unsafe_code, reason = "threads write disjoint parts of one matrix")]
        // SAFETY: a row's head belongs to one task, since sequences have rows of their own, and is stored once.
        let output = unsafe { output.part(query.output..query.output + head_dim) };
        output.iter_mut().zip(attn_out).for_each(|(output, attn_out)| *output = attn_out / total);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::{
        super::{
            append_keys, append_values,
            isa::tests::{every_isa, noise, with_isa},
        },
        *,
    };
    use crate::ops::Slots;

    /// For any number of key heads per task and every instruction set: decoding, a window that begins within a page, a
    /// prompt.
    #[test]
    fn heads_that_go_together_are_the_same_bits_as_heads_by_themselves() {
        let (n_kv_heads, group, n_slots) = (5, 2, 4 * LANES);
        for (head_dim, sliding_window) in [(20, None), (64, Some(21)), (128, None)] {
            let n_heads = n_kv_heads * group;
            let (scale, softcap, alibi_slopes) = (0.2, None, None);
            let options =
                AttentionOptions { n_heads, n_kv_heads, head_dim, scale, softcap, sliding_window, alibi_slopes };
            let [keys, values] = [1, 2].map(|seed| noise(n_slots * n_kv_heads * head_dim, seed));
            // Pages in another order than positions.
            let slots: Vec<i32> = [2, 0, 3, 1].iter().flat_map(|page| page * 16..(page + 1) * 16).collect();
            for (start, n_rows) in [(0, 1), (15, 1), (16, 1), (50, 1), (30, 4)] {
                let queries = noise(n_rows * n_heads * head_dim, 3);
                let pools = Pools {
                    queries: &queries,
                    stride: n_heads * head_dim,
                    keys: &keys,
                    values: &values,
                    options: &options,
                };
                let first_key = window_start(start, &options);
                let slots = Slots::new(slots[first_key..start + n_rows].to_vec(), &burn::tensor::Device::flex());
                let sequence = PagedRows { rows: 0..n_rows, start, first_key, slots };
                let attended = |heads_per_task| {
                    let mut output = vec![f32::NAN; queries.len()];
                    let shared = SharedMut::new(&mut output);
                    tasks_of(&sequence, heads_per_task, &options).for_each(|task| task.run(&pools, &shared));
                    output
                };
                for level in every_isa() {
                    let alone = with_isa(level, || attended(1));
                    assert!(alone.iter().all(|value| value.is_finite()));
                    for heads_per_task in 2..=n_kv_heads {
                        assert_eq!(
                            with_isa(level, || attended(heads_per_task)),
                            alone,
                            "{heads_per_task} with {level:?}"
                        );
                    }
                }
            }
        }
    }

    /// Infinite or NaN keys and values change only rows that see them, at any position in a chunk of a prompt.
    fn check_hidden<E: KvElement + PartialEq>(broken: f32) {
        let (n_heads, n_kv_heads, head_dim, n_rows, start) = (4, 2, 20, 9, 30);
        let (n_keys, width) = (start + n_rows, n_kv_heads * head_dim);
        for sliding_window in [None, Some(1), Some(5), Some(21)] {
            let (scale, softcap, alibi_slopes) = (0.2, None, None);
            let options =
                AttentionOptions { n_heads, n_kv_heads, head_dim, scale, softcap, sliding_window, alibi_slopes };
            let queries = noise(n_rows * n_heads * head_dim, 3);
            let device = burn::tensor::Device::flex();
            let sequence = |first: usize, n_rows: usize| {
                let first_key = window_start(start + first, &options);
                let slots = Slots::new((first_key as i32..(start + first + n_rows) as i32).collect(), &device);
                PagedRows { rows: 0..n_rows, start: start + first, first_key, slots }
            };
            // `at_once` rows at a time, with `broken` keys and values at `position`.
            let attended = |position: Option<usize>, at_once: usize| {
                let [keys, values] = [1, 2].map(|seed| {
                    let mut rows = noise(48 * width, seed);
                    if let Some(position) = position {
                        rows[position * width..][..width].fill(broken);
                    }
                    rows
                });
                let slots: Vec<i32> = (0..48).collect();
                let mut pools = [0, 1].map(|_| vec![E::default(); 48 * (width + n_kv_heads * E::SCALE_LEN)]);
                append_keys(&mut pools[0], &keys, &slots, [n_kv_heads, head_dim]);
                append_values(&mut pools[1], &values, &slots, [n_kv_heads, head_dim]);
                let rows = queries.chunks(at_once * n_heads * head_dim).enumerate().flat_map(|(number, queries)| {
                    let sequence = sequence(number * at_once, queries.len() / (n_heads * head_dim));
                    attention_paged(queries, [&pools[0], &pools[1]], &[sequence], &options)
                });
                rows.collect::<Vec<f32>>()
            };
            for level in every_isa() {
                let whole = with_isa(level, || attended(None, n_rows));
                for position in 0..n_keys {
                    let found = with_isa(level, || attended(Some(position), n_rows));
                    let alone = with_isa(level, || attended(Some(position), 1));
                    for row in 0..n_rows {
                        let values = row * n_heads * head_dim..(row + 1) * n_heads * head_dim;
                        let what = format!("row {row}, {broken} at {position}, {sliding_window:?} with {level:?}");
                        let sees = window_start(start + row, &options)..start + row + 1;
                        if sees.contains(&position) {
                            assert!(found[values.clone()].iter().any(|value| !value.is_finite()), "{what}");
                        } else {
                            assert_eq!(found[values.clone()], whole[values.clone()], "{what}");
                        }
                        let mut pairs = found[values.clone()].iter().zip(&alone[values]);
                        let are_equal = pairs.all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
                        assert!(are_equal, "{what}: other bits alone");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_changes_no_row_that_does_not_see_it() {
        check_hidden::<f32>(f32::INFINITY);
        check_hidden::<f32>(f32::NAN);
        // Infinity is stored as the largest f16.
        check_hidden::<f16>(f32::NAN);
        check_hidden::<i8>(f32::INFINITY);
        check_hidden::<i8>(f32::NAN);
    }

    #[test]
    fn heads_go_together_only_where_there_are_sequences_for_all_threads() {
        assert_eq!([1, 3, 4, 16].map(|n| heads_together(n, 2, 4096)), [1, 1, 4, 4]);
        assert_eq!(heads_together(16, 16, 4096), 1);
        assert_eq!(heads_together(64, 2, 1 << 20), 1);
    }
}
