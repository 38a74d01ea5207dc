//! An endpoint: its path, its handler, its middleware policy, and its entry in `/openapi.json`. `router` has the table
//! of all endpoints.

use axum::routing::MethodRouter;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use super::{schema::Shape, state::AppState};
use crate::api::error::{ApiError, Envelope};

/// One row of the table of endpoints.
pub(crate) struct Endpoint {
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<AppState>,
    pub(crate) policy: Policy,
    /// `None`: not in `/openapi.json`.
    pub(crate) operation: Option<Operation>,
}

/// How the middleware treats requests to an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// A file of the web page: needs no API key.
    Page,
    /// For health checks and scrapers: needs no API key, may come from any origin and to any host, is logged at the
    /// level `debug`, and is not traced. It must change nothing and reveal nothing about requests.
    Probe,
    /// Needs an API key, if keys are set. Also the policy of paths that do not exist.
    #[default]
    Api,
    /// As `Api`; the span of a request has the attributes of OpenTelemetry's conventions for generative AI, with this
    /// `gen_ai.operation.name`.
    Inference(&'static str),
}

impl Policy {
    pub(crate) fn needs_key(self) -> bool {
        matches!(self, Self::Api | Self::Inference(_))
    }
}

/// An endpoint's entry in `/openapi.json`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) summary: &'static str,
    pub(crate) request: Request,
    pub(crate) response: ResponseBody,
    /// Error statuses that it may return.
    pub(crate) errors: &'static [u16],
    /// The body of an error.
    pub(crate) error: SchemaOf,
    /// Other endpoints that take a value of the response as a parameter.
    pub(crate) links: &'static [Link],
}

/// Error statuses of a `GET` that needs the model.
const GET_ERRORS: &[u16] = &[400, 403, 503];

/// Error statuses of a `POST` that needs the model.
const POST_ERRORS: &[u16] = &[400, 403, 404, 408, 413, 415, 429, 500, 503, 504];

impl Operation {
    /// A `GET` without parameters.
    pub(crate) const fn get(summary: &'static str, response: ResponseBody) -> Self {
        Self {
            summary,
            request: Request::Nothing,
            response,
            errors: GET_ERRORS,
            error: schema_of::<Envelope>,
            links: &[],
        }
    }

    /// A `POST` of a JSON object. `describe` runs the endpoint's parser on examples, which records the schema of the
    /// body.
    pub(crate) const fn post(summary: &'static str, describe: DescribeBody, response: ResponseBody) -> Self {
        Self {
            summary,
            request: Request::Body(describe),
            response,
            errors: POST_ERRORS,
            error: schema_of::<Envelope>,
            links: &[],
        }
    }

    /// Sets other error statuses.
    pub(crate) const fn with_errors(self, errors: &'static [u16]) -> Self {
        Self { errors, ..self }
    }

    /// Sets another shape of errors.
    pub(crate) const fn with_error(self, error: SchemaOf) -> Self {
        Self { error, ..self }
    }

    /// Sets links.
    pub(crate) const fn with_links(self, links: &'static [Link]) -> Self {
        Self { links, ..self }
    }
}

/// The input of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Nothing,
    /// The path parameter `id`, whose values are the names of the served model and of adapters.
    ModelInPath,
    Body(DescribeBody),
}

/// Runs an endpoint's parser on examples and records the fields that it reads.
pub(crate) type DescribeBody = fn(&AppState, &Shape) -> Result<(), ApiError>;

/// The body of a response with the status 200.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponseBody {
    Json(SchemaOf),
    /// JSON, or server-sent events if the request has `stream`: the schemas of the whole answer and of one event.
    JsonOrEvents(SchemaOf, SchemaOf),
    /// Text of this media type.
    Text(&'static str),
}

/// Adds the schema of a type to the generator and returns a reference to it: [`schema_of`].
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Value;

/// The schema of a response type.
pub(crate) fn schema_of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// A value of a response that is a parameter of another endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) name: &'static str,
    /// The other endpoint's path, as in the table of endpoints.
    pub(crate) to: &'static str,
    pub(crate) param_in: ParamIn,
    pub(crate) param: &'static str,
    /// The value, as a JSON pointer into the response.
    pub(crate) from: &'static str,
}

/// Where a link's parameter is placed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ParamIn {
    Path,
    /// The only field of the body.
    Body,
}
