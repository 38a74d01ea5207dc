//! The line of progress that a terminal rewrites.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use crate::ranks;

/// Moves to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One line that is rewritten.
    Terminal,
    /// A new line each time.
    Plain,
}

/// Lines of progress, and permanent lines among them. Work continues if they cannot be written: a closed terminal must not
/// lose hours of training.
pub struct ProgressLine {
    out: Box<dyn Write>,
    style: Style,
    /// Whether there is a line on the terminal that will be rewritten.
    is_open: bool,
}

impl ProgressLine {
    /// Shows lines on `out`.
    pub fn new(out: Box<dyn Write>, style: Style) -> ProgressLine {
        ProgressLine { out, style, is_open: false }
    }

    /// Shows lines on stderr, in the style that fits it. Of several processes of a run, the first does.
    pub fn on_stderr() -> ProgressLine {
        if !ranks::of_process().is_first() {
            return ProgressLine::new(Box::new(io::sink()), Style::Plain);
        }
        let style = if io::stderr().is_terminal() { Style::Terminal } else { Style::Plain };
        ProgressLine::new(Box::new(io::stderr()), style)
    }

    /// How lines are shown.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Shows `line` until the next one.
    pub fn show(&mut self, line: &str) {
        match self.style {
            Style::Plain => self.write(&format!("{line}\n")),
            Style::Terminal => self.write(&format!("{CLEAR_LINE}{line}")),
        }
        self.is_open = self.style == Style::Terminal;
    }

    /// Shows a permanent line.
    pub fn note(&mut self, line: &str) {
        let clear = if self.is_open { CLEAR_LINE } else { "" };
        self.write(&format!("{clear}{line}\n"));
        self.is_open = false;
    }

    /// Clears the line that a terminal shows.
    pub fn clear(&mut self) {
        if self.is_open {
            self.write(CLEAR_LINE);
        }
        self.is_open = false;
    }

    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

impl fmt::Debug for ProgressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressLine")
            .field("style", &self.style)
            .field("is_open", &self.is_open)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    /// The written bytes, accessible after the writer has been given away.
    #[derive(Clone, Default)]
    struct Written(Rc<RefCell<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn progress_lines_are_rewritten_only_on_a_terminal() {
        for (style, expected) in [
            (Style::Terminal, "first\n\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Knote\nlast\n\r\x1b[Kthree\r\x1b[K"),
            (Style::Plain, "first\none\ntwo\nnote\nlast\nthree\n"),
        ] {
            let written = Written::default();
            let mut line = ProgressLine::new(Box::new(written.clone()), style);
            line.note("first");
            line.show("one");
            line.show("two");
            line.note("note");
            line.note("last");
            line.clear();
            line.show("three");
            line.clear();
            line.clear();
            assert_eq!(String::from_utf8(written.0.take()).unwrap(), expected);
        }
    }
}
