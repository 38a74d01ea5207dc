//! The engine as the server uses it: counted for Prometheus, and with a state that tasks can await.

use std::{fmt, ops::Deref, sync::Arc};

use hearth_engine::{
    EngineOptions, EngineStats, Models, StartError,
    observer::{Observer, Observers},
};
use tokio::sync::watch;

use crate::metrics::{AdapterSnapshot, EngineMetrics, Snapshot};

/// A handle to the engine and its metrics; clones share both. Ends with the last one.
#[derive(Clone)]
pub struct Engine {
    engine: hearth_engine::Engine,
    metrics: Arc<EngineMetrics>,
}

impl Engine {
    /// Starts the engine and waits until it is ready: see [`hearth_engine::Engine::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start<Load, Loaded>(load: Load, options: EngineOptions) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<Loaded> + Send + 'static,
        Loaded: Into<Models>,
    {
        Self::start_observed(load, options, None)
    }

    /// The same with an observer besides the metrics.
    ///
    /// # Errors
    /// As there.
    pub fn start_observed<Load, Loaded>(
        load: Load,
        options: EngineOptions,
        also: Option<Arc<dyn Observer>>,
    ) -> Result<Self, StartError>
    where
        Load: FnOnce() -> hearth_model::Result<Loaded> + Send + 'static,
        Loaded: Into<Models>,
    {
        let metrics = Arc::new(EngineMetrics::new(options.speculation.n_tokens()));
        let mut observer = Arc::clone(&metrics) as Arc<dyn Observer>;
        if let Some(also) = also {
            observer = Arc::new(Observers(vec![observer, also]));
        }
        let engine = hearth_engine::Engine::start(load, options, observer)?;
        metrics.serves(&engine.model().device, &engine.model().dtype);
        Ok(Self { engine, metrics })
    }

    /// The engine's state after its last step; changes can be awaited until the engine ends.
    pub fn stats(&self) -> watch::Receiver<EngineStats> {
        self.metrics.stats()
    }

    /// The engine's metrics in Prometheus' format.
    ///
    /// # Errors
    /// See [`EngineMetrics::render`].
    pub fn metrics_text(&self, model_name: &str) -> prometheus::Result<String> {
        let EngineStats { running, waiting, free_pages, n_pages, kv_dtype, running_adapters, waiting_adapters, .. } =
            self.engine.stats();
        let options = self.engine.adapters().options();
        let adapters = options.are_on().then_some(AdapterSnapshot {
            max_adapters: options.max_loaded,
            running: running_adapters,
            waiting: waiting_adapters,
        });
        let now = Snapshot { running, waiting, used_pages: n_pages - free_pages, n_pages, kv_dtype, adapters };
        self.metrics.render(model_name, now)
    }
}

impl Deref for Engine {
    type Target = hearth_engine::Engine;

    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}
