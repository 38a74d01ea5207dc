//! The binary `hearth`: parse, dispatch, report. Exit code 0 is success, 1 a failure, 2 a command line that makes no
//! sense.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use hearth_server::cli::Cli;

fn main() -> ExitCode {
    match Cli::from_env().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With nobody to read it, there is nothing to do about it.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
