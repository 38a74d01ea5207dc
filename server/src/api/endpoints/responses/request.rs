//! Reads a request: everything but the items and the tools.

use std::collections::BTreeSet;

use hearth_engine::request::MAX_LOGPROBS;
use hearth_model::{decode::sampling::SamplingParams, text::chat::Ending};
use serde_json::{Map, Value, json};

use super::{
    answer::{Echo, View},
    input,
    tools::RequestTools,
};
use crate::api::{
    error::ApiError,
    exchange::{
        conversation::Conversation,
        generation::{GenerateParams, OneAnswer},
        reply::ReplyRequest,
        thinking::{self, Effort, Thinking},
    },
    tools::structured::Structure,
    wire::fields::{Fields, at_most_strings, missing, must_be},
};

/// Values of `include`. Values for unsupported tools and media have no effect.
const INCLUDABLE: [&str; 8] = [
    LOGPROBS,
    ENCRYPTED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];
const LOGPROBS: &str = "message.output_text.logprobs";
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// Fields of a server that stores responses, and what to do instead.
const STATEFUL: [(&str, &str); 3] = [
    ("previous_response_id", "send the items of earlier turns in `input`"),
    ("conversation", "send the items of earlier turns in `input`"),
    ("prompt", "send its text as `instructions` or in `input`"),
];

/// Fields without effect on the answer of this server.
const WITHOUT_EFFECT: [&str; 8] = [
    "access_programs",
    "client_metadata",
    "context_management",
    "image",
    "moderation",
    "prompt_cache_options",
    "prompt_cache_retention",
    "stream_options",
];

/// A parsed request; types and ranges are checked.
#[derive(Debug)]
pub(super) struct ResponsesRequest {
    pub(super) reply: ReplyRequest,
    pub(super) view: View,
    pub(super) echo: Echo,
}

impl ResponsesRequest {
    pub(super) fn from_fields(mut fields: Fields, defaults: SamplingParams) -> Result<Self, ApiError> {
        let given = &mut fields;
        refuse_state(given)?;
        let tools = RequestTools::from_fields(given)?;
        let instructions = given.string("instructions")?;
        let messages = input::messages(given, instructions.as_deref(), input::Parts::Text)?;
        let (format, text) = text(given)?;
        let (only_input_of, structure) = match (tools.only_input_of, format) {
            (Some(_), Some(_)) => {
                return Err(crate::api::tools::structured::one_only("tool_choice", "text.format"));
            }
            (Some((name, structure)), None) => (Some(name), Some(structure)),
            (None, format) => (None, format),
        };
        let (reasoning, has_summaries, effort) = reasoning(given)?;
        let budget = thinking::budget(given)?;
        let included = included(given)?;
        let top_logprobs = given.count("top_logprobs", 0..=MAX_LOGPROBS)?;
        let max_tokens = given.count("max_output_tokens", 1..=usize::MAX)?;
        let truncation = given.one_of_or("truncation", &[("auto", "auto"), ("disabled", "disabled")], "disabled")?;
        let echo = Echo {
            instructions,
            max_output_tokens: max_tokens,
            max_tool_calls: given.count("max_tool_calls", 0..=usize::MAX)?,
            metadata: metadata(given)?,
            parallel_tool_calls: tools.is_parallel,
            prompt_cache_key: given.string("prompt_cache_key")?,
            reasoning,
            safety_identifier: given.string("safety_identifier")?,
            temperature: 0.0,
            text,
            tool_choice: tools.choice_echo,
            tools: tools.echo,
            top_logprobs: top_logprobs.unwrap_or(0),
            top_p: 0.0,
            truncation,
            user: given.string("user")?,
        };
        WITHOUT_EFFECT.into_iter().for_each(|name| given.ignore(name));
        let answer = OneAnswer {
            streams: given.flag_or("stream", false)?,
            structure,
            stop_strings: ("stop", given.strings("stop")?),
            prompt_param: "input",
        };
        let conversation = Conversation::new("input", messages, tools.tools, Ending::GenerationPrompt);
        let logprobs = included.contains(LOGPROBS).then(|| top_logprobs.unwrap_or(0));
        let generation = GenerateParams::of_one_answer(fields, max_tokens.unwrap_or(usize::MAX), defaults, answer)?;
        let generation = generation.with_logprobs(logprobs);
        let generation = generation.with_thinking(Thinking { effort, budget, ..Thinking::default() });
        let params = generation.sampling_params();
        let echo = Echo { temperature: f64::from(params.temperature), top_p: f64::from(params.top_p), ..echo };
        let view = View {
            custom: tools.custom,
            namespaced: tools.namespaced,
            only_input_of,
            has_summaries,
            has_encrypted: included.contains(ENCRYPTED),
        };
        Ok(Self { reply: ReplyRequest { conversation, generation }, view, echo })
    }
}

/// Rejects fields that need stored responses. `store` itself is answered with `false`.
fn refuse_state(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, hint) in STATEFUL {
        if fields.take(name).is_some() {
            let message = format!("`{name}` is not supported: this server stores no responses\nhint: {hint}");
            return Err(ApiError::invalid(name, message));
        }
    }
    fields.flag("store")?;
    if fields.flag("background")? == Some(true) {
        let message = "`background` is not supported: this server stores no responses\nhint: use `stream`";
        return Err(ApiError::invalid("background", message));
    }
    Ok(())
}

/// Reads `text`: the structure of the answer, and the field as it is echoed.
fn text(fields: &mut Fields) -> Result<(Option<Structure>, Value), ApiError> {
    const PARAM: &str = "text.format";
    const SCHEMA: &str = "text.format.schema";
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Format {
        Text,
        Object,
        Schema,
    }
    let mut echo = json!({ "format": { "type": "text" }, "verbosity": "medium" });
    let Some(mut text) = fields.object("text")? else { return Ok((None, echo)) };
    if let Some(verbosity) = text.one_of("verbosity", &["low", "medium", "high"].map(|word| (word, word)))? {
        echo["verbosity"] = verbosity.into();
    }
    let Some(mut format) = text.object("format")? else { return Ok((None, echo)) };
    echo["format"] = format.to_value();
    let kinds = [("text", Format::Text), ("json_object", Format::Object), ("json_schema", Format::Schema)];
    let kind = format.require("type", |format, name| format.one_of(name, &kinds))?;
    let name = format.name("name")?;
    let schema = format.take_as("schema", || json!({ "type": ["object", "boolean"] }));
    format.string("description")?;
    // The schema is always enforced, `strict` or not.
    format.flag("strict")?;
    if let Some(other) = schema.as_ref().filter(|schema| !schema.is_object() && !schema.is_boolean()) {
        return Err(must_be(SCHEMA, "a JSON Schema: an object", other));
    }
    let structure = match (kind, name, schema) {
        (Format::Text, ..) => None,
        (Format::Object, ..) => Some(Structure::json(None, PARAM, PARAM)),
        (Format::Schema, None, _) => return Err(missing("text.format.name")),
        (Format::Schema, _, None) => return Err(missing(SCHEMA)),
        (Format::Schema, _, Some(schema)) => Some(Structure::json(Some(schema), PARAM, SCHEMA)),
    };
    Ok((structure, echo))
}

/// Reads `reasoning`: the field as it is echoed, whether thoughts have a summary, and the reasoning effort.
fn reasoning(fields: &mut Fields) -> Result<(Value, bool, Option<Effort>), ApiError> {
    const SUMMARIES: [&str; 3] = ["auto", "concise", "detailed"];
    let Some(mut given) = fields.object("reasoning")? else {
        return Ok((json!({ "effort": null, "summary": null }), false, None));
    };
    let (word, effort) = Thinking::effort_of(&mut given, "effort")?.unzip();
    let summary = given.one_of("summary", &SUMMARIES.map(|summary| (summary, summary)))?;
    // The older name.
    let summary = summary.or(given.one_of("generate_summary", &SUMMARIES.map(|summary| (summary, summary)))?);
    // Such as `context`.
    given.ignore_rest();
    Ok((json!({ "effort": word, "summary": summary }), summary.is_some(), effort))
}

fn included(fields: &mut Fields) -> Result<BTreeSet<String>, ApiError> {
    const NAME: &str = "include";
    let list = at_most_strings(INCLUDABLE.len() * 2, NAME, fields.string_list(NAME)?.unwrap_or_default())?;
    match list.iter().find(|name| !INCLUDABLE.contains(&name.as_str())) {
        None => Ok(list.into_iter().collect()),
        Some(unknown) => {
            let names = INCLUDABLE.map(|name| format!("`{name}`")).join(", ");
            Err(must_be(NAME, &format!("an array of {names}"), &json!(unknown)))
        }
    }
}

fn metadata(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "metadata";
    let metadata = fields.any_object(NAME)?.unwrap_or_default();
    match metadata.iter().find(|(_, value)| !value.is_string()) {
        None => Ok(metadata),
        Some((name, value)) => Err(must_be(format!("{NAME}.{name}"), "a string", value)),
    }
}

/// Example requests for the schema: the smallest one, and ones with each nested object.
pub(super) fn examples() -> Vec<Value> {
    let format = json!({ "type": "json_schema", "name": "x", "schema": {} });
    let grammar = json!({ "type": "grammar", "syntax": "regex", "definition": "x" });
    let objects = [
        ("store", json!(true)),
        ("text", json!({ "format": format })),
        ("reasoning", json!({})),
        ("tools", json!([{ "type": "function", "name": "x" }, { "type": "custom", "name": "y", "format": grammar }])),
    ];
    objects.into_iter().map(|(name, object)| json!({ "input": "x", name: object })).collect()
}
