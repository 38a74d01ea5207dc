//! `GET /health`: is the process alive and able to work; `GET /ready`: should it get traffic now.

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    error::ApiError,
    openapi::{Access, Answer, Operation, Request, answer},
    state::AppState,
};
use crate::engine::EngineState;

/// How `/openapi.json` tells of it.
pub(crate) const HEALTH: Operation = Operation {
    summary: "Whether the server is alive",
    request: Request::Nothing,
    answer: Answer::Json(answer::<Health>),
    refusals: &[503],
    access: Access::Open,
    links: &[],
};

/// How `/openapi.json` tells of it.
pub(crate) const READY: Operation = Operation {
    summary: "Whether the server takes work now",
    request: Request::Nothing,
    answer: Answer::Json(answer::<Health>),
    refusals: &[503],
    access: Access::Open,
    links: &[],
};

/// How it is.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    status: &'static str,
}

/// 200 from the start, through loading and draining; 503 once inference has failed and only a restart helps.
pub(crate) async fn health(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    if let Some(engine) = state.engine()
        && let EngineState::Failed(what) = &engine.stats().borrow().state
    {
        return Err(ApiError::unavailable(format!("inference failed: {what}")));
    }
    Ok(Json(Health { status: "ok" }))
}

/// 200 while the server takes work: the model is loaded and nobody has asked it to stop.
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    state.working_engine()?;
    Ok(Json(Health { status: "ready" }))
}
