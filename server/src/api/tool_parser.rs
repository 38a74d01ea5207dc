//! Parses tool calls in the text that a model writes. The result does not depend on how the text is split into pieces.
//! Text that may become a call is held, and not parsed again at each piece.
//!
//! If generation was unconstrained, a call is returned once it is complete and well formed. All other text is content:
//! also calls that are cut off. The whitespace before the first and after the last content is left out beside calls. If
//! generation followed a grammar, arguments are returned as they come. What the model thinks never gets here: `reasoning`
//! keeps it apart.

use hearth_model::chat::thought::Place;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Deserializer, Map, Value};

use super::{
    call_format::{Body, CallFormat},
    json_scan::{JsonScan, Scanned},
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
    names: Vec<String>,
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
            has_content: false,
            is_content_sent: false,
            is_line_blank: true,
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

    /// Adds text that has no calls. What follows begins a line.
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
    /// Takes what is settled from the held text. `end` is `None` while more text may follow.
    fn advance(&mut self, held: &mut String, end: Option<TextEnd>, pieces: &mut Vec<Piece>) {
        self.waiting_for = WaitingFor::default();
        while !held.is_empty() {
            match self.look(held, end) {
                Found::Open { n_json } => {
                    self.waiting_for = WaitingFor::new(held, n_json);
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

    /// Emits content, except trailing whitespace, which waits for what follows.
    fn emit_content(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let line = text.rsplit('\n').next().unwrap_or_default();
        self.is_line_blank = line.trim().is_empty() && (self.is_line_blank || line.len() < text.len());
        let (settled, blanks) = text.split_at(text.trim_end().len());
        if settled.is_empty() {
            self.blanks.push_str(blanks);
            return;
        }
        let mut text = std::mem::replace(&mut self.blanks, blanks.to_owned()) + settled;
        if self.is_after_call() {
            if !self.has_content {
                text = text.trim_start().to_owned();
            } else if !text.starts_with(char::is_whitespace) {
                // The texts before and after a call are not one word.
                text.insert(0, '\n');
            }
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
        self.is_content_sent = false;
        self.is_line_blank = true;
        // With `parallel_tool_calls` false, only the first call counts.
        if self.n_found == 1 || self.n_calls == Calls::Several {
            pieces.extend([Piece::Call(call.name), Piece::Arguments(call.arguments)]);
        }
    }

    /// Classifies the start of the held text.
    fn look(&self, held: &str, end: Option<TextEnd>) -> Found {
        let separates = |next: char| next.is_whitespace() || self.format.separator.contains(next);
        let rest = if self.is_after_call() { held.trim_start_matches(separates) } else { held };
        let n_before = held.len() - rest.len();
        let marks = self.format.openings.iter().filter_map(|mark| rest.find(mark));
        let brace = if self.format.is_bare { self.brace_at_line_start(rest) } else { None };
        let call = marks.chain(brace).min();
        match call {
            Some(0) => self.calls_at(held, n_before, end),
            Some(start) => Found::Content(n_before + start),
            None => settled(rest, n_before, self.format.openings.iter().copied(), end),
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
    fn calls_at(&self, held: &str, start: usize, end: Option<TextEnd>) -> Found {
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
            Body::Named { before_id, before_arguments } => self.named_call(body, before_id, before_arguments, end),
        };
        match found {
            Ok((calls, after)) => match self.closing_len(after, end) {
                Some(n_closing) => Found::Calls { n_bytes: held.len() - after.len() + n_closing, calls },
                None => Found::Open { n_json: 0 },
            },
            // A brace without a mark may become content at the next character.
            Err(NoCalls::Cut { .. }) if end.is_none() && after_mark.is_none() && !begins_call(body) => {
                Found::Open { n_json: 0 }
            }
            Err(NoCalls::Cut { n_json }) if end.is_none() => Found::Open { n_json },
            Err(NoCalls::Cut { .. }) => Found::Content(held.len()),
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
        end: Option<TextEnd>,
    ) -> Result<(Vec<Call>, &'a str), NoCalls> {
        let (name, marks) = text.split_at(text.find('[').unwrap_or(text.len()));
        let name = name.trim_end();
        let is_known = self.names.iter().any(|known| known == name);
        if marks.is_empty() && end != Some(TextEnd::Whole) && self.names.iter().any(|known| known.starts_with(name)) {
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
    fn read(&self, json: &str) -> Option<Call> {
        let call: Map<String, Value> = serde_json::from_str(json).ok()?;
        let name = call.get("name")?.as_str()?;
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
            None if call.keys().all(|name| ["name", "type", "id"].contains(&name.as_str())) => NO_ARGUMENTS,
            _ => return None,
        };
        let is_known = self.names.iter().any(|known| known == name);
        is_known.then(|| Call { name: name.to_owned(), arguments: arguments.to_owned() })
    }
}

/// The arguments of a call that has none.
const NO_ARGUMENTS: &str = "{}";

/// Whether arguments that are a string stand for none.
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

/// What follows complete calls of a text that follows a grammar: the beginning of another call.
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
