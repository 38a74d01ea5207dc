//! Parses tool calls in the text that a model writes. The result does not depend on how the text is split into pieces.
//! Text that may become a call is held, and not parsed again at each piece.
//!
//! If generation was unconstrained, a call is returned once it is complete and well formed; all other text is content,
//! except whitespace around calls. If generation followed a grammar, arguments are returned as they come.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Deserializer, Map, Value};

use super::{
    call_format::{Body, CallFormat},
    json_scan::{JsonScan, Scanned},
};

/// How many calls an answer may contain (`parallel_tool_calls`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    One,
    Several,
}

/// Parsed output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// More content.
    Content(String),
    /// The start of a call, with the function's name.
    Call(String),
    /// More of the last call's arguments: JSON, as the model wrote it.
    Arguments(String),
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
    /// Splits text that a grammar has constrained to calls. `scan`: the state within a call's arguments.
    Following { scan: Option<JsonScan> },
}

/// State for unconstrained text.
#[derive(Clone, Debug)]
struct Search {
    format: &'static CallFormat,
    /// The offered functions.
    names: Vec<String>,
    n_calls: Calls,
    n_found: usize,
    /// Whitespace that becomes content only if content follows.
    blanks: String,
    /// Whether there has been content since the start or the last call.
    is_content_sent: bool,
    /// Whether the current line has only whitespace so far.
    is_line_blank: bool,
    waiting_for: WaitingFor,
}

/// What decides whether the held text is a call.
#[derive(Clone, Debug, Default)]
enum WaitingFor {
    /// Any text.
    #[default]
    Text,
    /// Any text but whitespace.
    MoreThanBlanks,
    /// The rest of a JSON value.
    Json(JsonScan),
}

/// Whitespace of JSON.
const BLANKS: [char; 4] = [' ', '\n', '\r', '\t'];

impl WaitingFor {
    /// For held text that may become a call, and whose last `n_json` bytes are the beginning of a JSON value.
    fn new(held: &str, n_json: usize) -> Self {
        let (_, json) = held.split_at(held.len() - n_json);
        if json.is_empty() {
            return if held.ends_with(BLANKS) { Self::MoreThanBlanks } else { Self::Text };
        }
        let mut scan = JsonScan::default();
        match scan.push(json) {
            Scanned::Open => Self::Json(scan),
            // An escape with a wrong digit, which serde_json rejects once it has four.
            Scanned::End(_) | Scanned::Malformed => Self::Text,
        }
    }

    /// Whether the held text still may become a call with `text` after it.
    fn goes_on(&mut self, text: &str) -> bool {
        match self {
            Self::Text => false,
            Self::MoreThanBlanks => text.trim_start_matches(BLANKS).is_empty(),
            Self::Json(scan) => scan.push(text) == Scanned::Open,
        }
    }
}

impl ToolParser {
    /// For unconstrained text, which may contain calls.
    pub(crate) fn searching(format: &'static CallFormat, names: Vec<String>, n_calls: Calls) -> Self {
        let search = Search {
            format,
            names,
            n_calls,
            n_found: 0,
            blanks: String::new(),
            is_content_sent: false,
            is_line_blank: true,
            waiting_for: WaitingFor::default(),
        };
        Self { format, kind: Kind::Searching(search), held: String::new() }
    }

    /// For text that consists only of calls, enforced by a grammar.
    pub(crate) fn following(format: &'static CallFormat) -> Self {
        Self { format, kind: Kind::Following { scan: None }, held: String::new() }
    }

    /// An id for a call.
    pub(crate) fn fresh_id(&self) -> String {
        self.format.fresh_id()
    }

    /// Adds text and returns what is complete.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        match &mut self.kind {
            Kind::Searching(search) => {
                if !search.waiting_for.goes_on(text) {
                    search.advance(&mut self.held, TextEnded::NotYet, &mut pieces);
                }
            }
            Kind::Following { scan } => follow(self.format, &mut self.held, scan, &mut pieces),
        }
        pieces
    }

    /// Ends the text and returns the rest.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Kind::Searching(search) = &mut self.kind {
            search.advance(&mut self.held, TextEnded::Yes, &mut pieces);
            let blanks = std::mem::take(&mut search.blanks);
            if search.n_found == 0 && !blanks.is_empty() {
                pieces.push(Piece::Content(blanks));
            }
        }
        pieces
    }
}

/// Whether the text is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextEnded {
    NotYet,
    Yes,
}

/// What the held text starts with.
enum Found {
    /// This many bytes of content.
    Content(usize),
    /// Text that may become a call. The last `n_json` bytes are the beginning of a JSON value.
    Open { n_json: usize },
    /// Calls of this many bytes.
    Calls { n_bytes: usize, calls: Vec<Call> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    arguments: String,
}

/// Why a text does not start with calls.
enum NoCalls {
    /// It is incomplete. The last `n_json` bytes are the beginning of a JSON value.
    Cut { n_json: usize },
    /// This many bytes are something else.
    Content(usize),
}

impl Search {
    fn advance(&mut self, held: &mut String, ended: TextEnded, pieces: &mut Vec<Piece>) {
        self.waiting_for = WaitingFor::default();
        while !held.is_empty() {
            match self.look(held, ended) {
                Found::Open { n_json } => {
                    self.waiting_for = WaitingFor::new(held, n_json);
                    return;
                }
                Found::Content(n_bytes) => {
                    let rest = held.split_off(n_bytes);
                    let text = std::mem::replace(held, rest);
                    self.emit_content(&text, pieces);
                }
                Found::Calls { n_bytes, calls } => {
                    held.drain(..n_bytes);
                    calls.into_iter().for_each(|call| self.emit_call(call, pieces));
                }
            }
        }
    }

    /// Emits content, except trailing whitespace, which waits for what follows.
    fn emit_content(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let line = text.rsplit('\n').next().unwrap_or_default();
        self.is_line_blank = line.trim().is_empty() && (self.is_line_blank || line.len() < text.len());
        let (settled, blanks) = text.split_at(text.trim_end().len());
        if settled.is_empty() {
            self.blanks.push_str(blanks);
            return;
        }
        let text = std::mem::replace(&mut self.blanks, blanks.to_owned()) + settled;
        // Whitespace after a call belongs to it.
        let text = if self.n_found > 0 && !self.is_content_sent { text.trim_start().to_owned() } else { text };
        self.is_content_sent = true;
        pieces.push(Piece::Content(text));
    }

    fn emit_call(&mut self, call: Call, pieces: &mut Vec<Piece>) {
        self.blanks.clear();
        self.n_found += 1;
        self.is_content_sent = false;
        self.is_line_blank = true;
        // With `parallel_tool_calls` false, only the first call counts.
        if self.n_found == 1 || self.n_calls == Calls::Several {
            pieces.extend([Piece::Call(call.name), Piece::Arguments(call.arguments)]);
        }
    }

    /// Classifies the start of the held text.
    fn look(&self, held: &str, ended: TextEnded) -> Found {
        let separates = |next: char| next.is_whitespace() || self.format.separator.contains(next);
        let is_after_call = self.n_found > 0 && !self.is_content_sent;
        let rest = if is_after_call { held.trim_start_matches(separates) } else { held };
        let n_before = held.len() - rest.len();
        let marks = self.format.openings.iter().filter_map(|mark| rest.find(mark));
        let brace = if self.format.is_bare { self.brace_at_line_start(rest) } else { None };
        match marks.chain(brace).min() {
            Some(0) => self.calls_at(held, n_before, ended),
            Some(start) => Found::Content(n_before + start),
            None if ended == TextEnded::Yes => Found::Content(held.len()),
            None => {
                let openings = self.format.openings.iter();
                match rest.len() - openings.map(|mark| overlap(rest, mark)).max().unwrap_or(0) {
                    0 => Found::Open { n_json: 0 },
                    n_bytes => Found::Content(n_before + n_bytes),
                }
            }
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

    /// The calls at byte `start`, where there is a mark or a brace.
    fn calls_at(&self, held: &str, start: usize, ended: TextEnded) -> Found {
        let text = &held[start..];
        let after_mark = self.format.openings.iter().find_map(|mark| text.strip_prefix(mark));
        let body = after_mark.unwrap_or(text).trim_start();
        let n_before = held.len() - body.len();
        // A brace without a mark that cannot begin a call is content immediately. `n_before` ends before that brace,
        // but includes a mark.
        if after_mark.is_none() && !may_become_call(body) {
            return Found::Content(n_before + 1);
        }
        let found = match self.format.body {
            Body::Json => self.json_calls(body),
            Body::Named { before_id, before_arguments } => self.named_call(body, before_id, before_arguments),
        };
        match found {
            Ok((calls, after)) => match self.closing_len(after, ended) {
                Some(n_closing) => Found::Calls { n_bytes: held.len() - after.len() + n_closing, calls },
                None => Found::Open { n_json: 0 },
            },
            // A brace without a mark may become content at the next character.
            Err(NoCalls::Cut { .. }) if ended == TextEnded::NotYet && after_mark.is_none() && !begins_call(body) => {
                Found::Open { n_json: 0 }
            }
            Err(NoCalls::Cut { n_json }) if ended == TextEnded::NotYet => Found::Open { n_json },
            Err(NoCalls::Cut { .. }) => Found::Content(held.len()),
            Err(NoCalls::Content(0)) if after_mark.is_none() => Found::Content(n_before + 1),
            Err(NoCalls::Content(n_bytes)) => Found::Content(n_before + n_bytes),
        }
    }

    /// The length of the mark that may follow calls. `None` if it is incomplete.
    fn closing_len(&self, after: &str, ended: TextEnded) -> Option<usize> {
        let Some(mark) = self.format.closing else { return Some(0) };
        let next = after.trim_start();
        match next.strip_prefix(mark) {
            Some(rest) => Some(after.len() - rest.len()),
            None if ended == TextEnded::NotYet && mark.starts_with(next) => None,
            None => Some(0),
        }
    }

    /// The calls that `text` starts with, an object or a list of objects, and the text after them.
    fn json_calls<'a>(&self, text: &'a str) -> Result<(Vec<Call>, &'a str), NoCalls> {
        let (json, after) = json_at_start(text)?;
        let objects = if json.starts_with('[') { elements(json) } else { Some(vec![json]) };
        let calls: Option<Vec<Call>> = objects.and_then(|all| all.into_iter().map(|json| self.read(json)).collect());
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
    ) -> Result<(Vec<Call>, &'a str), NoCalls> {
        let (name, marks) = text.split_at(text.find('[').unwrap_or(text.len()));
        let name = name.trim_end();
        if marks.is_empty() && self.names.iter().any(|known| known.starts_with(name)) {
            return Err(NoCalls::Cut { n_json: 0 });
        }
        if !self.names.iter().any(|known| known == name) {
            return Err(NoCalls::Content(0));
        }
        let without_id = marks.strip_prefix(before_id).map(|id| id.trim_start_matches(char::is_alphanumeric));
        let marks = without_id.unwrap_or(marks);
        let Some(arguments) = marks.strip_prefix(before_arguments) else {
            let is_cut = [before_id, before_arguments].iter().any(|mark| mark.starts_with(marks));
            return Err(if is_cut { NoCalls::Cut { n_json: 0 } } else { NoCalls::Content(0) });
        };
        let (json, after) = json_at_start(arguments.trim_start())?;
        match serde_json::from_str::<Map<String, Value>>(json) {
            Ok(_) => Ok((vec![Call { name: name.to_owned(), arguments: json.to_owned() }], after)),
            Err(_) => Err(NoCalls::Content(0)),
        }
    }

    /// The call, if `json` is a well-formed call of an offered function.
    fn read(&self, json: &str) -> Option<Call> {
        let call: Map<String, Value> = serde_json::from_str(json).ok()?;
        let name = call.get("name")?.as_str()?;
        let key = if call.contains_key("arguments") { "arguments" } else { "parameters" };
        // Taken from the text, not serialized from the parsed value: numbers would lose digits.
        let arguments = match call.get(key)? {
            Value::Object(_) => member_text(json, key)?,
            // Some models write the arguments as a string, the form in which clients receive them.
            Value::String(text) => {
                let _: Map<String, Value> = serde_json::from_str(text).ok()?;
                text.trim()
            }
            _ => return None,
        };
        let is_known = self.names.iter().any(|known| known == name);
        is_known.then(|| Call { name: name.to_owned(), arguments: arguments.to_owned() })
    }
}

/// The JSON object or list that `text` starts with, and the text after it.
fn json_at_start(text: &str) -> Result<(&str, &str), NoCalls> {
    if !text.is_empty() && !text.starts_with(['{', '[']) {
        return Err(NoCalls::Content(0));
    }
    // serde_json rejects an incomplete number such as `1.` as invalid, not as incomplete. With one more digit it is
    // valid.
    match json_len(text).or_else(|_| json_len(&format!("{text}0")).map(|_| None)) {
        Ok(Some(n_bytes)) => Ok(text.split_at(n_bytes)),
        Ok(None) => Err(NoCalls::Cut { n_json: text.len() }),
        Err(_) => Err(NoCalls::Content(0)),
    }
}

/// The length of the JSON value that `text` starts with. `None` if it is incomplete.
fn json_len(text: &str) -> serde_json::Result<Option<usize>> {
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(Some(values.byte_offset())),
        Some(Err(error)) if !error.is_eof() => Err(error),
        _ => Ok(None),
    }
}

/// The texts of the elements of `json`, a valid list.
fn elements(json: &str) -> Option<Vec<&str>> {
    let mut found = Vec::new();
    let mut rest = json.strip_prefix('[')?.trim_start();
    while !rest.starts_with(']') {
        let (_, text, after) = first_value::<IgnoredAny>(rest)?;
        found.push(text);
        rest = after_comma(after);
    }
    Some(found)
}

/// The text of a member's value in `json`, a valid object. If several members have the name, the last one counts.
fn member_text<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let mut found = None;
    let mut rest = json.trim_start().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (name, _, after_name) = first_value::<String>(rest)?;
        let (_, text, after_value) = first_value::<IgnoredAny>(after_name.trim_start().strip_prefix(':')?)?;
        if name == key {
            found = Some(text);
        }
        rest = after_comma(after_value);
    }
    found
}

/// `text` without leading whitespace and the comma that may follow it.
fn after_comma(text: &str) -> &str {
    let text = text.trim_start();
    text.strip_prefix(',').unwrap_or(text).trim_start()
}

/// The JSON value that `text` starts with, its text, and the text after it.
fn first_value<T: DeserializeOwned>(text: &str) -> Option<(T, &str, &str)> {
    let mut values = Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    let (own, rest) = text.split_at_checked(values.byte_offset())?;
    Some((value, own.trim_start(), rest))
}

/// The length of the longest suffix of `text` that is a prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}

/// The members of a call, of which any may come first.
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

/// Parses text that follows a grammar. Function names contain no characters that JSON escapes.
fn follow(format: &CallFormat, held: &mut String, scan: &mut Option<JsonScan>, pieces: &mut Vec<Piece>) {
    let [before, between, _] = format.around_parts;
    loop {
        match scan {
            None => {
                let Some(at) = held.find(between) else { return };
                let name = held[..at].rsplit(before).next().unwrap_or_default().to_owned();
                held.drain(..at + between.len());
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
mod tests;
