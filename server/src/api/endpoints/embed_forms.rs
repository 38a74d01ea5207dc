//! Vectors of texts in other programs' shapes: `POST /v2/embed` ([Cohere](https://docs.cohere.com/reference/embed)) and `POST /embed`
//! ([text-embeddings-inference](https://huggingface.github.io/text-embeddings-inference)).

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::ServedModel;
use hearth_model::{
    gpt::pooling::{VectorScale, VectorSteps},
    text::tokenizer::CutAt,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::embeddings::{MAX_INPUTS, NUMBER_BYTES, check_dimensions, in_base64};
use crate::api::{
    error::ApiError,
    exchange::{
        prompt::Truncation,
        text_use::TextUse,
        vector_errors::{CohereError, InferenceError},
        vectors::{self, Common, Reading, Vectors, Wanted},
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::{Fields, must_be},
        ignored_params,
        schema::{self, Shape},
        state::AppState,
        text_input::TextOrIds,
    },
};

/// The entries of the endpoints in `/openapi.json`.
pub(crate) const COHERE: Operation = Operation::post(
    "Turn texts into vectors, with Cohere's API",
    describe_cohere,
    ResponseBody::Json(schema_of::<CohereVectors>),
)
.with_error(schema_of::<CohereError>);
pub(crate) const INFERENCE: Operation = Operation::post(
    "Turn texts into vectors, with the API of text-embeddings-inference",
    describe_inference,
    ResponseBody::Json(schema_of::<Vec<Vec<f32>>>),
)
.with_error(schema_of::<InferenceError>);

fn describe_cohere(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "texts": ["x"] }), shape);
    CohereRequest::from_fields(&mut fields)?;
    Common::from_fields(&mut fields).map(drop)
}

fn describe_inference(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "inputs": "x" }), shape);
    InferenceRequest::from_fields(&mut fields)?;
    Common::from_fields(&mut fields).map(drop)
}

/// The fields of both request shapes.
struct Texts {
    /// The parameter that has the texts.
    param: &'static str,
    sources: Vec<TextOrIds>,
    text_use: TextUse,
    truncation: Option<Truncation>,
    cut_at: CutAt,
    /// The number of components of a vector, with the name of its parameter.
    dimensions: (&'static str, Option<usize>),
    scale: VectorScale,
}

impl Texts {
    fn want(&self, model: &ServedModel) -> Result<Wanted, ApiError> {
        let (pooling, layers) = vectors::own_pooling(model)?;
        let (name, dimensions) = self.dimensions;
        check_dimensions(name, dimensions, &layers, model)?;
        let prompt = self.text_use.prompt(model)?;
        let (truncation, cut_at) = (self.truncation, Some(self.cut_at));
        let reading = Reading { truncation, cut_at, prompt, ..Reading::default() };
        let texts = self.sources.iter().map(|source| vectors::tokens(source, self.param, model, &reading));
        let texts = texts.collect::<Result<_, ApiError>>()?;
        Ok(Wanted { texts, pooling, steps: VectorSteps { layers, dimensions, scale: self.scale } })
    }
}

fn require_few(param: &'static str, n: usize) -> Result<(), ApiError> {
    match n {
        1..=MAX_INPUTS => Ok(()),
        n => Err(ApiError::invalid(param, format!("`{param}` must hold 1 to {MAX_INPUTS} texts, got {n}"))),
    }
}

/// A form of vectors that Cohere has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EmbeddingType {
    Float,
    /// The signs as bits, the first component highest.
    Unsigned,
    /// As unsigned bytes, minus 128.
    Signed,
    Base64,
}

const TYPES: [(&str, EmbeddingType); 4] = [
    ("float", EmbeddingType::Float),
    ("ubinary", EmbeddingType::Unsigned),
    ("binary", EmbeddingType::Signed),
    ("base64", EmbeddingType::Base64),
];

struct CohereRequest {
    texts: Texts,
    types: Vec<EmbeddingType>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CohereVectors {
    id: String,
    embeddings: CohereEmbeddings,
    /// The texts of the request.
    texts: Vec<String>,
    response_type: &'static str,
    meta: CohereMeta,
}

/// The vectors in each of the forms that were asked for.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct CohereEmbeddings {
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<Vec<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ubinary: Option<Vec<Vec<u8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Vec<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CohereMeta {
    api_version: CohereVersion,
    billed_units: CohereUnits,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CohereVersion {
    version: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CohereUnits {
    input_tokens: usize,
}

impl CohereRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let texts = fields.string_list("texts")?;
        let texts = match (texts, cohere_inputs(fields)?) {
            (Some(texts), None) | (None, Some(texts)) => texts,
            _ => return Err(ApiError::invalid("texts", "one of `texts` and `inputs` is required".to_owned())),
        };
        require_few("texts", texts.len())?;
        let most = fields.count("max_tokens", 1..=usize::MAX)?.map_or(Truncation::Fitting, Truncation::Last);
        let sides = [("NONE", None), ("START", Some(CutAt::Start)), ("END", Some(CutAt::End))];
        let side = fields.one_of_or("truncate", &sides, Some(CutAt::End))?;
        let names = fields.string_list("embedding_types")?.unwrap_or_else(|| vec!["float".to_owned()]);
        let kind = |name: &String| TYPES.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
        let types: Option<Vec<_>> = names.iter().map(kind).collect();
        let types = types.ok_or_else(|| {
            let known = TYPES.map(|(name, _)| format!("`{name}`")).join(", ");
            must_be("embedding_types", &format!("an array of {known}"), &json!(names))
        })?;
        Ok(Self {
            types,
            texts: Texts {
                param: "texts",
                sources: texts.into_iter().map(TextOrIds::Text).collect(),
                text_use: TextUse::of_input_type(fields)?,
                truncation: side.map(|_| most),
                cut_at: side.unwrap_or_default(),
                dimensions: ("output_dimension", fields.count("output_dimension", 1..=usize::MAX)?),
                scale: VectorScale::Unit,
            },
        })
    }
}

/// Reads `inputs`: objects with `content`, a list of parts, which must be texts. The parts of one are one text.
fn cohere_inputs(fields: &mut Fields) -> Result<Option<Vec<String>>, ApiError> {
    const ALLOWED: &str = "an array of objects with `content`, an array of parts with the `type` `text`";
    let schema = || schema::array(json!({ "type": "object" }), 1);
    let Some(value) = fields.take_as("inputs", schema) else { return Ok(None) };
    let part = |part: &Value| part["text"].as_str().filter(|_| part["type"] == "text").map(str::to_owned);
    let text = |input: &Value| -> Option<String> {
        let parts: Option<Vec<String>> = input["content"].as_array()?.iter().map(part).collect();
        Some(parts?.concat())
    };
    let texts: Option<Vec<String>> = value.as_array().and_then(|inputs| inputs.iter().map(text).collect());
    texts.map(Some).ok_or_else(|| must_be("inputs", ALLOWED, &value))
}

/// Handles a request in Cohere's shape.
pub(crate) async fn cohere(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| {
        let request = CohereRequest::from_fields(fields)?;
        Ok((Common::from_fields(fields)?, request))
    };
    let want = |request: CohereRequest, model: &ServedModel| Ok((request.texts.want(model)?, request));
    let computed = vectors::compute(&state, body, ("texts", "embd-"), read, want).await?;
    let Vectors { vectors, n_tokens, ignored, id, rest: request, .. } = computed;
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES * request.types.len();
    let write = move || {
        let mut embeddings = CohereEmbeddings::default();
        for kind in &request.types {
            let bits = || vectors.iter().map(|vector| signs(vector));
            match kind {
                EmbeddingType::Float => embeddings.float = Some(vectors.clone()),
                EmbeddingType::Unsigned => embeddings.ubinary = Some(bits().collect()),
                EmbeddingType::Signed => {
                    let signed = |bytes: Vec<u8>| bytes.into_iter().map(|byte| (byte ^ 0x80).cast_signed()).collect();
                    embeddings.binary = Some(bits().map(signed).collect());
                }
                EmbeddingType::Base64 => {
                    embeddings.base64 = Some(vectors.iter().map(|vector| in_base64(vector)).collect());
                }
            }
        }
        let texts = request.texts.sources.into_iter().filter_map(|source| match source {
            TextOrIds::Text(text) => Some(text),
            TextOrIds::Ids(_) => None,
        });
        let meta = CohereMeta {
            api_version: CohereVersion { version: "2" },
            billed_units: CohereUnits { input_tokens: n_tokens },
        };
        let texts = texts.collect();
        Json(CohereVectors { id, embeddings, texts, response_type: "embeddings_by_type", meta }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}

/// A bit for each component, set if it is above 0; eight in a byte, the first highest.
fn signs(vector: &[f32]) -> Vec<u8> {
    let byte = |values: &[f32]| {
        (0..8).fold(0, |byte, at| byte << 1 | u8::from(values.get(at).is_some_and(|value| *value > 0.0)))
    };
    vector.chunks(8).map(byte).collect()
}

struct InferenceRequest(Texts);

impl InferenceRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let sources = TextOrIds::from_fields(fields, "inputs")?;
        require_few("inputs", sources.len())?;
        let truncates = fields.flag_or("truncate", false)?;
        // In upper case in the specification, in lower case in the original implementation.
        let sides = [("right", CutAt::End), ("left", CutAt::Start), ("Right", CutAt::End), ("Left", CutAt::Start)];
        let cut_at = fields.one_of_or("truncation_direction", &sides, CutAt::End)?;
        Ok(Self(Texts {
            param: "inputs",
            sources,
            text_use: TextUse::named(fields)?,
            truncation: truncates.then_some(Truncation::Fitting),
            cut_at,
            dimensions: ("dimensions", fields.count("dimensions", 1..=usize::MAX)?),
            scale: if fields.flag_or("normalize", true)? { VectorScale::Unit } else { VectorScale::AsIs },
        }))
    }
}

/// Handles a request in the shape of text-embeddings-inference.
pub(crate) async fn inference(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| {
        let request = InferenceRequest::from_fields(fields)?;
        Ok((Common::from_fields(fields)?, request))
    };
    let want = |InferenceRequest(texts): InferenceRequest, model: &ServedModel| Ok((texts.want(model)?, ()));
    let Vectors { vectors, ignored, .. } = vectors::compute(&state, body, ("inputs", "embd-"), read, want).await?;
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    let write = move || Json(vectors).into_response();
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_components_are_bits_the_first_highest() {
        assert_eq!(signs(&[1.0, -1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 2.0, 3.0]), [0b1001_0001, 0b1000_0000]);
    }
}
