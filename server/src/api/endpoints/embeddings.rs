//! `POST /v1/embeddings`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/embeddings), with
//! selectable pooling.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hearth_engine::ServedModel;
use hearth_model::{
    gpt::pooling::{DenseLayer, Pooling, VectorScale, VectorSteps},
    text::tokenizer::EncodeOptions,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::api::{
    error::ApiError,
    exchange::{
        prompt::{self, Truncation},
        text_use::TextUse,
        vectors::{self, Common, Reading, Vectors, Wanted},
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::{Fields, must_be},
        ignored_params,
        schema::Shape,
        state::AppState,
        text_input::TextOrIds,
    },
};

/// Approximate size of a number as JSON in bytes.
pub(crate) const NUMBER_BYTES: usize = 12;

/// Maximum number of texts in one request, as at OpenAI.
pub(crate) const MAX_INPUTS: usize = 2048;

/// A parsed request; types and ranges are checked.
struct EmbeddingRequest {
    sources: Vec<TextOrIds>,
    encode: EncodeOptions,
    text_use: TextUse,
    /// `None`: the model's own.
    pooling: Option<Pooling>,
    scale: VectorScale,
    truncation: Option<Truncation>,
    format: Format,
    dimensions: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
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
pub(super) struct TruncationDetails {
    /// Number of tokens that were cut; not counted as prompt tokens.
    pub(super) truncated_tokens: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation =
    Operation::post("Turn texts into vectors", describe, ResponseBody::Json(schema_of::<EmbeddingList>));

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "input": "x" }), shape);
    EmbeddingRequest::from_fields(&mut fields)?;
    Common::from_fields(&mut fields).map(drop)
}

/// Handles an embedding request: one vector per text.
pub(crate) async fn create(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| {
        let request = EmbeddingRequest::from_fields(fields)?;
        Ok((Common::from_fields(fields)?, request))
    };
    let computed = vectors::compute(&state, body, ("input", "embd-"), read, EmbeddingRequest::want).await?;
    let Vectors { vectors, model, n_tokens, n_cut, ignored, rest: (format, truncates), .. } = computed;
    let usage = EmbeddingUsage {
        prompt_tokens: n_tokens,
        total_tokens: n_tokens,
        prompt_tokens_details: truncates.then_some(TruncationDetails { truncated_tokens: n_cut }),
    };
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    let write = move || {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| WireEmbedding {
            object: "embedding",
            index,
            embedding: format.write(vector),
        });
        Json(EmbeddingList { object: "list", data: data.collect(), model, usage }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}

impl EmbeddingRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let sources = TextOrIds::from_fields(fields, "input")?;
        if sources.len() > MAX_INPUTS {
            let message = format!("`input` must hold at most {MAX_INPUTS} texts, got {}", sources.len());
            return Err(ApiError::invalid("input", message));
        }
        let format = Format::from_fields(fields)?;
        let pooling = fields.one_of("pooling", &Pooling::ALL)?;
        let scale = if fields.flag_or("normalize", true)? { VectorScale::Unit } else { VectorScale::AsIs };
        let add_special_tokens = fields.flag_or("add_special_tokens", true)?;
        Ok(Self {
            sources,
            encode: EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT },
            text_use: TextUse::from_fields(fields)?,
            pooling,
            scale,
            truncation: prompt::truncation(fields)?,
            format,
            dimensions: fields.count("dimensions", 1..=usize::MAX)?,
        })
    }

    /// The vectors to compute, and their format.
    fn want(self, model: &ServedModel) -> Result<(Wanted, (Format, bool)), ApiError> {
        let (own_pooling, layers) = match self.pooling {
            Some(pooling) => (pooling, Arc::default()),
            None => vectors::own_pooling(model)?,
        };
        check_dimensions("dimensions", self.dimensions, &layers, model)?;
        let has_ids = self.sources.iter().any(|source| matches!(source, TextOrIds::Ids(_)));
        if has_ids && self.text_use != TextUse::Unsaid {
            let message = "`input` must be texts with `prompt_name` or `input_type`, got token ids".to_owned();
            return Err(ApiError::invalid("input", message));
        }
        let prompt = self.text_use.prompt(model)?;
        let reading = Reading { encode: Some(self.encode), truncation: self.truncation, prompt, ..Reading::default() };
        let texts = self.sources.iter().map(|source| vectors::tokens(source, "input", model, &reading));
        let texts = texts.collect::<Result<_, ApiError>>()?;
        let steps = VectorSteps { layers, dimensions: self.dimensions, scale: self.scale };
        Ok((Wanted { texts, pooling: own_pooling, steps }, (self.format, self.truncation.is_some())))
    }
}

/// The numbers as little-endian f32 in base64.
pub(crate) fn in_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

/// Refuses numbers of components, given as `name`, that the model's vectors do not have.
pub(crate) fn check_dimensions(
    name: &'static str,
    dimensions: Option<usize>,
    layers: &[DenseLayer],
    model: &ServedModel,
) -> Result<(), ApiError> {
    let full = layers.last().map_or(model.config.d_model, DenseLayer::d_out);
    // A part of a vector is an embedding only if the model was trained for it, which chat models are not.
    let is_for_vectors = vectors::is_for_vectors(model);
    let is_possible = |dimensions: usize| dimensions == full || (is_for_vectors && dimensions < full);
    match dimensions.filter(|dimensions| !is_possible(*dimensions)) {
        None => Ok(()),
        Some(dimensions) => {
            let most = if is_for_vectors { "at most " } else { "" };
            let allowed = format!("{most}{full}, the length of the model's vectors");
            Err(must_be(name, &allowed, &json!(dimensions)))
        }
    }
}

impl Format {
    /// Reads `encoding_format`.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let formats = [("float", Self::Numbers), ("base64", Self::Base64)];
        fields.one_of_or("encoding_format", &formats, Self::Numbers)
    }

    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Numbers => Vector::Numbers(vector),
            Self::Base64 => Vector::Base64(in_base64(&vector)),
        }
    }
}
