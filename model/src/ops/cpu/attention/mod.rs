//! Attention over the pages of the KV cache, which are read in place.
//!
//! A row attends [`CHUNK`] positions at a time: scores, weights relative to the chunk's largest score, and weighted
//! values. Chunks are added in their order, each sum multiplied by `e` to the power of its largest score less the
//! largest of all (<https://arxiv.org/abs/2205.14135>). Chunks begin at multiples of their length, whatever is computed
//! together, and a row leaves out positions that it must not see. So its bits do not depend on whether it is decoded
//! alone or in a chunk of prefill, or on how many threads share its chunks.
//!
//! Floats ([`float`]) are widened in registers; 8-bit integers ([`eight_bit`]) are multiplied directly.

#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
mod eight_bit;
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
mod float;
mod softmax;
#[cfg(test)]
mod tests;

use std::{cell::Cell, ops::Range};

use half::f16;
use softmax::SoftmaxState;

use super::{
    KvElement,
    pool_layout::PoolLayout,
    thread_pool::{self, SharedMut},
};
use crate::ops::{AttentionOptions, PAGE_SIZE, PagedRows};

/// Keys in a page, and in an AVX-512 register.
const LANES: usize = 16;
const _: () = assert!(LANES == PAGE_SIZE);
/// Positions of a chunk. Scores of all queries of a head stay in L1, and one text's chunks are enough for a few threads.
const CHUNK: usize = 512;
/// Pages of a chunk.
const CHUNK_TILES: usize = CHUNK / LANES;
/// Queries (rows times heads that share a key head) that read the keys together. Prefill uses as many as possible,
/// since its keys and values come from L2 or beyond, while the scores of this many queries stay in L2.
const MAX_QUERIES: usize = 32;
/// Minimum number of queries per task, if a sequence has that many, even if this makes few tasks: the registers hold
/// the sums of that many queries.
const FEW_QUERIES: usize = 8;
/// Up to this many queries of a head, attention is memory-bound. More queries mean prefill, whose keys and values are in L2
/// because other tasks have read them.
const MAX_MEMORY_BOUND_QUERIES: usize = 8;
/// Multiply-adds below which one thread is faster.
const PARALLEL_WORK: usize = 1 << 17;
/// Tasks per thread that are enough. If there are fewer, they have fewer rows, or the chunks of a text are shared out.
const FEW_TASKS: usize = 4;

/// Queries `[n_rows, n_heads * head_dim]` over pools of keys and values: `[n_rows, n_heads * head_dim]`. `sinks
/// [n_heads]` adds a score per head to the softmax's denominator.
pub(in crate::ops) fn attention_paged<E: PagedElement>(
    queries: &[f32],
    pools: [&[E]; 2],
    sequences: &[PagedRows],
    (options, sinks): (&AttentionOptions, Option<&[f32]>),
) -> Vec<f32> {
    let mut output = vec![0.0; queries.len()];
    let stride = options.n_heads * options.head_dim;
    attention_paged_into(queries, stride, pools, (sequences, options, sinks), &mut output);
    output
}

/// As [`attention_paged`], but written to `output`; rows of queries are `stride` values apart.
pub(super) fn attention_paged_into<E: PagedElement>(
    queries: &[f32],
    stride: usize,
    [keys, values]: [&[E]; 2],
    (sequences, options, sinks): (&[PagedRows], &AttentionOptions, Option<&[f32]>),
    output: &mut [f32],
) {
    // So that tasks of different sequences write different rows.
    assert!(sequences.is_sorted_by(|one, next| one.rows.end <= next.rows.start), "sequences share rows");
    let layout = PoolLayout::of(keys, [options.n_kv_heads, options.head_dim]);
    let pools = Pools { queries, stride, keys, values, layout, options, sinks };
    let n_threads = thread_pool::n_threads();
    let work: usize = sequences.iter().map(|sequence| n_keys(sequence) * sequence.rows.len()).sum();
    let is_parallel = 2 * work * options.n_heads * options.head_dim >= PARALLEL_WORK;
    let chunks_per_task = if is_parallel { chunks_per_task(sequences, n_threads, options) } else { usize::MAX };
    let rows_per_task = rows_per_task(sequences, n_threads, options);
    let mut tasks = Tasks { rows_per_task, chunks_per_task, ..Tasks::default() };
    sequences.iter().for_each(|sequence| tasks.add(sequence, options));
    let mut parts = PARTS.take();
    parts.resize(tasks.parts_len, 0.0);
    let outputs = Outputs { whole: SharedMut::new(output), parts: SharedMut::new(&mut parts) };
    let all = &tasks.all;
    if is_parallel {
        // The last tasks of a prompt have the most keys: start with them, so that no long task is left for the end.
        thread_pool::parallel_for(all.len(), |n| all[all.len() - 1 - n].run(&pools, &outputs));
        if !tasks.split.is_empty() {
            thread_pool::parallel_for(tasks.split.len() * options.n_heads, |n| {
                tasks.split[n / options.n_heads].add_up(n % options.n_heads, &pools, &outputs);
            });
        }
    } else {
        all.iter().for_each(|task| task.run(&pools, &outputs));
    }
    PARTS.set(parts);
}

thread_local! {
    /// Results of chunks, reused by all layers and steps.
    static PARTS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Rows per task: as many as [`MAX_QUERIES`] allows, unless there would be too few tasks.
fn rows_per_task(sequences: &[PagedRows], n_threads: usize, options: &AttentionOptions) -> usize {
    let n_rows: usize = sequences.iter().map(|sequence| sequence.rows.len()).sum();
    let enough = n_rows * options.n_kv_heads / (FEW_TASKS * n_threads);
    let [few, most] = [FEW_QUERIES, MAX_QUERIES].map(|n| (n * options.n_kv_heads / options.n_heads).max(1));
    enough.clamp(few, most)
}

/// Chunks per task of a single row and key head: all of them, unless there are too few heads to occupy all threads.
fn chunks_per_task(sequences: &[PagedRows], n_threads: usize, options: &AttentionOptions) -> usize {
    let n_enough = FEW_TASKS * n_threads;
    if n_threads == 1 || sequences.len() * options.n_kv_heads >= n_enough {
        return usize::MAX;
    }
    let n_chunks: usize = sequences.iter().map(|sequence| n_keys(sequence).div_ceil(CHUNK)).sum();
    (n_chunks * options.n_kv_heads).div_ceil(n_enough)
}

fn n_keys(sequence: &PagedRows) -> usize {
    sequence.slots.host().len()
}

/// An element of pools over which rows attend.
pub(in crate::ops) trait PagedElement: KvElement {
    /// Attention for the queries of a task, at most [`MAX_QUERIES`].
    fn attend(queries: &[Query<'_>], task: &Task<'_>, pools: &Pools<'_, Self>, outputs: &Outputs<'_>);
}

impl PagedElement for f32 {
    fn attend(queries: &[Query<'_>], task: &Task<'_>, pools: &Pools<'_, Self>, outputs: &Outputs<'_>) {
        float::attend(queries, task, pools, outputs);
    }
}

impl PagedElement for f16 {
    fn attend(queries: &[Query<'_>], task: &Task<'_>, pools: &Pools<'_, Self>, outputs: &Outputs<'_>) {
        float::attend(queries, task, pools, outputs);
    }
}

impl PagedElement for i8 {
    fn attend(queries: &[Query<'_>], task: &Task<'_>, pools: &Pools<'_, Self>, outputs: &Outputs<'_>) {
        eight_bit::attend(queries, task, pools, outputs);
    }
}

/// The input of all tasks.
pub(in crate::ops) struct Pools<'a, E> {
    queries: &'a [f32],
    /// Distance between rows of queries, in values.
    stride: usize,
    keys: &'a [E],
    values: &'a [E],
    /// The layout of both pools.
    layout: PoolLayout,
    options: &'a AttentionOptions,
    /// `[n_heads]`.
    sinks: Option<&'a [f32]>,
}

/// Outputs of tasks.
pub(in crate::ops) struct Outputs<'a> {
    /// `[n_rows, n_heads, head_dim]`.
    whole: SharedMut<'a, f32>,
    /// For each chunk of texts that are shared out and each head: [`part_len`] values, the weighted values and their [`SoftmaxState`].
    parts: SharedMut<'a, f32>,
}

fn part_len(options: &AttentionOptions) -> usize {
    options.head_dim + 2
}

/// Some rows of one sequence, with the query heads of a key head.
pub(in crate::ops) struct Task<'a> {
    sequence: &'a PagedRows,
    /// Among the sequence's rows.
    rows: Range<usize>,
    kv_head: usize,
    /// The positions that at least one row of the task sees.
    seen: Range<usize>,
    /// The chunks that this task attends over, among all that its rows see.
    chunks: Range<usize>,
    /// Start of this task's results in [`Outputs::parts`], if other tasks have the other chunks of the row.
    parts: Option<usize>,
}

/// A row whose chunks are divided among tasks.
struct SplitRow {
    row: usize,
    chunks: Range<usize>,
    /// Start of its chunks' results in [`Outputs::parts`].
    parts: usize,
}

impl SplitRow {
    /// Adds up the results of a head's chunks.
    fn add_up<E: KvElement>(&self, head: usize, pools: &Pools<'_, E>, outputs: &Outputs<'_>) {
        let options = pools.options;
        let (head_dim, part_len) = (options.head_dim, part_len(options));
        let output = (self.row * options.n_heads + head) * head_dim;
        #[expect(unsafe_code, reason = "threads write disjoint parts of one matrix")]
        // SAFETY: only this call has this row's head.
        let sum = unsafe { outputs.whole.part(output..output + head_dim) };
        let mut state = SoftmaxState::default();
        for n in 0..self.chunks.len() {
            let start = self.parts + (n * options.n_heads + head) * part_len;
            #[expect(unsafe_code, reason = "threads wrote disjoint parts of one slice")]
            // SAFETY: all tasks have ended, and only this call reads this head's.
            let part = unsafe { outputs.parts.part(start..start + part_len) };
            let (part, state_of_part) = part.split_at(head_dim);
            state.add(sum, part, SoftmaxState { max: state_of_part[0], sum: state_of_part[1] });
        }
        let denominator = state.denominator(pools.sink(head));
        sum.iter_mut().for_each(|sum| *sum /= denominator);
    }
}

/// The tasks of a step.
#[derive(Default)]
struct Tasks<'a> {
    rows_per_task: usize,
    chunks_per_task: usize,
    all: Vec<Task<'a>>,
    split: Vec<SplitRow>,
    parts_len: usize,
}

impl<'a> Tasks<'a> {
    fn add(&mut self, sequence: &'a PagedRows, options: &AttentionOptions) {
        let n_kv_heads = options.n_kv_heads;
        let rows_per_task = self.rows_per_task;
        let n_rows = sequence.rows.len();
        for row in (0..n_rows).step_by(rows_per_task) {
            let rows = row..n_rows.min(row + rows_per_task);
            let seen = seen_by_some(sequence, &rows, options);
            let chunks = seen.start / CHUNK..seen.end.div_ceil(CHUNK);
            let is_split = n_rows == 1 && chunks.len() > self.chunks_per_task;
            let parts = self.parts_len;
            if is_split {
                self.split.push(SplitRow { row: sequence.rows.start, chunks: chunks.clone(), parts });
                self.parts_len += chunks.len() * options.n_heads * part_len(options);
            }
            for kv_head in 0..n_kv_heads {
                let per_task = if is_split { self.chunks_per_task } else { chunks.len() };
                for chunk in chunks.clone().step_by(per_task) {
                    let n_before = chunk - chunks.start;
                    self.all.push(Task {
                        sequence,
                        rows: rows.clone(),
                        kv_head,
                        seen: seen.clone(),
                        chunks: chunk..chunks.end.min(chunk + per_task),
                        parts: is_split.then_some(parts + n_before * options.n_heads * part_len(options)),
                    });
                }
            }
        }
    }
}

/// One row of one query head.
pub(in crate::ops) struct Query<'a> {
    values: &'a [f32],
    head: usize,
    /// Index of its output.
    output: usize,
    /// The positions that it sees.
    sees: Range<usize>,
    slope: Option<f32>,
    /// Relative position bias of the scores, for keys from position 0 on.
    relative: Option<&'a [f32]>,
    softcap: Option<f32>,
}

impl Task<'_> {
    fn run<E: PagedElement>(&self, pools: &Pools<'_, E>, outputs: &Outputs<'_>) {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *pools.options;
        let group = n_heads / n_kv_heads;
        let mut queries: Vec<Query<'_>> = Vec::with_capacity(group * self.rows.len());
        for row in self.rows.clone() {
            let (place, position) = (self.sequence.rows.start + row, self.sequence.start + row);
            let sees = pools.options.seen(position, n_positions(self.sequence));
            queries.extend((self.kv_head * group..(self.kv_head + 1) * group).map(|head| Query {
                values: &pools.queries[place * pools.stride + head * head_dim..][..head_dim],
                head,
                output: (place * n_heads + head) * head_dim,
                sees: sees.clone(),
                slope: pools.options.alibi_slopes.as_ref().map(|slopes| slopes[head]),
                relative: pools.options.relative.as_ref().map(|relative| relative.of_keys(head, position)),
                softcap: pools.options.softcap.map(|cap| cap as f32),
            }));
        }
        for queries in queries.chunks(MAX_QUERIES) {
            E::attend(queries, self, pools, outputs);
        }
    }

    /// The chunks, each as the tiles of 16 positions that some row sees.
    fn tiles_by_chunk(&self) -> impl Iterator<Item = Range<usize>> {
        let (first, end) = (self.seen.start / LANES, self.seen.end.div_ceil(LANES));
        let chunk_tiles = move |chunk: usize| (chunk * CHUNK_TILES).max(first)..((chunk + 1) * CHUNK_TILES).min(end);
        self.chunks.clone().map(chunk_tiles)
    }

    /// The last tile of the last chunk.
    fn last_tile(&self) -> usize {
        (self.chunks.end * CHUNK_TILES).min(self.seen.end.div_ceil(LANES)) - 1
    }

    /// The positions of `tiles` that some row of the task sees, as three ranges: the positions that all rows see in the
    /// middle, and those that only some rows see before and after.
    fn seen_of(&self, tiles: &Range<usize>, options: &AttentionOptions) -> [Range<usize>; 3] {
        let n_positions = n_positions(self.sequence);
        let of_first = options.seen(self.sequence.start + self.rows.start, n_positions);
        let of_last = options.seen(self.sequence.start + self.rows.end - 1, n_positions);
        // The middle range starts where the last row's view starts, and ends where the first row's view ends.
        let start = of_last.start;
        let end = of_first.end.max(start);
        let within = |positions: Range<usize>| {
            let start = positions.start.max(tiles.start * LANES);
            start..positions.end.min(tiles.end * LANES).max(start)
        };
        [of_first.start..start, start..end, end..of_last.end].map(within)
    }

    /// Whether keys and values come from memory. It is then read all the time: while keys are multiplied, the same
    /// pages' values are prefetched, and while values are added, the next chunk's keys. They go to L2, since L1 has no
    /// room for them.
    fn is_memory_bound(&self, options: &AttentionOptions) -> bool {
        self.rows.len() * options.n_heads <= MAX_MEMORY_BOUND_QUERIES * options.n_kv_heads
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

/// Positions of the keys' text so far.
fn n_positions(sequence: &PagedRows) -> usize {
    sequence.first_key + n_keys(sequence)
}

/// The positions that some of the sequence's `rows` sees.
fn seen_by_some(sequence: &PagedRows, rows: &Range<usize>, options: &AttentionOptions) -> Range<usize> {
    let of = |row: usize| options.seen(sequence.start + row, n_positions(sequence));
    of(rows.start).start..of(rows.end - 1).end
}

impl<'a, E: KvElement> Pools<'a, E> {
    #[inline(always)]
    fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[head])
    }

    /// The keys of a page and head.
    #[inline(always)]
    fn key_block(&self, page: usize, kv_head: usize) -> &'a [E] {
        &self.keys[self.layout.block(page, kv_head)]
    }
}

/// Splits the `n_queries` queries of a key head into as few parts of about equal size, at most `most` each: the first
/// query of each part, and how many.
fn parts(n_queries: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_parts = n_queries.div_ceil(most);
    (0..n_parts).map(move |part| {
        let [from, end] = [part, part + 1].map(|part| n_queries * part / n_parts);
        (from, end - from)
    })
}

/// The innermost loops for an instruction set and elements of one type.
#[expect(unsafe_code, reason = "compiled for instructions that the caller knows that the machine has")]
trait Kernels {
    type Element: KvElement;

    /// Prepares what all chunks need, such as quantized queries.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn begin(queries: &[Query<'_>], pools: &Pools<'_, Self::Element>, buffers: &mut Buffers) {
        let _ = (queries, pools, buffers);
    }

    /// Writes the weighted values of the chunk of `tiles` to the buffers' `chunk_sums`, which are zeros, and the states to
    /// `chunk_states`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn attend_chunk(
        queries: &[Query<'_>],
        tiles: Range<usize>,
        task: &Task<'_>,
        pools: &Pools<'_, Self::Element>,
        buffers: &mut Buffers,
    );
}

/// `softmax(q k^T * scale + bias) v` for queries of one key head, at most [`MAX_QUERIES`].
///
/// # Safety
/// The machine has the instructions of `K`.
#[inline(always)]
#[expect(unsafe_code, reason = "calls kernels for instructions that the caller knows that the machine has")]
unsafe fn attend<K: Kernels>(
    queries: &[Query<'_>],
    task: &Task<'_>,
    pools: &Pools<'_, K::Element>,
    outputs: &Outputs<'_>,
) {
    let options = pools.options;
    let stored_dim = options.head_dim.next_multiple_of(K::Element::DIM_UNIT);
    let mut buffers = BUFFERS.take();
    buffers.clear(queries.len(), stored_dim, task.parts.is_none());
    // SAFETY: guaranteed by the caller.
    unsafe { K::begin(queries, pools, &mut buffers) };
    for (n, tiles) in task.tiles_by_chunk().enumerate() {
        if n > 0 {
            buffers.chunk_sums.fill(0.0);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { K::attend_chunk(queries, tiles, task, pools, &mut buffers) };
        for (number, query) in queries.iter().enumerate() {
            let sum = &buffers.chunk_sums[number * stored_dim..][..stored_dim];
            let state = buffers.chunk_states[number];
            if let Some(parts) = task.parts {
                let part_len = part_len(options);
                let start = parts + (n * options.n_heads + query.head) * part_len;
                // SAFETY: a chunk's head belongs to one task.
                let part = unsafe { outputs.parts.part(start..start + part_len) };
                part[..options.head_dim].copy_from_slice(&sum[..options.head_dim]);
                part[options.head_dim..].copy_from_slice(&[state.max, state.sum]);
            } else {
                // If the query sees nothing of the chunk, `sum` is zeros and `state` is the empty state.
                let (sums, states) = (&mut buffers.sums, &mut buffers.states);
                states[number].add(&mut sums[number * stored_dim..][..stored_dim], sum, state);
            }
        }
    }
    if task.parts.is_none() {
        for ((query, sum), state) in queries.iter().zip(buffers.sums.chunks_exact(stored_dim)).zip(&buffers.states) {
            // SAFETY: a row's head belongs to one task, since sequences share no rows, and is stored once.
            let output = unsafe { outputs.whole.part(query.output..query.output + options.head_dim) };
            let denominator = state.denominator(pools.sink(query.head));
            output.iter_mut().zip(sum).for_each(|(output, sum)| *output = sum / denominator);
        }
    }
    BUFFERS.set(buffers);
}

thread_local! {
    static BUFFERS: Cell<Buffers> = const { Cell::new(Buffers::new()) };
}

/// A thread's buffers, reused for all tasks: a step has hundreds of tasks, and allocating for each took 2 to 5 % of the
/// inference thread's time.
#[derive(Default)]
struct Buffers {
    /// Scores of a chunk, then weights: `[n_queries, CHUNK]`.
    scores: Vec<f32>,
    /// Weighted values of a chunk, `[n_queries, stored_dim]`, and their states.
    chunk_sums: Vec<f32>,
    chunk_states: Vec<SoftmaxState>,
    /// Weighted values and states of all chunks so far.
    sums: Vec<f32>,
    states: Vec<SoftmaxState>,
    /// A page widened to f32.
    widened: Vec<f32>,
    rounded: eight_bit::Rounded,
}

impl Buffers {
    const fn new() -> Self {
        Self {
            scores: Vec::new(),
            chunk_sums: Vec::new(),
            chunk_states: Vec::new(),
            sums: Vec::new(),
            states: Vec::new(),
            widened: Vec::new(),
            rounded: eight_bit::Rounded::new(),
        }
    }

    /// Resizes the buffers for the next task; `adds_up` if it combines its chunks itself. `scores` and `sums` keep old
    /// values, which are overwritten before they are read.
    fn clear(&mut self, n_queries: usize, stored_dim: usize, adds_up: bool) {
        self.scores.resize(n_queries * CHUNK, 0.0);
        self.chunk_states.clear();
        self.chunk_states.resize(n_queries, SoftmaxState::default());
        let n_rows = if adds_up { n_queries } else { 0 };
        self.states.clear();
        self.states.resize(n_rows, SoftmaxState::default());
        self.chunk_sums.clear();
        self.chunk_sums.resize(n_queries * stored_dim, 0.0);
        self.sums.resize(n_rows * stored_dim, 0.0);
    }
}
