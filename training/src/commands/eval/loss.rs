//! `hearth-train eval loss`: loss, perplexity and bits per byte on text.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use hearth_training::{
    cli::{ModelArgs, OpenModel, Status, progress_line},
    data::{
        corpus::{Notes, check_separator},
        shard::Split,
    },
    eval::{
        documents::{DocumentOptions, read_source},
        scorer::Scorer,
        sliding::Sliding,
        text_loss::{TextScore, text_loss},
    },
};
use serde::Serialize;

/// Default limit of the window, in tokens.
const DEFAULT_WINDOW: usize = 2048;

/// Measures how well a model predicts text: loss, perplexity, bits per byte
///
/// A window slides over each document and every token but the first is scored once, with at least `window - stride` tokens before
/// it where the text has them. A small stride gives tokens more context and takes longer. With a stride as long as the window, the
/// first token of each window is not scored.
///
/// The `val_loss` of a run is another number: its windows do not overlap, it may be limited to the first `eval.batches` batches, and
/// unless rows hold documents, its windows run across the borders of documents. Compare losses of the same kind only.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Text, JSON or Parquet files, folders, data sets of the hub, token files, or folders that `hearth-train prepare` wrote
    #[arg(long, value_name = "FILES", required = true, num_args = 1..)]
    data: Vec<String>,

    /// Tokens that the model sees at once [default: its context, at most 2048]
    #[arg(long, value_name = "TOKENS")]
    window: Option<usize>,

    /// Tokens from one window to the next; later windows only score their last TOKENS [default: half of the window]
    #[arg(long, value_name = "TOKENS")]
    stride: Option<usize>,

    /// The field or column of the text, in JSON and Parquet
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_field: String,

    /// The separator between documents in a text file [default: one document per file]
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,

    /// The split of a folder that `hearth-train prepare` wrote
    #[arg(long, value_name = "SPLIT", default_value = "val", value_parser = parse_split)]
    split: Split,
}

/// The JSON output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: String,
    /// Nats per token.
    loss: f64,
    perplexity: f64,
    bits_per_byte: f64,
    n_documents: usize,
    /// Tokens of all documents.
    n_tokens: u64,
    n_scored: usize,
    n_bytes: u64,
    n_windows: usize,
    window: usize,
    stride: usize,
    seconds: f64,
}

/// Reads, scores, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    check_separator(args.separator.as_deref())?;
    let OpenModel { loaded, path, name } = args.model.open()?;
    let limit = loaded.gpt.config().max_seq_len;
    let window = args.window.unwrap_or(DEFAULT_WINDOW.min(limit));
    ensure!(
        window <= limit,
        "a window of {window} tokens does not fit the context of {limit} tokens of `{name}`\nhint: use a smaller `--window`"
    );
    let stride = args.stride.unwrap_or(window.div_ceil(2));
    let sliding = Sliding::new(window, stride)?;
    let options = DocumentOptions { text_field: args.text_field, separator: args.separator, split: args.split };
    let mut status = Status::new();
    let (mut documents, mut notes) = (Vec::new(), Notes::default());
    for source in &args.data {
        let read = read_source(source, (&loaded, &path), &options, &mut notes, &mut |download| {
            status.show(|_| download.to_string());
        });
        documents.extend(read.with_context(|| format!("cannot evaluate on `{source}`"))?);
    }
    status.note_all(&notes);
    status.begin_phase();
    let scorer = Scorer::new(&loaded.gpt)?;
    let mut progress = |n_done, n_all| progress_line(&mut status, "windows", n_done, n_all);
    let TextScore { score, n_bytes, n_windows } =
        text_loss(&scorer, &loaded.tokenizer, &documents, sliding, &mut progress)?;
    status.clear();
    let report = Report {
        model: name,
        dtype: loaded.gpt.dtype().to_string(),
        loss: score.loss,
        perplexity: score.perplexity(),
        bits_per_byte: score.bits_per_byte(n_bytes as f64),
        n_documents: documents.len(),
        n_tokens: documents.iter().map(|document| document.len()).sum(),
        n_scored: score.n_targets,
        n_bytes,
        n_windows,
        window,
        stride,
        seconds: status.phase_elapsed().as_secs_f64(),
    };
    args.model.print(&report, &text(&report))
}

fn text(report: &Report) -> String {
    let Report { loss, perplexity, bits_per_byte, n_scored, n_bytes, n_windows, window, stride, seconds, .. } = report;
    format!(
        "loss           {loss:.4} nats per token\nperplexity     {perplexity:.4}\nbits per byte  {bits_per_byte:.4}\nscored         \
         {n_scored} tokens, {n_bytes} bytes, of {} documents\nwindows        {n_windows} of {window} tokens, each {stride} after \
         the one before\ntime           {seconds:.1} s, {:.0} scored tokens/s\n",
        report.n_documents,
        *n_scored as f64 / seconds
    )
}

fn parse_split(name: &str) -> Result<Split, String> {
    let known = Split::ALL.into_iter().find(|split| split.name() == name);
    known.ok_or_else(|| format!("must be `train` or `val`, got `{name}`"))
}
