//! Settings of traces, under OpenTelemetry's names.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use axum::http::{HeaderName, HeaderValue};
use clap::Args;
use percent_encoding::percent_decode_str;

use super::Secret;
use crate::telemetry::{
    exporter::ExportOptions,
    sampler::{SamplerKind, TraceSampler},
};

/// Delay from the first span of a batch until it is sent; OpenTelemetry's default.
const EXPORT_DELAY: Duration = Duration::from_secs(5);

/// Trace settings. The variables are OpenTelemetry's own.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traces")]
pub struct TraceConfig {
    /// URL of an OpenTelemetry collector such as `http://localhost:4318`. Each request is exported as a span, by OTLP over
    /// HTTP with JSON (not gRPC) [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// HTTP header for the collector; repeatable
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = ','
    )]
    pub otlp_header: Vec<Secret>,
    /// PEM file with the CA certificates for an https collector [default: Mozilla's root certificates]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otlp_certificate: Option<PathBuf>,
    /// URL that traces are posted to, without appending `/v1/traces`; overrides `--otlp-endpoint`
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,
    /// Service name in traces [default: `service.name` of the resource attributes, or `hearth`]
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME")]
    pub otlp_service_name: Option<String>,
    /// Attribute of the server in traces; repeatable or comma-separated
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub otlp_resource_attribute: Vec<String>,
    /// Requests to export: all, none, a fraction of all traces, or by the caller's trace, with one of these for
    /// requests without a trace
    #[arg(
        long,
        env = "OTEL_TRACES_SAMPLER",
        value_name = "SAMPLER",
        value_enum,
        default_value = "parentbased_always_on"
    )]
    pub otlp_sampler: SamplerKind,
    /// Fraction of traces that the `traceidratio` samplers export, from 0 to 1
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", value_name = "FRACTION", default_value_t = 1.0, value_parser = fraction)]
    pub otlp_sampler_arg: f64,
}

fn fraction(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}

/// Decodes a percent-encoded value.
fn percent_decoded(value: &str) -> Option<String> {
    Some(percent_decode_str(value.trim()).decode_utf8().ok()?.into_owned())
}

impl TraceConfig {
    /// The exporter's settings. `None`: no collector is configured.
    pub(super) fn export_options(&self) -> anyhow::Result<Option<ExportOptions>> {
        const PATH: &str = "/v1/traces";
        // An empty variable counts as unset.
        let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        let with_path = |url: String| match url.trim_end_matches('/') {
            whole if whole.ends_with(PATH) => whole.to_owned(),
            base => format!("{base}{PATH}"),
        };
        let endpoint = given(&self.otlp_traces_endpoint).or_else(|| given(&self.otlp_endpoint).map(with_path));
        let Some(endpoint) = endpoint else { return Ok(None) };
        Ok(Some(ExportOptions {
            endpoint,
            headers: self.headers()?,
            certificate: self.otlp_certificate.clone(),
            resource: self.resource()?,
            sampler: TraceSampler { kind: self.otlp_sampler, ratio: self.otlp_sampler_arg },
            delay: EXPORT_DELAY,
        }))
    }

    /// The resource attributes, with name and version of the service.
    fn resource(&self) -> anyhow::Result<Vec<(String, String)>> {
        let defaults = [("service.name", "hearth"), ("service.version", env!("CARGO_PKG_VERSION"))];
        let mut attributes: Vec<(String, String)> = defaults.map(|(key, value)| (key.into(), value.into())).into();
        let mut set = |key: &str, value: String| {
            attributes.retain(|(known, _)| known != key);
            attributes.push((key.to_owned(), value));
        };
        for given in self.otlp_resource_attribute.iter().filter(|given| !given.trim().is_empty()) {
            let attribute = given.split_once('=').and_then(|(key, value)| Some((key.trim(), percent_decoded(value)?)));
            let (key, value) = attribute.filter(|(key, _)| !key.is_empty()).with_context(|| {
                format!("`--otlp-resource-attribute` must be `NAME=VALUE`, with a percent-encoded value, got `{given}`")
            })?;
            set(key, value);
        }
        if let Some(name) = self.otlp_service_name.clone().filter(|name| !name.is_empty()) {
            set("service.name", name);
        }
        Ok(attributes)
    }

    fn headers(&self) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
        let header = |given: &Secret| {
            let (name, value) = given.reveal().split_once('=')?;
            // The variable's values are percent-encoded, as in the header `baggage`.
            let value = percent_decoded(value)?;
            Some((name.trim().parse().ok()?, HeaderValue::from_str(&value).ok()?))
        };
        let headers = self.otlp_header.iter().filter(|given| !given.reveal().trim().is_empty()).map(|given| {
            // The error does not contain the value, which may be secret.
            header(given).context("`--otlp-header` must be `NAME=VALUE`, with a percent-encoded value")
        });
        headers.collect()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        traces: TraceConfig,
    }

    fn options(flags: &[&str]) -> anyhow::Result<Option<ExportOptions>> {
        Flags::try_parse_from([&["hearth"], flags].concat())?.traces.export_options()
    }

    #[test]
    fn otlp_endpoint_flags_determine_the_traces_url() {
        assert!(options(&[]).unwrap().is_none());
        assert!(options(&["--otlp-endpoint", ""]).unwrap().is_none());
        let endpoint = |flags: &[&str]| options(flags).unwrap().unwrap().endpoint;
        assert_eq!(endpoint(&["--otlp-endpoint", "http://x:1/"]), "http://x:1/v1/traces");
        assert_eq!(endpoint(&["--otlp-endpoint", "http://x:1/v1/traces"]), "http://x:1/v1/traces");
        let both = ["--otlp-endpoint", "http://x", "--otlp-traces-endpoint", "http://y/own"];
        assert_eq!(endpoint(&both), "http://y/own", "as it is");
    }

    #[test]
    fn otlp_service_name_and_resource_attributes_are_parsed() {
        let resource = |flags: &[&str]| {
            let options = options(&[&["--otlp-endpoint", "http://x"], flags].concat())?.unwrap();
            anyhow::Ok(options.resource.into_iter().filter(|(key, _)| key != "service.version").collect::<Vec<_>>())
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(resource(&[]).unwrap(), [pair("service.name", "hearth")]);
        let attributes = ["--otlp-resource-attribute", "service.name=one,deployment.environment=a%20b,"];
        let own = pair("deployment.environment", "a b");
        assert_eq!(resource(&attributes).unwrap(), [pair("service.name", "one"), own.clone()]);
        let named = [&attributes[..], &["--otlp-service-name", "two"]].concat();
        assert_eq!(resource(&named).unwrap(), [own, pair("service.name", "two")]);
        for broken in ["x", "=x", "x=%ff"] {
            let error = resource(&["--otlp-resource-attribute", broken]).unwrap_err().to_string();
            assert!(error.contains("`--otlp-resource-attribute` must be `NAME=VALUE`"), "{error}");
        }
    }

    #[test]
    fn otlp_sampler_flags_accept_standard_names_and_a_ratio() {
        let sampler = |flags: &[&str]| {
            let options = options(&[&["--otlp-endpoint", "http://x"], flags].concat());
            options.map(|options| options.unwrap().sampler)
        };
        assert_eq!(sampler(&[]).unwrap(), TraceSampler::default());
        let given = ["--otlp-sampler", "parentbased_traceidratio", "--otlp-sampler-arg", "0.25"];
        let expected = TraceSampler { kind: SamplerKind::ParentbasedTraceidratio, ratio: 0.25 };
        assert_eq!(sampler(&given).unwrap(), expected);
        for broken in [["--otlp-sampler", "sometimes"], ["--otlp-sampler-arg", "2"]] {
            assert!(sampler(&broken).is_err(), "{broken:?}");
        }
    }
}
