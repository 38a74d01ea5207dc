//! Attention against numbers worked out by hand, and the properties that make it causal.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::gpt::position;

/// `[1, 1, n, width]` from rows.
fn rows<const N: usize, const W: usize>(rows: [[f32; W]; N]) -> Tensor<4> {
    Tensor::from_data(TensorData::new(rows.concat(), [1, 1, N, W]), &Device::flex())
}

fn values(tensor: Tensor<4>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn options(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> AttentionOptions {
    AttentionOptions {
        n_heads,
        n_kv_heads,
        head_dim,
        scale: 1.0,
        softcap: None,
        sliding_window: None,
        bidirectional: false,
        alibi_slopes: None,
        relative: None,
    }
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance, "found {found}, expected {expected}");
    }
}

/// Worked out by hand: scores 2 and 3, so the weights are 0.269 and 0.731.
#[test]
fn attention_of_one_query_matches_hand_computation() {
    let keys = rows([[1.0, 0.0], [1.0, 1.0]]);
    let attended = attend([rows([[2.0, 1.0]]), keys, rows([[3.0, 6.0], [7.0, 12.0]])], None, None, &options(1, 1, 2));
    assert_close(&values(attended.probs), &[0.26894, 0.73106], 1e-5);
    assert_close(&values(attended.output), &[5.924, 10.386], 1e-3);
}

/// A sink with a score of 3 takes 0.422 of the weight.
#[test]
fn attention_with_a_sink_matches_hand_computation() {
    let keys = rows([[1.0, 0.0], [1.0, 1.0]]);
    let sink = Some(Tensor::from_data([3.0f32], &Device::flex()));
    let attended = attend([rows([[2.0, 1.0]]), keys, rows([[3.0, 6.0], [7.0, 12.0]])], None, sink, &options(1, 1, 2));
    assert_close(&values(attended.probs), &[0.15536, 0.42232], 1e-5);
    assert_close(&values(attended.output), &[3.42231, 5.99998], 1e-3);
}

/// Worked out by hand. (With weights rounded to two digits, the second query's output would be 4.240 and 8.480.)
#[test]
fn attention_of_three_queries_matches_hand_computation() {
    let queries = rows([[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]]);
    let keys = rows([[1.0, 1.0], [0.0, 1.0]]);
    let attended = attend([queries, keys, rows([[4.0, 8.0], [6.0, 12.0]])], None, None, &options(1, 1, 2));
    assert_close(&values(attended.output), &[4.538, 9.076, 4.238, 8.477, 5.0, 10.0], 1e-3);
}

/// Rows of a seeded random matrix.
fn noise(n_rows: usize, width: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n_rows * width).map(|_| next()).collect()
}

fn dense(q: &[f32], k: &[f32], v: &[f32], options: &AttentionOptions, batch: usize) -> (Vec<f32>, Vec<f32>) {
    let device = Device::flex();
    let kv_width = options.n_kv_heads * options.head_dim;
    let n_rows = k.len() / kv_width;
    let matrix = |values: &[f32], width| Tensor::from_data(TensorData::new(values.to_vec(), [n_rows, width]), &device);
    let bias = causal_bias(0..n_rows / batch, 0, options, &device);
    let inputs = [matrix(q, options.n_heads * options.head_dim), matrix(k, kv_width), matrix(v, kv_width)];
    let (output, probs) = attention_dense(inputs, (bias, None), batch, options);
    (output.into_data().try_into_vec().unwrap(), values(probs))
}

/// The same attention by its definition: one row and one head at a time, in f64.
fn by_definition(q: &[f32], k: &[f32], v: &[f32], options: &AttentionOptions) -> Vec<f32> {
    let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
    let n_rows = k.len() / (n_kv_heads * head_dim);
    let at =
        |x: &[f32], heads: usize, row: usize, head: usize, i: usize| f64::from(x[(row * heads + head) * head_dim + i]);
    let mut output = Vec::new();
    for row in 0..n_rows {
        for head in 0..n_heads {
            let kv_head = head * n_kv_heads / n_heads;
            let sees = |key: &usize| {
                (*key <= row || options.bidirectional)
                    && options.sliding_window.is_none_or(|window| key.abs_diff(row) < window)
            };
            let seen: Vec<usize> = (0..n_rows).filter(sees).collect();
            let scores: Vec<f64> = seen
                .iter()
                .map(|&key| {
                    let dot: f64 =
                        (0..head_dim).map(|i| at(q, n_heads, row, head, i) * at(k, n_kv_heads, key, kv_head, i)).sum();
                    let slope = options.alibi_slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                    dot * options.scale + slope * (key as f64 - row as f64)
                })
                .collect();
            let total: f64 = scores.iter().map(|score| score.exp()).sum();
            output.extend((0..head_dim).map(|i| {
                let mixed =
                    scores.iter().enumerate().map(|(n, score)| score.exp() * at(v, n_kv_heads, seen[n], kv_head, i));
                (mixed.sum::<f64>() / total) as f32
            }));
        }
    }
    output
}

#[test]
fn reference_attention_matches_the_definition_in_f64() {
    for (n_heads, n_kv_heads) in [(1, 1), (4, 4), (4, 2), (6, 1)] {
        for sliding_window in [None, Some(1), Some(3)] {
            let kinds = [(false, None), (false, Some(position::alibi_slopes(n_heads))), (true, None)];
            for (bidirectional, alibi_slopes) in kinds {
                let options = options(n_heads, n_kv_heads, 6);
                let options = AttentionOptions { scale: 0.7, sliding_window, bidirectional, alibi_slopes, ..options };
                let (q, k, v) = (noise(7, n_heads * 6, 1), noise(7, n_kv_heads * 6, 2), noise(7, n_kv_heads * 6, 3));
                let (found, _) = dense(&q, &k, &v, &options, 1);
                assert_close(&found, &by_definition(&q, &k, &v, &options), 1e-5);
            }
        }
    }
}

#[test]
fn dense_attention_is_causal_within_each_sequence() {
    let options = options(2, 1, 4);
    let (n_rows, batch) = (6, 2);
    let (q, k, v) = (noise(batch * n_rows, 8, 4), noise(batch * n_rows, 4, 5), noise(batch * n_rows, 4, 6));
    let (before, _) = dense(&q, &k, &v, &options, batch);
    for changed in 0..n_rows {
        let mut v = v.clone();
        v[changed * 4..(changed + 1) * 4].fill(100.0);
        let (after, _) = dense(&q, &k, &v, &options, batch);
        for row in 0..batch * n_rows {
            let same = before[row * 8..(row + 1) * 8] == after[row * 8..(row + 1) * 8];
            let sees = (changed..n_rows).contains(&row);
            assert_eq!(same, !sees, "row {row} of both sequences, value {changed} changed");
        }
    }
}

/// A hidden key has the weight 0, but 0 times infinity is NaN: it must be left out of the sum.
#[test]
fn non_finite_keys_and_values_change_only_rows_that_see_them() {
    let (n_rows, batch) = (6, 2);
    for sliding_window in [None, Some(1), Some(3)] {
        for alibi_slopes in [None, Some(position::alibi_slopes(2))] {
            let options = AttentionOptions { sliding_window, alibi_slopes, ..options(2, 1, 4) };
            let (q, k, v) = (noise(batch * n_rows, 8, 4), noise(batch * n_rows, 4, 5), noise(batch * n_rows, 4, 6));
            let (whole, _) = dense(&q, &k, &v, &options, batch);
            for (broken, changed) in
                [f32::NAN, f32::INFINITY].into_iter().flat_map(|value| (0..n_rows).map(move |row| (value, row)))
            {
                let with_broken = |rows: &[f32]| {
                    let mut rows = rows.to_vec();
                    rows[changed * 4 + 1] = broken;
                    rows
                };
                for (k, v) in [(with_broken(&k), v.clone()), (k.clone(), with_broken(&v))] {
                    let (found, _) = dense(&q, &k, &v, &options, batch);
                    for row in 0..batch * n_rows {
                        let [found, whole] = [&found, &whole].map(|rows| &rows[row * 8..(row + 1) * 8]);
                        let sees = row < n_rows && row >= changed && sliding_window.is_none_or(|w| row < changed + w);
                        if sees {
                            assert!(found.iter().any(|value| !value.is_finite()), "row {row}, {broken} at {changed}");
                        } else {
                            assert_eq!(found, whole, "row {row}, {broken} at {changed}, {sliding_window:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Threads and kernels write the rows of different sequences without synchronization.
#[test]
#[should_panic(expected = "rows 2..4 behind 3 rows")]
fn paged_sequences_with_overlapping_rows_panic() {
    let device = Device::flex();
    let sequence = |rows: Range<usize>| {
        let slots = Slots::new((0..rows.len() as i32).collect(), &device);
        PagedRows { rows, start: 0, first_key: 0, slots }
    };
    let _ = PagedSequences::new(vec![sequence(0..3), sequence(2..4)], &device);
}

#[test]
fn attention_weights_are_causal_and_sum_to_one() {
    let options = options(2, 1, 4);
    let (_, probs) = dense(&noise(5, 8, 7), &noise(5, 4, 8), &noise(5, 4, 9), &options, 1);
    for (number, row) in probs.chunks(5).enumerate() {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!(row[number % 5 + 1..].iter().all(|&weight| weight == 0.0), "row {number} sees what comes after it");
    }
}

/// The slide "Cross-attention: attention scores" of the first lecture (`000`): rows are the words of "j'ai déjà pris le
/// petit déjeuner", columns are the words of "I ate breakfast already". Two of its rows add up to 1.1, and are divided
/// by that here.
#[test]
fn cross_attention_of_the_slide_on_attention_scores_mixes_source_words_for_each_target_word() {
    let slide = [
        [0.8, 0.2, 0.1, 0.0],
        [0.1, 0.2, 0.1, 0.6],
        [0.1, 0.7, 0.2, 0.1],
        [0.0, 0.2, 0.8, 0.0],
        [0.0, 0.1, 0.9, 0.0],
        [0.0, 0.1, 0.9, 0.0],
    ];
    // Source keys and values that differ by word and have another length, and a row of padding.
    let source =
        rows([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [9.0; 4]]);
    let queries = rows(slide.map(|row: [f32; 4]| row.map(|share| share.max(1e-30).ln())));
    let options = AttentionOptions { bidirectional: true, ..options(1, 1, 4) };
    let flat = |x: Tensor<4>| join_heads(x);
    let bias = padding_bias(&[4], 5, &Device::flex());
    let inputs = [flat(queries), flat(source.clone()), flat(source)];
    let (output, probs) = attention_dense(inputs, (Some(bias), None), 1, &options);
    let expected: Vec<f32> = slide.iter().flat_map(|row| row.map(|share| share / row.iter().sum::<f32>())).collect();
    assert_eq!(output.dims(), [6, 4]);
    assert_close(&output.into_data().try_into_vec::<f32>().unwrap(), &expected, 1e-6);
    // `A[2, 1]` of the slide: "ate" for "pris".
    assert_close(&values(probs)[2 * 5 + 1..][..1], &[0.7 / 1.1], 1e-6);
}
