//! Results on standard output.

use std::io::{self, Write};

use anyhow::Context;

/// Writes `text`. A reader that has what it wanted and is gone, as `head` is, is no error.
///
/// # Errors
/// Standard output cannot be written to, say because a disk is full.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
