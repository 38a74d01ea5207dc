//! The operations against their references, forward and backward, on the CPU and on a GPU.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{cell::RefCell, sync::Arc};

use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};

use super::super::{
    AttentionOptions, Dropout, Dtype, LinearParts, LoraPair, LoraParts, LoraShape, LossOptions, NormOptions, NormParts,
    Precision, Rotation, Weight, activation, activation::activate_reference, add_update, attention,
    cpu::dropout_factors, fork, linear_cross_entropy, linear_with_lora, norm, norm_reference, qk_norm,
    qk_norm::qk_norm_reference, residual::dropout_reference, rope_and_attend, row_updates::add_lora_reference, to_f32,
};
use crate::{
    config::{Activation, NormKind, QkNormSpan},
    decode::sampling::{Purpose, RandomStream},
    ops::{self, causal_bias, document_bias, rope::rope_reference, weight::WeightForm},
};

mod losses;
mod optimizers;
mod recomputed;
mod recurrent;

thread_local! {
    /// The device of this thread's test, if it is not the CPU.
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
}

fn device() -> Device {
    DEVICE.with_borrow(|device| device.clone().unwrap_or_else(Device::flex)).autodiff()
}

/// Runs a test of this file on a GPU.
fn on_gpu(test: fn()) {
    let Some(gpu) = crate::test_gpu::gpu() else { return };
    DEVICE.set(Some(gpu));
    test();
}

/// Runs a part of a test on the CPU.
fn on_cpu<T>(part: impl FnOnce() -> T) -> T {
    let gpu = DEVICE.take();
    let result = part();
    DEVICE.set(gpu);
    result
}

/// Values from -1 to 1.
fn random(seed: u64, n: usize) -> Vec<f32> {
    let random = RandomStream::new(seed, 0);
    (0..n).map(|n| random.uniform(n, Purpose::Token) as f32 * 2.0 - 1.0).collect()
}

fn leaf<const D: usize>(seed: u64, dims: [usize; D], factor: f32) -> Tensor<D> {
    let values: Vec<_> = random(seed, dims.iter().product()).into_iter().map(|value| value * factor).collect();
    Tensor::from_data(TensorData::new(values, dims), &device()).require_grad()
}

/// A weight, and the leaf that it holds.
fn weight(seed: u64, dims: [usize; 2]) -> (Weight, Tensor<2>) {
    let held = Weight::new(TensorData::new(random(seed, dims.iter().product()), dims), Dtype::F32, &device()).unwrap();
    let WeightForm::Stored(leaf) = held.form() else {
        unreachable!("a weight on an autodiff device is stored as it is")
    };
    (held, leaf)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    to_f32(ops::read(tensor).unwrap()).unwrap()
}

/// Reads a leaf's gradient.
type GradientOf<'a> = &'a dyn Fn(&Gradients) -> Vec<f32>;

/// The output, and gradients of its randomly weighted sum.
fn outcome<const D: usize>(output: Tensor<D>, gradients_of: &[GradientOf<'_>]) -> Vec<Vec<f32>> {
    let weights = Tensor::<1>::from_data(random(99, output.shape().num_elements()).as_slice(), &device());
    let gradients = (output.clone().flatten(0, D - 1) * weights).sum().backward();
    let outputs = [values(output.inner())];
    outputs.into_iter().chain(gradients_of.iter().map(|of| of(&gradients))).collect()
}

fn gradient<const D: usize>(leaf: &Tensor<D>) -> impl Fn(&Gradients) -> Vec<f32> {
    let leaf = leaf.clone();
    move |gradients| values(leaf.grad(gradients).unwrap())
}

fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>], case: &str) {
    for (n, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_on_gpu = DEVICE.with_borrow(Option::is_some);
        // Where a gradient is 0, a GPU leaves rounding errors of large terms.
        let least = if is_on_gpu { 2e-2 } else { 1e-3 };
        let largest = expected.iter().fold(least, |largest: f32, value| largest.max(value.abs()));
        let far = found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0f32, f32::max);
        // A GPU's products add up to 140,000 terms in one sum, in the reference as well as in our kernels. Matrix
        // instructions round operands to 16 bits, and truncate their sums; the exponential of a score has the error of
        // all its terms.
        let tolerance = match is_on_gpu {
            true if ops::has_fast_bf16_products(&device()) => 3e-4,
            true => 5e-5,
            false => 2e-5,
        };
        assert!(
            found.len() == expected.len() && far <= tolerance * largest,
            "{case}: tensor {n} is off by {far} of {largest}"
        );
        assert!(found.iter().all(|value| value.is_finite()), "{case}: tensor {n} is not finite");
    }
}

#[test]
fn linear_forward_and_backward_match_the_reference() {
    for [n_rows, d_in, d_out] in [[1, 1, 1], [3, 7, 5], [65, 33, 129], [200, 96, 300]] {
        for has_bias in [false, true] {
            let (x, (held, weight)) = (leaf(1, [n_rows, d_in], 1.0), weight(2, [d_out, d_in]));
            let bias = leaf(3, [d_out], 1.0);
            let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&weight), &gradient(&bias)];
            let of = if has_bias { &of[..] } else { &of[..2] };
            let given = has_bias.then(|| bias.clone());
            let found = outcome(ops::linear(x.clone(), &held, given.clone()), of);
            let product = x.clone().matmul(weight.clone().transpose());
            let expected = given.map_or(product.clone(), |bias| product + bias.unsqueeze());
            assert_close(&found, &outcome(expected, of), &format!("{n_rows} x {d_in} x {d_out}, bias {has_bias}"));
        }
    }
}

/// Values with 8 significant bits, and the same weight in bf16.
fn exact_in_bf16(seed: u64, dims: [usize; 2]) -> TensorData {
    let values = random(seed, dims[0] * dims[1]);
    TensorData::new(values.into_iter().map(|value| (value * 128.0).round() / 128.0).collect::<Vec<_>>(), dims)
}

#[test]
fn bf16_precision_rounds_the_operands_of_training_products() {
    let [n_rows, d_in, d_out] = [70, 40, 90];
    let weight_of = |data: TensorData, precision: Precision| {
        let mut held = Weight::new(data, Dtype::F32, &device()).unwrap();
        held.set_precision(precision);
        let WeightForm::Stored(leaf) = held.form() else {
            unreachable!("a weight on an autodiff device is stored as it is")
        };
        (held, leaf)
    };
    let ids = || Tensor::<1, Int>::from_ints(vec![7; n_rows].as_slice(), &device()).into();
    let options = LossOptions::default();
    // Outputs and gradients of a product and of a loss.
    let both = |x: TensorData, w: TensorData, precision: Precision| {
        let x = Tensor::<2>::from_data(x, &device()).require_grad();
        let (held, leaf) = weight_of(w, precision);
        let of: [GradientOf<'_>; 2] = [&gradient(&x), &gradient(&leaf)];
        let mut found = outcome(ops::linear(x.clone(), &held, None), &of);
        found.extend(outcome(linear_cross_entropy(x.clone(), (&held, None), options, ids()).objective, &of));
        found
    };
    let far = |found: &[Vec<f32>], expected: &[Vec<f32>]| -> Vec<f32> {
        let of_one = |(found, expected): (&Vec<f32>, &Vec<f32>)| {
            let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0f32, f32::max) / largest
        };
        found.iter().zip(expected).map(of_one).collect()
    };
    let plain = |seed: u64, dims: [usize; 2]| TensorData::new(random(seed, dims[0] * dims[1]), dims);
    let operands = || (plain(1, [n_rows, d_in]), plain(2, [d_out, d_in]));
    let in_precision = |precision: Precision| {
        let (x, w) = operands();
        both(x, w, precision)
    };
    let off = far(&in_precision(Precision::Bf16), &in_precision(Precision::F32));
    assert!(off.iter().all(|&off| off < 0.01), "{off:?}");
    assert!([0, 1, 2, 4, 5].iter().all(|&n| off[n] > 1e-5), "nothing was rounded: {off:?}");
    // Outputs of operands that bf16 has are the same.
    let exact =
        |precision: Precision| both(exact_in_bf16(1, [n_rows, d_in]), exact_in_bf16(2, [d_out, d_in]), precision);
    let off = far(&exact(Precision::Bf16), &exact(Precision::F32));
    assert!(off[0] < 1e-5 && off[3] < 1e-5, "{off:?}");
}

#[test]
fn norm_forward_and_backward_match_the_reference() {
    for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
        for ([n_rows, width], has_bias, weight_offset) in
            [([1, 1], true, 0.0), ([3, 17], false, 1.0), ([70, 64], true, 0.0)]
        {
            let options = NormOptions { kind, eps: 1e-5, weight_offset };
            let (x, weight, bias) = (leaf(1, [n_rows, width], 3.0), leaf(2, [width], 1.0), leaf(3, [width], 1.0));
            let of: [GradientOf<'_>; 3] = [&gradient(&x), &gradient(&weight), &gradient(&bias)];
            let of = if has_bias { &of[..] } else { &of[..2] };
            let given = has_bias.then(|| bias.clone());
            let found = outcome(norm(x.clone(), weight.clone(), given.clone(), options), of);
            let expected = outcome(norm_reference(x.clone(), weight.clone(), given, options), of);
            assert_close(&found, &expected, &format!("{kind:?} of {n_rows} x {width}"));
        }
    }
}

#[test]
fn qk_norm_forward_and_backward_match_the_reference() {
    for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
        for (span, [n_heads, n_kv_heads, head_dim]) in [
            (QkNormSpan::Head, [4, 2, 8]),
            (QkNormSpan::AllHeads, [4, 2, 8]),
            (QkNormSpan::Head, [1, 1, 3]),
            (QkNormSpan::EachHead, [4, 2, 8]),
        ] {
            let options = AttentionOptions {
                n_heads,
                n_kv_heads,
                head_dim,
                scale: 1.0,
                softcap: None,
                sliding_window: None,
                bidirectional: false,
                alibi_slopes: None,
                relative: None,
            };
            for n_rows in [1, 70] {
                let qkv = leaf(1, [n_rows, (n_heads + 2 * n_kv_heads) * head_dim], 3.0);
                let width = |n_heads: usize| if span == QkNormSpan::Head { head_dim } else { n_heads * head_dim };
                let weights = [leaf(2, [width(n_heads)], 1.0), leaf(3, [width(n_kv_heads)], 1.0)];
                let of: [GradientOf<'_>; 3] = [&gradient(&qkv), &gradient(&weights[0]), &gradient(&weights[1])];
                let norms = || {
                    let options = NormOptions { kind, eps: 1e-5, weight_offset: 0.5 };
                    weights.clone().map(|weight| NormParts { weight, bias: None, options })
                };
                let found = outcome(qk_norm(qkv.clone(), norms(), span, &options), &of);
                let expected = outcome(qk_norm_reference(qkv.clone(), norms(), span, &options), &of);
                assert_close(&found, &expected, &format!("{kind:?}, {span:?}, {n_rows} x {n_heads} x {head_dim}"));
            }
        }
    }
}

/// The references run on the CPU: on a GPU, Burn's derivative of the exact GELU is the derivative of the tanh
/// approximation.
#[test]
fn activation_forward_and_backward_match_the_reference() {
    // Outcome of an activation of random values.
    let of_random = |seed, dims: [usize; 2], activate: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let x = leaf(seed, dims, 6.0);
        outcome(activate(x.clone()), &[&gradient(&x)])
    };
    for kind in [Activation::Relu, Activation::ReluSquared, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        for [n_rows, d_ff] in [[1, 1], [3, 17], [130, 32]] {
            let dims = [n_rows, d_ff];
            let found = of_random(1, dims, &|x| activation::activate(x, kind));
            let expected = on_cpu(|| of_random(1, dims, &|x| activate_reference(x, kind)));
            assert_close(&found, &expected, &format!("{kind:?} of {n_rows} x {d_ff}"));
            let dims = [n_rows, 2 * d_ff];
            let found = of_random(2, dims, &|x| activation::gated(x, kind));
            let expected = on_cpu(|| of_random(2, dims, &|x| activation::gated_reference(x, kind)));
            assert_close(&found, &expected, &format!("gated {kind:?} of {n_rows} x {d_ff}"));
        }
    }
}

#[test]
fn residual_add_and_dropout_match_the_reference() {
    let dropout = Dropout { probability: 0.3, seed: 5, place: 2 };
    for [n_rows, width] in [[1, 1], [3, 17], [70, 192]] {
        for (multiplier, dropout) in [(1.0, None), (0.22, None), (1.0, Some(dropout)), (0.5, Some(dropout))] {
            let (residual, update) = (leaf(1, [n_rows, width], 1.0), leaf(2, [n_rows, width], 1.0));
            let of: [GradientOf<'_>; 2] = [&gradient(&residual), &gradient(&update)];
            let found = outcome(add_update(residual.clone(), update.clone(), multiplier, dropout), &of);
            let dropped = |x: Tensor<2>| match dropout {
                Some(dropout) => dropout_reference(x, dropout),
                None => x,
            };
            let expected = outcome(residual.clone() + dropped(update.clone()) * multiplier, &of);
            let case = format!("{n_rows} x {width}, {multiplier}, {dropout:?}");
            assert_close(&found, &expected, &case);
            let found = outcome(ops::dropout(update.clone(), dropout), &of[1..]);
            assert_close(&found, &outcome(dropped(update.clone()), &of[1..]), &case);
        }
    }
}

#[test]
fn dropout_mask_has_the_given_rate_and_differs_by_seed_and_place() {
    let n = 100_000;
    let of = |seed, place, probability| dropout_factors(n, Dropout { probability, seed, place });
    for probability in [0.1, 0.5, 0.9] {
        let factors = of(1, 0, probability);
        let kept = 1.0 / (1.0 - probability as f32);
        assert!(factors.iter().all(|&factor| factor == 0.0 || (factor - kept).abs() < 1e-5));
        let dropped = factors.iter().filter(|&&factor| factor == 0.0).count() as f64 / n as f64;
        // Four standard deviations.
        let tolerance = 4.0 * (probability * (1.0 - probability) / n as f64).sqrt();
        assert!((dropped - probability).abs() < tolerance, "{dropped} of {probability}");
    }
    // Of two independent choices with probability one half, half agree.
    for (one, other) in [(of(1, 0, 0.5), of(2, 0, 0.5)), (of(1, 0, 0.5), of(1, 1, 0.5))] {
        let agree = one.iter().zip(&other).filter(|(one, other)| one == other).count() as f64 / n as f64;
        assert!((agree - 0.5).abs() < 0.01, "{agree}");
    }
    // A longer tensor begins with the same choices.
    assert_eq!(of(1, 0, 0.5)[..1000], dropout_factors(1000, Dropout { probability: 0.5, seed: 1, place: 0 }));
}

#[test]
fn gradients_of_a_tensor_used_several_times_are_summed() {
    let x = leaf(1, [3, 5], 1.0);
    let of: [GradientOf<'_>; 1] = [&gradient(&x)];
    let [one, rest] = fork(x.clone());
    let [two, three] = fork(rest);
    let found = outcome(one.square() + two * 3.0 + three.exp(), &of);
    assert_close(&found, &outcome(x.clone().square() + x.clone() * 3.0 + x.clone().exp(), &of), "three uses");

    // Only one of the uses counts.
    let [one, _] = fork(x.clone());
    assert_close(&outcome(one.square(), &of), &outcome(x.clone().square(), &of), "one of two uses");
}

/// A loss, from a table of embeddings and an output matrix.
type LossOf<'a> = &'a dyn Fn(&Weight, &Weight) -> Tensor<1>;

/// The gradient of a matrix that is table and output matrix is the sum of both, whichever use comes first in the backward pass.
#[test]
fn gradients_of_a_tied_embedding_are_summed_in_any_order() {
    let ((held, table), (other, of_other)) = (weight(2, [9, 7]), weight(2, [9, 7]));
    let ids = || Tensor::<1, Int>::from_ints([3, 0, 3, 8, 3], &device());
    let loss = |hidden: Tensor<2>, output: &Weight| {
        let options = LossOptions::default();
        linear_cross_entropy(hidden, (output, None), options, ids().into()).objective
    };
    let hidden = leaf(3, [5, 7], 1.0);
    let orders: [LossOf<'_>; 3] = [
        &|table, output| loss(ops::embedding(table, ids()), output),
        &|table, output| loss(hidden.clone(), output) + ops::embedding(table, ids()).square().sum(),
        &|table, output| ops::embedding(table, ids()).square().sum() + loss(hidden.clone(), output),
    ];
    let of_both = |gradients: &Gradients| {
        let [one, other] = [&table, &of_other].map(|leaf| gradient(leaf)(gradients));
        one.iter().zip(other).map(|(one, other)| one + other).collect()
    };
    for (n, order) in orders.into_iter().enumerate() {
        let expected = outcome(order(&other, &held), &[&of_both]);
        assert_close(&outcome(order(&held, &held), &[&gradient(&table)]), &expected, &format!("order {n}"));
    }
}

#[test]
fn embedding_forward_and_backward_match_the_reference() {
    let (held, table) = weight(1, [9, 70]);
    let ids = Tensor::<1, Int>::from_ints([3, 0, 3, 8, 3], &device());
    let of: [GradientOf<'_>; 1] = [&gradient(&table)];
    let found = outcome(ops::embedding(&held, ids.clone()), &of);
    assert_close(&found, &outcome(table.clone().select(0, ids), &of), "embedding");
}

/// A frozen matrix in several dtypes, with and without low-rank updates of some of its rows.
#[test]
fn frozen_linear_with_and_without_lora_matches_widened_weights() {
    let [d_in, d_out] = [64, 96];
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Q8, Dtype::Q4] {
        let data = TensorData::new(random(2, d_out * d_in), [d_out, d_in]);
        let packed = Weight::new(data, dtype, &Device::flex()).unwrap();
        let plain = Tensor::<2>::from_inner(Tensor::from_data(packed.read().unwrap(), &Device::flex()));
        let pairs = vec![
            LoraPair { rows: 0..40, rank: 3, scale: 2.0 },
            LoraPair { rows: 40..64, rank: 1, scale: 0.5 },
            LoraPair { rows: 80..96, rank: 8, scale: 1.0 },
        ];
        let shape = Arc::new(LoraShape { d_in, pairs });
        for n_rows in [1, 70] {
            for (has_lora, has_bias, dropout) in [
                (false, false, None),
                (false, true, None),
                (true, true, None),
                (true, false, Some(Dropout { probability: 0.3, seed: 4, place: 7 })),
            ] {
                let (x, values) = (leaf(1, [n_rows, d_in], 1.0), leaf(3, [shape.n_values()], 1.0));
                let bias = has_bias.then(|| Tensor::<1>::from_inner(Tensor::from_floats([0.5; 96], &Device::flex())));
                let lora = has_lora.then(|| LoraParts { values: values.clone(), shape: shape.clone(), dropout });
                let part = LinearParts { weight: &packed, bias: bias.clone(), lora, by_row: Vec::new() };
                let of: [GradientOf<'_>; 2] = [&gradient(&x), &gradient(&values)];
                let of = if has_lora { &of[..] } else { &of[..1] };
                let found = outcome(linear_with_lora(x.clone(), part), of);
                let product = x.clone().matmul(plain.clone().transpose());
                let product = bias.map_or(product.clone(), |bias| product + bias.unsqueeze());
                let dropped = ops::dropout(x.clone(), dropout);
                let expected =
                    if has_lora { add_lora_reference(product, dropped, values.clone(), &shape) } else { product };
                let case = format!("{dtype:?}, {n_rows} rows, lora {has_lora}, bias {has_bias}, {dropout:?}");
                assert_close(&found, &outcome(expected, of), &case);
            }
        }
    }
}

#[test]
fn training_attention_forward_and_backward_match_the_reference() {
    check_attention(false);
}

#[test]
fn training_attention_with_sinks_and_their_gradient_match_the_reference() {
    check_attention(true);
}

fn check_attention(has_sinks: bool) {
    let plain = AttentionOptions {
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        scale: 0.4,
        softcap: None,
        sliding_window: None,
        bidirectional: false,
        alibi_slopes: None,
        relative: None,
    };
    let one_head = AttentionOptions { n_heads: 1, n_kv_heads: 1, head_dim: 20, ..plain.clone() };
    let window = AttentionOptions { sliding_window: Some(5), ..plain.clone() };
    let one_key = AttentionOptions { sliding_window: Some(1), ..plain.clone() };
    let capped = AttentionOptions { softcap: Some(1.5), sliding_window: Some(70), ..plain.clone() };
    let alibi = AttentionOptions { alibi_slopes: Some(vec![0.5, 0.25, 0.1, 0.0]), ..plain.clone() };
    let both_ways = AttentionOptions { bidirectional: true, ..plain.clone() };
    let both_ways_window = AttentionOptions { bidirectional: true, ..window.clone() };
    let mut cases = vec![
        ("plain", plain),
        ("one head", one_head),
        ("window", window),
        ("one key", one_key),
        ("capped", capped),
        ("alibi", alibi),
    ];
    // On GPUs they are rejected.
    if ops::is_on_cpu(&device()) {
        cases.extend([("both ways", both_ways), ("both ways, window", both_ways_window)]);
    }
    for (name, options) in cases {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = options;
        for (batch, seq_len, half, factor) in
            [(1, 1, 4, 1.0), (3, 9, 0, 1.0), (2, 64, 2, 3.0), (2, 130, 4, 6.0), (1, 256, 0, 1.0)]
        {
            let device = device();
            let (n_rows, n_all) = (batch * seq_len, n_heads + 2 * n_kv_heads);
            let qkv = leaf(1, [n_rows, n_all * head_dim], factor);
            let angles = random(5, n_rows * half);
            let rotation = (half > 0).then(|| Rotation::new(&angles, n_rows, &device).scaled(1.1));
            let sinks = has_sinks.then(|| leaf(9, [n_heads], 3.0));
            let (of_qkv, of_sinks) = (gradient(&qkv), sinks.as_ref().map(gradient));
            let of: Vec<GradientOf<'_>> =
                [&of_qkv as GradientOf<'_>].into_iter().chain(of_sinks.iter().map(|of| of as GradientOf<'_>)).collect();
            let heads = |range: std::ops::Range<usize>, is_rotated: bool| {
                let n = range.len();
                let x = qkv.clone().slice([0..n_rows, range.start * head_dim..range.end * head_dim]);
                let x = x.reshape([n_rows, n, head_dim]);
                let x = match &rotation {
                    Some(rotation) if is_rotated => rope_reference(x, rotation),
                    _ => x,
                };
                x.reshape([n_rows, n * head_dim])
            };
            // One document, and documents of 1, 2, 3, ... rows.
            let documents = (0..seq_len as u32).flat_map(|last| 0..=last).take(seq_len);
            let packed = Arc::new(documents.cycle().take(n_rows).collect::<Vec<_>>());
            for positions in [None, Some(packed)] {
                let case = format!("{name}, {batch} x {seq_len}, factor {factor}, packed {}", positions.is_some());
                let bias = match &positions {
                    Some(positions) => Some(document_bias(positions, seq_len, &options, &device)),
                    None => causal_bias(0..seq_len, 0, &options, &device),
                };
                let how = (rotation.as_ref(), sinks.clone());
                let found = outcome(rope_and_attend(qkv.clone(), how, batch, positions, &options, Precision::F32), &of);
                let operands = [
                    heads(0..n_heads, true),
                    heads(n_heads..n_heads + n_kv_heads, true),
                    heads(n_heads + n_kv_heads..n_all, false),
                ];
                let expected = attention::attention_dense(operands, (bias, sinks.clone()), batch, &options).0;
                assert_close(&found, &outcome(expected, &of), &case);
            }
        }
    }
}

#[test]
fn training_attention_on_gpu_matches_the_reference() {
    on_gpu(training_attention_forward_and_backward_match_the_reference);
}

/// On devices that multiply f16 or bf16, such as Mesa's software adapter in a build for Vulkan.
#[test]
fn training_ops_by_gpu_matrix_instructions_match_the_reference() {
    ops::cube::allow_f16();
    on_gpu(|| {
        if ops::has_fast_bf16_products(&device()) {
            training_attention_forward_and_backward_match_the_reference();
            linear_forward_and_backward_match_the_reference();
            losses::check_cross_entropy(&[([5, 16, 33], 0.0), ([70, 32, 501], 1.0)]);
        }
    });
}

#[test]
fn linear_embedding_norms_and_activations_on_gpu_match_the_reference() {
    on_gpu(linear_forward_and_backward_match_the_reference);
    on_gpu(embedding_forward_and_backward_match_the_reference);
    on_gpu(norm_forward_and_backward_match_the_reference);
    on_gpu(qk_norm_forward_and_backward_match_the_reference);
    on_gpu(activation_forward_and_backward_match_the_reference);
    on_gpu(residual_add_and_dropout_match_the_reference);
}

/// An infinite key or value changes only the rows that see it.
#[test]
fn infinite_keys_and_values_change_only_the_rows_that_see_them() {
    let options = AttentionOptions {
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        softcap: None,
        sliding_window: Some(3),
        bidirectional: false,
        alibi_slopes: None,
        relative: None,
    };
    let attended = |last: f32| {
        let mut qkv = random(7, 10 * 12);
        qkv[6 * 12 + 4..7 * 12].fill(last);
        let qkv = Tensor::<2>::from_data(TensorData::new(qkv, [10, 12]), &Device::flex());
        values(rope_and_attend(qkv, (None, None), 1, None, &options, Precision::F32))
    };
    let (found, expected) = (attended(f32::INFINITY), attended(1.0));
    for (row, (found, expected)) in found.chunks(4).zip(expected.chunks(4)).enumerate() {
        let is_same = found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6);
        assert_eq!(is_same, !(6..9).contains(&row), "row {row}: {found:?}, {expected:?}");
    }
}
