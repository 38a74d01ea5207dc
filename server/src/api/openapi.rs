//! `GET /openapi.json`: the API as OpenAPI 3.1 describes it. Requests are described by their own parsers ([`schema`]),
//! answers by their own types (schemars), and what a parameter means by the reference page, `docs/parameters.md`.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    error::{ApiError, Envelope},
    router::routes,
    schema::{Shape, resolve_token_ids},
    state::AppState,
};

/// The reference page. Its tables say what each parameter means.
pub(crate) const PARAMETERS: &str = include_str!("../../../docs/parameters.md");

/// One endpoint, as the document tells of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) summary: &'static str,
    pub(crate) request: Request,
    pub(crate) answer: Answer,
    /// Statuses beside 200 that it may answer with.
    pub(crate) refusals: &'static [u16],
    pub(crate) access: Access,
    /// What its answer can be asked with next.
    pub(crate) links: &'static [Link],
}

/// A value of an answer that is a parameter elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) name: &'static str,
    /// The other endpoint's path, as the table of routes has it.
    pub(crate) to: &'static str,
    /// Where its parameter is.
    pub(crate) place: Place,
    pub(crate) param: &'static str,
    /// The value, as a JSON pointer into the answer.
    pub(crate) from: &'static str,
}

/// Where a parameter is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Path,
    /// Alone in it.
    Body,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// A `GET` without parameters.
    Nothing,
    /// A `GET` with one in the path, whose only value is the model's name.
    ModelInPath,
    /// A `POST` of a JSON object; the function lets the endpoint's parser note what it reads.
    Body(fn(&AppState, &Shape) -> Result<(), ApiError>),
}

/// What comes back if all is well.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// JSON of a type.
    Json(AnswerType),
    /// JSON, or server-sent events if the request has `stream`.
    JsonOrEvents(AnswerType),
    /// Text of a media type.
    Text(&'static str),
}

/// Notes the schema of a type and those it is made of, and gives a reference to it.
pub(crate) type AnswerType = fn(&mut SchemaGenerator) -> Value;

/// Whether it needs a key, where there are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    WithKey,
}

/// The schema of an answer.
pub(crate) fn answer<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// What every `POST` may be refused with.
pub(crate) const POST_REFUSALS: &[u16] = &[400, 403, 404, 408, 413, 415, 429, 500, 503, 504];

/// The whole document.
pub(crate) async fn openapi(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    Ok(Json(document(&state)?))
}

fn document(state: &AppState) -> Result<Value, ApiError> {
    let needs_keys = !state.options().keys.is_open();
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let envelope = answer::<Envelope>(&mut schemas);
    let meanings = meanings();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let Some(operation) = route.operation else { continue };
        let mut described = operation.describe(state, &mut schemas, &envelope)?;
        described["operationId"] = json!(operation_id(route.path));
        if needs_keys && operation.access == Access::WithKey {
            described["security"] = json!([{ "key": [] }]);
            described["responses"]["401"] = refusal(401, &envelope);
        }
        if let Some(properties) = described.pointer_mut("/requestBody/content/application~1json/schema/properties") {
            explain(properties, &meanings, &Explained { path: route.path, within: "" });
        }
        let method = if matches!(operation.request, Request::Body(_)) { "post" } else { "get" };
        paths.insert(route.path.replace("{*id}", "{id}"), json!({ method: described }));
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hearth",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's API, with the parameters that local servers add. A parameter that is `null` is \
                            absent. Parameters that are not described are ignored, and told back in the header \
                            `x-ignored-params`. Rules between parameters are in no schema: they are a 400 that names both.",
        },
        "paths": paths,
        "components": { "schemas": schemas.take_definitions(true) },
    });
    if needs_keys {
        document["components"]["securitySchemes"] = json!({ "key": { "type": "http", "scheme": "bearer" } });
    }
    if let Some(engine) = state.engine() {
        resolve_token_ids(&mut document, engine.model().limits.vocab_size);
    }
    Ok(document)
}

impl Operation {
    fn describe(&self, state: &AppState, schemas: &mut SchemaGenerator, envelope: &Value) -> Result<Value, ApiError> {
        let content = match self.answer {
            Answer::Json(answer) => json!({ "application/json": { "schema": answer(schemas) } }),
            Answer::JsonOrEvents(answer) => json!({
                "application/json": { "schema": answer(schemas) },
                "text/event-stream": { "schema": { "type": "string" } },
            }),
            Answer::Text(media_type) => json!({ media_type: { "schema": { "type": "string" } } }),
        };
        let mut responses = json!({ "200": { "description": "OK", "content": content } });
        for &status in self.refusals {
            responses[status.to_string()] = refusal(status, envelope);
        }
        if !self.links.is_empty() {
            let links = self.links.iter().map(|link| (link.name.to_owned(), link.describe()));
            responses["200"]["links"] = links.collect::<Map<_, _>>().into();
        }
        let mut described = json!({ "summary": self.summary, "responses": responses });
        match self.request {
            Request::Nothing => {}
            Request::ModelInPath => {
                let schema = json!({ "type": "string", "enum": [state.model_id()] });
                described["parameters"] = json!([{ "name": "id", "in": "path", "required": true, "schema": schema }]);
            }
            Request::Body(describe) => {
                let shape = Shape::default();
                describe(state, &shape)?;
                let mut schema = shape.schema();
                if let Some(model) = schema.pointer_mut("/properties/model") {
                    *model = json!({ "type": ["string", "null"], "enum": [state.model_id(), null] });
                }
                let content = json!({ "application/json": { "schema": schema } });
                described["requestBody"] = json!({ "required": true, "content": content });
            }
        }
        Ok(described)
    }
}

impl Link {
    fn describe(&self) -> Value {
        let value = json!({ self.param: format!("$response.body#{}", self.from) });
        let place = match self.place {
            Place::Path => "parameters",
            Place::Body => "requestBody",
        };
        json!({ "operationId": operation_id(self.to), place: value })
    }
}

fn refusal(status: u16, envelope: &Value) -> Value {
    let description = match status {
        400 => "The request makes no sense, as a whole or in one parameter",
        401 => "No key, or a wrong one",
        403 => "`Origin` or `Host` is not allowed",
        404 => "No such model",
        408 => "The body took too long",
        413 => "The body is too large",
        415 => "The body is not JSON by its content type",
        429 => "The queue is full: try again",
        500 => "Inference failed",
        503 => "The model is being loaded, or the server is shutting down: try again",
        504 => "The request's deadline has passed",
        _ => "",
    };
    json!({ "description": description, "content": { "application/json": { "schema": envelope } } })
}

/// `/v1/chat/completions` to `v1_chat_completions`.
fn operation_id(path: &str) -> String {
    let words = path.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

/// The parameters that are explained.
#[derive(Clone, Copy)]
struct Explained<'a> {
    path: &'a str,
    /// The object that it is part of, with a dot; empty at the top.
    within: &'a str,
}

/// Adds what each parameter means.
fn explain(properties: &mut Value, meanings: &BTreeMap<(String, String), String>, place: &Explained<'_>) {
    let Some(properties) = properties.as_object_mut() else { return };
    for (name, schema) in properties {
        let full = format!("{}{name}", place.within);
        // At the root are the same endpoints as under `/v1`.
        let path = if place.path.starts_with("/v1/") { place.path.to_owned() } else { format!("/v1{}", place.path) };
        if let Some(meaning) = meanings.get(&(path, full.clone())) {
            schema["description"] = json!(meaning);
        }
        if let Some(inner) = schema.get_mut("properties") {
            explain(inner, meanings, &Explained { within: &format!("{full}."), ..*place });
        }
    }
}

/// What parameters mean, by the endpoint's path and their name, out of the reference page: below a heading that names
/// endpoints, the first and the last cell of each row of the table.
fn meanings() -> BTreeMap<(String, String), String> {
    let mut meanings = BTreeMap::new();
    let mut paths: Vec<&str> = Vec::new();
    for line in PARAMETERS.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            paths = heading.split('`').filter(|part| part.starts_with('/')).collect();
        }
        let Some(row) = line.strip_prefix("| `") else { continue };
        let (Some((name, _)), Some(meaning)) =
            (row.split_once('`'), row.trim_end_matches([' ', '|']).rsplit(" | ").next())
        else {
            continue;
        };
        for path in &paths {
            meanings.insert(((*path).to_owned(), name.to_owned()), meaning.trim().to_owned());
        }
    }
    meanings
}
