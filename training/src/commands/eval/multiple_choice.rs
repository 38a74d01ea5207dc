//! `hearth-train eval multiple-choice`: the accuracy on multiple-choice items and on labeled texts.

use std::process::ExitCode;

use anyhow::Result;
use hearth_training::{
    cli::{ModelArgs, OpenModel, Status, progress_line},
    eval::{
        choices::{ChoiceScore, ItemResult, Labeling, accuracies, read_items, score_items},
        scorer::Scorer,
    },
};
use serde::Serialize;

use super::data::{DataArgs, unescaped};

/// Measures how often the right answer is the most likely one
///
/// Items are JSON objects, one per line: in HellaSwag's form (`ctx`, `endings`, `label`), in ARC's (`question`,
/// `choices`, `answerKey`), in MMLU's (`question`, `choices`, `answer`), or, with `--labels`, labeled texts (`text`,
/// `label`). Accuracies are as in lm-eval: `acc` by log-likelihood, `acc_norm` by log-likelihood per character,
/// `acc_bytes` per byte. `--out` has each item's log-likelihoods.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    data: DataArgs,

    /// The labels of texts, separated by commas: which of them continues the text most likely
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    labels: Vec<String>,

    /// The text before a space and the label; `{text}` stands for the text, `\n` for a line break
    #[arg(long, value_name = "TEXT", default_value = "{text}", requires = "labels")]
    template: String,
}

/// The JSON output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: String,
    n_items: usize,
    #[serde(flatten)]
    score: ChoiceScore,
    seconds: f64,
    items: Vec<ItemResult>,
}

/// Reads, scores, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let template = unescaped(&args.template);
    let labeling = (!args.labels.is_empty()).then(|| Labeling::new(args.labels, template)).transpose()?;
    let items = read_items(args.data.path(&[])?, labeling.as_ref())?;
    let OpenModel { loaded, name, .. } = args.model.open()?;
    let mut status = Status::new();
    let scorer = Scorer::new(&loaded.gpt)?;
    let limit = loaded.gpt.config().max_seq_len;
    let mut progress = |n_done| progress_line(&mut status, "items", n_done, items.len());
    let results = score_items(&scorer, &loaded.tokenizer, &items, limit, &mut progress)?;
    status.clear();
    let report = Report {
        model: name,
        dtype: loaded.gpt.dtype().to_string(),
        n_items: items.len(),
        score: accuracies(&results),
        seconds: status.elapsed().as_secs_f64(),
        items: results,
    };
    let code = args.model.print(&report, &text(&report))?;
    args.data.write(&report.items)?;
    Ok(code)
}

fn text(report: &Report) -> String {
    let ChoiceScore { acc, acc_norm, acc_bytes } = report.score;
    let rows = [("acc", acc), ("acc_norm", acc_norm), ("acc_bytes", acc_bytes)];
    let mut text: String =
        rows.iter().map(|(name, acc)| format!("{name:<10} {:.4} ± {:.4}\n", acc.value, acc.stderr)).collect();
    text += &format!("items      {}\ntime       {:.1} s\n", report.n_items, report.seconds);
    text
}
