//! `hearth-train eval score`: scores texts that were generated elsewhere.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use hearth_training::{
    cli::print_json,
    data::corpus::read_to_string,
    eval::{
        metrics::{Case, Corpus, Segment},
        translation::scores_of,
    },
};

/// Scores texts against references, without a model: BLEU, chrF, TER, exact match, ROUGE-L
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The texts to score, one per line
    #[arg(long, value_name = "FILE")]
    hypotheses: PathBuf,

    /// Reference texts, one per line; several files are several references
    #[arg(long, value_name = "FILES", required = true, num_args = 1..)]
    references: Vec<PathBuf>,

    /// Ignore case in BLEU and chrF
    #[arg(long)]
    lowercase: bool,

    /// Print the result as one JSON object, the last line on stdout
    #[arg(long)]
    json: bool,
}

/// Reads, scores, reports.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let hypotheses = lines(&args.hypotheses)?;
    let references = args.references.iter().map(|path| lines(path)).collect::<Result<Vec<_>>>()?;
    for (path, references) in args.references.iter().zip(&references) {
        ensure!(
            references.len() == hypotheses.len(),
            "`{}` has {} lines, but `{}` has {}\nhint: line N of one belongs to line N of the other",
            path.display(),
            references.len(),
            args.hypotheses.display(),
            hypotheses.len()
        );
    }
    let segments = hypotheses.into_iter().enumerate().map(|(at, hypothesis)| Segment {
        hypothesis,
        references: references.iter().map(|lines| lines[at].clone()).collect(),
    });
    let case = if args.lowercase { Case::Lower } else { Case::Mixed };
    let scores = scores_of(&Corpus::new(segments.collect())?, case);
    if args.json {
        return print_json(&scores);
    }
    io::stdout().write_all(scores.to_text().as_bytes()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// The lines of a file, which must have some.
fn lines(path: &Path) -> Result<Vec<String>> {
    let text = read_to_string(path)?;
    let lines: Vec<String> = text.split_terminator('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect();
    ensure!(!lines.is_empty(), "`{}` is empty\nhint: it must have one text per line", path.display());
    Ok(lines)
}
