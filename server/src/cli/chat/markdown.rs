//! Light Markdown on a terminal, piece by piece: headings, bold text and code. Everything else stays as it is.
//!
//! The text may come from anywhere, so control characters are made visible: a text must not control the terminal.

/// Terminal codes.
const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const CODE: &str = "\x1b[36m";

/// A run of this many backticks begins and ends a block of code.
const FENCE: &str = "```";

/// Maximum number of characters that decide the kind of a line: six `#` and a space.
const MAX_MARKS: usize = 7;

/// How text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// With terminal codes in place of marks.
    Markdown,
    /// Marks as they are.
    Plain,
}

/// Converts text to terminal output.
#[derive(Debug)]
pub(super) struct Renderer {
    style: Style,
    /// Text that is not shown yet, because the text after it decides how.
    held: String,
    place: Place,
    is_bold: bool,
    /// The character before `held` in its line.
    last: Option<char>,
}

/// The context of the next character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    LineStart,
    Text,
    Heading,
    /// In code within a line.
    Code,
    /// At the start of a line in a block of code.
    BlockStart,
    /// In a line of a block of code.
    Block,
    /// Behind the marks that begin a block of code, in the same line.
    Opening,
    /// After the marks that end a block of code.
    Closing,
}

impl Renderer {
    pub(super) fn new(style: Style) -> Self {
        Self { style, held: String::new(), place: Place::LineStart, is_bold: false, last: None }
    }

    /// The terminal output for `text`.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut shown = String::new();
        for character in text.chars() {
            if self.style == Style::Plain {
                show(&mut shown, character);
            } else {
                self.held.push(character);
                self.settle(&mut shown, false);
            }
        }
        shown
    }

    /// The remaining output at the end.
    pub(super) fn finish(&mut self) -> String {
        let mut shown = String::new();
        self.settle(&mut shown, true);
        if self.is_bold || self.place != Place::LineStart && self.place != Place::Text {
            shown += RESET;
        }
        *self = Self::new(self.style);
        shown
    }

    /// Shows as much of the held text as is certain; all of it at the end.
    fn settle(&mut self, shown: &mut String, is_end: bool) {
        while let Some(first) = self.held.chars().next() {
            let n_taken = match self.place {
                Place::LineStart => self.line_start(shown, is_end),
                Place::BlockStart => self.block_start(shown, is_end),
                _ if first == '\n' => {
                    self.end_line(shown);
                    Some(1)
                }
                Place::Opening | Place::Closing | Place::Heading | Place::Block => {
                    show(shown, first);
                    Some(first.len_utf8())
                }
                Place::Code if first == '`' => {
                    *shown += if self.is_bold { "\x1b[0;1m" } else { RESET };
                    self.place = Place::Text;
                    Some(1)
                }
                Place::Code => {
                    show(shown, first);
                    Some(first.len_utf8())
                }
                Place::Text => self.text(shown, first, is_end),
            };
            let Some(n_taken) = n_taken else { return };
            self.last = self.held[..n_taken].chars().next_back();
            self.held.drain(..n_taken);
        }
    }

    /// Determines the kind of the line that begins. `None`: more text is needed.
    fn line_start(&mut self, shown: &mut String, is_end: bool) -> Option<usize> {
        let marks = self.held.chars().take_while(|&c| c == '#').count();
        let is_open = |held: &str| !is_end && held.len() < MAX_MARKS;
        if marks > 0 && marks < MAX_MARKS && self.held[marks..].starts_with(' ') {
            *shown += BOLD;
            self.place = Place::Heading;
            return Some(marks + 1);
        }
        if self.held.starts_with(FENCE) {
            *shown += CODE;
            *shown += FENCE;
            self.place = Place::Opening;
            return Some(FENCE.len());
        }
        let may_be_heading = marks > 0 && marks == self.held.len();
        let may_be_fence = FENCE.starts_with(self.held.as_str());
        if is_open(&self.held) && (may_be_heading || may_be_fence) {
            return None;
        }
        self.last = None;
        self.place = Place::Text;
        Some(0)
    }

    /// A line in a block of code, or its end.
    fn block_start(&mut self, shown: &mut String, is_end: bool) -> Option<usize> {
        if self.held.starts_with(FENCE) {
            *shown += FENCE;
            self.place = Place::Closing;
            return Some(FENCE.len());
        }
        if !is_end && FENCE.starts_with(self.held.as_str()) {
            return None;
        }
        self.place = Place::Block;
        Some(0)
    }

    /// A character of ordinary text.
    fn text(&mut self, shown: &mut String, first: char, is_end: bool) -> Option<usize> {
        match first {
            '`' => {
                *shown += CODE;
                self.place = Place::Code;
                Some(1)
            }
            '*' => {
                let mut rest = self.held[1..].chars();
                let (second, third) = (rest.next(), rest.next());
                if !is_end && (second.is_none() || second == Some('*') && third.is_none() && !self.is_bold) {
                    return None;
                }
                let opens = !self.is_bold
                    && third.is_some_and(|c| !c.is_whitespace() && c != '*')
                    && !self.last.is_some_and(char::is_alphanumeric);
                let closes = self.is_bold && self.last.is_some_and(|c| !c.is_whitespace());
                if second == Some('*') && (opens || closes) {
                    self.is_bold = opens;
                    *shown += if opens { BOLD } else { RESET };
                    return Some(2);
                }
                let n_marks = self.held.chars().take_while(|&c| c == '*').count();
                *shown += &self.held[..n_marks];
                Some(n_marks)
            }
            other => {
                show(shown, other);
                Some(other.len_utf8())
            }
        }
    }

    fn end_line(&mut self, shown: &mut String) {
        let is_plain = !self.is_bold && matches!(self.place, Place::Text | Place::LineStart);
        let stays = matches!(self.place, Place::Block | Place::Opening);
        if !is_plain && !stays {
            *shown += RESET;
        }
        shown.push('\n');
        self.is_bold = false;
        self.place = if stays { Place::BlockStart } else { Place::LineStart };
    }
}

fn show(shown: &mut String, character: char) {
    match character {
        '\n' | '\t' => shown.push(character),
        control if control.is_control() => shown.extend(control.escape_default()),
        other => shown.push(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rendered text, with escape codes replaced by letters in braces.
    fn rendered(text: &str) -> String {
        let mut renderer = Renderer::new(Style::Markdown);
        let whole = renderer.push(text) + &renderer.finish();
        // The result must not depend on how the text is split into pieces.
        let mut by_character = String::new();
        for character in text.chars() {
            by_character += &renderer.push(&character.to_string());
        }
        by_character += &renderer.finish();
        assert_eq!(whole, by_character);
        whole.replace("\x1b[0;1m", "{B}").replace(RESET, "{}").replace(BOLD, "{b}").replace(CODE, "{c}")
    }

    #[test]
    fn markdown_is_rendered_as_terminal_escape_codes() {
        for (text, expected) in [
            ("plain *text* 2 * 3\n- a\n* b", "plain *text* 2 * 3\n- a\n* b"),
            ("a **bold** word", "a {b}bold{} word"),
            ("**bold: `code` on** off", "{b}bold: {c}code{B} on{} off"),
            ("use `a**b**c` now", "use {c}a**b**c{} now"),
            ("## Two words\ntext", "{b}Two words{}\ntext"),
            ("#tag ####### x", "#tag ####### x"),
            ("2**3**4 and x ** y", "2**3**4 and x ** y"),
            ("**never closed\nnext", "{b}never closed{}\nnext"),
            ("`never closed\nnext", "{c}never closed{}\nnext"),
            (
                "```rust\nlet a = 1; // **no**\n# no\n```\n**yes**",
                "{c}```rust\nlet a = 1; // **no**\n# no\n```{}\n{b}yes{}",
            ),
            ("```\nnever closed", "{c}```\nnever closed{}"),
            ("``", "{c}{}"),
            ("#", "#"),
            ("**", "**"),
            ("", ""),
        ] {
            assert_eq!(rendered(text), expected, "{text}");
        }
    }

    #[test]
    fn markdown_renderer_escapes_control_characters() {
        assert_eq!(rendered("a\u{1b}[2Jb\r\tc\u{9b}"), "a\\u{1b}[2Jb\\r\tc\\u{9b}");
        assert_eq!(Renderer::new(Style::Plain).push("**a**\u{7}"), "**a**\\u{7}");
    }
}
