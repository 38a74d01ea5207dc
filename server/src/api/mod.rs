//! The HTTP API: OpenAI's wire format on one side, the engine's requests and events on the other. No tensors.
//!
//! # Layout
//! - [`router`]: the table of all endpoints; `endpoint`: one row of it
//! - `completions`, `chat`, `embeddings`, `models`, `health`, `metrics`, `page`: one endpoint each: wire types, handler, conversion
//! - `adapters`: loads and unloads adapters, and finds what a request's `model` chooses
//! - `tokens`: text to token ids and back, and what there is to know of the tokenizer
//! - `generation`: what `completions` and `chat` share of requests, `chunk`: of answers; `prompt`: one of its prompts; `ignored_params`: parameters that are ignored, for a response header
//! - `conversation`: messages to a prompt, by the model's chat template
//! - `text_input`: strings or token ids, one or several
//! - `sampling`: the fields that shape the choice of tokens; `beams`: those that ask for a beam search
//! - `structured`: the fields that give an answer its form
//! - `tools`: what may be called, and how a model is told; `tool_parser`: the calls in what it writes; `tool_calls`: on the wire
//! - `body`: request bodies; `bounded_json`: their JSON; `fields`: read one by one, so that errors name the parameter; `schema`: what they note while they are read
//! - `openapi`: `/openapi.json`, from the endpoints' own descriptions
//! - `submission`: the engine's events, counted and logged; `stream`: their text as server-sent events, or folded into one
//!   answer
//! - [`error`]: what clients are told when something is wrong
//! - [`state`]: what all endpoints share
//! - [`options`]: settings; [`api_keys`]: keys
//! - [`origin`]: which web pages may use the server
//! - `middleware`: what happens to every request; `http_metrics`: how it is counted; `request_log`: its log line
//!   and its span; `body_guard`: runs code when a response has ended

mod adapters;
pub mod api_keys;
mod beams;
mod body;
pub(crate) mod body_guard;
mod bounded_json;
mod chat;
mod chunk;
mod completions;
mod conversation;
mod embeddings;
mod endpoint;
pub mod error;
mod fields;
mod generation;
mod health;
mod http_metrics;
mod ignored_params;
mod inspect;
mod metrics;
mod middleware;
mod models;
mod openapi;
pub mod options;
pub mod origin;
mod page;
mod prompt;
mod request_log;
pub mod router;
mod sampling;
mod schema;
pub mod state;
mod stream;
mod structured;
mod submission;
mod text_input;
mod tokens;
mod tool_calls;
mod tool_parser;
mod tools;
