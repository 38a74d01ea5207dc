//! Attention that never holds the probabilities of a whole sequence.
//!
//! The backward pass recomputes them from the logarithm of each row's sum
//! ([FlashAttention](https://arxiv.org/abs/2205.14135), 3.1). A task is one sequence and one key head.

use std::{cell::RefCell, ops::Range, sync::Arc};

use burn::backend::flex::FlexTensor;

use super::{
    dims,
    product::{Accumulate, Packed, Target, View, product, product_into},
    scratch::resized,
    tensor, values,
};
use crate::ops::{
    AttentionOptions,
    cpu::{
        for_each_isa,
        math::{exp, largest, sum_of_pairs, tanh},
        panel_layout::PANEL,
        thread_pool::{self, SharedMut},
    },
    types::{TrainingOp, document_ends},
};

/// Number of queries whose probabilities are in memory at the same time.
pub const QUERIES: usize = 64;

/// Input: queries, keys and values side by side, `[batch * seq_len, (n_heads + 2 n_kv_heads) * head_dim]`. Rotates queries
/// and keys, and attends. Output: `[batch * seq_len, n_heads * head_dim]`. See [`rope`](crate::ops::rope) and
/// [`attention_dense`](crate::ops::attention_dense).
///
/// An optional second input are sinks, `[n_heads]`: scores that are added to the sums, without values.
#[derive(Debug)]
pub(in crate::ops) struct RopeAttend {
    pub(in crate::ops) options: AttentionOptions,
    pub(in crate::ops) batch: usize,
    /// The position of each row in its document, `[batch * seq_len]`, if sequences consist of several.
    pub(in crate::ops) positions: Option<Arc<Vec<u32>>>,
    /// Cosines and sines, `[batch * seq_len, half]` each; empty without rotation.
    pub(in crate::ops) rotation: [Arc<Vec<f32>>; 2],
}

/// A task: one sequence and one key head.
struct Piece<'a> {
    op: &'a RopeAttend,
    qkv: &'a [f32],
    /// `[n_heads]`.
    sinks: Option<&'a [f32]>,
    /// The first row of the sequence.
    start: usize,
    seq_len: usize,
    /// Where the document of each row ends, if sequences consist of several.
    document_ends: Option<Vec<usize>>,
    kv_head: usize,
}

/// Scratch memory of one thread, reused for all its tasks.
#[derive(Default)]
struct Scratch {
    /// Rotated queries of all heads of the piece, times the scale: `[heads_per_key, seq_len, head_dim]`.
    queries: Vec<f32>,
    /// `[seq_len, head_dim]`.
    keys: Vec<f32>,
    /// Columns of keys and, for the backward pass, of values: `[head_dim, seq_len]`.
    key_columns: Packed,
    value_columns: Packed,
    /// `[QUERIES, n_keys]`.
    probs: Vec<f32>,
    /// Gradients of `probs`.
    of_probs: Vec<f32>,
    /// Derivatives of the soft cap.
    of_cap: Vec<f32>,
    /// Gradients of one query head, of `keys` and of the values: `[seq_len, head_dim]` each.
    of_queries: Vec<f32>,
    of_keys: Vec<f32>,
    of_values: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl TrainingOp<FlexTensor> for RopeAttend {
    fn forward(&self, inputs: &[FlexTensor], wanted: &[bool]) -> (FlexTensor, Vec<FlexTensor>) {
        let is_recorded = wanted.contains(&true);
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.options;
        let [n_rows, width] = dims(&inputs[0]);
        assert_eq!(width, (n_heads + 2 * n_kv_heads) * head_dim, "the width of queries, keys and values");
        let seq_len = n_rows / self.batch.max(1);
        let mut output = thread_pool::new_zeros(n_rows * n_heads * head_dim);
        // The logarithm of the sum of exponentials for each head and row.
        let mut log_sums = vec![0.0; n_rows * n_heads];
        let (out, sums) = (SharedMut::new(&mut output), SharedMut::new(&mut log_sums));
        thread_pool::parallel_for(self.batch * n_kv_heads, |number| {
            SCRATCH.with_borrow_mut(|scratch| self.piece(inputs, seq_len, number).forward(&out, &sums, scratch));
        });
        let output = tensor(output, [n_rows, n_heads * head_dim]);
        let saved = if is_recorded { vec![output.clone(), tensor(log_sums, [n_heads, n_rows])] } else { Vec::new() };
        (output, saved)
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        saved: Vec<FlexTensor>,
        gradient: &FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let [n_rows, width] = dims(&inputs[0]);
        let seq_len = n_rows / self.batch.max(1);
        let mut of_qkv = thread_pool::new_zeros(n_rows * width);
        let shared = SharedMut::new(&mut of_qkv);
        let (output, log_sums, gradient) = (values(&saved[0]), values(&saved[1]), values(gradient));
        thread_pool::parallel_for(self.batch * self.options.n_kv_heads, |number| {
            SCRATCH.with_borrow_mut(|scratch| {
                self.piece(inputs, seq_len, number).backward([output, gradient], log_sums, &shared, scratch);
            });
        });
        let of_sinks = inputs[1..].iter().zip(&wanted[1..]).map(|(sinks, wanted)| {
            let of_sink = |(head, sink): (usize, &f32)| self.of_sink(head, *sink, log_sums, [output, gradient]);
            let of_sinks: Vec<f32> = values(sinks).iter().enumerate().map(of_sink).collect();
            wanted.then(|| tensor(of_sinks, [self.options.n_heads]))
        });
        [Some(tensor(of_qkv, [n_rows, width]))].into_iter().chain(of_sinks).collect()
    }
}

impl RopeAttend {
    fn piece<'a>(&'a self, inputs: &'a [FlexTensor], seq_len: usize, number: usize) -> Piece<'a> {
        let n_kv_heads = self.options.n_kv_heads;
        let start = number / n_kv_heads * seq_len;
        let sinks = inputs.get(1).map(values);
        let document_ends = self.positions.as_ref().map(|positions| document_ends(&positions[start..start + seq_len]));
        Piece { op: self, qkv: values(&inputs[0]), sinks, start, seq_len, document_ends, kv_head: number % n_kv_heads }
    }

    /// The gradient of the sink of `head`: it takes from all values of a row alike, in proportion to its probability.
    fn of_sink(&self, head: usize, sink: f32, log_sums: &[f32], [output, gradient]: [&[f32]; 2]) -> f32 {
        let AttentionOptions { n_heads, head_dim, .. } = self.options;
        let log_sums = &log_sums[head * log_sums.len() / n_heads..][..log_sums.len() / n_heads];
        let of_row = |(row, log_sum): (usize, &f32)| {
            let at = (row * n_heads + head) * head_dim;
            let product =
                sum_of_pairs(&output[at..][..head_dim], &gradient[at..][..head_dim], |out, of_out| out * of_out);
            -f64::from((sink - log_sum).exp() * product)
        };
        log_sums.iter().enumerate().map(of_row).sum::<f64>() as f32
    }
}

impl Piece<'_> {
    /// Query heads of the piece.
    fn heads(&self) -> Range<usize> {
        let AttentionOptions { n_heads, n_kv_heads, .. } = self.op.options;
        let group = n_heads / n_kv_heads;
        self.kv_head * group..(self.kv_head + 1) * group
    }

    fn width(&self) -> usize {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.op.options;
        (n_heads + 2 * n_kv_heads) * head_dim
    }

    /// The offset of head `head` of row `row` of the sequence in `qkv`; key heads follow query heads, then values.
    fn place(&self, row: usize, head: usize) -> usize {
        (self.start + row) * self.width() + head * self.op.options.head_dim
    }

    fn key_head(&self) -> usize {
        self.op.options.n_heads + self.kv_head
    }

    fn value_head(&self) -> usize {
        self.key_head() + self.op.options.n_kv_heads
    }

    /// The values of the key head in `rows` of the sequence, `[rows.len(), head_dim]`.
    fn values(&self, rows: Range<usize>) -> View<'_> {
        let at = self.place(rows.start, self.value_head());
        View::new(&self.qkv[at..], [rows.len(), self.op.options.head_dim], self.width())
    }

    /// Whether all values of `rows` are finite.
    fn are_finite(&self, rows: &Range<usize>) -> bool {
        let head_dim = self.op.options.head_dim;
        rows.clone().all(|row| {
            let values = &self.qkv[self.place(row, self.value_head())..][..head_dim];
            // The sum of 0 times each value is 0, or NaN.
            values.iter().map(|value| value * 0.0).sum::<f32>() == 0.0
        })
    }

    /// Cosines and sines of a row.
    fn angles(&self, row: usize) -> [&[f32]; 2] {
        let [cos, sin] = &self.op.rotation;
        let half = cos.len() / (self.op.batch * self.seq_len);
        let range = (self.start + row) * half..(self.start + row + 1) * half;
        [&cos[range.clone()], &sin[range]]
    }

    /// Computes rotated queries, times the scale, and rotated keys.
    fn rotate(&self, Scratch { queries, keys, key_columns, .. }: &mut Scratch) {
        let AttentionOptions { head_dim, scale, .. } = self.op.options;
        let size = self.seq_len * head_dim;
        let queries = resized(queries, self.heads().len() * size);
        for (head, rotated) in self.heads().zip(queries.chunks_exact_mut(size)) {
            self.rotate_head(head, scale as f32, rotated);
        }
        let keys = resized(keys, size);
        self.rotate_head(self.key_head(), 1.0, keys);
        key_columns.pack(View::new(keys, [self.seq_len, head_dim], head_dim).transposed());
    }

    fn rotate_head(&self, head: usize, scale: f32, rotated: &mut [f32]) {
        let head_dim = self.op.options.head_dim;
        for (row, rotated) in rotated.chunks_exact_mut(head_dim).enumerate() {
            let from = &self.qkv[self.place(row, head)..][..head_dim];
            let [cos, sin] = self.angles(row);
            rotate(rotated, from, scale, cos, sin);
        }
    }

    /// The keys that query `query` sees; neither end decreases from one query to the next.
    fn seen(&self, query: usize) -> Range<usize> {
        let document = match (&self.op.positions, &self.document_ends) {
            (Some(positions), Some(ends)) => query - positions[self.start + query] as usize..ends[query],
            _ => 0..self.seq_len,
        };
        let seen = self.op.options.seen(query - document.start, document.len());
        document.start + seen.start..document.start + seen.end
    }

    /// The blocks of queries, each with a range of keys that includes all keys that its rows see. The range begins at a
    /// panel of keys.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        (0..self.seq_len).step_by(QUERIES).map(|first| {
            let end = self.seq_len.min(first + QUERIES);
            (first..end, self.seen(first).start / PANEL * PANEL..self.seen(end - 1).end)
        })
    }

    /// How to compute the probabilities of query `query` of `head`. `keys` is the key range of its block.
    fn row(&self, query: usize, head: usize, keys: &Range<usize>) -> RowOptions {
        let AttentionOptions { softcap, alibi_slopes, .. } = &self.op.options;
        let seen = self.seen(query);
        RowOptions {
            seen: seen.start - keys.start..seen.end - keys.start,
            cap: softcap.map(|cap| cap as f32),
            slope: alibi_slopes.as_ref().map_or(0.0, |slopes| slopes[head]),
            sink: self.sinks.map(|sinks| sinks[head]),
        }
    }

    fn forward(&self, output: &SharedMut<'_, f32>, log_sums: &SharedMut<'_, f32>, scratch: &mut Scratch) {
        let AttentionOptions { n_heads, head_dim, .. } = self.op.options;
        let n_rows = self.op.batch * self.seq_len;
        self.rotate(scratch);
        let size = self.seq_len * head_dim;
        for (head, queries) in self.heads().zip(scratch.queries.chunks_exact(size)) {
            for (rows, keys) in self.blocks() {
                let probs = resized(&mut scratch.probs, rows.len() * keys.len());
                let of_rows = View::new(&queries[rows.start * head_dim..], [rows.len(), head_dim], head_dim);
                product_into(
                    probs,
                    keys.len(),
                    of_rows,
                    scratch.key_columns.columns(keys.clone()),
                    Accumulate::Nothing,
                );
                let sums = head * n_rows + self.start + rows.start..head * n_rows + self.start + rows.end;
                #[expect(unsafe_code, reason = "threads write disjoint parts of one slice")]
                // SAFETY: no other task has this head of this sequence.
                let sums = unsafe { log_sums.part(sums) };
                for ((query, row), sum) in rows.clone().zip(probs.chunks_exact_mut(keys.len())).zip(sums) {
                    softmax_row(row, &self.row(query, head, &keys), sum);
                }
                let row_stride = n_heads * head_dim;
                // The probabilities of some rows times the values of some keys.
                let attend = |rows: Range<usize>, keys: Range<usize>, probs: View<'_>| {
                    let at = (self.start + rows.start) * row_stride + head * head_dim;
                    let target = Target::new(output, at, [rows.len(), head_dim], row_stride);
                    #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
                    // SAFETY: no other task has this head of this sequence.
                    unsafe {
                        product(target, probs, self.values(keys).into(), Accumulate::Nothing);
                    }
                };
                if self.are_finite(&keys) {
                    let n_keys = keys.len();
                    attend(rows.clone(), keys, View::new(probs, [rows.len(), n_keys], n_keys));
                    continue;
                }
                // 0 times infinity is NaN, so each row uses only the keys that it sees.
                for (query, row) in rows.zip(probs.chunks_exact(keys.len())) {
                    let seen = self.row(query, head, &keys).seen;
                    let probs = View::new(&row[seen.clone()], [1, seen.len()], seen.len());
                    attend(query..query + 1, keys.start + seen.start..keys.start + seen.end, probs);
                }
            }
        }
    }

    fn backward(
        &self,
        [output, gradient]: [&[f32]; 2],
        log_sums: &[f32],
        of_qkv: &SharedMut<'_, f32>,
        scratch: &mut Scratch,
    ) {
        let AttentionOptions { n_heads, head_dim, scale, .. } = self.op.options;
        let n_rows = self.op.batch * self.seq_len;
        let size = self.seq_len * head_dim;
        self.rotate(scratch);
        scratch.value_columns.pack(self.values(0..self.seq_len).transposed());
        let of_keys = resized(&mut scratch.of_keys, size);
        let of_values = resized(&mut scratch.of_values, size);
        of_keys.fill(0.0);
        of_values.fill(0.0);
        for (head, queries) in self.heads().zip(scratch.queries.chunks_exact(size)) {
            let of_queries = resized(&mut scratch.of_queries, size);
            for (rows, keys) in self.blocks() {
                let n_probs = rows.len() * keys.len();
                let probs = resized(&mut scratch.probs, n_probs);
                let of_probs = resized(&mut scratch.of_probs, n_probs);
                let of_cap = resized(&mut scratch.of_cap, keys.len());
                let of_rows = View::new(&queries[rows.start * head_dim..], [rows.len(), head_dim], head_dim);
                product_into(
                    probs,
                    keys.len(),
                    of_rows,
                    scratch.key_columns.columns(keys.clone()),
                    Accumulate::Nothing,
                );
                let row_stride = n_heads * head_dim;
                let at = (self.start + rows.start) * row_stride + head * head_dim;
                let of_output = View::new(&gradient[at..], [rows.len(), head_dim], row_stride);
                let values = scratch.value_columns.columns(keys.clone());
                product_into(of_probs, keys.len(), of_output, values, Accumulate::Nothing);
                for (n, query) in rows.clone().enumerate() {
                    let at = (self.start + query) * row_stride + head * head_dim;
                    let log_sum = log_sums[head * n_rows + self.start + query];
                    let range = n * keys.len()..(n + 1) * keys.len();
                    backward_row(
                        &mut probs[range.clone()],
                        &mut of_probs[range],
                        of_cap,
                        &self.row(query, head, &keys),
                        log_sum,
                        [&output[at..at + head_dim], &gradient[at..at + head_dim]],
                    );
                }
                let view = |values, n_cols| View::new(values, [rows.len(), n_cols], n_cols);
                let (probs, of_probs) = (view(&*probs, keys.len()), view(&*of_probs, keys.len()));
                let of_rows = rows.start * head_dim..rows.end * head_dim;
                let of_seen = keys.start * head_dim..keys.end * head_dim;
                let keys = View::new(&scratch.keys[of_seen.clone()], [keys.len(), head_dim], head_dim);
                product_into(
                    &mut of_values[of_seen.clone()],
                    head_dim,
                    probs.transposed(),
                    of_output.into(),
                    Accumulate::Itself,
                );
                product_into(&mut of_queries[of_rows.clone()], head_dim, of_probs, keys.into(), Accumulate::Nothing);
                let queries = view(&queries[of_rows], head_dim);
                product_into(
                    &mut of_keys[of_seen],
                    head_dim,
                    of_probs.transposed(),
                    queries.into(),
                    Accumulate::Itself,
                );
            }
            self.store(of_queries, head, scale as f32, of_qkv);
        }
        self.store(of_keys, self.key_head(), 1.0, of_qkv);
        for (row, of_values) in of_values.chunks_exact(head_dim).enumerate() {
            let at = self.place(row, self.value_head());
            #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
            // SAFETY: no other task has this head of this sequence.
            unsafe { of_qkv.part(at..at + head_dim) }.copy_from_slice(of_values);
        }
    }

    /// Rotates the gradients of a head back, times `scale`, and stores them in their columns.
    fn store(&self, of_head: &[f32], head: usize, scale: f32, of_qkv: &SharedMut<'_, f32>) {
        let head_dim = self.op.options.head_dim;
        for (row, of_head) in of_head.chunks_exact(head_dim).enumerate() {
            let [cos, sin] = self.angles(row);
            let at = self.place(row, head);
            #[expect(unsafe_code, reason = "threads write disjoint columns of one matrix")]
            // SAFETY: no other task has this head of this sequence.
            let stored = unsafe { of_qkv.part(at..at + head_dim) };
            rotate_back(stored, of_head, scale, cos, sin);
        }
    }
}

/// How to compute the probabilities of one row.
pub(super) struct RowOptions {
    /// The visible keys of the block; with ALiBi slopes, the last one is the row's own key.
    seen: Range<usize>,
    cap: Option<f32>,
    slope: f32,
    sink: Option<f32>,
}

for_each_isa!(softmax_row(row: &mut [f32], options: &RowOptions, log_sum: &mut f32) = softmax_row_body);

#[inline(always)]
fn softmax_row_body<const FUSED: bool>(row: &mut [f32], options: &RowOptions, log_sum: &mut f32) {
    let RowOptions { seen, cap, slope, sink } = options;
    row[..seen.start].fill(0.0);
    row[seen.end..].fill(0.0);
    let row = &mut row[seen.clone()];
    if let Some(cap) = *cap {
        row.iter_mut().for_each(|score| *score = cap * tanh::<FUSED>(*score / cap));
    }
    if *slope != 0.0 {
        add_slope(row, *slope);
    }
    let largest = sink.iter().copied().fold(largest(row), f32::max);
    let mut sums = [0.0f32; 16];
    let (chunks, rest) = row.as_chunks_mut::<16>();
    for chunk in chunks {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = exp::<FUSED>(*score - largest);
            *sum += *score;
        }
    }
    for (sum, score) in sums.iter_mut().zip(rest) {
        *score = exp::<FUSED>(*score - largest);
        *sum += *score;
    }
    let sum = sums.iter().sum::<f32>() + sink.map_or(0.0, |sink| exp::<FUSED>(sink - largest));
    *log_sum = largest + sum.ln();
    let share = 1.0 / sum;
    row.iter_mut().for_each(|prob| *prob *= share);
}

/// The last key is the query's own, at distance 0.
#[inline(always)]
fn add_slope(row: &mut [f32], slope: f32) {
    let last = row.len() as f32 - 1.0;
    row.iter_mut().enumerate().for_each(|(key, score)| *score += slope * (key as f32 - last));
}

for_each_isa!(backward_row(
    probs: &mut [f32],
    of_probs: &mut [f32],
    of_cap: &mut [f32],
    options: &RowOptions,
    log_sum: f32,
    output_and_gradient: [&[f32]; 2]
) = backward_row_body);

/// Replaces scores in `probs` by probabilities, and their gradients in `of_probs` by the gradients of the scores: `p
/// (dp - sum(p dp))`, where the sum is the product of the row's output and its gradient.
#[inline(always)]
fn backward_row_body<const FUSED: bool>(
    probs: &mut [f32],
    of_probs: &mut [f32],
    of_cap: &mut [f32],
    options: &RowOptions,
    log_sum: f32,
    [output, gradient]: [&[f32]; 2],
) {
    let RowOptions { seen, cap, slope, .. } = options;
    for row in [&mut *probs, &mut *of_probs] {
        row[..seen.start].fill(0.0);
        row[seen.end..].fill(0.0);
    }
    let (probs, of_probs) = (&mut probs[seen.clone()], &mut of_probs[seen.clone()]);
    let of_cap = &mut of_cap[..probs.len()];
    if let Some(cap) = *cap {
        for (score, of_cap) in probs.iter_mut().zip(&mut *of_cap) {
            let tanh = tanh::<FUSED>(*score / cap);
            *score = cap * tanh;
            *of_cap = 1.0 - tanh * tanh;
        }
    }
    if *slope != 0.0 {
        add_slope(probs, *slope);
    }
    let sum = sum_of_pairs(output, gradient, |output, gradient| output * gradient);
    for (prob, of_prob) in probs.iter_mut().zip(&mut *of_probs) {
        *prob = exp::<FUSED>(*prob - log_sum);
        *of_prob = *prob * (*of_prob - sum);
    }
    if cap.is_some() {
        of_probs.iter_mut().zip(of_cap).for_each(|(of_prob, of_cap)| *of_prob *= *of_cap);
    }
}

for_each_isa!(rotate(to: &mut [f32], from: &[f32], scale: f32, cos: &[f32], sin: &[f32]) = rotate_body);

#[inline(always)]
fn rotate_body<const FUSED: bool>(to: &mut [f32], from: &[f32], scale: f32, cos: &[f32], sin: &[f32]) {
    rotate_row(to, from, scale, cos, sin, 1.0);
}

for_each_isa!(rotate_back(to: &mut [f32], from: &[f32], scale: f32, cos: &[f32], sin: &[f32]) = rotate_back_body);

#[inline(always)]
fn rotate_back_body<const FUSED: bool>(to: &mut [f32], from: &[f32], scale: f32, cos: &[f32], sin: &[f32]) {
    rotate_row(to, from, scale, cos, sin, -1.0);
}

/// Rotates one head, times `scale`; with `direction` -1 by the transpose of the rotation. See
/// [`rope`](crate::ops::rope).
#[inline(always)]
fn rotate_row(to: &mut [f32], from: &[f32], scale: f32, cos: &[f32], sin: &[f32], direction: f32) {
    let half = cos.len();
    let (to_rotated, to_rest) = to.split_at_mut(2 * half);
    let (rotated, rest) = from.split_at(2 * half);
    let (to_left, to_right) = to_rotated.split_at_mut(half);
    let (left, right) = rotated.split_at(half);
    for (((((to_left, to_right), left), right), cos), sin) in
        to_left.iter_mut().zip(to_right).zip(left).zip(right).zip(cos).zip(sin)
    {
        let (cos, sin) = (cos * scale, sin * scale * direction);
        (*to_left, *to_right) = (left * cos - right * sin, right * cos + left * sin);
    }
    to_rest.iter_mut().zip(rest).for_each(|(to, value)| *to = value * scale);
}
