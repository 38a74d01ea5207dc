//! Losses over the vocabulary: cross entropy and KL divergence.

use super::*;
use crate::ops::{
    Targets, cross_entropy::linear_cross_entropy_reference, divergence::linear_divergence_reference, linear_divergence,
};

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
pub(super) fn check_cross_entropy(cases: &[([usize; 3], f32)]) {
    for &([n_rows, d_model, vocab_size], factor) in cases {
        // With logits of 1e4 a soft cap saturates: its derivative is only rounding error, which a z-loss would amplify, and label
        // smoothing too.
        let (z_capped, smoothing_capped) = if factor > 1.0 { (0.0, 0.0) } else { (0.1, 0.3) };
        for (has_bias, softcap, z_loss, label_smoothing, has_weights) in [
            (false, None, 0.0, 0.0, false),
            (true, Some(2.0), z_capped, 0.0, false),
            (true, None, 0.0, 0.0, false),
            (false, None, 1e-3, 0.0, false),
            (true, None, 1e-3, 0.0, true),
            (true, None, 0.0, 0.1, true),
            (false, Some(2.0), z_capped, smoothing_capped, false),
        ] {
            let options = LossOptions { softcap, z_loss, label_smoothing };
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
        let options = LossOptions { softcap, z_loss: 1e-3, ..LossOptions::default() };
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
    let options = LossOptions { softcap: Some(3.0), z_loss: 1e-3, ..LossOptions::default() };
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
    let options = LossOptions { z_loss: 0.1, ..LossOptions::default() };
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
    let options = LossOptions { z_loss: 0.1, ..LossOptions::default() };
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
fn cross_entropy_on_gpu_matches_the_reference() {
    on_gpu(cross_entropy_forward_and_backward_match_the_reference);
    on_gpu(cross_entropy_ignores_rows_of_weight_zero);
    on_gpu(cross_entropy_with_a_packed_weight_equals_the_plain_weight);
}

/// A kernel cannot report a target beyond the vocabulary, and must not compute the loss of another token instead.
#[test]
fn cross_entropy_on_gpu_of_a_target_beyond_the_vocabulary_is_huge() {
    on_gpu(|| {
        let (hidden, (held, _)) = (leaf(1, [3, 4], 1.0), weight(2, [5, 4]));
        let options = LossOptions::default();
        let loss = |ids: [i32; 3]| {
            let ids = Tensor::<1, Int>::from_ints(ids, &device());
            values(linear_cross_entropy(hidden.clone(), (&held, None), options, ids.into()).cross_entropy)[0]
        };
        assert!(loss([0, 4, 1]) < 10.0);
        assert!(loss([0, 5, 1]) > 1e37);
    });
}
