//! `hearth-train`: the command line for training. Results go to stdout, everything else to stderr. Exit codes: 1 a run
//! failed, 2 invalid command line, 130 or 143 a signal ended the command (a run was saved).

mod commands;

use std::{
    env,
    io::{self, Write},
    num::NonZeroUsize,
    process::ExitCode,
};

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand,
    builder::Resettable,
    error::{ContextKind, ContextValue},
    value_parser,
};
use hearth_model::{ops, subcommands::OF_HEARTH};
use hearth_training::{config::hint_of_argument, interrupt};

/// Trains language models that Hearth serves.
#[derive(Debug, Parser)]
#[command(name = "hearth-train", version, arg_required_else_help = true)]
struct Cli {
    /// Number of threads that compute on the CPU [default: one per core that may be used]
    #[arg(long, env = "HEARTH_THREADS", global = true, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Tokenizer(commands::tokenizer::Args),
    Prepare(commands::prepare::Args),
    Quickstart(commands::quickstart::Args),
    Pretrain(commands::pretrain::Args),
    Finetune(commands::finetune::Args),
    Import(commands::import::Args),
    Sample(commands::sample::Args),
    Eval(commands::eval::Args),
    Bench(commands::bench::Args),
    Tales(commands::tales::Args),
    Bilingual(commands::bilingual::Args),
}

/// The command and its subcommands without empty variables: files of settings for containers have such.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if env::var_os(name).is_some_and(|value| value.is_empty()) => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

fn main() -> ExitCode {
    let matches = without_empty_variables(Cli::command()).try_get_matches();
    let matches = matches.unwrap_or_else(|error| with_tip(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .without_time()
        .init();
    if let Some(n) = cli.threads.map(usize::from).and_then(NonZeroUsize::new) {
        ops::use_threads(n);
    }
    // Before anything is computed.
    ops::start_threads();
    // Refuses an instruction set that the machine does not have.
    let outcome = ops::instruction_set().map_err(anyhow::Error::from).and_then(|_| run(cli.command));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            interrupt::wait_if_ending();
            // If stderr is closed too, only the exit code remains.
            let _ = writeln!(io::stderr(), "error: {}", shown(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error about the command line with a tip: the program that has a subcommand, or the setting that an unknown argument has
/// the name of.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let of_subcommand = text(ContextKind::InvalidSubcommand)
        .filter(|name| OF_HEARTH.contains(&name.as_str()))
        .map(|name| format!("`{name}` is a command of the other program: hearth {name}"));
    let of_argument = || hint_of_argument(text(ContextKind::InvalidArg)?.trim_start_matches('-'));
    if let Some(tip) = of_subcommand.or_else(of_argument) {
        // Instead of a command with a similar name.
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Tokenizer(args) => commands::tokenizer::run(args),
        Command::Prepare(args) => commands::prepare::run(args),
        Command::Quickstart(args) => commands::quickstart::run(args),
        Command::Pretrain(args) => commands::pretrain::run(args),
        Command::Finetune(args) => commands::finetune::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Sample(args) => commands::sample::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Tales(args) => commands::tales::run(args),
        Command::Bilingual(args) => commands::bilingual::run(args),
    }
}

/// An error with what caused it, each said once, and the hints at the end.
fn shown(error: &anyhow::Error) -> String {
    let (mut what, mut hints) = (String::new(), Vec::new());
    for cause in error.chain() {
        let cause = cause.to_string();
        let (cause, hint) = cause.split_once("\nhint: ").map_or((&*cause, None), |(cause, hint)| (cause, Some(hint)));
        hints.extend(hint.map(str::to_owned));
        // Some errors tell their cause themselves.
        if !what.contains(cause) {
            let separator = if what.is_empty() { "" } else { ": " };
            what += &format!("{separator}{cause}");
        }
    }
    hints.dedup();
    hints.iter().for_each(|hint| what += &format!("\nhint: {hint}"));
    what
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use anyhow::{Context, anyhow};

    use super::*;

    fn error_of(args: &[&str]) -> String {
        Cli::command()
            .try_get_matches_from([&["hearth-train"], args].concat())
            .map_err(with_tip)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn subcommand_of_hearth_is_named_in_the_error() {
        let names: Vec<_> = Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(names, hearth_model::subcommands::OF_HEARTH_TRAIN);
        for name in ["export", "merge", "quantize", "generate", "serve"] {
            assert!(error_of(&[name, "model"]).contains(&format!("hearth {name}\n")), "{}", error_of(&[name]));
        }
        assert!(!error_of(&["sing"]).contains("other program"));
    }

    #[test]
    fn argument_with_the_name_of_a_setting_gets_a_tip_how_to_set_it() {
        for (argument, tip) in [
            ("--learning-rate", "optim.lr"),
            ("--batch_size=8", "data.micro_batch_size"),
            ("--warmup-steps", "--set schedule.warmup_steps=VALUE"),
        ] {
            let error = error_of(&["pretrain", "--out", "run", argument, "1"]);
            assert!(error.contains("unexpected argument") && error.contains(tip), "{error}");
        }
        assert!(!error_of(&["pretrain", "--out", "run", "--sing"]).contains("--set"));
    }

    #[test]
    fn error_message_shows_each_cause_once_before_the_hint() {
        let cause = anyhow!("early end");
        let error =
            Err::<(), _>(cause).context("bad frame: early end").context("`a.zst` is damaged\nhint: get it again");
        let error = error.map_err(|error| shown(&error));
        assert_eq!(error, Err("`a.zst` is damaged: bad frame: early end\nhint: get it again".to_owned()));
    }
}
