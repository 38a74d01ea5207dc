//! Logs go to stderr; `HEARTH_LOG`, or `RUST_LOG`, says which, in the syntax of `tracing`'s filters.
//!
//! What becomes of a line is nobody's concern who serves: a full disk, a reader that has gone or one that does not read
//! must not cost an answer, nor keep the server from ending.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::config::LogFormat;

/// Lines that wait to be written, at most; further ones are lost.
const WAITING_LINES: usize = 10_000;

/// Lines are written where they come up: for commands that do one thing.
pub(super) fn here(default: &str) -> anyhow::Result<()> {
    start(default, LogFormat::Text, io::stderr)
}

/// Lines are written by a thread of their own, for which nobody waits. What waits when the guard is dropped is written
/// then, if that takes no longer than a second.
pub(super) fn beside(default: &str, format: LogFormat) -> anyhow::Result<WorkerGuard> {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES).thread_name("log");
    let (writer, guard) = builder.finish(io::stderr());
    start(default, format, writer)?;
    Ok(guard)
}

fn start<W>(default: &str, format: LogFormat, writer: W) -> anyhow::Result<()>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let given = ["HEARTH_LOG", "RUST_LOG"].into_iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = match given {
        Some((name, filter)) => {
            EnvFilter::try_new(&filter).with_context(|| format!("cannot read `{name}={filter}`"))?
        }
        None => EnvFilter::try_new(default)?,
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // Its own complaints would go to stderr too, and end the thread where that cannot be written.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        // Fields side by side with the message, so that a query needs no path.
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
