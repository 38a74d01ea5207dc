//! `hearth-train`: the command line for training. Results go to stdout, everything else to stderr. Exit codes: 1 a run
//! failed, 2 invalid command line, 130 or 143 a signal ended the command (a run was saved).

mod commands;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue},
    value_parser,
};
use hearth_model::subcommands::OF_HEARTH;
use hearth_training::{
    cli::{self, Program},
    config::hint_of_argument,
    ranks,
};

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
    #[command(hide = true, disable_help_flag = true)]
    Tales(commands::moved::Args),
    #[command(hide = true, disable_help_flag = true)]
    Bilingual(commands::moved::Args),
}

fn main() -> ExitCode {
    cli::main::<Cli>()
}

impl Program for Cli {
    fn threads(&self) -> Option<u16> {
        self.threads
    }

    fn run(self) -> Result<ExitCode> {
        let is_run = matches!(self.command, Command::Quickstart(_) | Command::Pretrain(_) | Command::Finetune(_));
        let n_processes = ranks::of_process().size();
        ensure!(
            is_run || n_processes == 1,
            "only `pretrain`, `finetune` and `quickstart` run in several processes, and `mpirun` started {n_processes}\nhint: start this \
             command without `mpirun`"
        );
        match self.command {
            Command::Tokenizer(args) => commands::tokenizer::run(args),
            Command::Prepare(args) => commands::prepare::run(args),
            Command::Quickstart(args) => commands::quickstart::run(args),
            Command::Pretrain(args) => commands::pretrain::run(args),
            Command::Finetune(args) => commands::finetune::run(args),
            Command::Import(args) => commands::import::run(args),
            Command::Sample(args) => commands::sample::run(args),
            Command::Eval(args) => commands::eval::run(args),
            Command::Bench(args) => commands::bench::run(args),
            Command::Tales(_) => commands::moved::run("tales"),
            Command::Bilingual(_) => commands::moved::run("bilingual"),
        }
    }

    /// Names the program that has a subcommand, or the setting that an unknown argument is named like.
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
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use clap::CommandFactory;

    use super::*;

    fn error_of(args: &[&str]) -> String {
        Cli::command()
            .try_get_matches_from([&["hearth-train"], args].concat())
            .map_err(Cli::with_tip)
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
}
