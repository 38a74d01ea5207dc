//! Posts spans to a collector in batches, on a separate thread. Sending a span puts it into a queue and never blocks;
//! if the queue is full, because the collector is slow or gone, spans are dropped and counted.

use std::{
    collections::VecDeque,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use tokio_rustls::rustls::pki_types::pem;
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

use super::{
    sampler::TraceSampler,
    span::{Span, document},
};
use crate::tls;

/// Maximum number of queued spans; OpenTelemetry's default, as are the next two.
const MAX_QUEUE: usize = 2048;

/// Maximum number of spans per batch.
const MAX_BATCH: usize = 512;

/// Timeout for posting a batch.
const POST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of attempts per batch.
const MAX_TRIES: u32 = 4;

/// Failures are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The exporter's settings.
#[derive(Clone)]
pub struct ExportOptions {
    /// The URL that batches are posted to.
    pub endpoint: String,
    /// Headers of every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// PEM file with the CA certificates for the collector. `None`: Mozilla's root certificates.
    pub certificate: Option<PathBuf>,
    /// Attributes of the server, including `service.name`.
    pub resource: Vec<(String, String)>,
    /// The sampler.
    pub sampler: TraceSampler,
    /// Delay from the first span of a batch until it is sent; also the pause before the first retry, which then
    /// doubles.
    pub delay: Duration,
}

/// Why the exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The collector's URL is invalid.
    #[error("`--otlp-endpoint` must be an http or https address such as `http://localhost:4318`, got `{0}`")]
    Endpoint(String),
    /// The file cannot be read, or is not PEM.
    #[error("`--otlp-certificate`: cannot read `{path}`: {source}\nhint: it must be a PEM file", path = .path.display())]
    Certificate {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: pem::Error,
    },
    /// The system has no thread for the exporter.
    #[error("cannot start the exporter's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Queues spans without blocking.
#[derive(Clone)]
pub struct SpanSender {
    queue: Arc<Queue>,
    sampler: TraceSampler,
}

/// An exporter and its thread.
#[derive(Debug)]
pub struct Exporter {
    sender: SpanSender,
    ended: mpsc::Receiver<()>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    spans: VecDeque<Span>,
    n_dropped: usize,
    is_ending: bool,
}

impl Exporter {
    /// Starts the thread. Does not connect yet: a collector that cannot be reached is reported later, in the log.
    ///
    /// # Errors
    /// The URL is invalid, the certificates cannot be read, or the thread cannot be started.
    pub fn start(options: ExportOptions) -> Result<Self, ExportError> {
        let sender = SpanSender { queue: Arc::default(), sampler: options.sampler };
        let collector = Collector::new(options)?;
        let queue = Arc::clone(&sender.queue);
        let (told, ended) = mpsc::channel();
        thread::Builder::new().name("otlp".into()).spawn(move || {
            collector.export_all(&queue);
            // The receiver may be gone.
            let _ = told.send(());
        })?;
        Ok(Self { sender, ended })
    }

    /// A sender for spans.
    pub fn sender(&self) -> SpanSender {
        self.sender.clone()
    }

    /// Exports the remaining spans within this time; returns whether it was done.
    pub fn finish(self, patience: Duration) -> bool {
        self.sender.queue.state().is_ending = true;
        self.sender.queue.changed.notify_all();
        self.ended.recv_timeout(patience).is_ok()
    }
}

impl SpanSender {
    /// The sampler that decides which requests are exported.
    pub(crate) fn sampler(&self) -> TraceSampler {
        self.sampler
    }

    /// Queues a span, or drops it if the queue is full.
    pub fn send(&self, span: Span) {
        let mut state = self.queue.state();
        if state.spans.len() < MAX_QUEUE {
            state.spans.push_back(span);
        } else {
            state.n_dropped += 1;
        }
        // The thread waits for the first span of a batch and for a full batch.
        if matches!(state.spans.len(), 1 | MAX_BATCH) {
            self.queue.changed.notify_all();
        }
    }
}

impl fmt::Debug for SpanSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spans", self.queue.state().spans.len())
    }
}

impl Queue {
    /// Waits for the next batch: the spans that arrive within `delay`, and the number dropped before. `None` at the
    /// end.
    fn next_batch(&self, delay: Duration) -> Option<(Vec<Span>, usize)> {
        let state = self.state();
        let state = self.changed.wait_while(state, |state| state.spans.is_empty() && !state.is_ending);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let is_open = |state: &mut QueueState| state.spans.len() < MAX_BATCH && !state.is_ending;
        let waited = self.changed.wait_timeout_while(state, delay, is_open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let n = state.spans.len().min(MAX_BATCH);
        let n_dropped = std::mem::take(&mut state.n_dropped);
        (n > 0).then(|| (state.spans.drain(..n).collect(), n_dropped))
    }

    /// Waits for this time, or until the exporter ends; returns whether it ended.
    fn pause(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !state.is_ending);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_ending
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Collector {
    agent: Agent,
    options: ExportOptions,
}

/// Why a batch was not accepted.
struct Refusal {
    what: String,
    /// Whether a retry may succeed.
    is_transient: bool,
}

impl Collector {
    fn new(options: ExportOptions) -> Result<Self, ExportError> {
        let uri = options.endpoint.parse::<Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        if uri.as_ref().and_then(Uri::host).is_none_or(str::is_empty) {
            return Err(ExportError::Endpoint(options.endpoint));
        }
        let roots = options.certificate.as_deref().map(roots_in).transpose()?.unwrap_or(RootCerts::WebPki);
        let agent = Agent::config_builder()
            .timeout_global(Some(POST_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("hearth/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .into();
        Ok(Self { agent, options })
    }

    fn export_all(&self, queue: &Queue) {
        let (mut n_lost, mut last_told) = (0, None::<Instant>);
        while let Some((spans, n_dropped)) = queue.next_batch(self.options.delay) {
            let refusal = self.export(&spans, queue).err();
            n_lost += n_dropped + if refusal.is_some() { spans.len() } else { 0 };
            if n_lost > 0 && last_told.is_none_or(|told| told.elapsed() >= LOG_EVERY) {
                let why = refusal.map_or_else(|| "the queue was full".to_owned(), |refusal| refusal.what);
                tracing::warn!("cannot export {n_lost} spans to `{}`: {why}", self.options.endpoint);
                (n_lost, last_told) = (0, Some(Instant::now()));
            }
        }
    }

    /// Sends a batch, with retries if they may help.
    fn export(&self, spans: &[Span], queue: &Queue) -> Result<(), Refusal> {
        let body = document(spans, &self.options.resource).to_string();
        let mut pause = self.options.delay;
        for _ in 1..MAX_TRIES {
            match self.post(&body) {
                Err(refusal) if refusal.is_transient && !queue.pause(pause) => pause *= 2,
                outcome => return outcome,
            }
        }
        self.post(&body)
    }

    fn post(&self, body: &str) -> Result<(), Refusal> {
        let mut request = self.agent.post(&self.options.endpoint).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        let response = request.send(body).map_err(|error| Refusal { what: error.to_string(), is_transient: true })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let is_transient = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(Refusal { what: format!("it responded with {status}"), is_transient })
    }
}

fn roots_in(path: &Path) -> Result<RootCerts, ExportError> {
    let certificates = tls::certificates_in(path);
    let certificates = certificates.map_err(|source| ExportError::Certificate { path: path.to_owned(), source })?;
    let certificates: Vec<_> =
        certificates.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(RootCerts::Specific(Arc::new(certificates)))
}
