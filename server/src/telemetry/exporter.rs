//! Posts spans to a collector, a batch at a time, on a thread of its own. Whoever has a span puts it into a queue and goes
//! on: what the queue has no room for, because the collector is slow or gone, is dropped and counted.

use std::{
    collections::VecDeque,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use tokio_rustls::rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject},
};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

use super::span::{Span, document};

/// Spans that wait at most; OpenTelemetry's default, as are the next two.
const MAX_QUEUE: usize = 2048;

/// Spans in one document.
const MAX_BATCH: usize = 512;

/// How long a collector may take for a document.
const POST_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a document is sent before it is given up.
const MAX_TRIES: u32 = 4;

/// Failures are logged this often at most.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Where spans go.
#[derive(Clone)]
pub struct ExportOptions {
    /// The collector. `/v1/traces` is added, unless it ends so.
    pub endpoint: String,
    /// Sent along with every document.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// PEM file of the certificates that vouch for the collector. `None`: those that browsers trust.
    pub certificate: Option<PathBuf>,
    /// What the server is called there.
    pub service_name: String,
    /// A batch is sent this long after its first span; also the pause before another try, which doubles.
    pub delay: Duration,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The address is none.
    #[error("`--otlp-endpoint` must be an http or https address such as `http://localhost:4318`, got `{0}`")]
    Endpoint(String),
    /// The file cannot be read, or is not PEM.
    #[error("`--otlp-certificate`: cannot read `{path}`: {source}\nhint: it must be a PEM file", path = .path.display())]
    Certificate {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// The system gives no thread.
    #[error("cannot start the thread that exports spans: {0}")]
    Thread(#[from] std::io::Error),
}

/// Takes in spans, and never waits.
#[derive(Clone)]
pub struct SpanSender(Arc<Queue>);

/// A collector, and the thread that talks to it.
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
    /// Starts the thread. Whether there is a collector shows later, in the log.
    ///
    /// # Errors
    /// The address is none, or the certificates cannot be read.
    pub fn start(options: ExportOptions) -> Result<Self, ExportError> {
        let collector = Collector::new(options)?;
        let sender = SpanSender(Arc::default());
        let queue = Arc::clone(&sender.0);
        let (told, ended) = mpsc::channel();
        thread::Builder::new().name("otlp".into()).spawn(move || {
            collector.export_all(&queue);
            // Nobody may be waiting.
            let _ = told.send(());
        })?;
        Ok(Self { sender, ended })
    }

    /// Where spans are put in.
    pub fn sender(&self) -> SpanSender {
        self.sender.clone()
    }

    /// Sends what is left, if that is done in this time; whether it was.
    pub fn finish(self, patience: Duration) -> bool {
        self.sender.0.state().is_ending = true;
        self.sender.0.changed.notify_all();
        self.ended.recv_timeout(patience).is_ok()
    }
}

impl SpanSender {
    /// Puts a span in, or drops it where there is no room.
    pub fn send(&self, span: Span) {
        let mut state = self.0.state();
        if state.spans.len() < MAX_QUEUE {
            state.spans.push_back(span);
        } else {
            state.n_dropped += 1;
        }
        // It waits for the first of a batch and for a whole one.
        if matches!(state.spans.len(), 1 | MAX_BATCH) {
            self.0.changed.notify_all();
        }
    }
}

impl fmt::Debug for SpanSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spans", self.0.state().spans.len())
    }
}

impl Queue {
    /// The next spans, and how many were dropped before them: those that come within `delay`. `None` at the end.
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

    /// Waits, but not beyond the end; whether it has come.
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
    address: String,
}

/// Why a document was not taken.
struct Refusal {
    what: String,
    /// It may be taken later.
    is_passing: bool,
}

impl Collector {
    fn new(options: ExportOptions) -> Result<Self, ExportError> {
        const PATH: &str = "/v1/traces";
        let uri = options.endpoint.parse::<Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        if uri.as_ref().and_then(Uri::host).is_none_or(str::is_empty) {
            return Err(ExportError::Endpoint(options.endpoint));
        }
        let base = options.endpoint.trim_end_matches('/');
        let address = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        let roots = options.certificate.as_deref().map(roots_in).transpose()?.unwrap_or(RootCerts::WebPki);
        let agent = Agent::config_builder()
            .timeout_global(Some(POST_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("hearth/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .into();
        Ok(Self { agent, options, address })
    }

    fn export_all(&self, queue: &Queue) {
        let (mut n_lost, mut last_told) = (0, None::<Instant>);
        while let Some((spans, n_dropped)) = queue.next_batch(self.options.delay) {
            let refusal = self.export(&spans, queue).err();
            n_lost += n_dropped + if refusal.is_some() { spans.len() } else { 0 };
            if n_lost > 0 && last_told.is_none_or(|told| told.elapsed() >= LOG_EVERY) {
                let why = refusal.map_or_else(|| "the queue was full".to_owned(), |refusal| refusal.what);
                tracing::warn!("{n_lost} spans could not be exported to `{}`: {why}", self.options.endpoint);
                (n_lost, last_told) = (0, Some(Instant::now()));
            }
        }
    }

    /// Sends a batch, more than once where that may help.
    fn export(&self, spans: &[Span], queue: &Queue) -> Result<(), Refusal> {
        let body = document(spans, &self.options.service_name).to_string();
        let mut pause = self.options.delay;
        for _ in 1..MAX_TRIES {
            match self.post(&body) {
                Err(refusal) if refusal.is_passing && !queue.pause(pause) => pause *= 2,
                outcome => return outcome,
            }
        }
        self.post(&body)
    }

    fn post(&self, body: &str) -> Result<(), Refusal> {
        let mut request = self.agent.post(&self.address).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        let response = request.send(body).map_err(|error| Refusal { what: error.to_string(), is_passing: true })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let is_passing = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(Refusal { what: format!("it answered {status}"), is_passing })
    }
}

fn roots_in(path: &Path) -> Result<RootCerts, ExportError> {
    let broken = |source| ExportError::Certificate { path: path.to_owned(), source };
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(broken)?;
    if certificates.is_empty() {
        return Err(broken(pem::Error::NoItemsFound));
    }
    let certificates: Vec<_> =
        certificates.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(RootCerts::Specific(Arc::new(certificates)))
}
