//! The binary `hearth`. Exit codes: 0 success, 1 failure, 2 invalid command line.

use std::process::ExitCode;

use hearth_server::cli::{self, Cli};

fn main() -> ExitCode {
    match Cli::from_env().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
