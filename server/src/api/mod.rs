//! The HTTP API: OpenAI's wire format on one side, the engine's requests and events on the other. No tensors.
//!
//! # Layout
//! - [`router`]: the table of all routes
//! - `completions`, `models`, `health`, `page`: one endpoint each: wire types, handler, conversion
//! - `fields`: request bodies, read so that errors name the parameter
//! - `stream`: the engine's events as server-sent events, or folded into one answer
//! - [`error`]: what clients are told when something is wrong
//! - [`state`]: what all endpoints share
//! - `middleware`: what happens to every request

mod completions;
pub mod error;
mod fields;
mod health;
mod middleware;
mod models;
mod page;
pub mod router;
pub mod state;
mod stream;
