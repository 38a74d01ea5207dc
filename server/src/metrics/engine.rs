//! Metrics of the engine. They are measured in the engine, on the inference thread and the threads of the pool, not
//! from the data sent to clients.

use std::{
    fmt::Write,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hearth_engine::{
    EndedAnswer, EngineStats, Outcome, PhaseTimes, TokenTime,
    observer::{Observer, Totals},
};
use hearth_model::{gpt::kv_cache::PAGE_SIZE, ops::KvDtype};
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    proto::LabelPair,
};
use tokio::sync::watch;

use super::{
    adapters::{AdapterCounters, AdapterSnapshot},
    registered,
};

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
const ANSWER_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const STEP_BUCKETS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// A counter with a label. Without speculative decoding it has no samples.
const ACCEPTED_BY_POSITION: &str = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
const ACCEPTED_BY_POSITION_HELP: &str = "Number of accepted draft tokens by their position in the draft.";

/// The engine's state, for gauges.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Sequences in the batch.
    pub running: usize,
    /// Requests in the queue, preempted ones included, and answers that wait for a prompt they share.
    pub waiting: usize,
    /// Used pages of the KV cache.
    pub used_pages: usize,
    /// Pages of the KV cache.
    pub n_pages: usize,
    /// The dtype of the KV cache.
    pub kv_dtype: KvDtype,
    /// Set if there may be adapters.
    pub adapters: Option<AdapterSnapshot>,
}

/// All metrics of the engine.
#[derive(Debug)]
pub struct EngineMetrics {
    registry: Registry,
    stats: watch::Receiver<EngineStats>,
    /// Dropped when the engine ends, so that whoever awaits a change learns that there will be none.
    stats_sender: Mutex<Option<watch::Sender<EngineStats>>>,
    running: IntGauge,
    waiting: IntGauge,
    /// Under vLLM's current name, and the older one that some routers read.
    cache_usage: [Gauge; 2],
    cache_config: IntGaugeVec,
    build: IntGaugeVec,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    preemptions: IntCounter,
    /// Exported under two names.
    prefix_queries: [IntCounter; 2],
    /// Exported under two names.
    prefix_hits: [IntCounter; 2],
    drafts: IntCounter,
    draft_tokens: IntCounter,
    accepted_tokens: IntCounter,
    /// Accepted draft tokens by their position in the draft.
    accepted_by_position: Vec<IntCounter>,
    ended: IntCounterVec,
    adapters: AdapterCounters,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_latency: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    time_per_output_token: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    max_generation_tokens: Histogram,
    params_max_tokens: Histogram,
    params_n: Histogram,
    step_tokens: Histogram,
}

impl EngineMetrics {
    /// Starts at zero. Drafts have up to `n_speculative_tokens`.
    pub fn new(n_speculative_tokens: usize) -> Self {
        let registry = Registry::new();
        let (stats_sender, stats) = watch::channel(EngineStats::default());
        let counter = |name, help| registered(&registry, IntCounter::new(name, help));
        let gauge = |name, help| registered(&registry, Gauge::new(name, help));
        let int_gauge = |name, help| registered(&registry, IntGauge::new(name, help));
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            registered(&registry, Histogram::with_opts(options))
        };
        let ended = Opts::new("vllm:request_success_total", "Number of answers that ended, by reason.");
        let ended = registered(&registry, IntCounterVec::new(ended, &["finished_reason"]));
        for outcome in Outcome::ALL {
            // Present from the start, with 0.
            ended.with_label_values(&[outcome.label()]);
        }
        let by_position = Opts::new(ACCEPTED_BY_POSITION, ACCEPTED_BY_POSITION_HELP);
        let by_position = registered(&registry, IntCounterVec::new(by_position, &["position"]));
        let positions =
            (0..n_speculative_tokens).map(|position| by_position.with_label_values(&[position.to_string()]));
        let layout =
            Opts::new("vllm:cache_config_info", "Layout of the KV cache: page size in tokens, dtype, number of pages.");
        let layout = IntGaugeVec::new(layout, &["block_size", "cache_dtype", "num_gpu_blocks"]);
        let build =
            Opts::new("hearth_build_info", "Hearth's version, the device that computes, the dtype of the weights.");
        let build = IntGaugeVec::new(build, &["version", "device", "dtype"]);
        Self {
            running: int_gauge("vllm:num_requests_running", "Number of running sequences."),
            waiting: int_gauge("vllm:num_requests_waiting", "Number of sequences waiting to start."),
            cache_usage: [
                gauge("vllm:kv_cache_usage_perc", "Fraction of KV cache pages in use, from 0 to 1."),
                gauge("vllm:gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc."),
            ],
            cache_config: registered(&registry, layout),
            build: registered(&registry, build),
            prompt_tokens: counter("vllm:prompt_tokens_total", "Number of prompt tokens processed."),
            generation_tokens: counter("vllm:generation_tokens_total", "Number of generated tokens."),
            preemptions: counter(
                "vllm:num_preemptions_total",
                "Number of preemptions: running requests that lost their KV cache pages and are recomputed.",
            ),
            prefix_queries: [
                counter("vllm:prefix_cache_queries_total", "Number of prompt tokens looked up in the prefix cache."),
                counter("vllm:gpu_prefix_cache_queries_total", "Older name of vllm:prefix_cache_queries_total."),
            ],
            prefix_hits: [
                counter("vllm:prefix_cache_hits_total", "Number of prompt tokens found in the prefix cache."),
                counter("vllm:gpu_prefix_cache_hits_total", "Older name of vllm:prefix_cache_hits_total."),
            ],
            drafts: counter("vllm:spec_decode_num_drafts_total", "Number of drafts in speculative decoding."),
            draft_tokens: counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens."),
            accepted_tokens: counter("vllm:spec_decode_num_accepted_tokens_total", "Number of accepted draft tokens."),
            accepted_by_position: positions.collect(),
            ended,
            adapters: AdapterCounters::new(&registry),
            time_to_first_token: histogram(
                "vllm:time_to_first_token_seconds",
                "Time from arrival to the first token in seconds.",
                TTFT_BUCKETS,
            ),
            inter_token_latency: histogram(
                "vllm:inter_token_latency_seconds",
                "Time between two tokens of an answer in seconds.",
                TOKEN_BUCKETS,
            ),
            e2e_latency: histogram(
                "vllm:e2e_request_latency_seconds",
                "Time from arrival to the end of the request in seconds.",
                REQUEST_BUCKETS,
            ),
            queue_time: histogram(
                "vllm:request_queue_time_seconds",
                "Time from arrival to the first step in seconds.",
                REQUEST_BUCKETS,
            ),
            prefill_time: histogram(
                "vllm:request_prefill_time_seconds",
                "Time from the first step to the first token in seconds.",
                REQUEST_BUCKETS,
            ),
            decode_time: histogram(
                "vllm:request_decode_time_seconds",
                "Time from the first token to the end of the request in seconds.",
                REQUEST_BUCKETS,
            ),
            inference_time: histogram(
                "vllm:request_inference_time_seconds",
                "Time from the first step to the end of the request in seconds.",
                REQUEST_BUCKETS,
            ),
            time_per_output_token: histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time between two tokens of an answer in seconds, one sample per answer.",
                TOKEN_BUCKETS,
            ),
            request_prompt_tokens: histogram("vllm:request_prompt_tokens", "Prompt length in tokens.", COUNT_BUCKETS),
            request_generation_tokens: histogram(
                "vllm:request_generation_tokens",
                "Answer length in tokens.",
                COUNT_BUCKETS,
            ),
            max_generation_tokens: histogram(
                "vllm:request_max_num_generation_tokens",
                "Length in tokens of the longest answer to a prompt.",
                COUNT_BUCKETS,
            ),
            params_max_tokens: histogram(
                "vllm:request_params_max_tokens",
                "Maximum answer length in tokens: max_tokens, or the rest of the context.",
                COUNT_BUCKETS,
            ),
            params_n: histogram("vllm:request_params_n", "Number of answers to a prompt.", ANSWER_BUCKETS),
            step_tokens: histogram("vllm:iteration_tokens_total", "Tokens computed per step.", STEP_BUCKETS),
            registry,
            stats,
            stats_sender: Mutex::new(Some(stats_sender)),
        }
    }

    /// The engine's state after its last step; changes can be awaited until the engine ends.
    pub fn stats(&self) -> watch::Receiver<EngineStats> {
        self.stats.clone()
    }

    /// Records the device's name, and the dtype of most weights.
    pub fn serves(&self, device: &str, dtype: &str) {
        self.build.with_label_values(&[env!("CARGO_PKG_VERSION"), device, dtype]).set(1);
    }

    /// All metrics as text, labelled with the model's name.
    ///
    /// # Errors
    /// None in practice: every gathered family has samples.
    pub fn render(&self, model_name: &str, now: Snapshot) -> prometheus::Result<String> {
        self.running.set(now.running as i64);
        self.waiting.set(now.waiting as i64);
        self.cache_usage.iter().for_each(|gauge| gauge.set(now.used_pages as f64 / now.n_pages.max(1) as f64));
        let layout = [PAGE_SIZE.to_string(), now.kv_dtype.to_string(), now.n_pages.to_string()];
        self.cache_config.with_label_values(&layout).set(1);
        // The model's name is not known when the counters are created.
        let common = [("model_name", model_name), ("engine", "0")].map(|(name, value)| {
            let mut label = LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value.to_owned());
            label
        });
        let mut families = self.registry.gather();
        families.extend(now.adapters.iter().flat_map(AdapterSnapshot::gather));
        for metric in families.iter_mut().flat_map(|family| family.mut_metric()) {
            let own = metric.take_label();
            metric.set_label(common.iter().cloned().chain(own).collect());
        }
        let mut text = TextEncoder::new().encode_to_string(&families)?;
        if self.accepted_by_position.is_empty() {
            // A registry omits families without samples, but scrapers expect the family to be listed.
            let (name, help) = (ACCEPTED_BY_POSITION, ACCEPTED_BY_POSITION_HELP);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        }
        Ok(text)
    }
}

impl Observer for EngineMetrics {
    fn stats(&self, stats: &EngineStats) {
        let sender = self.stats_sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            sender.send_replace(stats.clone());
        }
    }

    fn closed(&self) {
        *self.stats_sender.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn drafted(&self, n_tokens: usize, n_accepted: usize) {
        if n_tokens > 0 {
            self.drafts.inc();
            self.draft_tokens.inc_by(n_tokens as u64);
            for counter in self.accepted_by_position.iter().take(n_accepted) {
                counter.inc();
                self.accepted_tokens.inc();
            }
        }
    }

    fn step(&self, n_tokens: usize, totals: Totals) {
        let raise = |counter: &IntCounter, total: u64| counter.inc_by(total.saturating_sub(counter.get()));
        self.step_tokens.observe(n_tokens as f64);
        raise(&self.preemptions, totals.n_preemptions);
        self.prefix_queries.iter().for_each(|counter| raise(counter, totals.prefix_queries));
        self.prefix_hits.iter().for_each(|counter| raise(counter, totals.prefix_hits));
    }

    fn started(&self, queued: Duration, n_prompt: usize) {
        self.queue_time.observe(queued.as_secs_f64());
        self.prompt_tokens.inc_by(n_prompt as u64);
        self.request_prompt_tokens.observe(n_prompt as f64);
    }

    fn token(&self, time: TokenTime) {
        self.generation_tokens.inc();
        match time {
            TokenTime::First(time) => self.time_to_first_token.observe(time.as_secs_f64()),
            TokenTime::Next(time) => self.inter_token_latency.observe(time.as_secs_f64()),
        }
    }

    fn beam_tokens(&self, n_tokens: usize) {
        self.generation_tokens.inc_by(n_tokens as u64);
    }

    fn ended(&self, answer: &EndedAnswer<'_>) {
        let EndedAnswer { outcome, n_tokens, max_tokens, adapter, total, phases, decoding, all } = *answer;
        self.e2e_latency.observe(total.as_secs_f64());
        if let Some(PhaseTimes { prefill, decode, .. }) = phases {
            self.prefill_time.observe(prefill.as_secs_f64());
            self.decode_time.observe(decode.as_secs_f64());
            self.inference_time.observe((prefill + decode).as_secs_f64());
        }
        if let Some(decoding) = decoding {
            self.time_per_output_token.observe(decoding.as_secs_f64() / (n_tokens - 1) as f64);
        }
        self.request_generation_tokens.observe(n_tokens as f64);
        // Embeddings generate no tokens.
        if max_tokens > 0 {
            self.params_max_tokens.observe(max_tokens as f64);
        }
        if let Some((n_answers, longest)) = all {
            self.params_n.observe(n_answers as f64);
            self.max_generation_tokens.observe(longest as f64);
        }
        self.ended.with_label_values(&[outcome.label()]).inc();
        if let Some(name) = adapter {
            self.adapters.ended(name, outcome, n_tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::time::Instant;

    use hearth_engine::Timeline;

    use super::*;

    const IDLE: Snapshot =
        Snapshot { running: 0, waiting: 0, used_pages: 0, n_pages: 4, kv_dtype: KvDtype::F32, adapters: None };

    fn assert_has_line(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_include_their_bound() {
        let metrics = EngineMetrics::new(0);
        let timeline = Timeline::new(Instant::now(), 4);
        [0, 1, 2, 1_000_000]
            .into_iter()
            .for_each(|n_tokens| metrics.ended(&timeline.end(Outcome::Stop, n_tokens, 100, None)));
        let text = metrics.render("m", IDLE).unwrap();
        for (bound, count) in [("1", 2), ("2", 3), ("5", 3), ("100000", 3), ("+Inf", 4)] {
            let labels = format!("model_name=\"m\",engine=\"0\",le=\"{bound}\"");
            assert_has_line(&text, &format!("vllm:request_generation_tokens_bucket{{{labels}}} {count}"));
        }
        assert_has_line(&text, "vllm:request_generation_tokens_sum{model_name=\"m\",engine=\"0\"} 1000003");
        assert_has_line(&text, "vllm:request_generation_tokens_count{model_name=\"m\",engine=\"0\"} 4");
    }

    #[test]
    fn request_metrics_are_recorded_once_when_all_its_choices_have_ended() {
        let metrics = EngineMetrics::new(0);
        let first = Timeline::new(Instant::now(), 1);
        first.add_answers(2);
        let labels = "model_name=\"m\",engine=\"0\"";
        for (timeline, n_tokens, n_counted) in [(first.clone(), 3, 0), (first.clone(), 7, 0), (first, 5, 1)] {
            metrics.ended(&timeline.end(Outcome::Stop, n_tokens, 10, None));
            let text = metrics.render("m", IDLE).unwrap();
            assert_has_line(&text, &format!("vllm:request_params_n_count{{{labels}}} {n_counted}"));
            assert_has_line(
                &text,
                &format!("vllm:request_max_num_generation_tokens_sum{{{labels}}} {}", 7 * n_counted),
            );
        }
        let text = metrics.render("m", IDLE).unwrap();
        assert_has_line(&text, &format!("vllm:request_params_n_sum{{{labels}}} 3"));
        assert_has_line(&text, &format!("vllm:request_params_max_tokens_sum{{{labels}}} 30"));
        // No choice was scheduled, so there is no prefill time.
        assert_has_line(&text, &format!("vllm:request_prefill_time_seconds_count{{{labels}}} 0"));
    }

    #[test]
    fn metric_label_values_are_escaped() {
        let text = EngineMetrics::new(0).render("a\"b\\c\nd", IDLE).unwrap();
        assert_has_line(&text, r#"vllm:num_requests_running{model_name="a\"b\\c\nd",engine="0"} 0"#);
    }

    /// The labels of `vllm:lora_requests_info` change between scrapes: each scrape has exactly its own sample.
    #[test]
    fn concurrent_metric_scrapes_each_see_their_own_lora_info_sample() {
        let metrics = EngineMetrics::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let metrics = &metrics;
                scope.spawn(move || {
                    let name = format!("adapter-{thread}");
                    let running = vec![name.as_str().into()];
                    let adapters = AdapterSnapshot { max_adapters: 2, running, waiting: Vec::new() };
                    for _ in 0..200 {
                        let text = metrics.render("m", Snapshot { adapters: Some(adapters.clone()), ..IDLE }).unwrap();
                        let samples: Vec<&str> =
                            text.lines().filter(|line| line.starts_with("vllm:lora_requests_info{")).collect();
                        let [sample] = samples[..] else { panic!("{samples:?}") };
                        assert!(sample.contains(&format!("running_lora_adapters=\"{name}\"")), "{sample}");
                    }
                });
            }
        });
    }

    #[test]
    fn metrics_lose_no_updates_from_concurrent_threads() {
        const N_THREADS: usize = 8;
        const N_EACH: usize = 50_000;
        let metrics = EngineMetrics::new(0);
        std::thread::scope(|scope| {
            for _ in 0..N_THREADS {
                scope.spawn(|| {
                    let timeline = Timeline::new(Instant::now(), 1);
                    (0..N_EACH).for_each(|_| metrics.ended(&timeline.end(Outcome::Length, 3, 3, None)));
                });
            }
        });
        let (n, labels) = (N_THREADS * N_EACH, "model_name=\"m\",engine=\"0\"");
        let text = metrics.render("m", IDLE).unwrap();
        assert_has_line(&text, &format!("vllm:request_generation_tokens_sum{{{labels}}} {}", 3 * n));
        assert_has_line(&text, &format!("vllm:request_generation_tokens_count{{{labels}}} {n}"));
        assert_has_line(&text, &format!("vllm:request_success_total{{{labels},finished_reason=\"length\"}} {n}"));
    }
}
