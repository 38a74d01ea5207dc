//! What endpoints share: from a request's parameters to a submission, from the engine's events to an answer.
//!
//! - `generation`: common fields of `completions` and `chat`; `sampling`, `beams`, `thinking`: groups of them
//! - `prompt`: one prompt; `conversation`: messages to a prompt, by the model's chat template
//! - `adapters`: loads and unloads LoRA adapters, and selects the model or adapter of a request
//! - `reply`: submits a conversation, with its tools; `submission`: counts and logs the engine's events
//! - `stream`: sends the events' text as server-sent events or as one answer; `chunk`: common parts of answers;
//!   `items`: the parts of an answer; `thoughts`: thoughts as opaque strings
//! - `vectors`, `text_use` and `late`: vectors of texts, their uses, and vectors of tokens; `vector_errors`: errors in
//!   the shapes of other programs

pub(crate) mod adapters;
pub(crate) mod beams;
pub(crate) mod conversation;
pub(crate) mod generation;
pub(crate) mod items;
pub(crate) mod late;
pub(crate) mod prompt;
pub(crate) mod reply;
pub(crate) mod response_head;
pub(crate) mod sampling;
pub(crate) mod stream;
pub(crate) mod submission;
pub(crate) mod text_use;
pub(crate) mod thinking;
pub(crate) mod thoughts;
pub(crate) mod vector_errors;
pub(crate) mod vectors;
