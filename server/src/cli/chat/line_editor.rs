//! Lines from the terminal: editing, history, and completion of commands.

use std::{
    borrow::Cow,
    env,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use reedline::{
    ColumnarMenu, Completer, Emacs, FileBackedHistory, Highlighter, KeyCode, KeyModifiers, MenuBuilder, Prompt,
    PromptEditMode, PromptHistorySearch, Reedline, ReedlineEvent, ReedlineMenu, Signal, Span, StyledText, Suggestion,
    ValidationResult, Validator, default_emacs_keybindings,
};

use super::command;

/// Messages that are remembered.
const MAX_HISTORY: usize = 1000;

const MENU: &str = "commands";

const PROMPT: &str = ">>> ";

/// A person's input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Line(String),
    /// Ctrl-c.
    Interrupt,
    /// Ctrl-d.
    End,
}

/// Reads lines.
pub(super) struct LineEditor(Reedline);

impl LineEditor {
    /// An editor with the history of earlier conversations, if it can be read and written.
    pub(super) fn new() -> Self {
        let mut keys = default_emacs_keybindings();
        let complete = ReedlineEvent::UntilFound(vec![ReedlineEvent::Menu(MENU.to_owned()), ReedlineEvent::MenuNext]);
        keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, complete);
        let menu = ReedlineMenu::EngineCompleter(Box::new(ColumnarMenu::default().with_name(MENU).with_marker(PROMPT)));
        let editor = Reedline::create()
            .with_edit_mode(Box::new(Emacs::new(keys)))
            .with_completer(Box::new(Commands))
            .with_menu(menu)
            .with_quick_completions(true)
            .with_partial_completions(true)
            .with_validator(Box::new(Backslash))
            .with_highlighter(Box::new(AsItIs))
            .with_ansi_colors(env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
            .use_bracketed_paste(true);
        Self(match history() {
            Some(history) => editor.with_history(Box::new(history)),
            None => editor,
        })
    }

    /// The next message or command.
    pub(super) fn read(&mut self) -> anyhow::Result<Typed> {
        match self.0.read_line(&Arrows).context("cannot read from the terminal")? {
            // A backslash at the end of a line continues the message on the next line.
            Signal::Success(line) => Ok(Typed::Line(line.replace("\\\n", "\n"))),
            Signal::CtrlC => Ok(Typed::Interrupt),
            Signal::CtrlD => Ok(Typed::End),
        }
    }
}

/// The history of earlier conversations. `None` if its file cannot be used: the editor then keeps a history in memory.
fn history() -> Option<FileBackedHistory> {
    let path = history_file()?;
    let opened = private(&path).and_then(|()| {
        FileBackedHistory::with_file(MAX_HISTORY, path.clone()).map_err(|error| io::Error::other(error.to_string()))
    });
    opened.inspect_err(|error| tracing::info!("no history in `{}`: {error}", path.display())).ok()
}

/// The history file, in the state folder of the XDG Base Directory Specification.
fn history_file() -> Option<PathBuf> {
    let given = env::var_os("XDG_STATE_HOME").filter(|dir| Path::new(dir).is_absolute()).map(PathBuf::from);
    let dir = given.or_else(|| env::home_dir().map(|home| home.join(".local/state")))?;
    Some(dir.join("hearth/chat-history"))
}

/// Creates the file at `path`, unless it exists, so that only its owner can read it.
fn private(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// Completes commands.
struct Commands;

impl Completer for Commands {
    fn complete(&mut self, line: &str, position: usize) -> Vec<Suggestion> {
        let begun = line.get(..position).unwrap_or_default();
        let is_name = begun.starts_with('/') && !begun.contains(char::is_whitespace);
        let names = command::names().filter(|name| is_name && name.starts_with(begun));
        let suggestion = |name: &str| Suggestion {
            value: name.to_owned(),
            span: Span::new(0, position),
            append_whitespace: true,
            ..Suggestion::default()
        };
        names.map(suggestion).collect()
    }
}

/// Continues lines that end with a backslash.
struct Backslash;

impl Validator for Backslash {
    fn validate(&self, line: &str) -> ValidationResult {
        if line.ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Complete }
    }
}

/// Shows input in the terminal's own colors. The default is white, which is invisible on light terminals.
struct AsItIs;

impl Highlighter for AsItIs {
    fn highlight(&self, line: &str, _cursor: usize) -> StyledText {
        let mut text = StyledText::new();
        text.push((Default::default(), line.to_owned()));
        text
    }
}

struct Arrows;

impl Prompt for Arrows {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed(PROMPT)
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed("... ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(search: {}) ", search.term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_completed_only_at_the_start_of_a_line() {
        let complete = |line: &str| {
            let found = Commands.complete(line, line.len());
            found.into_iter().map(|suggestion| suggestion.value).collect::<Vec<_>>()
        };
        assert_eq!(complete("/s"), ["/system", "/set", "/save"]);
        assert_eq!(complete("/re"), ["/regen"]);
        for nothing in ["", "s", "/set t", "a /s"] {
            assert_eq!(complete(nothing), [""; 0], "{nothing}");
        }
    }
}
