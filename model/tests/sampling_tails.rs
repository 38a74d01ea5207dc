//! Samplers that cut the tail of a distribution or bend it, against hand-computed numbers.
#![expect(clippy::unwrap_used, reason = "tests")]

use hearth_model::{
    TokenId,
    decode::sampling::{ChainStep, Sampler, SamplingParams, Smoothing},
};
use proptest::prelude::*;

use crate::sampling::{assert_close, assert_logits, distribution, four_logits};

fn kept(params: SamplingParams) -> Vec<TokenId> {
    distribution(params, &four_logits()).iter().map(|pair| pair.0).collect()
}

#[test]
fn epsilon_cutoff_keeps_tokens_above_a_probability_and_the_most_likely() {
    let params = |epsilon_cutoff| SamplingParams { epsilon_cutoff, ..SamplingParams::default() };
    assert_close(&distribution(params(0.2), &four_logits()), &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
    assert_eq!(kept(params(0.09)), [0, 1, 2, 3]);
    assert_eq!(kept(params(0.6)), [0]);
    // All of the most likely ones stay.
    assert_eq!(distribution(params(0.9), &[1.0, 0.0, 1.0]).len(), 2);
}

/// The entropy is 1.208 nats, and `exp(-1.208)` is 0.2988.
#[test]
fn eta_cutoff_is_lower_where_the_entropy_is_high() {
    let params = |eta_cutoff| SamplingParams { eta_cutoff, ..SamplingParams::default() };
    // sqrt(0.2) * 0.2988 = 0.1336, below 0.2.
    assert_eq!(kept(params(0.2)), [0, 1, 2]);
    // sqrt(0.12) * 0.2988 = 0.1035.
    assert_eq!(kept(params(0.12)), [0, 1, 2]);
    // sqrt(0.09) * 0.2988 = 0.0896, just below 0.09.
    assert_eq!(kept(params(0.09)), [0, 1, 2, 3]);
    assert_eq!(kept(params(1.0)), [0], "0.2988");
}

/// Second differences: 0.15 and 0.05, three quarters and one quarter of their sum.
#[test]
fn tail_free_sampling_cuts_where_the_curve_has_bent() {
    let params = |tfs| SamplingParams { tfs, ..SamplingParams::default() };
    assert_eq!(kept(params(0.7)), [0]);
    assert_eq!(kept(params(0.8)), [0, 1]);
    assert_eq!(kept(params(0.99)), [0, 1]);
    assert_eq!(kept(params(1.0)), [0, 1, 2, 3], "off");
    assert_eq!(distribution(params(0.5), &[1.0, 2.0]).len(), 1, "two tokens have no bend");
    // A straight line never bends, so all but the last remain below the centre of no bend at all.
    let line = [0.5_f32, 0.3125, 0.125, 0.0625].map(f32::ln);
    assert_eq!(distribution(params(0.5), &line).len(), 2, "differences 0, 0.125: the second has all of it");
}

#[test]
fn top_a_follows_the_square_of_the_largest_probability() {
    let params = |top_a| SamplingParams { top_a, ..SamplingParams::default() };
    // 0.25 times 0.5, 0.9 and 0.3.
    assert_eq!(kept(params(0.5)), [0, 1, 2], "0.125");
    assert_eq!(kept(params(0.9)), [0, 1], "0.225");
    assert_eq!(kept(params(0.3)), [0, 1, 2, 3], "0.075");
}

#[test]
fn smoothing_bends_the_distances_from_the_largest_logit() {
    let params = |curve, temperature| SamplingParams {
        smoothing: Smoothing { factor: 0.5, curve },
        temperature,
        ..SamplingParams::default()
    };
    let logits = [2.0, 1.0, 0.0, f32::NEG_INFINITY];
    let new = |params| Sampler::new(params, 0, &[]);
    // 0.5 * d^2.
    assert_logits(&new(params(1.0, 1.0)), &logits[..3], &[0.0, -0.5, -2.0]);
    // 0.5 * (d^2 / 2 + d^3 / 2).
    assert_logits(&new(params(2.0, 1.0)), &logits[..3], &[0.0, -0.5, -3.0]);
    // 0.5 * d^3.
    assert_logits(&new(params(3.0, 1.0)), &logits[..3], &[0.0, -0.5, -4.0]);
    // The temperature comes first: distances of 2 and 4.
    assert_logits(&new(params(1.0, 0.5)), &logits[..3], &[0.0, -2.0, -8.0]);
    assert_eq!(distribution(params(1.0, 1.0), &logits).len(), 3, "excluded tokens stay so");
}

prop_compose! {
    /// Some samplers, each on in about half of the cases, in any order.
    fn some_params()(
        cuts in prop::collection::vec(prop::option::of(0.0..1.0_f32), 8),
        temperature in prop_oneof![Just(1.0), 1e-6..2.0_f32],
        smoothing in prop_oneof![Just(0.0), 0.0..10.0_f32, Just(f32::MAX)],
        curve in 1.0..3.0_f32,
        top_k in 0..20_usize,
        ngram in 0..4_usize,
        bonus in prop_oneof![Just(1.0), 1e-3..1e3_f32],
        samplers in Just(ChainStep::DEFAULT_ORDER.to_vec()).prop_shuffle(),
    ) -> SamplingParams {
        let or = |at: usize, off: f32| cuts[at].unwrap_or(off);
        SamplingParams {
            temperature,
            top_k,
            top_p: or(0, 1.0).max(f32::MIN_POSITIVE),
            min_p: or(1, 0.0),
            typical_p: or(2, 1.0).max(f32::MIN_POSITIVE),
            epsilon_cutoff: or(3, 0.0),
            eta_cutoff: or(4, 0.0),
            tfs: or(5, 1.0),
            top_a: or(6, 0.0),
            top_n_sigma: or(7, 0.0),
            smoothing: Smoothing { factor: smoothing, curve },
            no_repeat_ngram_size: ngram,
            prompt_bonus: bonus,
            samplers,
            ..SamplingParams::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn samplers_in_any_combination_leave_a_distribution(
        params in some_params(),
        logits in prop::collection::vec(prop_oneof![-20.0..20.0_f32, Just(f32::NEG_INFINITY), -1e38..1e38_f32], 12..60),
        prompt in prop::collection::vec(0..8_u32, 0..20),
    ) {
        let mut logits = logits;
        // No sequence of the prompt has it.
        logits[9] = 0.5;
        params.validate(logits.len()).unwrap();
        let mut sampler = Sampler::new(params, 0, &prompt);
        let left = sampler.distribution(&logits).unwrap();
        prop_assert!(!left.is_empty());
        let total: f64 = left.iter().map(|pair| f64::from(pair.1)).sum();
        prop_assert!((total - 1.0).abs() < 1e-4, "{total}");
        let id = sampler.sample(&logits, 0).unwrap();
        prop_assert!(left.iter().any(|pair| pair.0 == id));
    }
}
