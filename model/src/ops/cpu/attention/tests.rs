use super::{
    super::{
        append_keys, append_values,
        isa::tests::{every_isa, noise, with_isa},
        pool_layout::pool_len,
    },
    *,
};
use crate::ops::Slots;

/// Pools with noise of `E` in pages of another order than positions, and the slot of each position.
fn pools_of<E: PagedElement>(n_pages: usize, heads: [usize; 2]) -> ([Vec<E>; 2], Vec<i32>) {
    let slots: Vec<i32> = (0..n_pages)
        .flat_map(|page| {
            let first = (page * 7 + 2) % n_pages * LANES;
            first as i32..(first + LANES) as i32
        })
        .collect();
    let mut pools = [0, 1].map(|_| vec![E::default(); pool_len::<E>(n_pages, heads)]);
    let [keys, values] = [1, 2].map(|seed| noise(n_pages * LANES * heads[0] * heads[1], seed));
    append_keys(&mut pools[0], &keys, &slots, heads);
    append_values(&mut pools[1], &values, &slots, heads);
    (pools, slots)
}

/// For every instruction set: decoding, a window that begins within a page, a prompt; however many rows and chunks a task has.
fn check_tasks<E: PagedElement>() {
    let (n_kv_heads, group, n_pages) = (5, 2, 41);
    for (head_dim, sliding_window) in [(20, None), (64, Some(2)), (64, Some(21)), (64, Some(300)), (128, None)] {
        let n_heads = n_kv_heads * group;
        let (scale, softcap, alibi_slopes) = (0.2, None, None);
        let options = AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap,
            sliding_window,
            bidirectional: false,
            alibi_slopes,
            relative: None,
        };
        let ([keys, values], slots) = pools_of::<E>(n_pages, [n_kv_heads, head_dim]);
        // One above all scores, one below.
        let sinks = [9.0, 0.3, -3.0].repeat(n_heads);
        for (start, n_rows) in [
            (0, 1),
            (15, 1),
            (16, 1),
            (50, 1),
            (30, 4),
            (650, 1),
            (CHUNK - 1, 1),
            (CHUNK, 1),
            (CHUNK - 2, 4),
            (CHUNK - 9, 21),
        ] {
            let queries = noise(n_rows * n_heads * head_dim, 3);
            let attended = |rows: Range<usize>, [rows_per_task, chunks_per_task]: [usize; 2]| {
                let row_len = n_heads * head_dim;
                let queries = &queries[rows.start * row_len..rows.end * row_len];
                let layout = PoolLayout::of(&keys, [n_kv_heads, head_dim]);
                let (options, sinks) = (&options, Some(&sinks[..n_heads]));
                let pools = Pools { queries, stride: row_len, keys: &keys, values: &values, layout, options, sinks };
                let first_key = options.seen(start + rows.start, start + rows.end).start;
                let slots = slots[first_key..start + rows.end].to_vec();
                let slots = Slots::new(slots, &burn::tensor::Device::flex());
                let sequence = PagedRows { rows: 0..rows.len(), start: start + rows.start, first_key, slots };
                let mut output = vec![f32::NAN; queries.len()];
                let mut tasks = Tasks { rows_per_task, chunks_per_task, ..Tasks::default() };
                tasks.add(&sequence, options);
                let mut parts = vec![f32::NAN; tasks.parts_len];
                let outputs = Outputs { whole: SharedMut::new(&mut output), parts: SharedMut::new(&mut parts) };
                tasks.all.iter().for_each(|task| task.run(&pools, &outputs));
                for row in &tasks.split {
                    (0..n_heads).for_each(|head| row.add_up(head, &pools, &outputs));
                }
                output
            };
            for level in every_isa() {
                let alone = with_isa(level, || attended(0..n_rows, [1, usize::MAX]));
                assert!(alone.iter().all(|value| value.is_finite()));
                // Few queries (memory-bound), many (prefill), and more than are computed together.
                let rows = [2, 3, 5, 7, MAX_QUERIES / group, MAX_QUERIES].map(|rows| [rows, usize::MAX]);
                for cut @ [rows, chunks] in rows.into_iter().chain([[1, 1], [2, 1], [4, 2]]) {
                    assert_eq!(
                        with_isa(level, || attended(0..n_rows, cut)),
                        alone,
                        "{rows} rows, {chunks} chunks with {level:?}"
                    );
                }
                let by_rows = (0..n_rows).flat_map(|row| with_isa(level, || attended(row..row + 1, [1, 1])));
                assert_eq!(by_rows.collect::<Vec<f32>>(), alone, "rows by themselves with {level:?}");
            }
        }
    }
}

#[test]
fn paged_attention_is_bit_identical_however_work_is_split() {
    check_tasks::<f32>();
    check_tasks::<f16>();
    check_tasks::<i8>();
}

/// Compares with sums in f64 over all positions at once.
fn check_sums<E: PagedElement>(within: f64) {
    let (n_heads, n_kv_heads, head_dim, n_keys) = (4, 2, 24, 700);
    let ([keys, values], slots) = pools_of::<E>(44, [n_kv_heads, head_dim]);
    let [key_rows, value_rows] = [1, 2].map(|seed| noise(44 * LANES * n_kv_heads * head_dim, seed));
    let queries = noise(n_heads * head_dim, 3);
    let slopes = || Some(vec![0.5, 0.25, 0.125, 0.004]);
    for (scale, softcap, alibi_slopes) in [
        (0.2, None, None),
        (3.0, None, None),
        (0.5, Some(2.0), None),
        (0.2, None, slopes()),
        (0.5, Some(2.0), slopes()),
    ] {
        let sliding_window = None;
        let options = AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap,
            sliding_window,
            bidirectional: false,
            alibi_slopes,
            relative: None,
        };
        let slots = Slots::new(slots[..n_keys].to_vec(), &burn::tensor::Device::flex());
        let sequence = PagedRows { rows: 0..1, start: n_keys - 1, first_key: 0, slots };
        for level in every_isa() {
            let found = with_isa(level, || {
                attention_paged(&queries, [&keys, &values], std::slice::from_ref(&sequence), (&options, None))
            });
            for head in 0..n_heads {
                let row = |rows: &[f32], position: usize| -> Vec<f64> {
                    let first = (position * n_kv_heads + head / 2) * head_dim;
                    rows[first..first + head_dim].iter().map(|value| f64::from(*value)).collect()
                };
                let query = &queries[head * head_dim..][..head_dim];
                let weights: Vec<f64> = (0..n_keys)
                    .map(|position| {
                        let products =
                            row(&key_rows, position).iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum::<f64>();
                        let score = products * scale;
                        let score = softcap.map_or(score, |cap: f64| cap * (score / cap).tanh());
                        let slope = options.alibi_slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                        (score - slope * (n_keys - 1 - position) as f64).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                for dim in 0..head_dim {
                    let sum: f64 =
                        weights.iter().enumerate().map(|(n, weight)| weight * row(&value_rows, n)[dim]).sum();
                    let (found, expected) = (f64::from(found[head * head_dim + dim]), sum / total);
                    assert!((found - expected).abs() < within, "{found} for {expected}, {options:?} with {level:?}");
                }
            }
        }
    }
}

#[test]
fn paged_attention_over_chunks_matches_f64_sums() {
    check_sums::<f32>(1e-5);
    check_sums::<f16>(2e-3);
    check_sums::<i8>(2e-2);
}

/// Infinite or NaN keys and values change only rows that see them, at any position in a chunk of a prompt.
fn check_non_finite<E: PagedElement + PartialEq>(broken: f32) {
    let (n_heads, n_kv_heads, head_dim, n_rows, start) = (4, 2, 20, 9, 30);
    let (n_keys, width) = (start + n_rows, n_kv_heads * head_dim);
    for sliding_window in [None, Some(1), Some(5), Some(21)] {
        let (scale, softcap, alibi_slopes) = (0.2, None, None);
        let options = AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap,
            sliding_window,
            bidirectional: false,
            alibi_slopes,
            relative: None,
        };
        let queries = noise(n_rows * n_heads * head_dim, 3);
        let device = burn::tensor::Device::flex();
        let sequence = |first: usize, n_rows: usize| {
            let first_key = options.seen(start + first, start + first + 1).start;
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
            let mut pools = [0, 1].map(|_| vec![E::default(); pool_len::<E>(3, [n_kv_heads, head_dim])]);
            append_keys(&mut pools[0], &keys, &slots, [n_kv_heads, head_dim]);
            append_values(&mut pools[1], &values, &slots, [n_kv_heads, head_dim]);
            let rows = queries.chunks(at_once * n_heads * head_dim).enumerate().flat_map(|(number, queries)| {
                let sequence = sequence(number * at_once, queries.len() / (n_heads * head_dim));
                attention_paged(queries, [&pools[0], &pools[1]], &[sequence], (&options, None))
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
                    let sees = options.seen(start + row, start + row + 1);
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
fn non_finite_keys_and_values_change_only_rows_that_see_them() {
    check_non_finite::<f32>(f32::INFINITY);
    check_non_finite::<f32>(f32::NAN);
    // Infinity is stored as the largest f16.
    check_non_finite::<f16>(f32::NAN);
    check_non_finite::<i8>(f32::INFINITY);
    check_non_finite::<i8>(f32::NAN);
}
