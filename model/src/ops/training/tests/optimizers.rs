//! Updates of parameters, and clipping of gradients.

use super::*;
use crate::ops::{
    AdamWStep, MuonParam, MuonStep, adamw, adamw::adamw_reference, clip::clip_norm_reference, clip_norm, clip_part,
    muon, muon::muon_reference, square_sums,
};

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
            let step = MuonStep { lr: 0.02, momentum: 0.9, nesterov, weight_decay, iterations: 5 };
            let param = |seed: u64| MuonParam {
                value: plain(seed, n),
                gradient: plain(seed + 1, n),
                momentum: (!is_first).then(|| plain(seed + 2, n)),
                rows: rows.clone(),
                width,
            };
            // Two, each with the results of its own matrices.
            let found = muon([1, 4].map(param).to_vec(), &step);
            assert_eq!(found.len(), 2);
            for (found, seed) in found.into_iter().zip([1, 4]) {
                let expected = muon_reference(param(seed), &step);
                let what = format!("{rows:?} x {width}, {nesterov}, {weight_decay}");
                assert_close(&[found.0, found.1].map(values), &[expected.0, expected.1].map(values), &what);
            }
        }
    }
}

/// Muon's update has singular values near 1 for any gradient.
#[test]
fn muon_update_has_mean_squared_singular_value_near_one() {
    for [n_rows, width] in [[8, 24], [24, 8], [16, 16], [64, 200]] {
        let n = n_rows * width;
        let gradient = Tensor::<1>::from_data(random(5, n).as_slice(), &Device::flex());
        let step = MuonStep { lr: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0, iterations: 10 };
        let value = gradient.zeros_like();
        let param = MuonParam { value, gradient, momentum: None, rows: vec![n_rows], width };
        let (value, _) = muon(vec![param], &step).remove(0);
        // The squared singular values are within 0.7^2 and 1.2^2, and their sum is that of all squares.
        let scale = (n_rows as f32 / width as f32).max(1.0);
        let sum: f32 = values(value).iter().map(|x| x * x / scale).sum();
        let mean = sum / n_rows.min(width) as f32;
        assert!((0.45..1.5).contains(&mean), "{n_rows} x {width}: {mean}");
    }
}

#[test]
fn gradients_clipped_in_parts_have_the_bits_of_gradients_clipped_together() {
    let device = Device::flex();
    let gradients = || -> Vec<_> {
        [1, 33, 40_000, 0].map(|n| Tensor::<1>::from_data(random(n as u64, n).as_slice(), &device)).into()
    };
    let squares: Vec<f64> = gradients().iter().flat_map(|gradient| square_sums(gradient).unwrap()).collect();
    for max_norm in [0.0, 0.5, 1e4] {
        let (norm, clipped) = clip_norm(gradients(), max_norm);
        let mut parts = Vec::new();
        for part in [0..1, 1..3, 3..4] {
            let (of_part, clipped) = clip_part(&squares, gradients().drain(part).collect(), max_norm, &device).unwrap();
            assert_eq!(values(norm.clone()), [of_part]);
            parts.extend(clipped);
        }
        assert_eq!(clipped.len(), parts.len());
        clipped.into_iter().zip(parts).for_each(|(all, part)| assert_eq!(values(all), values(part)));
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
