//! `hearth-train eval translation`: generates texts and scores them against references.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use clap::builder::NonEmptyStringValueParser;
use hearth_model::decode::sampling::{
    SamplingParams,
    beam::{BeamGroups, BeamKind, EarlyStopping},
};
use hearth_training::{
    cli::{ModelArgs, OpenModel, Status, progress_line},
    eval::{
        generation::{Decoding, Endings, Generator},
        metrics::Case,
        translation::{CorpusScores, PromptForm, corpus_of, encode_prompts, generate_texts, read_items, scores_of},
    },
};
use serde::Serialize;

use super::data::{DataArgs, unescaped};

/// Measures generated text against references: BLEU, chrF, TER, exact match, ROUGE-L
///
/// Items are JSON objects, one per line, with `source` and `target`, or with `prompt` and `reference`, `references` or
/// `completion`. An encoder-decoder reads the prompt as its source. Scores are computed as in sacrebleu and
/// rouge-score. `--out` has prompts, hypotheses and references.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    data: DataArgs,

    /// Prompt for a `source`; `{source}` is replaced by it, `\n` by a line break
    #[arg(long, value_name = "TEXT", default_value = "{source}")]
    template: String,

    /// Send each prompt as a user's message, through the model's chat template
    #[arg(long)]
    chat: bool,

    /// Search with this many beams instead of taking the most likely token each time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    beams: Option<u16>,

    /// Exponent of the length by which beam search divides log-probabilities, from -10 to 10; above 0 favors long texts
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "beams", allow_hyphen_values = true,
        value_parser = parse_length_penalty)]
    length_penalty: f32,

    /// Most tokens of a text
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,

    /// A string that ends a text, such as `\n`; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    stop: Vec<String>,

    /// Ignore case in BLEU and chrF
    #[arg(long)]
    lowercase: bool,
}

/// The JSON output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: String,
    n_items: usize,
    #[serde(flatten)]
    scores: CorpusScores,
    seconds: f64,
}

/// A line of `--out`.
#[derive(Debug, Serialize)]
struct TranslationLine<'a> {
    prompt: &'a str,
    hypothesis: &'a str,
    references: &'a [String],
}

/// Reads, generates, scores, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let items = read_items(args.data.path(&[])?, &unescaped(&args.template))?;
    let OpenModel { loaded, name, .. } = args.model.open_seq2seq_too()?;
    let form = if args.chat { PromptForm::Chat } else { PromptForm::Text };
    let prompts = encode_prompts(&items, &loaded, form, args.max_tokens as usize)?;
    let decoding = match args.beams {
        None => Decoding::Sampling(SamplingParams::greedy()),
        Some(width) => Decoding::Beams {
            width: width.into(),
            kind: BeamKind::Best {
                length_penalty: args.length_penalty,
                early_stopping: EarlyStopping::default(),
                groups: BeamGroups::ONE,
            },
        },
    };
    let endings = Endings {
        end_ids: Arc::new(loaded.eos_token_ids.iter().copied().collect()),
        stop_strings: args.stop.iter().map(|stop| unescaped(stop)).collect(),
    };
    let generator = Generator::new(&loaded.gpt, &loaded.tokenizer, endings).with_decoder_start(&loaded.decoder_start);
    let mut status = Status::new();
    let mut progress = |n_done| progress_line(&mut status, "texts", n_done, items.len());
    let how = (&decoding, args.max_tokens as usize);
    let hypotheses = generate_texts(&generator, prompts, how, &mut progress)?;
    status.clear();
    let lines: Vec<TranslationLine<'_>> = items
        .iter()
        .zip(&hypotheses)
        .map(|(item, hypothesis)| TranslationLine { prompt: &item.prompt, hypothesis, references: &item.references })
        .collect();
    let case = if args.lowercase { Case::Lower } else { Case::Mixed };
    let report = Report {
        model: name,
        dtype: loaded.gpt.dtype().to_string(),
        n_items: items.len(),
        scores: scores_of(&corpus_of(&hypotheses, &items)?, case),
        seconds: status.elapsed().as_secs_f64(),
    };
    let text = format!("{}items = {}, {:.1} s\n", report.scores.to_text(), report.n_items, report.seconds);
    let code = args.model.print(&report, &text)?;
    args.data.write(&lines)?;
    Ok(code)
}

/// From -10 to 10: beyond, the length alone would decide, and its power would overflow.
fn parse_length_penalty(text: &str) -> Result<f32, String> {
    let penalty = text.parse().map_err(|_| format!("must be a number, got `{text}`"))?;
    if (-10.0..=10.0).contains(&penalty) { Ok(penalty) } else { Err(format!("must be from -10 to 10, got {penalty}")) }
}
