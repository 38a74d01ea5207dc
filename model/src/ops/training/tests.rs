#![expect(clippy::unwrap_used, reason = "tests")]

use std::{cell::RefCell, sync::Arc};

use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};

use super::super::{
    AdamWStep, AttentionOptions, Dropout, Dtype, LinearParts, LoraPair, LoraParts, LoraShape, LossOptions, MuonStep,
    NormOptions, NormParts, Precision, Rotation, Targets, Weight, activation, activation::activate_reference, adamw,
    add_update, attention, clip::clip_norm_reference, clip_norm, cpu::dropout_factors,
    cross_entropy::linear_cross_entropy_reference, divergence::linear_divergence_reference, fork, linear_cross_entropy,
    linear_divergence, linear_with_lora, norm, norm_reference, qk_norm, qk_norm::qk_norm_reference,
    residual::dropout_reference, rope_and_attend, row_updates::add_lora_reference, to_f32,
};
use crate::{
    config::{Activation, NormKind, QkNormSpan},
    ops::{
        self, adamw::adamw_reference, causal_bias, document_bias, muon, muon::muon_reference, rope::rope_reference,
        weight::Form,
    },
    sampling::{Purpose, RandomStream},
};

mod recomputed;

thread_local! {
    /// The device of this thread's test, if it is not the CPU.
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
}

fn device() -> Device {
    DEVICE.with_borrow(|device| device.clone().unwrap_or_else(Device::flex)).autodiff()
}

/// Runs a test of this file on a GPU.
#[cfg(feature = "gpu")]
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
    let Form::Stored(leaf) = held.form() else { unreachable!("a weight on an autodiff device is stored as it is") };
    (held, leaf)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    to_f32(ops::read(tensor).unwrap()).unwrap()
}

/// Reads a leaf's gradient.
type GradientOf<'a> = &'a dyn Fn(&Gradients) -> Vec<f32>;

/// The output, and gradients of its sum weighted with random numbers.
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
        // A GPU's products add up to 140,000 terms in one sum, those of the reference as well as ours.
        // Matrix instructions round operands to 16 bits, and cut off what they add; the exponential of a score has the error of
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
        let Form::Stored(leaf) = held.form() else { unreachable!("a weight on an autodiff device is stored as it is") };
        (held, leaf)
    };
    let ids = || Tensor::<1, Int>::from_ints(vec![7; n_rows].as_slice(), &device()).into();
    let options = LossOptions { softcap: None, z_loss: 0.0 };
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
        for (span, [n_heads, n_kv_heads, head_dim]) in
            [(QkNormSpan::Head, [4, 2, 8]), (QkNormSpan::AllHeads, [4, 2, 8]), (QkNormSpan::Head, [1, 1, 3])]
        {
            let options = AttentionOptions {
                n_heads,
                n_kv_heads,
                head_dim,
                scale: 1.0,
                softcap: None,
                sliding_window: None,
                alibi_slopes: None,
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

/// The references run on the CPU: on a GPU, Burn's derivative of the exact GELU is that of its tanh approximation.
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
    // Of two independent choices at one half, half agree.
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

    // The embedding as table and as output matrix.
    let (held, table) = weight(2, [9, 7]);
    let of: [GradientOf<'_>; 1] = [&gradient(&table)];
    let ids = || Tensor::<1, Int>::from_ints([3, 0, 3, 8, 3], &device());
    let loss = |table: &Weight, output: &Weight| {
        let options = LossOptions { softcap: None, z_loss: 0.0 };
        linear_cross_entropy(ops::embedding(table, ids()), (output, None), options, ids().into()).objective
    };
    let tied = held.for_both_uses();
    assert_close(&outcome(loss(&tied, &tied), &of), &outcome(loss(&held, &held), &of), "a tied embedding");
}

#[test]
fn embedding_forward_and_backward_match_the_reference() {
    let (held, table) = weight(1, [9, 70]);
    let ids = Tensor::<1, Int>::from_ints([3, 0, 3, 8, 3], &device());
    let of: [GradientOf<'_>; 1] = [&gradient(&table)];
    let found = outcome(ops::embedding(&held, ids.clone()), &of);
    assert_close(&found, &outcome(table.clone().select(0, ids), &of), "embedding");
}

#[test]
fn cross_entropy_forward_and_backward_match_the_reference() {
    // Rows of equal logits (no hidden state), and logits of 1e4.
    check_cross_entropy(&[
        ([1, 3, 2], 1.0),
        ([5, 16, 33], 0.0),
        ([70, 32, 501], 1.0),
        ([20, 8, 40], 3e3),
        ([230, 16, 140_000], 1.0),
    ]);
}

/// For `[n_rows, d_model, vocab_size]` and a factor of the hidden states.
fn check_cross_entropy(cases: &[([usize; 3], f32)]) {
    for &([n_rows, d_model, vocab_size], factor) in cases {
        // With logits of 1e4 a soft cap saturates: its derivative is only rounding error, which a z-loss would amplify.
        let z_capped = if factor > 1.0 { 0.0 } else { 0.1 };
        for (has_bias, softcap, z_loss, has_weights) in [
            (false, None, 0.0, false),
            (true, Some(2.0), z_capped, false),
            (true, None, 0.0, false),
            (false, None, 1e-3, false),
            (true, None, 1e-3, true),
        ] {
            let options = LossOptions { softcap, z_loss };
            let (hidden, (held, weight)) = (leaf(1, [n_rows, d_model], factor), weight(2, [vocab_size, d_model]));
            let bias = leaf(3, [vocab_size], 1.0);
            let targets: Vec<_> = (0..n_rows).map(|row| (row * 7919 % vocab_size) as i32).collect();
            let ids = Tensor::<1, Int>::from_ints(targets.as_slice(), &device());
            // Rows 2, 5, 8, ... have weight 0.
            let weights = (0..n_rows).map(|row| ((row + 1) % 3) as f32 / n_rows as f32).collect();
            let targets = Targets { ids, weights: has_weights.then_some(weights) };
            let of: [GradientOf<'_>; 3] = [&gradient(&hidden), &gradient(&weight), &gradient(&bias)];
            let of = if has_bias { &of[..] } else { &of[..2] };
            let output = || (&held, has_bias.then(|| bias.clone()));
            let found = linear_cross_entropy(hidden.clone(), output(), options, targets.clone());
            let expected = linear_cross_entropy_reference(hidden.clone(), output(), options, targets);
            let case = format!(
                "{n_rows} rows of {d_model}, {vocab_size} tokens, bias {has_bias}, weights {has_weights}, {options:?}"
            );
            assert_close(&[values(found.cross_entropy)], &[values(expected.cross_entropy)], &case);
            assert_close(&outcome(found.objective, of), &outcome(expected.objective, of), &case);
        }
    }
}

#[test]
fn cross_entropy_with_a_packed_weight_equals_the_plain_weight() {
    // The logits of more rows than are in memory together.
    let [n_rows, d_model, vocab_size] = [200, 24, 200_000];
    let frozen_device = device().inner();
    let plain = |seed: u64, dims: [usize; 2]| TensorData::new(random(seed, dims[0] * dims[1]), dims);
    let data = plain(2, [vocab_size, d_model]);
    let (packed, (held, _)) =
        (Weight::new(data, Dtype::F32, &frozen_device).unwrap(), weight(2, [vocab_size, d_model]));
    let ids: Vec<_> = (0..n_rows).map(|row| (row * 7919 % vocab_size) as i32).collect();
    let weights: Vec<_> = (0..n_rows).map(|row| (row % 3) as f32 / n_rows as f32).collect();
    for (softcap, weights) in [(None, None), (Some(2.0), Some(weights))] {
        let options = LossOptions { softcap, z_loss: 1e-3 };
        let losses = |weight: &Weight, device: &Device| {
            let hidden = Tensor::from_data(plain(1, [n_rows, d_model]), device);
            let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), device);
            let targets = Targets { ids, weights: weights.clone() };
            let losses = linear_cross_entropy(hidden, (weight, None), options, targets);
            [values(losses.objective), values(losses.cross_entropy)]
        };
        assert_close(&losses(&packed, &frozen_device), &losses(&held, &device()), &format!("{options:?}"));
    }
}

#[test]
fn kl_divergence_matches_the_reference_and_is_flat_at_equal_models() {
    for (n_rows, d_model, vocab_size, factor) in
        [(1, 8, 3, 1.0), (37, 24, 101, 1.0), (200, 16, 100_000, 0.3), (5, 8, 50, 40.0)]
    {
        let data = TensorData::new(random(2, vocab_size * d_model), [vocab_size, d_model]);
        let weight = Weight::new(data, Dtype::F32, &Device::flex()).unwrap();
        let former =
            Tensor::from_data(TensorData::new(random(3, n_rows * d_model), [n_rows, d_model]), &Device::flex());
        let former = former.mul_scalar(factor);
        // Rows 2, 5, 8, ... have weight 0.
        let shares: Vec<_> = (0..n_rows).map(|row| ((row + 1) % 3) as f32 / n_rows as f32).collect();
        for (softcap, has_bias) in [(None, false), (Some(2.0), true)] {
            let hidden = leaf(1, [n_rows, d_model], factor);
            let bias = || has_bias.then(|| Tensor::from_data(random(4, vocab_size).as_slice(), &device()));
            let found = linear_divergence(hidden.clone(), former.clone(), (&weight, bias()), softcap, shares.clone());
            let expected =
                linear_divergence_reference(hidden.clone(), former.clone(), (&weight, bias()), softcap, shares.clone());
            let case = format!("{n_rows} rows of {d_model}, {vocab_size} tokens, soft cap {softcap:?}");
            assert!(values(found.clone()).iter().all(|loss| *loss > 0.0), "{case}");
            let of: [GradientOf<'_>; 1] = [&gradient(&hidden)];
            assert_close(&outcome(found, &of), &outcome(expected, &of), &case);
            // A model does not diverge from itself: the gradient is exactly 0.
            let same =
                linear_divergence(hidden.clone(), hidden.clone().inner(), (&weight, bias()), softcap, shares.clone());
            let of_hidden = hidden.grad(&same.backward()).unwrap();
            assert!(values(of_hidden).iter().all(|value| *value == 0.0), "{case}");
        }
    }
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
fn cross_entropy_with_a_frozen_weight_gives_the_same_hidden_gradient() {
    let [n_rows, d_model, vocab_size] = [70, 32, 500];
    let data = TensorData::new(random(2, vocab_size * d_model), [vocab_size, d_model]);
    let packed = Weight::new(data.clone(), Dtype::F32, &Device::flex()).unwrap();
    let trained = Weight::new(data, Dtype::F32, &device()).unwrap();
    let bias = || Some(Tensor::<1>::from_inner(Tensor::from_data(random(3, vocab_size).as_slice(), &Device::flex())));
    let hidden = leaf(1, [n_rows, d_model], 1.0);
    let ids: Vec<_> = (0..n_rows).map(|row| (row * 7919 % vocab_size) as i32).collect();
    let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device());
    let options = LossOptions { softcap: Some(3.0), z_loss: 1e-3 };
    let of: [GradientOf<'_>; 1] = [&gradient(&hidden)];
    let [found, expected] = [&packed, &trained].map(|weight| {
        let losses = linear_cross_entropy(hidden.clone(), (weight, bias()), options, ids.clone().into());
        outcome(losses.objective, &of)
    });
    assert_close(&found, &expected, "a packed output matrix");
}

#[test]
fn cross_entropy_ignores_rows_of_weight_zero() {
    let (hidden, (held, weight)) = (leaf(1, [4, 8], 1.0), weight(2, [10, 8]));
    let broken = Tensor::<2>::from_data([[0.0], [0.0], [1e30], [0.0]], &device());
    let ids = Tensor::<1, Int>::from_ints([1, 2, 3, 4], &device());
    let targets = Targets { ids, weights: Some(vec![0.5, 0.25, 0.0, 0.25]) };
    let of: [GradientOf<'_>; 2] = [&gradient(&hidden), &gradient(&weight)];
    let options = LossOptions { softcap: None, z_loss: 0.1 };
    let loss = |hidden| linear_cross_entropy(hidden, (&held, None), options, targets.clone()).objective;
    let whole = outcome(loss(hidden.clone()), &of);
    let found = outcome(loss(hidden.clone() + broken), &of);
    assert_eq!(found, whole);
    assert!(whole[1][16..24].iter().all(|&value| value == 0.0));
}

/// On the CPU such rows are left out before anything is computed.
#[test]
fn cross_entropy_ignores_nan_in_rows_of_weight_zero() {
    let (hidden, (held, weight)) = (leaf(1, [4, 8], 1.0), weight(2, [10, 8]));
    let broken = Tensor::<2>::from_data([[0.0], [0.0], [f32::NAN], [0.0]], &device());
    let options = LossOptions { softcap: None, z_loss: 0.1 };
    let of: [GradientOf<'_>; 2] = [&gradient(&hidden), &gradient(&weight)];
    let loss = |hidden, weights: [f32; 4]| {
        let ids = Tensor::<1, Int>::from_ints([1, 2, 3, 4], &device());
        let targets = Targets { ids, weights: Some(weights.to_vec()) };
        outcome(linear_cross_entropy(hidden, (&held, None), options, targets).objective, &of)
    };
    let some = [0.5, 0.25, 0.0, 0.25];
    assert_eq!(loss(hidden.clone() + broken.clone(), some), loss(hidden.clone(), some));
    let found = loss(hidden.clone() + broken, [0.0; 4]);
    assert!(found.iter().flatten().all(|&value| value == 0.0), "{found:?}");
}

#[test]
fn training_attention_forward_and_backward_match_the_reference() {
    let plain = AttentionOptions {
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        scale: 0.4,
        softcap: None,
        sliding_window: None,
        alibi_slopes: None,
    };
    let one_head = AttentionOptions { n_heads: 1, n_kv_heads: 1, head_dim: 20, ..plain.clone() };
    let window = AttentionOptions { sliding_window: Some(5), ..plain.clone() };
    let one_key = AttentionOptions { sliding_window: Some(1), ..plain.clone() };
    let capped = AttentionOptions { softcap: Some(1.5), sliding_window: Some(70), ..plain.clone() };
    let alibi = AttentionOptions { alibi_slopes: Some(vec![0.5, 0.25, 0.1, 0.0]), ..plain.clone() };
    let cases = [
        ("plain", plain),
        ("one head", one_head),
        ("window", window),
        ("one key", one_key),
        ("capped", capped),
        ("alibi", alibi),
    ];
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
            let of: [GradientOf<'_>; 1] = [&gradient(&qkv)];
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
                let found = outcome(
                    rope_and_attend(qkv.clone(), rotation.as_ref(), batch, positions, &options, Precision::F32),
                    &of,
                );
                let operands = [
                    heads(0..n_heads, true),
                    heads(n_heads..n_heads + n_kv_heads, true),
                    heads(n_heads + n_kv_heads..n_all, false),
                ];
                let expected = attention::attention_dense(operands, bias, batch, &options).0;
                assert_close(&found, &outcome(expected, &of), &case);
            }
        }
    }
}

#[cfg(feature = "gpu")]
#[test]
fn training_attention_on_gpu_matches_the_reference() {
    on_gpu(training_attention_forward_and_backward_match_the_reference);
}

/// On devices that multiply f16 or bf16, such as Mesa's software adapter in a build for Vulkan.
#[cfg(feature = "gpu")]
#[test]
fn training_ops_by_gpu_matrix_instructions_match_the_reference() {
    ops::cube::allow_f16();
    on_gpu(|| {
        if ops::has_fast_bf16_products(&device()) {
            training_attention_forward_and_backward_match_the_reference();
            linear_forward_and_backward_match_the_reference();
            check_cross_entropy(&[([5, 16, 33], 0.0), ([70, 32, 501], 1.0)]);
        }
    });
}

#[cfg(feature = "gpu")]
#[test]
fn linear_embedding_norms_and_activations_on_gpu_match_the_reference() {
    on_gpu(linear_forward_and_backward_match_the_reference);
    on_gpu(embedding_forward_and_backward_match_the_reference);
    on_gpu(norm_forward_and_backward_match_the_reference);
    on_gpu(qk_norm_forward_and_backward_match_the_reference);
    on_gpu(activation_forward_and_backward_match_the_reference);
    on_gpu(residual_add_and_dropout_match_the_reference);
}

#[cfg(feature = "gpu")]
#[test]
fn cross_entropy_on_gpu_matches_the_reference() {
    on_gpu(cross_entropy_forward_and_backward_match_the_reference);
    on_gpu(cross_entropy_ignores_rows_of_weight_zero);
    on_gpu(cross_entropy_with_a_packed_weight_equals_the_plain_weight);
}

/// A kernel cannot report a target beyond the vocabulary, and must not compute the loss of another token instead.
#[cfg(feature = "gpu")]
#[test]
fn cross_entropy_on_gpu_of_a_target_beyond_the_vocabulary_is_huge() {
    on_gpu(|| {
        let (hidden, (held, _)) = (leaf(1, [3, 4], 1.0), weight(2, [5, 4]));
        let options = LossOptions { softcap: None, z_loss: 0.0 };
        let loss = |ids: [i32; 3]| {
            let ids = Tensor::<1, Int>::from_ints(ids, &device());
            values(linear_cross_entropy(hidden.clone(), (&held, None), options, ids.into()).cross_entropy)[0]
        };
        assert!(loss([0, 4, 1]) < 10.0);
        assert!(loss([0, 5, 1]) > 1e37);
    });
}

#[test]
fn adamw_matches_the_reference() {
    let plain = |seed: u64, n: usize| Tensor::<1>::from_data(random(seed, n).as_slice(), &Device::flex());
    for n in [1, 17, 40_000] {
        for (n_updates, weight_decay) in [(1, 0.0), (7, 0.1)] {
            let step = AdamWStep { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, n_updates };
            let moments = || [plain(3, n), plain(4, n).square()];
            let (value, [first, second]) = adamw(plain(1, n), plain(2, n), Some(moments()), step);
            let (expected, of_moments) = adamw_reference(plain(1, n), plain(2, n), moments(), step);
            let [expected_first, expected_second] = of_moments.map(values);
            let expected = [values(expected), expected_first, expected_second];
            assert_close(&[values(value), values(first), values(second)], &expected, &format!("{n} values"));
        }
    }
}

#[test]
fn muon_matches_the_reference() {
    let plain = |seed: u64, n: usize| Tensor::<1>::from_data(random(seed, n).as_slice(), &Device::flex());
    for (rows, width) in [(vec![1], 1), (vec![5, 3, 3], 7), (vec![40], 24), (vec![24], 40), (vec![130, 130], 100)] {
        for (nesterov, weight_decay, is_first) in [(true, 0.0, true), (false, 0.1, false), (true, 0.1, false)] {
            let n = rows.iter().sum::<usize>() * width;
            let step =
                MuonStep { lr: 0.02, momentum: 0.9, nesterov, weight_decay, iterations: 5, rows: rows.clone(), width };
            let momentum = || if is_first { plain(2, n).zeros_like() } else { plain(3, n) };
            let found = muon(plain(1, n), plain(2, n), (!is_first).then(momentum), &step);
            let expected = muon_reference(plain(1, n), plain(2, n), momentum(), &step);
            let what = format!("{rows:?} x {width}, {nesterov}, {weight_decay}");
            assert_close(&[found.0, found.1].map(values), &[expected.0, expected.1].map(values), &what);
        }
    }
}

/// Muon's update has singular values near 1 for any gradient.
#[test]
fn muon_update_has_mean_squared_singular_value_near_one() {
    for [n_rows, width] in [[8, 24], [24, 8], [16, 16], [64, 200]] {
        let n = n_rows * width;
        let gradient = Tensor::<1>::from_data(random(5, n).as_slice(), &Device::flex());
        let step = MuonStep {
            lr: 1.0,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            iterations: 10,
            rows: vec![n_rows],
            width,
        };
        let (value, _) = muon(gradient.zeros_like(), gradient, None, &step);
        // The squared singular values are within 0.7^2 and 1.2^2, and their sum is that of all squares.
        let scale = (n_rows as f32 / width as f32).max(1.0);
        let sum: f32 = values(value).iter().map(|x| x * x / scale).sum();
        let mean = sum / n_rows.min(width) as f32;
        assert!((0.45..1.5).contains(&mean), "{n_rows} x {width}: {mean}");
    }
}

#[test]
fn gradient_clipping_matches_the_reference() {
    let plain = |seed: u64, n: usize| Tensor::<1>::from_data(random(seed, n).as_slice(), &Device::flex());
    let gradients = || vec![plain(1, 1), plain(2, 33), plain(3, 40_000), plain(4, 0)];
    for max_norm in [0.0, 0.5, 1e4] {
        let (norm, clipped) = clip_norm(gradients(), max_norm);
        let (expected_norm, expected) = clip_norm_reference(gradients(), max_norm);
        let all = |norm: Tensor<1>, clipped: Vec<Tensor<1>>| -> Vec<_> {
            [norm].into_iter().chain(clipped).map(values).filter(|values| !values.is_empty()).collect()
        };
        assert_close(&all(norm, clipped), &all(expected_norm, expected), &format!("at most {max_norm}"));
    }
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
        alibi_slopes: None,
    };
    let attended = |last: f32| {
        let mut qkv = random(7, 10 * 12);
        qkv[6 * 12 + 4..7 * 12].fill(last);
        let qkv = Tensor::<2>::from_data(TensorData::new(qkv, [10, 12]), &Device::flex());
        values(rope_and_attend(qkv, None, 1, None, &options, Precision::F32))
    };
    let (found, expected) = (attended(f32::INFINITY), attended(1.0));
    for (row, (found, expected)) in found.chunks(4).zip(expected.chunks(4)).enumerate() {
        let is_same = found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6);
        assert_eq!(is_same, !(6..9).contains(&row), "row {row}: {found:?}, {expected:?}");
    }
}
