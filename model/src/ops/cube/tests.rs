//! The GPU's kernels against the references, which run on the CPU in plain Burn operations: random shapes, odd sizes, one
//! row, window edges. On the software adapter of wgpu.
#![expect(clippy::unwrap_used, reason = "tests")]

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use proptest::prelude::*;

use crate::{
    config::{Activation, NormKind, QkNormSpan},
    gpt::{kv_cache::PAGE_SIZE, position},
    ops::{
        self, AdamWStep, Address, AttentionOptions, Dtype, KvDtype, LinearParts, NormOptions, NormParts, PagedRows,
        PagedSequences, Rotation, Slots, Weight,
        activation::{activate_reference, gated_reference},
        adamw::adamw_reference,
        attention::{attention_paged, attention_paged_reference},
        clip::clip_norm_reference,
        norm_reference,
        qk_norm::qk_norm_reference,
        tests::{assert_within, random, values},
    },
    test_gpu::gpu,
};

/// Tolerance relative to the largest value of the reference.
const TOLERANCE: f32 = 3e-6;
/// Tolerance for values that are rounded to 11 significant bits: devices need not round to nearest.
const TOLERANCE_F16: f32 = 1e-3;

fn ints(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(values, device)
}

fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>) {
    assert_within(TOLERANCE, found, expected);
}

fn kv_dtype() -> impl Strategy<Value = KvDtype> {
    prop::sample::select(vec![KvDtype::F32, KvDtype::F16])
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.iter().map(|(_, dtype)| *dtype).collect::<Vec<_>>())
}

/// The matrix as the GPU holds it, on the CPU in f32.
fn held(weight: &Weight) -> Tensor<2> {
    Tensor::from_data(weight.read().unwrap(), (&Device::flex(), DType::F32))
}

fn part(weight: &Weight, bias: Option<Tensor<1>>) -> LinearParts<'_> {
    LinearParts { weight, bias, lora: None, by_row: Vec::new() }
}

fn check_linear(dtype: Dtype, n_rows: usize, [d_out, d_in]: [usize; 2]) -> Result<(), TestCaseError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let (x, matrix) = (random([n_rows, d_in], 1.0), random([d_out, d_in], 1.0));
    let weight = Weight::new(matrix.clone().into_data(), dtype, &gpu).unwrap();
    prop_assert_eq!(weight.dtype(), dtype);
    let held = held(&weight);
    // The same rounding as on the CPU.
    let on_cpu = Weight::new(matrix.into_data(), dtype, &Device::flex()).unwrap();
    prop_assert_eq!(values(held.clone()), on_cpu.read().unwrap().try_into_vec::<f32>().unwrap());
    let product = x.clone().matmul(held.transpose());
    let on_gpu = x.to_device(&gpu);
    assert_close(ops::linear(on_gpu.clone(), &weight, None), product.clone());
    let (bias, residual) = (random([d_out], 1.0), random([n_rows, d_out], 1.0));
    let product = product + bias.clone().unsqueeze();
    let bias = bias.to_device(&gpu);
    assert_close(ops::linear(on_gpu.clone(), &weight, Some(bias.clone())), product.clone());
    let found = ops::linear_add(on_gpu, part(&weight, Some(bias)), residual.clone().to_device(&gpu));
    assert_close(found, product + residual);
    Ok(())
}

fn check_fused(dtype: Dtype, n_rows: usize, [d_ff, d_in]: [usize; 2], kind: Activation, offset: u8) {
    let Some(gpu) = gpu() else { return };
    let weight = Weight::new(random([2 * d_ff, d_in], 1.0).into_data(), dtype, &gpu).unwrap();
    let (x, norm_weight, bias) = (random([n_rows, d_in], 3.0), random([d_in], 1.0), random([2 * d_ff], 1.0));
    let options = NormOptions { kind: NormKind::RmsNorm, eps: 1e-5, weight_offset: f32::from(offset) };
    let normed = norm_reference(x.clone(), norm_weight.clone(), None, options);
    let expected = normed.matmul(held(&weight).transpose()) + bias.clone().unsqueeze();
    let (x, bias) = (x.to_device(&gpu), Some(bias.to_device(&gpu)));
    let norm = NormParts { weight: norm_weight.to_device(&gpu), bias: None, options };
    assert_close(ops::normed_linear(x.clone(), norm.clone(), part(&weight, bias.clone())), expected.clone());
    assert_close(ops::normed_gated(x, norm, part(&weight, bias), kind), gated_reference(expected, kind));
}

/// Rows whose last block is half full, followed by another row: values beyond a row's end must not count in its norm.
#[test]
fn fused_norm_and_gate_match_the_reference_for_partial_blocks() {
    for (n_rows, d_in) in [(2, 16), (9, 80)] {
        check_fused(Dtype::Q8, n_rows, [5, d_in], Activation::Silu, 0);
    }
    for (_, dtype) in Dtype::ALL {
        check_fused(*dtype, 3, [5, 48], Activation::Silu, 0);
    }
}

/// Uses matrix instructions, if the device has them for f16 or bf16. Without the second half of an operand, or with a
/// wrong matrix, the error would be 1e-3 or more.
#[test]
fn linear_by_matrix_instructions_matches_matmul() {
    super::product::allow_f16();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4] {
        check_linear(dtype, 130, [150, 44]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn linear_with_bias_and_residual_matches_matmul(
        dtype in dtype(),
        n_rows in prop_oneof![1..20usize, Just(70), Just(129)],
        d_in in prop_oneof![1..200usize, Just(64), Just(96), Just(576)],
        d_out in 1..200usize,
    ) {
        check_linear(dtype, n_rows, [d_out, d_in])?;
    }

    // Enough rows to use tiles.
    #[test]
    fn tiled_linear_matches_matmul_for_many_rows(dtype in dtype(), n_rows in 128..330usize, d_in in 1..80usize, d_out in 1..200usize) {
        check_linear(dtype, n_rows, [d_out, d_in])?;
    }

    #[test]
    fn fused_norm_and_gate_match_the_reference(
        dtype in dtype(),
        n_rows in prop_oneof![3 => 1..20usize, 1 => Just(260)],
        d_in in prop_oneof![3 => 1..200usize, 1 => Just(576)],
        d_ff in 1..200usize,
        kind in prop::sample::select(vec![Activation::Relu, Activation::ReluSquared, Activation::Gelu, Activation::GeluTanh, Activation::Silu]),
        offset in 0..2u8,
    ) {
        check_fused(dtype, n_rows, [d_ff, d_in], kind, offset);
    }

    #[test]
    fn embedding_and_take_rows_match_the_reference(dtype in dtype(), n_entries in 1..50usize, d_model in 1..200usize, ids in prop::collection::vec(0..50usize, 1..20)) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let table = Weight::new(random([n_entries, d_model], 1.0).into_data(), dtype, &gpu).unwrap();
        let ids: Vec<i32> = ids.iter().map(|id| (id % n_entries) as i32).collect();
        let expected = held(&table).select(0, ints(&ids, &Device::flex()));
        prop_assert_eq!(values(ops::embedding(&table, ints(&ids, &gpu))), values(expected.clone()));
        let rows: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
        prop_assert_eq!(values(ops::take_rows(held(&table).to_device(&gpu), &rows)), values(expected));
    }

    #[test]
    fn adamw_matches_the_reference_and_leaves_shared_tensors_alone(n in prop_oneof![3 => 1..600usize, 1 => 8000..20_000usize], n_updates in 1..9usize, decays in any::<bool>(), is_shared in any::<bool>()) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let weight_decay = if decays { 0.1 } else { 0.0 };
        let step = AdamWStep { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, n_updates };
        let (value, gradient) = (random([n], 1.0), random([n], 1.0));
        let moments = [random([n], 1.0), random([n], 1.0).square()];
        let (expected, expected_moments) = adamw_reference(value.clone(), gradient.clone(), moments.clone(), step);
        let (value, moments) = (value.to_device(&gpu), moments.map(|moment| moment.to_device(&gpu)));
        let kept = is_shared.then(|| (value.clone(), values(value.clone())));
        let (found, found_moments) = ops::adamw(value, gradient.to_device(&gpu), Some(moments), step);
        assert_close(found, expected);
        found_moments.into_iter().zip(expected_moments).for_each(|(found, expected)| assert_close(found, expected));
        if let Some((value, before)) = kept {
            prop_assert_eq!(values(value), before);
        }
    }

    #[test]
    fn gradient_clipping_matches_the_reference(lens in prop::collection::vec(prop_oneof![3 => 1..600usize, 1 => 8000..40_000usize], 1..6), max_norm in prop::sample::select(vec![0.0, 0.5, 1e4])) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let gradients: Vec<Tensor<1>> = lens.iter().map(|&n| random([n], 1.0)).collect();
        let (expected_norm, expected) = clip_norm_reference(gradients.clone(), max_norm);
        let (norm, clipped) = ops::clip_norm(gradients.into_iter().map(|gradient| gradient.to_device(&gpu)).collect(), max_norm);
        assert_close(norm, expected_norm);
        clipped.into_iter().zip(expected).for_each(|(found, expected)| assert_close(found, expected));
    }

    #[test]
    fn norm_and_norm_add_match_the_reference(n_rows in 1..40usize, width in 1..600usize, kind in 0..2usize, offset in 0..2u8, with_bias in any::<bool>()) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let kind = [NormKind::RmsNorm, NormKind::LayerNorm][kind];
        let options = NormOptions { kind, eps: 1e-5, weight_offset: f32::from(offset) };
        let (x, weight) = (random([n_rows, width], 3.0), random([width], 1.0));
        let bias = with_bias.then(|| random([width], 1.0));
        let expected = norm_reference(x.clone(), weight.clone(), bias.clone(), options);
        let (x, weight, bias) = (x.to_device(&gpu), weight.to_device(&gpu), bias.map(|bias| bias.to_device(&gpu)));
        assert_close(ops::norm(x.clone(), weight.clone(), bias.clone(), options), expected.clone());
        let residual = random([n_rows, width], 3.0);
        let found = ops::norm_add(x, NormParts { weight, bias, options }, residual.clone().to_device(&gpu));
        assert_close(found, expected + residual);
    }

    #[test]
    fn qk_norm_matches_the_reference(
        n_rows in 1..20usize,
        heads in prop::sample::select(vec![(1usize, 1usize), (4, 2), (9, 3), (16, 8)]),
        head_dim in prop_oneof![1..40usize, Just(64), Just(128), Just(300)],
        spans_all in any::<bool>(),
        kind in 0..2usize,
        offset in 0..2u8,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (n_heads, n_kv_heads) = heads;
        let options =
            AttentionOptions { n_heads, n_kv_heads, head_dim, scale: 1.0, softcap: None, sliding_window: None, bidirectional: false, alibi_slopes: None, relative: None };
        let span = if spans_all { QkNormSpan::AllHeads } else { QkNormSpan::Head };
        let kind = [NormKind::RmsNorm, NormKind::LayerNorm][kind];
        let norm_options = NormOptions { kind, eps: 1e-5, weight_offset: f32::from(offset) };
        let qkv = random([n_rows, (n_heads + 2 * n_kv_heads) * head_dim], 3.0);
        let weights = [n_heads, n_kv_heads].map(|n| random([if spans_all { n * head_dim } else { head_dim }], 1.0));
        let norms = |device: &Device| {
            weights.clone().map(|weight| NormParts { weight: weight.to_device(device), bias: None, options: norm_options })
        };
        let expected = qk_norm_reference(qkv.clone(), norms(&Device::flex()), span, &options);
        assert_close(ops::qk_norm(qkv.to_device(&gpu), norms(&gpu), span, &options), expected);
    }

    #[test]
    fn activations_and_gating_match_the_reference(n_rows in 1..40usize, width in 1..300usize) {
        let Some(gpu) = gpu() else { return Ok(()) };
        for kind in [Activation::Relu, Activation::ReluSquared, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let x = random([n_rows, 2 * width], 4.0);
            let on_gpu = x.clone().to_device(&gpu);
            assert_close(ops::activate(on_gpu.clone(), kind), activate_reference(x.clone(), kind));
            assert_close(ops::gated(on_gpu, kind), gated_reference(x, kind));
        }
    }

    #[test]
    fn rope_append_matches_the_reference(
        n_rows in 1..20usize,
        heads in prop::sample::select(vec![(1usize, 1usize), (4, 2), (9, 3)]),
        half in 0..9usize,
        rest in 1..5usize,
        dtype in kv_dtype(),
        width in prop_oneof![Just(1.0), Just(1e6)],
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (n_heads, n_kv_heads) = heads;
        let head_dim = 2 * half + rest;
        let options =
            AttentionOptions { n_heads, n_kv_heads, head_dim, scale: 1.0, softcap: None, sliding_window: None, bidirectional: false, alibi_slopes: None, relative: None };
        let qkv = random([n_rows, (n_heads + 2 * n_kv_heads) * head_dim], width);
        let angles = values(random([n_rows * half.max(1)], 10.0));
        let slots: Vec<i32> = (0..n_rows as i32).map(|row| (row * 7 + 3) % 32).collect();
        let run = |device: &Device| {
            // Only the CPU without autodiff reorders the rows of a pool.
            let pool = || ops::new_pool(32, [n_kv_heads, head_dim], dtype, device);
            let (mut keys, mut stored) = (pool(), pool());
            let rotation = (half > 0).then(|| Rotation::new(&angles, n_rows, device));
            let slots = Slots::new(slots.clone(), device);
            let qkv = qkv.clone().to_device(device);
            let q = ops::rope_append(qkv, rotation.as_ref(), [&mut keys, &mut stored], &slots, &options);
            [q, keys.cast(DType::F32), stored.cast(DType::F32)]
        };
        let expected = run(&Device::flex().autodiff()).map(Tensor::inner);
        // Values beyond the range of f16 are clamped to it on every device.
        let rounded = if dtype == KvDtype::F16 { TOLERANCE_F16 } else { TOLERANCE };
        for ((found, expected), tolerance) in run(&gpu).into_iter().zip(expected).zip([TOLERANCE, rounded, rounded]) {
            assert_within(tolerance, found, expected);
        }
    }

    #[test]
    fn paged_attention_matches_the_reference(
        heads in prop::sample::select(vec![(1usize, 1usize), (4, 2), (6, 2), (3, 3), (16, 1), (9, 3)]),
        head_dim in prop::sample::select(vec![4usize, 6, 12, 16, 64, 80]),
        sliding_window in prop::option::of(prop_oneof![1..40usize, 100..200usize, Just(u32::MAX as usize)]),
        alibi in any::<bool>(),
        softcap in prop::option::of(0.5..50.0f64),
        shapes in prop::collection::vec((prop_oneof![0..40usize, 100..300usize], prop_oneof![Just(1usize), 1..20usize]), 1..4),
        shuffle in any::<u64>(),
        dtype in kv_dtype(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (n_heads, n_kv_heads) = heads;
        let alibi_slopes = alibi.then(|| position::alibi_slopes(n_heads));
        let options = AttentionOptions { n_heads, n_kv_heads, head_dim, scale: 0.3, softcap, sliding_window, bidirectional: false, alibi_slopes, relative: None };
        let each = 320 / PAGE_SIZE;
        let n_pages = each * shapes.len();
        let held = if dtype == KvDtype::F16 { DType::F16 } else { DType::F32 };
        let pool = || random([n_pages * PAGE_SIZE, n_kv_heads * head_dim], 1.0).cast(held);
        let (keys, stored) = (pool(), pool());
        let n_rows: usize = shapes.iter().map(|(_, len)| len).sum();
        let sequences = |device: &Device| {
            let mut first = 0;
            let sequence = |(number, &(start, len)): (usize, &(usize, usize))| {
                let first_key = sliding_window.map_or(0, |window| (start + 1).saturating_sub(window));
                // Each sequence's pages are its own, in any order.
                let page = |key: usize| number * each + (key / PAGE_SIZE * 3 + shuffle as usize % each) % each;
                let slot = |key: usize| (page(key) * PAGE_SIZE + key % PAGE_SIZE) as i32;
                let slots = Slots::new((first_key..start + len).map(slot).collect(), device);
                first += len;
                PagedRows { rows: first - len..first, start, first_key, slots }
            };
            PagedSequences::new(shapes.iter().enumerate().map(sequence).collect(), device)
        };
        let q = random([n_rows, n_heads * head_dim], 1.0);
        let on_cpu = sequences(&Device::flex());
        let expected = attention_paged_reference(q.clone(), [&keys, &stored], on_cpu.as_slice(), (&options, None));
        let pools = [keys, stored].map(|pool| pool.to_device(&gpu));
        let found = attention_paged(q.to_device(&gpu), [&pools[0], &pools[1]], &sequences(&gpu), (&options, None));
        assert_close(found, expected);
    }

    #[test]
    fn fused_append_and_attend_is_bit_identical_to_separate_ops(
        // Few shapes: each is a kernel to compile.
        heads in prop::sample::select(vec![(4usize, 2usize), (9, 3), (16, 1)]),
        (head_dim, half) in prop::sample::select(vec![(4usize, 0usize), (6, 2), (16, 6), (64, 32)]),
        sliding_window in prop::sample::select(vec![None, Some(30)]),
        // Position of each sequence's last row: at the ends of pages and tiles, and anywhere else.
        positions in prop::collection::vec(prop_oneof![Just(0usize), Just(15), Just(16), Just(127), Just(128), 0..300usize], 1..5),
        shuffle in any::<u64>(),
        dtype in kv_dtype(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (n_heads, n_kv_heads) = heads;
        let options = AttentionOptions {
            n_heads, n_kv_heads, head_dim, scale: 0.3, softcap: None, sliding_window, bidirectional: false, alibi_slopes: None, relative: None,
        };
        let each = 304 / PAGE_SIZE;
        let n_rows = positions.len();
        let held = if dtype == KvDtype::F16 { DType::F16 } else { DType::F32 };
        let pools = [(); 2].map(|()| random([n_rows * each * PAGE_SIZE, n_kv_heads * head_dim], 1.0).cast(held));
        let sequence = |(row, &position): (usize, &usize), device: &Device| {
            let first_key = sliding_window.map_or(0, |window| (position + 1).saturating_sub(window));
            let page = |key: usize| row * each + (key / PAGE_SIZE * 3 + shuffle as usize % each) % each;
            let slot = |key: usize| (page(key) * PAGE_SIZE + key % PAGE_SIZE) as i32;
            let slots = Slots::new((first_key..=position).map(slot).collect(), device);
            PagedRows { rows: row..row + 1, start: position, first_key, slots }
        };
        let qkv = random([n_rows, (n_heads + 2 * n_kv_heads) * head_dim], 1.0).to_device(&gpu);
        let angles = values(random([n_rows * half.max(1)], 10.0));
        let rotation = || (half > 0).then(|| Rotation::new(&angles, n_rows, &gpu));
        let rows: Vec<PagedRows> = positions.iter().enumerate().map(|row| sequence(row, &gpu)).collect();
        let slots: Vec<i32> = rows.iter().map(|row| *row.slots.host().last().unwrap()).collect();
        let slots = Slots::new(slots, &gpu);
        let on_gpu = || pools.clone().map(|pool| pool.to_device(&gpu));

        let [mut keys, mut stored] = on_gpu();
        let q = ops::rope_append(qkv.clone(), rotation().as_ref(), [&mut keys, &mut stored], &slots, &options);
        let expected = attention_paged_reference(q.clone(), [&keys, &stored], &rows, (&options, None));
        let sequences = PagedSequences::new(rows, &gpu);
        let apart = attention_paged(q, [&keys, &stored], &sequences, (&options, None));

        let [mut fused_keys, mut fused_stored] = on_gpu();
        let fused_pools = [&mut fused_keys, &mut fused_stored];
        let fused = ops::append_and_attend(qkv, (rotation().as_ref(), None), fused_pools, &slots, &sequences, &options);
        assert_close(fused.clone(), expected);
        // The same bits as from two launches, since rows of one sequence may come from either.
        for (found, expected) in [(fused, apart), (fused_keys, keys), (fused_stored, stored)] {
            prop_assert!(values(found.cast(DType::F32)) == values(expected.cast(DType::F32)));
        }
    }
}

/// One sequence of `n_rows` rows after `start` others, in pools that have its keys in order.
fn sequence(start: usize, n_rows: usize, options: &AttentionOptions, device: &Device) -> PagedSequences {
    let first_key = options.sliding_window.map_or(0, |window| (start + 1).saturating_sub(window));
    let slots = Slots::new((first_key as i32..(start + n_rows) as i32).collect(), device);
    PagedSequences::new(vec![PagedRows { rows: 0..n_rows, start, first_key, slots }], device)
}

fn attention_options(heads: (usize, usize), head_dim: usize, sliding_window: Option<usize>) -> AttentionOptions {
    let ((n_heads, n_kv_heads), scale) = (heads, 0.3);
    AttentionOptions {
        n_heads,
        n_kv_heads,
        head_dim,
        scale,
        softcap: None,
        sliding_window,
        bidirectional: false,
        alibi_slopes: None,
        relative: None,
    }
}

/// Heads so wide that fewer rows are computed together, or that no kernel exists for them.
#[test]
fn paged_attention_with_wide_heads_matches_the_reference() {
    let Some(gpu) = gpu() else { return };
    for (heads, head_dim) in [((2, 2), 320), ((8, 1), 320), ((8, 1), 512), ((3, 3), 512), ((4, 1), 200)] {
        let options = attention_options(heads, head_dim, None);
        for (start, n_rows) in [(0, 1), (140, 1), (0, 21), (120, 21)] {
            let pools = [(); 2].map(|()| random([176, options.n_kv_heads * head_dim], 0.3));
            let q = random([n_rows, options.n_heads * head_dim], 0.3);
            let on_cpu = sequence(start, n_rows, &options, &Device::flex());
            let expected =
                attention_paged_reference(q.clone(), [&pools[0], &pools[1]], on_cpu.as_slice(), (&options, None));
            let [keys, stored] = pools.map(|pool| pool.to_device(&gpu));
            let on_gpu = sequence(start, n_rows, &options, &gpu);
            assert_close(attention_paged(q.to_device(&gpu), [&keys, &stored], &on_gpu, (&options, None)), expected);
        }
    }
}

/// A hidden key has the weight 0, and 0 times infinity is NaN. Checks the kernel, and the reference on both devices.
#[test]
fn non_finite_keys_and_values_change_only_rows_that_see_them() {
    let Some(gpu) = gpu() else { return };
    for (sliding_window, start, n_rows) in [(None, 120, 20), (Some(5), 120, 20), (Some(1), 3, 9), (Some(140), 100, 60)]
    {
        for heads in [(4, 2), (1, 1)] {
            let options = attention_options(heads, 8, sliding_window);
            let pools = [(); 2].map(|()| values(random([160, options.n_kv_heads * 8], 1.0)));
            let q = random([n_rows, options.n_heads * 8], 1.0);
            let attended = |broken: Option<(usize, f32)>| {
                let [keys, stored] = pools.clone().map(|mut pool| {
                    let width = pool.len() / 160;
                    if let Some((position, value)) = broken {
                        pool[position * width..][..width].fill(value);
                    }
                    Tensor::<2>::from_data(TensorData::new(pool, [160, width]), &Device::flex())
                });
                let reference = |device: &Device| {
                    let pools = [&keys, &stored].map(|pool| pool.clone().to_device(device));
                    let sequence = sequence(start, n_rows, &options, device);
                    let q = q.clone().to_device(device);
                    values(attention_paged_reference(q, [&pools[0], &pools[1]], sequence.as_slice(), (&options, None)))
                };
                let on_gpu = sequence(start, n_rows, &options, &gpu);
                let pools = [&keys, &stored].map(|pool| pool.clone().to_device(&gpu));
                let found =
                    attention_paged(q.clone().to_device(&gpu), [&pools[0], &pools[1]], &on_gpu, (&options, None));
                [values(found), reference(&gpu), reference(&Device::flex())]
            };
            let whole = attended(None);
            let last = start + n_rows - 1;
            for broken in [start, start + 3, last, start.saturating_sub(2)]
                .into_iter()
                .flat_map(|position| [f32::NAN, f32::INFINITY].map(|value| (position, value)))
            {
                for (body, (found, whole)) in attended(Some(broken)).iter().zip(&whole).enumerate() {
                    let width = whole.len() / n_rows;
                    for (row, (found, whole)) in found.chunks(width).zip(whole.chunks(width)).enumerate() {
                        let position = start + row;
                        let sees = broken.0 <= position && sliding_window.is_none_or(|w| broken.0 + w > position);
                        let what = format!("row {row}, {broken:?}, {sliding_window:?} behind {start}, body {body}");
                        if sees {
                            assert!(found.iter().any(|value| !value.is_finite()), "{what}");
                        } else {
                            assert_eq!(found, whole, "{what}");
                        }
                    }
                }
            }
        }
    }
}

/// A page keeps its old contents until the row's own key and value are stored, which may be while other workgroups read
/// the page.
#[test]
fn append_and_attend_does_not_read_stale_page_contents() {
    let Some(gpu) = gpu() else { return };
    for (sliding_window, start) in [(None, 5), (Some(7), 37), (Some(7), 130), (Some(1), 20)] {
        let options = attention_options((4, 2), 8, sliding_window);
        let left = Tensor::<2>::full([160, 16], f32::NAN, &Device::flex());
        let pools = [(); 2].map(|()| {
            let known = random([start, 16], 1.0);
            Tensor::cat(vec![known, left.clone().slice([start..160, 0..16])], 0).to_device(&gpu)
        });
        let [mut keys, mut stored] = pools;
        let sequence = sequence(start, 1, &options, &gpu);
        let slots = Slots::new(vec![start as i32], &gpu);
        let qkv = random([1, 64], 1.0).to_device(&gpu);
        let pools = [&mut keys, &mut stored];
        let found = values(ops::append_and_attend(qkv, (None, None), pools, &slots, &sequence, &options));
        assert!(found.iter().all(|value| value.is_finite()), "{sliding_window:?} behind {start}: {found:?}");
    }
}

/// Captured graphs read and write pools at the addresses that they had.
#[test]
fn pools_keep_their_address_unless_their_memory_is_shared() {
    let Some(gpu) = gpu() else { return };
    let options = attention_options((4, 2), 8, None);
    let [mut keys, mut stored] = [(); 2].map(|()| random([32, 16], 1.0).to_device(&gpu));
    let (slots, sequence) = (Slots::new(vec![5], &gpu), sequence(5, 1, &options, &gpu));
    let qkv = || random([1, 64], 1.0).to_device(&gpu);
    let before = [&keys, &stored].map(Address::of);
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let contents = values(keys.clone());
    ops::rope_append(qkv(), None, [&mut keys, &mut stored], &slots, &options);
    assert_eq!([&keys, &stored].map(Address::of), before);
    assert_ne!(values(keys.clone()), contents, "nothing was stored");
    ops::append_and_attend(qkv(), (None, None), [&mut keys, &mut stored], &slots, &sequence, &options);
    assert_eq!([&keys, &stored].map(Address::of), before);
    let (kept, contents) = (keys.clone(), values(keys.clone()));
    ops::append_and_attend(qkv(), (None, None), [&mut keys, &mut stored], &slots, &sequence, &options);
    let after = [&keys, &stored].map(Address::of);
    assert!(after[0] != before[0] && after[1] == before[1], "{after:?} after {before:?}");
    assert_eq!(values(kept), contents, "a shared pool changed");
}

/// With few rows at a time, a row's bits do not depend on the other rows.
#[test]
fn linear_rows_are_bit_identical_alone_and_batched() {
    let Some(gpu) = gpu() else { return };
    for (_, dtype) in Dtype::ALL {
        let weight = Weight::new(random([300, 576], 1.0).into_data(), *dtype, &gpu).unwrap();
        let x = random([40, 576], 1.0).to_device(&gpu);
        let together = values(ops::linear(x.clone(), &weight, None));
        for row in 0..40 {
            let alone = values(ops::linear(x.clone().slice([row..row + 1, 0..576]), &weight, None));
            assert!(alone == together[row * 300..][..300], "row {row} in {dtype}");
        }
    }
}

/// Callers pass their own hidden states and caches to a model, so sizes are checked before a launch.
#[test]
fn linear_and_attention_operands_of_wrong_shape_or_dtype_panic() {
    let Some(gpu) = gpu() else { return };
    let refused = |run: &dyn Fn() -> Tensor<2>| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map(drop).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    let weight = Weight::new(random([30, 64], 1.0).into_data(), Dtype::F32, &gpu).unwrap();
    let x = |width: usize| random([3, width], 1.0).to_device(&gpu);
    let what = refused(&|| ops::linear(x(63), &weight, None));
    assert!(what.starts_with("the input must be f32 of [3, 64], got "), "{what}");
    let what = refused(&|| ops::linear(x(64).cast(DType::F16), &weight, None));
    assert!(what.starts_with("the input must be f32 of [3, 64], got "), "{what}");
    let bias = || Some(Tensor::<1>::zeros([29], &gpu));
    let what = refused(&|| ops::linear(x(64), &weight, bias()));
    assert!(what.starts_with("the bias must be f32 of [30], got F32 of [29]"), "{what}");
    let options = attention_options((4, 2), 8, None);
    let pool = || Tensor::<2>::zeros([32, 8], &gpu);
    let on_gpu = sequence(2, 3, &options, &gpu);
    let what = refused(&|| attention_paged(x(32), [&pool(), &pool()], &on_gpu, (&options, None)));
    assert!(what.starts_with("pools for 2 heads of 8"), "{what}");
    let what =
        refused(&|| attention_paged(x(32), [&pool(), &pool()], &sequence(2, 4, &options, &gpu), (&options, None)));
    assert!(what.contains("rows of queries"), "{what}");
}

/// Callers may pass ids beyond the table: the kernel does not read there.
#[test]
fn embedding_ids_out_of_range_read_the_last_row() {
    let Some(gpu) = gpu() else { return };
    for (_, dtype) in Dtype::ALL {
        let table = Weight::new(random([10, 40], 1.0).into_data(), *dtype, &gpu).unwrap();
        let [found, expected] =
            [[3, 10, -1, i32::MAX], [3, 9, 9, 9]].map(|ids| values(ops::embedding(&table, ints(&ids, &gpu))));
        assert_eq!(found, expected, "{dtype}");
    }
}

#[test]
fn kv_dtype_defaults_to_f16_for_f16_and_quantized_weights() {
    let devices = [Some(Device::flex()), gpu()];
    for device in devices.iter().flatten() {
        for (asked, weights, expected) in [
            (None, Dtype::F32, KvDtype::F32),
            (None, Dtype::Bf16, KvDtype::F32),
            (None, Dtype::F16, KvDtype::F16),
            (None, Dtype::Q4, KvDtype::F16),
            (Some(KvDtype::F32), Dtype::Q8, KvDtype::F32),
            (Some(KvDtype::F16), Dtype::F32, KvDtype::F16),
        ] {
            assert_eq!(KvDtype::choose(asked, weights, device).unwrap(), expected, "{asked:?} with {weights}");
        }
    }
}
