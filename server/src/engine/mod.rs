//! The engine: serves many requests with one model on one thread.
//!
//! [`Engine`] is the API's handle. [`Engine::submit`] accepts requests that are valid by construction and returns their
//! stream of events; dropping the stream cancels them. Token ids and sampling belong here, HTTP and JSON do not.
//!
//! # Layout
//! - [`request`]: validated requests; `event`: their output; `startup`: options, and the state of the inference thread
//! - [`scheduler`]: selects the tokens of the next step; pure
//! - `batch_runner`: runs steps on the device; no decisions
//! - [`adapters`]: LoRA adapters by name
//! - [`prefix_cache`]: keys of pages
//! - `job`: a request in the engine, of one of three kinds: `sequence`, `beams` or `embedding`; `event_senders`: their
//!   output for the client and the worker
//! - `speculation`: drafts the next tokens; `acceptance`: decides how many pay
//! - `sample_step`: samples a step's logits for each request, on all threads
//! - [`text`]: token ids to text deltas and stop strings; pure
//! - `token_ids`: the tokens of a prompt and its answer
//! - `worker`: the thread, and the loop `schedule -> run -> advance`

mod acceptance;
pub mod adapters;
mod batch_runner;
mod beams;
mod embedding;
mod event;
mod event_senders;
mod job;
pub mod prefix_cache;
pub mod request;
mod sample_step;
pub mod scheduler;
mod sequence;
mod speculation;
mod startup;
pub mod text;
mod token_ids;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hearth_model::{
    TokenId, chat::ChatTemplate, config::GptConfig, constraint::GrammarCompiler, inspect::Inspector, ops::KvDtype,
    pooling::OwnPooling, sampling::SamplingParams, tokenizer::Tokenizer,
};
use tokio::sync::watch;

use self::{
    adapters::Adapters,
    job::{Job, SubmissionContext},
    request::{EngineRequest, ModelLimits, ValidationError},
    scheduler::Scheduler,
    startup::Prepared,
    worker::{Held, Worker},
};
pub use self::{
    event::{Event, EventStream, Failure, FinishReason, StopCause},
    speculation::Speculation,
    startup::{EngineOptions, Models, StartError},
};
use crate::{
    metrics::{AdapterSnapshot, EngineMetrics, Snapshot},
    tenant::{Queue, TenantId},
    work_clock::WorkClock,
};

/// Why requests were rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue has too few free places.
    #[error("the queue is full: at most {max_queue} answers may wait, counting each answer of a request")]
    QueueFull {
        /// The engine's limit.
        max_queue: usize,
    },
    /// More answers than the queue can ever hold.
    #[error(
        "the request asks for {n_answers} answers, but at most {max_queue} may wait at once\n\
         hint: send fewer prompts or texts, a smaller `n` or `best_of`, or raise `--max-queue`"
    )]
    TooManyAnswers {
        /// The number of requested answers.
        n_answers: usize,
        /// The engine's limit.
        max_queue: usize,
    },
    /// The engine has stopped or failed.
    #[error("the engine has stopped")]
    Stopped,
}

/// The engine's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// Whether it accepts requests.
    pub state: EngineState,
    /// Sequences in the batch. A beam search counts as its width.
    pub running: usize,
    /// Requests in the scheduler's queue, preempted ones included, and answers that wait for a prompt they share.
    pub waiting: usize,
    /// Free pages of the KV cache.
    pub free_pages: usize,
    /// Pages of the KV cache.
    pub n_pages: usize,
    /// The dtype of the KV cache.
    pub kv_dtype: KvDtype,
    /// Names of the adapters of running requests.
    pub running_adapters: Vec<Arc<str>>,
    /// Names of the adapters of requests that have not started.
    pub waiting_adapters: Vec<Arc<str>>,
}

impl EngineStats {
    /// An engine without requests, whose model is not loaded yet.
    fn starting() -> Self {
        Self {
            state: EngineState::Running,
            running: 0,
            waiting: 0,
            free_pages: 0,
            n_pages: 0,
            kv_dtype: KvDtype::default(),
            running_adapters: Vec::new(),
            waiting_adapters: Vec::new(),
        }
    }
}

/// Whether the engine accepts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// It accepts requests.
    Running,
    /// It was stopped.
    Stopped,
    /// A step failed; it accepts no more requests.
    Failed(String),
}

/// Data about the served model, for use outside the inference thread.
#[derive(Debug)]
pub struct ServedModel {
    /// The architecture.
    pub config: GptConfig,
    /// Limits for requests.
    pub limits: ModelLimits,
    /// The most bytes of a text that may fit into the context; `None` if that is not known.
    pub max_text_bytes: Option<usize>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
    pub chat_template: Option<ChatTemplate>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// Defaults of sampling parameters.
    pub sampling_defaults: SamplingParams,
    /// How the model's files say that texts become vectors.
    pub own_pooling: OwnPooling,
    /// A fingerprint of what affects answers, except the weights: the version, the architecture, dtypes, the precision and
    /// the device. If it changes, the same seeds may give other answers.
    pub fingerprint: String,
    /// Computes attention maps and the predictions of layers.
    pub inspector: Inspector,
    /// The name of the device that computes.
    pub device: String,
    /// The dtype of most weights.
    pub dtype: String,
    /// The grammar compiler for structured output, created on first use.
    grammars: OnceLock<hearth_model::Result<GrammarCompiler>>,
    /// The tokens of DRY's default sequence breakers, found on first use.
    pub(crate) default_breakers: OnceLock<Arc<BTreeSet<TokenId>>>,
}

impl ServedModel {
    /// The grammar compiler for structured output. The first call creates it.
    ///
    /// # Errors
    /// The vocabulary does not support grammars.
    pub fn grammars(&self) -> Result<&GrammarCompiler, &hearth_model::Error> {
        self.grammars.get_or_init(|| GrammarCompiler::new(&self.tokenizer)).as_ref()
    }

    /// Checks whether a text of `n_bytes`, the parameter `param`, may fit into the context, before it is tokenized.
    ///
    /// # Errors
    /// It has too many bytes.
    pub fn check_text_length(&self, param: &'static str, n_bytes: usize) -> Result<(), ValidationError> {
        let max_seq_len = self.limits.max_seq_len;
        match self.max_text_bytes {
            Some(most) if n_bytes > most => {
                let n_tokens = (n_bytes as u128 * max_seq_len as u128).div_ceil(most.max(1) as u128) as usize;
                Err(ValidationError::TextLength { param, n_bytes, n_tokens, max_seq_len })
            }
            _ => Ok(()),
        }
    }
}

/// A handle to the engine; clones share it. The thread ends when the last one is dropped.
#[derive(Clone)]
pub struct Engine {
    commands: Sender<Command>,
    queue: Queue,
    max_queue: usize,
    stats: watch::Receiver<EngineStats>,
    metrics: Arc<EngineMetrics>,
    work_clock: WorkClock,
    model: Arc<ServedModel>,
    adapters: Arc<Adapters>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Engine {
    /// Starts the inference thread, which loads the model and allocates the cache, and waits until it is ready.
    ///
    /// `load` runs on that thread because a device's streams belong to the thread that uses them.
    ///
    /// # Errors
    /// Those of `load`, invalid limits, or a thread that cannot be started.
    pub fn start<Load, Loaded>(load: Load, options: EngineOptions) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<Loaded> + Send + 'static,
        Loaded: Into<Models>,
    {
        options.check()?;
        let max_queue = options.max_queue;
        // Bounded by the queue: each queued request holds at least one place.
        let (commands, inbox) = channel();
        let (stats_sender, stats) = watch::channel(EngineStats::starting());
        let (ready, is_ready) = channel();
        let metrics = Arc::new(EngineMetrics::new(options.speculation.n_tokens()));
        let work_clock = WorkClock::default();
        let (workers_metrics, workers_clock) = (Arc::clone(&metrics), work_clock.clone());
        let body = move || {
            let prepared =
                load().map_err(StartError::from).and_then(|loaded| startup::prepare(loaded.into(), &options));
            let Prepared { model, runner, kv_dtype, speculator, limits, adapters } = match prepared {
                Ok(prepared) => prepared,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let pool = runner.pool().clone();
            stats_sender.send_modify(|stats| {
                (stats.free_pages, stats.n_pages, stats.kv_dtype) = (pool.n_free(), pool.n_pages(), kv_dtype);
            });
            let worker = Worker {
                commands: inbox,
                stats: stats_sender,
                metrics: workers_metrics,
                work_clock: workers_clock,
                scheduler: Scheduler::new(limits, pool),
                runner,
                speculator,
                jobs: BTreeMap::new(),
                n_accepted: 0,
                held: Held::default(),
            };
            if ready.send(Ok((model, adapters))).is_ok() {
                worker.run();
            }
        };
        let thread = thread::Builder::new().name("inference".into()).spawn(body);
        let thread = thread.map_err(|error| StartError::Thread(error.to_string()))?;
        let Ok(outcome) = is_ready.recv() else {
            let reason = match thread.join() {
                Err(panic) => worker::panic_message(panic.as_ref()).to_owned(),
                Ok(()) => "it ended without a reason".to_owned(),
            };
            return Err(StartError::Thread(reason));
        };
        let (model, adapters) = outcome?;
        metrics.serves(&model.device, &model.dtype);
        Ok(Self {
            model: Arc::new(model),
            adapters: Arc::new(adapters),
            queue: Queue::default(),
            thread: Arc::new(Mutex::new(Some(thread))),
            commands,
            max_queue,
            stats,
            metrics,
            work_clock,
        })
    }

    /// Queues requests of one tenant, all or none; each answer takes a place in the queue until it starts. The stream
    /// numbers their events by their index in `requests`; a beam search has one index per answer. Consecutive requests with the same
    /// prompt compute it once.
    ///
    /// # Errors
    /// The queue is full or too small, or the engine has stopped.
    pub fn submit(&self, requests: Vec<EngineRequest>) -> Result<EventStream, SubmitError> {
        self.submit_at(requests, Instant::now())
    }

    /// The same for requests that arrived at `arrived`: deadlines and latencies count from there.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_at(&self, requests: Vec<EngineRequest>, arrived: Instant) -> Result<EventStream, SubmitError> {
        if self.stats.borrow().state != EngineState::Running {
            return Err(SubmitError::Stopped);
        }
        let max_queue = self.max_queue;
        let n_answers = requests.iter().map(EngineRequest::n_answers).sum();
        if n_answers > max_queue {
            return Err(SubmitError::TooManyAnswers { n_answers, max_queue });
        }
        let tenant = requests.first().map(|request| request.parts().tenant).unwrap_or_default();
        let queue_places = self.queue.take(max_queue, tenant, n_answers);
        let queue_places = queue_places.ok_or(SubmitError::QueueFull { max_queue })?;
        let (source, events) = event::channel();
        let mut context = SubmissionContext {
            tokenizer: &self.model.tokenizer,
            text_len_matters_beyond: self.model.config.text_len_matters_beyond(),
            queue_places,
            arrived,
        };
        let mut indices = 0..n_answers;
        let mut jobs: Vec<Job> = Vec::new();
        for request in requests {
            let senders = indices.by_ref().take(request.n_answers()).map(|index| source.sender(index)).collect();
            match jobs.last_mut().filter(|first| first.shares_prompt(&request)) {
                Some(first) => first.add_fork(request, senders, &mut context),
                None => jobs.push(Job::new(request, senders, &mut context)),
            }
        }
        self.commands.send(Command::Run(jobs)).map_err(|_| SubmitError::Stopped)?;
        Ok(events)
    }

    /// Checks whether the queue has room for a tenant, before its request is prepared in vain.
    ///
    /// # Errors
    /// The queue is full.
    pub fn require_room(&self, tenant: TenantId) -> Result<(), SubmitError> {
        let max_queue = self.max_queue;
        if self.queue.has_room(max_queue, tenant) { Ok(()) } else { Err(SubmitError::QueueFull { max_queue }) }
    }

    /// Maximum number of answers in the queue.
    pub fn max_queue(&self) -> usize {
        self.max_queue
    }

    /// The served model.
    pub fn model(&self) -> &Arc<ServedModel> {
        &self.model
    }

    /// The LoRA adapters.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Whether the engine accepts requests.
    pub fn state(&self) -> EngineState {
        state_of(&self.stats)
    }

    /// What of the engine's work has made no progress for the longest time, such as a step, and that time. `None` if
    /// there is no work.
    pub fn slowest_work(&self) -> Option<(&'static str, Duration)> {
        self.work_clock.slowest()
    }

    /// The engine's state after its last step; changes can be awaited.
    pub fn stats(&self) -> watch::Receiver<EngineStats> {
        self.stats.clone()
    }

    /// The engine's metrics in Prometheus' format.
    ///
    /// # Errors
    /// See [`EngineMetrics::render`].
    pub fn metrics_text(&self, model_name: &str) -> prometheus::Result<String> {
        let stats = self.stats.borrow().clone();
        let EngineStats { running, waiting, free_pages, n_pages, kv_dtype, .. } = stats;
        let options = self.adapters.options();
        let adapters = options.are_on().then_some(AdapterSnapshot {
            max_adapters: options.max_loaded,
            running: stats.running_adapters,
            waiting: stats.waiting_adapters,
        });
        let now = Snapshot { running, waiting, used_pages: n_pages - free_pages, n_pages, kv_dtype, adapters };
        self.metrics.render(model_name, now)
    }

    /// Ends all requests in flight with an error, and waits for the thread to finish its step and end.
    pub fn stop(&self) {
        // Fails if the thread has already ended.
        let _ = self.commands.send(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread catches and reports its own panics.
            let _ = thread.join();
        }
    }
}

/// The state in `stats`. If the inference thread has ended without setting it, the engine has failed.
fn state_of(stats: &watch::Receiver<EngineStats>) -> EngineState {
    // Checked first: the thread sets the state before it ends.
    let has_ended = stats.has_changed().is_err();
    match stats.borrow().state.clone() {
        EngineState::Running if has_ended => EngineState::Failed("the inference thread has ended".to_owned()),
        state => state,
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &*self.stats.borrow()).finish_non_exhaustive()
    }
}

/// Messages to the inference thread.
#[derive(Debug)]
enum Command {
    Run(Vec<Job>),
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_thread_ending_unexpectedly_is_reported_as_failed() {
        let ending_in = |last: EngineState| {
            let (sender, stats) = watch::channel(EngineStats::starting());
            assert_eq!(state_of(&stats), EngineState::Running);
            sender.send_modify(|stats| stats.state = last);
            drop(sender);
            state_of(&stats)
        };
        assert_eq!(ending_in(EngineState::Running), EngineState::Failed("the inference thread has ended".into()));
        assert_eq!(ending_in(EngineState::Stopped), EngineState::Stopped);
        assert_eq!(ending_in(EngineState::Failed("x".into())), EngineState::Failed("x".into()));
    }
}
