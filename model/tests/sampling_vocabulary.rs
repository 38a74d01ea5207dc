//! Samplers that remove tokens, over vocabularies of real size, against plain implementations of their definitions: all
//! tokens sorted, sequential sums in double precision. Rows of many shapes, so that few tokens are likely, or
//! nearly all, or many exactly as likely as others.
#![expect(clippy::unwrap_used, reason = "tests")]

use hearth_model::{
    TokenId,
    decode::sampling::{Purpose, RandomStream, Sampler, SamplingParams, token_logprobs},
};

/// A token and its logit divided by the temperature, most likely first, the lower id among equals.
type Ranked = Vec<(TokenId, f64)>;

/// Rows by name.
fn rows() -> Vec<(&'static str, Vec<f32>)> {
    let random = RandomStream::new(11, 0);
    let uniform = |at: usize, n: usize| random.uniform(at * 16 + n, Purpose::Token);
    // Nearly normal.
    let bell = |at: usize| (0..12).map(|n| uniform(at, n)).sum::<f64>() - 6.0;
    let of = |n: usize, logit: &dyn Fn(usize) -> f64| (0..n).map(|at| logit(at) as f32).collect::<Vec<f32>>();
    let mut peaked = of(50_000, &|at| 2.5 * bell(at));
    (0..20).for_each(|n| peaked[(n * 2477 + 11) % 50_000] = 16.0 - 0.4 * n as f32);
    let mut ruled_out = of(20_000, &|at| 3.0 * bell(at));
    ruled_out.iter_mut().enumerate().filter(|(at, _)| at % 3 != 0).for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
    vec![
        ("peaked", peaked),
        ("flat", of(50_000, &|at| 0.3 * bell(at))),
        ("wide", of(50_000, &|at| 6.0 * bell(at))),
        ("in steps", of(9_000, &|at| (2.0 * bell(at)).round())),
        ("all equal", vec![1.5; 1_000]),
        ("mostly ruled out", ruled_out),
        ("not a whole block", of(1_001, &|at| 4.0 * bell(at))),
        ("far below", of(3_000, &|at| if at == 1_234 { 0.0 } else { -60.0 + bell(at) })),
    ]
}

fn ranked(logits: &[f32], temperature: f32) -> Ranked {
    let mut ranked: Vec<(TokenId, f32)> = logits.iter().zip(0..).map(|(&logit, id)| (id, logit)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.into_iter().map(|(id, logit)| (id, f64::from(logit) / f64::from(temperature))).collect()
}

/// Tokens with their probabilities, which sum to 1.
fn probabilities(ranked: &Ranked) -> Vec<(TokenId, f64)> {
    let largest = ranked[0].1;
    let total: f64 = ranked.iter().map(|(_, logit)| (logit - largest).exp()).sum();
    ranked.iter().map(|&(id, logit)| (id, (logit - largest).exp() / total)).collect()
}

/// Checks that the sampler keeps the expected tokens, except for a few at the threshold that rounding to f32 may move,
/// and that it gives them the renormalized probabilities.
fn check(name: &str, params: &SamplingParams, logits: &[f32], expected: &[(TokenId, f64)]) {
    let found = Sampler::new(params.clone(), 0, &[]).distribution(logits).unwrap();
    let what = format!("{name}, {params:?}");
    // Probabilities this small may be rounded to 0.
    let found: Vec<_> = found.into_iter().filter(|(_, probability)| *probability > 1e-30).collect();
    let expected: Vec<_> = expected.iter().filter(|(_, probability)| *probability > 1e-30).collect();
    let slack = 2 + expected.len() / 1000;
    assert!(found.len().abs_diff(expected.len()) <= slack, "{what}: {} of {}", found.len(), expected.len());
    let total: f64 = expected.iter().map(|(_, probability)| probability).sum();
    for (found, expected) in found.iter().zip(&expected) {
        let share = expected.1 / total;
        assert!((f64::from(found.1) - share).abs() <= 1e-6 + 2e-4 * share, "{what}: {found:?}, not {expected:?}");
    }
    assert_eq!(found[0].0, expected[0].0, "{what}");
}

#[test]
fn temperature_top_k_top_p_and_min_p_match_their_definitions() {
    for (name, logits) in rows() {
        for temperature in [0.3, 1.0, 1.7] {
            let base = SamplingParams { temperature, ..SamplingParams::default() };
            let all = ranked(&logits, temperature);
            let of_all = probabilities(&all);
            check(name, &base, &logits, &of_all);
            for top_k in [1, 2, 40, 389, 5_000] {
                let expected = probabilities(&all[..top_k.min(all.len())].to_vec());
                check(name, &SamplingParams { top_k, ..base.clone() }, &logits, &expected);
            }
            for top_p in [0.013, 0.5, 0.9517, 0.9993] {
                let mut mass = 0.0;
                let is_before = |probability: f64| {
                    mass += probability;
                    mass < f64::from(top_p)
                };
                let n = of_all.iter().map(|pair| pair.1).take_while(|&p| p > 0.0).map(is_before);
                let n = (n.take_while(|before| *before).count() + 1).min(all.len());
                check(name, &SamplingParams { top_p, ..base.clone() }, &logits, &of_all[..n]);
            }
            for min_p in [0.0503, 0.37] {
                let bar = f64::from(min_p) * of_all[0].1;
                let n = of_all.iter().filter(|pair| pair.1 >= bar).count();
                check(name, &SamplingParams { min_p, ..base.clone() }, &logits, &of_all[..n]);
            }
        }
    }
}

#[test]
fn top_k_tokens_are_ordered_by_probability_then_token_id() {
    for (name, logits) in rows() {
        let all = ranked(&logits, 1.0);
        for top_k in [1, 3, 40, 500] {
            let params = SamplingParams { top_k, ..SamplingParams::default() };
            let found = Sampler::new(params, 0, &[]).distribution(&logits).unwrap();
            let possible = all.iter().take(top_k).filter(|(_, logit)| *logit > f64::NEG_INFINITY);
            let expected: Vec<TokenId> =
                possible.map(|pair| pair.0).filter(|&id| logits[id as usize] > -50.0).collect();
            let found: Vec<TokenId> =
                found.into_iter().map(|pair| pair.0).filter(|&id| logits[id as usize] > -50.0).collect();
            // Equal logits have equal probabilities, and are in the order of their ids.
            assert_eq!(found, expected, "{name}, {top_k}");
        }
    }
}

/// The sampler looks for the drawn token in chunks: each part of the vocabulary must be drawn as often as expected.
#[test]
fn sampling_frequencies_match_probabilities_across_the_vocabulary() {
    const N: usize = 40_000;
    let random = RandomStream::new(5, 0);
    let logits: Vec<f32> = (0..5_000).map(|at| random.uniform(at, Purpose::Coin) as f32).collect();
    let mut sampler = Sampler::new(SamplingParams { seed: 3, ..SamplingParams::default() }, 0, &[]);
    let mut counts = [0.0; 20];
    (0..N).for_each(|position| counts[sampler.sample(&logits, position).unwrap() as usize / 250] += 1.0);
    let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
    let total: f64 = weights.iter().sum();
    let parts = weights.chunks(250).map(|part| part.iter().sum::<f64>() / total * N as f64);
    let chi_squared: f64 =
        counts.iter().zip(parts).map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    // 19 degrees of freedom: a right sampler is above this once in a million.
    assert!(chi_squared < 64.0, "{chi_squared}");
}

#[test]
fn token_logprobs_match_double_precision() {
    for (name, logits) in rows() {
        let all = ranked(&logits, 1.0);
        let largest = all[0].1;
        let log_total = largest + all.iter().map(|(_, logit)| (logit - largest).exp()).sum::<f64>().ln();
        for (rank, &(id, logit)) in all.iter().enumerate().step_by(97) {
            let found = token_logprobs(&logits, id, 7);
            let expected = logit - log_total;
            assert!(
                expected.is_infinite() || (f64::from(found.logprob) - expected).abs() <= 1e-6 + 1e-7 * expected.abs(),
                "{name}: {found:?}, not {expected}"
            );
            let n_better = all.iter().filter(|pair| pair.1 > logit).count();
            assert_eq!(found.rank, n_better + 1, "{name}: {rank}");
            let top: Vec<TokenId> = found.top.iter().map(|pair| pair.0).collect();
            let expected: Vec<TokenId> = all.iter().take(7).map(|pair| pair.0).collect();
            assert_eq!(top, expected, "{name}");
        }
    }
}
