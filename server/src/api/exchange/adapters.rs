//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, [vLLM's
//! endpoints](https://docs.vllm.ai/en/latest/features/lora.html), and the choice of an adapter by a request's `model`.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use hearth_engine::adapters::{AdapterError, Found, IfTaken, ServedAdapter};
use serde_json::json;

use crate::{
    api::{
        error::ApiError,
        guard::preparation::{AdmissionWait, WorkClass},
        wire::{
            body::Body,
            endpoint::{Operation, ResponseBody},
            fields::Fields,
            ignored_params,
            schema::Shape,
            state::AppState,
        },
    },
    engine::Engine,
};

struct LoadRequest {
    name: String,
    path: String,
    if_taken: IfTaken,
}

impl LoadRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            name: fields.require("lora_name", Fields::string)?,
            path: fields.require("lora_path", Fields::string)?,
            if_taken: if fields.flag_or("load_inplace", false)? { IfTaken::Replace } else { IfTaken::Refuse },
        })
    }
}

/// The entry of `/v1/load_lora_adapter` in `/openapi.json`.
pub(crate) const LOAD: Operation =
    Operation::post("Load a LoRA adapter", describe_load, ResponseBody::Text("text/plain"))
        .with_errors(&[400, 403, 408, 413, 415, 429, 500, 503]);

/// The entry of `/v1/unload_lora_adapter` in `/openapi.json`.
pub(crate) const UNLOAD: Operation =
    Operation::post("Unload a LoRA adapter", describe_unload, ResponseBody::Text("text/plain"))
        .with_errors(&[400, 403, 404, 408, 413, 415, 429, 500, 503]);

fn describe_load(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    LoadRequest::from_fields(&mut Fields::describing(json!({ "lora_name": "x", "lora_path": "x" }), shape)).map(drop)
}

fn describe_unload(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    unload_request(&mut Fields::describing(json!({ "lora_name": "x" }), shape)).map(drop)
}

fn unload_request(fields: &mut Fields) -> Result<String, ApiError> {
    fields.require("lora_name", Fields::string)
}

/// Loads an adapter.
pub(crate) async fn load(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let read = |mut fields: Fields| Ok((LoadRequest::from_fields(&mut fields)?, ignored_params::of(&fields)));
    let (request, ignored) = body.read(&state, read).await?;
    let engine = state.engine_for(body.arrived())?.clone();
    if request.name == state.model_id() {
        let message = format!("`lora_name` must not be the name of the model, got `{}`", request.name);
        return Err(ApiError::invalid("lora_name", message));
    }
    let LoadRequest { name, path, if_taken } = request;
    // Checked before waiting for other adapters to be read.
    engine.adapters().check_new(&name, if_taken)?;
    let done = format!("Success: LoRA adapter '{name}' added successfully.");
    let work = move || Ok(engine.adapters().register(&name, &path, if_taken)?);
    state.prepare(WorkClass::Adapter, body.turn_wait(), work).await?;
    Ok(ignored_params::add_header(ignored, text(done)))
}

/// Unloads an adapter. Running and waiting requests still use it.
pub(crate) async fn unload(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let read = |mut fields: Fields| Ok((unload_request(&mut fields)?, ignored_params::of(&fields)));
    let (name, ignored) = body.read(&state, read).await?;
    state.engine_for(body.arrived())?.adapters().unregister(&name)?;
    let done = format!("Success: LoRA adapter '{name}' removed successfully.");
    Ok(ignored_params::add_header(ignored, text(done)))
}

fn text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// The model or adapter that a request's `model` names.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    /// The model without an adapter, by any of its names.
    Model,
    /// The adapter with this name.
    Adapter(String),
}

impl Chosen {
    /// The adapter, which is read if it is not in memory.
    ///
    /// # Errors
    /// It has been unloaded, cannot be read any more, or must be read while the queue is full; errors of waiting for
    /// other adapters to be read.
    pub(crate) async fn adapter(
        &self,
        state: &AppState,
        engine: &Engine,
        wait: AdmissionWait,
    ) -> Result<Option<Arc<ServedAdapter>>, ApiError> {
        let Self::Adapter(name) = self else { return Ok(None) };
        match engine.adapters().find(name) {
            Found::Loaded(adapter) => Ok(Some(adapter)),
            Found::Unknown => Err(unknown_model(state, name)),
            Found::OnDisk => {
                engine.require_room(wait.tenant)?;
                let (engine, name) = (engine.clone(), name.clone());
                let unknown = unknown_model(state, &name);
                let work = move || match engine.adapters().load(&name) {
                    // Unloaded meanwhile.
                    Err(AdapterError::Unknown { .. }) => Err(unknown),
                    loaded => Ok(loaded?),
                };
                state.prepare(WorkClass::Adapter, wait, work).await.map(Some)
            }
        }
    }

    /// The name in answers.
    pub(crate) fn name<'a>(&'a self, state: &'a AppState) -> &'a str {
        match self {
            Self::Model => state.model_id(),
            Self::Adapter(name) => name,
        }
    }
}

/// The model or adapter `name`, the field `model` of a request.
///
/// # Errors
/// 404 if neither exists; 503 if adapters are not known yet because the model is loading.
pub(crate) fn choose(state: &AppState, name: Option<&str>) -> Result<Chosen, ApiError> {
    // An empty name counts as none, as in vLLM and llama.cpp.
    let name = name.filter(|name| !name.is_empty() && *name != state.model_id());
    let Some(name) = name else { return Ok(Chosen::Model) };
    let by_alias = || match state.options().aliases.contain(name) {
        true => Ok(Chosen::Model),
        false => Err(unknown_model(state, name)),
    };
    match state.engine() {
        Some(engine) if matches!(engine.adapters().find(name), Found::Unknown) => by_alias(),
        Some(_) => Ok(Chosen::Adapter(name.to_owned())),
        None if state.options().has_adapters => Err(ApiError::unavailable("the model is still loading")),
        None => by_alias(),
    }
}

/// 404 for an unknown name; lists the known ones.
pub(crate) fn unknown_model(state: &AppState, name: &str) -> ApiError {
    ApiError::unknown_model(name, &state.model_names())
}

impl From<AdapterError> for ApiError {
    fn from(error: AdapterError) -> Self {
        let message = error.to_string();
        match error {
            AdapterError::Fixed => Self::forbidden("lora_loading_off", message),
            AdapterError::Name(_) | AdapterError::Taken(_) | AdapterError::TooMany => {
                Self::invalid("lora_name", message)
            }
            AdapterError::Unknown { .. } => {
                Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("model_not_found")
            }
            AdapterError::Busy(_) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).with_code("adapters_busy")
            }
            AdapterError::Gone(_) | AdapterError::Changed(_) => Self::unavailable(message),
            AdapterError::Outside(_)
            | AdapterError::Missing(_)
            | AdapterError::Rank { .. }
            | AdapterError::Load { .. } => Self::invalid("lora_path", message),
        }
    }
}
