//! The decoding study on models whose distribution is known.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use hearth_lab::decoding::{
    Bootstrap, Method, MethodRow, Passage, TextEnd, measure, statistics::self_bleu, write_texts,
};
use hearth_model::{TokenId, gpt::Gpt};
use hearth_training::eval::{
    generation::{Endings, Generator},
    scorer::Scorer,
};

use serde::Deserialize;

use crate::known_model::{known_model, word_tokenizer};

/// What `training/tests/golden/metrics.py` writes, as far as it is about this study.
#[derive(Deserialize)]
struct Golden {
    self_bleu: Vec<GoldenSelfBleu>,
}

#[derive(Deserialize)]
struct GoldenSelfBleu {
    texts: Vec<Vec<u32>>,
    order: usize,
    scores: Vec<f64>,
}

#[test]
fn self_bleu_matches_nltk() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/metrics.json");
    let golden: Golden = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for GoldenSelfBleu { texts, order, scores } in golden.self_bleu {
        let found = self_bleu(&texts, order);
        assert_eq!(found.len(), scores.len());
        for (at, (found, expected)) in found.iter().zip(&scores).enumerate() {
            assert!((found - expected).abs() < 1e-12, "text {at}: {found} is not {expected}");
        }
    }
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
