//! `hearth-train eval classify`: linear probes on embeddings, compared with label-token scoring or the model's own
//! classification head.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use hearth_model::gpt::pooling::{Classifier, Pooling, VectorScale, VectorSteps};
use hearth_training::{
    cli::{ModelArgs, OpenModel, Status, progress_line},
    eval::{
        choices::{Accuracy, ChoiceItem, Labeling, accuracies, score_items},
        classify::{Embedder, EncodedText, LabeledTexts, Probe},
        scorer::Scorer,
    },
};
use serde::Serialize;

use super::data::{DataArgs, unescaped};

/// Poolings for an encoder: it is bidirectional, and its first token is trained to represent the text.
const POOLINGS_OF_ENCODERS: [(&str, Pooling); 3] =
    [("mean", Pooling::Mean), ("max", Pooling::Max), ("cls", Pooling::Cls)];

/// Poolings for a language model: its first token has no information about the text.
const POOLINGS: [(&str, Pooling); 3] = [("mean", Pooling::Mean), ("last", Pooling::Last), ("max", Pooling::Max)];

/// Measures how well texts are classified by a linear probe on their embeddings
///
/// Data are JSON lines with `text` and `label`. Embeddings are those of `/v1/embeddings`, with mean, last and max
/// pooling. For each pooling, a logistic regression is fitted to the training texts and tested on the others. For
/// comparison, label-token scoring is reported too: it chooses the label that the model finds most likely after the
/// text. For an encoder, the prediction of its classification head is reported instead, if it has one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    data: DataArgs,

    /// Texts to test on [default: a share of `--data` that is not trained on]
    #[arg(long, value_name = "FILE")]
    test: Option<PathBuf>,

    /// Share of the distinct texts of `--data` to test on if there is no `--test`
    #[arg(long, value_name = "X", default_value_t = 0.2, conflicts_with = "test")]
    test_fraction: f64,

    /// Chooses the texts to test on
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Inverse strength of L2, as in scikit-learn
    #[arg(long, alias = "c", value_name = "X", default_value_t = 1.0, value_parser = parse_strength)]
    inverse_l2: f64,

    /// Label-token scoring: the text before a space and the label; `{text}` stands for the text, `\n` for a line break
    #[arg(long, value_name = "TEXT", default_value = "{text}")]
    template: String,
}

/// The JSON output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: String,
    classes: Vec<String>,
    n_train: usize,
    n_test: usize,
    /// The share of the test texts' most frequent class.
    majority: f64,
    probes: Vec<ProbeReport>,
    /// Accuracy of the model's own classification head, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<Accuracy>,
    /// Results for a language model.
    #[serde(skip_serializing_if = "Option::is_none")]
    label_tokens: Option<LabelTokens>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct ProbeReport {
    pooling: &'static str,
    accuracy: Accuracy,
    train_accuracy: Accuracy,
    n_steps: usize,
    /// The largest component of the gradient of the mean loss at the end.
    gradient: f64,
    converged: bool,
}

/// Accuracy of the label that is most likely, and most likely per character.
#[derive(Clone, Copy, Debug, Serialize)]
struct LabelTokens {
    acc: Accuracy,
    acc_norm: Accuracy,
}

/// A line of `--out`.
#[derive(Debug, Serialize)]
struct PredictionLine<'a> {
    part: &'static str,
    label: &'a str,
    /// The vectors by the name of their pooling.
    #[serde(flatten)]
    vectors: BTreeMap<&'static str, &'a [f32]>,
}

/// The accuracy of the model's own head, whose scores are vector `at` of each test text.
///
/// # Errors
/// The head does not have a label.
fn of_head(head: &Classifier, embedded: &[Vec<Vec<f32>>], at: usize, test: &LabeledTexts) -> Result<Accuracy> {
    let is_right = |((vectors, label), place): ((&Vec<Vec<f32>>, &String), &String)| {
        let by_name = head.labels.iter().position(|name| name == label);
        let class = by_name.or_else(|| label.parse().ok().filter(|number| *number < head.labels.len()));
        let class = class.with_context(|| {
            format!(
                "{place}: `label` is `{label}`, which the model's head does not have, only `{}`\nhint: correct this line",
                head.labels.join("`, `")
            )
        })?;
        let scores = &vectors[at];
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Ok(scores.iter().position(|score| *score == most) == Some(class))
    };
    let all = embedded.iter().zip(&test.labels).zip(&test.places).map(is_right).collect::<Result<Vec<bool>>>()?;
    Ok(Accuracy::of(&all))
}

/// Reads, embeds, fits, tests, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (train, test) = split(&args)?;
    let classes = train.classes();
    let (train_classes, test_classes) = (train.class_indices(&classes)?, test.class_indices(&classes)?);
    let labeling = Labeling::new(classes.clone(), unescaped(&args.template))?;
    let OpenModel { loaded, name, .. } = args.model.open_any()?;
    let is_both = loaded.gpt.config().is_encoder_decoder();
    ensure!(!is_both, "`{name}` is an encoder-decoder, whose texts have no vectors here");
    let is_encoder = loaded.gpt.config().bidirectional;
    let limit = loaded.gpt.config().max_seq_len;
    let mut ids = train.encode(&loaded.tokenizer, limit)?;
    ids.extend(test.encode(&loaded.tokenizer, limit)?);
    let mut status = Status::new();
    let trained: HashSet<&String> = train.texts.iter().collect();
    let n_known = test.texts.iter().filter(|text| trained.contains(text)).count();
    if n_known > 0 {
        status.note(&format!("warning: {n_known} of the texts to test on are also trained on"));
    }
    let poolings = if is_encoder { POOLINGS_OF_ENCODERS } else { POOLINGS };
    let mut wanted = poolings.map(|(_, pooling)| (pooling, VectorSteps::default())).to_vec();
    // What the head makes of a text comes last.
    let own_head = loaded.classifier.as_ref().filter(|head| !head.is_of_tokens());
    wanted.extend(own_head.map(|head| {
        let layers = head.layers.clone();
        (head.pooling, VectorSteps { layers, dimensions: None, scale: VectorScale::AsIs })
    }));
    let ids: Vec<EncodedText> = ids.into_iter().map(EncodedText::from).collect();
    let embedder = Embedder::new(&loaded.gpt)?;
    let mut progress = |n_done| progress_line(&mut status, "embeddings", n_done, ids.len());
    let embedded = embedder.embed(&ids, &wanted, &mut progress)?;
    let probe = |(number, (pooling, _)): (usize, &(&'static str, Pooling))| {
        let features: Vec<Vec<f32>> = embedded.iter().map(|vectors| vectors[number].clone()).collect();
        let (of_train, of_test) = features.split_at(train.texts.len());
        let (probe, fit) = Probe::fit(of_train, &train_classes, classes.len(), args.inverse_l2)?;
        let accuracy = |features: &[Vec<f32>], classes: &[usize]| {
            let is_right = features.iter().zip(classes).map(|(features, class)| probe.predict(features) == *class);
            Accuracy::of(&is_right.collect::<Vec<_>>())
        };
        Ok(ProbeReport {
            pooling,
            accuracy: accuracy(of_test, &test_classes),
            train_accuracy: accuracy(of_train, &train_classes),
            n_steps: fit.n_steps,
            gradient: fit.gradient,
            converged: fit.is_converged(),
        })
    };
    let probes = poolings.iter().enumerate().map(probe).collect::<Result<Vec<_>>>()?;
    let head = own_head.map(|head| of_head(head, &embedded[train.texts.len()..], poolings.len(), &test)).transpose()?;
    let mut score_labels = || -> Result<LabelTokens> {
        let items: Vec<ChoiceItem> = test
            .texts
            .iter()
            .zip(&test.places)
            .zip(&test_classes)
            .map(|((text, place), &class)| labeling.of_text(place.clone(), text, class))
            .collect();
        let scorer = Scorer::new(&loaded.gpt)?;
        status.begin_phase();
        let mut progress = |n_done| progress_line(&mut status, "texts by their labels", n_done, items.len());
        let scored = accuracies(&score_items(&scorer, &loaded.tokenizer, &items, limit, &mut progress)?);
        Ok(LabelTokens { acc: scored.acc, acc_norm: scored.acc_norm })
    };
    let label_tokens = if is_encoder { None } else { Some(score_labels()?) };
    status.clear();
    let of_class = |class: usize| test_classes.iter().filter(|other| **other == class).count();
    let report = Report {
        model: name,
        dtype: loaded.gpt.dtype().to_string(),
        n_train: train.texts.len(),
        n_test: test.texts.len(),
        majority: (0..classes.len()).map(of_class).max().unwrap_or(0) as f64 / test_classes.len() as f64,
        classes,
        probes,
        head,
        label_tokens,
        seconds: status.elapsed().as_secs_f64(),
    };
    let code = args.model.print(&report, &text(&report))?;
    args.data.write(&lines(&embedded, poolings, &train, &test))?;
    Ok(code)
}

/// The training texts and the test texts.
fn split(args: &Args) -> Result<(LabeledTexts, LabeledTexts)> {
    let path = args.data.path(&args.test.iter().collect::<Vec<_>>())?;
    let all = LabeledTexts::read(path)?;
    if let Some(test) = &args.test {
        return Ok((all, LabeledTexts::read(test)?));
    }
    ensure!(
        args.test_fraction > 0.0 && args.test_fraction < 1.0,
        "`--test-fraction` must be above 0 and below 1, got {}",
        args.test_fraction
    );
    let n_texts = all.texts.len();
    let (train, test) = all.split(args.test_fraction, args.seed);
    ensure!(
        !train.texts.is_empty() && !test.texts.is_empty(),
        "`{}` has too few different texts to put some aside, {n_texts} lines in all\nhint: use more texts, or `--test FILE`",
        path.display()
    );
    Ok((train, test))
}

fn lines<'a>(
    embedded: &'a [Vec<Vec<f32>>],
    poolings: [(&'static str, Pooling); 3],
    train: &'a LabeledTexts,
    test: &'a LabeledTexts,
) -> Vec<PredictionLine<'a>> {
    let labels = |texts: &'a LabeledTexts, part: &'static str| texts.labels.iter().map(move |label| (part, label));
    let labels = labels(train, "train").chain(labels(test, "test"));
    let named = |vectors: &'a Vec<Vec<f32>>| {
        poolings.iter().zip(vectors).map(|((name, _), vector)| (*name, vector.as_slice())).collect()
    };
    labels
        .zip(embedded)
        .map(|((part, label), vectors)| PredictionLine { part, label, vectors: named(vectors) })
        .collect()
}

fn text(report: &Report) -> String {
    let row = |name: &str, Accuracy { value, stderr }: Accuracy, beside: &str| {
        format!("{name:<24} {value:.4} ± {stderr:.4}{beside}\n")
    };
    let mut text = String::new();
    for ProbeReport { pooling, accuracy, train_accuracy, n_steps, gradient, converged } in &report.probes {
        let mut beside = format!("  (on the texts to train on {:.4})", train_accuracy.value);
        if !converged {
            beside += &format!("  not converged after {n_steps} steps: the gradient is {gradient:.1e}");
        }
        text += &row(&format!("probe, {pooling} pooling"), *accuracy, &beside);
    }
    if let Some(head) = report.head {
        text += &row("the model's own head", head, "");
    }
    if let Some(LabelTokens { acc, acc_norm }) = report.label_tokens {
        text += &row("label tokens", acc, "");
        text += &row("label tokens, normalized", acc_norm, "");
    }
    text += &format!("{:<24} {:.4}\n", "most frequent class", report.majority);
    text += &format!(
        "{} classes, {} texts to train on, {} to test on, {:.1} s\n",
        report.classes.len(),
        report.n_train,
        report.n_test,
        report.seconds
    );
    text
}

fn parse_strength(text: &str) -> Result<f64, String> {
    let strength: f64 = text.parse().map_err(|_| format!("must be a number, got `{text}`"))?;
    if strength > 0.0 && strength.is_finite() {
        Ok(strength)
    } else {
        Err(format!("must be a number above 0, got {strength}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classify_report_says_which_probe_did_not_converge() {
        let accuracy = Accuracy { value: 0.5, stderr: 0.1 };
        let probe = |converged: bool| ProbeReport {
            pooling: "mean",
            accuracy,
            train_accuracy: accuracy,
            n_steps: 2000,
            gradient: 0.02,
            converged,
        };
        let report = Report {
            model: String::new(),
            dtype: String::new(),
            classes: Vec::new(),
            n_train: 1,
            n_test: 1,
            majority: 0.5,
            probes: vec![probe(true), probe(false)],
            head: None,
            label_tokens: Some(LabelTokens { acc: accuracy, acc_norm: accuracy }),
            seconds: 1.0,
        };
        let told: Vec<bool> = text(&report).lines().take(2).map(|line| line.contains("not converged")).collect();
        assert_eq!(told, [false, true]);
        assert!(text(&report).contains("not converged after 2000 steps: the gradient is 2.0e-2"));
    }
}
