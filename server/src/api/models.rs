//! `GET /v1/models` and `GET /v1/models/{id}`: the served model.

use axum::{
    Json,
    extract::{Path, State},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    endpoint::{Link, Operation, ParamIn, Request, ResponseBody, schema_of},
    error::ApiError,
    state::AppState,
};

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    /// Start time of the server in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Context length in tokens: prompt and answer together.
    max_model_len: usize,
    meta: Meta,
}

/// Sizes that clients of local servers display.
#[derive(Debug, Serialize, JsonSchema)]
struct Meta {
    n_vocab: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const LIST: Operation =
    Operation::get("List the served models: one", ResponseBody::Json(schema_of::<ModelList>)).with_links(&[Link {
        name: "Model",
        to: "/v1/models/{*id}",
        param_in: ParamIn::Path,
        param: "id",
        from: "/data/0/id",
    }]);

/// The endpoint's entry in `/openapi.json`.
pub(crate) const GET: Operation = Operation {
    request: Request::ModelInPath,
    ..Operation::get("Describe one model", ResponseBody::Json(schema_of::<Model>)).with_errors(&[400, 403, 404, 503])
};

/// The list of models, with one entry.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    Ok(Json(ModelList { object: "list", data: vec![served(&state)?] }))
}

/// The model with this name, which may contain slashes.
pub(crate) async fn get(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    let model = served(&state)?;
    if id != model.id {
        return Err(ApiError::unknown_model(&id, &model.id));
    }
    Ok(Json(model))
}

fn served(state: &AppState) -> Result<Model, ApiError> {
    let model = state.working_engine()?.model();
    Ok(Model {
        id: state.model_id().to_owned(),
        object: "model",
        created: state.created(),
        owned_by: "hearth",
        max_model_len: model.limits.max_seq_len,
        meta: Meta {
            n_vocab: model.config.vocab_size,
            n_ctx_train: model.config.max_seq_len,
            n_embd: model.config.d_model,
            n_params: model.config.n_params(),
        },
    })
}
