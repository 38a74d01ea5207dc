//! How a program starts: command line, log, threads; and how it reports that its command failed.

use std::{
    env,
    io::{self, Write},
    num::NonZeroUsize,
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::Result;
use clap::{Parser, builder::Resettable};
use hearth_model::ops;

use crate::{
    interrupt,
    ranks::{self, launch::Launched},
};

/// How long a failing rank waits, so that rank 0 can report the reason first.
const FIRST_TELLS: Duration = Duration::from_secs(1);

/// A command line program.
pub trait Program: Parser {
    /// Number of threads that compute on the CPU; `None`: one per core that may be used.
    fn threads(&self) -> Option<u16>;

    /// Runs the command.
    ///
    /// # Errors
    /// The command failed.
    fn run(self) -> Result<ExitCode>;

    /// Adds a tip to an error about the command line.
    fn with_tip(error: clap::Error) -> clap::Error {
        error
    }
}

/// Runs a program as its `main`. Exit codes: 1 the command failed, 2 invalid command line, 130 or 143 a signal ended the command.
pub fn main<P: Program>() -> ExitCode {
    let matches = without_empty_variables(P::command()).try_get_matches();
    let matches = matches.unwrap_or_else(|error| P::with_tip(error).exit());
    let program = P::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .without_time()
        .init();
    let launched = match Launched::find() {
        Ok(launched) => launched,
        Err(error) => return failure(&error),
    };
    if let Some(n) = program.threads().map(usize::from).or_else(|| launched.n_threads()).and_then(NonZeroUsize::new) {
        ops::use_threads(n);
    }
    // Before anything is computed.
    ops::start_threads();
    // Rejects an instruction set that the machine does not have.
    let outcome = ops::instruction_set().map_err(anyhow::Error::from).and_then(|_| program.run());
    match outcome {
        Ok(code) => {
            launched.end();
            code
        }
        Err(error) => {
            interrupt::wait_if_ending();
            if !ranks::of_process().is_first() {
                // Most errors occur on all ranks, and rank 0 reports them.
                thread::sleep(FIRST_TELLS);
            }
            let code = failure(&error);
            launched.abort();
            code
        }
    }
}

/// Reports that the command failed, and in which rank.
fn failure(error: &anyhow::Error) -> ExitCode {
    let group = ranks::of_process();
    let rank = if group.is_alone() { String::new() } else { format!("rank {} of {}: ", group.rank(), group.size()) };
    // If stderr is closed too, only the exit code remains.
    let _ = writeln!(io::stderr(), "error: {rank}{}", shown(error));
    ExitCode::FAILURE
}

/// The command and its subcommands, ignoring variables that are empty: containers' environment files often set such.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if env::var_os(name).is_some_and(|value| value.is_empty()) => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

/// An error with its causes, each once, and the hints at the end.
fn shown(error: &anyhow::Error) -> String {
    let (mut what, mut hints) = (String::new(), Vec::new());
    for cause in error.chain() {
        let cause = cause.to_string();
        let (cause, hint) = cause.split_once("\nhint: ").map_or((&*cause, None), |(cause, hint)| (cause, Some(hint)));
        hints.extend(hint.map(str::to_owned));
        // Some errors include their cause.
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
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn error_message_shows_each_cause_once_before_the_hint() {
        let cause = anyhow!("early end");
        let error =
            Err::<(), _>(cause).context("bad frame: early end").context("`a.zst` is damaged\nhint: get it again");
        let error = error.map_err(|error| shown(&error));
        assert_eq!(error, Err("`a.zst` is damaged: bad frame: early end\nhint: get it again".to_owned()));
    }
}
