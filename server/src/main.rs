//! The binary `hearth`: parse, dispatch, report. Exit code 0 is success, 1 a failure, 2 a command line that makes no
//! sense.

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
