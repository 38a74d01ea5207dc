//! The span of a request: attributes of OpenTelemetry's conventions for
//! [HTTP](https://opentelemetry.io/docs/specs/semconv/http/http-spans/) and [generative
//! AI](https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/), and vLLM's attributes.

use std::time::SystemTime;

use super::{Asked, End, Line};
use crate::{
    api::wire::endpoint::Policy,
    telemetry::{
        span::{Attribute, Span},
        trace_context::TraceContext,
    },
};

/// The span of a request that ends now.
pub(crate) fn span(line: &Line, context: &TraceContext) -> Span {
    let duration = line.arrived.elapsed();
    let operation = match line.policy {
        Policy::Inference(operation) => Some(operation),
        Policy::Page | Policy::Probe | Policy::Api => None,
    };
    let name = match (operation, &line.work.model) {
        (Some(operation), Some(model)) => format!("{operation} {model}"),
        (Some(operation), None) => operation.to_owned(),
        // No path in the name: clients could create any number of paths.
        (None, _) => line.method.to_string(),
    };
    let mut attributes: Vec<(&str, Attribute)> = vec![
        ("http.request.method", line.method.as_str().into()),
        ("url.path", line.path.as_str().into()),
        ("hearth.request_id", line.request_id.as_str().into()),
    ];
    let mut add = |name: &'static str, value: Option<Attribute>| attributes.extend(value.map(|value| (name, value)));
    add("http.response.status_code", line.status.map(|status| usize::from(status.as_u16()).into()));
    if let Some(operation) = operation {
        add("gen_ai.operation.name", Some(operation.into()));
        add("gen_ai.provider.name", Some("hearth".into()));
        add_work(line, &mut add);
        // vLLM's span times, in seconds.
        add("gen_ai.latency.e2e", Some(duration.into()));
    }
    let failure = failure(line);
    add("error.type", failure.as_deref().map(Attribute::from));
    Span { context: context.clone(), name, start: SystemTime::now() - duration, duration, attributes, failure }
}

fn add_work(line: &Line, add: &mut impl FnMut(&'static str, Option<Attribute>)) {
    let work = &line.work;
    let text = |text: &Option<String>| text.as_deref().map(Attribute::from);
    let count = |count: Option<usize>| count.map(Attribute::from);
    add("gen_ai.request.model", text(&work.model));
    add("gen_ai.response.model", text(&work.model));
    add("gen_ai.response.id", text(&work.id));
    if let Some(Asked { max_tokens, temperature, top_p, top_k, n, streams }) = work.asked {
        add("gen_ai.request.max_tokens", count(max_tokens));
        add("gen_ai.request.temperature", Some(temperature.into()));
        add("gen_ai.request.top_p", Some(top_p.into()));
        add("gen_ai.request.top_k", count(Some(top_k).filter(|top_k| *top_k > 0)));
        add("gen_ai.request.choice.count", Some(n.into()));
        add("gen_ai.request.stream", Some(Attribute::Flag(streams)));
    }
    add("gen_ai.usage.input_tokens", count(work.prompt_tokens));
    add("gen_ai.usage.output_tokens", count(work.completion_tokens));
    add("gen_ai.usage.cache_read.input_tokens", count(work.cached_tokens));
    // The conventions' older names, which vLLM's dashboards use.
    add("gen_ai.usage.prompt_tokens", count(work.prompt_tokens));
    add("gen_ai.usage.completion_tokens", count(work.completion_tokens));
    add("gen_ai.latency.time_to_first_token", work.ttft.map(Attribute::from));
    if let Some(spans) = work.spans {
        add("gen_ai.latency.time_in_queue", Some(spans.queue.into()));
        add("gen_ai.latency.time_in_model_prefill", Some(spans.prefill.into()));
        add("gen_ai.latency.time_in_model_decode", Some(spans.decode.into()));
        add("gen_ai.latency.time_in_model_inference", Some((spans.prefill + spans.decode).into()));
    }
    let reasons = match line.end() {
        Some(End::Complete(reasons)) => reasons.into_iter().map(str::to_owned).collect(),
        Some(end) => vec![end.to_string()],
        None => return,
    };
    add("gen_ai.response.finish_reasons", Some(Attribute::Texts(reasons)));
}

/// The error, if the server caused it. Invalid requests and disconnects are the client's.
fn failure(line: &Line) -> Option<String> {
    let by_status = line.status.filter(|status| status.is_server_error()).map(|status| status.as_u16().to_string());
    by_status.or_else(|| match line.end() {
        Some(End::Failed(kind)) if line.status.is_some_and(|status| status.is_success()) => Some(kind.to_owned()),
        _ => None,
    })
}
