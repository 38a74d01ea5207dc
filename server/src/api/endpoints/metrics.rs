//! `GET /metrics`: metrics in Prometheus' format.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use crate::{
    api::{
        error::ApiError,
        wire::{
            endpoint::{Operation, ResponseBody},
            state::AppState,
        },
    },
    metrics::CONTENT_TYPE,
};

/// The endpoint's entry in `/openapi.json`.
pub(crate) const METRICS: Operation =
    Operation::get("Metrics in Prometheus' text format", ResponseBody::Text("text/plain")).with_errors(&[503]);

/// All metrics; 503 while the model is loading.
pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    // Also while draining and after a failure, when metrics matter most.
    let engine = state.engine().ok_or_else(|| ApiError::unavailable("the model is still loading"))?;
    let failed = |error| ApiError::internal(format!("cannot format the metrics: {error}"));
    let text =
        engine.metrics_text(state.model_id()).map_err(failed)? + &state.http_metrics().render().map_err(failed)?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
