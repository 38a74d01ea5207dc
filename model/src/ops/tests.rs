//! Fast bodies against their references in plain Burn operations, on random shapes: odd sizes, one row, window edges.
#![expect(clippy::unwrap_used, reason = "tests")]

mod recurrent;

use burn::tensor::{DType, Device, Distribution, Tensor};
use half::f16;
use proptest::prelude::*;

use super::{
    AttentionOptions, BLOCK_SIZE, Dtype, KvDtype, NormOptions, PagedRows, PagedSequences, QuantizedBlock,
    QuantizedMatrix, Rotation, Slots, Weight, activate,
    activation::{activate_reference, clamped_swiglu_reference, gated_reference, xielu_reference},
    attention::{attention_paged, attention_paged_reference},
    clamped_swiglu, gated,
    kv_append::{append_keys, append_values, copy_pages},
    new_pool, norm, norm_reference, rope,
    rope::rope_reference,
    soft_cap, soft_cap_reference, xielu,
};
use crate::{
    config::{Activation, ClampedSwiglu, GptConfig, NormKind, Positions, Sizes},
    gpt::{kv_cache::PAGE_SIZE, position},
};

/// Tolerance relative to the largest value of the reference.
const TOLERANCE: f32 = 2e-6;
/// Tolerance where the KV cache stores keys and values with 11 significant bits.
const TOLERANCE_F16: f32 = 5e-3;
/// Tolerances for a KV cache in 8 bits; the second is for the root mean square of the differences, relative to that of
/// the reference. The largest in 4,000 random cases were 0.042 and 0.024.
const TOLERANCE_Q8: (f32, f64) = (8e-2, 4e-2);
/// Tolerances against a reference whose queries, keys and values are rounded too, so that only attention weights
/// differ. The largest in the same cases were 0.019 and 0.012.
const TOLERANCE_WEIGHTS_Q8: (f32, f64) = (4e-2, 2e-2);

/// Tolerance for weighted sums whose weights are exponentials of sums of `n` products. Such a sum of numbers around 1
/// is around `sqrt(n)`, and its `n` roundings, half up and half down, add up to around `sqrt(n)` units in its last
/// place. The absolute error of the exponent is the relative error of the weight.
fn tolerance_of_weights(n: usize) -> f32 {
    TOLERANCE + n as f32 * f32::EPSILON / 2.0
}

pub(super) fn random<const D: usize>(dims: [usize; D], width: f64) -> Tensor<D> {
    Tensor::random(dims, Distribution::Normal(0.0, width), &Device::flex())
}

pub(super) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>) {
    assert_within(TOLERANCE, found, expected);
}

/// Checks that each value is within `tolerance` times the largest expected value.
pub(super) fn assert_within<const D: usize>(tolerance: f32, found: Tensor<D>, expected: Tensor<D>) {
    assert_eq!(found.dims(), expected.dims());
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= tolerance * largest, "{found}, expected {expected}, largest {largest}");
    }
}

/// As [`assert_within`], and checks that the root mean square of the differences is within `mean_tolerance` times the
/// root mean square of the expected values: for rounding errors that add up at random, whose largest sum says little.
fn assert_within_mean((tolerance, mean_tolerance): (f32, f64), found: Tensor<2>, expected: Tensor<2>) {
    let mean = |tensor: Tensor<2>| {
        let values = values(tensor);
        (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    };
    let (error, size) = (mean(found.clone() - expected.clone()), mean(expected.clone()));
    assert!(error <= mean_tolerance * size, "the root mean square of the differences is {error}, of the values {size}");
    assert_within(tolerance, found, expected);
}

fn attention_options() -> impl Strategy<Value = AttentionOptions> {
    let heads = prop_oneof![Just((1, 1)), Just((4, 2)), Just((6, 2)), Just((3, 3)), Just((8, 1))];
    let head_dims = prop_oneof![Just(4usize), Just(12), Just(16), Just(64)];
    let softcaps = prop::option::of(0.5..50.0f64);
    (heads, head_dims, prop::option::of(1..40usize), 0..3, softcaps).prop_map(
        |((n_heads, n_kv_heads), head_dim, sliding_window, kind, softcap)| AttentionOptions {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 0.3,
            softcap,
            sliding_window,
            bidirectional: kind == 1,
            alibi_slopes: (kind == 2).then(|| position::alibi_slopes(n_heads)),
            relative: None,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn norm_matches_its_reference(n_rows in 1..40usize, width in 1..300usize, kind in 0..3usize, offset in 0..2u8) {
        let kind = [NormKind::RmsNorm, NormKind::LayerNorm, NormKind::LayerNorm][kind];
        let options = NormOptions { kind, eps: 1e-5, weight_offset: f32::from(offset) };
        let (x, weight) = (random([n_rows, width], 3.0), random([width], 1.0));
        for bias in [None, Some(random([width], 1.0))] {
            let found = norm(x.clone(), weight.clone(), bias.clone(), options);
            assert_close(found, norm_reference(x.clone(), weight.clone(), bias, options));
        }
    }

    #[test]
    fn activations_gating_and_soft_cap_match_their_references(n_rows in 1..40usize, width in 1..300usize) {
        for kind in [Activation::Relu, Activation::ReluSquared, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let x = random([n_rows, 2 * width], 4.0);
            assert_close(activate(x.clone(), kind), activate_reference(x.clone(), kind));
            assert_close(gated(x.clone(), kind), gated_reference(x, kind));
        }
        let clamped = ClampedSwiglu { alpha: 1.702, limit: 2.5 };
        let x = random([n_rows, 2 * width], 4.0);
        assert_close(clamped_swiglu(x.clone(), clamped), clamped_swiglu_reference(x, clamped));
        let numbers = Tensor::from_data([0.3f32, -0.9, 0.4, -0.5], &Device::flex());
        let x = random([n_rows, width], 4.0);
        assert_close(xielu(x.clone(), numbers.clone()), xielu_reference(x, numbers));
        let x = random([n_rows, width], 90.0);
        assert_close(soft_cap(x.clone(), 30.0), soft_cap_reference(x, 30.0));
    }

    #[test]
    fn rope_matches_its_reference(n_rows in 1..40usize, n_heads in 1..5usize, half in 1..20usize, rest in 0..9usize) {
        let angles = values(random([n_rows * half], 10.0));
        let rotation = Rotation::new(&angles, n_rows, &Device::flex());
        let x = random([n_rows, n_heads, 2 * half + rest], 1.0);
        assert_close(rope(x.clone(), &rotation), rope_reference(x, &rotation));
    }

    #[test]
    fn linear_matches_matmul_for_f32_f16_and_bf16_weights(n_rows in 1..40usize, d_in in 1..200usize, d_out in 1..200usize) {
        let (x, matrix, bias) = (random([n_rows, d_in], 1.0), random([d_out, d_in], 1.0), random([d_out], 1.0));
        let expected = x.clone().matmul(matrix.clone().transpose()) + bias.clone().unsqueeze();
        let weight = Weight::new(matrix.clone().into_data(), Dtype::F32, &Device::flex()).unwrap();
        assert_close(super::linear(x.clone(), &weight, Some(bias.clone())), expected);
        prop_assert_eq!(values(matrix.clone()), weight.read().unwrap().try_into_vec::<f32>().unwrap());
        // In 16 bits: exactly what f32 gives for the rounded weights.
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let weight = Weight::new(matrix.clone().into_data(), dtype, &Device::flex()).unwrap();
            let rounded = Weight::new(weight.read().unwrap(), Dtype::F32, &Device::flex()).unwrap();
            let found = values(super::linear(x.clone(), &weight, Some(bias.clone())));
            prop_assert_eq!(found, values(super::linear(x.clone(), &rounded, Some(bias.clone()))));
        }
    }

    #[test]
    fn paged_attention_matches_its_reference_for_every_kv_dtype(
        options in attention_options(),
        shapes in prop::collection::vec((0..70usize, 1..20usize), 1..4),
        shuffle in any::<u64>(),
        dtype in prop::sample::select(KvDtype::ALL.iter().map(|(_, dtype)| *dtype).collect::<Vec<_>>()),
        has_sinks in any::<bool>(),
    ) {
        let sinks = has_sinks.then(|| random([options.n_heads], 3.0));
        let n_pages = 8 * shapes.len();
        let n_slots = n_pages * PAGE_SIZE;
        let dims = [n_slots, options.n_kv_heads * options.head_dim];
        let rows = || random(dims, 1.0);
        let (key_rows, value_rows) = (rows(), rows());
        // Pools in the layout of the CPU; the reference takes the rows in order.
        let heads = [options.n_kv_heads, options.head_dim];
        let pool = || new_pool(n_slots, heads, dtype, &Device::flex());
        let (mut keys, mut values_pool) = (pool(), pool());
        let all_slots = Slots::new((0..n_slots as i32).collect(), &Device::flex());
        append_keys(&mut keys, key_rows.clone(), &all_slots, heads);
        append_values(&mut values_pool, value_rows.clone(), &all_slots, heads);
        let (mut n_rows, mut sequences) = (0, Vec::new());
        for (number, &(start, len)) in shapes.iter().enumerate() {
            let first_key = options.sliding_window.map_or(0, |window| (start + 1).saturating_sub(window));
            // Each sequence's pages are its own, in any order.
            let page = |key: usize| number * 8 + (key / PAGE_SIZE * 3 + shuffle as usize % 8) % 8;
            let slot = |key: usize| (page(key) * PAGE_SIZE + key % PAGE_SIZE) as i32;
            let slots = Slots::new((first_key..start + len).map(slot).collect(), &Device::flex());
            sequences.push(PagedRows { rows: n_rows..n_rows + len, start, first_key, slots });
            n_rows += len;
        }
        let q = random([n_rows, options.n_heads * options.head_dim], 1.0);
        let sequences = PagedSequences::new(sequences, &Device::flex());
        let found = attention_paged(q.clone(), [&keys, &values_pool], &sequences, (&options, sinks.clone()));
        let expected = |[q, keys, values]: [&Tensor<2>; 3]| {
            attention_paged_reference(q.clone(), [keys, values], sequences.as_slice(), (&options, sinks.clone()))
        };
        let tolerance = tolerance_of_weights(options.head_dim);
        let given = [&q, &key_rows, &value_rows];
        // Almost equal to the reference on rounded keys and values, and not far from the one on unrounded ones. In 8
        // bits, queries and weights are rounded too.
        match dtype {
            KvDtype::F32 => assert_within(tolerance, found, expected(given)),
            KvDtype::F16 => {
                let [keys, values] = [&key_rows, &value_rows].map(|rows| rows.clone().cast(DType::F16));
                assert_within(tolerance, found.clone(), expected([&q, &keys, &values]));
                assert_within(TOLERANCE_F16, found, expected(given));
            }
            KvDtype::Q8 => {
                let rounded = given.map(|rows| in_8_bits(rows, options.head_dim));
                assert_within_mean(TOLERANCE_WEIGHTS_Q8, found.clone(), expected(rounded.each_ref()));
                assert_within_mean(TOLERANCE_Q8, found, expected(given));
            }
        }
    }
}

/// Rounds each head of a row to integers from -127 to 127 times a scale.
fn in_8_bits(rows: &Tensor<2>, head_dim: usize) -> Tensor<2> {
    let [n_rows, width] = rows.dims();
    let heads = rows.clone().reshape([n_rows * width / head_dim, head_dim]);
    let scale = heads.clone().abs().max_dim(1) / 127.0;
    // Multiplied by the inverse of the scale, as in `KvElement::store`: a quotient may be rounded the other way.
    ((heads * scale.clone().recip()).round() * scale).reshape([n_rows, width])
}

/// Blocks of a file are used without requantization: each value times its scale, plus the minimum.
#[test]
fn quantized_blocks_are_kept_and_multiplied_without_rerounding() {
    let [d_out, d_in] = [37, 70];
    for dtype in [Dtype::Q8, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4] {
        let (span, below) = match dtype {
            Dtype::Q8 => (256, 128),
            Dtype::Q5_1 => (32, 0),
            Dtype::Q4_1 => (16, 0),
            _ => (16, 8),
        };
        let block = |row: usize, number: usize| QuantizedBlock {
            scale: f16::from_f32(0.01 * (1 + row + number) as f32 * if row.is_multiple_of(2) { 1.0 } else { -1.0 }),
            minimum: f16::from_f32(if dtype.has_minima() { 0.3 * number as f32 - 0.02 * row as f32 } else { 0.0 }),
            values: std::array::from_fn(|n| {
                let value = (row * 31 + number * 7 + n * 11) % span;
                if number * BLOCK_SIZE + n < d_in { (value as i32 - below) as i8 } else { 0 }
            }),
        };
        let blocks: Vec<_> = (0..d_out).flat_map(|row| (0..3).map(move |number| block(row, number))).collect();
        let matrix = QuantizedMatrix::new([d_out, d_in], dtype, blocks).unwrap();
        let weight = Weight::from_quantized(&matrix, &Device::flex()).unwrap();
        assert_eq!(weight.read_quantized().unwrap().unwrap(), matrix);
        let values: Vec<f32> = weight.read().unwrap().try_into_vec().unwrap();
        for (at, value) in values.iter().enumerate() {
            let block = &matrix.row(at / d_in)[at % d_in / BLOCK_SIZE];
            let expected = f32::from(block.values[at % d_in % BLOCK_SIZE]) * block.scale.to_f32();
            assert_eq!(*value, expected + block.minimum.to_f32());
        }
        // An input of one number only is rounded without loss, so the product is exact.
        for input in [0, 31, 32, 69] {
            let mut x = vec![0.0; d_in];
            x[input] = 127.0;
            let product =
                super::linear(Tensor::<1>::from_floats(x.as_slice(), &Device::flex()).unsqueeze(), &weight, None);
            let product: Vec<f32> = product.into_data().try_into_vec().unwrap();
            for (row, product) in product.iter().enumerate() {
                // Adding the minimum rounds once more.
                let error = (product - 127.0 * values[row * d_in + input]).abs();
                assert!(error <= if dtype.has_minima() { 1e-4 } else { 1e-6 * product.abs() }, "{dtype}: {error}");
            }
        }
    }
}

/// Compares the attention output over each page before and after page 4 is copied to page 1.
#[test]
fn copy_pages_copies_one_kv_page_and_leaves_the_others() {
    let device = Device::flex();
    for (n_kv_heads, head_dim) in [(2, 20), (3, 7)] {
        let options = AttentionOptions {
            n_heads: 2 * n_kv_heads,
            n_kv_heads,
            head_dim,
            scale: 0.3,
            softcap: None,
            sliding_window: None,
            bidirectional: false,
            alibi_slopes: None,
            relative: None,
        };
        let heads = [n_kv_heads, head_dim];
        let q = random([1, options.n_heads * head_dim], 1.0);
        for (name, dtype) in KvDtype::ALL {
            let mut pools = [0, 1].map(|_| new_pool(6 * PAGE_SIZE, heads, *dtype, &device));
            let slots_of = |page: usize| {
                let first = (page * PAGE_SIZE) as i32;
                Slots::new((first..first + PAGE_SIZE as i32).collect(), &device)
            };
            for page in 0..6 {
                let rows = || random([PAGE_SIZE, n_kv_heads * head_dim], 1.0);
                append_keys(&mut pools[0], rows(), &slots_of(page), heads);
                append_values(&mut pools[1], rows(), &slots_of(page), heads);
            }
            let attended = |pools: &[Tensor<2>; 2]| {
                [0, 1, 2, 3, 4, 5].map(|page| {
                    let rows = PagedRows { rows: 0..1, start: PAGE_SIZE - 1, first_key: 0, slots: slots_of(page) };
                    let sequences = PagedSequences::new(vec![rows], &device);
                    values(attention_paged(q.clone(), pools.each_ref(), &sequences, (&options, None)))
                })
            };
            let before = attended(&pools);
            pools.iter_mut().for_each(|pool| copy_pages(pool, [&slots_of(4), &slots_of(1)], heads));
            let after = attended(&pools);
            assert_ne!(before[1], before[4]);
            for page in 0..6 {
                assert_eq!(after[page], before[if page == 1 { 4 } else { page }], "page {page} in {name}");
            }
        }
    }
}

/// A row's bits do not depend on the other rows of a step: alone, in a batch, in any chunks.
#[test]
fn logits_are_bit_identical_alone_batched_or_in_any_chunks() {
    use crate::gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{KvCache, StepPart},
        token_ids::token_tensor,
    };
    let sizes =
        Sizes { vocab_size: 99, max_seq_len: 128, n_layers: 2, n_heads: 6, n_kv_heads: 2, d_model: 48, d_ff: 100 };
    let llama = GptConfig::llama(sizes);
    let gpt2 = GptConfig { positions: Positions::Alibi, ..GptConfig::gpt2(Sizes { n_kv_heads: 6, ..sizes }) };
    let configs = [llama.clone(), gpt2, GptConfig { sliding_window: Some(9), ..llama }];
    for (config, (name, dtype)) in configs.iter().flat_map(|config| KvDtype::ALL.iter().map(move |each| (config, each)))
    {
        let gpt = Gpt::init(config, 3, &Device::flex()).unwrap();
        let texts: Vec<Vec<u32>> = (0..16).map(|n| (0..10 + 4 * n).map(|i| (i * 7 + n * 13) % 99).collect()).collect();
        // All logits of each text, cut into steps of `cut` tokens, `together` texts side by side.
        let run = |cut: usize, together: usize| {
            let mut logits = vec![Vec::new(); texts.len()];
            for group in (0..texts.len()).collect::<Vec<_>>().chunks(together) {
                let mut cache = KvCache::new(config, 128, *dtype, &Device::flex());
                let mut tables: Vec<_> = group.iter().map(|_| cache.table()).collect();
                while let Some(live) =
                    Some(group).filter(|group| group.iter().zip(&tables).any(|(&n, t)| t.len() < texts[n].len()))
                {
                    let (mut parts, mut ids, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
                    for (&number, table) in live.iter().zip(&mut tables) {
                        let chunk: Vec<u32> = texts[number][table.len()..].iter().take(cut).copied().collect();
                        if !chunk.is_empty() {
                            lengths.push((number, chunk.len()));
                            parts.push(StepPart::new(table, chunk.len()));
                            ids.extend(chunk);
                        }
                    }
                    let step = cache.step(&mut parts).unwrap();
                    let hidden = gpt.forward(token_tensor(&gpt, &ids), AttentionContext::Paged(step));
                    let mut rows = values(gpt.logits(hidden)).into_iter();
                    for (number, len) in lengths {
                        logits[number].extend(rows.by_ref().take(len * 99).map(f32::to_bits));
                    }
                }
            }
            logits
        };
        let solo = run(usize::MAX, 1);
        for (cut, together) in [(1, 1), (1, 16), (5, 3), (13, 16), (usize::MAX, 16)] {
            assert!(run(cut, together) == solo, "{name}: steps of {cut} tokens, {together} texts together");
        }
    }
}
