//! OpenTelemetry's samplers: which requests are exported.

use clap::ValueEnum;

use super::trace_context::TraceContext;

/// The rule for exporting a request, with the names of `OTEL_TRACES_SAMPLER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum SamplerKind {
    /// Every request.
    AlwaysOn,
    /// No request.
    AlwaysOff,
    /// A fraction of all traces, chosen by their ids.
    Traceidratio,
    /// As the caller decided (`traceparent`); every request without a caller's trace.
    #[default]
    ParentbasedAlwaysOn,
    /// As the caller decided; no other request.
    ParentbasedAlwaysOff,
    /// As the caller decided; a fraction of the other requests.
    ParentbasedTraceidratio,
}

/// Decides which requests are exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSampler {
    /// The rule.
    pub kind: SamplerKind,
    /// The fraction, from 0 to 1, for the rules that have one.
    pub ratio: f64,
}

impl Default for TraceSampler {
    fn default() -> Self {
        Self { kind: SamplerKind::default(), ratio: 1.0 }
    }
}

impl TraceSampler {
    /// Whether to export the request with this context.
    pub fn samples(self, context: &TraceContext) -> bool {
        use SamplerKind::{
            AlwaysOff, AlwaysOn, ParentbasedAlwaysOff, ParentbasedAlwaysOn, ParentbasedTraceidratio, Traceidratio,
        };
        let obeys_parent = matches!(self.kind, ParentbasedAlwaysOn | ParentbasedAlwaysOff | ParentbasedTraceidratio);
        if obeys_parent && context.parent_id.is_some() {
            return context.is_sampled;
        }
        match self.kind {
            AlwaysOn | ParentbasedAlwaysOn => true,
            AlwaysOff | ParentbasedAlwaysOff => false,
            Traceidratio | ParentbasedTraceidratio => context.trace_id.fraction() < self.ratio,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use axum::http::HeaderMap;

    use super::*;

    #[test]
    fn trace_samplers_decide_by_parent_flag_and_trace_id_ratio() {
        let child = |flags: &str| {
            let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            let headers = HeaderMap::from_iter([("traceparent".parse().unwrap(), parent.parse().unwrap())]);
            TraceContext::below_caller(&headers).unwrap()
        };
        // The last 8 bytes of the trace id are 0.64 of the largest value: a ratio of 0.7 samples it, 0.6 does not.
        let contexts = [TraceContext::root(), child("01"), child("00")];
        for (name, ratio, expected) in [
            ("always_on", 1.0, [true, true, true]),
            ("always_off", 1.0, [false, false, false]),
            ("traceidratio", 0.7, [true, true, true]),
            ("traceidratio", 0.6, [true, false, false]),
            ("parentbased_always_on", 1.0, [true, true, false]),
            ("parentbased_always_off", 1.0, [false, true, false]),
            ("parentbased_traceidratio", 0.0, [false, true, false]),
            ("parentbased_traceidratio", 1.0, [true, true, false]),
        ] {
            let sampler = TraceSampler { kind: SamplerKind::from_str(name, false).unwrap(), ratio };
            let decided = contexts.each_ref().map(|context| sampler.samples(context));
            // A root trace has a random id, so its ratio decision is not checked.
            let from = if name == "traceidratio" { 1 } else { 0 };
            assert_eq!(decided[from..], expected[from..], "{name} {ratio}");
        }
        assert_eq!(TraceSampler::default().kind, SamplerKind::ParentbasedAlwaysOn);
    }
}
