//! `POST /v1/rerank`, `/v2/rerank` and `/rerank`: documents ordered by relevance to a query, in the shapes of vLLM,
//! Jina, [Cohere](https://docs.cohere.com/reference/rerank) and
//! [text-embeddings-inference](https://huggingface.github.io/text-embeddings-inference). `POST /v1/score`: scores of
//! pairs.
//!
//! A model that was trained to compare texts (a cross-encoder) reads both at once; the vectors of an embedding model
//! are compared by their cosine.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    gpt::pooling::{ClassScores, Classifier, LateInteraction, OwnPooling, VectorScale, VectorSteps, max_sim},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::embeddings::TruncationDetails;
use crate::api::{
    error::ApiError,
    exchange::{
        cutting::Cutting,
        late::{self, Side},
        prompt::Truncation,
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

/// Maximum number of documents of a request, as of texts to embed.
const MAX_DOCUMENTS: usize = 2048;
/// Approximate size of a result as JSON, without its text, in bytes.
const RESULT_BYTES: usize = 80;

/// A parsed request of any of the shapes.
struct RerankRequest {
    query: String,
    documents: Vec<String>,
    top_n: usize,
    returns_texts: bool,
    /// As the model's last layer has them.
    raw_scores: bool,
    shape: RerankShape,
    cutting: Cutting,
}

/// The parameters that have the texts of pairs, and what happens to long ones.
#[derive(Clone, Copy, Debug)]
struct Given {
    params: [&'static str; 2],
    cutting: Cutting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RerankShape {
    /// The shape of vLLM, Jina and Cohere; their clients read the same fields.
    Results,
    /// The shape of text-embeddings-inference: a list.
    List,
}

/// How scores are computed from vectors.
enum Scorer {
    /// Each is a score already, up to the classifier's last function.
    Pairs(Classifier),
    /// The first is the query's, the others are compared with it.
    Cosines,
    /// As [`Cosines`](Self::Cosines), for late-interaction models, with vectors of `width` numbers for tokens; `texts`
    /// has the tokens of all texts, in the order of the vectors.
    Late { late: Arc<LateInteraction>, width: usize, texts: Vec<Arc<[TokenId]>> },
}

#[derive(Debug, Serialize, JsonSchema)]
struct RerankResults {
    id: String,
    model: String,
    usage: ScoreUsage,
    results: Vec<RerankResult>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RerankResult {
    /// The place of the document in the request.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Document {
    text: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RankedText {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ScoreUsage {
    prompt_tokens: usize,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<TruncationDetails>,
}

impl ScoreUsage {
    /// `n_cut` tokens were cut, if any may be.
    fn new(n_tokens: usize, n_cut: usize, cutting: Cutting) -> Self {
        let prompt_tokens_details = cutting.cuts().then_some(TruncationDetails { truncated_tokens: n_cut });
        Self { prompt_tokens: n_tokens, total_tokens: n_tokens, prompt_tokens_details }
    }
}

/// An answer in either shape.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum RerankAnswer {
    Results(RerankResults),
    List(Vec<RankedText>),
}

#[derive(Debug, Serialize, JsonSchema)]
struct ScoreList {
    id: String,
    object: &'static str,
    model: String,
    data: Vec<Score>,
    usage: ScoreUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Score {
    index: usize,
    object: &'static str,
    score: f32,
}

/// The entries of the endpoints in `/openapi.json`.
pub(crate) const RERANK: Operation =
    Operation::post("Order documents by a query", describe, ResponseBody::Json(schema_of::<RerankAnswer>));
pub(crate) const SCORE: Operation =
    Operation::post("Score pairs of texts", describe_score, ResponseBody::Json(schema_of::<ScoreList>));

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "query": "x", "documents": ["y"] }), shape);
    RerankRequest::from_fields(&mut fields, false)?;
    Common::from_fields(&mut fields).map(drop)
}

fn describe_score(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let mut fields = Fields::describing(json!({ "text_1": "x", "text_2": ["y"] }), shape);
    pairs(&mut fields)?;
    Cutting::from_fields(&mut fields)?;
    Common::from_fields(&mut fields).map(drop)
}

/// Handles a request to order documents.
pub(crate) async fn rerank(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    ranked(state, body, false).await
}

/// The same in Cohere's API, which cuts long texts.
pub(crate) async fn cohere(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    ranked(state, body, true).await
}

async fn ranked(state: AppState, body: Body, is_cohere: bool) -> Result<Response, ApiError> {
    let read = move |fields: &mut Fields| {
        let request = RerankRequest::from_fields(fields, is_cohere)?;
        Ok((Common::from_fields(fields)?, request))
    };
    let want = |request: RerankRequest, model: &ServedModel| {
        let documents_param = if request.shape == RerankShape::List { "texts" } else { "documents" };
        let given = Given { params: ["query", documents_param], cutting: request.cutting };
        let documents: Vec<&str> = request.documents.iter().map(String::as_str).collect();
        let classifier = if request.raw_scores { Some(raw(model)?) } else { model.classifier.clone() };
        let query = request.query.as_str();
        let (wanted, scorer) = match classifier {
            Some(classifier) => of_pairs(&vec![query; documents.len()], &documents, given, model, classifier)?,
            None => of_embeddings(&[query], &documents, given, model)?,
        };
        Ok((wanted, (request, scorer)))
    };
    let computed = vectors::compute(&state, body, ("documents", "rerank-"), read, want).await?;
    let Vectors { vectors, model, n_tokens, n_cut, ignored, id, rest: (request, scorer) } = computed;
    let n_bytes = RESULT_BYTES * vectors.len() + request.documents.iter().map(String::len).sum::<usize>();
    let write = move || {
        let scores = scorer.scores(&vectors, 1);
        let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
        // Equal scores keep their order.
        ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        ranked.truncate(request.top_n);
        let text = |index: usize| request.returns_texts.then(|| request.documents[index].clone());
        let answer = match request.shape {
            RerankShape::Results => RerankAnswer::Results(RerankResults {
                id,
                model,
                usage: ScoreUsage::new(n_tokens, n_cut, request.cutting),
                results: ranked
                    .into_iter()
                    .map(|(index, relevance_score)| RerankResult {
                        index,
                        relevance_score,
                        document: text(index).map(|text| Document { text }),
                    })
                    .collect(),
            }),
            RerankShape::List => RerankAnswer::List(
                ranked.into_iter().map(|(index, score)| RankedText { index, score, text: text(index) }).collect(),
            ),
        };
        Json(answer).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_bytes, write).await?))
}

/// Handles a request for scores of pairs.
pub(crate) async fn score(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| {
        let (pairs, cutting) = (pairs(fields)?, Cutting::from_fields(fields)?);
        Ok((Common::from_fields(fields)?, (pairs, cutting)))
    };
    let want = |([first, second], cutting): ([Vec<String>; 2], Cutting), model: &ServedModel| {
        let given = Given { params: ["text_1", "text_2"], cutting };
        let [first, second] = [&first, &second].map(|texts| texts.iter().map(String::as_str).collect::<Vec<_>>());
        let n_first = first.len();
        let (wanted, scorer) = match model.classifier.clone() {
            Some(classifier) => {
                let first = if n_first == 1 { vec![first[0]; second.len()] } else { first };
                of_pairs(&first, &second, given, model, classifier)?
            }
            None => of_embeddings(&first, &second, given, model)?,
        };
        Ok((wanted, (scorer, n_first, cutting)))
    };
    let computed = vectors::compute(&state, body, ("text_2", "score-"), read, want).await?;
    let Vectors { vectors, model, n_tokens, n_cut, ignored, id, rest: (scorer, n_first, cutting) } = computed;
    let write = move || {
        let scores = scorer.scores(&vectors, n_first).into_iter().enumerate();
        let data = scores.map(|(index, score)| Score { index, object: "score", score }).collect();
        let usage = ScoreUsage::new(n_tokens, n_cut, cutting);
        Json(ScoreList { id, object: "list", model, data, usage }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(RESULT_BYTES * MAX_DOCUMENTS, write).await?))
}

/// The model's classifier without its last function.
fn raw(model: &ServedModel) -> Result<Classifier, ApiError> {
    match model.classifier.clone() {
        Some(classifier) => Ok(Classifier { scores: ClassScores::Logits, ..classifier }),
        None => {
            let message = "`raw_scores` must be false with a model that was not trained to compare texts".to_owned();
            Err(ApiError::invalid("raw_scores", message))
        }
    }
}

/// Pairs; the model reads both texts of a pair at once.
fn of_pairs(
    first: &[&str],
    second: &[&str],
    Given { params: [_, param], cutting }: Given,
    model: &ServedModel,
    classifier: Classifier,
) -> Result<(Wanted, Scorer), ApiError> {
    if classifier.is_of_tokens() {
        let message = "this model tells the classes of tokens, and has no score for a pair of texts\nhint: use `/pooling`, with \
                       `\"task\": \"token_classify\"`";
        return Err(ApiError::invalid("model", message.to_owned()));
    }
    if classifier.labels.len() != 1 {
        let n = classifier.labels.len();
        let message = format!(
            "this model tells {n} classes apart, and has no single score for a pair of texts\nhint: use `/classify`"
        );
        return Err(ApiError::invalid("model", message));
    }
    let most = cutting.most(model.limits.max_seq_len);
    let pair = |(index, (first, second)): (usize, (&&str, &&str))| {
        let (second, n_cut) = cutting.document(second, param, model)?;
        let mut text = vectors::pair_tokens([first, &second], &classifier.pair_form, (param, most), model)?;
        cutting.check(&text, (param, index), "with the other text of its pair")?;
        text.n_cut += n_cut;
        Ok(text)
    };
    let texts = first.iter().zip(second).enumerate().map(pair).collect::<Result<Vec<_>, ApiError>>()?;
    Ok((vectors::of_classifier(texts, &classifier), Scorer::Pairs(classifier)))
}

/// Texts whose vectors are compared.
fn of_embeddings(
    first: &[&str],
    second: &[&str],
    given: Given,
    model: &ServedModel,
) -> Result<(Wanted, Scorer), ApiError> {
    let Given { params: [param, other], cutting } = given;
    if let OwnPooling::Late(late) = &model.own_pooling {
        return of_tokens(first, second, late, (given, model));
    }
    if !vectors::is_for_vectors(model) {
        let message =
            "this model was not trained to compare texts, and its files do not say how it makes vectors\nhint: serve \
                       a reranker or an embedding model"
                .to_owned();
        return Err(ApiError::invalid("model", message));
    }
    let (pooling, layers) = vectors::own_pooling(model)?;
    // Cut to what fits to know by how much, and refused if it must not be.
    let truncation = cutting.truncation().unwrap_or(Truncation::Fitting);
    let read = |text: &str, prompt, place| {
        let reading = Reading { truncation: Some(truncation), prompt, ..Reading::default() };
        let text = vectors::tokens(&TextOrIds::Text(text.to_owned()), param, model, &reading)?;
        cutting.check(&text, place, "by itself").map(|()| text)
    };
    let queries = first.iter().enumerate().map(|(index, text)| read(text, model.prompts.query(), (param, index)));
    let documents = second.iter().enumerate().map(|(index, text)| {
        let (text, n_cut) = cutting.document(text, other, model)?;
        let mut text = read(&text, model.prompts.document(), (other, index))?;
        text.n_cut += n_cut;
        Ok(text)
    });
    let texts = queries.chain(documents).collect::<Result<Vec<_>, ApiError>>()?;
    let steps = VectorSteps { layers, dimensions: None, scale: VectorScale::Unit };
    Ok((Wanted { texts, pooling, steps }, Scorer::Cosines))
}

/// Texts with a vector for each token.
fn of_tokens(
    first: &[&str],
    second: &[&str],
    late: &Arc<LateInteraction>,
    (Given { params: [param, other], cutting }, model): (Given, &ServedModel),
) -> Result<(Wanted, Scorer), ApiError> {
    let read = |text: &str, side, place: (&'static str, usize)| {
        let text = late::tokens(text, side, late, (place.0, model))?;
        cutting.check(&text, place, "by itself").map(|()| text)
    };
    let queries = first.iter().enumerate().map(|(index, text)| read(text, Side::Query, (param, index)));
    let documents = second.iter().enumerate().map(|(index, text)| {
        let (text, n_cut) = cutting.document(text, other, model)?;
        let mut text = read(&text, Side::Document, (other, index))?;
        text.n_cut += n_cut;
        Ok(text)
    });
    let texts = queries.chain(documents).collect::<Result<Vec<_>, ApiError>>()?;
    let ids = texts.iter().map(|text| text.ids.clone()).collect();
    let width = late::width(&late.layers, model);
    let wanted = late::wanted(texts, Arc::clone(&late.layers), VectorScale::Unit);
    Ok((wanted, Scorer::Late { late: Arc::clone(late), width, texts: ids }))
}

impl Scorer {
    /// The scores of pairs. If vectors are compared, the first `n_first` are the vectors of the first texts: one for
    /// all pairs, or one per pair.
    fn scores(&self, vectors: &[Vec<f32>], n_first: usize) -> Vec<f32> {
        match self {
            Self::Pairs(classifier) => {
                let scores = vectors.iter().map(|outputs| classifier.scores_of(outputs).first().copied());
                scores.map(Option::unwrap_or_default).collect()
            }
            Self::Late { late, width, texts } => {
                let n_first = n_first.min(vectors.len());
                let (first, second) = vectors.split_at(n_first);
                let documents = second.iter().zip(&texts[n_first..]);
                let documents = documents.map(|(vectors, ids)| late::kept(vectors.clone(), ids, late, *width));
                first.iter().cycle().zip(documents).map(|(query, document)| max_sim(query, &document, *width)).collect()
            }
            Self::Cosines => {
                let (first, second) = vectors.split_at(n_first.min(vectors.len()));
                let product = |(one, other): (&Vec<f32>, &Vec<f32>)| {
                    one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
                };
                first.iter().cycle().zip(second).map(product).collect()
            }
        }
    }
}

impl RerankRequest {
    fn from_fields(fields: &mut Fields, is_cohere: bool) -> Result<Self, ApiError> {
        let query = fields.require("query", Fields::string)?;
        let shape = if fields.has("texts") { RerankShape::List } else { RerankShape::Results };
        let (name, returned) = match shape {
            RerankShape::Results => ("documents", "return_documents"),
            RerankShape::List => ("texts", "return_text"),
        };
        let documents = documents(fields, name)?;
        let raw_scores = fields.flag_or("raw_scores", false)?;
        let returns_texts = fields.flag_or(returned, false)?;
        let top_n = fields.count("top_n", 1..=usize::MAX)?.unwrap_or(documents.len());
        let cutting = match shape {
            RerankShape::Results => Cutting::of_documents(fields, is_cohere)?,
            RerankShape::List => Cutting::of_texts(fields)?,
        };
        Ok(Self { query, documents, top_n, returns_texts, raw_scores, shape, cutting })
    }
}

/// Reads a list of texts, each a string or an object with `text`.
fn documents(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, ApiError> {
    const ALLOWED: &str = "an array of strings, or of objects with the string `text`";
    let schema = || {
        let object = json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] });
        schema::array(schema::any_of([schema::string(), object]), 1)
    };
    let value = fields.require_as(name, ALLOWED, schema)?;
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        value => value.get("text").and_then(Value::as_str).map(str::to_owned),
    };
    let texts: Option<Vec<String>> = value.as_array().and_then(|items| items.iter().map(text).collect());
    let texts = texts.filter(|texts| !texts.is_empty()).ok_or_else(|| must_be(name, ALLOWED, &value))?;
    if texts.len() > MAX_DOCUMENTS {
        let message = format!("`{name}` must hold at most {MAX_DOCUMENTS} texts, got {}", texts.len());
        return Err(ApiError::invalid(name, message));
    }
    Ok(texts)
}

/// Reads the two lists of texts; the first may be a single text.
fn pairs(fields: &mut Fields) -> Result<[Vec<String>; 2], ApiError> {
    let mut texts = |name: &'static str| -> Result<Vec<String>, ApiError> {
        let list =
            fields.require(name, |fields, name| Ok(Some(fields.strings(name)?).filter(|list| !list.is_empty())))?;
        match list.len() {
            1..=MAX_DOCUMENTS => Ok(list),
            n => Err(ApiError::invalid(name, format!("`{name}` must hold 1 to {MAX_DOCUMENTS} texts, got {n}"))),
        }
    };
    let (first, second) = (texts("text_1")?, texts("text_2")?);
    if first.len() != 1 && first.len() != second.len() {
        let (n_first, n_second) = (first.len(), second.len());
        let message = format!("`text_1` must be one text, or as many as `text_2`, {n_second}, got {n_first}");
        return Err(ApiError::invalid("text_1", message));
    }
    Ok([first, second])
}
