//! `GET /v1/models` and `GET /v1/models/{id}`: the one model that is served.

use axum::{
    Json,
    extract::{Path, State},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    error::ApiError,
    openapi::{Access, Answer, Link, Operation, Place, Request, answer},
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
    /// When the server started, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Tokens of prompt and answer together.
    max_model_len: usize,
    meta: Meta,
}

/// Sizes that clients of local servers show.
#[derive(Debug, Serialize, JsonSchema)]
struct Meta {
    n_vocab: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: usize,
}

/// How `/openapi.json` tells of it.
pub(crate) const LIST: Operation = Operation {
    summary: "The models that are served: one",
    request: Request::Nothing,
    answer: Answer::Json(answer::<ModelList>),
    refusals: &[400, 403, 503],
    access: Access::WithKey,
    links: &[Link { name: "Model", to: "/v1/models/{*id}", place: Place::Path, param: "id", from: "/data/0/id" }],
};

/// How `/openapi.json` tells of it.
pub(crate) const GET: Operation = Operation {
    summary: "One model",
    request: Request::ModelInPath,
    answer: Answer::Json(answer::<Model>),
    refusals: &[400, 403, 404, 503],
    access: Access::WithKey,
    links: &[],
};

/// All models: one.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    Ok(Json(ModelList { object: "list", data: vec![served(&state)?] }))
}

/// The model by its name, which may hold slashes.
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
