//! Causal attention that keeps the logarithm of each row's sum instead of its probabilities
//! ([FlashAttention](https://arxiv.org/abs/2205.14135), 3.1). The probabilities of only one layer exist at a time.

use burn::tensor::{Tensor, TensorData};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

use super::{LANES, bounded_tanh, largest_of_lanes, linear::multiply, soft_capped, sum_of_lanes};
use crate::ops::{
    AttentionOptions, Precision,
    cube::{
        launch::{empty, grid, workgroup},
        product::{Causal, Operand, Product},
        tensors::plain,
    },
    types::TrainingOp,
};

/// Smaller than any score; WGSL guarantees nothing about infinities.
const LOWEST: f32 = -3e38;

/// Input: queries, keys and values side by side, `[batch * seq_len, (n_heads + 2 n_kv_heads) * head_dim]`. Rotates queries
/// and keys, and attends. Output: `[batch * seq_len, n_heads * head_dim]`. See [`rope`](crate::ops::rope) and
/// [`attention_dense`](crate::ops::attention_dense).
#[derive(Debug)]
pub(in crate::ops) struct RopeAttend {
    options: AttentionOptions,
    batch: usize,
    /// Cosines and sines, `[batch * seq_len, 2 half]`.
    angles: Option<CubeTensor>,
    half: usize,
    /// The position of each row in its document, `[batch * seq_len]`, if sequences consist of several.
    positions: Option<CubeTensor>,
    /// `[n_heads]`.
    slopes: Option<CubeTensor>,
    precision: Precision,
}

/// The operands that the kernels have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Parts {
    has_positions: bool,
    has_slopes: bool,
    has_softcap: bool,
}

impl RopeAttend {
    /// For `batch` sequences on the device of `like`, whose rows have `positions` in their documents. A row of `angles`
    /// has the cosines, then the sines.
    pub(in crate::ops) fn new(
        options: &AttentionOptions,
        batch: usize,
        angles: Option<Tensor<2>>,
        positions: Option<&[u32]>,
        precision: Precision,
        like: &Tensor<2>,
    ) -> Self {
        let device = like.device().inner();
        let upload =
            |values: Vec<f32>| plain(Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), &device));
        let angles = angles.filter(|angles| angles.dims()[1] > 0);
        let half = angles.as_ref().map_or(0, |angles| angles.dims()[1] / 2);
        Self {
            options: options.clone(),
            batch,
            angles: angles.map(plain),
            half,
            positions: positions.map(|positions| upload(positions.iter().map(|&position| position as f32).collect())),
            slopes: options.alibi_slopes.clone().map(upload),
            precision,
        }
    }

    fn seq_len(&self, n_rows: usize) -> usize {
        n_rows / self.batch.max(1)
    }

    /// Queries of a key head, keys, and the width of both.
    fn dims(&self, rows: &CubeTensor) -> [usize; 3] {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = self.options;
        let seq_len = self.seq_len(rows.meta.shape()[0]);
        [n_heads / n_kv_heads.max(1) * seq_len, seq_len, head_dim]
    }

    /// Splits `rows [n_rows, (n_heads + 2 n_kv_heads) * head_dim]` by head: the rotated and scaled queries, the rotated
    /// keys, and the values. If `is_output`, rows have only `n_heads` heads: they are returned in place of the queries,
    /// unchanged, and the other two tensors have no meaning.
    fn split(&self, rows: &CubeTensor, is_output: bool) -> [CubeTensor; 3] {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, scale, .. } = self.options;
        let [n_rows, width] = rows.meta.shape().dims::<2>();
        let seq_len = self.seq_len(n_rows);
        let (n_keys, half) = if is_output { (0, 0) } else { (n_kv_heads, self.half) };
        let heads = |n: usize| empty(rows, [self.batch, n.max(1), seq_len, head_dim]);
        let [q, k, v] = [heads(n_heads), heads(n_keys), heads(n_keys)];
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a lane has one value of the rows, and writes it to its own place.
        unsafe {
            split_heads::launch_unchecked(
                &rows.client,
                grid((n_rows * width).div_ceil(LANES), 1),
                CubeDim::new_1d(LANES as u32),
                rows.clone().into_buffer_arg(),
                self.angles.as_ref().unwrap_or(rows).clone().into_buffer_arg(),
                q.clone().into_buffer_arg(),
                k.clone().into_buffer_arg(),
                v.clone().into_buffer_arg(),
                n_rows * width,
                seq_len,
                n_heads,
                n_keys,
                head_dim,
                half,
                if is_output { 1.0 } else { scale as f32 },
            );
        }
        [q, k, v]
    }

    /// The reverse of [`split`](Self::split). Unless `is_output`, these are gradients: the gradients of queries and keys are
    /// rotated back, and the gradients of queries are scaled.
    fn join(&self, [q, k, v]: [CubeTensor; 3], is_output: bool) -> CubeTensor {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, scale, .. } = self.options;
        let (n_keys, half) = if is_output { (0, 0) } else { (n_kv_heads, self.half) };
        let n_rows = q.meta.shape().num_elements() / (n_heads * head_dim).max(1);
        let width = (n_heads + 2 * n_keys) * head_dim;
        let rows = empty(&q, [n_rows, width]);
        let angles = self.angles.as_ref().unwrap_or(&q).clone();
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: a lane has one value of the rows, and reads that value and its partner in the rotation.
        unsafe {
            join_heads::launch_unchecked(
                &rows.client,
                grid((n_rows * width).div_ceil(LANES), 1),
                CubeDim::new_1d(LANES as u32),
                q.into_buffer_arg(),
                k.into_buffer_arg(),
                v.into_buffer_arg(),
                angles.into_buffer_arg(),
                rows.clone().into_buffer_arg(),
                n_rows * width,
                self.seq_len(n_rows),
                n_heads,
                n_keys,
                head_dim,
                half,
                if is_output { 1.0 } else { scale as f32 },
            );
        }
        rows
    }

    fn parts(&self) -> Parts {
        Parts {
            has_positions: self.positions.is_some(),
            has_slopes: self.slopes.is_some(),
            has_softcap: self.options.softcap.is_some(),
        }
    }

    /// Replaces `scores [batch * n_kv_heads * heads of a key * seq_len, seq_len]` by their probabilities, and returns the
    /// logarithm of each row's sum.
    fn softmax(&self, scores: &CubeTensor, seq_len: usize) -> CubeTensor {
        let n_rows = self.batch * self.options.n_heads * seq_len;
        let log_sums = empty(scores, [n_rows]);
        let absent = empty(scores, [1]);
        let or_absent = |tensor: &Option<CubeTensor>| tensor.as_ref().unwrap_or(&absent).clone().into_buffer_arg();
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each workgroup has its own row of scores; missing operands are not read.
        unsafe {
            softmax_rows::launch_unchecked(
                &scores.client,
                grid(n_rows, 1),
                CubeDim::new_1d(LANES as u32),
                scores.clone().into_buffer_arg(),
                log_sums.clone().into_buffer_arg(),
                or_absent(&self.positions),
                or_absent(&self.slopes),
                n_rows,
                seq_len,
                self.options.n_heads,
                self.options.sliding_window.unwrap_or(usize::MAX).min(seq_len),
                self.options.softcap.unwrap_or(1.0) as f32,
                self.parts(),
            );
        }
        log_sums
    }

    /// Replaces `scores` by their probabilities, and the gradients `of_probs` by the gradients of the scores.
    fn softmax_back(&self, [scores, of_probs]: [&CubeTensor; 2], log_sums: &CubeTensor, seq_len: usize) {
        let n_rows = self.batch * self.options.n_heads * seq_len;
        let absent = empty(scores, [1]);
        let or_absent = |tensor: &Option<CubeTensor>| tensor.as_ref().unwrap_or(&absent).clone().into_buffer_arg();
        #[expect(unsafe_code, reason = "a kernel without bounds checks")]
        // SAFETY: each workgroup has its own row of scores; missing operands are not read.
        unsafe {
            softmax_rows_back::launch_unchecked(
                &scores.client,
                grid(n_rows, 1),
                CubeDim::new_1d(LANES as u32),
                scores.clone().into_buffer_arg(),
                of_probs.clone().into_buffer_arg(),
                log_sums.clone().into_buffer_arg(),
                or_absent(&self.positions),
                or_absent(&self.slopes),
                n_rows,
                seq_len,
                self.options.n_heads,
                self.options.sliding_window.unwrap_or(usize::MAX).min(seq_len),
                self.options.softcap.unwrap_or(1.0) as f32,
                self.parts(),
            );
        }
    }
}

impl RopeAttend {
    /// The product of `a` and `b` for each key head of each sequence. The query heads that share a key head are stacked like
    /// more queries.
    fn multiply(&self, causal: (Causal, usize), a: Operand<'_>, b: Operand<'_>, dims: [usize; 3]) -> CubeTensor {
        let batch = self.batch * self.options.n_kv_heads;
        multiply(Product { a, b, dims, batch, causal, bias: None, precision: self.precision })
    }
}

impl TrainingOp<CubeTensor> for RopeAttend {
    fn forward(&self, inputs: &[CubeTensor], wanted: &[bool]) -> (CubeTensor, Vec<CubeTensor>) {
        let is_recorded = wanted.contains(&true);
        let [q, k, v] = self.split(&inputs[0], false);
        let [n_queries, seq_len, width] = self.dims(&inputs[0]);
        let [of_q, of_k, of_v] = [&q, &k, &v].map(|rows| Operand::new(rows, width));
        let scores = self.multiply((Causal::Scores, seq_len), of_q, of_k.transposed(), [n_queries, seq_len, width]);
        let log_sums = self.softmax(&scores, seq_len);
        let probs = Operand::new(&scores, seq_len);
        let values = self.multiply((Causal::Queries, seq_len), probs, of_v, [n_queries, width, seq_len]);
        let output = self.join([values, k, v], true);
        (output, if is_recorded { vec![log_sums] } else { Vec::new() })
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: Vec<CubeTensor>,
        gradient: &CubeTensor,
        _wanted: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let [q, k, v] = self.split(&inputs[0], false);
        let [of_output, ..] = self.split(gradient, true);
        let [n_queries, seq_len, width] = self.dims(&inputs[0]);
        let [of_q, of_k, of_v, of_output] = [&q, &k, &v, &of_output].map(|rows| Operand::new(rows, width));
        let each = |a, b: Operand<'_>| {
            self.multiply((Causal::Scores, seq_len), a, b.transposed(), [n_queries, seq_len, width])
        };
        let (scores, of_probs) = (each(of_q, of_k), each(of_output, of_v));
        self.softmax_back([&scores, &of_probs], &saved[0], seq_len);
        let (probs, of_scores) = (Operand::new(&scores, seq_len), Operand::new(&of_probs, seq_len));
        let of_keys =
            |a: Operand<'_>, b| self.multiply((Causal::Keys, seq_len), a.transposed(), b, [seq_len, width, n_queries]);
        let of_inputs = [
            self.multiply((Causal::Queries, seq_len), of_scores, of_k, [n_queries, width, seq_len]),
            of_keys(of_scores, of_q),
            of_keys(probs, of_output),
        ];
        vec![Some(self.join(of_inputs, false))]
    }
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn split_heads(
    rows: &[f32],
    angles: &[f32],
    q: &mut [f32],
    k: &mut [f32],
    v: &mut [f32],
    n_values: usize,
    seq_len: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    half: usize,
    scale: f32,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_values {
        let width = (n_heads + 2 * n_kv_heads) * head_dim;
        let (row, column) = (at / width, at % width);
        let (head, dim) = (column / head_dim, column % head_dim);
        let mut value = rows[at];
        if head < n_heads + n_kv_heads && dim < 2 * half {
            let table = row * 2 * half;
            if dim < half {
                value = value * angles[table + dim] - rows[at + half] * angles[table + half + dim];
            } else {
                value = value * angles[table + dim - half] + rows[at - half] * angles[table + dim];
            }
        }
        let (sequence, place) = (row / seq_len, row % seq_len);
        if head < n_heads {
            q[((sequence * n_heads + head) * seq_len + place) * head_dim + dim] = value * scale;
        } else if head < n_heads + n_kv_heads {
            k[((sequence * n_kv_heads + head - n_heads) * seq_len + place) * head_dim + dim] = value;
        } else {
            v[((sequence * n_kv_heads + head - n_heads - n_kv_heads) * seq_len + place) * head_dim + dim] = value;
        }
    }
}

/// The gradient of dimension `dim` of a head before its rotation. `values` from `start` on are the gradients of the
/// head after its rotation.
#[cube]
fn rotated_back(values: &[f32], start: usize, dim: usize, angles: &[f32], table: usize, half: usize) -> f32 {
    let mut value = values[start + dim];
    if dim < 2 * half {
        if dim < half {
            value = value * angles[table + dim] + values[start + dim + half] * angles[table + half + dim];
        } else {
            value = value * angles[table + dim - half] - values[start + dim - half] * angles[table + dim];
        }
    }
    value
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn join_heads(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    angles: &[f32],
    rows: &mut [f32],
    n_values: usize,
    seq_len: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    half: usize,
    scale: f32,
) {
    let at = workgroup() * LANES + UNIT_POS_X as usize;
    if at < n_values {
        let width = (n_heads + 2 * n_kv_heads) * head_dim;
        let (row, column) = (at / width, at % width);
        let (head, dim) = (column / head_dim, column % head_dim);
        let (sequence, place) = (row / seq_len, row % seq_len);
        let table = row * 2 * half;
        if head < n_heads {
            let start = ((sequence * n_heads + head) * seq_len + place) * head_dim;
            rows[at] = rotated_back(q, start, dim, angles, table, half) * scale;
        } else if head < n_heads + n_kv_heads {
            let start = ((sequence * n_kv_heads + head - n_heads) * seq_len + place) * head_dim;
            rows[at] = rotated_back(k, start, dim, angles, table, half);
        } else {
            rows[at] = v[((sequence * n_kv_heads + head - n_heads - n_kv_heads) * seq_len + place) * head_dim + dim];
        }
    }
}

/// The first key that the query of `row` sees; the last one is the row's own.
#[cube]
fn first_key(
    row: usize,
    positions: &[f32],
    seq_len: usize,
    n_heads: usize,
    window: usize,
    #[comptime] has_positions: bool,
) -> usize {
    let query = row % seq_len;
    let mut n_seen = clamp_max(query + 1, window);
    if comptime!(has_positions) {
        let position = positions[row / (seq_len * n_heads) * seq_len + query];
        n_seen = clamp_max(n_seen, usize::cast_from(position) + 1);
    }
    query + 1 - n_seen
}

#[cube]
fn masked_score(
    score: f32,
    distance: usize,
    head: usize,
    slopes: &[f32],
    softcap: f32,
    #[comptime] parts: Parts,
) -> f32 {
    let mut value = score;
    if comptime!(parts.has_softcap) {
        value = soft_capped(value, softcap);
    }
    if comptime!(parts.has_slopes) {
        value -= slopes[head] * f32::cast_from(distance);
    }
    value
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn softmax_rows(
    scores: &mut [f32],
    log_sums: &mut [f32],
    positions: &[f32],
    slopes: &[f32],
    n_rows: usize,
    seq_len: usize,
    n_heads: usize,
    window: usize,
    softcap: f32,
    #[comptime] parts: Parts,
) {
    let row = workgroup();
    if row >= n_rows {
        terminate!();
    }
    let lane = UNIT_POS_X as usize;
    let (query, head) = (row % seq_len, row / seq_len % n_heads);
    let first = first_key(row, positions, seq_len, n_heads, window, comptime!(parts.has_positions));
    let start = row * seq_len;
    let mut shared = Shared::<[f32]>::new_slice(LANES);

    let mut largest = f32::new(LOWEST);
    // A lane has the same keys in all loops, so it reads only what it wrote itself.
    let mut key = lane;
    while key <= query {
        if key >= first {
            let score = masked_score(scores[start + key], query - key, head, slopes, softcap, parts);
            scores[start + key] = score;
            largest = max(largest, score);
        }
        key += LANES;
    }
    shared[lane] = largest;
    let largest = largest_of_lanes(&mut shared);

    let mut sum = f32::new(0.0);
    key = lane;
    while key <= query {
        if key >= first {
            let exponential = (scores[start + key] - largest).exp();
            scores[start + key] = exponential;
            sum += exponential;
        }
        key += LANES;
    }
    shared[lane] = sum;
    let sum = sum_of_lanes(&mut shared);

    let scale = 1.0f32 / sum;
    key = lane;
    while key < seq_len {
        let mut probability = f32::new(0.0);
        if key >= first && key <= query {
            probability = scores[start + key] * scale;
        }
        scores[start + key] = probability;
        key += LANES;
    }
    if lane == 0 {
        log_sums[row] = largest + sum.ln();
    }
}

#[cube(launch_unchecked)]
#[expect(clippy::too_many_arguments, reason = "the buffers and sizes of a kernel")]
fn softmax_rows_back(
    scores: &mut [f32],
    of_probs: &mut [f32],
    log_sums: &[f32],
    positions: &[f32],
    slopes: &[f32],
    n_rows: usize,
    seq_len: usize,
    n_heads: usize,
    window: usize,
    softcap: f32,
    #[comptime] parts: Parts,
) {
    let row = workgroup();
    if row >= n_rows {
        terminate!();
    }
    let lane = UNIT_POS_X as usize;
    let (query, head) = (row % seq_len, row / seq_len % n_heads);
    let first = first_key(row, positions, seq_len, n_heads, window, comptime!(parts.has_positions));
    let start = row * seq_len;
    let log_sum = log_sums[row];
    let mut shared = Shared::<[f32]>::new_slice(LANES);

    let mut sum = f32::new(0.0);
    let mut key = lane;
    while key < seq_len {
        if key >= first && key <= query {
            let score = masked_score(scores[start + key], query - key, head, slopes, softcap, parts);
            sum = fma((score - log_sum).exp(), of_probs[start + key], sum);
        }
        key += LANES;
    }
    shared[lane] = sum;
    let sum = sum_of_lanes(&mut shared);

    key = lane;
    while key < seq_len {
        let mut probability = f32::new(0.0);
        let mut of_score = f32::new(0.0);
        if key >= first && key <= query {
            let raw = scores[start + key];
            let score = masked_score(raw, query - key, head, slopes, softcap, parts);
            probability = (score - log_sum).exp();
            of_score = probability * (of_probs[start + key] - sum);
            if comptime!(parts.has_softcap) {
                let capped = bounded_tanh(raw / softcap);
                of_score *= 1.0f32 - capped * capped;
            }
        }
        scores[start + key] = probability;
        of_probs[start + key] = of_score;
        key += LANES;
    }
}
