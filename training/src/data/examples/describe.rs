//! Shows examples as they are trained, for `--inspect`.

use std::{
    env,
    ffi::OsString,
    fmt::Write,
    io::{self, IsTerminal},
};

use hearth_model::{TokenId, text::tokenizer::Tokenizer};
use serde_json::{Value, json};

use super::Example;

/// How trained tokens are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// By color: trained tokens green, others gray.
    Color,
    /// By brackets around each trained token.
    Brackets,
}

impl Style {
    /// Colors on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
    pub fn of_stdout() -> Style {
        if io::stdout().is_terminal() { Style::of_terminal(env::var_os("NO_COLOR")) } else { Style::Brackets }
    }

    fn of_terminal(no_color: Option<OsString>) -> Style {
        if no_color.is_some_and(|value| !value.is_empty()) { Style::Brackets } else { Style::Color }
    }
}

/// Alternating shades of green, so that the borders of tokens are visible.
const TRAINED: [&str; 2] = ["\x1b[32m", "\x1b[92m"];
const NOT_TRAINED: [&str; 2] = ["\x1b[90m", "\x1b[37m"];
const RESET: &str = "\x1b[0m";

/// A line with counts, and the tokens of an example, each marked as trained or not.
pub fn describe(example: &Example, tokenizer: &Tokenizer, style: Style) -> String {
    let counts = Counts::of(example, tokenizer);
    let mut text = format!(
        "{}: {} tokens, {} trained, {} BOS, {} EOS\n",
        example.origin,
        example.ids.len(),
        example.n_trained(),
        counts.n_bos,
        counts.n_eos
    );
    for (index, group) in groups(example, tokenizer).into_iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = match style {
            Style::Color => {
                let shades = if group.is_trained { TRAINED } else { NOT_TRAINED };
                write!(text, "{}{}{RESET}", shades[index % 2], shown(&group.text))
            }
            Style::Brackets if group.is_trained => write!(text, "[{}]", shown(&group.text)),
            Style::Brackets => write!(text, "{}", shown(&group.text)),
        };
        // An escape shows that the line break is a part of the token; the line is broken too.
        if group.text.ends_with('\n') {
            text.push('\n');
        }
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// The example as JSON: its origin, counts, ids, and for each id, whether it is trained.
pub fn inspect_json(example: &Example, tokenizer: &Tokenizer) -> Value {
    let counts = Counts::of(example, tokenizer);
    json!({
        "origin": example.origin,
        "tokens": example.ids.len(),
        "trained_tokens": example.n_trained(),
        "bos": counts.n_bos,
        "eos": counts.n_eos,
        "ids": example.ids,
        "trained": example.trained,
    })
}

struct Counts {
    n_bos: usize,
    n_eos: usize,
}

impl Counts {
    fn of(example: &Example, tokenizer: &Tokenizer) -> Counts {
        let count = |token: Option<TokenId>| example.ids.iter().filter(|&&id| Some(id) == token).count();
        Counts { n_bos: count(tokenizer.bos().map(|bos| bos.id)), n_eos: count(tokenizer.eos().map(|eos| eos.id)) }
    }
}

/// Consecutive tokens that are shown together: one, or several that share a character.
struct Group {
    text: String,
    is_trained: bool,
}

fn groups(example: &Example, tokenizer: &Tokenizer) -> Vec<Group> {
    let mut groups = Vec::new();
    let (mut bytes, mut is_trained) = (Vec::new(), false);
    for (&id, &trained) in example.ids.iter().zip(&example.trained) {
        bytes.extend(tokenizer.token_bytes(id));
        is_trained |= trained;
        let is_open = std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
        if !is_open {
            let text = String::from_utf8_lossy(&std::mem::take(&mut bytes)).into_owned();
            groups.push(Group { text, is_trained: std::mem::take(&mut is_trained) });
        }
    }
    if !bytes.is_empty() {
        groups.push(Group { text: String::from_utf8_lossy(&bytes).into_owned(), is_trained });
    }
    groups
}

/// Control characters as escapes: a text must not control the terminal.
fn shown(text: &str) -> String {
    let escape = |character: char| match character {
        control if control.is_control() => control.escape_default().to_string(),
        other => other.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_variable_disables_color_unless_it_is_empty() {
        for (no_color, style) in [(None, Style::Color), (Some(""), Style::Color), (Some("1"), Style::Brackets)] {
            assert_eq!(Style::of_terminal(no_color.map(OsString::from)), style, "{no_color:?}");
        }
    }
}
