//! `GET /health`: is the process alive and able to work; `GET /ready`: should it get traffic now.

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::{error::ApiError, state::AppState};
use crate::engine::EngineState;

/// 200 from the start, through loading and draining; 503 once inference has failed and only a restart helps.
pub(crate) async fn health(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    if let Some(engine) = state.engine()
        && let EngineState::Failed(what) = &engine.stats().borrow().state
    {
        return Err(ApiError::unavailable(format!("inference failed: {what}")));
    }
    Ok(Json(json!({ "status": "ok" })))
}

/// 200 while the server takes work: the model is loaded and nobody has asked it to stop.
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    state.working_engine()?;
    Ok(Json(json!({ "status": "ready" })))
}
