//! The HTTP API: OpenAI's wire format on one side, the engine's requests and events on the other. No tensors.
//!
//! # Layout
//! - [`router`]: the table of all endpoints; `middleware`: runs for every request; `http_metrics`: counts requests
//! - `endpoints`: wire types, handler and conversion of each endpoint
//! - `exchange`: what endpoints share: from a request's parameters to a submission, from the engine's events to an answer
//! - `tools`: tools, structured output, and the parts of a model's text: thoughts, calls, content
//! - [`wire`]: bodies and their fields, which errors name; [`wire::state`]: state that all endpoints share
//! - [`guard`]: keys, origins and limits of clients' requests
//! - `openapi`: `/openapi.json`, from the endpoints' own descriptions
//! - [`error`]: errors for clients

mod endpoints;
pub mod error;
mod exchange;
pub mod guard;
mod http_metrics;
mod middleware;
mod openapi;
pub mod router;
mod tools;
pub mod wire;
