//! Parses tool calls in the text that a model writes. The result does not depend on how the text is split into pieces.
//!
//! If generation was unconstrained, a call is returned once it is complete and well formed; all other text is content,
//! except whitespace around calls. If generation followed a grammar, arguments are returned as they come.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Deserializer, Map, Value};

/// The format in which a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFormat {
    /// Hermes' and Qwen's: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.
    Hermes,
    /// Llama 3's: `{"name": .., "parameters": {..}}`, with or without `<|python_tag|>` in front.
    Llama,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";

impl CallFormat {
    /// The strings that mark a call.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[OPEN, CLOSE],
            Self::Llama => &[PYTHON_TAG],
        }
    }

    /// The text before and after a call's JSON.
    pub(crate) fn brackets(self) -> (&'static str, &'static str) {
        match self {
            Self::Hermes => ("<tool_call>\n", "\n</tool_call>"),
            Self::Llama => ("", ""),
        }
    }

    /// The text between two calls.
    pub(crate) fn separator(self) -> &'static str {
        match self {
            Self::Hermes => "\n",
            Self::Llama => "; ",
        }
    }

    /// The JSON member with the arguments.
    pub(crate) fn arguments_key(self) -> &'static str {
        match self {
            Self::Hermes => "arguments",
            Self::Llama => "parameters",
        }
    }
}

/// `parallel_tool_calls`.
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
    kind: Kind,
    /// Text that cannot be classified yet.
    held: String,
}

#[derive(Clone, Debug)]
enum Kind {
    Searching(Search),
    Following { key: String, scan: Option<Scan> },
}

/// State for unconstrained text.
#[derive(Clone, Debug)]
struct Search {
    format: CallFormat,
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
}

impl ToolParser {
    /// For unconstrained text, which may contain calls.
    pub(crate) fn searching(format: CallFormat, names: Vec<String>, n_calls: Calls) -> Self {
        let search = Search {
            format,
            names,
            n_calls,
            n_found: 0,
            blanks: String::new(),
            is_content_sent: false,
            is_line_blank: true,
        };
        Self { kind: Kind::Searching(search), held: String::new() }
    }

    /// For text that consists only of calls, enforced by a grammar.
    pub(crate) fn following(format: CallFormat) -> Self {
        let key = format!("\", \"{}\": ", format.arguments_key());
        Self { kind: Kind::Following { key, scan: None }, held: String::new() }
    }

    /// Adds text and returns what is complete.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        match &mut self.kind {
            Kind::Searching(search) => search.advance(&mut self.held, TextEnded::NotYet, &mut pieces),
            Kind::Following { key, scan } => follow(&mut self.held, key, scan, &mut pieces),
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

/// The start of the held text.
enum Found {
    /// This many bytes of content.
    Content(usize),
    /// Text that may become a call.
    Open,
    /// A call of this many bytes.
    Call { n_bytes: usize, name: String, arguments: String },
}

impl Search {
    fn advance(&mut self, held: &mut String, ended: TextEnded, pieces: &mut Vec<Piece>) {
        while !held.is_empty() {
            let found = match self.format {
                CallFormat::Hermes => self.look_for_tags(held, ended),
                CallFormat::Llama => self.look_for_json(held, ended),
            };
            match found {
                Found::Open => return,
                Found::Content(n_bytes) => {
                    let rest = held.split_off(n_bytes);
                    let text = std::mem::replace(held, rest);
                    self.emit_content(&text, pieces);
                }
                Found::Call { n_bytes, name, arguments } => {
                    held.drain(..n_bytes);
                    self.call(name, arguments, pieces);
                }
            }
        }
    }

    /// Emits content, except trailing whitespace, which waits for what follows.
    fn emit_content(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let line = text.rsplit('\n').next().unwrap_or_default();
        self.is_line_blank = line.trim().is_empty() && (self.is_line_blank || line.len() < text.len());
        self.blanks.push_str(text);
        let settled = self.blanks.trim_end().len();
        if settled == 0 {
            return;
        }
        let blanks = self.blanks.split_off(settled);
        let text = std::mem::replace(&mut self.blanks, blanks);
        // Whitespace after a call belongs to it.
        let text = if self.n_found > 0 && !self.is_content_sent { text.trim_start().to_owned() } else { text };
        self.is_content_sent = true;
        pieces.push(Piece::Content(text));
    }

    fn call(&mut self, name: String, arguments: String, pieces: &mut Vec<Piece>) {
        self.blanks.clear();
        self.n_found += 1;
        self.is_content_sent = false;
        self.is_line_blank = true;
        // With `parallel_tool_calls` false, only the first call counts.
        if self.n_found == 1 || self.n_calls == Calls::Several {
            pieces.extend([Piece::Call(name), Piece::Arguments(arguments)]);
        }
    }

    fn look_for_tags(&self, held: &str, ended: TextEnded) -> Found {
        match held.find(OPEN) {
            None if ended == TextEnded::Yes => Found::Content(held.len()),
            None => settled(held.len() - overlap(held, OPEN)),
            Some(0) => {
                let body = &held[OPEN.len()..];
                let (body, n_bytes) = match (body.find(CLOSE), ended) {
                    (Some(end), _) => (&body[..end], OPEN.len() + end + CLOSE.len()),
                    (None, TextEnded::Yes) => (body, held.len()),
                    (None, TextEnded::NotYet) => return Found::Open,
                };
                match self.read(body) {
                    Some((name, arguments)) => Found::Call { n_bytes, name, arguments },
                    None => Found::Content(n_bytes),
                }
            }
            Some(start) => Found::Content(start),
        }
    }

    fn look_for_json(&self, held: &str, ended: TextEnded) -> Found {
        if self.n_found > 0 && !self.is_content_sent {
            // A semicolon may separate two calls.
            let next = held.trim_start_matches(|character: char| character.is_whitespace() || character == ';');
            let n_before = held.len() - next.len();
            if ended == TextEnded::NotYet && PYTHON_TAG.starts_with(next) {
                return Found::Open;
            }
            return match next.starts_with(PYTHON_TAG) || next.starts_with('{') {
                true => self.read_call(next, n_before, ended),
                false => Found::Content(held.len()),
            };
        }
        let start = [held.find(PYTHON_TAG), self.brace_at_line_start(held)].into_iter().flatten().min();
        match start {
            None if ended == TextEnded::Yes => Found::Content(held.len()),
            None => settled(held.len() - overlap(held, PYTHON_TAG)),
            Some(0) => self.read_call(held, 0, ended),
            Some(start) => Found::Content(start),
        }
    }

    /// Calls start at the beginning of a line; objects in running text are not calls.
    fn brace_at_line_start(&self, held: &str) -> Option<usize> {
        let mut braces = held.match_indices('{').map(|(at, _)| at);
        braces.find(|&at| {
            let before = &held[..at];
            let line = before.rsplit('\n').next().unwrap_or_default();
            line.trim().is_empty() && (self.is_line_blank || line.len() < before.len())
        })
    }

    /// `text` starts with the tag or with a brace, `n_before` bytes after the start of the held text.
    fn read_call(&self, text: &str, n_before: usize, ended: TextEnded) -> Found {
        let behind = text.strip_prefix(PYTHON_TAG).unwrap_or(text);
        let json = behind.trim_start();
        self.read_json(json, n_before + text.len() - json.len(), ended)
    }

    /// `json` starts `n_before` bytes after the start of the held text.
    fn read_json(&self, json: &str, n_before: usize, ended: TextEnded) -> Found {
        if json.is_empty() && ended == TextEnded::NotYet {
            return Found::Open;
        }
        // Text that cannot become a call is content immediately.
        if !may_become_call(json) {
            return Found::Content(n_before + json.chars().next().map_or(0, char::len_utf8));
        }
        let mut scan = Scan::default();
        match scan.end_of(json) {
            None if ended == TextEnded::NotYet => Found::Open,
            None => Found::Content(n_before + json.len()),
            Some(end) => match self.read(&json[..end]) {
                Some((name, arguments)) => Found::Call { n_bytes: n_before + end, name, arguments },
                None => Found::Content(n_before + end),
            },
        }
    }

    /// Name and arguments, if this is a well-formed call of an offered function.
    fn read(&self, json: &str) -> Option<(String, String)> {
        let call: Map<String, Value> = serde_json::from_str(json).ok()?;
        let name = call.get("name")?.as_str()?;
        let key = if call.contains_key("arguments") { "arguments" } else { "parameters" };
        // Not written anew from the parsed value: numbers would lose digits.
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
        is_known.then(|| (name.to_owned(), arguments.to_owned()))
    }
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
        rest = after_value.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    found
}

/// The JSON value that `text` starts with, its text, and the text after it.
fn first_value<T: DeserializeOwned>(text: &str) -> Option<(T, &str, &str)> {
    let mut values = Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    let (own, rest) = text.split_at_checked(values.byte_offset())?;
    Some((value, own.trim_start(), rest))
}

/// `n_bytes` of content; if 0, the text may become a call.
fn settled(n_bytes: usize) -> Found {
    if n_bytes == 0 { Found::Open } else { Found::Content(n_bytes) }
}

/// The length of the longest suffix of `text` that is a prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}

/// Whether text that starts with `json` could still become an object with the members of a call.
fn may_become_call(json: &str) -> bool {
    let Some(inside) = json.strip_prefix('{') else { return false };
    let inside = inside.trim_start();
    ["\"name\"", "\"type\"", "\"parameters\"", "\"arguments\""]
        .iter()
        .any(|member| inside.starts_with(member) || member.starts_with(inside))
}

/// Finds the end of a JSON object.
#[derive(Clone, Debug, Default)]
struct Scan {
    depth: usize,
    is_quoted: bool,
    is_escaped: bool,
}

impl Scan {
    /// The length up to the bracket that closes the first one, if `text` contains it; continues where the last call
    /// stopped.
    fn end_of(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_quoted => self.is_escaped = true,
                b'"' => self.is_quoted = !self.is_quoted,
                b'{' | b'[' if !self.is_quoted => self.depth += 1,
                b'}' | b']' if !self.is_quoted => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Parses text that follows a grammar. `key` is the text between a call's name and its arguments. Names need no
/// escapes.
fn follow(held: &mut String, key: &str, scan: &mut Option<Scan>, pieces: &mut Vec<Piece>) {
    const NAME: &str = "{\"name\": \"";
    loop {
        match scan {
            None => {
                let Some(at) = held.find(key) else { return };
                let name = held[..at].rsplit(NAME).next().unwrap_or_default().to_owned();
                held.drain(..at + key.len());
                pieces.push(Piece::Call(name));
                *scan = Some(Scan::default());
            }
            Some(scanned) => {
                let end = scanned.end_of(held);
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
mod tests {
    use super::*;

    /// The content, and the calls with their arguments, of a text in these pieces.
    fn read(mut parser: ToolParser, pieces: &[&str]) -> (String, Vec<(String, String)>) {
        let mut all: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        all.extend(parser.finish());
        let (mut content, mut calls) = (String::new(), Vec::new());
        for piece in all {
            match piece {
                Piece::Content(text) => content.push_str(&text),
                Piece::Call(name) => calls.push((name, String::new())),
                Piece::Arguments(text) => {
                    if let Some((_, arguments)) = calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        (content, calls)
    }

    /// The same whole, character by character, and cut in two and in three wherever it can be.
    fn check(parser: &ToolParser, text: &str, content: &str, calls: &[(&str, &str)]) {
        let calls: Vec<_> = calls.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string())).collect();
        let expected = (content.to_owned(), calls);
        let each: Vec<String> = text.chars().map(String::from).collect();
        let each: Vec<&str> = each.iter().map(String::as_str).collect();
        assert_eq!(read(parser.clone(), &[text]), expected, "{text}");
        assert_eq!(read(parser.clone(), &each), expected, "{text}");
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &first in &cuts {
            assert_eq!(read(parser.clone(), &[&text[..first], &text[first..]]), expected, "{text} at {first}");
            for &second in cuts.iter().filter(|second| **second > first).step_by(3) {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(read(parser.clone(), &pieces), expected, "{text} at {first} and {second}");
            }
        }
    }

    fn searching(format: CallFormat, n_calls: Calls) -> ToolParser {
        ToolParser::searching(format, vec!["f".into(), "get_weather".into()], n_calls)
    }

    const CALL: &str = r#"{"name": "f", "arguments": {"x": "}{\"</b>é日", "y": [1, 2.0, null]}}"#;
    const ARGUMENTS: &str = r#"{"x": "}{\"</b>é日", "y": [1, 2.0, null]}"#;

    #[test]
    fn hermes_calls_are_found_wherever_the_text_is_cut() {
        let parser = searching(CallFormat::Hermes, Calls::Several);
        check(&parser, "no call <tool_ at all \n", "no call <tool_ at all \n", &[]);
        let one = format!("<tool_call>\n{CALL}\n</tool_call>");
        check(&parser, &one, "", &[("f", ARGUMENTS)]);
        check(&parser, &format!(" I look.\n\n{one}\n"), " I look.", &[("f", ARGUMENTS)]);
        check(&parser, &format!("{one}\n{one} done \n"), "done", &[("f", ARGUMENTS), ("f", ARGUMENTS)]);
        // Without its end, as models that stop there write it; with text for arguments.
        check(&parser, &format!("<tool_call>{CALL}"), "", &[("f", ARGUMENTS)]);
        let text = r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>"#;
        check(&parser, text, "", &[("f", r#"{"a": 1}"#)]);
    }

    #[test]
    fn arguments_are_as_the_model_wrote_them() {
        let parser = searching(CallFormat::Hermes, Calls::Several);
        for arguments in
            [r#"{"id": 123456789012345678901234, "x": 1.10, "y": 1E2}"#, "{ \"a\" :\n[ ] ,\"a\":\"\\u00e9\\/\" }", "{}"]
        {
            for call in [
                format!("{{\"name\": \"f\", \"arguments\": {arguments}}}"),
                format!(" {{\"id\":7 ,\"arguments\":{arguments} ,\n\"name\":\"f\", \"x\": [null, true]}} "),
                format!(
                    r#"{{"arguments": {{"first": 1}}, "parameters": {{}}, "arguments": {arguments}, "name": "f"}}"#
                ),
                format!("{{\"name\": \"f\", \"arguments\": {}}}", Value::from(arguments)),
            ] {
                check(&parser, &format!("<tool_call>{call}</tool_call>"), "", &[("f", arguments)]);
            }
        }
    }

    #[test]
    fn malformed_hermes_calls_stay_content() {
        let parser = searching(CallFormat::Hermes, Calls::Several);
        for text in [
            "<tool_call>{\"name\": \"f\"}</tool_call>",
            "a <tool_call>not json</tool_call> b",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"argu",
            "<tool_call",
        ] {
            check(&parser, text, text, &[]);
        }
    }

    #[test]
    fn one_call_only_where_one_is_asked_for() {
        let parser = searching(CallFormat::Hermes, Calls::One);
        let one = format!("<tool_call>{CALL}</tool_call>");
        check(&parser, &format!("{one}{one}"), "", &[("f", ARGUMENTS)]);
    }

    #[test]
    fn llama_calls_are_found_wherever_the_text_is_cut() {
        let parser = searching(CallFormat::Llama, Calls::Several);
        let call = CALL.replace("arguments", "parameters");
        check(&parser, &call, "", &[("f", ARGUMENTS)]);
        check(&parser, &format!("<|python_tag|>{call}"), "", &[("f", ARGUMENTS)]);
        check(&parser, &format!("Sure.\n{call}"), "Sure.", &[("f", ARGUMENTS)]);
        check(&parser, &format!("Sure <|python_tag|> {call}"), "Sure", &[("f", ARGUMENTS)]);
        check(&parser, &format!("{call}; {call}"), "", &[("f", ARGUMENTS), ("f", ARGUMENTS)]);
        check(&parser, &format!("{call}\nThat is it."), "That is it.", &[("f", ARGUMENTS)]);
        let typed = r#"{"type": "function", "name": "f", "parameters": {}}"#;
        check(&parser, typed, "", &[("f", "{}")]);
    }

    #[test]
    fn other_json_stays_content() {
        let parser = searching(CallFormat::Llama, Calls::Several);
        for text in [
            r#"{"name": "Alice", "parameters": {"age": 3}}"#,
            r#"{"answer": {"name": "f", "parameters": {}}}"#,
            r#"{"name": "f", "parameters": {"#,
            "use { and } and <|python",
            "<|python_tag|>print(1)",
            "{\n  \"a\": 1\n}",
        ] {
            check(&parser, text, text, &[]);
        }
    }

    #[test]
    fn arguments_of_a_text_that_follows_its_grammar_come_as_they_are_written() {
        for (format, key) in [(CallFormat::Hermes, "arguments"), (CallFormat::Llama, "parameters")] {
            let (open, close) = format.brackets();
            let arguments = r#"{"x": "a\", \"arguments\": {", "y": {"z": [1, {}]}}"#;
            let call = format!("{open}{{\"name\": \"get_weather\", \"{key}\": {arguments}}}{close}");
            let parser = ToolParser::following(format);
            check(&parser, &call, "", &[("get_weather", arguments)]);
            let two = format!("{call}{}{call}", format.separator());
            check(&parser, &two, "", &[("get_weather", arguments); 2]);
            // Cut by `max_tokens`.
            let start = call.find("\"y\"").unwrap_or_default();
            check(&parser, &call[..start], "", &[("get_weather", r#"{"x": "a\", \"arguments\": {", "#)]);
        }
    }
}
