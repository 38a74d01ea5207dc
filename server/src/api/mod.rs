//! The HTTP API: OpenAI's wire format on one side, the engine's requests and events on the other. No tensors.
//!
//! # Layout
//! - [`router`]: the table of all routes
//! - `completions`, `chat`, `embeddings`, `models`, `health`, `metrics`, `page`: one endpoint each: wire types, handler, conversion
//! - `tokens`: text to token ids and back, and what there is to know of the tokenizer
//! - `generation`: what `completions` and `chat` share; `prompt`: one of its prompts; `remarks`: what nobody has read
//! - `conversation`: messages to a prompt, by the model's chat template
//! - `texts`: strings or token ids, one or several
//! - `sampling`: the fields that shape the choice of tokens; `beams`: those that ask for a beam search
//! - `structured`: the fields that give an answer its form
//! - `tools`: what may be called, and how a model is told; `tool_parser`: the calls in what it writes; `tool_calls`: on the wire
//! - `fields`: request bodies, read so that errors name the parameter; `bounded_json`: their JSON; `schema`: what they note while they are read
//! - `openapi`: the description of all this, put together from what is described here and there
//! - `stream`: the engine's events as server-sent events, or folded into one answer
//! - [`error`]: what clients are told when something is wrong
//! - [`state`]: what all endpoints share
//! - [`options`]: what the API's owner may set
//! - [`origin`]: which web pages may use the server
//! - `middleware`: what happens to every request; `http_metrics`: how it is counted; `request_log`: its line in the log;
//!   `request_span`: its part of a trace; `guarded`: what goes with its end

mod beams;
mod bounded_json;
mod chat;
mod completions;
mod conversation;
mod embeddings;
pub mod error;
mod fields;
mod generation;
pub(crate) mod guarded;
mod health;
mod http_metrics;
mod metrics;
mod middleware;
mod models;
mod openapi;
pub mod options;
pub mod origin;
mod page;
mod prompt;
mod remarks;
mod request_log;
mod request_span;
pub mod router;
mod sampling;
mod schema;
pub mod state;
mod stream;
mod structured;
mod texts;
mod tokens;
mod tool_calls;
mod tool_parser;
mod tools;
