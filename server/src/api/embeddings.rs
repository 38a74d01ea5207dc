//! `POST /v1/embeddings`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/embeddings), with
//! selectable pooling.

use std::future::poll_fn;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hearth_engine::{
    Event, ServedModel,
    request::{EngineRequest, RequestParts, Strategy},
};
use hearth_model::{
    pooling::{OwnPooling, Pooling, VectorScale},
    tokenizer::EncodeOptions,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{
    adapters,
    body::Body,
    endpoint::{Operation, ResponseBody, schema_of},
    error::ApiError,
    fields::{Fields, must_be},
    generation, ignored_params,
    preparation::{Deadline, Preparation, TurnWait},
    prompt::{self, Prompt, Truncation},
    schema::Shape,
    state::AppState,
    submission::{Submission, Submitted},
    text_input::TextOrIds,
};
use crate::random::fresh_id;

/// Approximate size of a number as JSON in bytes.
const NUMBER_BYTES: usize = 12;

/// Maximum number of texts in one request, as at OpenAI.
const MAX_INPUTS: usize = 2048;

/// A parsed request; types and ranges are checked.
struct EmbeddingRequest {
    model: Option<String>,
    sources: Vec<TextOrIds>,
    encode: EncodeOptions,
    /// Settings that all texts share; `prompt_ids` is empty.
    parts: RequestParts,
    /// `None`: the model's own.
    pooling: Option<Pooling>,
    scale: VectorScale,
    truncation: Option<Truncation>,
    format: Format,
    dimensions: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Numbers,
    Base64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingList {
    object: &'static str,
    data: Vec<WireEmbedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WireEmbedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    /// The numbers as little-endian f32 in base64, which OpenAI's Python client requests.
    Base64(String),
}

#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<TruncationDetails>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TruncationDetails {
    /// Number of tokens removed from the front by `truncate_prompt_tokens`; not counted as prompt tokens.
    truncated_tokens: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation =
    Operation::post("Turn texts into vectors", describe, ResponseBody::Json(schema_of::<EmbeddingList>));

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    EmbeddingRequest::from_fields(&mut Fields::describing(json!({ "input": "x" }), shape)).map(drop)
}

/// Handles an embedding request: one vector per text.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    // Parsed before the engine is needed, so that invalid requests get a 400 while the model is loading.
    let read = |mut fields: Fields| {
        let request = EmbeddingRequest::from_fields(&mut fields)?;
        Ok((request, ignored_params::of(&fields), fields.n_bytes(), fields.log().clone()))
    };
    let (mut request, ignored, n_bytes, log) = body.read(&state, read).await?;
    let chosen = adapters::choose(&state, request.model.as_deref())?;
    let arrived = log.arrived();
    let engine = state.engine_for(arrived)?.clone();
    let deadline = request.parts.deadline.and_then(|limit| Deadline::new(arrived, limit));
    let wait = TurnWait { tenant: request.parts.tenant, submits: true, deadline };
    request.parts.adapter = chosen.adapter(&state, &engine, wait).await?;
    let model = engine.model().clone();
    let (n_answers, format, truncates) = (request.sources.len(), request.format, request.truncation.is_some());
    let prepare = move || {
        let (requests, n_cut) = request.prepare(&model)?;
        let n_prompt = requests.iter().map(|request| request.parts().prompt_ids.len()).sum();
        let n_truncated = truncates.then_some(n_cut);
        let events = engine.submit_at(requests, arrived).map_err(|error| ApiError::not_submitted(error, "input"))?;
        Ok(Submitted { events, n_answers, arrived, n_prompt, n_truncated })
    };
    let submitted = state.prepare(Preparation::of_body(n_bytes), wait, prepare).await?;
    // The texts are tokenized, so the body's share of the memory limit can be released.
    drop(body);
    let name = chosen.name(&state).to_owned();
    log.work(|work| (work.id, work.model) = (Some(fresh_id("embd-")), Some(name.clone())));
    let submission = Submission::new(log, submitted);
    let usage = EmbeddingUsage::of(&submission);
    let vectors = collect(submission, n_answers).await?;
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    let write = move || {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| WireEmbedding {
            object: "embedding",
            index,
            embedding: format.write(vector),
        });
        Json(EmbeddingList { object: "list", data: data.collect(), model: name, usage }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}

impl EmbeddingUsage {
    fn of(submission: &Submission) -> Self {
        let usage = submission.usage();
        let details = usage.prompt_tokens_details.truncated_tokens;
        Self {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.total_tokens,
            prompt_tokens_details: details.map(|truncated_tokens| TruncationDetails { truncated_tokens }),
        }
    }
}

impl EmbeddingRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let sources = TextOrIds::from_fields(fields, "input")?;
        if sources.len() > MAX_INPUTS {
            let message = format!("`input` must hold at most {MAX_INPUTS} texts, got {}", sources.len());
            return Err(ApiError::invalid("input", message));
        }
        let formats = [("float", Format::Numbers), ("base64", Format::Base64)];
        let format = fields.one_of_or("encoding_format", &formats, Format::Numbers)?;
        let pooling = fields.one_of("pooling", &Pooling::ALL)?;
        let scale = if fields.flag_or("normalize", true)? { VectorScale::Unit } else { VectorScale::AsIs };
        let add_special_tokens = fields.flag_or("add_special_tokens", true)?;
        Ok(Self {
            model: fields.string("model")?,
            sources,
            encode: EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT },
            parts: RequestParts {
                tenant: fields.sender().tenant,
                priority: generation::priority(fields)?,
                deadline: generation::deadline(fields)?,
                ..RequestParts::default()
            },
            pooling,
            scale,
            truncation: prompt::truncation(fields)?,
            format,
            dimensions: fields.count("dimensions", 1..=usize::MAX)?,
        })
    }

    /// The engine requests, and the number of truncated tokens over all of them.
    fn prepare(self, model: &ServedModel) -> Result<(Vec<EngineRequest>, usize), ApiError> {
        // Truncating a vector gives an embedding only if the model was trained for it.
        let d_model = model.config.d_model;
        if let Some(dimensions) = self.dimensions.filter(|dimensions| *dimensions != d_model) {
            let allowed = format!("{d_model}, the length of the model's vectors");
            return Err(must_be("dimensions", &allowed, &json!(dimensions)));
        }
        let pooling = match self.pooling {
            Some(pooling) => pooling,
            None => own_pooling(model)?,
        };
        let strategy = Strategy::Embed { pooling, scale: self.scale };
        let mut n_cut = 0;
        let requests = self.sources.into_iter().map(|source| {
            if self.truncation.is_none() {
                source.check_length("input", model)?;
            }
            let token_ids = source.encode("input", &model.tokenizer, self.encode)?;
            let prompt = Prompt::cut(token_ids, self.truncation, [0, model.limits.max_seq_len]);
            n_cut += prompt.n_cut;
            let parts = RequestParts { prompt_ids: prompt.ids, strategy, ..self.parts.clone() };
            Ok(EngineRequest::new(parts, &model.limits)?)
        });
        let requests = requests.collect::<Result<_, ApiError>>()?;
        Ok((requests, n_cut))
    }
}

/// The pooling that the files of the model say, or the mean if they say nothing.
fn own_pooling(model: &ServedModel) -> Result<Pooling, ApiError> {
    match &model.own_pooling {
        OwnPooling::Unstated => Ok(Pooling::default()),
        OwnPooling::As(pooling) => Ok(*pooling),
        OwnPooling::Unsupported(what) => {
            let message = format!(
                "the model's own way of making vectors is not supported: {what}\nhint: with `pooling`, hidden states are \
                 combined in another way than the model was trained for"
            );
            Err(ApiError::invalid("pooling", message))
        }
    }
}

impl Format {
    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Numbers => Vector::Numbers(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

/// Collects the vectors in the order of the texts. Dropping the future cancels the remaining work.
async fn collect(mut submission: Submission, n_inputs: usize) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = vec![Vec::new(); n_inputs];
    while let Some(event) = poll_fn(|context| submission.poll_event(context)).await {
        let (index, event) = event?;
        if let (Event::Embedding(vector), Some(place)) = (event, vectors.get_mut(index)) {
            *place = vector;
        }
    }
    Ok(vectors)
}
