//! Samplers' frequencies against their distributions, and the random streams that samplers draw from.
//!
//! The tests draw from fixed seeds, so they pass or fail for good. The odds given are those that a right sampler had to
//! fail for a freely chosen seed.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use hearth_model::decode::sampling::{Purpose, RandomStream, Sampler, SamplingParams};

use crate::sampling::four_logits;

/// Pearson's statistic: the squared deviations from the expected counts, in units of those counts.
pub(crate) fn chi_squared(counts: &[u32], probabilities: &[f64]) -> f64 {
    let n_draws = f64::from(counts.iter().sum::<u32>());
    counts
        .iter()
        .zip(probabilities)
        .map(|(&count, probability)| {
            let expected = n_draws * probability;
            (f64::from(count) - expected).powi(2) / expected
        })
        .sum()
}

/// Each of these draws 40 000 tokens from at most 4: a chi-squared of 3 degrees of freedom or fewer, which exceeds 36
/// in fewer than 1 of 10^7 cases. Ten cases: a right sampler fails with odds below 10^-6.
#[test]
fn sampling_frequencies_match_hand_computed_distributions() {
    const N_DRAWS: usize = 40_000;
    let base = SamplingParams::default;
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = base();
        change(&mut params);
        params
    };
    let cases: [(SamplingParams, &[f64]); 10] = [
        (base(), &[0.5, 0.25, 0.15, 0.1]),
        (SamplingParams::greedy(), &[1.0]),
        (with(|params| params.temperature = 0.5), &[0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345]),
        (with(|params| params.top_k = 3), &[0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9]),
        (with(|params| params.top_p = 0.7), &[2.0 / 3.0, 1.0 / 3.0]),
        (with(|params| params.min_p = 0.26), &[0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9]),
        // ln 2 added doubles the odds of token 3.
        (
            with(|params| params.logit_bias = Arc::new([(3, 2.0_f32.ln())].into())),
            &[0.5 / 1.1, 0.25 / 1.1, 0.15 / 1.1, 0.2 / 1.1],
        ),
        // The output has token 0 twice: 2 * ln 2 taken off leaves a quarter of its odds.
        (
            with(|params| params.frequency_penalty = 2.0_f32.ln()),
            &[0.125 / 0.625, 0.25 / 0.625, 0.15 / 0.625, 0.1 / 0.625],
        ),
        (with(|params| params.presence_penalty = 2.0_f32.ln()), &[0.25 / 0.75, 0.25 / 0.75, 0.15 / 0.75, 0.1 / 0.75]),
        // The logit of token 0 is negative: doubled, its odds are squared.
        (with(|params| params.repetition_penalty = 2.0), &[0.25 / 0.75, 0.25 / 0.75, 0.15 / 0.75, 0.1 / 0.75]),
    ];
    for (seed, (params, probabilities)) in cases.into_iter().enumerate() {
        let params = SamplingParams { seed: seed as u64, ..params };
        let mut sampler = Sampler::new(params.clone(), 0, &[]);
        [0, 0].into_iter().for_each(|id| sampler.accept(id));
        let mut counts = vec![0; probabilities.len()];
        for position in 0..N_DRAWS {
            counts[sampler.sample(&four_logits(), position).unwrap() as usize] += 1;
        }
        let statistic = chi_squared(&counts, probabilities);
        assert!(statistic < 36.0, "{params:?}: {counts:?}, chi-squared {statistic}");
    }
}

/// 256 cells, 2^16 numbers: 255 degrees of freedom, mean 255, deviation 22.6. A right stream leaves 100..450 with
/// odds below 10^-10. Checked for each purpose, and for numbers along positions, choices and seeds.
#[test]
fn random_stream_is_uniform_over_positions_choices_and_seeds() {
    const N: u32 = 1 << 16;
    type Number = fn(u32) -> f64;
    let axes: [(&str, Number); 5] = [
        ("positions", |index| RandomStream::new(3, 1).uniform(index as usize, Purpose::Token)),
        ("positions, coin", |index| RandomStream::new(3, 1).uniform(index as usize, Purpose::Coin)),
        ("choices", |index| RandomStream::new(3, index).uniform(5, Purpose::Token)),
        ("seeds", |index| RandomStream::new(u64::from(index), 0).uniform(5, Purpose::Token)),
        ("high seeds", |index| RandomStream::new(u64::from(index) << 40, 0).uniform(5, Purpose::Token)),
    ];
    for (name, number) in axes {
        let mut counts = [0; 256];
        for uniform in (0..N).map(number) {
            assert!((0.0..1.0).contains(&uniform));
            counts[(uniform * 256.0) as usize] += 1;
        }
        let statistic = chi_squared(&counts, &[1.0 / 256.0; 256]);
        assert!((100.0..450.0).contains(&statistic), "{name}: {statistic}");
    }
}

/// Pairs of numbers that differ in one coordinate fill a 16 x 16 grid evenly: as above, 255 degrees of freedom.
#[test]
fn random_streams_are_pairwise_independent() {
    const N: u32 = 1 << 16;
    type Pair<'a> = &'a dyn Fn(usize) -> (f64, f64);
    let stream = |choice| RandomStream::new(42, choice);
    let token = |choice, position| stream(choice).uniform(position, Purpose::Token);
    let pairs: [(&str, Pair<'_>); 4] = [
        ("purposes", &|position| (token(0, position), stream(0).uniform(position, Purpose::Coin))),
        ("neighbours", &|position| (token(0, position), token(0, position + 1))),
        ("choices", &|position| (token(0, position), token(1, position))),
        ("seeds", &|position| (token(0, position), RandomStream::new(43, 0).uniform(position, Purpose::Token))),
    ];
    for (name, pair) in pairs {
        let mut counts = [0; 256];
        for (a, b) in (0..N as usize).map(pair) {
            counts[(a * 16.0) as usize * 16 + (b * 16.0) as usize] += 1;
        }
        let statistic = chi_squared(&counts, &[1.0 / 256.0; 256]);
        assert!((100.0..450.0).contains(&statistic), "{name}: {statistic}");
    }
}

#[test]
fn sampled_tokens_depend_only_on_seed_choice_and_position() {
    let logits = vec![0.0; 1000];
    let tokens = |seed, choice, positions: &[usize]| {
        let mut sampler = Sampler::new(SamplingParams { seed, ..SamplingParams::default() }, choice, &[]);
        positions.iter().map(|&position| sampler.sample(&logits, position).unwrap()).collect::<Vec<_>>()
    };
    let forward = tokens(1, 0, &[0, 1, 2, 3, 4]);
    let mut backward = tokens(1, 0, &[4, 3, 2, 1, 0]);
    backward.reverse();
    assert_eq!(forward, backward);
    assert_ne!(forward, tokens(2, 0, &[0, 1, 2, 3, 4]));
    assert_ne!(forward, tokens(1, 1, &[0, 1, 2, 3, 4]));
}
