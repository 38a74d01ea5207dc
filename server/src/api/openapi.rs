//! `GET /openapi.json`: the API in OpenAPI 3.1. The schemas of requests come from their parsers
//! ([`schema`](super::wire::schema)), the schemas of responses from their types (schemars), and descriptions of
//! parameters from the reference page, `docs/parameters.md`.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use axum::{
    body::Bytes,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    endpoints::page::{entity_tag, revalidated},
    error::ApiError,
    wire::{
        endpoint::{Endpoint, Link, Operation, ParamIn, Request, ResponseBody},
        schema::{Shape, resolve_token_ids},
        state::AppState,
    },
};

/// The reference page, whose tables describe each parameter.
const PARAMETERS: &str = include_str!("../../../docs/parameters.md");

/// The document of one server, as text. It is rebuilt only after a change.
#[derive(Debug, Default)]
pub(crate) struct Document(Mutex<Option<Built>>);

#[derive(Clone, Debug)]
struct Built {
    /// Whether the model was loaded, and the names of models: everything that can change in the document.
    made_of: (bool, Vec<String>),
    text: Bytes,
    tag: String,
}

impl Document {
    /// The response to a request with these headers: the document, or 304 if the client has it.
    ///
    /// # Errors
    /// An example is rejected by its own endpoint's parser.
    pub(crate) fn response(
        &self,
        state: &AppState,
        endpoints: fn() -> Vec<Endpoint>,
        headers: &HeaderMap,
    ) -> Result<Response, ApiError> {
        let made_of = (state.engine().is_some(), state.model_names());
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let current = match built.take().filter(|built| built.made_of == made_of) {
            Some(current) => current,
            None => {
                let text = Bytes::from(document(state, &endpoints())?.to_string());
                Built { made_of, tag: entity_tag(&text), text }
            }
        };
        let Built { text, tag, .. } = built.insert(current).clone();
        drop(built);
        Ok(([(header::CONTENT_TYPE, "application/json")], revalidated(headers, &tag, text)).into_response())
    }
}

/// The whole document, for these endpoints.
fn document(state: &AppState, endpoints: &[Endpoint]) -> Result<Value, ApiError> {
    let needs_keys = !state.options().keys.is_open();
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let descriptions = descriptions();
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in endpoints {
        let Some(operation) = endpoint.operation else { continue };
        let mut described = operation.describe(state, &mut schemas)?;
        described["operationId"] = json!(operation_id(endpoint.path));
        if needs_keys && endpoint.policy.needs_key() {
            described["security"] = json!([{ "key": [] }]);
            described["responses"]["401"] = error_response(401, &(operation.error)(&mut schemas));
        }
        if let Some(properties) = described.pointer_mut("/requestBody/content/application~1json/schema/properties") {
            add_descriptions(properties, &descriptions, (endpoint.path, ""));
        }
        let method = if matches!(operation.request, Request::Body(_)) { "post" } else { "get" };
        paths.insert(endpoint.path.replace("{*id}", "{id}"), json!({ method: described }));
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hearth",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's API, with the parameters that local servers add. `null` means the same as leaving \
                            a parameter out. Parameters that are not listed here are ignored and reported in the response \
                            header `x-ignored-params`. Constraints between parameters are not part of the schema; violating \
                            one returns a 400 that names both.",
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
    fn describe(&self, state: &AppState, schemas: &mut SchemaGenerator) -> Result<Value, ApiError> {
        let content = match self.response {
            ResponseBody::Json(whole) => json!({ "application/json": { "schema": whole(schemas) } }),
            ResponseBody::JsonOrEvents(whole, event) => json!({
                "application/json": { "schema": whole(schemas) },
                "text/event-stream": { "schema": {
                    "type": "string",
                    "description": "Server-sent events. The data of each is JSON of the content schema; completions end with `[DONE]`.",
                    "contentMediaType": "application/json",
                    "contentSchema": event(schemas),
                } },
            }),
            ResponseBody::Text(media_type) => json!({ media_type: { "schema": { "type": "string" } } }),
        };
        let mut responses = json!({ "200": { "description": "OK", "content": content } });
        let envelope = (self.error)(schemas);
        for &status in self.errors {
            responses[status.to_string()] = error_response(status, &envelope);
        }
        if !self.links.is_empty() {
            let links = self.links.iter().map(|link| (link.name.to_owned(), link.describe()));
            responses["200"]["links"] = links.collect::<Map<_, _>>().into();
        }
        let mut described = json!({ "summary": self.summary, "responses": responses });
        match self.request {
            Request::Nothing => {}
            Request::ModelInPath => {
                let schema = json!({ "type": "string", "enum": state.model_names() });
                described["parameters"] = json!([{ "name": "id", "in": "path", "required": true, "schema": schema }]);
            }
            Request::Body(describe) => {
                let shape = Shape::default();
                describe(state, &shape)?;
                let mut schema = shape.schema();
                if let Some(model) = schema.pointer_mut("/properties/model")
                    && !state.options().aliases.take_any()
                {
                    let names = state.model_names().into_iter().map(Value::from).chain(["".into(), Value::Null]);
                    *model = json!({ "type": ["string", "null"], "enum": names.collect::<Vec<_>>() });
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
        let param_in = match self.param_in {
            ParamIn::Path => "parameters",
            ParamIn::Body => "requestBody",
        };
        json!({ "operationId": operation_id(self.to), param_in: value })
    }
}

fn error_response(status: u16, envelope: &Value) -> Value {
    let description = match status {
        400 => "The request, or one of its parameters, is invalid",
        401 => "The API key is missing or incorrect",
        403 => "`Origin` or `Host` is not allowed, or the server's settings do not allow the request",
        404 => "No such model or adapter",
        408 => "The body did not arrive in time",
        413 => "The body is too large",
        415 => "The content type of the body is not JSON",
        429 => "The queue is full, or requests use too many adapters; try again later",
        500 => "Inference failed",
        529 => "The queue is full, or requests use too many adapters; try again later",
        503 => "The model is loading, its adapter cannot be read, or the server is shutting down; try again later",
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

/// Adds the description of each parameter. `path` is the endpoint's, `within` the object that the parameters are in,
/// with a dot, or empty.
fn add_descriptions(properties: &mut Value, all: &Descriptions, (path, within): (&str, &str)) {
    let Some(properties) = properties.as_object_mut() else { return };
    for (name, schema) in properties {
        let full = format!("{within}{name}");
        if let Some(description) = all.get(&(path.to_owned(), full.clone())) {
            schema["description"] = json!(description);
        }
        if let Some(inner) = schema.get_mut("properties") {
            add_descriptions(inner, all, (path, &format!("{full}.")));
        }
    }
}

/// Descriptions of parameters, by the endpoint's path and the parameter's name.
type Descriptions = BTreeMap<(String, String), String>;

/// Reads the reference page: below a heading that names endpoints, each table row has the name in its first cell and
/// the description in its last.
fn descriptions() -> Descriptions {
    let mut descriptions = BTreeMap::new();
    let mut paths: Vec<&str> = Vec::new();
    for line in PARAMETERS.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            paths = heading.split('`').filter(|part| part.starts_with('/')).collect();
        }
        let Some(row) = line.strip_prefix("| `") else { continue };
        let (Some((name, _)), Some(description)) =
            (row.split_once('`'), row.trim_end_matches([' ', '|']).rsplit(" | ").next())
        else {
            continue;
        };
        for path in &paths {
            descriptions.insert(((*path).to_owned(), name.to_owned()), description.trim().to_owned());
        }
    }
    descriptions
}
