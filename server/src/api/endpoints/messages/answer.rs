//! The answer on the wire: a message whole, and its blocks.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::request::Display;
use crate::{
    api::exchange::{
        items::{Item, Items},
        response_head::ResponseHead,
        submission::Usage,
        thoughts,
    },
    random::fresh_id,
};

/// A whole message, or the one at the start of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Message")]
pub(super) struct WireMessage {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    /// Null at the beginning of a stream.
    stop_reason: Option<&'static str>,
    /// The string of `stop_sequences` that ended the answer.
    stop_sequence: Option<String>,
    usage: WireUsage,
}

/// A block of content.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ContentBlock")]
pub(super) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        /// Stands for the thought, also if its text is omitted.
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// The arguments.
        input: Map<String, Value>,
    },
}

/// Token counts.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub(super) struct WireUsage {
    /// Prompt tokens that were computed.
    input_tokens: usize,
    /// Always 0: the prefix cache needs no marks.
    cache_creation_input_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    cache_read_input_tokens: usize,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageOutputDetails")]
pub(super) struct OutputDetails {
    /// Number of tokens of thoughts.
    thinking_tokens: usize,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { thinking_tokens: usage.reasoning_tokens() },
        }
    }
}

impl Block {
    /// A block that begins, without contents.
    pub(super) fn opened(item: &Item) -> Self {
        match item {
            Item::Text { .. } => Self::Text { text: String::new() },
            Item::Reasoning(_) => Self::Thinking { thinking: String::new(), signature: String::new() },
            Item::Call { name, .. } => Self::ToolUse { id: fresh_id("toolu_"), name: name.clone(), input: Map::new() },
        }
    }

    fn whole(item: &Item, display: Display) -> Self {
        match (Self::opened(item), item) {
            (Self::Text { .. }, Item::Text { text, .. }) => Self::Text { text: text.clone() },
            (Self::Thinking { .. }, Item::Reasoning(thought)) => Self::Thinking {
                thinking: if display == Display::Shown { thought.clone() } else { String::new() },
                signature: thoughts::encode(thought),
            },
            (Self::ToolUse { id, name, .. }, Item::Call { arguments, .. }) => {
                Self::ToolUse { id, name, input: input(arguments) }
            }
            (block, _) => block,
        }
    }
}

/// The arguments of a call. Arguments that a limit has cut off are not JSON; they become the member that Anthropic
/// suggests for this case.
fn input(arguments: &str) -> Map<String, Value> {
    let invalid = || Map::from_iter([("INVALID_JSON".to_owned(), json!(arguments))]);
    serde_json::from_str(arguments).unwrap_or_else(|_| invalid())
}

/// Why an answer ended, and the string of `stop_sequences` that ended it.
#[derive(Clone, Debug)]
pub(super) struct StopReason {
    pub(super) reason: &'static str,
    pub(super) sequence: Option<String>,
}

impl StopReason {
    /// `max_tokens`: the request's limit.
    pub(super) fn of(items: &Items, usage: Usage, max_tokens: Option<usize>) -> Self {
        let end = items.end();
        let stop_string = end.and_then(|end| match &end.cause {
            Some(hearth_engine::StopCause::Text(text)) => Some(text.clone()),
            _ => None,
        });
        let reason = match end {
            Some(end) if end.is_length() => match max_tokens {
                Some(max_tokens) if usage.completion_tokens < max_tokens => "model_context_window_exceeded",
                _ => "max_tokens",
            },
            _ if stop_string.is_some() => "stop_sequence",
            Some(end) if end.is_whole() && items.has_calls() => "tool_use",
            _ => "end_turn",
        };
        Self { reason, sequence: stop_string }
    }
}

impl WireMessage {
    /// The message that a stream begins with.
    pub(super) fn begun(head: &ResponseHead, usage: Usage) -> Self {
        Self {
            id: head.id.clone(),
            kind: "message",
            role: "assistant",
            model: head.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: usage.into(),
        }
    }

    pub(super) fn whole(head: &ResponseHead, items: &Items, usage: Usage, stop: StopReason, display: Display) -> Self {
        Self {
            content: items.list().iter().map(|item| Block::whole(item, display)).collect(),
            stop_reason: Some(stop.reason),
            stop_sequence: stop.sequence,
            ..Self::begun(head, usage)
        }
    }
}
