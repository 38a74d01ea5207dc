//! The table of all endpoints, and the middleware around them.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    middleware::{from_fn, from_fn_with_state},
    routing::{get, post},
};

use super::{
    endpoints::{
        chat, classify, completions, decisions, embed_forms, embeddings, health, infill, inspect, messages, metrics,
        models, page, pooling, rerank, responses, tokens,
    },
    error::ApiError,
    exchange::{adapters, vector_errors},
    http_metrics, middleware, openapi,
    wire::{
        endpoint::{Endpoint, Operation, Policy},
        state::AppState,
    },
};

/// The HTTP service with all endpoints and middleware.
pub fn app(state: AppState) -> Router {
    let layered = |router: Router<AppState>, policy: Policy| {
        router
            .method_not_allowed_fallback(unknown_method)
            .layer(from_fn_with_state(state.clone(), middleware::authorize))
            .layer(from_fn_with_state(state.clone(), middleware::check_origin))
            .layer(from_fn(messages::errors_in_own_shape))
            .layer(from_fn(vector_errors::in_own_shape))
            .layer(from_fn_with_state(state.clone(), middleware::identify))
            .layer(from_fn_with_state(state.clone(), http_metrics::count))
            .layer(Extension(policy))
    };
    let unknown = layered(Router::new().fallback(unknown_path), Policy::default());
    endpoints()
        .into_iter()
        .map(|endpoint| layered(Router::new().route(endpoint.path, endpoint.handler), endpoint.policy))
        .fold(unknown, Router::merge)
        .with_state(state)
}

fn endpoints() -> Vec<Endpoint> {
    let page = |path, handler| Endpoint { path, handler, policy: Policy::Page, operation: None };
    let file =
        |file: &'static page::File| page(file.path, get(async move |headers: HeaderMap| file.response(&headers)));
    let endpoint =
        |path, handler, policy, operation: Operation| Endpoint { path, handler, policy, operation: Some(operation) };
    // The same endpoint under another path, which is not in `/openapi.json`.
    let also_at = |path, handler, policy| Endpoint { path, handler, policy, operation: None };
    let (api, probe, inference) = (Policy::Api, Policy::Probe, Policy::Inference);
    let document = Arc::new(openapi::Document::default());
    let openapi =
        async move |State(state): State<AppState>, headers: HeaderMap| document.response(&state, endpoints, &headers);
    let all = vec![
        page("/openapi.json", get(openapi)),
        endpoint("/v1/completions", post(completions::create), inference("text_completion"), completions::OPERATION),
        endpoint("/v1/chat/completions", post(chat::create), inference("chat"), chat::OPERATION),
        endpoint("/v1/responses", post(responses::create), inference("chat"), responses::OPERATION),
        endpoint("/v1/messages", post(messages::create), inference("chat"), messages::CREATE),
        endpoint("/v1/messages/count_tokens", post(messages::count_tokens), api, messages::COUNT_TOKENS),
        endpoint("/v1/decisions", post(decisions::create), inference("decisions"), decisions::OPERATION),
        endpoint("/v1/embeddings", post(embeddings::create), inference("embeddings"), embeddings::OPERATION),
        endpoint("/v1/rerank", post(rerank::rerank), inference("rerank"), rerank::RERANK),
        // The paths of Cohere and text-embeddings-inference.
        also_at("/v2/rerank", post(rerank::rerank), inference("rerank")),
        also_at("/rerank", post(rerank::rerank), inference("rerank")),
        endpoint("/v1/score", post(rerank::score), inference("score"), rerank::SCORE),
        also_at("/score", post(rerank::score), inference("score")),
        endpoint("/classify", post(classify::create), inference("classify"), classify::OPERATION),
        endpoint("/v2/embed", post(embed_forms::cohere), inference("embeddings"), embed_forms::COHERE),
        endpoint("/embed", post(embed_forms::inference), inference("embeddings"), embed_forms::INFERENCE),
        endpoint("/pooling", post(pooling::create), inference("embeddings"), pooling::OPERATION),
        also_at("/v1/pooling", post(pooling::create), inference("embeddings")),
        also_at("/v1/classify", post(classify::create), inference("classify")),
        // Also at the root, as llama.cpp serves them.
        also_at("/completions", post(completions::create), inference("text_completion")),
        also_at("/chat/completions", post(chat::create), inference("chat")),
        also_at("/embeddings", post(embeddings::create), inference("embeddings")),
        also_at("/models", get(models::list), api),
        also_at("/models/{*id}", get(models::get), api),
        endpoint("/infill", post(infill::create), inference("text_completion"), infill::OPERATION),
        endpoint("/v1/inspect", post(inspect::create), api, inspect::OPERATION),
        endpoint("/v1/load_lora_adapter", post(adapters::load), api, adapters::LOAD),
        endpoint("/v1/unload_lora_adapter", post(adapters::unload), api, adapters::UNLOAD),
        endpoint("/v1/models", get(models::list), api, models::LIST),
        endpoint("/v1/models/{*id}", get(models::get), api, models::GET),
        // Also at the root, where lm-eval expects them.
        endpoint("/tokenize", post(tokens::tokenize), api, tokens::TOKENIZE),
        endpoint("/v1/tokenize", post(tokens::tokenize), api, tokens::TOKENIZE),
        endpoint("/detokenize", post(tokens::detokenize), api, tokens::DETOKENIZE),
        endpoint("/v1/detokenize", post(tokens::detokenize), api, tokens::DETOKENIZE),
        endpoint("/tokenizer_info", get(tokens::tokenizer_info), api, tokens::TOKENIZER_INFO),
        endpoint("/v1/tokenizer_info", get(tokens::tokenizer_info), api, tokens::TOKENIZER_INFO),
        endpoint("/health", get(health::health), probe, health::HEALTH),
        endpoint("/ready", get(health::ready), probe, health::READY),
        endpoint("/metrics", get(metrics::metrics), probe, metrics::METRICS),
    ];
    page::FILES.iter().map(file).chain(all).collect()
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::unknown_path(uri.path())
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not support the method `{method}`", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
}
