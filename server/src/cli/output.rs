//! Results on standard output, and why there are none.

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

/// Characters of a line of an error that are shown.
const MAX_LINE: usize = 2000;

/// Writes `error` to standard error. Words of a file may be in it: they neither steer the terminal nor fill it.
pub fn print_error(error: &anyhow::Error) {
    // With nobody to read it, there is nothing to do about it.
    let _ = writeln!(io::stderr(), "error: {}", printable(&format!("{error:#}")));
}

fn printable(message: &str) -> String {
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
    fn words_of_a_file_do_not_steer_the_terminal() {
        assert_eq!(printable("`\u{1b}[2Jx\r` is wrong\nhint: é"), "`\\u{1b}[2Jx\\r` is wrong\nhint: é");
        assert_eq!(printable(&"é".repeat(MAX_LINE + 1)), "é".repeat(MAX_LINE) + "…");
        assert_eq!(printable(&"é".repeat(MAX_LINE)), "é".repeat(MAX_LINE));
    }
}
