//! Samplers that look at the text: adaptive-p, repeated sequences, the prompt's tokens, biases that end.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use hearth_model::{
    TokenId,
    decode::sampling::{AdaptiveP, Sampler, SamplingParams},
    error::Error,
};

use crate::sampling::{assert_logits, four_logits};

/// `5 - 10 * d^2 / (1 + d)` for the four probabilities, where `d` is the distance from `target` over 0.3.
fn towards(target: f32) -> [f32; 4] {
    [0.5, 0.25, 0.15, 0.1].map(|probability: f32| {
        let distance = (probability - target).abs() / 0.3;
        5.0 - 10.0 * distance * distance / (1.0 + distance)
    })
}

#[test]
fn adaptive_p_prefers_probabilities_near_a_target_that_moves() {
    let adaptive_p = Some(AdaptiveP { target: 0.25, decay: 0.9 });
    let mut sampler = Sampler::new(SamplingParams { adaptive_p, ..SamplingParams::default() }, 0, &[]);
    // Distances 0.8333, 0, 0.3333, 0.5.
    assert_logits(&sampler, &four_logits(), &[1.212_121, 5.0, 4.166_667, 3.333_333]);
    let (mut sum, mut weight) = (2.5_f32, 10.0_f32);
    for position in 0..100 {
        assert_logits(&sampler, &four_logits(), &towards((0.5 - sum / weight).clamp(0.0, 1.0)));
        let id = sampler.sample(&four_logits(), position).unwrap();
        sampler.accept(id);
        (sum, weight) = ([0.5, 0.25, 0.15, 0.1][id as usize] + 0.9 * sum, 1.0 + 0.9 * weight);
    }
    assert!((sum / weight - 0.25).abs() < 0.1, "the average is near the target: {}", sum / weight);
}

#[test]
fn no_repeat_ngram_size_excludes_what_would_complete_a_known_sequence() {
    let left = |no_repeat_ngram_size, output: &[TokenId]| -> Vec<TokenId> {
        let mut sampler =
            Sampler::new(SamplingParams { no_repeat_ngram_size, ..SamplingParams::default() }, 0, &[1, 2, 3]);
        output.iter().for_each(|&id| sampler.accept(id));
        let mut ids: Vec<TokenId> = sampler.distribution(&[0.0; 5]).unwrap().iter().map(|pair| pair.0).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(left(3, &[]), [0, 1, 2, 3, 4]);
    assert_eq!(left(3, &[1, 2]), [0, 1, 2, 4], "1 2 3 is in the prompt");
    assert_eq!(left(3, &[2]), [0, 1, 2, 3, 4], "3 2 is new");
    assert_eq!(left(2, &[2]), [0, 1, 2, 4]);
    assert_eq!(left(2, &[0, 4, 0]), [0, 1, 2, 3], "0 4 is in the output");
    assert_eq!(left(1, &[0]), [4]);
    assert_eq!(left(9, &[1, 2, 3]), [0, 1, 2, 3, 4], "longer than the text");
    let mut sampler = Sampler::new(SamplingParams { no_repeat_ngram_size: 1, ..SamplingParams::default() }, 0, &[0, 1]);
    let error = sampler.sample(&[0.0; 2], 2);
    assert!(matches!(error, Err(Error::Param { name: "no_repeat_ngram_size", .. })), "{error:?}");
}

#[test]
fn encoder_repetition_penalty_favours_the_tokens_of_the_prompt() {
    let logits = [2.0, -1.0, 0.5, 1.0];
    let mut sampler = Sampler::new(SamplingParams { prompt_bonus: 2.0, ..SamplingParams::default() }, 0, &[0, 1, 0]);
    assert_logits(&sampler, &logits, &[4.0, -0.5, 0.5, 1.0]);
    sampler.accept(3);
    assert_logits(&sampler, &logits, &[4.0, -0.5, 0.5, 1.0]);
}

#[test]
fn logit_bias_ends_after_its_number_of_tokens() {
    let params = SamplingParams {
        logit_bias: Arc::new([(0, 3.0)].into()),
        logit_bias_tokens: Some(2),
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, 0, &[1, 1, 1]);
    for expected in [3.0, 3.0, 0.0, 0.0] {
        assert_logits(&sampler, &[0.0, 1.0], &[expected, 1.0]);
        sampler.accept(1);
    }
}
