//! The items of an answer, in the order in which the model wrote them: thoughts, texts and calls.
//!
//! They are the same, however the answer was cut into tokens: whole answers and streams are read by the same code.

use hearth_engine::StopCause;

use super::stream::{Answer, TokenEntry};
use crate::api::tools::{
    piece::{Piece, TextEnd},
    reasoning::AnswerReader,
    tool_calls::text_end,
};

/// One item.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Reasoning(String),
    Text { text: String, logprobs: Vec<TokenEntry> },
    Call { name: String, arguments: String },
}

/// The change of the item with this index.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The item began. Its text or arguments are still empty.
    Opened(usize),
    /// This text, or these arguments, were added.
    Grown { index: usize, text: String, logprobs: Vec<TokenEntry> },
    /// The item is complete, or the answer was cut off within it.
    Closed(usize),
}

/// The items of an answer that is being generated.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    reader: AnswerReader,
    list: Vec<Item>,
    /// Whether the last item may grow.
    is_open: bool,
    /// The index of the item that the end of the answer has cut off.
    cut: Option<usize>,
    /// Whether an answer without items has an empty text.
    is_never_empty: bool,
    /// Entries of tokens whose text has not been classified yet.
    logprobs: Vec<TokenEntry>,
    end: Option<End>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: Option<&'static str>,
    pub(crate) cause: Option<StopCause>,
}

impl End {
    /// Whether the model ended the answer itself.
    pub(crate) fn is_whole(&self) -> bool {
        text_end(self.reason, &self.cause) == TextEnd::Whole
    }

    /// Whether the limit of tokens, or the context, ended it.
    pub(crate) fn is_length(&self) -> bool {
        self.reason == Some("length")
    }
}

impl Items {
    pub(crate) fn new(reader: AnswerReader) -> Self {
        let (list, logprobs) = (Vec::new(), Vec::new());
        Self { reader, list, is_open: false, cut: None, is_never_empty: false, logprobs, end: None }
    }

    /// An answer without items then has an empty text.
    pub(crate) fn never_empty(self) -> Self {
        Self { is_never_empty: true, ..self }
    }

    /// All items so far.
    pub(crate) fn list(&self) -> &[Item] {
        &self.list
    }

    /// Approximate size of all items as JSON in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        let n_bytes = |item: &Item| match item {
            Item::Reasoning(text) | Item::Call { arguments: text, .. } => text.len(),
            Item::Text { text, logprobs } => text.len() + logprobs.iter().map(TokenEntry::n_bytes).sum::<usize>(),
        };
        self.list.iter().map(n_bytes).sum()
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.list.iter().any(|item| matches!(item, Item::Call { .. }))
    }

    /// Whether the answer ended within the item.
    pub(crate) fn is_cut(&self, index: usize) -> bool {
        self.cut == Some(index)
    }

    /// How the answer ended; `None` while it is being generated.
    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Adds a delta.
    pub(crate) fn push(&mut self, answer: Answer) -> Vec<Change> {
        let Answer { text, logprobs, finish_reason, stop_cause, .. } = answer;
        let n_before = self.logprobs.len();
        self.logprobs.extend(logprobs.into_iter().flatten());
        let mut pieces = self.reader.push(&text);
        if self.reader.take_mark() {
            // The token that completes the mark may also begin the text.
            self.logprobs.drain(..n_before);
            if !pieces.iter().any(|piece| matches!(piece, Piece::Content(_))) {
                self.logprobs.clear();
            }
        }
        if finish_reason.is_some() {
            pieces.extend(self.reader.finish(text_end(finish_reason, &stop_cause)));
        }
        let mut changes = Vec::new();
        let is_empty =
            |piece: &Piece| matches!(piece, Piece::Reasoning(text) | Piece::Content(text) if text.is_empty());
        pieces.into_iter().filter(|piece| !is_empty(piece)).for_each(|piece| self.add(piece, &mut changes));
        if finish_reason.is_some() {
            if self.list.is_empty() && self.is_never_empty {
                self.add(Piece::Content(String::new()), &mut changes);
            }
            let end = End { reason: finish_reason, cause: stop_cause };
            if end.is_length() && self.is_open {
                self.cut = self.list.len().checked_sub(1);
            }
            self.close(&mut changes);
            self.end = Some(end);
        }
        changes
    }

    fn add(&mut self, piece: Piece, changes: &mut Vec<Change>) {
        let (text, logprobs) = match piece {
            Piece::Content(text) => {
                let is_text = matches!(self.list.last(), Some(Item::Text { .. }));
                let begins = !(is_text && self.is_open);
                self.open_unless(is_text, || Item::Text { text: String::new(), logprobs: Vec::new() }, changes);
                let mut logprobs = std::mem::take(&mut self.logprobs);
                if begins && !text.starts_with(char::is_whitespace) {
                    // White space after a mark is no part of the text.
                    let n_blank = logprobs.iter().take_while(|entry| entry.token.text.trim().is_empty()).count();
                    logprobs.drain(..n_blank);
                }
                (text, logprobs)
            }
            Piece::Reasoning(text) => {
                let is_thought = matches!(self.list.last(), Some(Item::Reasoning(_)));
                self.open_unless(is_thought, || Item::Reasoning(String::new()), changes);
                self.logprobs.clear();
                (text, Vec::new())
            }
            Piece::Call(name) => {
                self.open_unless(false, || Item::Call { name, arguments: String::new() }, changes);
                self.logprobs.clear();
                return;
            }
            Piece::Arguments(text) => {
                self.logprobs.clear();
                (text, Vec::new())
            }
        };
        match self.list.last_mut() {
            Some(Item::Reasoning(whole) | Item::Call { arguments: whole, .. }) => whole.push_str(&text),
            Some(Item::Text { text: whole, logprobs: all }) => {
                whole.push_str(&text);
                all.extend(logprobs.iter().cloned());
            }
            None => return,
        }
        changes.push(Change::Grown { index: self.list.len() - 1, text, logprobs });
    }

    /// Opens an item, unless the last one may grow and is of the same kind.
    fn open_unless(&mut self, is_same: bool, item: impl FnOnce() -> Item, changes: &mut Vec<Change>) {
        if is_same && self.is_open {
            return;
        }
        self.close(changes);
        self.list.push(item());
        self.is_open = true;
        changes.push(Change::Opened(self.list.len() - 1));
    }

    fn close(&mut self, changes: &mut Vec<Change>) {
        if std::mem::take(&mut self.is_open) {
            changes.push(Change::Closed(self.list.len() - 1));
        }
    }
}
