//! `GET /health` (liveness) and `GET /ready` (readiness).

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    endpoint::{Operation, ResponseBody, schema_of},
    error::ApiError,
    state::AppState,
};
use crate::engine::EngineState;

/// The endpoint's entry in `/openapi.json`.
pub(crate) const HEALTH: Operation =
    Operation::get("Whether the server is alive", ResponseBody::Json(schema_of::<Health>)).with_errors(&[503]);

/// The endpoint's entry in `/openapi.json`.
pub(crate) const READY: Operation =
    Operation::get("Whether the server accepts requests", ResponseBody::Json(schema_of::<Health>)).with_errors(&[503]);

/// The body of both answers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    status: &'static str,
}

/// 200 from the start, through loading and draining; 503 once inference has failed and only a restart helps.
pub(crate) async fn health(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    if let Some(engine) = state.engine()
        && let EngineState::Failed(what) = engine.state()
    {
        return Err(ApiError::unavailable(format!("inference failed: {what}")));
    }
    Ok(Json(Health { status: "ok" }))
}

/// 200 while the server accepts work: the model is loaded and no shutdown has begun.
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    state.working_engine()?;
    Ok(Json(Health { status: "ready" }))
}
