//! The table of all routes.

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, StatusCode, Uri},
    middleware::{from_fn, from_fn_with_state},
    routing::{get, post},
};

use super::{
    chat, completions, embeddings, error::ApiError, health, metrics, middleware, models, page, state::AppState, tokens,
};

/// The whole HTTP service.
pub fn app(state: AppState) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/app.js", get(page::script))
        .route("/style.css", get(page::style))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::get))
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/embeddings", post(embeddings::create))
        // At the root as well, where lm-eval looks for them.
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route("/v1/tokenizer_info", get(tokens::tokenizer_info))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(DefaultBodyLimit::max(state.options().max_body_bytes))
        .layer(from_fn_with_state(state.clone(), middleware::authorize))
        .layer(from_fn_with_state(state.clone(), middleware::allow_origins))
        .layer(from_fn(middleware::identify))
        .with_state(state)
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::unknown_path(uri.path())
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take `{method}`", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
}
