//! Anthropic's API: [messages](https://docs.anthropic.com/en/api/messages), the number of their tokens, the list of
//! models, and errors in its shape.

mod answer;
mod errors;
mod events;
mod input;
mod model_list;
mod request;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use self::{
    answer::{StopReason, WireMessage},
    errors::WireError,
    events::{Event, EventWriter},
    request::MessagesRequest,
};
pub(crate) use self::{
    errors::{errors_in_own_shape, is_asked},
    model_list::{ModelInfo, ModelPage},
};
use crate::api::{
    error::ApiError,
    exchange::{
        adapters,
        generation::RunningAnswer,
        items::Items,
        reply::{self, Reply},
        stream,
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::Fields,
        ignored_params,
        schema::Shape,
        state::AppState,
    },
};

/// The entry of `/v1/messages` in `/openapi.json`.
pub(crate) const CREATE: Operation = Operation::post(
    "Answer a conversation, with Anthropic's API",
    describe,
    ResponseBody::JsonOrEvents(schema_of::<WireMessage>, schema_of::<Event>),
)
.with_errors(ERRORS)
.with_error(schema_of::<WireError<'static>>);

/// The entry of `/v1/messages/count_tokens` in `/openapi.json`.
pub(crate) const COUNT_TOKENS: Operation = Operation::post(
    "Count the tokens of a conversation, with Anthropic's API",
    describe_count,
    ResponseBody::Json(schema_of::<TokenCount>),
)
.with_errors(ERRORS)
.with_error(schema_of::<WireError<'static>>);

/// As of other endpoints, with 529 instead of 429.
const ERRORS: &[u16] = &[400, 403, 404, 408, 413, 415, 500, 503, 504, 529];

#[derive(Debug, Serialize, JsonSchema)]
struct TokenCount {
    input_tokens: usize,
}

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    request::examples().into_iter().try_for_each(|example| {
        MessagesRequest::from_fields(Fields::describing(example, shape), state.sampling_defaults()).map(drop)
    })
}

fn describe_count(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    request::examples().into_iter().try_for_each(|example| {
        let mut fields = Fields::describing(example, shape);
        fields.string("model")?;
        request::counted(&mut fields).map(drop)
    })
}

/// Handles a request for a message, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let defaults = state.sampling_defaults();
    let read = move |fields| MessagesRequest::from_fields(fields, defaults);
    let MessagesRequest { reply, display } = body.read(&state, read).await?;
    let Reply { started, reader, generation } = reply.start(&state, "msg_", body).await?;
    let RunningAnswer { head, deltas, .. } = started;
    let max_tokens = generation.max_tokens();
    let mut items = Items::new(reader);
    let response = if generation.stream.is_some() {
        let usage = deltas.usage();
        stream::sse_of(deltas, state.options(), EventWriter { head, items, usage, max_tokens, display })
    } else {
        let usage = deltas.for_each(|delta| _ = items.push(delta.piece)).await?;
        let (stop, n_bytes) = (StopReason::of(&items, usage, max_tokens), items.n_bytes());
        let write = move || Json(WireMessage::whole(&head, &items, usage, stop, display)).into_response();
        state.write(n_bytes, write).await?
    };
    Ok(generation.add_ignored(response))
}

/// Counts the tokens of the prompt that a request would have.
pub(crate) async fn count_tokens(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let read = |mut fields: Fields| {
        let name = fields.string("model")?;
        let counted = request::counted(&mut fields)?;
        Ok((name, counted, ignored_params::of(&fields), fields.n_bytes()))
    };
    let (name, (conversation, thinking), ignored, n_bytes) = body.read(&state, read).await?;
    adapters::choose(&state, name.as_deref())?;
    let input_tokens = reply::count_tokens(&state, (conversation, thinking), (&body, n_bytes)).await?;
    Ok(ignored_params::add_header(ignored, Json(TokenCount { input_tokens }).into_response()))
}
