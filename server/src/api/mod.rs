//! The HTTP API: OpenAI's wire format on one side, the engine's requests and events on the other. No tensors.
//!
//! # Layout
//! - [`router`]: the table of all endpoints; `endpoint`: one row of it
//! - `completions`, `chat`, `embeddings`, `inspect`, `models`, `health`, `metrics`, `page`: endpoints: wire types,
//!   handler, conversion
//! - `adapters`: loads and unloads LoRA adapters, and selects the model or adapter of a request
//! - `tokens`: tokenizes, detokenizes, and describes the tokenizer
//! - `generation`: common fields of `completions` and `chat`; `chunk`: common parts of their answers; `prompt`: one
//!   prompt; `ignored_params`: the response header that lists ignored parameters; `unsupported_params`: rejects others
//! - `conversation`: messages to a prompt, by the model's chat template; `reply`: submits it, with its tools
//! - `text_input`: strings or token ids, one or several
//! - `sampling`: sampling parameters; `beams`: those of beam search
//! - `structured`: structured output
//! - `thinking`: parameters of thinking; `reasoning`: reads an answer's text into `piece`s: keeps thoughts apart
//! - `tools`: tools of a request; `call_format`: how models write calls; `tool_parser`: calls in the model's text;
//!   `json_scan`: finds the end of their JSON; `tool_calls`: thoughts and calls on the wire
//! - `body`: request bodies; `bounded_json`: parses them; `fields`: reads their fields one by one, so that errors name
//!   the parameter; `schema`: records the fields that are read
//! - `openapi`: `/openapi.json`, from the endpoints' own descriptions
//! - `submission`: counts and logs the engine's events; `stream`: sends their text as server-sent events or as one
//!   answer
//! - [`error`]: errors for clients
//! - [`state`]: state that all endpoints share; `body_room`: memory for request bodies; `preparation`: runs work before
//!   requests are submitted
//! - [`options`]: settings; [`api_keys`]: API keys
//! - [`origin`]: allowed origins and hosts
//! - `middleware`: runs for every request; `http_metrics`: counts requests; `request_log`: their log lines and spans;
//!   `body_guard`: runs code when a response has ended

mod adapters;
pub mod api_keys;
mod beams;
mod body;
pub(crate) mod body_guard;
mod body_room;
pub(crate) mod bounded_json;
mod call_format;
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
mod json_scan;
mod metrics;
mod middleware;
mod models;
mod openapi;
pub mod options;
pub mod origin;
mod page;
mod piece;
pub(crate) mod preparation;
mod prompt;
mod reasoning;
mod reply;
mod request_log;
pub mod router;
mod sampling;
mod schema;
pub mod state;
mod stream;
mod structured;
mod submission;
mod text_input;
mod thinking;
mod tokens;
mod tool_calls;
mod tool_parser;
mod tools;
mod unsupported_params;
