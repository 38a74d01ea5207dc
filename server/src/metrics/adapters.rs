//! Metrics of LoRA adapters, by name.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use hearth_engine::{Outcome, clock::unix_time};
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry, proto::MetricFamily};

use super::registered;

/// Maximum number of names with separate samples: clients choose names, and a sample stays for ever.
const MAX_NAMES: usize = 1024;

/// The name that all further adapters share.
const OTHER: &str = "other";

/// The adapters of requests.
#[derive(Clone, Debug)]
pub struct AdapterSnapshot {
    /// Maximum number of different adapters among running requests.
    pub max_adapters: usize,
    /// Names of the adapters of running requests.
    pub running: Vec<Arc<str>>,
    /// Names of the adapters of waiting requests.
    pub waiting: Vec<Arc<str>>,
}

impl AdapterSnapshot {
    /// The family `vllm:lora_requests_info`, with one sample. It has a separate registry: the names are labels, so a
    /// shared gauge would have to be reset each time, and two scrapers at once would find no sample or two.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let registry = Registry::new();
        let info =
            Opts::new("vllm:lora_requests_info", "Adapters of running and waiting requests; the value is the time.");
        let info = GaugeVec::new(info, &["max_lora", "running_lora_adapters", "waiting_lora_adapters"]);
        let labels = [self.max_adapters.to_string(), self.running.join(","), self.waiting.join(",")];
        // The value is the time, as in vLLM: readers use the latest sample.
        registered(&registry, info).with_label_values(&labels).set(unix_time().as_secs_f64());
        registry.gather()
    }
}

/// Counts the tokens that adapters generate.
#[derive(Debug)]
pub(super) struct AdapterCounters {
    ended: IntCounterVec,
    tokens: IntCounterVec,
    /// Names of adapters with separate samples.
    names: Mutex<BTreeSet<Box<str>>>,
}

impl AdapterCounters {
    /// Without samples.
    pub(super) fn new(registry: &Registry) -> Self {
        let ended = Opts::new("hearth_lora_requests_total", "Number of answers of an adapter that ended, by reason.");
        let tokens = Opts::new("hearth_lora_generation_tokens_total", "Number of tokens that an adapter generated.");
        Self {
            ended: registered(registry, IntCounterVec::new(ended, &["lora", "finished_reason"])),
            tokens: registered(registry, IntCounterVec::new(tokens, &["lora"])),
            names: Mutex::default(),
        }
    }

    /// An answer of `n_tokens` tokens by the adapter `name` is complete or was abandoned.
    pub(super) fn ended(&self, name: &str, outcome: Outcome, n_tokens: usize) {
        let name = self.label(name);
        self.ended.with_label_values(&[name, outcome.label()]).inc();
        self.tokens.with_label_values(&[name]).inc_by(n_tokens as u64);
    }

    fn label<'a>(&self, name: &'a str) -> &'a str {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(name) {
            if names.len() >= MAX_NAMES {
                return OTHER;
            }
            names.insert(name.into());
        }
        name
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn adapter_metrics_beyond_max_names_share_the_label_other() {
        let registry = Registry::new();
        let counters = AdapterCounters::new(&registry);
        for number in 0..MAX_NAMES + 10 {
            counters.ended(&format!("adapter-{number}"), Outcome::Stop, 2);
        }
        // A name below the limit keeps its own label.
        counters.ended("adapter-7", Outcome::Stop, 2);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let is_sample = |line: &&str| line.starts_with("hearth_lora_requests_total{");
        assert_eq!(text.lines().filter(is_sample).count(), MAX_NAMES + 1);
        for (lora, n_requests) in [("adapter-7", 2), ("adapter-1023", 1), ("other", 10)] {
            let ended = format!("hearth_lora_requests_total{{finished_reason=\"stop\",lora=\"{lora}\"}} {n_requests}");
            let tokens = format!("hearth_lora_generation_tokens_total{{lora=\"{lora}\"}} {}", 2 * n_requests);
            for expected in [ended, tokens] {
                assert!(text.lines().any(|line| line == expected), "{expected} is not in\n{text}");
            }
        }
    }
}
