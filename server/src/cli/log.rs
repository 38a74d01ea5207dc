//! Logs go to stderr; `HEARTH_LOG`, or `RUST_LOG`, selects the lines, in the syntax of `tracing`'s filters.
//!
//! Logging never blocks or stops the server: if the disk is full or the reader is gone or stuck, lines are lost.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::config::LogFormat;

/// Maximum number of lines that wait to be written; further ones are lost.
const WAITING_LINES: usize = 10_000;

/// Writes lines synchronously: for commands other than `serve`.
pub(super) fn init_blocking(default: &str) -> anyhow::Result<()> {
    start(default, LogFormat::Text, io::stderr)
}

/// Writes lines from a separate thread. Dropping the guard writes the remaining lines, for at most one second.
pub(super) fn init_background(default: &str, format: LogFormat) -> anyhow::Result<WorkerGuard> {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES).thread_name("log");
    let (writer, guard) = builder.finish(io::stderr());
    start(default, format, writer)?;
    Ok(guard)
}

fn start<W>(default: &str, format: LogFormat, writer: W) -> anyhow::Result<()>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let given = ["HEARTH_LOG", "RUST_LOG"].into_iter().find_map(|name| Some((name, set(name)?)));
    let filter = match given {
        Some((name, filter)) => {
            EnvFilter::try_new(&filter).with_context(|| format!("cannot read `{name}={filter}`"))?
        }
        None => EnvFilter::try_new(default)?,
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // The subscriber's own errors would also go to stderr, and would end the thread if stderr is closed.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        // Fields at the top level next to the message, for simple queries.
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
