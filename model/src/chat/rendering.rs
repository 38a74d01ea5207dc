//! Runs a compiled template: its text is bounded, and a fault of the template engine is an error like any other.
//!
//! What is not bounded is the memory that a template takes on its way. Instructions are counted, but one instruction
//! can double a text (`x ~ x`, `x + x`, a `set` block that writes `x` twice), and forty of them exhaust any machine.
//! Jinja's engine has no limit for it. Templates come with the model and are trusted that far; none from elsewhere may
//! be rendered here.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use minijinja::{Template, Value};

use super::environment;
use crate::error::{Error, Result};

/// Bytes of text that one rendering may write; a context of a million tokens is a tenth of it.
const MAX_TEXT: usize = 1 << 26;

/// The text that `template` makes of `variables`.
pub(super) fn render(template: &Template<'_, '_>, variables: Value) -> Result<String> {
    let mut text = Text(Vec::new());
    // The engine panics where it slices an empty list backwards (minijinja 3.0.5). A rendering leaves nothing behind
    // that a panic could break.
    let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(variables, &mut text).map(drop)));
    match rendered {
        Ok(Ok(())) => String::from_utf8(text.0).map_err(|_| failed("wrote bytes that are no text")),
        Ok(Err(error)) if error.kind() == minijinja::ErrorKind::WriteFailure => {
            Err(failed(&format!("made a text of more than {MAX_TEXT} bytes")))
        }
        Ok(Err(error)) => Err(environment::render_error(&error)),
        Err(_) => Err(failed("has an expression on which the template engine breaks down")),
    }
}

fn failed(what: &str) -> Error {
    Error::Template { what: what.to_owned(), hint: "use a corrected template".to_owned() }
}

/// Takes so much text and no more.
struct Text(Vec<u8>);

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_TEXT - self.0.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
