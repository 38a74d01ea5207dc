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
use serde_json::Value;

use self::{
    answer::WireResponse,
    events::{EventWriter, ResponseEvent},
    request::ResponsesRequest,
};
use crate::api::{
    error::ApiError,
    exchange::{generation::RunningAnswer, items::Items, reply::Reply, stream},
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
