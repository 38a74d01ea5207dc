//! `GET /v1/models` and `GET /v1/models/{id}`: the served model and its adapters.

use axum::{
    Json,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::messages::{self, ModelInfo, ModelPage};
use crate::api::{
    error::ApiError,
    exchange::adapters,
    wire::{
        endpoint::{self, Link, Operation, ParamIn, ResponseBody, schema_of},
        state::AppState,
    },
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

/// Sizes that clients of local servers display, and what the page shows the model by.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Meta {
    n_vocab: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: usize,
    /// What the model reads and writes: `decoder`, `encoder` or `encoder-decoder`.
    kind: &'static str,
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
    request: endpoint::Request::ModelInPath,
    ..Operation::get("Describe one model", ResponseBody::Json(schema_of::<Model>)).with_errors(&[400, 403, 404, 503])
};

/// The list of models: the served one, its aliases, then adapters by name. In Anthropic's shape for its clients.
pub(crate) async fn list(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let models = served(&state)?;
    Ok(match messages::is_asked(&request) {
        true => Json(ModelPage::new(models.iter().map(Model::info).collect())).into_response(),
        false => Json(ModelList { object: "list", data: models }).into_response(),
    })
}

/// The model with this name, which may contain slashes.
pub(crate) async fn get(
    State(state): State<AppState>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let models = served(&state)?;
    let any = models.first().filter(|_| state.options().aliases.take_any());
    let model = models.iter().find(|model| model.id == id).cloned();
    let model = model.or_else(|| any.map(|model| Model { id: id.clone(), ..model.clone() }));
    let model = model.ok_or_else(|| adapters::unknown_model(&state, &id))?;
    Ok(match messages::is_asked(&request) {
        true => Json(model.info()).into_response(),
        false => Json(model).into_response(),
    })
}

impl Model {
    fn info(&self) -> ModelInfo {
        ModelInfo::new(&self.id, self.created, self.max_model_len)
    }
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
            kind: match (model.config.is_encoder_decoder(), model.limits.is_encoder) {
                (true, _) => "encoder-decoder",
                (false, true) => "encoder",
                (false, false) => "decoder",
            },
        },
    };
    let adapters = engine.adapters().list().into_iter().map(|adapter| Model {
        id: adapter.name,
        created: adapter.created,
        root: adapter.dir.display().to_string(),
        parent: Some(base.id.clone()),
        ..base.clone()
    });
    let aliases = state.options().aliases.names().iter().map(|alias| Model { id: alias.clone(), ..base.clone() });
    Ok(std::iter::once(base.clone()).chain(aliases).chain(adapters).collect())
}
