//! Evaluation of models: log-probabilities against a direct computation, and generation against the loop for one sequence.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};
use hearth_model::{
    TokenId,
    config::{GptConfig, Sizes},
    decode::sampling::{
        SamplingParams,
        beam::{BeamGroups, BeamKind, EarlyStopping},
    },
    gpt::{Gpt, attention::AttentionContext},
};
use hearth_training::eval::{
    generation::{Decoding, Endings, GenerationTask, Generator},
    scorer::{Branch, Scorer, TextGroup},
};

use crate::{
    known_model::{known_model, word_tokenizer},
    plain_generation::{GenerateOptions, generate},
};

const VOCAB_SIZE: usize = 61;

fn random_model() -> Gpt {
    let sizes = Sizes {
        vocab_size: VOCAB_SIZE,
        max_seq_len: 128,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        d_model: 32,
        d_ff: 48,
    };
    Gpt::init(&GptConfig::llama(sizes), 3, &Device::flex()).unwrap()
}

fn ids(n: usize, seed: usize) -> Vec<TokenId> {
    (0..n).map(|at| ((at * at * 7 + at * seed + seed) % VOCAB_SIZE) as TokenId).collect()
}

/// The log-probability of each token but the first, by one dense pass over the whole text, in f64.
fn direct(gpt: &Gpt, ids: &[TokenId]) -> Vec<f64> {
    let inputs: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let inputs = Tensor::<1, Int>::from_data(inputs.as_slice(), &gpt.device());
    let logits = gpt.logits(gpt.forward(inputs, AttentionContext::dense(1, ids.len())));
    let logits = logits.into_data().try_to_vec::<f32>().unwrap();
    let logprob = |(row, &target): (&[f32], &TokenId)| {
        let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        f64::from(row[target as usize]) - total.ln()
    };
    logits.chunks(VOCAB_SIZE).zip(&ids[1..]).map(logprob).collect()
}

#[test]
fn scorer_log_probabilities_match_a_dense_pass_over_the_whole_text() {
    let gpt = random_model();
    let shared = ids(40, 2);
    let ends = [ids(9, 3), ids(1, 4), ids(30, 5)];
    let texts: Vec<Vec<TokenId>> = ends.iter().map(|end| [shared.as_slice(), end].concat()).collect();
    let groups = [
        TextGroup::of_text(ids(100, 6), 1),
        TextGroup::of_texts(texts.clone(), &[40, 39, 40]),
        TextGroup::of_text(ids(2, 7), 1),
    ];
    assert_eq!(groups[1].prefix.len(), 38, "what all share before the rows that predict");
    let expected: Vec<Vec<f64>> =
        [(&ids(100, 6), 1), (&texts[0], 40), (&texts[1], 39), (&texts[2], 40), (&ids(2, 7), 1)]
            .iter()
            .map(|(text, first)| direct(&gpt, text)[first - 1..].to_vec())
            .collect();
    for rows_per_step in [1, 7, 64, 10_000] {
        let scorer = Scorer::new(&gpt).unwrap().with_rows_per_step(rows_per_step);
        let mut n_done = Vec::new();
        let found = scorer.logprobs(&groups, &mut |n| n_done.push(n)).unwrap();
        assert_eq!(n_done.last(), Some(&3));
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [1, 3, 1]);
        assert_eq!(found.iter().flatten().count(), expected.len());
        for (found, expected) in found.iter().flatten().zip(&expected) {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} is not {expected}");
            }
        }
    }
}

#[test]
fn scorer_rejects_long_texts_a_scored_first_token_and_unknown_ids() {
    let scorer = Scorer::new(&random_model()).unwrap();
    for (group, message) in [
        (TextGroup::of_text(ids(129, 1), 1), "129 tokens does not fit the model's context of 128"),
        (TextGroup { prefix: vec![1], branches: vec![Branch { ids: vec![1, 2], first_scored: 0 }] }, "the first token"),
        (TextGroup::of_text(vec![1, 61], 1), "token id 61, but the vocabulary has 61"),
    ] {
        let error = scorer.logprobs(&[group], &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Texts generated in one batch equal those of `generate`, which runs one sequence.
#[test]
fn batched_generation_equals_generating_one_sequence_at_a_time() {
    let gpt = random_model();
    let end_ids: Vec<TokenId> = vec![5, 17];
    let pure = SamplingParams { seed: 4, ..SamplingParams::default() };
    let all = [
        SamplingParams::greedy(),
        pure.clone(),
        SamplingParams { top_k: 5, temperature: 0.8, repetition_penalty: 1.2, ..pure },
    ];
    let tasks: Vec<GenerationTask> = (0..100)
        .map(|at| GenerationTask {
            prompt_ids: ids(1 + at % 60, at),
            decoding: Decoding::Sampling(all[at % 3].clone()),
            number: 0,
            min_tokens: 0,
            max_tokens: 1 + at % 40,
        })
        .collect();
    let endings = Endings { end_ids: Arc::new(end_ids.iter().copied().collect()), ..Endings::default() };
    let mut n_done = 0;
    let found =
        Generator::new(&gpt, &word_tokenizer(VOCAB_SIZE), endings).generate(&tasks, &mut |n| n_done = n).unwrap();
    assert_eq!(n_done, 100);
    assert_eq!(found.len(), tasks.len());
    for (task, found) in tasks.iter().zip(found) {
        let Decoding::Sampling(sampling) = task.decoding.clone() else { unreachable!() };
        let options =
            GenerateOptions { max_tokens: task.max_tokens, kv_dtype: None, sampling, eos_token_ids: end_ids.clone() };
        let mut expected = generate(&gpt, &task.prompt_ids, &options);
        let is_ended = expected.last().is_some_and(|id| end_ids.contains(id));
        if is_ended {
            expected.pop();
        }
        assert_eq!((found.token_ids, found.is_ended), (expected, is_ended));
    }
}

#[test]
fn generation_and_beam_search_do_not_end_before_min_tokens() {
    // EOS is as likely as all other tokens together.
    let gpt = known_model(&[0.5, 0.2, 0.2, 0.1]);
    let endings = Endings { end_ids: Arc::new([0].into()), ..Endings::default() };
    let generator = Generator::new(&gpt, &word_tokenizer(4), endings);
    let beams = |kind| Decoding::Beams { width: 4, kind };
    let best =
        BeamKind::Best { length_penalty: 1.0, early_stopping: EarlyStopping::default(), groups: BeamGroups::ONE };
    for decoding in [
        Decoding::Sampling(SamplingParams::greedy()),
        Decoding::Sampling(SamplingParams { seed: 1, ..SamplingParams::default() }),
        beams(best),
        beams(BeamKind::Stochastic { seed: 1 }),
    ] {
        let task = |number| GenerationTask {
            prompt_ids: vec![1],
            decoding: decoding.clone(),
            number,
            min_tokens: 7,
            max_tokens: 12,
        };
        let tasks: Vec<_> = (0..20).map(task).collect();
        let texts = generator.generate(&tasks, &mut |_| {}).unwrap();
        assert_eq!(texts.len(), tasks.len());
        for text in texts {
            assert!((7..=12).contains(&text.token_ids.len()) && !text.token_ids.contains(&0), "{text:?}");
        }
    }
}

#[test]
fn generator_rejects_empty_prompts_and_prompts_beyond_the_context() {
    let generator = Generator::new(&random_model(), &word_tokenizer(VOCAB_SIZE), Endings::default());
    let task = |n, max_tokens| GenerationTask {
        prompt_ids: ids(n, 1),
        decoding: Decoding::Sampling(SamplingParams::greedy()),
        number: 0,
        min_tokens: 0,
        max_tokens,
    };
    let error = generator.generate(&[task(3, 2), task(100, 29)], &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("100 tokens with 29 tokens to generate") && error.contains("\nhint: "), "{error}");
    assert!(generator.generate(&[task(0, 2)], &mut |_| {}).unwrap_err().to_string().contains("is empty"));
}
