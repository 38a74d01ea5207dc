//! Parses tool calls in the text that a model writes. The result does not depend on how the text is split into pieces.
//! Text that may become a call is held, and not parsed again at each piece.
//!
//! If generation was unconstrained, a call is returned once it is complete and well formed. All other text is content,
//! including calls that are cut off. If there are calls, whitespace before the first and after the last content is
//! removed. If generation followed a grammar, arguments are returned as they arrive. Thoughts never reach this parser:
//! `reasoning` separates them.

mod waiting;

use std::sync::Arc;

use hearth_model::text::chat::thought::Place;
use serde_json::{Map, Value};

use self::waiting::WaitingFor;
use super::{
    call_arguments::{Call, Function, NUMBER},
    call_format::{Bare, Body, CallFormat},
    framed_calls::FramedText,
    json_scan::{JsonScan, Scanned},
    json_text::{elements, json_at_start, member_text},
    mismatch::Mismatch,
    piece::{Piece, TextEnd},
};

/// How many calls an answer may contain (`parallel_tool_calls`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    One,
    Several,
}

/// Parses the calls of one answer.
#[derive(Clone, Debug)]
pub(crate) struct ToolParser {
    format: &'static CallFormat,
    kind: Kind,
    /// Text that cannot be classified yet.
    held: String,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Finds calls in unconstrained text.
    Searching(Search),
    /// Splits text that a grammar has constrained to calls. `scan`: the state within a call's arguments; `has_calls`:
    /// whether a call has ended or begun.
    Following { scan: Option<JsonScan>, has_calls: bool },
}

/// State for unconstrained text.
#[derive(Clone, Debug)]
struct Search {
    format: &'static CallFormat,
    /// The offered functions.
    functions: Arc<[Function]>,
    n_calls: Calls,
    n_found: usize,
    /// Whitespace that becomes content only if content follows.
    blanks: String,
    /// Whether there has been content.
    has_content: bool,
    /// Whether there has been content since the start or the last call.
    is_content_sent: bool,
    /// Whether the current line has only whitespace so far.
    is_line_blank: bool,
    /// Whether there has been no text since the start, or since the last mark that is not part of the text.
    is_part_start: bool,
    waiting_for: WaitingFor,
}

impl ToolParser {
    /// For unconstrained text, which may contain calls.
    pub(crate) fn searching(format: &'static CallFormat, functions: Arc<[Function]>, n_calls: Calls) -> Self {
        let search = Search {
            format,
            functions,
            n_calls,
            n_found: 0,
            blanks: String::new(),
            has_content: false,
            is_content_sent: false,
            is_line_blank: true,
            is_part_start: true,
            waiting_for: WaitingFor::default(),
        };
        Self { format, kind: Kind::Searching(search), held: String::new() }
    }

    /// For text that consists only of calls, enforced by a grammar.
    pub(crate) fn following(format: &'static CallFormat) -> Self {
        Self { format, kind: Kind::Following { scan: None, has_calls: false }, held: String::new() }
    }

    /// Where the text so far ends.
    pub(crate) fn place(&self) -> Place {
        match &self.kind {
            _ if !self.held.trim_start().is_empty() => Place::InCall,
            Kind::Searching(search) if search.is_after_call() => Place::AfterCall,
            Kind::Following { scan, has_calls } if scan.is_some() || *has_calls => Place::InCall,
            Kind::Searching(_) | Kind::Following { .. } => Place::Text,
        }
    }

    /// Adds text without calls. The text after it begins a line.
    pub(crate) fn pass(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let text = std::mem::take(&mut self.held) + text;
        match &mut self.kind {
            Kind::Searching(search) => {
                search.waiting_for = WaitingFor::default();
                search.emit_content(&text, &mut pieces);
                search.is_line_blank = true;
            }
            Kind::Following { .. } => pieces.push(Piece::Content(text)),
        }
        pieces
    }

    /// Notes that a mark is next, which is no part of the text.
    pub(crate) fn note_mark(&mut self) {
        if let Kind::Searching(search) = &mut self.kind {
            search.is_part_start = true;
        }
    }

    /// An id for a call.
    pub(crate) fn fresh_id(&self) -> String {
        self.format.fresh_id()
    }

    /// Adds text and returns the pieces that are complete.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        match &mut self.kind {
            Kind::Searching(search) => {
                if !search.waiting_for.goes_on(text) {
                    search.advance(&mut self.held, None, &mut pieces);
                }
            }
            Kind::Following { scan, has_calls } => {
                follow(self.format, &mut self.held, scan, &mut pieces);
                *has_calls |= !pieces.is_empty();
            }
        }
        pieces
    }

    /// Ends the text and returns the rest.
    pub(crate) fn finish(&mut self, end: TextEnd) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let rest = match &mut self.kind {
            Kind::Searching(search) => {
                search.advance(&mut self.held, Some(end), &mut pieces);
                let blanks = std::mem::take(&mut search.blanks);
                if search.n_found == 0 { blanks } else { String::new() }
            }
            Kind::Following { has_calls, .. } => {
                let held = std::mem::take(&mut self.held);
                if *has_calls { after_calls(self.format, &held).to_owned() } else { held }
            }
        };
        if !rest.is_empty() {
            pieces.push(Piece::Content(rest));
        }
        pieces
    }
}

/// The part with which the held text starts.
enum Found {
    /// This many bytes of content.
    Content(usize),
    /// Text that may become a call. The last `n_json` bytes are the beginning of a JSON value.
    Open { n_json: usize },
    /// Text that may become a call, and certainly not before this comes.
    Until(&'static str),
    /// Calls of this many bytes.
    Calls { n_bytes: usize, calls: Vec<Call> },
}

/// Why a text does not start with calls.
enum NoCalls {
    /// The text is incomplete. Its last `n_json` bytes are the beginning of a JSON value.
    Cut { n_json: usize },
    /// The text is incomplete, at least until it contains this.
    Until(&'static str),
    /// This many bytes are something else.
    Content(usize),
}

impl From<Mismatch> for NoCalls {
    fn from(mismatch: Mismatch) -> Self {
        match mismatch {
            Mismatch::Cut { n_json } => Self::Cut { n_json },
            Mismatch::Until(text) => Self::Until(text),
            Mismatch::Other => Self::Content(0),
        }
    }
}

impl Search {
    /// Takes the settled part of the held text. `end` is `None` while more text may follow.
    fn advance(&mut self, held: &mut String, end: Option<TextEnd>, pieces: &mut Vec<Piece>) {
        self.waiting_for = WaitingFor::default();
        while !held.is_empty() {
            match self.look(held, end) {
                Found::Open { n_json } => {
                    self.waiting_for = WaitingFor::new(held, n_json);
                    return;
                }
                Found::Until(literal) => {
                    self.waiting_for = WaitingFor::literal(held, literal);
                    return;
                }
                Found::Content(n_bytes) => self.emit_content(&take_start(held, n_bytes), pieces),
                Found::Calls { n_bytes, calls } => {
                    held.drain(..n_bytes);
                    calls.into_iter().for_each(|call| self.emit_call(call, pieces));
                }
            }
        }
    }

    /// Emits content, except trailing whitespace, which is held until more text follows.
    fn emit_content(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let begins_part = self.is_part_start && self.has_content;
        self.is_part_start = false;
        let line = text.rsplit('\n').next().unwrap_or_default();
        self.is_line_blank = line.trim().is_empty() && (self.is_line_blank || line.len() < text.len());
        let (settled, blanks) = text.split_at(text.trim_end().len());
        if settled.is_empty() {
            self.blanks.push_str(blanks);
            return;
        }
        let mut text = std::mem::replace(&mut self.blanks, blanks.to_owned()) + settled;
        if self.is_after_call() && !self.has_content {
            text = text.trim_start().to_owned();
        }
        // The texts before and after a call, or a thought, are not one word.
        let is_apart = self.is_after_call() && self.has_content || begins_part;
        if is_apart && !text.starts_with(char::is_whitespace) {
            text.insert(0, '\n');
        }
        (self.has_content, self.is_content_sent) = (true, true);
        pieces.push(Piece::Content(text));
    }

    /// Whether there has been no content since the last call.
    fn is_after_call(&self) -> bool {
        self.n_found > 0 && !self.is_content_sent
    }

    fn emit_call(&mut self, call: Call, pieces: &mut Vec<Piece>) {
        self.n_found += 1;
        (self.is_content_sent, self.is_part_start) = (false, false);
        self.is_line_blank = true;
        // With `parallel_tool_calls` false, only the first call counts.
        if self.n_found == 1 || self.n_calls == Calls::Several {
            pieces.extend([Piece::Call(call.name), Piece::Arguments(call.arguments)]);
        }
    }

    /// Classifies the start of the held text.
    fn look(&self, held: &str, end: Option<TextEnd>) -> Found {
        if self.is_part_start {
            let first = self.format.first_openings;
            if first.iter().any(|mark| held.starts_with(mark)) {
                return self.calls_at(held, 0, end);
            }
            if end.is_none() && first.iter().any(|mark| mark.starts_with(held)) {
                return Found::Open { n_json: 0 };
            }
        }
        let rest = if self.is_after_call() { self.after_separator(held) } else { held };
        let n_before = held.len() - rest.len();
        let marks = self.format.openings.iter().filter_map(|mark| rest.find(mark));
        let bare = match self.format.bare {
            Bare::None => None,
            Bare::Json => self.brace_at_line_start(rest),
            Bare::Python => self.bracket_at_start(rest),
        };
        let call = marks.chain(bare).min();
        match call {
            Some(0) => self.calls_at(held, n_before, end),
            Some(start) => Found::Content(n_before + start),
            None => settled(rest, n_before, self.format.openings.iter().copied(), end),
        }
    }

    /// The text without separators of calls.
    fn after_separator<'a>(&self, text: &'a str) -> &'a str {
        let text = text.trim_start();
        let separator = self.format.separator.trim();
        // The mark that ends a call is gone already.
        let separator = separator.strip_prefix(self.format.closing.unwrap_or_default()).unwrap_or(separator);
        // A mark may begin like the separator, which may be incomplete.
        if separator.is_empty() || self.format.openings.iter().any(|mark| text.starts_with(mark)) {
            return text;
        }
        match text.strip_prefix(separator).map(str::trim_start) {
            Some(rest) if !rest.is_empty() || separator.len() == 1 => rest,
            _ => text,
        }
    }

    /// Calls start at the beginning of a line; objects in running text are not calls.
    fn brace_at_line_start(&self, held: &str) -> Option<usize> {
        let mut line_start = 0;
        held.split_inclusive('\n').find_map(|line| {
            let (start, text) = (line_start, line.trim_start());
            line_start += line.len();
            let is_at_start = text.starts_with('{') && (start > 0 || self.is_line_blank);
            is_at_start.then_some(line_start - text.len())
        })
    }

    /// A list of calls occurs only at the start of an answer, or after other calls.
    fn bracket_at_start(&self, held: &str) -> Option<usize> {
        let text = held.trim_start();
        (!self.has_content && text.starts_with('[')).then_some(held.len() - text.len())
    }

    /// The calls at byte `start`, where there is a mark, a brace or a bracket.
    fn calls_at(&self, held: &str, start: usize, end: Option<TextEnd>) -> Found {
        let text = &held[start..];
        let first = if start == 0 && self.is_part_start { self.format.first_openings } else { &[] };
        let opening = self.format.openings.iter().chain(first).find(|mark| text.starts_with(**mark)).copied();
        // The bracket of a list belongs to the calls.
        let after_mark = opening.map(|mark| &text[mark.trim_end_matches('[').len()..]);
        let body = after_mark.unwrap_or(text).trim_start();
        let n_before = held.len() - body.len();
        // A brace without a mark that cannot begin a call is content immediately. `n_before` ends before that brace,
        // but includes a mark.
        let is_json = matches!(self.format.body, Body::Json { .. });
        if after_mark.is_none() && is_json && !may_become_call(body) {
            return Found::Content(n_before + 1);
        }
        let found = match self.format.body {
            Body::Json { name } => self.json_calls(body, name),
            Body::Framed(arguments) => {
                let given = FramedText { text: body, opening, is_over: end == Some(TextEnd::Whole) };
                self.format.framed_calls(arguments, &self.functions, given).map_err(NoCalls::from)
            }
            Body::Named { before_id, before_arguments } => self.named_call(body, before_id, before_arguments, end),
        };
        match found {
            Ok((calls, after)) => match self.closing_len(after, end) {
                Some(n_closing) => Found::Calls { n_bytes: held.len() - after.len() + n_closing, calls },
                None => Found::Open { n_json: 0 },
            },
            // A brace without a mark may become content at the next character.
            Err(NoCalls::Cut { .. }) if end.is_none() && after_mark.is_none() && !begins_call(body) && is_json => {
                Found::Open { n_json: 0 }
            }
            Err(NoCalls::Cut { n_json }) if end.is_none() => Found::Open { n_json },
            Err(NoCalls::Until(literal)) if end.is_none() => Found::Until(literal),
            Err(NoCalls::Cut { .. } | NoCalls::Until(_)) => Found::Content(held.len()),
            Err(NoCalls::Content(0)) if after_mark.is_none() => Found::Content(n_before + 1),
            Err(NoCalls::Content(n_bytes)) => Found::Content(n_before + n_bytes),
        }
    }

    /// The length of the mark that may follow calls. `None` if it is incomplete.
    fn closing_len(&self, after: &str, end: Option<TextEnd>) -> Option<usize> {
        let Some(mark) = self.format.closing else { return Some(0) };
        let next = after.trim_start();
        match next.strip_prefix(mark) {
            Some(rest) => Some(after.len() - rest.len()),
            None if end.is_none() && mark.starts_with(next) => None,
            None => Some(0),
        }
    }

    /// The calls that `text` starts with, an object or a list of objects, and the text after them.
    fn json_calls<'a>(&self, text: &'a str, name: &str) -> Result<(Vec<Call>, &'a str), NoCalls> {
        let (json, after) = json_at_start(text)?;
        let objects = if json.starts_with('[') { elements(json) } else { Some(vec![json]) };
        let calls: Option<Vec<Call>> =
            objects.and_then(|all| all.into_iter().map(|json| self.read(json, name)).collect());
        match calls {
            Some(calls) if !calls.is_empty() => Ok((calls, after)),
            _ => Err(NoCalls::Content(json.len())),
        }
    }

    /// The call that `text` starts with, a name and the arguments, and the text after it.
    fn named_call<'a>(
        &self,
        text: &'a str,
        before_id: &str,
        before_arguments: &str,
        end: Option<TextEnd>,
    ) -> Result<(Vec<Call>, &'a str), NoCalls> {
        let (name, marks) = text.split_at(text.find('[').unwrap_or(text.len()));
        let name = name.trim_end();
        let is_known = self.functions.iter().any(|known| known.name == name);
        if marks.is_empty()
            && end != Some(TextEnd::Whole)
            && self.functions.iter().any(|known| known.name.starts_with(name))
        {
            return Err(NoCalls::Cut { n_json: 0 });
        }
        if !is_known {
            return Err(NoCalls::Content(0));
        }
        let call = |arguments: &str| vec![Call { name: name.to_owned(), arguments: arguments.to_owned() }];
        let without_id = marks.strip_prefix(before_id).map(|id| id.trim_start_matches(char::is_alphanumeric));
        let marks = without_id.unwrap_or(marks);
        let arguments = marks.strip_prefix(before_arguments).map(str::trim_start);
        let rest = arguments.unwrap_or(marks);
        let openings = self.format.openings;
        // Without arguments, the turn ends or another call follows.
        if (rest.is_empty() && end == Some(TextEnd::Whole)) || openings.iter().any(|mark| rest.starts_with(mark)) {
            return Ok((call(NO_ARGUMENTS), rest));
        }
        let nothing = ["null", "\"\""];
        let next = if arguments.is_some() { nothing } else { [before_id, before_arguments] };
        if openings.iter().chain(&next).any(|next| next.len() > rest.len() && next.starts_with(rest)) {
            return Err(NoCalls::Cut { n_json: 0 });
        }
        if arguments.is_none() || rest.starts_with('[') {
            return Err(NoCalls::Content(0));
        }
        if let Some(after) = nothing.iter().find_map(|nothing| rest.strip_prefix(nothing)) {
            return Ok((call(NO_ARGUMENTS), after));
        }
        let (json, after) = json_at_start(rest)?;
        match serde_json::from_str::<Map<String, Value>>(json) {
            Ok(_) => Ok((call(json), after)),
            Err(_) => Err(NoCalls::Content(0)),
        }
    }

    /// The call, if `json` is a well-formed call of an offered function.
    fn read(&self, json: &str, name_key: &str) -> Option<Call> {
        let call: Map<String, Value> = serde_json::from_str(json).ok()?;
        let name = call.get(name_key).or_else(|| call.get("name"))?.as_str()?;
        let key = if call.contains_key("arguments") { "arguments" } else { "parameters" };
        // Taken from the text, not serialized from the parsed value: numbers would lose digits.
        let arguments = match call.get(key) {
            Some(Value::Object(_)) => member_text(json, key)?,
            // Some models write the arguments as a string, the form in which clients receive them.
            Some(Value::String(text)) if !is_nothing(text) => {
                let _: Map<String, Value> = serde_json::from_str(text).ok()?;
                text.trim()
            }
            Some(Value::Null | Value::String(_)) => NO_ARGUMENTS,
            // An object with other members is no call without arguments.
            None if call
                .keys()
                .all(|name| ["name", "type", "id", "tool_name", "tool_call_id"].contains(&name.as_str())) =>
            {
                NO_ARGUMENTS
            }
            _ => return None,
        };
        let is_known = self.functions.iter().any(|known| known.name == name);
        is_known.then(|| Call { name: name.to_owned(), arguments: arguments.to_owned() })
    }
}

/// The arguments of a call that has none.
const NO_ARGUMENTS: &str = "{}";

/// Whether a string of arguments means none.
fn is_nothing(arguments: &str) -> bool {
    matches!(arguments.trim(), "" | "null")
}

/// Removes and returns the first `n_bytes` of a text.
fn take_start(text: &mut String, n_bytes: usize) -> String {
    let rest = text.split_off(n_bytes);
    std::mem::replace(text, rest)
}

/// The content in `rest`, which comes after `n_before` bytes: all but the beginning of a mark at its end, if more text
/// may follow.
fn settled<'a>(rest: &str, n_before: usize, marks: impl IntoIterator<Item = &'a str>, end: Option<TextEnd>) -> Found {
    let n_open = match end {
        None => marks.into_iter().map(|mark| overlap(rest, mark)).max().unwrap_or(0),
        Some(_) => 0,
    };
    match rest.len() - n_open {
        0 if end.is_none() => Found::Open { n_json: 0 },
        n_bytes => Found::Content(n_before + n_bytes),
    }
}

/// The length of the longest suffix of `text` that is a prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}

/// The members of a call; any may come first.
const MEMBERS: [&str; 4] = ["\"name\"", "\"type\"", "\"parameters\"", "\"arguments\""];

/// Whether text that starts with `json` could still become an object with the members of a call.
fn may_become_call(json: &str) -> bool {
    let inside = json.strip_prefix('{').map(str::trim_start);
    begins_call(json) || inside.is_some_and(|inside| MEMBERS.iter().any(|member| member.starts_with(inside)))
}

/// Whether `json` starts with a member of a call.
fn begins_call(json: &str) -> bool {
    let inside = json.strip_prefix('{').map(str::trim_start);
    inside.is_some_and(|inside| MEMBERS.iter().any(|member| inside.starts_with(member)))
}

/// The beginning of another call after complete calls, in a text that follows a grammar.
fn after_calls<'a>(format: &CallFormat, held: &'a str) -> &'a str {
    let ([_, last], [.., after]) = (format.around_all, format.around_parts);
    let rest = held.strip_prefix(after).unwrap_or_default();
    if !last.is_empty() && last.starts_with(rest) {
        ""
    } else {
        rest.strip_prefix(format.separator).unwrap_or_default()
    }
}

/// Parses text that follows a grammar. Function names contain no characters that JSON escapes.
fn follow(format: &CallFormat, held: &mut String, scan: &mut Option<JsonScan>, pieces: &mut Vec<Piece>) {
    let before = format.around_parts[0].rsplit(NUMBER).next().unwrap_or_default();
    loop {
        match scan {
            None => {
                let found = format.betweens().filter_map(|between| Some((held.find(between)?, between.len()))).min();
                let Some((at, n_bytes)) = found else { return };
                let name = held[..at].rsplit(before).next().unwrap_or_default().to_owned();
                held.drain(..at + n_bytes);
                pieces.push(Piece::Call(name));
                *scan = Some(JsonScan::default());
            }
            Some(scanned) => {
                let end = match scanned.push(held) {
                    Scanned::End(n_bytes) => Some(n_bytes),
                    Scanned::Open | Scanned::Malformed => None,
                };
                let rest = held.split_off(end.unwrap_or(held.len()));
                let text = std::mem::replace(held, rest);
                if !text.is_empty() {
                    pieces.push(Piece::Arguments(text));
                }
                if end.is_none() {
                    return;
                }
                *scan = None;
            }
        }
    }
}

#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod tests;
