//! `GET /metrics`: what the server counts, as Prometheus reads it.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use super::{
    error::ApiError,
    openapi::{Access, Answer, Operation, Request},
    state::AppState,
};
use crate::metrics::CONTENT_TYPE;

/// How `/openapi.json` tells of it.
pub(crate) const METRICS: Operation = Operation {
    summary: "What the server counts, for Prometheus",
    request: Request::Nothing,
    answer: Answer::Text("text/plain"),
    refusals: &[503],
    access: Access::Open,
    links: &[],
};

/// All metrics; 503 while the model is loading.
pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    // Not only while it takes work: a server that drains or has failed is looked at most closely.
    let engine = state.engine().ok_or_else(|| ApiError::unavailable("the model is still being loaded"))?;
    let failed = |error| ApiError::internal(format!("the metrics cannot be written: {error}"));
    let text =
        engine.metrics_text(state.model_id()).map_err(failed)? + &state.http_metrics().render().map_err(failed)?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
