//! The engine on its own thread, and the handle to it.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    adapters::Adapters,
    event::{self, EventStream},
    job::{Job, SubmissionContext},
    observer::Observer,
    request::EngineRequest,
    served_model::ServedModel,
    startup::{self, EngineOptions, Models, Prepared, StartError},
    stats::{EngineState, EngineStats, LastStats},
    stats_publisher::StatsPublisher,
    tenant::{Queue, TenantId},
    work_clock::WorkClock,
    worker::{self, Command, Worker},
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

/// A handle to the engine; clones share it. The thread ends when the last one is dropped.
#[derive(Clone)]
pub struct Engine {
    commands: Sender<Command>,
    queue: Queue,
    max_queue: usize,
    stats: LastStats,
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
    /// The errors of `load`, invalid limits, or a thread that cannot be started.
    pub fn start<Load, Loaded>(
        load: Load,
        options: EngineOptions,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<Loaded> + Send + 'static,
        Loaded: Into<Models>,
    {
        options.check()?;
        let max_queue = options.max_queue;
        // Bounded by the queue: each queued request holds at least one place.
        let (commands, inbox) = channel();
        let publisher = StatsPublisher::new(Arc::clone(&observer));
        let stats = publisher.last();
        let (ready, is_ready) = channel();
        let work_clock = WorkClock::default();
        let workers_clock = work_clock.clone();
        let body = move || {
            let prepared =
                load().map_err(StartError::from).and_then(|loaded| startup::prepare(loaded.into(), &options));
            let Prepared { model, adapters, compute } = match prepared {
                Ok(prepared) => prepared,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let worker = Worker::new(compute, inbox, publisher, observer, workers_clock);
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
        Ok(Self {
            model: Arc::new(model),
            adapters: Arc::new(adapters),
            queue: Queue::default(),
            thread: Arc::new(Mutex::new(Some(thread))),
            commands,
            max_queue,
            stats,
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

    /// As [`submit`](Self::submit), for requests that arrived at `arrived`: deadlines and latencies count from there.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_at(&self, requests: Vec<EngineRequest>, arrived: Instant) -> Result<EventStream, SubmitError> {
        if self.stats.lock().state != EngineState::Running {
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
        let mut context =
            SubmissionContext { tokenizer: &self.model.tokenizer, queue_places: Some(queue_places), arrived };
        let jobs = Job::of_requests(requests, &source, &mut context);
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
        self.stats.lock().state.clone()
    }

    /// The kind of the engine's work that has made no progress for the longest time, such as a step, and that time.
    /// `None` if there is no work.
    pub fn slowest_work(&self) -> Option<(&'static str, Duration)> {
        self.work_clock.slowest()
    }

    /// The engine's state after its last step.
    pub fn stats(&self) -> EngineStats {
        self.stats.lock().clone()
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &*self.stats.lock()).finish_non_exhaustive()
    }
}
