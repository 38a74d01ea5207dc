//! `GET /v1/models` and `GET /v1/models/{id}`: the served model and its adapters.

use axum::{
    Json,
    extract::{Path, State},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    adapters,
    endpoint::{Link, Operation, ParamIn, Request, ResponseBody, schema_of},
    error::ApiError,
    state::AppState,
};

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    /// Start time of the server, or when the adapter was loaded, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// The model's name, or the folder of the adapter.
    root: String,
    /// The model that an adapter changes; `null` for the model itself.
    parent: Option<String>,
    /// Context length in tokens: prompt and answer together.
    max_model_len: usize,
    meta: Meta,
}

/// Sizes that clients of local servers display.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Meta {
    n_vocab: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const LIST: Operation =
    Operation::get("List the served models: one, and its LoRA adapters", ResponseBody::Json(schema_of::<ModelList>))
        .with_links(&[Link {
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

/// The list of models: the served one, then adapters by name.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    Ok(Json(ModelList { object: "list", data: served(&state)? }))
}

/// The model with this name, which may contain slashes.
pub(crate) async fn get(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    let model = served(&state)?.into_iter().find(|model| model.id == id);
    model.map(Json).ok_or_else(|| adapters::unknown_model(&state, &id))
}

fn served(state: &AppState) -> Result<Vec<Model>, ApiError> {
    let engine = state.working_engine()?;
    let model = engine.model();
    let base = Model {
        id: state.model_id().to_owned(),
        object: "model",
        created: state.created(),
        owned_by: "hearth",
        root: state.model_id().to_owned(),
        parent: None,
        max_model_len: model.limits.max_seq_len,
        meta: Meta {
            n_vocab: model.config.vocab_size,
            n_ctx_train: model.config.max_seq_len,
            n_embd: model.config.d_model,
            n_params: model.config.n_params(),
        },
    };
    let adapters = engine.adapters().list().into_iter().map(|adapter| Model {
        id: adapter.name,
        created: adapter.created,
        root: adapter.dir.display().to_string(),
        parent: Some(base.id.clone()),
        ..base.clone()
    });
    Ok(std::iter::once(base.clone()).chain(adapters).collect())
}
