//! `--inspect`: shows examples as they would be trained, without training.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use hearth_model::weights::model_dir::LoadedText;
use hearth_training::{
    cli::print_json,
    config::TrainConfig,
    data::examples::{Example, Style, describe, inspect_json},
};
use serde::Serialize;

use super::{ExampleSet, documents_of};

/// Totals over all examples.
#[derive(Debug, Serialize)]
struct Summary {
    /// Examples; of pairs, both answers, or source and target.
    examples: usize,
    /// Pairs of a better and a worse answer, or of a source and a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<usize>,
    tokens: usize,
    trained_tokens: usize,
    /// Number of examples, or pairs, that were cut at the end.
    cut: usize,
    /// Examples, or pairs, that were left out.
    dropped: usize,
    rows: usize,
    row_length: usize,
}

/// Shows the first `n` examples or pairs, and totals.
pub(super) fn show(
    all: &ExampleSet,
    n: usize,
    text: &LoadedText,
    config: &TrainConfig,
    as_json: bool,
) -> Result<ExitCode> {
    let texts = if let ExampleSet::Texts(items) = all { Some(items.shown()) } else { None };
    let both = if let ExampleSet::Translations(found) = all { found.examples() } else { Vec::new() };
    let (examples, n_shown): (Vec<&Example>, usize) = match all {
        ExampleSet::Translations(_) => (both.iter().collect(), n.saturating_mul(2)),
        ExampleSet::Examples(found) => (found.examples.iter().chain(&found.val).collect(), n),
        ExampleSet::Pairs(found) => {
            let pairs = found.examples.iter().chain(&found.val);
            (pairs.flat_map(|pair| [&pair.chosen, &pair.rejected]).collect(), n.saturating_mul(2))
        }
        ExampleSet::Texts(_) => {
            let (texts, [n_items, ..]) = texts.as_ref().map_or((&[][..], [1; 3]), |(texts, counts)| (texts, *counts));
            (texts.iter().collect(), n.saturating_mul(texts.len() / n_items.max(1)))
        }
    };
    let style = Style::of_stdout();
    let mut stdout = io::stdout().lock();
    for example in examples.iter().take(n_shown) {
        let shown = if as_json {
            format!("{}\n", inspect_json(example, &text.tokenizer))
        } else {
            describe(example, &text.tokenizer, style)
        };
        stdout.write_all(shown.as_bytes()).context("cannot write to stdout")?;
    }
    drop(stdout);
    let (pairs, cut, dropped, rows) = match all {
        ExampleSet::Examples(found) => {
            let n_rows = |examples: &[Example]| match examples {
                [] => Ok(0),
                examples => documents_of(examples, config, text).map(|documents| documents.n_rows()),
            };
            let rows = n_rows(&found.examples)? + n_rows(&found.val)?;
            (None, found.n_cut, found.n_dropped, rows)
        }
        // Each answer is a row.
        ExampleSet::Pairs(found) => {
            let n_pairs = found.examples.len() + found.val.len();
            (Some(n_pairs), found.n_cut, found.n_dropped, 2 * n_pairs)
        }
        ExampleSet::Texts(_) => {
            let [n_items, n_cut, n_dropped] = texts.as_ref().map_or([0; 3], |(_, counts)| *counts);
            (Some(n_items), n_cut, n_dropped, examples.len())
        }
        ExampleSet::Translations(found) => {
            let [n_pairs, n_cut, n_dropped] = found.counts();
            (Some(n_pairs), n_cut, n_dropped, n_pairs)
        }
    };
    let row_length = config.model.max_seq_len;
    if as_json {
        return print_json(&Summary {
            examples: examples.len(),
            pairs,
            tokens: examples.iter().map(|example| example.ids.len()).sum(),
            trained_tokens: examples.iter().map(|example| example.n_trained()).sum(),
            cut,
            dropped,
            rows,
            row_length,
        });
    }
    let line = format!("{}, in {rows} rows of up to {row_length} tokens\n", all.summary());
    io::stdout().write_all(line.as_bytes()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}
