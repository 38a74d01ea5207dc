//! Evaluation of models: log-probabilities against a direct computation, generation against the loop for one sequence, and the
//! decoding study on models whose distribution is known.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};
use hearth_model::{
    TokenId,
    attention::AttentionContext,
    config::{GptConfig, Sizes},
    gpt::Gpt,
    sampling::{
        SamplingParams,
        beam::{BeamKind, EarlyStopping},
    },
};
use hearth_training::eval::{
    decoding::{Bootstrap, Method, MethodRow, Passage, TextEnd, measure, write_texts},
    generation::{Decoding, Endings, GenerationTask, Generator},
    scorer::{Branch, Scorer, TextGroup},
};

use crate::known_model::{known_model, word_tokenizer};
use crate::plain_generation::{GenerateOptions, generate};

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
    let best = BeamKind::Best { length_penalty: 1.0, early_stopping: EarlyStopping::default() };
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

fn study(gpt: &Gpt, names: &[&str], passages: &[Passage], max_tokens: usize) -> Vec<MethodRow> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let methods = Method::named(&names, 1).unwrap();
    let generator = Generator::new(gpt, &word_tokenizer(gpt.config().vocab_size), Endings::default());
    let scorer = Scorer::new(gpt).unwrap();
    let how = (max_tokens, TextEnd::AtEndToken);
    let written = write_texts((&generator, &scorer), methods, passages, how, &mut |_| {}).unwrap();
    let bootstrap = Bootstrap::new(passages.len(), 200, 1);
    written.iter().map(|written| measure(written, &bootstrap)).collect()
}

/// Tokens are independent, with probabilities 1/2, 1/4, 1/8, 1/8: an entropy of 1.75 bits.
#[test]
fn decoding_statistics_match_a_model_of_known_distribution() {
    let gpt = known_model(&[0.5, 0.25, 0.125, 0.125]);
    let human: Vec<TokenId> = [0, 0, 1, 2].repeat(50);
    let passages: Vec<Passage> = (0..60).map(|_| Passage { prompt: vec![3, 1], human: human.clone() }).collect();
    let names = ["human", "greedy", "beam 16", "stochastic beam 16", "pure sampling", "temperature 0.9", "top-k 640"];
    let rows = study(&gpt, &names, &passages, 200);
    let row = |name: &str| rows.iter().find(|row| row.method == name).unwrap();
    let close = |found: Option<f64>, expected: f64, tolerance: f64| {
        assert!((found.unwrap() - expected).abs() < tolerance, "{found:?} is not {expected}");
    };
    // 1, 1, 2 and 3 bits.
    let human = row("human");
    close(human.perplexity.value, 2_f64.powf(1.75), 1e-4);
    close(human.self_bleu_4.value, 1.0, 1e-9);
    close(human.repetition.value, 100.0, 1e-9);
    close(human.distinct[0].value, 3.0 / 12_000.0, 1e-9);
    // The most likely token, again and again; beam search finds the same text.
    for name in ["greedy", "beam 16"] {
        close(row(name).perplexity.value, 2.0, 1e-4);
        close(row(name).distinct[0].value, 1.0 / 12_000.0, 1e-9);
        close(row(name).repetition.value, 100.0, 1e-9);
        assert_eq!(row(name).zipf.value, None, "one token has no slope");
    }
    // 12,000 draws: the surprise has a deviation of 0.83 bits, its mean one of 0.0076.
    for name in ["pure sampling", "top-k 640"] {
        let row = row(name);
        close(row.perplexity.value, 2_f64.powf(1.75), 4.0 * 0.0076 * 2_f64.ln() * 2_f64.powf(1.75));
        let [low, high] = row.perplexity.interval.unwrap();
        // 1.96 deviations on each side.
        let expected = 2.0 * 1.96 * 0.0076 * 2_f64.ln() * 2_f64.powf(1.75);
        assert!((high - low) > 0.7 * expected && (high - low) < 1.3 * expected, "{low} to {high}, not {expected} wide");
        // Frequencies 1/2, 1/4, 1/8, 1/8 of ranks 1 to 4, by least squares.
        close(row.zipf.value, zipf_of(&[0.5, 0.25, 0.125, 0.125]), 0.05);
        close(row.distinct[0].value, 4.0 / 12_000.0, 1e-9);
        close(row.distinct[1].value, 16.0 / 11_940.0, 1e-9);
    }
    // The first text of a stochastic beam search is a sample of the distribution over texts.
    close(row("stochastic beam 16").perplexity.value, 2_f64.powf(1.75), 4.0 * 0.0076 * 2_f64.ln() * 2_f64.powf(1.75));
    // Probabilities to the power of 1 / 0.9, whose cross entropy with the model's is known.
    let powers = [0.5_f64, 0.25, 0.125, 0.125].map(|probability| probability.powf(1.0 / 0.9));
    let total: f64 = powers.iter().sum();
    let bits: f64 = powers.iter().zip([1.0, 2.0, 3.0, 3.0]).map(|(power, bits)| power / total * bits).sum();
    close(row("temperature 0.9").perplexity.value, 2_f64.powf(bits), 0.07);
}

/// Truncation keeps what its definition says, of a distribution of 1000 tokens with probabilities like 1 / rank.
#[test]
fn truncated_sampling_has_the_perplexity_of_the_tokens_it_keeps() {
    let weights: Vec<f64> = (1..=1000).map(|rank| 1.0 / f64::from(rank)).collect();
    let total: f64 = weights.iter().sum();
    let probabilities: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
    let gpt = known_model(&probabilities);
    let passages: Vec<Passage> = (0..50).map(|_| Passage { prompt: vec![0], human: vec![0; 200] }).collect();
    let names = ["top-k 40", "nucleus 0.95", "min-p 0.1", "pure sampling", "top-k 40, temperature 0.7"];
    let rows = study(&gpt, &names, &passages, 200);
    let n_nucleus = {
        let mut mass = 0.0;
        1 + probabilities
            .iter()
            .take_while(|probability| {
                mass += **probability;
                mass < 0.95
            })
            .count()
    };
    for (name, n_kept, temperature) in [
        ("top-k 40", 40, 1.0),
        ("nucleus 0.95", n_nucleus, 1.0),
        ("min-p 0.1", 10, 1.0),
        ("pure sampling", 1000, 1.0),
        ("top-k 40, temperature 0.7", 40, 0.7),
    ] {
        let kept: Vec<f64> =
            probabilities[..n_kept].iter().map(|probability| probability.powf(1.0 / temperature)).collect();
        let mass: f64 = kept.iter().sum();
        let nats: f64 =
            kept.iter().zip(&probabilities).map(|(kept, probability)| -kept / mass * probability.ln()).sum();
        let found = rows.iter().find(|row| row.method == name).unwrap();
        let [low, high] = found.perplexity.interval.unwrap();
        let width = high - low;
        let value = found.perplexity.value.unwrap();
        assert!((value - nats.exp()).abs() < 1.3 * width, "{name}: {value} is not {}, {width} wide", nats.exp());
        assert!(width < 0.1 * value);
        if name == "top-k 40" {
            let frequencies: Vec<f64> = probabilities[..40].to_vec();
            let zipf = found.zipf.value.unwrap();
            assert!((zipf - zipf_of(&frequencies)).abs() < 0.06, "{zipf}");
            assert_eq!(found.distinct[0].value, Some(40.0 / 10_000.0));
        }
    }
}

/// Minus the slope of the logarithms of frequencies over those of ranks.
fn zipf_of(frequencies: &[f64]) -> f64 {
    let x: Vec<f64> = (1..=frequencies.len()).map(|rank| (rank as f64).ln()).collect();
    let y: Vec<f64> = frequencies.iter().map(|frequency| frequency.ln()).collect();
    let n = x.len() as f64;
    let (mean_x, mean_y) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let covariance: f64 = x.iter().zip(&y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    -covariance / x.iter().map(|x| (x - mean_x).powi(2)).sum::<f64>()
}
