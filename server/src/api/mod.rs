//! The HTTP API: OpenAI's wire format on one side, the engine's requests and events on the other. No tensors.
//!
//! # Layout
//! - [`router`]: the table of all endpoints; `endpoint`: one row of it
//! - `completions`, `chat`, `embeddings`, `inspect`, `models`, `health`, `metrics`, `page`: endpoints: wire types,
//!   handler, conversion
//! - `decisions`: questions about a text, answered with probabilities; `infill`: text between two texts
//! - `adapters`: loads and unloads LoRA adapters, and selects the model or adapter of a request
//! - `tokens`: tokenizes, detokenizes, and describes the tokenizer
//! - `generation`: common fields of `completions` and `chat`; `chunk`: common parts of their answers; `prompt`: one
//!   prompt; `ignored_params`: the response header that lists ignored parameters; `unsupported_params`: rejects others
//! - `conversation`: messages to a prompt, by the model's chat template; `reply`: submits it, with its tools
//! - `responses`, `messages`: OpenAI's and Anthropic's APIs for agents; `items`: the parts of an answer; `thoughts`:
//!   thoughts as opaque strings; `hosted_tools`: tools that are left out
//! - `text_input`: strings or token ids, one or several
//! - `sampling`: sampling parameters; `beams`: those of beam search
//! - `structured`: structured output
//! - `thinking`: parameters of thinking; `reasoning`: reads an answer's text into `piece`s: keeps thoughts apart
//! - `tools`: tools of a request; `call_format`: how families of models write calls, a file each; `call_arguments`: the
//!   forms of their arguments; `call_grammar`: the grammar for calls, from both; `tool_parser` and `framed_calls`: calls in
//!   the model's text, from the same; `json_scan` and `json_text`: find JSON in it; `mismatch`: why it is none;
//!   `tool_calls`: thoughts and calls on the wire
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
mod call_arguments;
mod call_format;
mod call_grammar;
mod chat;
mod chunk;
mod classify;
mod completions;
mod conversation;
mod decisions;
mod embed_forms;
mod embeddings;
mod endpoint;
pub mod error;
mod fields;
mod framed_calls;
mod generation;
mod health;
mod hosted_tools;
mod http_metrics;
mod ignored_params;
mod infill;
mod inspect;
mod items;
mod json_scan;
mod json_text;
mod late;
mod messages;
mod metrics;
mod middleware;
mod mismatch;
mod models;
mod openapi;
pub mod options;
pub mod origin;
mod page;
mod piece;
mod pooling;
pub(crate) mod preparation;
mod prompt;
mod reasoning;
mod reply;
mod request_log;
mod rerank;
mod responses;
pub mod router;
mod sampling;
mod schema;
pub mod state;
mod stream;
mod structured;
mod submission;
mod text_input;
mod text_use;
mod thinking;
mod thoughts;
mod tokens;
mod tool_calls;
mod tool_parser;
mod tools;
mod unsupported_params;
mod vector_errors;
mod vectors;
