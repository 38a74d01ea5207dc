//! Common parts of the answers of completions and chat: repeated members, the events of a stream, and their usage
//! reports.

use hearth_engine::clock::unix_time;
use hearth_model::TokenId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::submission::Usage;
use crate::{
    api::{error::ApiError, wire::fields::Fields},
    random::fresh_id,
};

/// In which events of a stream to report usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageReports {
    Nowhere,
    AtTheEnd,
    /// In every event.
    Everywhere,
}

impl UsageReports {
    /// Reads `stream` and `stream_options`; `None`: not streamed. The options are checked even without `stream`.
    ///
    /// # Errors
    /// 400 for values that are not flags, or that contradict each other.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let streams = fields.flag_or("stream", false)?;
        let mut reports = Self::Nowhere;
        if let Some(mut options) = fields.object("stream_options")? {
            let usage = options.flag_or("include_usage", false)?;
            reports = match (usage, options.flag_or("continuous_usage_stats", false)?) {
                (true, true) => Self::Everywhere,
                (true, false) => Self::AtTheEnd,
                (false, true) => {
                    let path = options.path("continuous_usage_stats");
                    let message = format!("`{path}` requires `include_usage`");
                    return Err(ApiError::invalid(path, message));
                }
                (false, false) => Self::Nowhere,
            };
        }
        Ok(streams.then_some(reports))
    }

    /// The member `usage` of an event before the last: absent, `null`, or the usage so far.
    pub(crate) fn in_delta(self, usage: Usage) -> Option<Option<Usage>> {
        match self {
            Self::Nowhere => None,
            Self::AtTheEnd => Some(None),
            Self::Everywhere => Some(Some(usage)),
        }
    }
}

/// Members that all parts of an answer repeat.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseHead {
    pub(crate) id: String,
    object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Changes with the server's version, the model's architecture, its dtypes, the device or the adapter; not with the
    /// model's weights.
    system_fingerprint: String,
}

impl ResponseHead {
    /// The head of a new answer, whose id begins with `id_prefix`. The endpoint sets its `object`.
    pub(crate) fn new(id_prefix: &str, model: &str, system_fingerprint: String) -> Self {
        Self {
            id: fresh_id(id_prefix),
            object: "",
            created: unix_time().as_secs(),
            model: model.to_owned(),
            system_fingerprint,
        }
    }

    /// The same head with another `object`.
    pub(crate) fn with_object(self, object: &'static str) -> Self {
        Self { object, ..self }
    }
}

/// One event of a streamed answer, for both endpoints.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{Choice}Event")]
pub(crate) struct StreamChunk<'a, Choice> {
    #[serde(flatten)]
    pub(crate) head: &'a ResponseHead,
    /// Empty in the last event, which has the `usage`.
    pub(crate) choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    /// In the first event of each choice, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [TokenId]>,
}

impl<'a, Choice: Serialize> StreamChunk<'a, Choice> {
    /// An event with a piece of one choice.
    pub(crate) fn more(head: &'a ResponseHead, choice: Choice, usage: Option<Option<Usage>>) -> Self {
        Self { head, choices: vec![choice], usage, prompt_token_ids: None }
    }

    /// The event after all choices, with the usage; `None` if not requested.
    pub(crate) fn last(head: &'a ResponseHead, reports: UsageReports, usage: Usage) -> Option<Self> {
        let usage = Some(Some(usage));
        (reports != UsageReports::Nowhere).then_some(Self { head, choices: Vec::new(), usage, prompt_token_ids: None })
    }

    pub(crate) fn to_json(&self) -> String {
        json!(self).to_string()
    }
}
