//! `GET /health` (liveness) and `GET /ready` (readiness).

use axum::{Json, extract::State};
use hearth_engine::EngineState;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::{
    error::ApiError,
    wire::{
        endpoint::{Operation, ResponseBody, schema_of},
        state::AppState,
    },
};

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

/// 200 from the start, through loading and draining; 503 once inference has failed or makes no progress, and only a
/// restart helps.
pub(crate) async fn health(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    if let Some(EngineState::Failed(what)) = state.engine().map(|engine| engine.state()) {
        return Err(ApiError::unavailable(format!("inference failed: {what}")));
    }
    check_progress(&state)?;
    Ok(Json(Health { status: "ok" }))
}

/// 200 while the server accepts work: the model is loaded, no shutdown has begun, and inference makes progress.
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    state.working_engine()?;
    check_progress(&state)?;
    Ok(Json(Health { status: "ready" }))
}

/// Checks that no work, be it a step of the model or the preparation of a request, has made no progress for longer than
/// the step timeout.
fn check_progress(state: &AppState) -> Result<(), ApiError> {
    let limit = state.options().step_timeout;
    match state.slowest_work() {
        Some((what, time)) if time > limit => Err(ApiError::stalled(what, time, limit)),
        _ => Ok(()),
    }
}
