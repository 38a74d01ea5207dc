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
//! - `sequence`: one request on its way through; `beams`: one with several sequences; [`embedding`]: one without an
//!   answer; `generation`: any of them
//! - `speculation`: guesses at the tokens to come
//! - [`text`]: token ids to text deltas and stop strings; pure
//! - `worker`: the thread, and the loop `schedule -> run -> advance`

mod beams;
pub mod embedding;
mod generation;
pub mod prefix_cache;
pub mod request;
mod runner;
pub mod scheduler;
mod sequence;
mod speculation;
pub mod text;
mod worker;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    task::{Context, Poll},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    chat::ChatTemplate,
    config::{GptConfig, Positions, Rope, RopeScaling},
    constraint::GrammarCompiler,
    kv_cache::PAGE_SIZE,
    sampling::{SamplingParams, TokenLogprobs, beam::BeamParams},
    tokenizer::Tokenizer,
    weights::model_dir::LoadedModel,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

pub use self::speculation::{MAX_SPECULATIVE_TOKENS, Speculation};
use self::{
    beams::Beams,
    embedding::{EmbedRequest, Embedding},
    generation::Generation,
    prefix_cache::PrefixSecret,
    request::{GenerateRequest, ModelLimits, Strategy},
    runner::Runner,
    scheduler::{Limits, Scheduler},
    sequence::{Intake, Sequence},
    speculation::Speculator,
    worker::Worker,
};
use crate::{
    memory,
    metrics::{EngineMetrics, Spans},
};

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
    /// as far as 1 GiB holds it, and one sequence even beyond that; on the CPU within half of the memory that is left.
    pub kv_cache_tokens: Option<usize>,
    /// Whether tokens are guessed ahead, and by what.
    pub speculation: Speculation,
}

/// What the engine runs.
#[derive(Debug)]
pub struct Models {
    /// The model that is served.
    pub served: LoadedModel,
    /// A smaller one with the same tokens, to guess ahead with: for [`Speculation::DraftModel`].
    pub draft: Option<LoadedModel>,
}

impl From<LoadedModel> for Models {
    fn from(served: LoadedModel) -> Self {
        Self { served, draft: None }
    }
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
        /// What exactly, if it is [`FinishReason::Stop`].
        cause: Option<StopCause>,
        /// Text that was held back until now.
        text: String,
        /// Tokens of the prompt that were found in the cache. Answers that share a prompt tell it once.
        cached_tokens: usize,
        /// Where the time went.
        spans: Spans,
    },
    /// The whole answer to a request for an embedding, `[d_model]`.
    Embedding(Vec<f32>),
    /// The request's deadline, this long after its arrival, has passed.
    TimedOut(Duration),
    /// The request cannot be finished as it is: a parameter, and what is wrong with it.
    Refused {
        /// The parameter, as clients write it.
        param: &'static str,
        /// For the client.
        message: String,
    },
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

/// What stopped a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// One of the tokens that end it.
    Token(TokenId),
    /// One of the stop strings.
    Text(String),
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
    /// The sampling parameters where a request does not say.
    pub sampling_defaults: SamplingParams,
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
    pub fn start<Load, Loaded>(load: Load, options: EngineOptions) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<Loaded> + Send + 'static,
        Loaded: Into<Models>,
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
        let metrics = Arc::new(EngineMetrics::new(options.speculation.n_tokens()));
        let workers_metrics = Arc::clone(&metrics);
        let body = move || {
            let prepared = load().map_err(StartError::from).and_then(|loaded| prepare(loaded.into(), &options));
            let Prepared { model, runner, speculator, limits } = match prepared {
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
                speculator,
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
        self.enqueue(|intake, sender| {
            let mut generations: Vec<Generation> = Vec::new();
            let mut n_answers = 0;
            for request in requests {
                let indices = n_answers..n_answers + request.n_answers();
                n_answers = indices.end;
                let mut events = indices.map(|index| EventSender { index, sender: sender.clone() });
                if let Some(params) = beam_params(&request) {
                    let beams = Beams::new(request, events.collect(), params, intake);
                    generations.push(Generation::Beams(Box::new(beams)));
                    continue;
                }
                let Some(events) = events.next() else { continue };
                let sequence = Sequence::new(request, events, intake);
                match generations.last_mut() {
                    Some(Generation::Sequence(first)) if first.request().shares_prompt(sequence.request()) => {
                        first.add_fork(sequence);
                    }
                    _ => generations.push(Generation::Sequence(Box::new(sequence))),
                }
            }
            generations
        })
    }

    /// Puts requests for embeddings into the queue, as [`submit`](Self::submit) does. Each is answered by one event:
    /// [`Event::Embedding`], or the reason why there is none.
    ///
    /// # Errors
    /// The queue is full, or the engine is gone.
    pub fn embed(&self, requests: Vec<EmbedRequest>) -> Result<EventStream, SubmitError> {
        self.enqueue(|intake, sender| {
            let generations = requests.into_iter().enumerate().map(|(index, request)| {
                let events = EventSender { index, sender: sender.clone() };
                Generation::Embedding(Box::new(Embedding::new(request, events, intake)))
            });
            generations.collect()
        })
    }

    /// Sends what `make` gives to the inference thread, if there is a place in the queue.
    fn enqueue<Make>(&self, make: Make) -> Result<EventStream, SubmitError>
    where
        Make: FnOnce(&Intake<'_>, &mpsc::UnboundedSender<(usize, Event)>) -> Vec<Generation>,
    {
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
        let command = Command::Generate(make(&intake, &sender));
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
pub(crate) struct EventSender {
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
pub(crate) struct QueuePlace {
    _permit: Arc<OwnedSemaphorePermit>,
}

fn check(options: &EngineOptions) -> Result<(), StartError> {
    let EngineOptions { max_queue, max_batch_size, max_batch_tokens, kv_cache_tokens, speculation } = *options;
    if speculation != Speculation::Off && !(1..=MAX_SPECULATIVE_TOKENS).contains(&speculation.n_tokens()) {
        return Err(StartError::Options(format!(
            "`--num-speculative-tokens` must be from 1 to {MAX_SPECULATIVE_TOKENS}, got {}",
            speculation.n_tokens()
        )));
    }
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

/// All that the thread needs.
struct Prepared {
    model: ServedModel,
    runner: Runner,
    speculator: Option<Speculator>,
    limits: Limits,
}

fn prepare(models: Models, options: &EngineOptions) -> Result<Prepared, StartError> {
    let Models { served: loaded, draft } = models;
    let config = loaded.gpt.config().clone();
    let n_tokens = options.kv_cache_tokens.unwrap_or_else(|| {
        let available = if loaded.gpt.device() == Device::flex() { memory::available_bytes() } else { None };
        default_cache_tokens(&config, options.max_batch_size, available)
    });
    let n_pages = n_tokens.div_ceil(PAGE_SIZE);
    let limits = Limits { max_batch_size: options.max_batch_size, max_batch_tokens: options.max_batch_tokens };
    let speculator = speculator(&loaded, draft, options.speculation, n_pages)?;
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
        grammars: OnceLock::new(),
        sampling_defaults: loaded.sampling_defaults,
    };
    Ok(Prepared { model, runner: Runner::new(loaded.gpt, n_pages), speculator, limits })
}

fn speculator(
    served: &LoadedModel,
    draft: Option<LoadedModel>,
    speculation: Speculation,
    n_pages: usize,
) -> Result<Option<Speculator>, StartError> {
    let refuse = |what: String| Err(StartError::Options(what));
    if speculation != Speculation::Off
        && let Positions::Rope(Rope { scaling: RopeScaling::Dynamic { .. }, .. }) = served.gpt.config().positions
    {
        // Its rotations depend on how a text was cut into steps.
        return refuse("`--speculative` does not go with a model whose rotary scaling is `dynamic`".to_owned());
    }
    match (speculation, draft) {
        (Speculation::Off, _) => Ok(None),
        (Speculation::PromptLookup { n_tokens }, _) => Ok(Some(Speculator::by_prompt_lookup(n_tokens))),
        (Speculation::DraftModel { .. }, None) => refuse("`--speculative draft` needs a `--draft-model`".to_owned()),
        (Speculation::DraftModel { n_tokens }, Some(draft)) => {
            if let Some(what) = speculation::difference(&served.tokenizer, &draft.tokenizer) {
                return refuse(format!(
                    "`--draft-model` must have the tokens of the served model: {what}\n\
                     hint: a draft model is a smaller one of the same family"
                ));
            }
            let max_seq_len = draft.gpt.config().max_seq_len;
            let runner = Runner::new(draft.gpt, n_pages);
            Ok(Some(Speculator::by_draft_model(runner, max_seq_len, n_tokens)))
        }
    }
}

/// Enough for every running sequence to get a full context, within [`DEFAULT_CACHE_BYTES`]; one full context even beyond
/// that; on the CPU never more than half of the memory that is left.
fn default_cache_tokens(config: &GptConfig, max_batch_size: usize, available_bytes: Option<u64>) -> usize {
    let context = config.max_seq_len;
    let held_by = |n_bytes: usize| n_bytes / config.kv_bytes_per_token(size_of::<f32>()).max(1);
    let wanted = context.saturating_mul(max_batch_size).min(held_by(DEFAULT_CACHE_BYTES).max(context));
    let Some(available) = available_bytes else { return wanted };
    let affordable = held_by(usize::try_from(available / 2).unwrap_or(usize::MAX)).max(PAGE_SIZE);
    if affordable < context {
        tracing::warn!("memory holds a context of {affordable} tokens, the model could have {context}");
    }
    wanted.min(affordable)
}

#[cfg(test)]
mod tests {
    use hearth_model::config::Sizes;

    use super::*;

    #[test]
    fn the_cache_is_as_large_as_it_can_be_of_use_and_as_memory_allows() {
        let sizes =
            Sizes { vocab_size: 8, max_seq_len: 1000, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_model: 256, d_ff: 64 };
        // Two layers of keys and values of 128 numbers, 4 bytes each: 2 KiB per token.
        let config = GptConfig::llama(sizes);
        assert_eq!(config.kv_bytes_per_token(4), 2048);
        let gib = 1 << 30;
        assert_eq!(default_cache_tokens(&config, 4, Some(16 * gib)), 4000, "no more than can be used");
        assert_eq!(default_cache_tokens(&config, 4000, Some(16 * gib)), 524_288, "1 GiB");
        assert_eq!(default_cache_tokens(&config, 4000, Some(gib)), 262_144, "half of what is left");
        let long = GptConfig { max_seq_len: 1_000_000, ..config };
        assert_eq!(default_cache_tokens(&long, 4, Some(16 * gib)), 1_000_000, "one context");
        assert_eq!(default_cache_tokens(&long, 4, None), 1_000_000);
        assert_eq!(default_cache_tokens(&long, 4, Some(2 * gib)), 524_288, "a part of one");
        assert_eq!(default_cache_tokens(&long, 4, Some(0)), 16);
    }
}
