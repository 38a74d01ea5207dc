//! The engine on the caller's thread, for programs that wait for their texts: one run after the other, no queue.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    time::Instant,
};

use hearth_model::{
    decode::model_runner::ModelRunner,
    gpt::{
        Gpt,
        kv_cache::{PAGE_SIZE, max_places},
    },
    ops::KvDtype,
    text::tokenizer::Tokenizer,
};

use crate::{
    event::{self, Event, Failure},
    job::{Job, SubmissionContext},
    observer::NoObserver,
    request::{EngineRequest, ModelLimits, RequestParts, ValidationError},
    scheduler::{Limits, TOKENS_PER_STATE},
    startup::{Compute, n_running_states},
    stats::EngineState,
    stats_publisher::StatsPublisher,
    work_clock::WorkClock,
    worker::{Command, Worker},
};

/// The settings of a [`LocalEngine`].
#[derive(Clone, Copy, Debug)]
pub struct LocalOptions {
    /// Maximum number of sequences that run at once.
    pub max_batch_size: usize,
    /// Maximum number of tokens per step, at least `max_batch_size`.
    pub max_batch_tokens: usize,
    /// KV cache size in tokens, over all sequences: at least one request with its answer.
    pub kv_cache_tokens: usize,
    /// Dtype of the KV cache. `None`: as [suits](KvDtype::choose) the model.
    pub kv_cache_dtype: Option<KvDtype>,
}

/// Rows of a step for one text, which limits the memory for a long prompt.
const ROWS_OF_ONE: usize = 512;

impl LocalOptions {
    /// For one text at a time, of at most `n_tokens` tokens with its prompt.
    pub fn for_one(n_tokens: usize, kv_cache_dtype: Option<KvDtype>) -> Self {
        Self { max_batch_size: 1, max_batch_tokens: ROWS_OF_ONE, kv_cache_tokens: n_tokens, kv_cache_dtype }
    }
}

/// Why texts were not generated.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The prompt leaves no room for an answer.
    #[error("`prompt` must be shorter than the context of {max_seq_len} tokens, got {n_prompt} tokens")]
    LongPrompt {
        /// Tokens in the prompt.
        n_prompt: usize,
        /// Context length in tokens.
        max_seq_len: usize,
    },
    /// Another part of a request is invalid.
    #[error(transparent)]
    Invalid(ValidationError),
    /// A request or the device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl From<ValidationError> for LocalError {
    fn from(error: ValidationError) -> Self {
        match error {
            ValidationError::ContextLength { n_prompt, max_seq_len, .. } => Self::LongPrompt { n_prompt, max_seq_len },
            error => Self::Invalid(error),
        }
    }
}

/// An engine that computes while its caller waits. Prompts that later requests begin with stay in its cache.
#[derive(Debug)]
pub struct LocalEngine {
    worker: Worker,
    /// Kept open: a worker whose channel is closed stops.
    _commands: Sender<Command>,
    tokenizer: Tokenizer,
    limits: ModelLimits,
}

/// Maximum number of recurrent states kept of prompts: texts in a batch have a common beginning, but share little else.
const KEPT_STATES_LOCALLY: usize = 8;

impl LocalEngine {
    /// An engine on the model's device. A GPU compiles kernels when they are first used.
    ///
    /// # Errors
    /// The device does not support the dtype of the KV cache.
    pub fn new(gpt: Gpt, tokenizer: &Tokenizer, options: LocalOptions) -> hearth_model::Result<Self> {
        let LocalOptions { max_batch_size, max_batch_tokens, kv_cache_tokens, kv_cache_dtype } = options;
        let config = gpt.config();
        let n_pages = kv_cache_tokens.div_ceil(PAGE_SIZE).max(1);
        let limits = ModelLimits {
            vocab_size: config.vocab_size,
            max_seq_len: config.max_seq_len.min(n_pages * PAGE_SIZE),
            max_batch_size,
            n_pages,
            is_recurrent: gpt.has_recurrent_layers(),
            is_encoder: config.bidirectional,
            max_source_len: config.max_source_len(),
        };
        let whole_prompts = config.bidirectional || config.is_encoder_decoder();
        let longest_prompt =
            if whole_prompts { max_places(config).min(n_pages * PAGE_SIZE) + max_batch_size } else { 0 };
        let kv_dtype = KvDtype::choose(kv_cache_dtype, gpt.dtype(), &gpt.device())?;
        let n_states = n_running_states(max_batch_size) + KEPT_STATES_LOCALLY;
        let mut runner = ModelRunner::with_states(gpt, n_pages, n_states, kv_dtype)?;
        runner.capture_steps();
        runner.go_ahead();
        let limits_of_steps = Limits {
            max_batch_size,
            max_batch_tokens: max_batch_tokens.max(max_batch_size).max(longest_prompt),
            max_adapters: 0,
            tokens_per_state: TOKENS_PER_STATE,
            whole_prompts,
        };
        let compute = Compute { runner, kv_dtype, speculator: None, limits: limits_of_steps };
        let (commands, inbox) = channel();
        let observer = Arc::new(NoObserver);
        let stats = StatsPublisher::new(observer.clone());
        let worker = Worker::new(compute, inbox, stats, observer, WorkClock::default());
        Ok(Self { worker, _commands: commands, tokenizer: tokenizer.clone(), limits })
    }

    /// Serves requests to their end. `on_event` gets their events, each with the index of its request (of its answer,
    /// where a beam search returns several), and may stop all requests.
    ///
    /// # Errors
    /// The first request that is invalid, or that failed; then all end.
    pub fn run(
        &mut self,
        requests: Vec<RequestParts>,
        mut on_event: impl FnMut(usize, Event) -> ControlFlow<()>,
    ) -> Result<(), LocalError> {
        let requests = requests.into_iter().map(|parts| EngineRequest::new(parts, &self.limits));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let (source, mut events) = event::channel();
        let mut context = SubmissionContext { tokenizer: &self.tokenizer, queue_places: None, arrived: Instant::now() };
        self.worker.add(Job::of_requests(requests, &source, &mut context));
        drop(source);
        let outcome = loop {
            let next = std::iter::from_fn(|| events.try_recv());
            let handled = next
                .map(|(index, event)| Ok(on_event(index, event?)))
                .find(|flow| !matches!(flow, Ok(ControlFlow::Continue(()))));
            match handled {
                Some(Ok(_)) => break Ok(()),
                Some(Err(failure)) => break Err(failure),
                None if self.worker.is_idle() => return Ok(()),
                None => {}
            }
            match self.worker.serve_step() {
                Ok(()) => {}
                Err(EngineState::Failed(what)) => break Err(Failure::Failed(what)),
                Err(_) => break Err(Failure::Stopped),
            }
        };
        // Their client is gone.
        drop(events);
        self.worker.drop_cancelled();
        Ok(outcome?)
    }
}
