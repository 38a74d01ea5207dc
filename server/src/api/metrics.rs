//! `GET /metrics`: what the engine counts, as Prometheus reads it.

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

/// How `/openapi.json` tells of it.
pub(crate) const METRICS: Operation = Operation {
    summary: "What the engine counts, for Prometheus",
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
    let text = engine.metrics().render(state.model_id(), &engine.stats().borrow());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
