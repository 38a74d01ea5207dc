//! `POST /classify`: the classes of texts with their probabilities, in the shape of vLLM.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::ServedModel;
use hearth_model::gpt::pooling::Classifier;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::api::{
    error::ApiError,
    exchange::{
        prompt::{self, Truncation},
        vectors::{self, Common, Reading, Vectors},
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

/// Maximum number of texts of a request, as of texts to embed.
const MAX_INPUTS: usize = 2048;
/// Approximate size of a class as JSON in bytes.
const CLASS_BYTES: usize = 40;

#[derive(Debug, Serialize, JsonSchema)]
struct ClassList {
    id: String,
    object: &'static str,
    model: String,
    data: Vec<Classified>,
    usage: ClassUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Classified {
    index: usize,
    /// The most likely class.
    label: String,
    /// The probabilities of all classes, in the order of the model's labels.
    probs: Vec<f32>,
    num_classes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ClassUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation =
    Operation::post("Tell the classes of texts", describe, ResponseBody::Json(schema_of::<ClassList>));

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "input": "x" }), shape);
    texts(&mut fields)?;
    Common::from_fields(&mut fields).map(drop)
}

fn texts(fields: &mut Fields) -> Result<(Vec<TextOrIds>, Option<Truncation>), ApiError> {
    let sources = TextOrIds::from_fields(fields, "input")?;
    if sources.len() > MAX_INPUTS {
        let message = format!("`input` must hold at most {MAX_INPUTS} texts, got {}", sources.len());
        return Err(ApiError::invalid("input", message));
    }
    Ok((sources, prompt::truncation(fields)?))
}

/// Handles a request for classes.
pub(crate) async fn create(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| {
        let texts = texts(fields)?;
        Ok((Common::from_fields(fields)?, texts))
    };
    let want = |(sources, truncation): (Vec<TextOrIds>, Option<Truncation>), model: &ServedModel| {
        if model.classifier.as_ref().is_some_and(Classifier::is_of_tokens) {
            let message = "this model tells the classes of tokens, not of texts\nhint: use `/pooling`, with `\"task\": \"token_classify\"`";
            return Err(ApiError::invalid("model", message.to_owned()));
        }
        let Some(classifier) = model.classifier.clone() else {
            let message = "this model does not tell classes apart\nhint: serve one whose class ends in \
                           `ForSequenceClassification`"
                .to_owned();
            return Err(ApiError::invalid("model", message));
        };
        let reading = Reading { truncation, ..Reading::default() };
        let texts = sources.iter().map(|source| vectors::tokens(source, "input", model, &reading));
        let texts = texts.collect::<Result<_, ApiError>>()?;
        Ok((vectors::of_classifier(texts, &classifier), classifier))
    };
    let computed = vectors::compute(&state, body, ("input", "classify-"), read, want).await?;
    let Vectors { vectors, model, n_tokens, ignored, id, rest: classifier, .. } = computed;
    let n_bytes = vectors.len() * classifier.labels.len() * CLASS_BYTES;
    let write = move || {
        let classified = |(index, outputs): (usize, &Vec<f32>)| {
            let probs = classifier.scores_of(outputs);
            let best = (0..probs.len()).max_by(|one, other| probs[*one].total_cmp(&probs[*other]));
            let label = best.and_then(|best| classifier.labels.get(best)).cloned().unwrap_or_default();
            Classified { index, label, num_classes: probs.len(), probs }
        };
        let data = vectors.iter().enumerate().map(classified).collect();
        let usage = ClassUsage { prompt_tokens: n_tokens, total_tokens: n_tokens };
        Json(ClassList { id, object: "list", model, data, usage }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}
