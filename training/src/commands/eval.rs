//! `hearth-train eval`: measures models. One file per kind of evaluation.

mod classify;
mod data;
mod loss;
mod multiple_choice;
mod retrieval;
mod score;
mod translation;

use std::process::ExitCode;

use anyhow::Result;

use super::moved;

/// Measures a model
///
/// MODEL is a model dir, a run, a GGUF file, or a model of the Hugging Face hub. Results go to stdout, progress to stderr.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, clap::Subcommand)]
enum Kind {
    Loss(loss::Args),
    MultipleChoice(multiple_choice::Args),
    Translation(translation::Args),
    Score(score::Args),
    #[command(hide = true, disable_help_flag = true)]
    Decoding(moved::Args),
    Classify(classify::Args),
    Retrieval(retrieval::Args),
}

/// Runs the evaluation that was asked for.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    match args.kind {
        Kind::Loss(args) => loss::run(args),
        Kind::MultipleChoice(args) => multiple_choice::run(args),
        Kind::Translation(args) => translation::run(args),
        Kind::Score(args) => score::run(args),
        Kind::Decoding(_) => moved::run("decoding"),
        Kind::Classify(args) => classify::run(args),
        Kind::Retrieval(args) => retrieval::run(args),
    }
}
