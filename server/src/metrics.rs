//! What the engine counts, and how [Prometheus](https://prometheus.io/docs/instrumenting/exposition_formats/) reads it.
//!
//! The names, labels and buckets are vLLM's, because routers, autoscalers and dashboards read those. Numbers are taken
//! where things happen, in the engine, not from what is sent to clients. One thread writes, any thread reads.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use hearth_model::kv_cache::PAGE_SIZE;

use crate::engine::{EngineStats, FinishReason, scheduler::Totals};

const TTFT_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_BUCKETS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST_BUCKETS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const COUNT_BUCKETS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0,
];
const STEP_BUCKETS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// How requests end, as the label `finished_reason` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By a stop condition.
    Stop,
    /// By length.
    Length,
    /// The client has gone, or the deadline has passed.
    Abort,
    /// Something failed.
    Error,
}

impl Outcome {
    const ALL: [(Self, &str); 4] =
        [(Self::Stop, "stop"), (Self::Length, "length"), (Self::Abort, "abort"), (Self::Error, "error")];
}

impl From<FinishReason> for Outcome {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// When things happened to a request.
#[derive(Clone, Debug)]
pub struct Timeline {
    arrived: Instant,
    started: Option<Instant>,
    logits: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spans {
    /// From its arrival to the first step that computed something of it.
    pub queue: Duration,
    /// From there to its first token.
    pub prefill: Duration,
    /// From there to its end.
    pub decode: Duration,
}

impl Spans {
    /// Of two answers to one request: until the first token of either, and from there to the end of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let until_token = |spans: &Self| spans.queue + spans.prefill;
        let until_end = |spans: &Self| until_token(spans) + spans.decode;
        let first = if until_token(&other) < until_token(&self) { other } else { self };
        let end = until_end(&self).max(until_end(&other));
        Self { decode: end.saturating_sub(until_token(&first)), ..first }
    }
}

impl Timeline {
    /// A request that has just come.
    pub fn new(arrived: Instant) -> Self {
        Self { arrived, started: None, logits: None, first_token: None, last_token: None }
    }

    /// When the request came.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Logits of the request are there now. A token made of them is as old as they are: a client may have it before
    /// anything else is done about it.
    pub fn has_logits(&mut self) {
        self.logits = Some(Instant::now());
    }

    /// Where the time went, of a request that ends now.
    pub fn spans(&self) -> Spans {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.or(self.logits).unwrap_or(now);
        Spans {
            queue: started.saturating_duration_since(self.arrived),
            prefill: first_token.saturating_duration_since(started),
            decode: now.saturating_duration_since(first_token),
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often values fell at or below each of some bounds.
#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    /// One more than there are bounds: the last one counts what is above all of them.
    counts: Vec<Counter>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Self { bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }
    }

    fn observe(&self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get(bucket) {
            count.add(1);
        }
        // There is one writer, so nothing is lost between the two.
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed)) + value;
        self.sum.store(sum.to_bits(), Ordering::Relaxed);
    }

    fn observe_since(&self, start: Instant, now: Instant) {
        self.observe(now.saturating_duration_since(start).as_secs_f64());
    }
}

/// Everything that is counted.
#[derive(Debug)]
pub struct EngineMetrics {
    prompt_tokens: Counter,
    generation_tokens: Counter,
    preemptions: AtomicU64,
    prefix_queries: AtomicU64,
    prefix_hits: AtomicU64,
    drafts: Counter,
    draft_tokens: Counter,
    /// Guesses that came true, by how far ahead they were.
    accepted_tokens: Vec<Counter>,
    ended: [Counter; Outcome::ALL.len()],
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_latency: Histogram,
    queue_time: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    step_tokens: Histogram,
}

impl EngineMetrics {
    /// Nothing has happened. Up to `n_speculative_tokens` are guessed ahead.
    pub fn new(n_speculative_tokens: usize) -> Self {
        Self {
            drafts: Counter::default(),
            draft_tokens: Counter::default(),
            accepted_tokens: (0..n_speculative_tokens).map(|_| Counter::default()).collect(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            preemptions: AtomicU64::new(0),
            prefix_queries: AtomicU64::new(0),
            prefix_hits: AtomicU64::new(0),
            ended: Default::default(),
            time_to_first_token: Histogram::new(TTFT_BUCKETS),
            inter_token_latency: Histogram::new(TOKEN_BUCKETS),
            e2e_latency: Histogram::new(REQUEST_BUCKETS),
            queue_time: Histogram::new(REQUEST_BUCKETS),
            request_prompt_tokens: Histogram::new(COUNT_BUCKETS),
            request_generation_tokens: Histogram::new(COUNT_BUCKETS),
            step_tokens: Histogram::new(STEP_BUCKETS),
        }
    }

    /// Of so many guesses at a sequence's next tokens, the first so many came true.
    pub fn drafted(&self, n_tokens: usize, n_accepted: usize) {
        if n_tokens > 0 {
            self.drafts.add(1);
            self.draft_tokens.add(n_tokens as u64);
            self.accepted_tokens.iter().take(n_accepted).for_each(|counter| counter.add(1));
        }
    }

    /// A step over so many tokens was computed.
    pub fn step(&self, n_tokens: usize, totals: Totals) {
        self.step_tokens.observe(n_tokens as f64);
        self.preemptions.store(totals.n_preemptions, Ordering::Relaxed);
        self.prefix_queries.store(totals.prefix_queries, Ordering::Relaxed);
        self.prefix_hits.store(totals.prefix_hits, Ordering::Relaxed);
    }

    /// A request with such a prompt starts. Later calls, and those for answers that share the prompt, change nothing.
    pub fn started(&self, timeline: &mut Timeline, n_prompt: usize) {
        if timeline.started.is_none() {
            let now = Instant::now();
            timeline.started = Some(now);
            self.queue_time.observe_since(timeline.arrived, now);
            self.prompt_tokens.add(n_prompt as u64);
            self.request_prompt_tokens.observe(n_prompt as f64);
        }
    }

    /// A request has one more token, made of the last logits.
    pub fn token(&self, timeline: &mut Timeline) {
        let now = timeline.logits.unwrap_or_else(Instant::now);
        self.generation_tokens.add(1);
        timeline.first_token.get_or_insert(now);
        match timeline.last_token.replace(now) {
            None => self.time_to_first_token.observe_since(timeline.arrived, now),
            Some(before) => self.inter_token_latency.observe_since(before, now),
        }
    }

    /// An answer of so many tokens is complete, or will never be.
    pub fn ended(&self, timeline: &Timeline, outcome: Outcome, n_tokens: usize) {
        self.e2e_latency.observe_since(timeline.arrived, Instant::now());
        self.request_generation_tokens.observe(n_tokens as f64);
        let place = Outcome::ALL.iter().position(|(each, _)| *each == outcome);
        if let Some(counter) = place.and_then(|place| self.ended.get(place)) {
            counter.add(1);
        }
    }

    /// All metrics as text, version 0.0.4 of the format.
    pub fn render(&self, model_name: &str, stats: &EngineStats) -> String {
        let mut page =
            Page { labels: format!("model_name=\"{}\",engine=\"0\"", escaped(model_name)), text: String::new() };
        let used = stats.n_pages - stats.free_pages;
        let usage = used as f64 / stats.n_pages.max(1) as f64;
        page.gauge("num_requests_running", "Requests in the batch.", stats.running as f64);
        page.gauge("num_requests_waiting", "Requests that wait for their start.", stats.waiting as f64);
        page.gauge("kv_cache_usage_perc", "Share of the KV cache's pages in use, 0 to 1.", usage);
        page.gauge("gpu_cache_usage_perc", "The same under the name that older routers read.", usage);
        page.head("cache_config_info", "gauge", "How the KV cache is laid out.");
        let layout = format!(
            "block_size=\"{PAGE_SIZE}\",cache_dtype=\"{}\",num_gpu_blocks=\"{}\"",
            stats.kv_dtype, stats.n_pages
        );
        page.sample("cache_config_info", &layout, 1.0);
        page.counter("prompt_tokens_total", "Tokens of prompts.", self.prompt_tokens.get());
        page.counter("generation_tokens_total", "Tokens generated.", self.generation_tokens.get());
        let loaded = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.counter("num_preemptions_total", "Requests that gave back their pages.", loaded(&self.preemptions));
        let (queries, hits) = (loaded(&self.prefix_queries), loaded(&self.prefix_hits));
        page.counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache.", queries);
        page.counter("prefix_cache_hits_total", "Tokens found in the prefix cache.", hits);
        page.counter("gpu_prefix_cache_queries_total", "The same under an older name.", queries);
        page.counter("gpu_prefix_cache_hits_total", "The same under an older name.", hits);
        page.counter("spec_decode_num_drafts_total", "Times that tokens were guessed ahead.", self.drafts.get());
        page.counter("spec_decode_num_draft_tokens_total", "Tokens guessed ahead.", self.draft_tokens.get());
        let accepted = self.accepted_tokens.iter().map(Counter::get).sum();
        page.counter("spec_decode_num_accepted_tokens_total", "Guesses that came true.", accepted);
        page.head("spec_decode_num_accepted_tokens_per_pos_total", "counter", "The same by how far ahead.");
        for (position, counter) in self.accepted_tokens.iter().enumerate() {
            let label = format!("position=\"{position}\"");
            page.sample("spec_decode_num_accepted_tokens_per_pos_total", &label, counter.get() as f64);
        }
        page.head("request_success_total", "counter", "Answers that have ended.");
        for ((_, name), counter) in Outcome::ALL.iter().zip(&self.ended) {
            page.sample("request_success_total", &format!("finished_reason=\"{name}\""), counter.get() as f64);
        }
        page.histogram("time_to_first_token_seconds", "From arrival to the first token.", &self.time_to_first_token);
        page.histogram("inter_token_latency_seconds", "From one token to the next.", &self.inter_token_latency);
        page.histogram("e2e_request_latency_seconds", "From arrival to the end.", &self.e2e_latency);
        page.histogram("request_queue_time_seconds", "From arrival to the first step.", &self.queue_time);
        page.histogram("request_prompt_tokens", "Tokens of a prompt.", &self.request_prompt_tokens);
        page.histogram("request_generation_tokens", "Tokens of an answer.", &self.request_generation_tokens);
        page.histogram("iteration_tokens_total", "Tokens computed in a step.", &self.step_tokens);
        page.text
    }
}

/// The text as it grows.
struct Page {
    /// What every sample carries.
    labels: String,
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn sample(&mut self, name: &str, more_labels: &str, value: f64) {
        let separator = if more_labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "vllm:{name}{{{}{separator}{more_labels}}} {value}", self.labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, "", value as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bounds = histogram.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        let mut total = 0;
        for (bound, count) in bounds.zip(&histogram.counts) {
            total += count.get();
            self.sample(&format!("{name}_bucket"), &format!("le=\"{bound}\""), total as f64);
        }
        self.sample(&format!("{name}_sum"), "", f64::from_bits(histogram.sum.load(Ordering::Relaxed)));
        self.sample(&format!("{name}_count"), "", total as f64);
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer that waited for its turn behind another: the first token is the other's, the end its own.
    #[test]
    fn spans_of_several_answers_are_those_of_the_request() {
        let spans = |parts: [u64; 3]| {
            let [queue, prefill, decode] = parts.map(Duration::from_millis);
            Spans { queue, prefill, decode }
        };
        let parts = |spans: Spans| [spans.queue, spans.prefill, spans.decode].map(|part| part.as_millis());
        let (early, late) = (spans([1, 2, 10]), spans([1, 16, 4]));
        assert_eq!(parts(early.and(late)), [1, 2, 18]);
        assert_eq!(parts(late.and(early)), [1, 2, 18]);
        assert_eq!(parts(early.and(spans([9, 1, 0]))), [1, 2, 10]);
    }

    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.observe(value));
        let mut page = Page { labels: "a=\"b\"".into(), text: String::new() };
        page.histogram("x", "Help.", &histogram);
        let expected = "# HELP vllm:x Help.\n# TYPE vllm:x histogram\n\
            vllm:x_bucket{a=\"b\",le=\"1\"} 2\nvllm:x_bucket{a=\"b\",le=\"2\"} 3\nvllm:x_bucket{a=\"b\",le=\"+Inf\"} 4\n\
            vllm:x_sum{a=\"b\"} 12\nvllm:x_count{a=\"b\"} 4\n";
        assert_eq!(page.text, expected);
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
