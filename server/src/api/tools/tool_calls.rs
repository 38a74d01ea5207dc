//! Tool calls on the wire: in a whole message, and as stream deltas.

use hearth_engine::StopCause;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    piece::{Piece, TextEnd},
    reasoning::AnswerReader,
};

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

/// The addition of a stream's event to the message.
#[derive(Debug)]
pub(crate) enum PieceDelta {
    Reasoning(String),
    Content(String),
    Call(WireCallDelta),
}

/// The message of one choice of a stream.
#[derive(Clone, Debug)]
pub(crate) struct MessageDeltas {
    reader: AnswerReader,
    n_calls: usize,
}

impl MessageDeltas {
    pub(crate) fn new(reader: AnswerReader) -> Self {
        Self { reader, n_calls: 0 }
    }

    /// The additions for more text, one per event.
    pub(crate) fn push(&mut self, text: &str) -> Vec<PieceDelta> {
        let pieces = self.reader.push(text);
        pieces.into_iter().map(|piece| self.delta(piece)).collect()
    }

    /// The remaining additions when the text has ended.
    pub(crate) fn finish(&mut self, end: TextEnd) -> Vec<PieceDelta> {
        let pieces = self.reader.finish(end);
        pieces.into_iter().map(|piece| self.delta(piece)).collect()
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.n_calls > 0
    }

    fn delta(&mut self, piece: Piece) -> PieceDelta {
        match piece {
            Piece::Reasoning(text) => PieceDelta::Reasoning(text),
            Piece::Content(text) => PieceDelta::Content(text),
            Piece::Call(name) => {
                self.n_calls += 1;
                let function = WireFunctionDelta { name: Some(name), arguments: String::new() };
                let (id, kind) = (Some(self.reader.fresh_id()), Some(FUNCTION));
                PieceDelta::Call(WireCallDelta { index: self.n_calls - 1, id, kind, function })
            }
            Piece::Arguments(arguments) => {
                let function = WireFunctionDelta { name: None, arguments };
                PieceDelta::Call(WireCallDelta {
                    index: self.n_calls.saturating_sub(1),
                    id: None,
                    kind: None,
                    function,
                })
            }
        }
    }
}

/// A whole message.
#[derive(Debug, Default)]
pub(crate) struct ReadMessage {
    /// `None` if the model wrote no thought.
    pub(crate) reasoning: Option<String>,
    /// `None` if there are only calls.
    pub(crate) content: Option<String>,
    pub(crate) calls: Vec<WireCall>,
}

/// Reads a whole answer.
pub(crate) fn read(mut reader: AnswerReader, text: &str, end: TextEnd) -> ReadMessage {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::<WireCall>::new());
    let mut pieces = reader.push(text);
    pieces.extend(reader.finish(end));
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => reasoning.push_str(&text),
            Piece::Content(text) => content.push_str(&text),
            Piece::Call(name) => {
                let function = WireFunction { name, arguments: String::new() };
                calls.push(WireCall { id: reader.fresh_id(), kind: FUNCTION, function });
            }
            Piece::Arguments(text) => {
                if let Some(call) = calls.last_mut() {
                    call.function.arguments.push_str(&text);
                }
            }
        }
    }
    let is_nothing = content.is_empty() && !calls.is_empty();
    let reasoning = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
    ReadMessage { reasoning, content: (!is_nothing).then_some(content), calls }
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
