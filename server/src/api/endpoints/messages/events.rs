//! The events of a streamed message.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    answer::{Block, StopReason, WireMessage, WireUsage},
    errors::envelope,
    request::Display,
};
use crate::api::{
    error::ApiError,
    exchange::{
        items::{Change, Item, Items},
        response_head::ResponseHead,
        stream::{Frame, StreamItem, WriteEvents},
        submission::Usage,
        thoughts,
    },
};

/// An event.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
pub(super) enum Event {
    MessageStart { message: WireMessage },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageDelta, usage: WireUsage },
    MessageStop,
    Ping,
}

/// A piece of a block.
#[expect(clippy::enum_variant_names, reason = "the names in Anthropic's API")]
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum BlockDelta {
    TextDelta { text: String },
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: String },
    InputJsonDelta { partial_json: String },
}

/// How the message ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessageDelta {
    stop_reason: &'static str,
    stop_sequence: Option<String>,
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }

    fn frame(&self) -> Frame {
        Frame { event: Some(self.name()), data: json!(self).to_string() }
    }
}

/// Writes the events of a message.
pub(super) struct EventWriter {
    pub(super) head: ResponseHead,
    pub(super) items: Items,
    /// The token counts at the beginning.
    pub(super) usage: Usage,
    pub(super) max_tokens: Option<usize>,
    pub(super) display: Display,
}

impl EventWriter {
    fn event(&self, change: Change) -> Vec<Event> {
        match change {
            Change::Opened(index) => {
                let block = self.items.list().get(index).map(Block::opened);
                block.map(|content_block| Event::ContentBlockStart { index, content_block }).into_iter().collect()
            }
            Change::Grown { index, text, .. } => {
                let delta = match self.items.list().get(index) {
                    Some(Item::Reasoning(_)) if self.display == Display::Omitted => return Vec::new(),
                    Some(Item::Reasoning(_)) => BlockDelta::ThinkingDelta { thinking: text },
                    Some(Item::Call { .. }) => BlockDelta::InputJsonDelta { partial_json: text },
                    _ => BlockDelta::TextDelta { text },
                };
                vec![Event::ContentBlockDelta { index, delta }]
            }
            Change::Closed(index) => {
                let signature = match self.items.list().get(index) {
                    Some(Item::Reasoning(thought)) => Some(thoughts::encode(thought)),
                    _ => None,
                };
                let delta = signature.map(|signature| BlockDelta::SignatureDelta { signature });
                let signed = delta.map(|delta| Event::ContentBlockDelta { index, delta });
                signed.into_iter().chain([Event::ContentBlockStop { index }]).collect()
            }
        }
    }
}

impl WriteEvents for EventWriter {
    fn start(&mut self) -> Vec<Frame> {
        let message = WireMessage::begun(&self.head, self.usage);
        [Event::MessageStart { message }, Event::Ping].iter().map(Event::frame).collect()
    }

    fn item(&mut self, part: StreamItem) -> Vec<Frame> {
        let events: Vec<Event> = match part {
            StreamItem::Delta(delta, _) => {
                let changes = self.items.push(delta.piece);
                changes.into_iter().flat_map(|change| self.event(change)).collect()
            }
            StreamItem::End(usage) => {
                let StopReason { reason, sequence } = StopReason::of(&self.items, usage, self.max_tokens);
                let delta = MessageDelta { stop_reason: reason, stop_sequence: sequence };
                vec![Event::MessageDelta { delta, usage: usage.into() }, Event::MessageStop]
            }
        };
        events.iter().map(Event::frame).collect()
    }

    fn failure(&mut self, error: ApiError) -> Vec<Frame> {
        let data: Value = envelope(&error);
        vec![Frame { event: Some("error"), data: data.to_string() }]
    }

    fn keep_alive(&self) -> Option<Frame> {
        Some(Event::Ping.frame())
    }
}
