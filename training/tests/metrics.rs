//! Metrics and the probe against sacrebleu, rouge-score and scikit-learn: `golden/metrics.py` writes their values.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use hearth_training::eval::{
    classify::Probe,
    metrics::{
        Case, Corpus, Segment, SignedScore,
        bleu::bleu,
        chrf::{ChrfKind, chrf},
        exact_match::exact_match,
        rouge_l::rouge_l,
        ter::ter,
    },
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    corpora: Vec<GoldenCorpus>,
    probes: Vec<GoldenProbe>,
}

#[derive(Deserialize)]
struct GoldenCorpus {
    name: String,
    segments: Vec<(String, Vec<String>)>,
    bleu: GoldenScore,
    bleu_lower: GoldenScore,
    chrf: GoldenScore,
    chrf_lower: GoldenScore,
    chrf_words: GoldenScore,
    ter: GoldenScore,
    ter_mixed: GoldenScore,
    rouge_l: [f64; 3],
}

#[derive(Deserialize)]
struct GoldenScore {
    name: String,
    score: f64,
    signature: String,
    details: String,
}

#[derive(Deserialize)]
struct GoldenProbe {
    c: f64,
    n_classes: usize,
    features: Vec<Vec<f32>>,
    classes: Vec<usize>,
    new: Vec<Vec<f32>>,
    logits: Vec<Vec<f64>>,
    predicted: Vec<usize>,
}

fn golden() -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/metrics.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Scores are the same number, signatures the same but for the version.
#[test]
fn metric_scores_and_signatures_match_sacrebleu_and_rouge_score() {
    for corpus in golden().corpora {
        let segments = corpus
            .segments
            .iter()
            .map(|(hypothesis, references)| Segment { hypothesis: hypothesis.clone(), references: references.clone() });
        let segments = Corpus::new(segments.collect()).unwrap();
        for (found, expected) in [
            (bleu(&segments, Case::Mixed), &corpus.bleu),
            (bleu(&segments, Case::Lower), &corpus.bleu_lower),
            (chrf(&segments, ChrfKind::Chars, Case::Mixed), &corpus.chrf),
            (chrf(&segments, ChrfKind::Chars, Case::Lower), &corpus.chrf_lower),
            (chrf(&segments, ChrfKind::CharsAndWords, Case::Mixed), &corpus.chrf_words),
            (ter(&segments, Case::Lower), &corpus.ter),
            (ter(&segments, Case::Mixed), &corpus.ter_mixed),
        ] {
            let SignedScore { name, score, signature, details } = found;
            let place = format!("{name} of `{}`: {score} is not {}", corpus.name, expected.score);
            assert_eq!((&name, &details), (&expected.name, &expected.details), "{place}");
            // The order of the sums is the same; what differs is how the C library rounds exp and ln.
            assert!((score - expected.score).abs() <= 1e-12 * expected.score.abs(), "{place}");
            let (settings, version) = signature.rsplit_once('|').unwrap();
            assert_eq!(settings, expected.signature.rsplit_once('|').unwrap().0, "{place}");
            assert_eq!(version, format!("version:hearth-{}", env!("CARGO_PKG_VERSION")));
        }
        let rouge = rouge_l(&segments);
        let found = [rouge.precision, rouge.recall, rouge.f_measure];
        for (found, expected) in found.into_iter().zip(corpus.rouge_l) {
            assert!((found - expected).abs() < 1e-12, "ROUGE-L of `{}`: {found} is not {expected}", corpus.name);
        }
    }
}

/// Both minimize the same convex function, so that they find the same point.
#[test]
fn probe_logits_and_predictions_match_scikit_learn() {
    for golden in golden().probes {
        let GoldenProbe { c, n_classes, features, classes, new, logits, predicted } = golden;
        let (probe, fit) = Probe::fit(&features, &classes, n_classes, c).unwrap();
        assert!(fit.gradient < 1e-7, "{fit:?}");
        assert_eq!([logits.len(), predicted.len()], [new.len(); 2]);
        for (at, features) in new.iter().enumerate() {
            assert_eq!(probe.logits(features).len(), logits[at].len());
            for (found, expected) in probe.logits(features).iter().zip(&logits[at]) {
                assert!((found - expected).abs() < 1e-4 * expected.abs().max(1.0), "{found} is not {expected}");
            }
            assert_eq!(probe.predict(features), predicted[at]);
        }
    }
}

#[test]
fn exact_match_is_the_percentage_of_texts_equal_to_a_reference() {
    let of = |segments: &[(&str, &[&str])]| {
        let segment = |(hypothesis, references): &(&str, &[&str])| Segment {
            hypothesis: (*hypothesis).to_owned(),
            references: references.iter().map(|reference| (*reference).to_owned()).collect(),
        };
        exact_match(&Corpus::new(segments.iter().map(segment).collect()).unwrap())
    };
    assert_eq!(of(&[("a b", &["a b"])]), 100.0);
    assert_eq!(of(&[("a b", &["a  b"])]), 0.0, "white space inside counts");
    assert_eq!(of(&[("A", &["a"])]), 0.0, "case counts");
    assert_eq!(of(&[(" a\n", &["x", "a "]), ("b", &["x", "c"]), ("", &[" "]), ("d", &["dd"])]), 50.0);
}

#[test]
fn corpus_rejects_no_segments_and_segments_without_references() {
    assert!(Corpus::new(Vec::new()).unwrap_err().to_string().contains("no segments"));
    let segments = vec![
        Segment { hypothesis: "a".into(), references: vec!["b".into()] },
        Segment { hypothesis: "a".into(), references: Vec::new() },
    ];
    assert!(Corpus::new(segments).unwrap_err().to_string().contains("segment 2 has no reference"));
}
