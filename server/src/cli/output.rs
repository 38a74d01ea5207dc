//! Writes results to standard output and errors to standard error.

use std::io::{self, Write};

use anyhow::Context;

/// Writes `text`. A closed pipe, as after `head`, is not an error.
///
/// # Errors
/// Standard output cannot be written, for example because a disk is full.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Maximum number of characters shown of each line of an error.
const MAX_LINE: usize = 2000;

/// Writes `error` to standard error. It may contain text from files, so control characters are escaped and long lines
/// cut.
pub fn print_error(error: &anyhow::Error) {
    // If standard error is closed, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "error: {}", printable(&format!("{error:#}")));
}

/// The text without control characters, and with long lines cut.
pub(super) fn printable(message: &str) -> String {
    let lines: Vec<String> = message.lines().map(printable_line).collect();
    lines.join("\n")
}

fn printable_line(line: &str) -> String {
    let mut shown = String::new();
    for character in line.chars().take(MAX_LINE) {
        if character.is_control() { shown.extend(character.escape_debug()) } else { shown.push(character) }
    }
    if line.chars().nth(MAX_LINE).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_control_characters_and_cuts_long_lines() {
        assert_eq!(printable("`\u{1b}[2Jx\r` is wrong\nhint: é"), "`\\u{1b}[2Jx\\r` is wrong\nhint: é");
        assert_eq!(printable(&"é".repeat(MAX_LINE + 1)), "é".repeat(MAX_LINE) + "…");
        assert_eq!(printable(&"é".repeat(MAX_LINE)), "é".repeat(MAX_LINE));
    }
}
