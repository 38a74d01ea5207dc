//! `POST /v1/embeddings`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/embeddings), with a choice of
//! how hidden states become a vector.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hearth_model::tokenizer::EncodeOptions;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{
    error::ApiError,
    fields::{Body, Fields, must_be},
    generation,
    openapi::{Access, Answer, Operation, POST_REFUSALS, Request, answer},
    prompt::{self, Truncation},
    remarks,
    request_log::End,
    schema::Shape,
    state::{AppState, Preparation},
    texts::Source,
    tokens,
};
use crate::{
    engine::{
        Event, EventStream, ServedModel,
        embedding::{EmbedParts, EmbedRequest, Pooling, VectorScale},
    },
    random::fresh_id,
};

/// Bytes that a number takes as JSON, roughly.
const NUMBER_BYTES: usize = 12;

/// Most texts in one request; OpenAI's.
const MAX_INPUTS: usize = 2048;

/// What a client asks for, its types and ranges checked.
struct EmbeddingRequest {
    model: Option<String>,
    sources: Vec<Source>,
    encode: EncodeOptions,
    /// Of every text; without its tokens.
    parts: EmbedParts,
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
    /// The numbers as f32 in little-endian order, which OpenAI's Python client asks for.
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
    /// Cut off in front, where the request asked for it: not among the prompt tokens.
    truncated_tokens: usize,
}

/// How `/openapi.json` tells of it.
pub(crate) const OPERATION: Operation = Operation {
    summary: "Turn texts into vectors",
    request: Request::Body(describe),
    answer: Answer::Json(answer::<EmbeddingList>),
    refusals: POST_REFUSALS,
    access: Access::WithKey,
    links: &[],
};

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    EmbeddingRequest::from_fields(&mut Fields::describing(json!({ "input": "x" }), shape)).map(drop)
}

/// One vector per text.
pub(crate) async fn create(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    // Before the engine is asked for: what is wrong with a request is said while the model is loading, too.
    let read = |mut fields: Fields| {
        let request = EmbeddingRequest::from_fields(&mut fields)?;
        Ok((request, remarks::ignored(&fields), fields.n_bytes(), fields.log().clone()))
    };
    let (mut request, ignored, n_bytes, log) = body.read(&state, read).await?;
    let model = tokens::model(&state, request.model.take())?;
    let engine = state.working_engine()?.clone();
    let (n_inputs, format) = (request.sources.len(), request.format);
    let prepare = move || {
        let truncates = request.truncation.is_some();
        let (requests, n_cut) = request.prepare(&model)?;
        let n_tokens: usize = requests.iter().map(|request| request.parts().token_ids.len()).sum();
        let details = truncates.then_some(TruncationDetails { truncated_tokens: n_cut });
        let usage = EmbeddingUsage { prompt_tokens: n_tokens, total_tokens: n_tokens, prompt_tokens_details: details };
        Ok((usage, engine.embed(requests)?))
    };
    let (usage, events) = state.prepare(Preparation::of_body(n_bytes), prepare).await?;
    log.work(|work| {
        (work.id, work.model) = (Some(fresh_id("embd-")), Some(state.model_id().to_owned()));
        work.prompt_tokens = Some(usage.prompt_tokens);
    });
    let vectors = collect(events, n_inputs).await;
    let end = vectors.as_ref().map_or_else(|error| End::Failed(error.kind()), |_| End::Complete(vec!["stop"]));
    log.work(|work| work.end = Some(end));
    let vectors = vectors?;
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    let model = state.model_id().to_owned();
    let write = move || {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| WireEmbedding {
            object: "embedding",
            index,
            embedding: format.write(vector),
        });
        Json(EmbeddingList { object: "list", data: data.collect(), model, usage }).into_response()
    };
    Ok(remarks::told(ignored, state.write(n_bytes, write).await?))
}

impl EmbeddingRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let sources = Source::from_fields(fields, "input")?;
        if sources.len() > MAX_INPUTS {
            let message = format!("`input` must hold at most {MAX_INPUTS} texts, got {}", sources.len());
            return Err(ApiError::invalid("input", message));
        }
        let formats = [("float", Format::Numbers), ("base64", Format::Base64)];
        let format = fields.one_of_or("encoding_format", &formats, Format::Numbers)?;
        let poolings = [("mean", Pooling::Mean), ("last", Pooling::Last), ("max", Pooling::Max)];
        let pooling = fields.one_of_or("pooling", &poolings, Pooling::default())?;
        let normalizes = fields.flag_or("normalize", true)?;
        let add_special_tokens = fields.flag_or("add_special_tokens", true)?;
        Ok(Self {
            model: fields.string("model")?,
            sources,
            encode: EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT },
            parts: EmbedParts {
                token_ids: Vec::new(),
                pooling,
                scale: if normalizes { VectorScale::Unit } else { VectorScale::AsIs },
                priority: generation::priority(fields)?,
                deadline: generation::deadline(fields)?,
            },
            truncation: prompt::truncation(fields)?,
            format,
            dimensions: fields.count("dimensions", 1..=usize::MAX)?,
        })
    }

    /// The requests, and how many tokens were cut off in front of all of them.
    fn prepare(self, model: &ServedModel) -> Result<(Vec<EmbedRequest>, usize), ApiError> {
        // The first components of a vector are an embedding only where a model was trained to make them one.
        let d_model = model.config.d_model;
        if let Some(dimensions) = self.dimensions.filter(|dimensions| *dimensions != d_model) {
            let allowed = format!("{d_model}, the length of the model's vectors");
            return Err(must_be("dimensions", &allowed, &json!(dimensions)));
        }
        let max_seq_len = model.limits.max_seq_len;
        let n_kept = match self.truncation {
            None => usize::MAX,
            Some(Truncation::Fitting) => max_seq_len,
            Some(Truncation::Last(n)) => n,
        };
        let mut n_cut = 0;
        let requests = self.sources.into_iter().map(|source| {
            let mut token_ids = source.encode("input", &model.tokenizer, self.encode)?;
            let n_beyond = token_ids.len().saturating_sub(n_kept);
            token_ids.drain(..n_beyond);
            n_cut += n_beyond;
            Ok(EmbedRequest::new(EmbedParts { token_ids, ..self.parts.clone() }, &model.limits)?)
        });
        let requests = requests.collect::<Result<_, ApiError>>()?;
        Ok((requests, n_cut))
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

/// The vectors in the order of the texts. Dropping it cancels what is not done.
async fn collect(mut events: EventStream, n_inputs: usize) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = vec![Vec::new(); n_inputs];
    for _ in 0..n_inputs {
        let (index, event) = ApiError::or_event(events.recv().await)?;
        let Event::Embedding(vector) = event else {
            return Err(ApiError::internal("the engine gave something else than an embedding"));
        };
        if let Some(place) = vectors.get_mut(index) {
            *place = vector;
        }
    }
    Ok(vectors)
}
