//! `hearth-lab decoding`: the table of Holtzman et al. 2019 for a model and prompts.

use std::{fs, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, ensure};
use hearth_lab::decoding::{
    Bootstrap, DecodingReport, Method, MethodTexts, Passage, PassageSizes, TextEnd, distributions_svg, measure,
    probabilities_svg, read_passages, to_markdown, write_texts,
};
use hearth_model::text::tokenizer::{DecodeOptions, Tokenizer};
use hearth_training::{
    cli::{ModelArgs, OpenModel, Status, progress_line, write_file, write_lines},
    eval::{
        generation::{Endings, Generator},
        scorer::Scorer,
    },
};
use serde::Serialize;

/// Compares decoding methods with human text: perplexity, self-BLEU, Zipf coefficient, distinct-n, repetition
///
/// Every method continues the same prompts, and is measured as in Holtzman et al. 2019 ("The Curious Case of Neural Text
/// Degeneration"), each number with a 95 % confidence interval by bootstrap. The table goes to stdout.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// A text file, from which paragraphs at equal distances are taken, or JSON lines (`.jsonl`) with `text`, or with
    /// `prompt` and `human`
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,

    /// Most passages to take
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    passages: u32,

    /// Tokens of a prompt that is the beginning of a text
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,

    /// Most tokens of a continuation, of the human text too
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,

    /// Let no text end before `--max-tokens`
    #[arg(long)]
    ignore_eos: bool,

    /// Only these methods, separated by semicolons, by their names in the table
    #[arg(long, value_name = "NAMES", value_delimiter = ';')]
    methods: Vec<String>,

    /// Seed of sampling and of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Number of resampled sets of texts for each confidence interval
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    bootstrap: u32,

    /// The passage of the plot of probabilities, from 0
    #[arg(long, alias = "figure-passage", value_name = "N", default_value_t = 0)]
    plot_passage: usize,

    /// Write `table.md`, `report.json`, `probabilities.svg`, `distributions.svg` and `texts.jsonl` to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A line of `texts.jsonl`.
#[derive(Debug, Serialize)]
struct TextLine<'a> {
    method: &'a str,
    passage: usize,
    prompt: String,
    text: String,
    perplexity: f64,
}

/// Reads, generates, measures, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let methods = Method::named(&args.methods, args.seed)?;
    if let Some(out) = &args.out {
        // Before the work, not after it.
        fs::create_dir_all(out).with_context(|| format!("cannot create the folder `{}`", out.display()))?;
    }
    let OpenModel { loaded, name, .. } = args.model.open()?;
    let sizes = PassageSizes {
        n_passages: args.passages as usize,
        prompt_tokens: args.prompt_tokens as usize,
        max_tokens: args.max_tokens as usize,
    };
    let limit = loaded.gpt.config().max_seq_len;
    ensure!(
        sizes.prompt_tokens + sizes.max_tokens <= limit,
        "a prompt of {} tokens with {} tokens behind it does not fit the context of {limit} tokens of `{name}`\nhint: use a smaller \
         `--prompt-tokens` or `--max-tokens`",
        sizes.prompt_tokens,
        sizes.max_tokens
    );
    let passages = read_passages(&args.prompts, &loaded.tokenizer, sizes)?;
    ensure!(
        args.plot_passage < passages.len(),
        "`--plot-passage` must be below the number of passages, {}, got {}\nhint: passages count from 0",
        passages.len(),
        args.plot_passage
    );
    let end_ids = Arc::new(loaded.eos_token_ids.iter().copied().collect());
    let generator = Generator::new(&loaded.gpt, &loaded.tokenizer, Endings { end_ids, ..Endings::default() });
    let scorer = Scorer::new(&loaded.gpt)?;
    let end = if args.ignore_eos { TextEnd::AtLength } else { TextEnd::AtEndToken };
    let mut status = Status::new();
    let mut current = String::new();
    let written = write_texts((&generator, &scorer), methods, &passages, (sizes.max_tokens, end), &mut |progress| {
        if current != progress.method {
            status.begin_phase();
            current = progress.method.to_owned();
        }
        progress_line(&mut status, &format!("texts of {current}"), progress.n_done, progress.n_all);
    })?;
    status.clear();
    let bootstrap = Bootstrap::new(passages.len(), args.bootstrap as usize, args.seed);
    let report = DecodingReport {
        model: name,
        dtype: loaded.gpt.dtype().to_string(),
        n_passages: passages.len(),
        max_tokens: sizes.max_tokens,
        n_resamples: args.bootstrap as usize,
        seed: args.seed,
        rows: written.iter().map(|written| measure(written, &bootstrap)).collect(),
        seconds: status.elapsed().as_secs_f64(),
    };
    let table = to_markdown(&report);
    if let Some(out) = &args.out {
        write_file(&out.join("table.md"), &table)?;
        write_file(&out.join("report.json"), &format!("{}\n", serde_json::to_string_pretty(&report)?))?;
        write_file(&out.join("distributions.svg"), &distributions_svg(&written))?;
        if let Some(svg) = probabilities_svg(&written, args.plot_passage) {
            write_file(&out.join("probabilities.svg"), &svg)?;
        }
        write_lines(&out.join("texts.jsonl"), &lines(&written, &passages, &loaded.tokenizer))?;
    }
    args.model.print(&report, &table)
}

fn lines<'a>(written: &'a [MethodTexts], passages: &[Passage], tokenizer: &Tokenizer) -> Vec<TextLine<'a>> {
    let decode = |ids: &[u32]| tokenizer.decode(ids, DecodeOptions::default());
    let of_method = |written: &'a MethodTexts| {
        (0..passages.len()).map(move |at| {
            let logprobs = &written.logprobs[at];
            let nats = -logprobs.iter().map(|&logprob| f64::from(logprob)).sum::<f64>();
            TextLine {
                method: &written.method.name,
                passage: at,
                prompt: decode(&passages[at].prompt),
                text: decode(&written.texts[at]),
                // For an empty text NaN, which is null in JSON.
                perplexity: (nats / logprobs.len() as f64).exp(),
            }
        })
    };
    written.iter().flat_map(of_method).collect()
}
