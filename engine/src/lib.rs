//! The engine: generates many texts at once with one model. The server and training use it; it uses `hearth-model`.
//!
//! Requests are valid by construction; their output is a stream of events. Token ids and sampling belong here, HTTP, JSON
//! and command lines do not.
//!
//! # Layout
//! - `engine`: [`Engine`], which works on its own thread; `local`: [`LocalEngine`], which works on its caller's
//! - [`request`]: validated requests; `event`: their output; `startup`: options, and the state of the inference thread
//! - `served_model`: the model's data for other threads; `stats`: the engine's state, `stats_publisher`: publishes it;
//!   [`observer`]: reports about its work; `outcome` and `timeline`: how requests end, and the times of their phases
//! - [`tenant`]: who sends requests, and queues that they share
//! - [`scheduler`]: selects the tokens of the next step; pure
//! - [`adapters`]: LoRA adapters by name
//! - [`prefix_cache`]: keys of pages; `cache_changes`: which pages were added and evicted, for observers
//! - `job`: a request in the engine, of one of three kinds: `sequence`, `beams` or `embedding`; `event_senders`: their
//!   output for the client and the worker
//! - `speculation`: drafts the next tokens; `acceptance`: decides how many pay
//! - `sample_step`: samples a step's logits for each request, on all threads
//! - [`text`]: token ids to text deltas and stop strings; pure
//! - `bound_answer`: binds an answer, not a thought, to its grammar
//! - [`thinking`]: counts a sequence's thinking tokens, and ends its thoughts at a budget
//! - `token_ids`: the tokens of a prompt and its answer
//! - `worker`: the thread, and the loop `schedule -> run -> advance`
//! - [`memory`]: whether settings fit into memory; [`work_clock`]: work that makes no progress; [`clock`]: the time of day

pub mod adapters;
mod beams;
mod bound_answer;
mod cache_changes;
pub mod clock;
mod draft_length;
mod embedding;
mod engine;
mod event;
mod event_senders;
mod job;
mod local;
pub mod memory;
pub mod observer;
mod outcome;
pub mod prefix_cache;
pub mod request;
mod sample_step;
pub mod scheduler;
mod sequence;
mod served_model;
mod speculation;
mod startup;
mod stats;
mod stats_publisher;
pub mod tenant;
pub mod text;
pub mod thinking;
mod timeline;
mod token_ids;
pub mod work_clock;
mod worker;

pub use self::{
    engine::{Engine, SubmitError},
    event::{Event, EventStream, Failure, FinishReason, StopCause},
    local::{LocalEngine, LocalError, LocalOptions},
    outcome::Outcome,
    served_model::ServedModel,
    speculation::Speculation,
    startup::{EngineOptions, Models, StartError, default_kept_states},
    stats::{EngineState, EngineStats},
    timeline::{EndedAnswer, PhaseTimes, Timeline, TokenTime},
};
