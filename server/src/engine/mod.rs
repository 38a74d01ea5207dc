//! The engine: many requests, one model, one thread.
//!
//! [`Engine`] is the handle that the API holds. [`Engine::submit`] takes requests that are valid by construction and
//! gives back their stream of events; dropping the stream cancels them, wherever they are. Token ids and sampling come
//! in here, HTTP and JSON do not.
//!
//! # Layout
//! - [`request`]: what may be asked
//! - [`scheduler`]: what the next step computes; pure
//! - `runner`: steps on the device; no decisions
//! - [`prefix_cache`]: names for what is in a page
//! - `sequence`: one request on its way through; `beams`: one with several sequences; `generation`: either
//! - [`text`]: token ids to text deltas and stop strings; pure
//! - `worker`: the thread, and the loop `schedule -> run -> advance`

mod beams;
mod generation;
pub mod prefix_cache;
pub mod request;
mod runner;
pub mod scheduler;
mod sequence;
pub mod text;
mod worker;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    task::{Context, Poll},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hearth_model::{
    TokenId,
    chat::ChatTemplate,
    config::GptConfig,
    kv_cache::PAGE_SIZE,
    sampling::{TokenLogprobs, beam::BeamParams},
    tokenizer::Tokenizer,
    weights::model_dir::LoadedModel,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use self::{
    beams::Beams,
    generation::Generation,
    prefix_cache::PrefixSecret,
    request::{GenerateRequest, ModelLimits, Strategy},
    runner::Runner,
    scheduler::{Limits, Scheduler},
    sequence::{Intake, Sequence},
    worker::Worker,
};
use crate::metrics::{EngineMetrics, Spans};

/// Bytes of keys and values that the cache may take where its size is not set.
const DEFAULT_CACHE_BYTES: usize = 1 << 30;

/// The engine's limits.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Requests that may wait; beyond them new ones are refused.
    pub max_queue: usize,
    /// Sequences that run at once.
    pub max_batch_size: usize,
    /// Tokens computed in one step, at least `max_batch_size`.
    pub max_batch_tokens: usize,
    /// Tokens whose keys and values are kept, over all sequences. `None`: every running sequence gets a full context,
    /// as far as 1 GiB holds it, and one sequence always does.
    pub kv_cache_tokens: Option<usize>,
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model could not be loaded.
    #[error(transparent)]
    Model(#[from] hearth_model::Error),
    /// A limit makes no sense.
    #[error("{0}")]
    Options(String),
    /// The inference thread could not be started, or panicked on its way.
    #[error("the inference thread failed to start: {0}")]
    Thread(String),
}

/// Why requests were not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests wait as may.
    #[error("the queue is full: {max_queue} requests are waiting")]
    QueueFull {
        /// The engine's limit.
        max_queue: usize,
    },
    /// The engine has stopped or failed.
    #[error("the engine has stopped")]
    Stopped,
}

/// What happens to a request, in this order: prompt log-probabilities if asked for, tokens, then one end.
#[derive(Clone, Debug)]
pub enum Event {
    /// One entry per prompt token; the first has none, as nothing predicts it.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// A token was generated.
    Token {
        /// Its id.
        id: TokenId,
        /// Text that is settled by now. May be empty, and may stem from earlier tokens.
        text: String,
        /// Characters of generated text before the token's own.
        offset: usize,
        /// Its log-probability and the alternatives, if asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The request is done.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Text that was held back until now.
        text: String,
        /// Tokens of the prompt that were found in the cache. Answers that share a prompt tell it once.
        cached_tokens: usize,
        /// Where the time went.
        spans: Spans,
    },
    /// The request's deadline, this long after its arrival, has passed.
    TimedOut(Duration),
    /// The request cannot be finished; the message is for the client.
    Failed(String),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
}

/// The events of the requests submitted together. Dropping it cancels what has not ended.
#[derive(Debug)]
pub struct EventStream(mpsc::UnboundedReceiver<(usize, Event)>);

impl EventStream {
    /// The next event and the index of its request. `None` after the last one, or when the engine is gone.
    pub async fn recv(&mut self) -> Option<(usize, Event)> {
        self.0.recv().await
    }

    /// As [`recv`](Self::recv), for hand-written streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        self.0.poll_recv(context)
    }
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
}

/// A handle to the engine; clones share it. When the last one goes, the thread ends.
#[derive(Clone)]
pub struct Engine {
    commands: SyncSender<Command>,
    queue: Arc<Semaphore>,
    max_queue: usize,
    stats: watch::Receiver<EngineStats>,
    metrics: Arc<EngineMetrics>,
    secret: PrefixSecret,
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
    pub fn start<Load>(load: Load, options: EngineOptions) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<LoadedModel> + Send + 'static,
    {
        check(&options)?;
        let max_queue = options.max_queue;
        // Each queued request holds a place, so there is always room in the channel; one more for `Stop`.
        let (commands, inbox) = sync_channel(max_queue + 1);
        let (stats_sender, stats) = watch::channel(EngineStats {
            state: EngineState::Running,
            running: 0,
            waiting: 0,
            free_pages: 0,
            n_pages: 0,
        });
        let (ready, is_ready) = sync_channel(1);
        let metrics = Arc::new(EngineMetrics::default());
        let workers_metrics = Arc::clone(&metrics);
        let body = move || {
            let (model, runner, limits) = match load().map(|loaded| prepare(loaded, &options)) {
                Ok(prepared) => prepared,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let pool = runner.pool().clone();
            stats_sender.send_modify(|stats| (stats.free_pages, stats.n_pages) = (pool.n_free(), pool.n_pages()));
            let worker = Worker {
                commands: inbox,
                stats: stats_sender,
                metrics: workers_metrics,
                scheduler: Scheduler::new(limits, pool),
                runner,
                generations: BTreeMap::new(),
                n_accepted: 0,
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
            secret: PrefixSecret::default(),
        })
    }

    /// Puts requests into the queue, all or none; together they take one place there. The stream numbers their events
    /// by their index in `requests`, a beam search counting as often as it gives answers. Neighbours with the same prompt
    /// have it computed once.
    ///
    /// # Errors
    /// The queue is full, or the engine is gone.
    pub fn submit(&self, requests: Vec<GenerateRequest>) -> Result<EventStream, SubmitError> {
        if self.stats.borrow().state != EngineState::Running {
            return Err(SubmitError::Stopped);
        }
        let full = SubmitError::QueueFull { max_queue: self.max_queue };
        let place = Arc::clone(&self.queue).try_acquire_owned().map_err(|_| full.clone())?;
        let place = QueuePlace { _permit: Arc::new(place) };
        let (sender, receiver) = mpsc::unbounded_channel();
        let intake = Intake {
            tokenizer: &self.model.tokenizer,
            secret: &self.secret,
            queue_place: place,
            arrived: Instant::now(),
        };
        let mut generations: Vec<Generation> = Vec::new();
        let mut n_answers = 0;
        for request in requests {
            let indices = n_answers..n_answers + request.n_answers();
            n_answers = indices.end;
            let mut events = indices.map(|index| EventSender { index, sender: sender.clone() });
            if let Some(params) = beam_params(&request) {
                let beams = Beams::new(request, events.collect(), params, &intake);
                generations.push(Generation::Beams(Box::new(beams)));
                continue;
            }
            let Some(events) = events.next() else { continue };
            let sequence = Sequence::new(request, events, &intake);
            match generations.last_mut() {
                Some(Generation::Sequence(first)) if first.request().shares_prompt(sequence.request()) => {
                    first.add_fork(sequence);
                }
                _ => generations.push(Generation::Sequence(Box::new(sequence))),
            }
        }
        let command = Command::Generate(generations);
        self.commands.try_send(command).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(_) => full,
            std::sync::mpsc::TrySendError::Disconnected(_) => SubmitError::Stopped,
        })?;
        Ok(EventStream(receiver))
    }

    /// The served model.
    pub fn model(&self) -> &Arc<ServedModel> {
        &self.model
    }

    /// What the engine is doing, as of its last step; can be awaited for changes.
    pub fn stats(&self) -> watch::Receiver<EngineStats> {
        self.stats.clone()
    }

    /// What the engine counts.
    pub fn metrics(&self) -> &EngineMetrics {
        &self.metrics
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

/// Where a sequence's events go. Never blocks: a slow client's events pile up here, at most `max_tokens` of them.
#[derive(Debug)]
struct EventSender {
    index: usize,
    sender: mpsc::UnboundedSender<(usize, Event)>,
}

impl EventSender {
    /// A client that has gone is noticed before the next step.
    fn send(&self, event: Event) {
        let _ = self.sender.send((self.index, event));
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// A place in the queue, shared by the requests that were submitted together and free when the last of them starts.
#[derive(Clone, Debug)]
struct QueuePlace {
    _permit: Arc<OwnedSemaphorePermit>,
}

fn check(options: &EngineOptions) -> Result<(), StartError> {
    let EngineOptions { max_queue, max_batch_size, max_batch_tokens, kv_cache_tokens } = *options;
    let least_one = [
        ("--max-queue", max_queue),
        ("--max-batch-size", max_batch_size),
        ("--kv-cache-tokens", kv_cache_tokens.unwrap_or(1)),
    ];
    if let Some((flag, _)) = least_one.iter().find(|(_, value)| *value == 0) {
        return Err(StartError::Options(format!("`{flag}` must be at least 1, got 0")));
    }
    if max_queue >= Semaphore::MAX_PERMITS {
        return Err(StartError::Options(format!(
            "`--max-queue` must be below {}, got {max_queue}",
            Semaphore::MAX_PERMITS
        )));
    }
    if max_batch_tokens < max_batch_size {
        return Err(StartError::Options(format!(
            "`--max-batch-tokens` must be at least `--max-batch-size`, got {max_batch_tokens} and {max_batch_size}\n\
             hint: every running sequence needs one token per step"
        )));
    }
    Ok(())
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

fn prepare(loaded: LoadedModel, options: &EngineOptions) -> (ServedModel, Runner, Limits) {
    let config = loaded.gpt.config().clone();
    let n_tokens = options.kv_cache_tokens.unwrap_or_else(|| default_cache_tokens(&config, options.max_batch_size));
    let n_pages = n_tokens.div_ceil(PAGE_SIZE);
    let limits = Limits { max_batch_size: options.max_batch_size, max_batch_tokens: options.max_batch_tokens };
    let model = ServedModel {
        limits: ModelLimits {
            vocab_size: config.vocab_size,
            max_seq_len: config.max_seq_len.min(n_pages * PAGE_SIZE),
            max_batch_size: options.max_batch_size,
            n_pages,
        },
        config,
        tokenizer: loaded.tokenizer,
        chat_template: loaded.chat_template,
        eos_token_ids: loaded.eos_token_ids,
    };
    (model, Runner::new(loaded.gpt, n_pages), limits)
}

fn default_cache_tokens(config: &GptConfig, max_batch_size: usize) -> usize {
    let affordable = DEFAULT_CACHE_BYTES / config.kv_bytes_per_token(size_of::<f32>()).max(1);
    config.max_seq_len.saturating_mul(max_batch_size).min(affordable.max(config.max_seq_len))
}
