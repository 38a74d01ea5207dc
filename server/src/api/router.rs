//! The table of all routes: what answers, and how `/openapi.json` tells of it.

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, StatusCode, Uri},
    middleware::from_fn_with_state,
    routing::{MethodRouter, get, post},
};

use super::{
    chat, completions, embeddings,
    error::ApiError,
    health, http_metrics, metrics, middleware, models,
    openapi::{self, Operation},
    origin, page,
    state::AppState,
    tokens,
};

/// A path and what is there.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) endpoint: MethodRouter<AppState>,
    /// `None`: it is for people, and no part of the API.
    pub(crate) operation: Option<Operation>,
}

/// The whole HTTP service.
pub fn app(state: AppState) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.endpoint))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(DefaultBodyLimit::max(state.options().max_body_bytes))
        .layer(from_fn_with_state(state.clone(), middleware::authorize))
        .layer(from_fn_with_state(state.clone(), origin::guard))
        .layer(from_fn_with_state(state.clone(), middleware::identify))
        .layer(from_fn_with_state(state.clone(), http_metrics::count))
        .with_state(state)
}

pub(crate) fn routes() -> Vec<Route> {
    let page = |path, endpoint| Route { path, endpoint, operation: None };
    let api = |path, endpoint, operation| Route { path, endpoint, operation: Some(operation) };
    vec![
        page("/", get(page::index)),
        page("/app.js", get(page::script)),
        page("/style.css", get(page::style)),
        page("/docs", get(page::docs)),
        page("/docs.js", get(page::docs_script)),
        page("/openapi.json", get(openapi::openapi)),
        api("/v1/completions", post(completions::create), completions::OPERATION),
        api("/v1/chat/completions", post(chat::create), chat::OPERATION),
        api("/v1/embeddings", post(embeddings::create), embeddings::OPERATION),
        api("/v1/models", get(models::list), models::LIST),
        api("/v1/models/{*id}", get(models::get), models::GET),
        // At the root as well, where lm-eval looks for them.
        api("/tokenize", post(tokens::tokenize), tokens::TOKENIZE),
        api("/v1/tokenize", post(tokens::tokenize), tokens::TOKENIZE),
        api("/detokenize", post(tokens::detokenize), tokens::DETOKENIZE),
        api("/v1/detokenize", post(tokens::detokenize), tokens::DETOKENIZE),
        api("/tokenizer_info", get(tokens::tokenizer_info), tokens::TOKENIZER_INFO),
        api("/v1/tokenizer_info", get(tokens::tokenizer_info), tokens::TOKENIZER_INFO),
        api("/health", get(health::health), health::HEALTH),
        api("/ready", get(health::ready), health::READY),
        api("/metrics", get(metrics::metrics), metrics::METRICS),
    ]
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::unknown_path(uri.path())
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take `{method}`", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
}
