//! Tool calls on the wire: in a whole message, and as stream deltas.

use hearth_engine::StopCause;
use schemars::JsonSchema;
use serde::Serialize;

use super::tool_parser::{Piece, TextEnd, ToolParser};

/// A call in a whole message.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct WireCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction,
}

#[derive(Debug, JsonSchema, Serialize)]
struct WireFunction {
    name: String,
    /// JSON as text.
    arguments: String,
}

/// A piece of a call in a stream: first id and function name, then pieces of the arguments.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct WireCallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: WireFunctionDelta,
}

#[derive(Debug, JsonSchema, Serialize)]
struct WireFunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

const FUNCTION: &str = "function";

/// The calls of one choice of a stream.
#[derive(Clone, Debug)]
pub(crate) struct CallDeltas {
    parser: ToolParser,
    n_calls: usize,
}

impl CallDeltas {
    pub(crate) fn new(parser: ToolParser) -> Self {
        Self { parser, n_calls: 0 }
    }

    /// The content or call piece of each event for more text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<(Option<String>, Option<WireCallDelta>)> {
        let pieces = self.parser.push(text);
        pieces.into_iter().map(|piece| self.delta(piece)).collect()
    }

    /// Those that are left when the text has ended.
    pub(crate) fn finish(&mut self, end: TextEnd) -> Vec<(Option<String>, Option<WireCallDelta>)> {
        let pieces = self.parser.finish(end);
        pieces.into_iter().map(|piece| self.delta(piece)).collect()
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.n_calls > 0
    }

    fn delta(&mut self, piece: Piece) -> (Option<String>, Option<WireCallDelta>) {
        match piece {
            Piece::Content(text) => (Some(text), None),
            Piece::Call(name) => {
                self.n_calls += 1;
                let function = WireFunctionDelta { name: Some(name), arguments: String::new() };
                let (id, kind) = (Some(self.parser.fresh_id()), Some(FUNCTION));
                (None, Some(WireCallDelta { index: self.n_calls - 1, id, kind, function }))
            }
            Piece::Arguments(arguments) => {
                let function = WireFunctionDelta { name: None, arguments };
                (None, Some(WireCallDelta { index: self.n_calls.saturating_sub(1), id: None, kind: None, function }))
            }
        }
    }
}

/// The content and the calls of an answer. Content is `None` if there are only calls.
pub(crate) fn read(mut parser: ToolParser, text: &str, end: TextEnd) -> (Option<String>, Vec<WireCall>) {
    let (mut content, mut calls) = (String::new(), Vec::<WireCall>::new());
    let mut pieces = parser.push(text);
    pieces.extend(parser.finish(end));
    for piece in pieces {
        match piece {
            Piece::Content(text) => content.push_str(&text),
            Piece::Call(name) => {
                let function = WireFunction { name, arguments: String::new() };
                calls.push(WireCall { id: parser.fresh_id(), kind: FUNCTION, function });
            }
            Piece::Arguments(text) => {
                if let Some(call) = calls.last_mut() {
                    call.function.arguments.push_str(&text);
                }
            }
        }
    }
    let is_nothing = content.is_empty() && !calls.is_empty();
    ((!is_nothing).then_some(content), calls)
}

/// Whether the model ended its answer.
pub(crate) fn text_end(reason: Option<&'static str>, cause: &Option<StopCause>) -> TextEnd {
    match (reason, cause) {
        (Some("stop"), None | Some(StopCause::Token(_))) => TextEnd::Whole,
        _ => TextEnd::Cut,
    }
}

/// The finish reason: `tool_calls` if the message has calls; a truncated message, also by a stop string, keeps its own
/// reason.
pub(crate) fn finish_reason(
    reason: Option<&'static str>,
    cause: &Option<StopCause>,
    has_calls: bool,
) -> Option<&'static str> {
    if has_calls && text_end(reason, cause) == TextEnd::Whole { Some("tool_calls") } else { reason }
}
