//! Softmax attention over the rows of a batch, and over the pages of the KV cache.

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use burn::tensor::{DType, Device, Tensor, TensorData, activation::softmax};
use half::f16;

use super::{
    AttentionOptions, KvDtype, PagedRows, PagedSequences, Placement, Precision, Rotation, Slots, cpu, cube,
    records_gradients, rope_append, soft_cap_reference,
    training::{apply, apply_on_gpu},
    types::document_ends,
};

/// Added to the scores of hidden keys. Finite, since WGSL guarantees nothing about infinities; so far below any score
/// that its exponential is exactly zero.
const HIDDEN: f32 = -1e30;

/// The output of attention, and its weights.
#[derive(Clone, Debug)]
pub(crate) struct Attended {
    /// `[batch, n_heads, n_queries, head_dim]`.
    pub(crate) output: Tensor<4>,
    /// `[batch, n_heads, n_queries, n_keys]`; each row sums to 1, or with a sink to less.
    pub(crate) probs: Tensor<4>,
}

/// Attention within each of `batch` sequences of `seq_len` rows.
///
/// `q [batch * seq_len, n_heads * head_dim]`, `k` and `v [batch * seq_len, n_kv_heads * head_dim]`, (in cross-attention
/// they may be longer or shorter than `q`); `bias` from [`causal_bias`] for `0..seq_len`; `sinks [n_heads]`. Returns
/// `[batch * seq_len, n_heads * head_dim]`, and the weights.
pub(crate) fn attention_dense(
    [q, k, v]: [Tensor<2>; 3],
    (bias, sinks): (Option<Tensor<4>>, Option<Tensor<1>>),
    batch: usize,
    options: &AttentionOptions,
) -> (Tensor<2>, Tensor<4>) {
    let [n_queries, n_keys] = [&q, &k].map(|rows| rows.dims()[0] / batch.max(1));
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let q = split_heads(q, [batch, n_queries, n_heads, head_dim]);
    let k = split_heads(k, [batch, n_keys, n_kv_heads, head_dim]);
    let v = split_heads(v, [batch, n_keys, n_kv_heads, head_dim]);
    let Attended { output, probs } = attend([q, k, v], bias, sinks, options);
    (join_heads(output), probs)
}

/// [`rope`](super::rope) of queries and keys, then [`attention_dense`] without its probabilities. From
/// `qkv [batch * seq_len, (n_heads + 2 n_kv_heads) * head_dim]` to `[batch * seq_len, n_heads * head_dim]`. If there are
/// `positions`, rows see only their own document, as with [`document_bias`]. The CPU attends in f32 whatever `precision`.
///
/// # Panics
/// With sinks, or with bidirectional attention, on a GPU, which has no body for them.
pub(crate) fn rope_and_attend(
    qkv: Tensor<2>,
    (rotation, sinks): (Option<&Rotation>, Option<Tensor<1>>),
    batch: usize,
    positions: Option<Arc<Vec<u32>>>,
    options: &AttentionOptions,
    precision: Precision,
) -> Tensor<2> {
    match Placement::of(&qkv.device()) {
        Placement::Cpu | Placement::CpuTraining => {
            let rotation = rotation.map(Rotation::shared).unwrap_or_default();
            let inputs = [Some(qkv.into()), sinks.map(Into::into)];
            let op = cpu::RopeAttend { options: options.clone(), batch, positions, rotation };
            apply(inputs.into_iter().flatten().collect(), op)
        }
        Placement::Gpu | Placement::GpuTraining => {
            assert!(sinks.is_none() && !options.bidirectional, "models with such attention are refused on a GPU");
            let positions = positions.as_ref().map(|positions| positions.as_slice());
            let angles = rotation.map(|rotation| rotation.table().tensor());
            let op = cube::training::RopeAttend::new(options, batch, angles, positions, precision, &qkv);
            apply_on_gpu(vec![qkv.into()], op)
        }
    }
}

/// Attention of a step's rows over the pages of the KV cache, for decoding rows and chunks of prefill together.
///
/// `q [n_rows, n_heads * head_dim]`; `keys` and `values` are whole pools ([`new_pool`](super::new_pool)) that contain
/// the step's own rows already. `sinks [n_heads]` has one score per head that adds to the softmax's denominator but has
/// no value. Returns `[n_rows, n_heads * head_dim]`.
pub(crate) fn attention_paged(
    q: Tensor<2>,
    [keys, values]: [&Tensor<2>; 2],
    sequences: &PagedSequences,
    (options, sinks): (&AttentionOptions, Option<Tensor<1>>),
) -> Tensor<2> {
    match Placement::of(&q.device()) {
        Placement::Cpu => attention_paged_on_cpu(q, [keys, values], sequences.as_slice(), (options, sinks)),
        Placement::Gpu
            if let Some((table, step)) = sequences.gpu_table(options)
                && sinks.is_none() =>
        {
            assert_eq!(q.dims()[0], sequences.n_rows(), "rows of queries");
            cube::attention(q, [keys, values], table.tensor(), *step)
        }
        _ => attention_paged_reference(q, [keys, values], sequences.as_slice(), (options, sinks)),
    }
}

fn attention_paged_on_cpu(
    q: Tensor<2>,
    [keys, values]: [&Tensor<2>; 2],
    sequences: &[PagedRows],
    (options, sinks): (&AttentionOptions, Option<Tensor<1>>),
) -> Tensor<2> {
    let dims = q.dims();
    let sinks = sinks.map(cpu::values);
    let how = (options, sinks.as_ref().map(|sinks| sinks.as_slice()));
    let (q, pools) = (cpu::values(q), [keys, values].map(cpu::pool));
    let [keys_pool, values_pool] = &pools;
    let output = match KvDtype::of(keys) {
        KvDtype::F16 => {
            let pools = [keys_pool.as_slice::<f16>(), values_pool.as_slice()];
            cpu::attention_paged(q.as_slice(), pools, sequences, how)
        }
        KvDtype::Q8 => {
            let pools = [keys_pool.as_slice::<i8>(), values_pool.as_slice()];
            cpu::attention_paged(q.as_slice(), pools, sequences, how)
        }
        KvDtype::F32 => {
            let pools = [keys_pool.as_slice::<f32>(), values_pool.as_slice()];
            cpu::attention_paged(q.as_slice(), pools, sequences, how)
        }
    };
    cpu::tensor(output, dims)
}

/// [`rope_append`] and then [`attention_paged`]: rotates the queries and keys in `qkv [n_rows, (n_heads + 2 n_kv_heads)
/// * head_dim]`, stores keys and values at `slots` of their pools, the slots of the sequences' last rows, and
/// attends. Returns `[n_rows, n_heads * head_dim]`.
pub(crate) fn append_and_attend(
    qkv: Tensor<2>,
    (rotation, sinks): (Option<&Rotation>, Option<Tensor<1>>),
    [keys, values]: [&mut Tensor<2>; 2],
    slots: &Slots,
    sequences: &PagedSequences,
    options: &AttentionOptions,
) -> Tensor<2> {
    let half = rotation.map_or(0, Rotation::half);
    if Placement::of(&qkv.device()) == Placement::Gpu
        && sinks.is_none()
        && sequences.can_fuse_append()
        && let Some((table, step)) = sequences.gpu_table(options)
        && step.plan.can_fuse(half)
    {
        assert_eq!(qkv.dims()[0], sequences.n_rows(), "rows of queries, keys and values");
        let angles = rotation.map(|rotation| rotation.table().tensor());
        return cube::append_and_attend(qkv, angles, [keys, values], table.tensor(), (*step, half));
    }
    let q = rope_append(qkv, rotation, [&mut *keys, &mut *values], slots, options);
    attention_paged(q, [keys, values], sequences, (options, sinks))
}

/// [`attention_paged`] in plain Burn operations.
pub(crate) fn attention_paged_reference(
    q: Tensor<2>,
    [keys, values]: [&Tensor<2>; 2],
    sequences: &[PagedRows],
    (options, sinks): (&AttentionOptions, Option<Tensor<1>>),
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
        join_heads(attend([queries, gather(keys), gather(values)], bias, sinks.clone(), options).output)
    });
    Tensor::cat(outputs.collect(), 0)
}

/// The reference: `softmax(q k^T * scale + bias) v`, with grouped heads. Uses the scale and the soft cap of `options`.
/// `sinks [n_heads]` adds one score per head to the softmax, without a value.
///
/// `q [batch, n_heads, n_queries, head_dim]`, `k` and `v [batch, n_kv_heads, n_keys, head_dim]`, `bias` broadcastable
/// to `[batch, n_heads, n_queries, n_keys]`. ["Attention is all you need"](https://arxiv.org/abs/1706.03762), 3.2.1.
///
/// A hidden key does not affect a query, even if it is infinite or NaN. This does not hold when gradients are recorded:
/// they would all be NaN anyway.
pub(crate) fn attend(
    [q, k, v]: [Tensor<4>; 3],
    bias: Option<Tensor<4>>,
    sinks: Option<Tensor<1>>,
    options: &AttentionOptions,
) -> Attended {
    let [batch, n_heads, n_queries, head_dim] = q.dims();
    let [_, n_kv_heads, n_keys, _] = k.dims();
    // The query heads that share a key head are stacked like more queries, so that keys are not repeated.
    let stacked = [batch, n_kv_heads, n_heads / n_kv_heads * n_queries, head_dim];
    let scores = (q * options.scale).reshape(stacked).matmul(k.swap_dims(2, 3));
    let scores = scores.reshape([batch, n_heads, n_queries, n_keys]);
    let scores = match options.softcap {
        Some(cap) => soft_cap_reference(scores, cap),
        None => scores,
    };
    let (scores, hidden) = match bias {
        Some(bias) if records_gradients(&scores.device()) => (scores + bias, None),
        Some(bias) => {
            let hidden = bias.clone().lower_equal_elem(HIDDEN).expand(scores.dims());
            ((scores + bias).mask_fill(hidden.clone(), HIDDEN), Some(hidden))
        }
        None => (scores, None),
    };
    let probs = match sinks {
        Some(sinks) => {
            let sinks = sinks.reshape([1, n_heads, 1, 1]).expand([batch, n_heads, n_queries, 1]);
            softmax(Tensor::cat(vec![scores, sinks], 3), 3).narrow(3, 0, n_keys)
        }
        None => softmax(scores, 3),
    };
    let stacked = [batch, n_kv_heads, n_heads / n_kv_heads * n_queries, n_keys];
    let weights = probs.clone().reshape(stacked);
    let output = match hidden {
        Some(hidden) => {
            // 0 times infinity is NaN: values that are not finite are left out of the sum, and rows that see them
            // become NaN.
            let broken = v.clone().is_finite().bool_not();
            let seen = hidden.bool_not().reshape(stacked).float().matmul(broken.clone().float());
            weights.matmul(v.mask_fill(broken, 0.0)).mask_fill(seen.greater_elem(0.0), f32::NAN)
        }
        None => weights.matmul(v),
    };
    let [_, _, _, value_dim] = output.dims();
    Attended { output: output.reshape([batch, n_heads, n_queries, value_dim]), probs }
}

/// Bias of the scores of queries at positions `queries`, the last positions of their sequence, with keys from
/// `first_key` to the last query: `[1, 1 or n_heads, n_queries, n_keys]`. `None` if every query sees all keys and
/// scores have no bias.
pub(crate) fn causal_bias(
    queries: Range<usize>,
    first_key: usize,
    options: &AttentionOptions,
    device: &Device,
) -> Option<Tensor<4>> {
    let keys = first_key..queries.end;
    let sees = |query: usize, key: usize| options.seen(query, queries.end).contains(&key);
    let (first, last) = (queries.start, queries.end.saturating_sub(1));
    let all_visible = sees(first, last) && sees(last, first_key);
    let n_heads = options.n_placed_heads();
    if all_visible && options.alibi_slopes.is_none() && options.relative.is_none() {
        return None;
    }
    let mut bias = Vec::with_capacity(n_heads * queries.len() * keys.len());
    for head in 0..n_heads {
        for query in queries.clone() {
            let of_key = |key| if sees(query, key) { options.of_places(head, query, key) } else { HIDDEN };
            bias.extend(keys.clone().map(of_key));
        }
    }
    let shape = [1, n_heads, queries.len(), keys.len()];
    Some(Tensor::from_data(TensorData::new(bias, shape), device))
}

/// The bias of scores in sequences of `seq_len` rows that consist of documents, from the position of each row in its
/// document: `[batch, 1 or n_heads, seq_len, seq_len]`. A row sees only rows of its own document.
pub(crate) fn document_bias(
    positions: &[u32],
    seq_len: usize,
    options: &AttentionOptions,
    device: &Device,
) -> Tensor<4> {
    let slopes = options.alibi_slopes.as_deref().unwrap_or(&[0.0]);
    let mut bias = Vec::with_capacity(positions.len() * slopes.len() * seq_len);
    for positions in positions.chunks_exact(seq_len) {
        let ends = document_ends(positions);
        for slope in slopes {
            for (query, position) in positions.iter().enumerate() {
                let start = query - *position as usize;
                let seen = options.seen(*position as usize, ends[query] - start);
                let bias_of = |key: usize| match key.checked_sub(start).filter(|place| seen.contains(place)) {
                    Some(_) => slope * (key as f32 - query as f32),
                    None => HIDDEN,
                };
                bias.extend((0..seq_len).map(bias_of));
            }
        }
    }
    let shape = [positions.len() / seq_len, slopes.len(), seq_len, seq_len];
    Tensor::from_data(TensorData::new(bias, shape), device)
}

/// The bias of scores that hides the keys after the first `lens [batch]` of `n_keys`: `[batch, 1, 1, n_keys]`.
pub(crate) fn padding_bias(lens: &[usize], n_keys: usize, device: &Device) -> Tensor<4> {
    let of_keys = |len: &usize| {
        let len = *len;
        (0..n_keys).map(move |key| if key < len { 0.0 } else { HIDDEN })
    };
    let bias: Vec<f32> = lens.iter().flat_map(of_keys).collect();
    Tensor::from_data(TensorData::new(bias, [lens.len(), 1, 1, n_keys]), device)
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
