//! The engine: many requests, one model, one thread.
//!
//! [`Engine`] is the handle that the API holds. [`Engine::submit`] takes requests that are valid by construction and
//! gives back their stream of events; dropping the stream cancels them, wherever they are. Token ids and sampling come
//! in here, HTTP and JSON do not.
//!
//! # Layout
//! - [`request`]: what may be asked; `event`: what comes back; `start`: options, and what the thread needs
//! - [`scheduler`]: what the next step computes; pure
//! - `runner`: steps on the device; no decisions
//! - [`prefix_cache`]: names for what is in a page
//! - `sequence`: one request on its way through; `beams`: one with several sequences; [`embedding`]: one without an
//!   answer; `generation`: any of them
//! - `speculation`: guesses at the tokens to come
//! - `turn`: what a step's logits lead to, request by request, on all threads
//! - [`text`]: token ids to text deltas and stop strings; pure
//! - `token_ids`: the tokens of a text
//! - `worker`: the thread, and the loop `schedule -> run -> advance`

mod beams;
pub mod embedding;
mod event;
mod generation;
pub mod prefix_cache;
pub mod request;
mod runner;
pub mod scheduler;
mod sequence;
mod speculation;
mod start;
pub mod text;
mod token_ids;
mod turn;
mod worker;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use hearth_model::{
    TokenId,
    chat::ChatTemplate,
    config::GptConfig,
    constraint::GrammarCompiler,
    ops::KvDtype,
    sampling::{SamplingParams, beam::BeamParams},
    tokenizer::Tokenizer,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::{
    beams::Beams,
    embedding::{EmbedRequest, Embedding},
    event::{EventSender, EventSource},
    generation::Generation,
    request::{GenerateRequest, ModelLimits, Strategy},
    scheduler::Scheduler,
    sequence::{Intake, Sequence},
    start::Prepared,
    worker::{Held, Worker},
};
pub use self::{
    event::{Event, EventStream, FinishReason, StopCause},
    speculation::Speculation,
    start::{EngineOptions, Models, StartError},
};
use crate::metrics::{EngineMetrics, Snapshot};

/// Why requests were not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many answers wait as may, or nearly as many.
    #[error("the queue is full: at most {max_queue} answers may wait, those of one request counted one by one")]
    QueueFull {
        /// The engine's limit.
        max_queue: usize,
    },
    /// More answers than could ever wait.
    #[error(
        "the request asks for {n_answers} answers, but at most {max_queue} may wait at once\n\
         hint: send fewer prompts, a smaller `n`, or raise `--max-queue`"
    )]
    TooManyAnswers {
        /// As asked for.
        n_answers: usize,
        /// The engine's limit.
        max_queue: usize,
    },
    /// The engine has stopped or failed.
    #[error("the engine has stopped")]
    Stopped,
}

/// What the engine is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// Whether it works at all.
    pub state: EngineState,
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences taken over by the inference thread that have not started.
    pub waiting: usize,
    /// Pages of the KV cache that nobody holds.
    pub free_pages: usize,
    /// Pages of the KV cache.
    pub n_pages: usize,
    /// How they hold keys and values.
    pub kv_dtype: KvDtype,
}

/// Whether the engine works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// It takes requests.
    Running,
    /// It was stopped.
    Stopped,
    /// A step failed; it takes no more requests.
    Failed(String),
}

/// What there is to know about the served model outside the inference thread.
#[derive(Debug)]
pub struct ServedModel {
    /// The architecture.
    pub config: GptConfig,
    /// What requests must keep to.
    pub limits: ModelLimits,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt, if the model knows conversations.
    pub chat_template: Option<ChatTemplate>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// The sampling parameters where a request does not say.
    pub sampling_defaults: SamplingParams,
    /// A short name of what decides on its answers, for clients: another one says that equal seeds may give others.
    pub fingerprint: String,
    /// What structured output is compiled with, from its first use on.
    grammars: OnceLock<hearth_model::Result<GrammarCompiler>>,
}

impl ServedModel {
    /// What structured output is compiled with. The first call takes a moment.
    ///
    /// # Errors
    /// A vocabulary that cannot be used for it.
    pub fn grammars(&self) -> Result<&GrammarCompiler, &hearth_model::Error> {
        self.grammars.get_or_init(|| GrammarCompiler::new(&self.tokenizer)).as_ref()
    }
}

/// A handle to the engine; clones share it. When the last one goes, the thread ends.
#[derive(Clone)]
pub struct Engine {
    commands: SyncSender<Command>,
    queue: Arc<Semaphore>,
    max_queue: usize,
    stats: watch::Receiver<EngineStats>,
    metrics: Arc<EngineMetrics>,
    model: Arc<ServedModel>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Engine {
    /// Starts the inference thread, which loads the model and allocates the cache, and waits until it is ready.
    ///
    /// `load` runs on that thread because a device's streams belong to the thread that uses them.
    ///
    /// # Errors
    /// What `load` reports, limits that make no sense, or a system that gives no thread.
    pub fn start<Load, Loaded>(load: Load, options: EngineOptions) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<Loaded> + Send + 'static,
        Loaded: Into<Models>,
    {
        options.check()?;
        let max_queue = options.max_queue;
        // Whatever is queued holds a place at least, so there is always room in the channel; one more for `Stop`.
        let (commands, inbox) = sync_channel(max_queue + 1);
        let (stats_sender, stats) = watch::channel(EngineStats {
            state: EngineState::Running,
            running: 0,
            waiting: 0,
            free_pages: 0,
            n_pages: 0,
            kv_dtype: KvDtype::default(),
        });
        let (ready, is_ready) = sync_channel(1);
        let metrics = Arc::new(EngineMetrics::new(options.speculation.n_tokens()));
        let workers_metrics = Arc::clone(&metrics);
        let body = move || {
            let prepared = load().map_err(StartError::from).and_then(|loaded| start::prepare(loaded.into(), &options));
            let Prepared { model, runner, kv_dtype, speculator, limits } = match prepared {
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
                scheduler: Scheduler::new(limits, pool),
                runner,
                speculator,
                generations: BTreeMap::new(),
                n_accepted: 0,
                held: Held::default(),
            };
            if ready.send(Ok(model)).is_ok() {
                worker.run();
            }
        };
        let thread = thread::Builder::new().name("inference".into()).spawn(body);
        let thread = thread.map_err(|error| StartError::Thread(error.to_string()))?;
        let Ok(outcome) = is_ready.recv() else {
            let what = match thread.join() {
                Err(panic) => worker::panic_message(panic.as_ref()).to_owned(),
                Ok(()) => "it ended without a reason".to_owned(),
            };
            return Err(StartError::Thread(what));
        };
        Ok(Self {
            model: Arc::new(outcome?),
            queue: Arc::new(Semaphore::new(max_queue)),
            thread: Arc::new(Mutex::new(Some(thread))),
            commands,
            max_queue,
            stats,
            metrics,
        })
    }

    /// Puts requests into the queue, all or none; each answer takes a place there until it starts. The stream numbers
    /// their events by their index in `requests`, a beam search counting as often as it gives answers. Neighbours with the
    /// same prompt have it computed once.
    ///
    /// # Errors
    /// The queue is full or too small, or the engine is gone.
    pub fn submit(&self, requests: Vec<GenerateRequest>) -> Result<EventStream, SubmitError> {
        let n_places = requests.iter().map(GenerateRequest::n_answers).sum();
        self.enqueue(n_places, |intake, source| {
            let mut generations: Vec<Generation> = Vec::new();
            let mut n_answers = 0;
            for request in requests {
                let indices = n_answers..n_answers + request.n_answers();
                n_answers = indices.end;
                let mut events = indices.map(|index| source.sender(index));
                if let Some(params) = beam_params(&request) {
                    let beams = Beams::new(request, events.collect(), params, intake);
                    generations.push(Generation::Beams(Box::new(beams)));
                    continue;
                }
                let Some(events) = events.next() else { continue };
                match generations.last_mut() {
                    Some(Generation::Sequence(first)) if first.request().shares_prompt(&request) => {
                        first.add_fork(request, events, intake);
                    }
                    _ => generations.push(Generation::Sequence(Box::new(Sequence::new(request, events, intake)))),
                }
            }
            generations
        })
    }

    /// Puts requests for embeddings into the queue, as [`submit`](Self::submit) does. Each is answered by one event:
    /// [`Event::Embedding`], or the reason why there is none.
    ///
    /// # Errors
    /// The queue is full or too small, or the engine is gone.
    pub fn embed(&self, requests: Vec<EmbedRequest>) -> Result<EventStream, SubmitError> {
        self.enqueue(requests.len(), |intake, source| {
            let generations = requests.into_iter().enumerate().map(|(index, request)| {
                Generation::Embedding(Box::new(Embedding::new(request, source.sender(index), intake)))
            });
            generations.collect()
        })
    }

    /// Sends what `make` gives to the inference thread, if there are so many places in the queue.
    fn enqueue<Make>(&self, n_places: usize, make: Make) -> Result<EventStream, SubmitError>
    where
        Make: FnOnce(&mut Intake<'_>, &EventSource) -> Vec<Generation>,
    {
        if self.stats.borrow().state != EngineState::Running {
            return Err(SubmitError::Stopped);
        }
        let max_queue = self.max_queue;
        if n_places > max_queue {
            return Err(SubmitError::TooManyAnswers { n_answers: n_places, max_queue });
        }
        let full = SubmitError::QueueFull { max_queue };
        let asked = u32::try_from(n_places).map_err(|_| full.clone())?;
        let queue_places = Arc::clone(&self.queue).try_acquire_many_owned(asked).map_err(|_| full.clone())?;
        let (source, events) = event::channel();
        let mut intake = Intake {
            tokenizer: &self.model.tokenizer,
            text_len_matters_beyond: self.model.config.text_len_matters_beyond(),
            queue_places,
            arrived: Instant::now(),
        };
        let command = Command::Generate(make(&mut intake, &source));
        self.commands.try_send(command).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(_) => full,
            std::sync::mpsc::TrySendError::Disconnected(_) => SubmitError::Stopped,
        })?;
        Ok(events)
    }

    /// The served model.
    pub fn model(&self) -> &Arc<ServedModel> {
        &self.model
    }

    /// What the engine is doing, as of its last step; can be awaited for changes.
    pub fn stats(&self) -> watch::Receiver<EngineStats> {
        self.stats.clone()
    }

    /// What the engine counts, as Prometheus reads it.
    ///
    /// # Errors
    /// See [`EngineMetrics::render`].
    pub fn metrics_text(&self, model_name: &str) -> prometheus::Result<String> {
        let EngineStats { running, waiting, free_pages, n_pages, kv_dtype, .. } = *self.stats.borrow();
        let now = Snapshot { running, waiting, used_pages: n_pages - free_pages, n_pages, kv_dtype };
        self.metrics.render(model_name, now)
    }

    /// Ends what is in flight with an error to its clients and waits for the thread to finish its step and end.
    pub fn stop(&self) {
        // A full channel holds a `Stop` already.
        let _ = self.commands.try_send(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Its panics are caught and reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &*self.stats.borrow()).finish_non_exhaustive()
    }
}

/// What the inference thread is told.
#[derive(Debug)]
enum Command {
    Generate(Vec<Generation>),
    Stop,
}

/// Places in the queue, free when it is dropped: when what waits there starts, or is given up.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    _permit: Option<OwnedSemaphorePermit>,
}

/// What a request asks of the search for beams, if that is its strategy.
fn beam_params(request: &GenerateRequest) -> Option<BeamParams> {
    let parts = request.parts();
    let Strategy::Beams { width, kind, .. } = parts.strategy else { return None };
    Some(BeamParams {
        width,
        kind,
        temperature: parts.sampling.temperature,
        end_ids: parts.stop.stop_token_ids.clone(),
        min_tokens: parts.stop.min_tokens,
        max_tokens: parts.stop.max_tokens,
        n_top: parts.logprobs,
    })
}
