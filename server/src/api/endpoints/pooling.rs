//! `POST /pooling`, as in [vLLM](https://docs.vllm.ai/en/latest/models/pooling_models): a vector of each text, a vector
//! of each token, or the probabilities of classes.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::{ServedModel, clock::unix_time};
use hearth_model::{
    TokenId,
    gpt::pooling::{Classifier, LateInteraction, OwnPooling, VectorScale, VectorSteps},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::embeddings::{Format, MAX_INPUTS, NUMBER_BYTES, check_dimensions, in_base64};
use crate::api::{
    error::ApiError,
    exchange::{
        late::{self, Side},
        prompt::{self, Truncation},
        text_use::TextUse,
        vectors::{self, Common, Reading, Vectors, Wanted},
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::Fields,
        ignored_params,
        schema::Shape,
        state::AppState,
        text_input::TextOrIds,
    },
};

/// The result to compute for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolingTask {
    /// A vector.
    Embed,
    /// A vector for each token.
    TokenEmbed,
    /// Probabilities of classes.
    Classify,
    /// The same of each token.
    TokenClassify,
}

const TASKS: [(&str, PoolingTask); 4] = [
    ("embed", PoolingTask::Embed),
    ("token_embed", PoolingTask::TokenEmbed),
    ("classify", PoolingTask::Classify),
    ("token_classify", PoolingTask::TokenClassify),
];

/// A parsed request.
struct PoolingRequest {
    sources: Vec<TextOrIds>,
    /// `None`: the task for which the model was made.
    task: Option<PoolingTask>,
    text_use: TextUse,
    truncation: Option<Truncation>,
    scale: VectorScale,
    dimensions: Option<usize>,
    format: Format,
}

/// Documents of a model for late interaction, by their tokens.
type LateDocuments = (Arc<LateInteraction>, Vec<Arc<[TokenId]>>);

/// The results to make from the computed vectors.
enum Made {
    Vectors,
    /// Rows of `width` numbers. Some tokens of late-interaction documents have no row.
    Tokens {
        width: usize,
        documents: Option<LateDocuments>,
    },
    Classes(Classifier),
    TokenClasses(Classifier),
}

#[derive(Debug, Serialize, JsonSchema)]
struct PooledList {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Pooled>,
    usage: PoolingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Pooled {
    index: usize,
    object: &'static str,
    data: PooledData,
}

/// Numbers: a list for a text, a list for each token, or all of them in base64.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum PooledData {
    Text(Vec<f32>),
    Tokens(Vec<Vec<f32>>),
    Base64(String),
}

#[derive(Debug, Serialize, JsonSchema)]
struct PoolingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation =
    Operation::post("Turn texts or their tokens into vectors", describe, ResponseBody::Json(schema_of::<PooledList>));

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "input": "x" }), shape);
    PoolingRequest::from_fields(&mut fields)?;
    Common::from_fields(&mut fields).map(drop)
}

/// Handles a request.
pub(crate) async fn create(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| {
        let request = PoolingRequest::from_fields(fields)?;
        Ok((Common::from_fields(fields)?, request))
    };
    let want = |request: PoolingRequest, model: &ServedModel| {
        let (wanted, made) = request.want(model)?;
        Ok((wanted, (made, request.format)))
    };
    let computed = vectors::compute(&state, body, ("input", "pool-"), read, want).await?;
    let Vectors { vectors, model, n_tokens, ignored, id, rest: (made, format), .. } = computed;
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    let write = move || {
        let data = vectors.into_iter().enumerate();
        let data =
            data.map(|(index, vector)| Pooled { index, object: "pooling", data: made.of(index, vector, format) });
        let usage = PoolingUsage { prompt_tokens: n_tokens, total_tokens: n_tokens };
        let data = data.collect();
        Json(PooledList { id, object: "list", created: unix_time().as_secs(), model, data, usage }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}

impl PoolingRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let sources = TextOrIds::from_fields(fields, "input")?;
        if sources.len() > MAX_INPUTS {
            let message = format!("`input` must hold at most {MAX_INPUTS} texts, got {}", sources.len());
            return Err(ApiError::invalid("input", message));
        }
        Ok(Self {
            sources,
            task: fields.one_of("task", &TASKS)?,
            text_use: TextUse::from_fields(fields)?,
            truncation: prompt::truncation(fields)?,
            scale: if fields.flag_or("normalize", true)? { VectorScale::Unit } else { VectorScale::AsIs },
            dimensions: fields.count("dimensions", 1..=usize::MAX)?,
            format: Format::from_fields(fields)?,
        })
    }

    fn want(&self, model: &ServedModel) -> Result<(Wanted, Made), ApiError> {
        let usual = match (&model.own_pooling, &model.classifier) {
            (OwnPooling::Late(_), _) => PoolingTask::TokenEmbed,
            (_, Some(classifier)) if classifier.is_of_tokens() => PoolingTask::TokenClassify,
            (_, Some(_)) => PoolingTask::Classify,
            _ => PoolingTask::Embed,
        };
        match self.task.unwrap_or(usual) {
            PoolingTask::Embed => {
                let (pooling, layers) = vectors::own_pooling(model)?;
                check_dimensions("dimensions", self.dimensions, &layers, model)?;
                let steps = VectorSteps { layers, dimensions: self.dimensions, scale: self.scale };
                Ok((Wanted { texts: self.texts(model)?, pooling, steps }, Made::Vectors))
            }
            PoolingTask::TokenEmbed => match &model.own_pooling {
                OwnPooling::Late(late) => self.late(late, model),
                _ => {
                    check_dimensions("dimensions", self.dimensions, &[], model)?;
                    let mut wanted = late::wanted(self.texts(model)?, Arc::default(), self.scale);
                    wanted.steps.dimensions = self.dimensions;
                    let width = self.dimensions.unwrap_or(model.config.d_model);
                    Ok((wanted, Made::Tokens { width, documents: None }))
                }
            },
            PoolingTask::Classify => {
                let Some(classifier) = model.classifier.clone().filter(|classifier| !classifier.is_of_tokens()) else {
                    let message =
                        "`task` must be another than `classify` with a model that does not tell classes apart";
                    return Err(ApiError::invalid("task", message.to_owned()));
                };
                Ok((vectors::of_classifier(self.texts(model)?, &classifier), Made::Classes(classifier)))
            }
            PoolingTask::TokenClassify => {
                let Some(classifier) = model.classifier.clone().filter(Classifier::is_of_tokens) else {
                    let message = "`task` must be another than `token_classify` with a model that does not tell the classes of tokens \
                                   apart\nhint: serve one whose class ends in `ForTokenClassification`";
                    return Err(ApiError::invalid("task", message.to_owned()));
                };
                Ok((vectors::of_classifier(self.texts(model)?, &classifier), Made::TokenClasses(classifier)))
            }
        }
    }

    fn texts(&self, model: &ServedModel) -> Result<Vec<vectors::Tokens>, ApiError> {
        let prompt = self.text_use.prompt(model)?;
        let reading = Reading { truncation: self.truncation, prompt, ..Reading::default() };
        self.sources.iter().map(|source| vectors::tokens(source, "input", model, &reading)).collect()
    }

    fn late(&self, late: &Arc<LateInteraction>, model: &ServedModel) -> Result<(Wanted, Made), ApiError> {
        check_dimensions("dimensions", self.dimensions, &late.layers, model)?;
        let side = if self.text_use.is_query() { Side::Query } else { Side::Document };
        let text = |source: &TextOrIds| match source {
            TextOrIds::Text(text) => late::tokens(text, side, late, ("input", model)),
            TextOrIds::Ids(ids) => Ok(vectors::Tokens::of(ids.clone())),
        };
        let texts = self.sources.iter().map(text).collect::<Result<Vec<_>, ApiError>>()?;
        let ids = texts.iter().map(|text| text.ids.clone()).collect();
        let mut wanted = late::wanted(texts, Arc::clone(&late.layers), self.scale);
        wanted.steps.dimensions = self.dimensions;
        let width = self.dimensions.unwrap_or_else(|| late::width(&late.layers, model));
        let documents = (side == Side::Document).then(|| (Arc::clone(late), ids));
        Ok((wanted, Made::Tokens { width, documents }))
    }
}

impl Made {
    /// The entry of the answer for the vector of text `index`.
    fn of(&self, index: usize, vector: Vec<f32>, format: Format) -> PooledData {
        let vector = match self {
            Self::Classes(classifier) => classifier.scores_of(&vector),
            Self::TokenClasses(classifier) => {
                let rows = vector.chunks_exact(classifier.labels.len().max(1));
                rows.flat_map(|outputs| classifier.scores_of(outputs)).collect()
            }
            Self::Tokens { width, documents: Some((late, ids)) } => late::kept(vector, &ids[index], late, *width),
            _ => vector,
        };
        match (self, format) {
            (_, Format::Base64) => PooledData::Base64(in_base64(&vector)),
            (Self::Tokens { width, .. }, _) => rows_of(&vector, *width),
            (Self::TokenClasses(classifier), _) => rows_of(&vector, classifier.labels.len()),
            _ => PooledData::Text(vector),
        }
    }
}

/// The numbers of tokens, `width` of each.
fn rows_of(numbers: &[f32], width: usize) -> PooledData {
    PooledData::Tokens(numbers.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect())
}
