//! `POST /v1/responses`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/responses), without state:
//! responses are not stored.

mod answer;
mod events;
mod input;
mod request;
mod tools;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};

use hearth_model::text::chat::Message;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use self::{
    answer::WireResponse,
    events::{EventWriter, ResponseEvent},
    request::ResponsesRequest,
};
use crate::api::{
    error::ApiError,
    exchange::{
        adapters,
        generation::RunningAnswer,
        items::Items,
        reply::{self, Reply, ReplyRequest},
        stream,
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::Fields,
        schema::Shape,
        state::AppState,
    },
};

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation = Operation::post(
    "Answer a conversation of items",
    describe,
    ResponseBody::JsonOrEvents(schema_of::<WireResponse>, schema_of::<ResponseEvent>),
);

/// The entry of `/v1/responses/input_tokens` in `/openapi.json`.
pub(crate) const COUNT_TOKENS: Operation = Operation::post(
    "Count the tokens of a conversation of items",
    describe,
    ResponseBody::Json(schema_of::<TokenCount>),
);

/// The number of tokens of a prompt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InputTokens")]
struct TokenCount {
    object: &'static str,
    input_tokens: usize,
}

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    request::examples().into_iter().try_for_each(|example| {
        ResponsesRequest::from_fields(Fields::describing(example, shape), state.sampling_defaults()).map(drop)
    })
}

/// Reads `input` as the messages of a chat template, for endpoints that also take parts of JSON.
pub(crate) fn messages_with_json(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    input::messages(fields, None, input::Parts::TextAndJson)
}

/// The text of the parts of the field `name`, which may have JSON.
pub(crate) fn texts_and_json(item: &Fields, name: &'static str, parts: Vec<Value>) -> Result<String, ApiError> {
    input::joined(item.objects_of(name, parts)?, input::Parts::TextAndJson)
}

/// Handles a request, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let defaults = state.sampling_defaults();
    let read = move |fields| ResponsesRequest::from_fields(fields, defaults);
    let ResponsesRequest { reply, view, echo } = body.read(&state, read).await?;
    let Reply { started, reader, generation } = reply.start(&state, "resp_", body).await?;
    let RunningAnswer { head, deltas, .. } = started;
    let mut items = Items::new(reader).never_empty();
    let response = if generation.stream.is_some() {
        stream::sse_of(deltas, state.options(), EventWriter::new(head, echo, view, items))
    } else {
        let usage = deltas.for_each(|delta| _ = items.push(delta.piece)).await?;
        let n_bytes = items.n_bytes();
        let write = move || {
            let ids: Vec<_> = items.list().iter().map(|item| view.ids(item)).collect();
            let output = view.output(&items, &ids);
            Json(WireResponse::ended(&head, &echo, &items, output, usage)).into_response()
        };
        state.write(n_bytes, write).await?
    };
    Ok(generation.add_ignored(response))
}

/// Counts the tokens of the prompt that a request would have.
pub(crate) async fn count_tokens(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let defaults = state.sampling_defaults();
    let read = move |mut fields: Fields| {
        let name = fields.string("model")?;
        Ok((name, ResponsesRequest::from_fields(fields, defaults)?))
    };
    let (name, ResponsesRequest { reply: ReplyRequest { conversation, generation }, .. }) =
        body.read(&state, read).await?;
    adapters::choose(&state, name.as_deref())?;
    let sizes = (&body, generation.n_bytes());
    let input_tokens = reply::count_tokens(&state, (conversation, generation.thinking()), sizes).await?;
    let count = TokenCount { object: "response.input_tokens", input_tokens };
    Ok(generation.add_ignored(Json(count).into_response()))
}
