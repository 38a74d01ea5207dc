//! The command line: one file per subcommand, each with its arguments and `run`.

mod bench;
mod bench_grammars;
mod chat;
mod doctor;
mod download;
mod export;
mod generate;
mod health;
mod http_client;
mod list;
mod log;
mod merge;
mod new_model;
mod output;
mod perplexity;
mod pull;
mod quantize;
mod rm;
mod sampling;
mod serve;
mod variables;

use std::{ffi::OsString, num::NonZeroUsize};

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue},
    value_parser,
};
use hearth_model::{ops, subcommands::OF_HEARTH_TRAIN};

pub use self::output::print_error;

/// Serves language models over HTTP and in the terminal.
///
/// The default subcommand is `serve`: `hearth --port 9000` is `hearth serve --port 9000`.
#[derive(Debug, Parser)]
#[command(name = "hearth", version, subcommand_required = true)]
pub struct Cli {
    /// Number of threads that compute on the CPU [default: one per core that may be used]
    #[arg(long, env = "HEARTH_THREADS", global = true, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over HTTP with OpenAI's API (the default)
    Serve(Box<serve::ServeArgs>),
    /// Converse in the terminal, with a model or a running server
    Chat(Box<chat::ChatArgs>),
    /// Continue a prompt in the terminal
    Generate(generate::GenerateArgs),
    /// Download a model of the Hugging Face hub
    Pull(pull::PullArgs),
    /// List the downloaded models
    List(list::ListArgs),
    /// Remove a downloaded model
    Rm(rm::RmArgs),
    /// Measure the speed of a model on this machine
    Bench(bench::BenchArgs),
    /// Measure the perplexity of a model on a text
    Perplexity(perplexity::PerplexityArgs),
    /// Write a quantized copy of a model
    Quantize(quantize::QuantizeArgs),
    /// Write a copy of a model with a LoRA adapter added to it
    Merge(merge::MergeArgs),
    /// Write a model as a GGUF file
    Export(export::ExportArgs),
    /// Show the machine's hardware and the device that a model would use
    Doctor(doctor::DoctorArgs),
    /// Check that a running server is healthy; accepts all flags and variables of `serve`, and uses those below
    Health(Box<health::HealthArgs>),
}

impl Cli {
    /// Parses the command line and environment. Ends the process with exit code 2 if they are invalid, or with 0 after
    /// showing help.
    pub fn from_env() -> Self {
        let args = with_subcommand(std::env::args_os().collect());
        let command = variables::apply_environment(command(), &args).unwrap_or_else(|error| error.exit());
        let matches = command.try_get_matches_from(args).unwrap_or_else(|error| naming_hearth_train(error).exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The command's failure, as text for people.
    pub fn run(self) -> anyhow::Result<()> {
        // Refuses an instruction set that the machine does not have.
        ops::instruction_set()?;
        if let Some(n) = self.threads.map(usize::from).and_then(NonZeroUsize::new) {
            ops::use_threads(n);
        }
        match self.command {
            Command::Serve(args) => {
                let _written_at_the_end =
                    log::init_background("warn,hearth_server=info,hearth_engine=info", args.config.log.log_format)?;
                serve::run(&args)
            }
            Command::Chat(args) => {
                log::init_blocking("error")?;
                chat::run(*args)
            }
            Command::Generate(args) => {
                log::init_blocking("warn")?;
                generate::run(args)
            }
            Command::Pull(args) => {
                log::init_blocking("warn")?;
                pull::run(args)
            }
            Command::List(args) => {
                log::init_blocking("warn")?;
                list::run(args)
            }
            Command::Rm(args) => {
                log::init_blocking("warn")?;
                rm::run(args)
            }
            Command::Bench(args) => {
                log::init_blocking("warn")?;
                bench::run(args)
            }
            Command::Perplexity(args) => {
                log::init_blocking("warn")?;
                perplexity::run(args)
            }
            Command::Quantize(args) => {
                log::init_blocking("warn")?;
                quantize::run(args)
            }
            Command::Export(args) => {
                log::init_blocking("warn")?;
                export::run(args)
            }
            Command::Merge(args) => {
                log::init_blocking("warn")?;
                merge::run(args)
            }
            Command::Doctor(args) => {
                log::init_blocking("error")?;
                doctor::run(args)
            }
            Command::Health(args) => {
                log::init_blocking("error")?;
                health::run(&args)
            }
        }
    }
}

/// Commands without computation.
const WITHOUT_THREADS: [&str; 4] = ["pull", "list", "rm", "health"];

/// The definition of the command line. Flags without effect are hidden from the help.
fn command() -> clap::Command {
    let command = Cli::command().mut_subcommand("health", health::hide_irrelevant);
    let threads = command.get_arguments().find(|arg| arg.get_id() == "threads").cloned();
    let hidden = threads.map(|arg| arg.hide(true));
    // A subcommand's argument replaces the global one of the same id.
    WITHOUT_THREADS
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, |subcommand| subcommand.args(hidden.clone())))
}

/// `hearth` with flags only means `hearth serve`.
fn with_subcommand(mut args: Vec<OsString>) -> Vec<OsString> {
    // Flags of every subcommand may come before it.
    let mut first = 1;
    while let Some(flag) = args.get(first).and_then(|arg| arg.to_str()) {
        match flag {
            "--threads" => first += 2,
            _ if flag.starts_with("--threads=") => first += 1,
            _ => break,
        }
    }
    let serves = match args.get(first).and_then(|arg| arg.to_str()) {
        None => args.len() <= first,
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(first) => first.starts_with('-'),
    };
    if serves {
        args.insert(args.len().min(1), "serve".into());
    }
    args
}

/// An error about a subcommand that only `hearth-train` has names that program.
fn naming_hearth_train(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && OF_HEARTH_TRAIN.contains(&name.as_str())
    {
        let tip = format!("`{name}` is a command of the other program: hearth-train {name}").into();
        // Instead of a command with a similar name.
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        let args = [&["hearth"], args].concat().into_iter().map(OsString::from).collect();
        Cli::try_parse_from(with_subcommand(args))
    }

    #[test]
    fn clap_command_definition_passes_debug_assert() {
        command().debug_assert();
    }

    #[test]
    fn help_shows_threads_flag_only_where_it_has_an_effect() {
        for (name, is_shown) in [("serve", true), ("doctor", true), ("pull", false), ("list", false), ("health", false)]
        {
            let mut line = command();
            line.build();
            let help = line.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert_eq!(help.contains("--threads"), is_shown, "{name}: {help}");
            assert!(help.contains("--help"), "{name}: {help}");
        }
        let matches = command().try_get_matches_from(["hearth", "health", "--threads", "4"]).unwrap();
        assert_eq!(Cli::from_arg_matches(&matches).unwrap().threads, Some(4), "accepted everywhere");
    }

    #[test]
    fn serve_is_the_default_subcommand() {
        for args in [
            &["--port", "9"][..],
            &["serve", "--port", "9"],
            &["--port=9"],
            &["--threads", "1", "--port", "9"],
            &["--threads=1", "serve", "--port", "9"],
        ] {
            let Command::Serve(serve) = parse(args).unwrap().command else { unreachable!("{args:?}") };
            assert_eq!(serve.config.port, 9);
        }
        assert!(matches!(parse(&[]).unwrap().command, Command::Serve(_)));
        assert!(matches!(parse(&["--threads", "1"]).unwrap().command, Command::Serve(_)));
    }

    #[test]
    fn subcommand_may_follow_threads() {
        for args in [&["--threads", "1", "merge", "a", "b", "c"][..], &["--threads=1", "merge", "a", "b", "c"]] {
            let cli = parse(args).unwrap();
            assert!(matches!(cli.command, Command::Merge(_)), "{args:?}");
            assert_eq!(cli.threads, Some(1));
        }
        assert_eq!(parse(&["--threads", "1", "--help"]).unwrap_err().exit_code(), 0);
        assert_eq!(parse(&["--threads", "1", "sing"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn subcommand_of_hearth_train_is_named_in_the_error() {
        let names: Vec<_> = Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(names, hearth_model::subcommands::OF_HEARTH);
        let error = naming_hearth_train(parse(&["finetune", "model"]).unwrap_err());
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("hearth-train finetune"), "{error}");
        assert!(!naming_hearth_train(parse(&["sing"]).unwrap_err()).to_string().contains("hearth-train"));
    }

    #[test]
    fn invalid_arguments_have_exit_code_2() {
        for args in [&["--port", "high"][..], &["sing"], &["--device", "abacus"], &["generate"], &["--nonsense"]] {
            assert_eq!(parse(args).unwrap_err().exit_code(), 2, "{args:?}");
        }
        assert_eq!(parse(&["--help"]).unwrap_err().exit_code(), 0);
    }
}
