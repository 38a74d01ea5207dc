//! The answer on the wire: a response, whole or in progress, and its items.

use std::collections::{BTreeMap, BTreeSet};

use hearth_engine::clock::unix_time;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    super::chat::WireToken,
    tools::{Namespaced, input_of_arguments},
};
use crate::{
    api::{
        error::ApiError,
        exchange::{
            items::{Item, Items},
            response_head::ResponseHead,
            submission::Usage,
            thoughts,
        },
    },
    random::fresh_id,
};

/// How the answer is shown.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The names of custom tools.
    pub(super) custom: BTreeSet<String>,
    /// The tools of namespaces, by the names under which the model sees them.
    pub(super) namespaced: BTreeMap<String, Namespaced>,
    /// The custom tool whose input the answer's text is.
    pub(super) only_input_of: Option<String>,
    /// Whether thoughts have a summary too, which is their text.
    pub(super) has_summaries: bool,
    /// Whether thoughts have `encrypted_content`.
    pub(super) has_encrypted: bool,
}

/// The fields of a request that its response repeats.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Echo {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) max_tool_calls: Option<usize>,
    pub(super) metadata: Map<String, Value>,
    pub(super) parallel_tool_calls: bool,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) reasoning: Value,
    pub(super) safety_identifier: Option<String>,
    pub(super) temperature: f64,
    pub(super) text: Value,
    pub(super) tool_choice: Value,
    /// The request's tools, except hosted tools that this server does not run.
    pub(super) tools: Vec<Value>,
    pub(super) top_logprobs: usize,
    pub(super) top_p: f64,
    pub(super) truncation: &'static str,
    pub(super) user: Option<String>,
}

/// A response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub(super) struct WireResponse {
    id: String,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: &'static str,
    background: bool,
    error: Option<WireError>,
    incomplete_details: Option<IncompleteDetails>,
    model: String,
    output: Vec<OutputItem>,
    /// Always null: responses are not stored.
    previous_response_id: Option<String>,
    service_tier: &'static str,
    /// Always false.
    store: bool,
    usage: Option<WireUsage>,
    #[serde(flatten)]
    echo: Echo,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseError")]
struct WireError {
    code: &'static str,
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct IncompleteDetails {
    reason: &'static str,
}

/// Token counts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
struct WireUsage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct InputDetails {
    /// Number of prompt tokens found in the prefix cache.
    cached_tokens: usize,
    cache_write_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OutputDetails {
    reasoning_tokens: usize,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning_tokens() },
            total_tokens: usage.total_tokens,
        }
    }
}

/// An item of the output.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum OutputItem {
    Reasoning {
        id: String,
        summary: Vec<ItemPart>,
        content: Vec<ItemPart>,
        /// Stands for the thought, if `include` names it.
        encrypted_content: Option<String>,
        status: Status,
    },
    Message {
        id: String,
        role: &'static str,
        status: Status,
        content: Vec<ItemPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        /// That of the tool, if it is in one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// JSON as text.
        arguments: String,
        status: Status,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        /// That of the tool, if it is in one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        input: String,
        status: Status,
    },
}

/// A part of an item.
#[expect(clippy::enum_variant_names, reason = "the names in OpenAI's API")]
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "OutputPart")]
pub(super) enum ItemPart {
    OutputText {
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        /// Empty unless `include` names them.
        logprobs: Vec<WireToken>,
    },
    ReasoningText {
        text: String,
    },
    SummaryText {
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ItemStatus")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// The ids of an item.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    pub(super) item: String,
    /// For calls.
    call: String,
}

impl View {
    /// Whether the item is a call of a custom tool.
    pub(super) fn is_custom(&self, item: &Item) -> bool {
        match item {
            Item::Call { name, .. } => self.custom.contains(name),
            Item::Text { .. } => self.only_input_of.is_some(),
            Item::Reasoning(_) => false,
        }
    }

    /// The namespace of a tool that the model calls by `name`, if it is in one, and the client's own name of it.
    pub(super) fn own_name(&self, name: &str) -> (Option<String>, String) {
        match self.namespaced.get(name) {
            Some(Namespaced { namespace, name }) => (Some(namespace.clone()), name.clone()),
            None => (None, name.to_owned()),
        }
    }

    /// New ids for an item.
    pub(super) fn ids(&self, item: &Item) -> Ids {
        let prefix = match item {
            item if self.is_custom(item) => "ctc_",
            Item::Reasoning(_) => "rs_",
            Item::Text { .. } => "msg_",
            Item::Call { .. } => "fc_",
        };
        Ids { item: fresh_id(prefix), call: fresh_id("call_") }
    }

    /// The input of a call of a custom tool.
    pub(super) fn input(item: &Item) -> String {
        match item {
            Item::Call { arguments, .. } => input_of_arguments(arguments),
            Item::Text { text, .. } | Item::Reasoning(text) => text.clone(),
        }
    }

    /// The item with this status; while it is in progress, without contents.
    pub(super) fn item(&self, item: &Item, ids: &Ids, status: Status) -> OutputItem {
        let (id, call_id) = (ids.item.clone(), ids.call.clone());
        let is_whole = status != Status::InProgress;
        if self.is_custom(item) {
            let name = match item {
                Item::Call { name, .. } => Some(name),
                _ => self.only_input_of.as_ref(),
            };
            let (namespace, name) = self.own_name(name.map_or("", |name| name));
            let input = if is_whole { Self::input(item) } else { String::new() };
            return OutputItem::CustomToolCall { id, call_id, name, namespace, input, status };
        }
        match item {
            Item::Reasoning(thought) => {
                let text = || thought.clone();
                let summary = (is_whole && self.has_summaries).then(|| ItemPart::SummaryText { text: text() });
                let content = is_whole.then(|| ItemPart::ReasoningText { text: text() });
                OutputItem::Reasoning {
                    id,
                    summary: summary.into_iter().collect(),
                    content: content.into_iter().collect(),
                    encrypted_content: (is_whole && self.has_encrypted).then(|| thoughts::encode(thought)),
                    status,
                }
            }
            Item::Text { .. } => {
                let content = if is_whole { vec![part(item)] } else { Vec::new() };
                OutputItem::Message { id, role: "assistant", status, content }
            }
            Item::Call { name, arguments } => {
                let arguments = if is_whole { arguments.clone() } else { String::new() };
                let (namespace, name) = self.own_name(name);
                OutputItem::FunctionCall { id, call_id, name, namespace, arguments, status }
            }
        }
    }

    /// All items, with these ids.
    pub(super) fn output(&self, items: &Items, ids: &[Ids]) -> Vec<OutputItem> {
        let listed = items.list().iter().zip(ids).enumerate();
        listed.map(|(index, (item, ids))| self.item(item, ids, status(items, index))).collect()
    }
}

/// The status of an item that does not grow any more.
pub(super) fn status(items: &Items, index: usize) -> Status {
    if items.is_cut(index) { Status::Incomplete } else { Status::Completed }
}

/// The part of a text or of a thought.
pub(super) fn part(item: &Item) -> ItemPart {
    match item {
        Item::Text { text, logprobs } => ItemPart::OutputText {
            text: text.clone(),
            annotations: Vec::new(),
            logprobs: WireToken::list(logprobs.clone()),
        },
        Item::Reasoning(text) | Item::Call { arguments: text, .. } => ItemPart::ReasoningText { text: text.clone() },
    }
}

impl WireResponse {
    /// A response in progress.
    pub(super) fn begun(head: &ResponseHead, echo: &Echo) -> Self {
        Self {
            id: head.id.clone(),
            object: "response",
            created_at: head.created,
            completed_at: None,
            status: "in_progress",
            background: false,
            error: None,
            incomplete_details: None,
            model: head.model.clone(),
            output: Vec::new(),
            previous_response_id: None,
            service_tier: "default",
            store: false,
            usage: None,
            echo: echo.clone(),
        }
    }

    /// A response that has ended, with these items.
    pub(super) fn ended(
        head: &ResponseHead,
        echo: &Echo,
        items: &Items,
        output: Vec<OutputItem>,
        usage: Usage,
    ) -> Self {
        let is_cut = items.end().is_some_and(|end| end.is_length());
        Self {
            completed_at: (!is_cut).then(|| unix_time().as_secs()),
            status: if is_cut { "incomplete" } else { "completed" },
            incomplete_details: is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" }),
            output,
            usage: Some(usage.into()),
            ..Self::begun(head, echo)
        }
    }

    /// A response that has failed, with the items so far.
    pub(super) fn failed(head: &ResponseHead, echo: &Echo, output: Vec<OutputItem>, error: &ApiError) -> Self {
        let code = if error.status().is_server_error() { "server_error" } else { "invalid_prompt" };
        let error = WireError { code, message: error.message().to_owned() };
        Self { status: "failed", error: Some(error), output, ..Self::begun(head, echo) }
    }

    pub(super) fn status(&self) -> &'static str {
        self.status
    }
}
