//! `hearth-lab`: the command line of the laboratory. Results go to stdout, everything else to stderr. Exit codes: 1 a command failed,
//! 2 invalid command line, 130 or 143 a signal ended the command.

mod commands;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, value_parser};
use hearth_training::cli::{self, Program};

/// Makes the data of Hearth's own recipes, and studies decoding methods.
#[derive(Debug, Parser)]
#[command(name = "hearth-lab", version, arg_required_else_help = true)]
struct Cli {
    /// Number of threads that compute on the CPU [default: one per core that may be used]
    #[arg(long, env = "HEARTH_THREADS", global = true, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Tales(commands::tales::Args),
    Bilingual(commands::bilingual::Args),
    Decoding(commands::decoding::Args),
}

fn main() -> ExitCode {
    cli::main::<Cli>()
}

impl Program for Cli {
    fn threads(&self) -> Option<u16> {
        self.threads
    }

    fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Tales(args) => commands::tales::run(args),
            Command::Bilingual(args) => commands::bilingual::run(args),
            Command::Decoding(args) => commands::decoding::run(args),
        }
    }
}
