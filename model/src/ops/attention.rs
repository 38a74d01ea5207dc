//! Softmax attention: over the rows of a batch, and over the pages of a cache.

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::OnceLock};

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation::softmax};
use half::f16;

#[cfg(feature = "gpu")]
use super::cube;
use super::{Ints, Rotation, cpu, rope_append, soft_cap_reference};

#[cfg(feature = "gpu")]
mod on_gpu;

/// Added to the score of a pair that must not see each other. Finite, since WGSL promises nothing about infinities; so
/// far below any score that its exponential is exactly zero.
const HIDDEN: f32 = -1e30;

/// What shapes the scores, the same for every layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionOptions {
    /// Query heads.
    pub(crate) n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub(crate) n_kv_heads: usize,
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// Scores are multiplied by this before the softmax; usually `1 / sqrt(head_dim)`.
    pub(crate) scale: f64,
    /// Scores, multiplied, become `c * tanh(score / c)`, before slopes are added; see [`soft_cap`](super::soft_cap).
    pub(crate) softcap: Option<f64>,
    /// Each row sees itself and this many positions less one before it.
    pub(crate) sliding_window: Option<usize>,
    /// One slope per query head: `slope * (key position - query position)` is added to the score.
    pub(crate) alibi_slopes: Option<Vec<f32>>,
}

/// What attention gives: the mixed values, and the weights they were mixed by.
#[derive(Clone, Debug)]
pub(crate) struct Attended {
    /// `[batch, n_heads, n_queries, head_dim]`.
    pub(crate) output: Tensor<4>,
    /// `[batch, n_heads, n_queries, n_keys]`; each row sums to 1.
    pub(crate) probs: Tensor<4>,
}

/// The rows of one sequence in a step over the cache.
#[derive(Clone, Debug)]
pub(crate) struct PagedRows {
    /// Which rows of the step.
    pub(crate) rows: Range<usize>,
    /// Position of the first of these rows in its sequence.
    pub(crate) start: usize,
    /// Position of the first key; above 0 when earlier ones have left the sliding window of every row.
    pub(crate) first_key: usize,
    /// Where the sequence's keys lie in the pool, from `first_key` to the last row's own: `[n_keys]`.
    pub(crate) slots: Slots,
}

/// The sequences of a step, and on a GPU how its kernel goes through them.
#[derive(Clone, Debug)]
pub(crate) struct PagedSequences {
    sequences: Vec<PagedRows>,
    #[cfg(feature = "gpu")]
    gpu: on_gpu::GpuLayouts,
}

impl PagedSequences {
    /// Of a step over pools on `device`. Every layer of the step has the same [`AttentionOptions`], but that some may have
    /// a window and others none.
    ///
    /// # Panics
    /// Unless the sequences' rows follow each other from 0 on, and each sequence has as many slots as keys: kernels go by
    /// both.
    pub(crate) fn new(sequences: Vec<PagedRows>, device: &Device) -> Self {
        #[cfg(not(feature = "gpu"))]
        let _ = device;
        let mut n_rows = 0;
        for PagedRows { rows, start, first_key, slots } in &sequences {
            let n_slots = slots.host().len();
            assert!(rows.start == n_rows && rows.end >= n_rows, "rows {rows:?} behind {n_rows} rows");
            assert!(*first_key + n_slots == start + rows.len(), "{n_slots} slots for keys from {first_key} on");
            n_rows = rows.end;
        }
        Self {
            sequences,
            #[cfg(feature = "gpu")]
            gpu: on_gpu::GpuLayouts::new(device),
        }
    }

    /// The sequences in the order of their rows.
    pub(crate) fn as_slice(&self) -> &[PagedRows] {
        &self.sequences
    }

    /// Rows of all sequences.
    #[cfg(feature = "gpu")]
    fn n_rows(&self) -> usize {
        self.sequences.last().map_or(0, |sequence| sequence.rows.end)
    }
}

/// Numbers of slots of a pool: on the host, and on a device once an operation wants them there.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    numbers: Ints,
    differ: OnceLock<bool>,
}

impl Slots {
    /// Slots of pools on `device`.
    pub(crate) fn new(host: Vec<i32>, device: &Device) -> Self {
        Self { numbers: Ints::new(host, device), differ: OnceLock::new() }
    }

    /// As plain numbers.
    pub(crate) fn host(&self) -> &[i32] {
        self.numbers.host()
    }

    /// On their way to the device.
    #[cfg(feature = "gpu")]
    pub(crate) fn numbers(&self) -> &Ints {
        &self.numbers
    }

    /// Whether no slot is there twice; found out at the first call.
    pub(crate) fn differ(&self) -> bool {
        *self.differ.get_or_init(|| {
            let mut sorted = self.host().to_vec();
            sorted.sort_unstable();
            sorted.is_sorted_by(|one, next| one < next)
        })
    }

    /// On the device; uploaded at the first call.
    pub(crate) fn tensor(&self) -> Tensor<1, Int> {
        self.numbers.tensor()
    }
}

/// Attention of `batch` sequences of `seq_len` rows, each causally over itself.
///
/// `q [batch * seq_len, n_heads * head_dim]`, `k` and `v [batch * seq_len, n_kv_heads * head_dim]`; `bias` as
/// [`causal_bias`] makes it for `0..seq_len`. The output's rows are put back in `[batch * seq_len, n_heads * head_dim]`.
pub(crate) fn attention_dense(
    [q, k, v]: [Tensor<2>; 3],
    bias: Option<Tensor<4>>,
    batch: usize,
    options: &AttentionOptions,
) -> (Tensor<2>, Tensor<4>) {
    let seq_len = q.dims()[0] / batch.max(1);
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let q = split_heads(q, [batch, seq_len, n_heads, head_dim]);
    let k = split_heads(k, [batch, seq_len, n_kv_heads, head_dim]);
    let v = split_heads(v, [batch, seq_len, n_kv_heads, head_dim]);
    let Attended { output, probs } = attend([q, k, v], bias, options);
    (join_heads(output), probs)
}

/// Attention of a step's rows over the pages of a cache: decoding rows and chunks of prefill side by side.
///
/// `q [n_rows, n_heads * head_dim]`; `keys` and `values` are whole pools `[n_slots, n_kv_heads * head_dim]` that already
/// hold the step's own rows. Gives `[n_rows, n_heads * head_dim]`.
pub(crate) fn attention_paged(
    q: Tensor<2>,
    [keys, values]: [&Tensor<2>; 2],
    sequences: &PagedSequences,
    options: &AttentionOptions,
) -> Tensor<2> {
    let device = q.device();
    #[cfg(feature = "gpu")]
    if cube::is_cube(&device)
        && let Some((table, step)) = sequences.on_gpu(options)
    {
        assert_eq!(q.dims()[0], sequences.n_rows(), "rows of queries");
        return cube::attention(q, [keys, values], table.tensor(), *step);
    }
    let sequences = sequences.as_slice();
    if cpu::is_cpu(&device) {
        let dims = q.dims();
        let (q, pools) = (cpu::values(q), [keys, values].map(cpu::pool));
        let [keys_pool, values_pool] = &pools;
        let output = match keys.dtype() {
            DType::F16 => {
                let pools = [keys_pool.as_slice::<f16>(), values_pool.as_slice()];
                cpu::attention_paged(q.as_slice(), pools, sequences, options)
            }
            _ => {
                let pools = [keys_pool.as_slice::<f32>(), values_pool.as_slice()];
                cpu::attention_paged(q.as_slice(), pools, sequences, options)
            }
        };
        return cpu::tensor(output, dims);
    }
    attention_paged_reference(q, [keys, values], sequences, options)
}

/// [`rope_append`] and [`attention_paged`] over what it gives: rotates the queries and keys in
/// `qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, stores keys and values at `slots` of their pools, which are those of
/// the sequences' last rows, and attends. Gives `[n_rows, n_heads * head_dim]`.
pub(crate) fn append_and_attend(
    qkv: Tensor<2>,
    rotation: Option<&Rotation>,
    [keys, values]: [&mut Tensor<2>; 2],
    slots: &Slots,
    sequences: &PagedSequences,
    options: &AttentionOptions,
) -> Tensor<2> {
    #[cfg(feature = "gpu")]
    if cube::is_cube(&qkv.device())
        && sequences.decode()
        && !sequences.stores_apart()
        && let Some((table, step)) = sequences.on_gpu(options)
        && let half = rotation.map_or(0, Rotation::half)
        && step.plan.joins(half)
    {
        assert_eq!(qkv.dims()[0], sequences.n_rows(), "rows of queries, keys and values");
        let angles = rotation.map(|rotation| rotation.table().tensor());
        return cube::append_and_attend(qkv, angles, [keys, values], table.tensor(), (*step, half));
    }
    let q = rope_append(qkv, rotation, [&mut *keys, &mut *values], slots, options);
    attention_paged(q, [keys, values], sequences, options)
}

/// [`attention_paged`] in plain Burn operations: the oracle of faster bodies, and what runs where there is none.
pub(crate) fn attention_paged_reference(
    q: Tensor<2>,
    [keys, values]: [&Tensor<2>; 2],
    sequences: &[PagedRows],
    options: &AttentionOptions,
) -> Tensor<2> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let device = q.device();
    let outputs = sequences.iter().map(|sequence| {
        let n_keys = sequence.slots.host().len();
        let gather = |pool: &Tensor<2>| {
            let rows = pool.clone().select(0, sequence.slots.tensor()).cast(DType::F32);
            split_heads(rows, [1, n_keys, n_kv_heads, head_dim])
        };
        let queries = q.clone().slice([sequence.rows.clone(), 0..n_heads * head_dim]);
        let queries = split_heads(queries, [1, sequence.rows.len(), n_heads, head_dim]);
        let span = sequence.start..sequence.start + sequence.rows.len();
        let bias = causal_bias(span, sequence.first_key, options, &device);
        join_heads(attend([queries, gather(keys), gather(values)], bias, options).output)
    });
    Tensor::cat(outputs.collect(), 0)
}

/// The reference: `softmax(q k^T * scale + bias) v`, grouped heads included. Of `options`, scale and soft cap count here.
///
/// `q [batch, n_heads, n_queries, head_dim]`, `k` and `v [batch, n_kv_heads, n_keys, head_dim]`, `bias` broadcastable to
/// `[batch, n_heads, n_queries, n_keys]`. ["Attention is all you need"](https://arxiv.org/abs/1706.03762), 3.2.1.
///
/// A key that is hidden from a query has no influence on it, even if it is infinite or NaN. Where gradients are recorded
/// this is not so: they would all be NaN anyway.
pub(crate) fn attend([q, k, v]: [Tensor<4>; 3], bias: Option<Tensor<4>>, options: &AttentionOptions) -> Attended {
    let [batch, n_heads, n_queries, head_dim] = q.dims();
    let [_, n_kv_heads, n_keys, _] = k.dims();
    // The query heads that share a key head are stacked as if they were more queries: nothing is repeated.
    let stacked = [batch, n_kv_heads, n_heads / n_kv_heads * n_queries, head_dim];
    let scores = (q * options.scale).reshape(stacked).matmul(k.swap_dims(2, 3));
    let scores = scores.reshape([batch, n_heads, n_queries, n_keys]);
    let scores = match options.softcap {
        Some(cap) => soft_cap_reference(scores, cap),
        None => scores,
    };
    let (scores, hidden) = match bias {
        Some(bias) if scores.device().is_autodiff() => (scores + bias, None),
        Some(bias) => {
            let hidden = bias.clone().lower_equal_elem(HIDDEN).expand(scores.dims());
            ((scores + bias).mask_fill(hidden.clone(), HIDDEN), Some(hidden))
        }
        None => (scores, None),
    };
    let probs = softmax(scores, 3);
    let stacked = [batch, n_kv_heads, n_heads / n_kv_heads * n_queries, n_keys];
    let weights = probs.clone().reshape(stacked);
    let output = match hidden {
        Some(hidden) => {
            // 0 times infinity is NaN: what is not finite is left out of the sum, and shows where it is seen.
            let broken = v.clone().is_finite().bool_not();
            let seen = hidden.bool_not().reshape(stacked).float().matmul(broken.clone().float());
            weights.matmul(v.mask_fill(broken, 0.0)).mask_fill(seen.greater_elem(0.0), f32::NAN)
        }
        None => weights.matmul(v),
    };
    let [_, _, _, value_dim] = output.dims();
    Attended { output: output.reshape([batch, n_heads, n_queries, value_dim]), probs }
}

/// What is added to the scores of queries at positions `queries` over keys from `first_key` to the last query's own
/// position: `[1, 1 or n_heads, n_queries, n_keys]`, or nothing where every pair sees each other alike.
pub(crate) fn causal_bias(
    queries: Range<usize>,
    first_key: usize,
    options: &AttentionOptions,
    device: &Device,
) -> Option<Tensor<4>> {
    let keys = first_key..queries.end;
    let sees = |query: usize, key: usize| key <= query && options.sliding_window.is_none_or(|w| key + w > query);
    let (first, last) = (queries.start, queries.end.saturating_sub(1));
    let all_visible = sees(first, last) && sees(last, first_key);
    if all_visible && options.alibi_slopes.is_none() {
        return None;
    }
    let slopes = options.alibi_slopes.as_deref().unwrap_or(&[0.0]);
    let mut bias = Vec::with_capacity(slopes.len() * queries.len() * keys.len());
    for slope in slopes {
        for query in queries.clone() {
            bias.extend(keys.clone().map(
                |key| {
                    if sees(query, key) { slope * (key as f32 - query as f32) } else { HIDDEN }
                },
            ));
        }
    }
    let shape = [1, slopes.len(), queries.len(), keys.len()];
    Some(Tensor::from_data(TensorData::new(bias, shape), device))
}

/// `[batch * seq_len, n_heads * head_dim]` to `[batch, n_heads, seq_len, head_dim]`.
fn split_heads(x: Tensor<2>, [batch, seq_len, n_heads, head_dim]: [usize; 4]) -> Tensor<4> {
    x.reshape([batch, seq_len, n_heads, head_dim]).swap_dims(1, 2)
}

/// `[batch, n_heads, seq_len, head_dim]` to `[batch * seq_len, n_heads * head_dim]`.
fn join_heads(x: Tensor<4>) -> Tensor<2> {
    let [batch, n_heads, seq_len, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch * seq_len, n_heads * head_dim])
}
