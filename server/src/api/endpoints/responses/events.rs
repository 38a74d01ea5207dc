//! The events of a streamed response.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    super::chat::WireToken,
    answer::{Echo, Ids, ItemPart, Status, View, WireResponse, part, status},
};
use crate::api::{
    error::ApiError,
    exchange::{
        items::{Change, Item, Items},
        response_head::ResponseHead,
        stream::{Frame, StreamItem, TokenEntry, WriteEvents},
    },
};

/// An event.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ResponseEvent {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Counts the events of the stream.
    sequence_number: usize,
    /// The members of this kind of event.
    #[serde(flatten)]
    members: Map<String, Value>,
}

/// Writes the events of a response.
pub(super) struct EventWriter {
    pub(super) head: ResponseHead,
    pub(super) echo: Echo,
    pub(super) view: View,
    pub(super) items: Items,
    /// The ids of the items that have begun.
    ids: Vec<Ids>,
    n_events: usize,
}

impl EventWriter {
    pub(super) fn new(head: ResponseHead, echo: Echo, view: View, items: Items) -> Self {
        Self { head, echo, view, items, ids: Vec::new(), n_events: 0 }
    }

    fn event(&mut self, kind: &'static str, members: Value) -> Frame {
        let members = match members {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        let event = ResponseEvent { kind, sequence_number: self.n_events, members };
        self.n_events += 1;
        Frame { event: Some(kind), data: json!(event).to_string() }
    }

    /// An event of the item `index`.
    fn item_event(&mut self, kind: &'static str, index: usize, members: Value) -> Frame {
        let id = self.ids.get(index).map(|ids| ids.item.clone());
        let mut all = json!({ "item_id": id, "output_index": index });
        if let (Value::Object(all), Value::Object(members)) = (&mut all, members) {
            all.extend(members);
        }
        self.event(kind, all)
    }

    /// An event with the item `index` as a whole.
    fn whole_item_event(&mut self, kind: &'static str, index: usize, status: Status) -> Option<Frame> {
        let item = self.view.item(self.items.list().get(index)?, self.ids.get(index)?, status);
        Some(self.event(kind, json!({ "output_index": index, "item": item })))
    }

    fn change(&mut self, change: Change) -> Vec<Frame> {
        match change {
            Change::Opened(index) => self.opened(index),
            Change::Grown { index, text, logprobs } => self.grown(index, &text, logprobs),
            Change::Closed(index) => self.closed(index),
        }
    }

    fn opened(&mut self, index: usize) -> Vec<Frame> {
        let Some(item) = self.items.list().get(index) else { return Vec::new() };
        let begun = match item {
            Item::Text { .. } => Some(Item::Text { text: String::new(), logprobs: Vec::new() }),
            Item::Reasoning(_) => Some(Item::Reasoning(String::new())),
            Item::Call { .. } => None,
        };
        let begun = begun.filter(|begun| !self.view.is_custom(begun));
        self.ids.push(self.view.ids(item));
        let mut frames = Vec::from_iter(self.whole_item_event("response.output_item.added", index, Status::InProgress));
        let Some(begun) = begun else { return frames };
        if matches!(begun, Item::Reasoning(_)) && self.view.has_summaries {
            let members = json!({ "summary_index": 0, "part": ItemPart::SummaryText { text: String::new() } });
            frames.push(self.item_event("response.reasoning_summary_part.added", index, members));
        }
        let members = json!({ "content_index": 0, "part": part(&begun) });
        frames.push(self.item_event("response.content_part.added", index, members));
        frames
    }

    fn grown(&mut self, index: usize, delta: &str, logprobs: Vec<TokenEntry>) -> Vec<Frame> {
        let Some(item) = self.items.list().get(index) else { return Vec::new() };
        // The input of a custom tool is read from its arguments, once they are complete.
        if self.view.is_custom(item) {
            return Vec::new();
        }
        match item {
            Item::Text { .. } => {
                let logprobs = WireToken::list(logprobs);
                let members = json!({ "content_index": 0, "delta": delta, "logprobs": logprobs });
                vec![self.item_event("response.output_text.delta", index, members)]
            }
            Item::Reasoning(_) => {
                let members = json!({ "content_index": 0, "delta": delta });
                let mut frames = vec![self.item_event("response.reasoning_text.delta", index, members)];
                if self.view.has_summaries {
                    let members = json!({ "summary_index": 0, "delta": delta });
                    frames.push(self.item_event("response.reasoning_summary_text.delta", index, members));
                }
                frames
            }
            Item::Call { .. } => {
                vec![self.item_event("response.function_call_arguments.delta", index, json!({ "delta": delta }))]
            }
        }
    }

    fn closed(&mut self, index: usize) -> Vec<Frame> {
        let Some(item) = self.items.list().get(index).cloned() else { return Vec::new() };
        let mut frames = match &item {
            item if self.view.is_custom(item) => {
                let input = View::input(item);
                let delta = json!({ "delta": input });
                vec![
                    self.item_event("response.custom_tool_call_input.delta", index, delta),
                    self.item_event("response.custom_tool_call_input.done", index, json!({ "input": input })),
                ]
            }
            Item::Call { name, arguments } => {
                let (_, name) = self.view.own_name(name);
                let members = json!({ "name": name, "arguments": arguments });
                vec![self.item_event("response.function_call_arguments.done", index, members)]
            }
            Item::Text { text, logprobs } => {
                let logprobs = WireToken::list(logprobs.clone());
                let members = json!({ "content_index": 0, "text": text, "logprobs": logprobs });
                vec![self.item_event("response.output_text.done", index, members), self.part_done(index, &item)]
            }
            Item::Reasoning(text) => {
                let members = json!({ "content_index": 0, "text": text });
                let mut frames =
                    vec![self.item_event("response.reasoning_text.done", index, members), self.part_done(index, &item)];
                if self.view.has_summaries {
                    let members = json!({ "summary_index": 0, "text": text });
                    frames.push(self.item_event("response.reasoning_summary_text.done", index, members));
                    let members = json!({ "summary_index": 0, "part": ItemPart::SummaryText { text: text.clone() } });
                    frames.push(self.item_event("response.reasoning_summary_part.done", index, members));
                }
                frames
            }
        };
        let status = status(&self.items, index);
        frames.extend(self.whole_item_event("response.output_item.done", index, status));
        frames
    }

    fn part_done(&mut self, index: usize, item: &Item) -> Frame {
        self.item_event("response.content_part.done", index, json!({ "content_index": 0, "part": part(item) }))
    }
}

impl WriteEvents for EventWriter {
    fn start(&mut self) -> Vec<Frame> {
        let members = json!({ "response": WireResponse::begun(&self.head, &self.echo) });
        ["response.created", "response.in_progress"].map(|kind| self.event(kind, members.clone())).into()
    }

    fn item(&mut self, part: StreamItem) -> Vec<Frame> {
        match part {
            StreamItem::Delta(delta, _) => {
                let changes = self.items.push(delta.piece);
                changes.into_iter().flat_map(|change| self.change(change)).collect()
            }
            StreamItem::End(usage) => {
                let output = self.view.output(&self.items, &self.ids);
                let response = WireResponse::ended(&self.head, &self.echo, &self.items, output, usage);
                let kind = match response.status() {
                    "incomplete" => "response.incomplete",
                    _ => "response.completed",
                };
                vec![self.event(kind, json!({ "response": response }))]
            }
        }
    }

    fn failure(&mut self, error: ApiError) -> Vec<Frame> {
        let output = self.view.output(&self.items, &self.ids);
        let response = WireResponse::failed(&self.head, &self.echo, output, &error);
        vec![self.event("response.failed", json!({ "response": response }))]
    }
}
