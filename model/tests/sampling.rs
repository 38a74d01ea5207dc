//! The chain of logits processors against hand-computed numbers.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use hearth_model::{
    TokenId,
    decode::sampling::{ChainStep, Dry, Mirostat, MirostatVersion, Sampler, SamplingParams, Xtc, token_logprobs},
    error::Error,
};
use proptest::prelude::*;

use crate::sampling_statistics::chi_squared;

/// Probabilities 0.5, 0.25, 0.15 and 0.1 as logits.
pub(crate) fn four_logits() -> Vec<f32> {
    [0.5_f32, 0.25, 0.15, 0.1].map(f32::ln).to_vec()
}

pub(crate) fn distribution(params: SamplingParams, logits: &[f32]) -> Vec<(TokenId, f32)> {
    Sampler::new(params, 0, &[]).distribution(logits).unwrap()
}

pub(crate) fn assert_close(given: &[(TokenId, f32)], expected: &[(TokenId, f32)]) {
    let ids = |pairs: &[(TokenId, f32)]| pairs.iter().map(|pair| pair.0).collect::<Vec<_>>();
    assert_eq!(ids(given), ids(expected), "{given:?}, expected {expected:?}");
    for (given, expected) in given.iter().zip(expected) {
        assert!((given.1 - expected.1).abs() < 1e-6, "{given:?}, expected {expected:?}");
    }
}

#[test]
fn default_sampling_params_leave_probabilities_unchanged() {
    let params = SamplingParams::default();
    assert_close(&distribution(params, &four_logits()), &[(0, 0.5), (1, 0.25), (2, 0.15), (3, 0.1)]);
}

#[test]
fn temperature_raises_probabilities_to_its_inverse() {
    // Squares: 0.25, 0.0625, 0.0225, 0.01, of 0.345 in all.
    let params = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
    let expected = [(0, 0.25 / 0.345), (1, 0.0625 / 0.345), (2, 0.0225 / 0.345), (3, 0.01 / 0.345)];
    assert_close(&distribution(params, &four_logits()), &expected);
}

#[test]
fn tiny_temperatures_before_penalties_keep_only_the_most_likely_token() {
    for temperature in [1e-20, 1e-38, 1e-45] {
        let samplers = vec![ChainStep::Temperature, ChainStep::Penalties];
        let params = SamplingParams { temperature, samplers, presence_penalty: 1.0, ..SamplingParams::default() };
        let mut sampler = Sampler::new(params, 0, &[2]);
        let logits: Vec<f32> = four_logits().iter().map(|logit| 20.0 + 3.0 * logit).collect();
        for position in 0..3 {
            sampler.accept(2);
            assert_eq!(sampler.sample(&logits, position).unwrap(), 0, "{temperature}");
        }
    }
}

#[test]
fn top_k_keeps_the_k_most_likely_tokens() {
    let params = |top_k| SamplingParams { top_k, ..SamplingParams::default() };
    assert_close(&distribution(params(2), &four_logits()), &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
    assert_eq!(distribution(params(9), &four_logits()).len(), 4);
    // Among equals, the lowest ids stay.
    assert_close(&distribution(params(2), &[0.0; 5]), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn top_p_keeps_the_token_that_crosses_the_threshold() {
    let kept = |top_p| distribution(SamplingParams { top_p, ..SamplingParams::default() }, &four_logits()).len();
    assert_eq!([0.01, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 1.0].map(kept), [1, 1, 2, 2, 3, 3, 4, 4]);
    // A mass equal to p is enough: halves and quarters are exact.
    let logits = [0.5_f32, 0.25, 0.25].map(f32::ln);
    let exact = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
    assert_close(&distribution(exact, &logits), &[(0, 1.0)]);
}

#[test]
fn top_p_applies_to_the_probabilities_left_by_top_k() {
    // Of 0.5 and 0.25, the first is two thirds: enough for 0.6, though it is only half of all.
    let params = SamplingParams { top_k: 2, top_p: 0.6, ..SamplingParams::default() };
    assert_close(&distribution(params, &four_logits()), &[(0, 1.0)]);
}

#[test]
fn min_p_is_relative_to_the_most_likely_token() {
    // The bar is 0.26 * 0.5 = 0.13: 0.15 passes, 0.1 does not.
    let params = |min_p| SamplingParams { min_p, ..SamplingParams::default() };
    assert_close(&distribution(params(0.26), &four_logits()), &[(0, 0.5 / 0.9), (1, 0.25 / 0.9), (2, 0.15 / 0.9)]);
    assert_close(&distribution(params(1.0), &four_logits()), &[(0, 1.0)]);
}

/// `exp` of the expected logits, as probabilities, is what the sampler should give.
pub(crate) fn assert_logits(sampler: &Sampler, logits: &[f32], expected: &[f32]) {
    let total: f32 = expected.iter().map(|logit| logit.exp()).sum();
    let mut given = sampler.distribution(logits).unwrap();
    given.sort_unstable_by_key(|pair| pair.0);
    let expected: Vec<(TokenId, f32)> = expected.iter().zip(0..).map(|(logit, id)| (id, logit.exp() / total)).collect();
    assert_close(&given, &expected);
}

#[test]
fn penalties_give_hand_computed_logits() {
    let logits = [2.0, -1.0, 0.5, 1.0];
    let repetition = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() };
    let mut sampler = Sampler::new(repetition, 0, &[0, 1, 0]);
    assert_logits(&sampler, &logits, &[1.0, -2.0, 0.5, 1.0]);
    // A token of both the prompt and the output is penalized once.
    sampler.accept(0);
    sampler.accept(2);
    assert_logits(&sampler, &logits, &[1.0, -2.0, 0.25, 1.0]);

    let additive = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..SamplingParams::default() };
    let mut sampler = Sampler::new(additive, 0, &[1]);
    assert_logits(&sampler, &logits, &logits);
    [0, 0, 0, 3].into_iter().for_each(|id| sampler.accept(id));
    assert_logits(&sampler, &logits, &[2.0 - 0.5 - 0.75, -1.0, 0.5, 1.0 - 0.5 - 0.25]);
}

#[test]
fn logit_bias_is_applied_before_penalties() {
    let params = SamplingParams {
        logit_bias: Arc::new([(0, -3.0), (3, 1.0), (99, 5.0)].into()),
        repetition_penalty: 2.0,
        ..SamplingParams::default()
    };
    // 2 - 3 = -1, then times 2.
    assert_logits(&Sampler::new(params, 0, &[0]), &[2.0, -1.0, 0.5, 1.0], &[-2.0, -1.0, 0.5, 2.0]);
}

#[test]
fn tokens_with_logits_of_negative_infinity_are_never_sampled() {
    let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, -200.0];
    for temperature in [0.0, f32::MIN_POSITIVE, 1.0, f32::MAX] {
        let params = SamplingParams {
            temperature,
            logit_bias: Arc::new([(0, 100.0)].into()),
            repetition_penalty: 0.5,
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(params, 0, &[2]);
        for position in 0..500 {
            let id = sampler.sample(&logits, position).unwrap();
            assert!(id == 1 || id == 3, "temperature {temperature}: {id}");
        }
    }
}

#[test]
fn sampling_from_nan_infinite_or_empty_logits_is_an_error() {
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        let mut sampler = Sampler::new(params, 0, &[]);
        for logits in [&[0.0, f32::NAN] as &[f32], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 3], &[]] {
            let error = sampler.sample(logits, 0).unwrap_err();
            assert!(matches!(error, Error::Logits { .. }), "{error}");
        }
    }
    let error = Sampler::new(SamplingParams::greedy(), 0, &[]).sample(&[0.0, f32::NAN], 0).unwrap_err();
    assert!(
        error.to_string().starts_with("the model's logits are invalid: token 1 has the logit NaN\nhint: "),
        "{error}"
    );
}

#[test]
fn huge_logits_do_not_overflow_when_sampling() {
    let params = SamplingParams {
        temperature: f32::MIN_POSITIVE,
        logit_bias: Arc::new([(1, 100.0)].into()),
        repetition_penalty: f32::MIN_POSITIVE,
        ..SamplingParams::default()
    };
    assert_eq!(Sampler::new(params, 0, &[1]).sample(&[0.0, f32::MAX, f32::MIN], 0).unwrap(), 1);
}

/// Surprises of 0.5, 0.25, 0.15 and 0.1 in nats: 0.693, 1.386, 1.897, 2.303. Their mean, the entropy: 1.208.
#[test]
fn typical_p_keeps_tokens_nearest_to_the_entropy() {
    let kept = |typical_p| {
        let params = SamplingParams { typical_p, ..SamplingParams::default() };
        distribution(params, &four_logits()).iter().map(|pair| pair.0).collect::<Vec<_>>()
    };
    // Distances: 0.515, 0.178, 0.689, 1.095. So the order is 1, 0, 2, 3, with sums of 0.25, 0.75, 0.9 and 1.
    assert_eq!(kept(0.2), [1]);
    assert_eq!(kept(0.26), [0, 1]);
    assert_eq!(kept(0.74), [0, 1]);
    assert_eq!(kept(0.76), [0, 1, 2]);
    assert_eq!(kept(1.0), [0, 1, 2, 3]);
    let params = SamplingParams { typical_p: 0.74, ..SamplingParams::default() };
    assert_close(&distribution(params, &four_logits()), &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
}

#[test]
fn top_n_sigma_counts_standard_deviations_from_the_largest_logit() {
    // Mean 3, variance (25 + 1 + 1 + 9 + 4) / 5 = 8, deviation 2.828.
    let logits = [8.0, 4.0, 2.0, 0.0, 1.0];
    let kept = |top_n_sigma, temperature| {
        let params = SamplingParams { top_n_sigma, temperature, ..SamplingParams::default() };
        distribution(params, &logits).iter().map(|pair| pair.0).collect::<Vec<_>>()
    };
    assert_eq!(kept(1.0, 1.0), [0]);
    // 8 - 1.5 * 2.828 = 3.757, 8 - 2.2 * 2.828 = 1.777, 8 - 2.5 * 2.828 = 0.929.
    assert_eq!(kept(1.5, 1.0), [0, 1]);
    assert_eq!(kept(2.2, 1.0), [0, 1, 2]);
    assert_eq!(kept(2.5, 1.0), [0, 1, 2, 4]);
    // The temperature makes no difference to what is kept.
    assert_eq!(kept(2.5, 7.0), [0, 1, 2, 4]);
    // Tokens with a logit of -infinity do not count.
    let ruled_out = [8.0, 4.0, f32::NEG_INFINITY, 2.0, 0.0, 1.0];
    let params = SamplingParams { top_n_sigma: 1.5, ..SamplingParams::default() };
    assert_eq!(distribution(params, &ruled_out).len(), 2);
}

#[test]
fn xtc_removes_all_top_tokens_but_the_least_likely() {
    let params =
        |probability, threshold| SamplingParams { xtc: Xtc { probability, threshold }, ..SamplingParams::default() };
    // Above 0.14 are 0.5, 0.25 and 0.15; the last of them stays.
    assert_close(&distribution(params(1.0, 0.14), &four_logits()), &[(2, 0.6), (3, 0.4)]);
    // A threshold that one token reaches, or none, changes nothing.
    for threshold in [0.3, 0.6] {
        assert_eq!(distribution(params(1.0, threshold), &four_logits()).len(), 4);
    }
    // Every fourth time: 0.75 * [0.5, 0.25, 0.15, 0.1] + 0.25 * [0, 0, 0.6, 0.4].
    let mixed = [(0, 0.375), (2, 0.2625), (1, 0.1875), (3, 0.175)];
    assert_close(&distribution(params(0.25, 0.14), &four_logits()), &mixed);
    // The coin is independent of the draw: the frequencies are those of the mixture.
    let mut sampler = Sampler::new(params(0.25, 0.14), 0, &[]);
    let mut counts = [0; 4];
    for position in 0..40_000 {
        counts[sampler.sample(&four_logits(), position).unwrap() as usize] += 1;
    }
    // 3 degrees of freedom: a right sampler exceeds 36 in fewer than 1 of 10^7 cases.
    assert!(chi_squared(&counts, &[0.375, 0.1875, 0.2625, 0.175]) < 36.0, "{counts:?}");
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    let params = |dynatemp_range, dynatemp_exponent| SamplingParams {
        dynatemp_range,
        dynatemp_exponent,
        ..SamplingParams::default()
    };
    // Equal probabilities have all the entropy there is: temperature 1 + 0.5, which keeps them equal.
    assert_close(&distribution(params(0.5, 1.0), &[3.0; 4]), &[(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]);
    // 0.9 and 0.1: entropy 0.3251 of 0.6931 nats, a share of 0.4690. Between 0.5 and 1.5 that is 0.9690, and with the
    // exponent 2 it is 0.7200.
    let logits = [0.9_f32.ln(), 0.1_f32.ln()];
    for (exponent, temperature) in [(1.0, 0.968_996), (2.0, 0.719_957)] {
        let given = distribution(params(0.5, exponent), &logits);
        let odds = 9.0_f32.powf(1.0 / temperature);
        assert!((given[0].1 / given[1].1 / odds - 1.0).abs() < 1e-4, "{given:?}, expected odds of {odds}");
    }
    // A range beyond the temperature stops at 0: the surest distribution becomes greedy.
    assert_eq!(distribution(params(2.0, 1.0), &[50.0, -50.0]).len(), 1);
}

#[test]
fn mirostat_2_bounds_the_surprise_and_adapts_to_it() {
    let mirostat = Mirostat { version: MirostatVersion::V2, tau: 1.21, eta: 0.5 };
    let params = SamplingParams { mirostat: Some(mirostat), ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, 0, &[]);
    let kept = |sampler: &Sampler| sampler.distribution(&four_logits()).unwrap();
    // Surprises in bits: 1, 2, 2.737, 3.322. The bound starts at 2 * 1.21 = 2.42.
    assert_close(&kept(&sampler), &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
    // Token 0 has 1 bit, 0.21 below the target: the bound rises by 0.105, token 1 (2 bits) takes it down by 0.395.
    let mut bound = 2.42;
    for position in 0..200 {
        let id = sampler.sample(&four_logits(), position).unwrap();
        sampler.accept(id);
        bound -= 0.5 * ([1.0, 2.0, -(0.15_f64.log2()), -(0.1_f64.log2())][id as usize] - 1.21);
        let expected = [1.0, 2.0, 2.737, 3.322].iter().filter(|&&surprise| surprise <= bound).count().max(1);
        assert_eq!(kept(&sampler).len(), expected, "bound {bound}");
    }
}

#[test]
fn mirostat_1_keeps_the_computed_k_of_a_zipf_distribution() {
    // Rank i has the probability i^-2 / 1.49139: the exponent is found to be 2. With tau = 1 the bound is 2 bits, and
    // k = sqrt(1 * 2^2 / (1 - 8^-1)) = sqrt(4.571) = 2.14, which rounds to 2.
    let logits: Vec<f32> = (1..=8).map(|rank| -2.0 * (rank as f32).ln()).collect();
    let kept = |tau| {
        let mirostat = Mirostat { version: MirostatVersion::V1, tau, eta: 0.1 };
        let params = SamplingParams { mirostat: Some(mirostat), ..SamplingParams::default() };
        distribution(params, &logits)
    };
    // 1 and 1/4 remain.
    assert_close(&kept(1.0), &[(0, 0.8), (1, 0.2)]);
    // 2^(2 * 1.5) = 8: sqrt(9.14) = 3.02. 1, 1/4 and 1/9 sum to 49/36.
    assert_close(&kept(1.5), &[(0, 36.0 / 49.0), (1, 9.0 / 49.0), (2, 4.0 / 49.0)]);
    assert_eq!(kept(9.0).len(), 8);
    assert_eq!(kept(0.0).len(), 1);
    // One token alone has no exponent.
    let alone = SamplingParams {
        mirostat: Some(Mirostat { version: MirostatVersion::V1, ..Mirostat::default() }),
        ..SamplingParams::default()
    };
    assert_close(&distribution(alone, &[1.0, f32::NEG_INFINITY]), &[(0, 1.0)]);
}

#[test]
fn repeat_last_n_limits_the_tokens_that_are_penalized() {
    let logits = [2.0, -1.0, 0.5, 1.0];
    let params = |n| SamplingParams { repetition_penalty: 2.0, repeat_last_n: Some(n), ..SamplingParams::default() };
    let mut sampler = Sampler::new(params(2), 0, &[0, 1, 3]);
    assert_logits(&sampler, &logits, &[2.0, -2.0, 0.5, 0.5]);
    sampler.accept(3);
    assert_logits(&sampler, &logits, &[2.0, -1.0, 0.5, 0.5]);
    assert_logits(&Sampler::new(params(0), 0, &[0, 1]), &logits, &logits);
    assert_logits(&Sampler::new(params(9), 0, &[0, 1]), &logits, &[1.0, -2.0, 0.5, 1.0]);
}

#[test]
fn dry_penalty_grows_with_the_length_of_the_repetition() {
    let logits = [0.0; 6];
    let params = |dry: Dry| SamplingParams { dry, ..SamplingParams::default() };
    let dry = Dry { multiplier: 0.5, base: 2.0, ..Dry::default() };
    // The text ends in 1 2 3, which 4 followed, and in 3, which 5 followed: one token is short of the two allowed.
    let text = [1, 2, 3, 4, 3, 5, 1, 2, 3];
    let sampler = |dry: Dry| Sampler::new(params(dry), 0, &text);
    assert_logits(&sampler(dry.clone()), &logits, &[0.0, 0.0, 0.0, 0.0, -0.5 * 2.0, 0.0]);
    let one_is_enough = Dry { allowed_length: 1, ..dry.clone() };
    assert_logits(&sampler(one_is_enough), &logits, &[0.0, 0.0, 0.0, 0.0, -0.5 * 4.0, -0.5]);
    // Behind a breaker nothing is a repetition: 2 3 is left, then nothing.
    let broken = |breaker| Dry { sequence_breakers: Arc::new([breaker].into()), ..dry.clone() };
    assert_logits(&sampler(broken(1)), &logits, &[0.0, 0.0, 0.0, 0.0, -0.5, 0.0]);
    for breaker in [2, 3, 4] {
        assert_logits(&sampler(broken(breaker)), &logits, &logits);
    }
    // The first passage is out of sight, or half of it.
    let near = |n| Dry { penalty_last_n: Some(n), ..dry.clone() };
    assert_logits(&sampler(near(7)), &logits, &logits);
    assert_logits(&sampler(near(8)), &logits, &[0.0, 0.0, 0.0, 0.0, -0.5, 0.0]);
    // The output counts, and the longest of several repetitions decides.
    let mut grown = sampler(dry.clone());
    [4, 1, 2, 3].into_iter().for_each(|id| grown.accept(id));
    // 1 2 3 came with 4 twice (3 tokens), the last time 3 4 1 2 3 is no repetition of 5 1 2 3.
    assert_logits(&grown, &logits, &[0.0, 0.0, 0.0, 0.0, -1.0, 0.0]);
    // An absurd penalty leaves the token possible: one that is alone is still drawn.
    let absurd = Dry { multiplier: f32::MAX, base: f32::MAX, allowed_length: 1, ..dry };
    let mut sampler = Sampler::new(params(absurd), 0, &[0, 0, 0, 0]);
    assert_eq!(sampler.sample(&[1.0, f32::NEG_INFINITY], 0).unwrap(), 0);
}

#[test]
fn allowed_token_ids_and_bad_words_exclude_tokens() {
    let allowed = SamplingParams {
        allowed_token_ids: Some(Arc::new([1, 3].into())),
        logit_bias: Arc::new([(0, 100.0)].into()),
        ..SamplingParams::default()
    };
    assert_close(&distribution(allowed, &four_logits()), &[(1, 0.25 / 0.35), (3, 0.1 / 0.35)]);
    // Token 0 never, token 2 not behind 1 1.
    let bad_words = [vec![0], vec![1, 1, 2]].into();
    let mut sampler = Sampler::new(SamplingParams { bad_words, ..SamplingParams::default() }, 0, &[1, 1]);
    let all_but_0 = [(1, 0.5), (2, 0.3), (3, 0.2)];
    // The prompt is no part of a word.
    assert_close(&sampler.distribution(&four_logits()).unwrap(), &all_but_0);
    sampler.accept(1);
    assert_close(&sampler.distribution(&four_logits()).unwrap(), &all_but_0);
    sampler.accept(1);
    assert_close(&sampler.distribution(&four_logits()).unwrap(), &[(1, 0.25 / 0.35), (3, 0.1 / 0.35)]);
    sampler.accept(3);
    assert_close(&sampler.distribution(&four_logits()).unwrap(), &all_but_0);
    // Greedy sampling excludes them too.
    let greedy = SamplingParams { bad_words: [vec![0]].into(), ..SamplingParams::greedy() };
    assert_eq!(Sampler::new(greedy.clone(), 0, &[]).sample(&four_logits(), 0).unwrap(), 1);
    // Nothing left is an error that names the parameter.
    let error = Sampler::new(greedy, 0, &[]).sample(&[0.0, f32::NEG_INFINITY], 0).unwrap_err();
    assert!(matches!(error, Error::Param { name: "bad_words", .. }), "{error}");
}

#[test]
fn samplers_are_applied_in_the_given_order() {
    let with = |samplers: &[ChainStep]| SamplingParams {
        samplers: samplers.to_vec(),
        temperature: 0.5,
        top_p: 0.7,
        ..SamplingParams::default()
    };
    // Squares first: 0.25 of 0.345 is 0.72, enough alone.
    let tempered_first = with(&[ChainStep::Temperature, ChainStep::TopP]);
    assert_close(&distribution(tempered_first, &four_logits()), &[(0, 1.0)]);
    // Cut first: 0.5 and 0.25 reach 0.7, and their squares are 4 to 1.
    let cut_first = with(&[ChainStep::TopP, ChainStep::Temperature]);
    assert_close(&distribution(cut_first, &four_logits()), &[(0, 0.8), (1, 0.2)]);
    // A penalty behind the temperature acts on the logits that it left: ln 2 halves odds that were squared.
    let params = SamplingParams {
        samplers: vec![ChainStep::Temperature, ChainStep::TopK, ChainStep::Penalties],
        temperature: 0.5,
        top_k: 2,
        presence_penalty: 2.0_f32.ln(),
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, 0, &[]);
    // Token 3 is gone by then.
    [0, 3].into_iter().for_each(|id| sampler.accept(id));
    assert_close(&sampler.distribution(&four_logits()).unwrap(), &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
    // Names, llama.cpp's among them.
    assert_eq!("typ_p".parse::<ChainStep>().unwrap(), ChainStep::TypicalP);
    for step in ChainStep::DEFAULT_ORDER {
        assert_eq!(step.to_string().parse::<ChainStep>().unwrap(), step);
    }
    assert!("heat".parse::<ChainStep>().unwrap_err().to_string().ends_with("got `heat`"));
}

#[test]
fn contradicting_sampling_params_are_rejected_naming_both() {
    let default = SamplingParams::default;
    let mirostat = Some(Mirostat::default());
    let cases: [(SamplingParams, &str, &str); 10] = [
        (SamplingParams { mirostat, top_k: 5, ..default() }, "`mirostat`", "`top_k`"),
        (SamplingParams { mirostat, typical_p: 0.5, ..default() }, "`mirostat`", "`typical_p`"),
        (SamplingParams { mirostat, ..SamplingParams::greedy() }, "`mirostat`", "`temperature`"),
        (SamplingParams { dynatemp_range: 0.5, ..SamplingParams::greedy() }, "`dynatemp_range`", "`temperature`"),
        (
            SamplingParams { allowed_token_ids: Some(Arc::new([1].into())), bad_words: [vec![1]].into(), ..default() },
            "`bad_words`",
            "`allowed_token_ids`",
        ),
        (SamplingParams { samplers: Vec::new(), temperature: 0.5, ..default() }, "`samplers`", "`temperature`"),
        (SamplingParams { samplers: vec![ChainStep::TopK], min_p: 0.5, ..default() }, "`samplers`", "`min_p`"),
        (SamplingParams { samplers: vec![ChainStep::TopK; 2], ..default() }, "`samplers`", "`top_k` twice"),
        (SamplingParams { allowed_token_ids: Some(Arc::new([].into())), ..default() }, "`allowed_token_ids`", "none"),
        (SamplingParams { bad_words: [vec![]].into(), ..default() }, "`bad_words`", "empty"),
    ];
    for (params, one, other) in cases {
        let message = params.validate(10).unwrap_err().to_string();
        assert!(message.contains(one) && message.contains(other), "{message}");
    }
    // A sampler may be left out if its parameter is not set.
    assert!(SamplingParams { samplers: Vec::new(), ..default() }.validate(10).is_ok());
}

#[test]
fn logprobs_are_computed_after_sampling_params() {
    let params = SamplingParams { top_k: 2, ..SamplingParams::default() };
    let sampler = Sampler::new(params, 0, &[]);
    let given = sampler.logprobs(&four_logits(), 0, (1, 3)).unwrap();
    assert!((given.logprob - (1.0_f32 / 3.0).ln()).abs() < 1e-6);
    assert_eq!(given.rank, 2);
    assert_close(&given.top, &[(0, (2.0_f32 / 3.0).ln()), (1, (1.0_f32 / 3.0).ln())]);
    assert_eq!(given.top[1].1.to_bits(), given.logprob.to_bits());
    assert_eq!(sampler.logprobs(&four_logits(), 0, (3, 0)).unwrap().logprob, f32::NEG_INFINITY);
    assert_eq!(token_logprobs(&four_logits(), 2, 0).rank, 3);
    assert_eq!(token_logprobs(&[0.0; 3], 2, 0).rank, 1);
}

proptest! {
    #[test]
    fn top_k_of_one_is_argmax(
        logits in prop::collection::vec(prop_oneof![Just(0.0), Just(-0.0), Just(1.0), -30.0..30.0_f32], 1..300),
        temperature in 0.001..5.0_f32,
        seed: u64,
    ) {
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let expected = logits.iter().position(|&logit| logit == largest).unwrap() as TokenId;
        let one = SamplingParams { top_k: 1, temperature, seed, ..SamplingParams::default() };
        let sample = |params| Sampler::new(params, 0, &[]).sample(&logits, 7).unwrap();
        prop_assert_eq!(sample(one), expected);
        prop_assert_eq!(sample(SamplingParams::greedy()), expected);
    }

    /// Against the definition: sort all, sum up, cut.
    #[test]
    fn top_p_keeps_the_smallest_set_reaching_the_threshold(
        logits in prop::collection::vec(-12.0..12.0_f32, 1..2000),
        top_p in 0.01..1.0_f32,
    ) {
        let all = distribution(SamplingParams::default(), &logits);
        let kept = distribution(SamplingParams { top_p, ..SamplingParams::default() }, &logits);
        let mass = |n: usize| all[..n].iter().map(|pair| f64::from(pair.1)).sum::<f64>();
        prop_assert!(kept.iter().zip(&all).all(|(kept, all)| kept.0 == all.0), "the most likely ones, in order");
        // The bounds leave room for the rounding of the probabilities in `all`.
        prop_assert!(mass(kept.len()) >= f64::from(top_p) - 1e-5);
        prop_assert!(mass(kept.len() - 1) < f64::from(top_p) + 1e-5);
    }

    #[test]
    fn sampled_tokens_are_in_the_reported_distribution(
        logits in prop::collection::vec(prop_oneof![9 => -20.0..20.0_f32, 1 => Just(f32::NEG_INFINITY)], 1..600),
        temperature in 0.05..3.0_f32,
        top_k in 0..50_usize,
        top_p in 0.05..1.0_f32,
        min_p in 0.0..1.0_f32,
        seed: u64,
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let params = SamplingParams { temperature, top_k, top_p, min_p, seed, ..SamplingParams::default() };
        let mut sampler = Sampler::new(params, 0, &[]);
        let distribution = sampler.distribution(&logits).unwrap();
        let total: f64 = distribution.iter().map(|pair| f64::from(pair.1)).sum();
        prop_assert!((total - 1.0).abs() < 1e-4);
        for position in 0..20 {
            let id = sampler.sample(&logits, position).unwrap();
            prop_assert!(distribution.iter().any(|pair| pair.0 == id && pair.1 > 0.0));
        }
    }

    #[test]
    fn token_logprobs_are_sorted_and_sum_to_probability_one(logits in prop::collection::vec(-50.0..50.0_f32, 1..400), n_top in 0..500_usize, pick: u32) {
        let id = pick % logits.len() as u32;
        let given = token_logprobs(&logits, id, n_top);
        prop_assert_eq!(given.top.len(), n_top.min(logits.len()));
        prop_assert!(given.top.is_sorted_by(|a, b| a.1 >= b.1));
        if let Some(entry) = given.top.iter().find(|entry| entry.0 == id) {
            prop_assert_eq!(entry.1.to_bits(), given.logprob.to_bits());
        }
        let all = token_logprobs(&logits, id, logits.len());
        let total: f64 = all.top.iter().map(|entry| f64::from(entry.1).exp()).sum();
        // Each log-probability, at most 100 + ln 400, is rounded to 24 bits: a relative error of 2^-18 at the most.
        prop_assert!((total - 1.0).abs() < 1e-5, "{}", total);
    }
}

#[test]
fn token_logprobs_of_four_tokens_match_hand_values() {
    let given = token_logprobs(&four_logits(), 2, 2);
    assert!((given.logprob - 0.15_f32.ln()).abs() < 1e-6);
    assert_close(&given.top, &[(0, 0.5_f32.ln()), (1, 0.25_f32.ln())]);
    assert_eq!(token_logprobs(&four_logits(), 4, 0).logprob, f32::NEG_INFINITY);
    assert_eq!(token_logprobs(&[0.0, f32::NEG_INFINITY], 1, 1).logprob, f32::NEG_INFINITY);
    // Among equals the lower id comes first, and NaN neither panics nor leads.
    let ids = |logits: &[f32]| token_logprobs(logits, 0, 3).top.iter().map(|entry| entry.0).collect::<Vec<_>>();
    assert_eq!(ids(&[-0.0, 0.0, 1.0, 0.0]), [2, 0, 1]);
    assert_eq!(ids(&[f32::NAN, 0.0, 1.0]), [2, 1, 0]);
}

#[test]
fn out_of_range_sampling_params_are_rejected_by_name() {
    let change = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(10).unwrap_err().to_string()
    };
    assert_eq!(change(|params| params.temperature = -0.5), "`temperature` must be a number, 0 or more, got -0.5");
    assert_eq!(
        change(|params| params.temperature = f32::INFINITY),
        "`temperature` must be a number, 0 or more, got inf"
    );
    assert_eq!(change(|params| params.top_p = 0.0), "`top_p` must be above 0 and at most 1, got 0");
    assert_eq!(change(|params| params.top_p = f32::NAN), "`top_p` must be above 0 and at most 1, got NaN");
    assert_eq!(change(|params| params.min_p = 1.5), "`min_p` must be between 0 and 1, got 1.5");
    assert_eq!(
        change(|params| params.repetition_penalty = 0.0),
        "`repetition_penalty` must be a number above 0, got 0"
    );
    assert_eq!(change(|params| params.presence_penalty = 2.5), "`presence_penalty` must be between -2 and 2, got 2.5");
    assert_eq!(
        change(|params| params.frequency_penalty = -3.0),
        "`frequency_penalty` must be between -2 and 2, got -3"
    );
    assert_eq!(
        change(|params| params.logit_bias = Arc::new([(10, 0.0)].into())),
        "`logit_bias` must have token ids below the vocabulary's size, 10, got 10"
    );
    assert_eq!(
        change(|params| params.logit_bias = Arc::new([(9, 101.0)].into())),
        "`logit_bias` must be between -100 and 100, got 101"
    );
    assert!(SamplingParams::default().validate(10).is_ok());
    assert!(SamplingParams::greedy().validate(10).is_ok());
}
