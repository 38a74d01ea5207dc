//! Errors of the endpoints that Cohere and text-embeddings-inference have, in the shapes of these.

use axum::{
    Json,
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::error::ApiError;

/// Cohere's: a message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CohereError {
    message: String,
}

/// The error shape of text-embeddings-inference.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InferenceError {
    error: String,
    /// `Validation`, `Overloaded`, `Unhealthy` or `Backend`.
    error_type: &'static str,
}

/// Rewrites the errors of requests to these endpoints.
pub(crate) async fn in_own_shape(request: Request, next: Next) -> Response {
    let is_cohere = request.uri().path().starts_with("/v2/");
    let is_inference = request.uri().path() == "/embed";
    let mut response = next.run(request).await;
    if !is_cohere && !is_inference {
        return response;
    }
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let (status, message) = (error.status(), error.message().to_owned());
    let body = match is_cohere {
        true => Json(CohereError { message }).into_response(),
        false => {
            let error_type = match status.as_u16() {
                429 => "Overloaded",
                503 => "Unhealthy",
                500 | 504 => "Backend",
                _ => "Validation",
            };
            Json(InferenceError { error: message, error_type }).into_response()
        }
    };
    let mut rewritten = (status, body).into_response();
    for (name, value) in response.headers() {
        if !rewritten.headers().contains_key(name) {
            rewritten.headers_mut().insert(name, value.clone());
        }
    }
    rewritten
}
