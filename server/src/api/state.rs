//! What all endpoints share: the engine, once it is there, and whether the server still takes work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use axum::response::Response;
use hearth_model::sampling::SamplingParams;
use tokio::{
    sync::{Semaphore, SetOnce},
    task::spawn_blocking,
};

use super::{error::ApiError, options::ApiOptions};
use crate::{
    engine::{Engine, EngineState},
    metrics::HttpMetrics,
};

/// A body of more bytes takes long to tokenize: tens of milliseconds and more.
const LONG_BODY_BYTES: usize = 1 << 16;

/// Threads for what is [prepared](AppState::prepare), at least: for one long body, one grammar, one template, and the rest.
pub(crate) const MIN_PREPARING_THREADS: usize = 4;

/// What has to be done before the engine gets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// Milliseconds.
    Short,
    /// A body that takes long to parse, or a text that takes long to tokenize.
    LongBody,
    /// A grammar to compile: most take milliseconds, some a hundred times that.
    Grammar,
    /// A chat template that came with the request: it may take seconds to run.
    Template,
}

impl Preparation {
    /// Of a body of `n_bytes` that needs nothing else of the above.
    pub(crate) fn of_body(n_bytes: usize) -> Self {
        if n_bytes > LONG_BODY_BYTES { Self::LongBody } else { Self::Short }
    }
}

/// Shared by all requests; clones are the same state.
#[derive(Clone, Debug)]
pub struct AppState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    model_id: String,
    options: ApiOptions,
    created: u64,
    engine: SetOnce<Engine>,
    http_metrics: HttpMetrics,
    draining: AtomicBool,
    /// Whose turn it is among the requests with long bodies.
    long_body: Arc<Semaphore>,
    /// Whose turn it is among those with grammars.
    grammar: Arc<Semaphore>,
    /// Whose turn it is among those with chat templates of their own.
    template: Arc<Semaphore>,
}

impl AppState {
    /// A server whose model is still being loaded, with the default settings. `model_id` is its name for clients.
    pub fn loading(model_id: impl Into<String>) -> Self {
        Self::loading_with(model_id, ApiOptions::default())
    }

    /// The same, with other settings.
    pub fn loading_with(model_id: impl Into<String>, options: ApiOptions) -> Self {
        let inner = Inner {
            model_id: model_id.into(),
            options,
            created: unix_seconds(),
            engine: SetOnce::new(),
            http_metrics: HttpMetrics::new(),
            draining: AtomicBool::new(false),
            long_body: Arc::new(Semaphore::new(1)),
            grammar: Arc::new(Semaphore::new(1)),
            template: Arc::new(Semaphore::new(1)),
        };
        Self(Arc::new(inner))
    }

    /// A server that is ready.
    pub fn ready(model_id: impl Into<String>, engine: Engine) -> Self {
        let state = Self::loading(model_id);
        state.set_engine(engine);
        state
    }

    /// The model is loaded. Later calls change nothing.
    pub fn set_engine(&self, engine: Engine) {
        let _ = self.0.engine.set(engine);
    }

    /// From now on no new work is taken.
    pub fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// The engine, if the model is loaded.
    pub fn engine(&self) -> Option<&Engine> {
        self.0.engine.get()
    }

    /// What made inference fail, once it has: waits for the model and then for as long as it works.
    pub async fn inference_failure(&self) -> String {
        let mut stats = self.0.engine.wait().await.stats();
        let failed = stats.wait_for(|stats| matches!(stats.state, EngineState::Failed(_))).await;
        match failed.map(|stats| stats.state.clone()) {
            Ok(EngineState::Failed(what)) => what,
            // The engine was stopped, so it cannot fail any more.
            _ => std::future::pending().await,
        }
    }

    /// The engine, if it takes work.
    ///
    /// # Errors
    /// 503 while the model is loading, while the server drains, and after the engine has failed.
    pub fn working_engine(&self) -> Result<&Engine, ApiError> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Err(ApiError::shutting_down());
        }
        let engine = self.engine().ok_or_else(|| ApiError::unavailable("the model is still being loaded"))?;
        match &engine.stats().borrow().state {
            EngineState::Running => Ok(engine),
            EngineState::Stopped => Err(ApiError::shutting_down()),
            EngineState::Failed(what) => Err(ApiError::unavailable(format!("inference failed: {what}"))),
        }
    }

    /// Does `work`, such as tokenizing a prompt, on a thread that serves no connections. Of what may take long, one at a time
    /// of each kind is done, so that there is always a thread for the rest, whatever is sent.
    ///
    /// # Errors
    /// What `work` reports; 500 if it panics.
    pub(crate) async fn prepare<Work, T>(&self, preparation: Preparation, work: Work) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        let turns = match preparation {
            Preparation::Short => None,
            Preparation::LongBody => Some(&self.0.long_body),
            Preparation::Grammar => Some(&self.0.grammar),
            Preparation::Template => Some(&self.0.template),
        };
        let turn = match turns {
            None => None,
            // Never closed, so there is a turn for everybody.
            Some(turns) => Arc::clone(turns).acquire_owned().await.ok(),
        };
        let done = spawn_blocking(move || {
            // Kept to the end, even when the client does not wait for it.
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| ApiError::internal(format!("preparing the request failed: {error}")))?
    }

    /// Where requests are counted.
    pub(crate) fn http_metrics(&self) -> &HttpMetrics {
        &self.0.http_metrics
    }

    /// Does `work` here if it is short, and as [`prepare`](Self::prepare) does otherwise.
    ///
    /// # Errors
    /// As `prepare`.
    pub(crate) async fn prepare_long<Work, T>(&self, preparation: Preparation, work: Work) -> Result<T, ApiError>
    where
        Work: FnOnce() -> Result<T, ApiError> + Send + 'static,
        T: Send + 'static,
    {
        match preparation {
            Preparation::Short => work(),
            preparation => self.prepare(preparation, work).await,
        }
    }

    /// Writes an answer of about so many bytes; a long one as [`prepare`](Self::prepare) does.
    ///
    /// # Errors
    /// 500 if it panics.
    pub(crate) async fn write<Write>(&self, n_bytes: usize, write: Write) -> Result<Response, ApiError>
    where
        Write: FnOnce() -> Response + Send + 'static,
    {
        if n_bytes <= LONG_BODY_BYTES {
            return Ok(write());
        }
        self.prepare(Preparation::Short, move || Ok(write())).await
    }

    /// The API's settings.
    pub fn options(&self) -> &ApiOptions {
        &self.0.options
    }

    /// The sampling parameters where a request does not say: the served model's.
    pub fn sampling_defaults(&self) -> SamplingParams {
        self.engine().map(|engine| engine.model().sampling_defaults.clone()).unwrap_or_default()
    }

    /// The served model's name.
    pub fn model_id(&self) -> &str {
        &self.0.model_id
    }

    /// When the server started, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.0.created
    }
}

/// Now, in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{sync::mpsc, time::Duration};

    use tokio::runtime;

    use super::*;

    #[test]
    fn however_much_takes_long_what_is_short_finds_a_thread() {
        let runtime = runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(MIN_PREPARING_THREADS)
            .build()
            .unwrap();
        runtime.block_on(async {
            let state = AppState::loading("x");
            let (go, goes) = mpsc::channel::<()>();
            let goes = Arc::new(std::sync::Mutex::new(goes));
            let kinds = [Preparation::of_body(LONG_BODY_BYTES + 1), Preparation::Grammar, Preparation::Template];
            let long = kinds.into_iter().cycle().take(9).map(|kind| {
                let (state, goes) = (state.clone(), Arc::clone(&goes));
                let work = move || {
                    goes.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                tokio::spawn(async move { state.prepare(kind, work).await })
            });
            let long: Vec<_> = long.collect();
            let short = state.prepare(Preparation::of_body(LONG_BODY_BYTES), || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(30), short).await.unwrap().unwrap(), 7);
            // Whose turn it is depends on the scheduler: all may go before any is waited for.
            long.iter().for_each(|_| go.send(()).unwrap());
            for done in long {
                done.await.unwrap().unwrap();
            }
        });
    }
}
