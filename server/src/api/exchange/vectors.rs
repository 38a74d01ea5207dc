//! Requests for vectors of texts, which the engine computes in one pass each: embeddings, scores of pairs, classes.

use std::{borrow::Cow, cmp::Reverse, future::poll_fn, sync::Arc};

use axum::http::HeaderValue;
use hearth_engine::{
    Event, ServedModel,
    request::{EngineRequest, RequestParts, Strategy},
};
use hearth_model::{
    TokenId,
    gpt::pooling::{Classifier, DenseLayer, OwnPooling, PairForm, Pooling, VectorScale, VectorSteps},
    text::tokenizer::{CutAt, EncodeOptions, EncodedTexts},
};

use super::{
    adapters, generation,
    prompt::{Prompt, Truncation},
    submission::{Submission, Submitted},
};
use crate::{
    api::{
        error::ApiError,
        guard::preparation::{AdmissionWait, Deadline, WorkClass},
        wire::{body::Body, fields::Fields, ignored_params, state::AppState, text_input::TextOrIds},
    },
    random::fresh_id,
};

/// Common parts of these requests.
pub(crate) struct Common {
    model: Option<String>,
    /// Settings that all texts share; `prompt_ids` is empty.
    parts: RequestParts,
}

/// A text, or a pair of texts, as tokens.
pub(crate) struct Tokens {
    pub(crate) ids: Arc<[TokenId]>,
    pub(crate) second_text: Option<usize>,
    /// Tokens that were cut.
    pub(crate) n_cut: usize,
    /// Tokens at the end that others do not see.
    pub(crate) n_hidden: usize,
}

/// How the texts of a request are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading<'a> {
    pub(crate) encode: Option<EncodeOptions>,
    /// `None`: texts that are too long are rejected.
    pub(crate) truncation: Option<Truncation>,
    /// `None`: at the end for embedding models, at the start for others.
    pub(crate) cut_at: Option<CutAt>,
    /// The prompt before each text.
    pub(crate) prompt: &'a str,
}

/// The texts, and how their vectors are computed.
pub(crate) struct Wanted {
    pub(crate) texts: Vec<Tokens>,
    pub(crate) pooling: Pooling,
    pub(crate) steps: VectorSteps,
}

/// The vectors in the order of the texts.
pub(crate) struct Vectors<R> {
    pub(crate) vectors: Vec<Vec<f32>>,
    /// The name of the model or adapter that made them.
    pub(crate) model: String,
    pub(crate) n_tokens: usize,
    /// Tokens that were cut from the texts.
    pub(crate) n_cut: usize,
    /// The header that names parameters that were ignored.
    pub(crate) ignored: Option<HeaderValue>,
    pub(crate) id: String,
    /// Further data for the answer.
    pub(crate) rest: R,
}

impl Common {
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            model: fields.string("model")?,
            parts: RequestParts {
                tenant: fields.sender().tenant,
                priority: generation::priority(fields)?,
                deadline: generation::deadline(fields)?,
                ..RequestParts::default()
            },
        })
    }
}

/// Reads the request with `read`, and computes the vectors that `want` selects. `param` is the parameter with the
/// texts.
pub(crate) async fn compute<T: Send + 'static, R: Send + 'static>(
    state: &AppState,
    mut body: Body,
    (param, id_prefix): (&'static str, &str),
    read: impl FnOnce(&mut Fields) -> Result<(Common, T), ApiError> + Send + 'static,
    want: impl FnOnce(T, &ServedModel) -> Result<(Wanted, R), ApiError> + Send + 'static,
) -> Result<Vectors<R>, ApiError> {
    // Parsed before the engine is needed, so that invalid requests get a 400 while the model is loading.
    let read = |mut fields: Fields| {
        let request = read(&mut fields)?;
        Ok((request, ignored_params::of(&fields), fields.n_bytes(), fields.log().clone()))
    };
    let ((common, request), ignored, n_bytes, log) = body.read(state, read).await?;
    let Common { model: name, mut parts } = common;
    let chosen = adapters::choose(state, name.as_deref())?;
    let arrived = log.arrived();
    let engine = state.engine_for(arrived)?.clone();
    let deadline = parts.deadline.and_then(|limit| Deadline::new(arrived, limit));
    let wait = AdmissionWait { tenant: parts.tenant, submits: true, deadline };
    parts.adapter = chosen.adapter(state, &engine, wait).await?;
    let model = engine.model().clone();
    let prepare = move || {
        let (Wanted { texts, pooling, steps }, rest) = want(request, &model)?;
        let n_cut = texts.iter().map(|text| text.n_cut).sum::<usize>();
        let n_prompt = texts.iter().map(|text| text.ids.len()).sum();
        // Long texts first, so that a step has texts of similar length.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&place| Reverse(texts[place].ids.len()));
        let requests = order.iter().map(|&place| {
            let text = &texts[place];
            let parts = RequestParts {
                prompt_ids: text.ids.clone(),
                second_text: text.second_text,
                n_hidden: text.n_hidden,
                strategy: Strategy::Embed { pooling },
                vector: steps.clone(),
                ..parts.clone()
            };
            EngineRequest::new(parts, &model.limits).map_err(|error| error.with_prompt_param(param).into())
        });
        let requests: Vec<_> = requests.collect::<Result<_, ApiError>>()?;
        let n_answers = requests.len();
        let events = engine.submit_at(requests, arrived).map_err(|error| ApiError::not_submitted(error, param))?;
        Ok((Submitted { events, n_answers, arrived, n_prompt, n_truncated: None }, (n_cut, order, rest)))
    };
    let (submitted, (n_cut, order, rest)) = state.prepare(WorkClass::of_body(n_bytes), wait, prepare).await?;
    // The texts are tokenized, so the body's share of the memory limit can be released.
    drop(body);
    let (name, id) = (chosen.name(state).to_owned(), fresh_id(id_prefix));
    log.work(|work| (work.id, work.model) = (Some(id.clone()), Some(name.clone())));
    let submission = Submission::new(log, submitted);
    let n_tokens = submission.usage().prompt_tokens;
    let vectors = collect(submission, &order).await?;
    Ok(Vectors { vectors, model: name, n_tokens, n_cut, ignored, id, rest })
}

/// Collects the vectors in the order of the texts; `order` lists the texts in the order of submission. Dropping the
/// future cancels the remaining work.
async fn collect(mut submission: Submission, order: &[usize]) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = vec![Vec::new(); order.len()];
    while let Some(event) = poll_fn(|context| submission.poll_event(context)).await {
        let (index, event) = event?;
        if let (Event::Embedding(vector), Some(&place)) = (event, order.get(index)) {
            vectors[place] = vector;
        }
    }
    Ok(vectors)
}

/// The tokens of a text of the parameter `param`.
pub(crate) fn tokens(
    source: &TextOrIds,
    param: &'static str,
    model: &ServedModel,
    reading: &Reading<'_>,
) -> Result<Tokens, ApiError> {
    let max_seq_len = model.limits.max_seq_len;
    let source: Cow<'_, TextOrIds> = match source {
        TextOrIds::Text(text) if !reading.prompt.is_empty() => {
            Cow::Owned(TextOrIds::Text(format!("{}{text}", reading.prompt)))
        }
        source => Cow::Borrowed(source),
    };
    let encode = reading.encode.unwrap_or(EncodeOptions::PROMPT);
    let Some(truncation) = reading.truncation else {
        source.check_length(param, model)?;
        let ids = source.encode(param, &model.tokenizer, encode)?;
        return Ok(Tokens::of(ids));
    };
    let most = match truncation {
        Truncation::Fitting => max_seq_len,
        Truncation::Last(n) => n.min(max_seq_len),
    };
    let cut_at = reading.cut_at.or_else(|| is_for_vectors(model).then_some(CutAt::End));
    match (source.as_ref(), cut_at) {
        (TextOrIds::Text(text), Some(cut_at)) => {
            let encoded = model.tokenizer.encode_within(text, (most, cut_at), encode);
            encoded.map(Tokens::from).map_err(|error| cannot_encode(param, &error))
        }
        (TextOrIds::Ids(ids), Some(CutAt::End)) => {
            let n_kept = most.min(ids.len());
            Ok(Tokens { n_cut: ids.len() - n_kept, ..Tokens::of(ids[..n_kept].to_vec()) })
        }
        (source, _) => {
            let ids = source.encode(param, &model.tokenizer, encode)?;
            let prompt = Prompt::cut(ids, Some(Truncation::Last(most)), [0, max_seq_len]);
            Ok(Tokens { n_cut: prompt.n_cut, ..Tokens::of(prompt.ids) })
        }
    }
}

/// Whether the model was made to compute vectors or scores of texts.
pub(crate) fn is_for_vectors(model: &ServedModel) -> bool {
    model.limits.is_encoder || model.own_pooling != OwnPooling::Unstated
}

/// The tokens of a pair of texts, of which the parameter `param` has one, cut to `most` tokens.
pub(crate) fn pair_tokens(
    texts: [&str; 2],
    form: &PairForm,
    (param, most): (&'static str, usize),
    model: &ServedModel,
) -> Result<Tokens, ApiError> {
    let encoded = match form {
        PairForm::Joined => model.tokenizer.encode_pair(texts, most, EncodeOptions::PROMPT),
        PairForm::Within(around) => model.tokenizer.encode_pair_within(texts, around, most),
    };
    encoded.map(Tokens::from).map_err(|error| cannot_encode(param, &error))
}

pub(crate) fn cannot_encode(param: &'static str, error: &hearth_model::Error) -> ApiError {
    ApiError::invalid(param, format!("`{param}` cannot be encoded: {error}"))
}

impl From<EncodedTexts> for Tokens {
    fn from(encoded: EncodedTexts) -> Self {
        let EncodedTexts { token_ids, second_text, n_cut } = encoded;
        Self { second_text, n_cut, ..Self::of(token_ids) }
    }
}

impl Tokens {
    /// A text that is not cut.
    pub(crate) fn of(ids: impl Into<Arc<[TokenId]>>) -> Self {
        Self { ids: ids.into(), second_text: None, n_cut: 0, n_hidden: 0 }
    }
}

/// The pooling that the model's files state, with the layers after it, or the mean if they state none.
pub(crate) fn own_pooling(model: &ServedModel) -> Result<(Pooling, Arc<[DenseLayer]>), ApiError> {
    match &model.own_pooling {
        OwnPooling::Unstated => Ok((Pooling::default(), Arc::default())),
        OwnPooling::As(pooling) => Ok((*pooling, Arc::default())),
        OwnPooling::Layered(pooling, layers) => Ok((*pooling, layers.clone())),
        OwnPooling::Late(_) => {
            let message = "this model makes a vector for each token, and none for a whole text\nhint: use `/pooling`, \
                           `/v1/score` or `/v1/rerank`"
                .to_owned();
            Err(ApiError::invalid("model", message))
        }
        OwnPooling::Unsupported(what) => {
            let message = format!(
                "the model's own way of making vectors is not supported: {what}\nhint: with `pooling`, hidden states are \
                 combined in another way than the model was trained for"
            );
            Err(ApiError::invalid("pooling", message))
        }
    }
}

/// How the outputs of a classifier are made.
pub(crate) fn of_classifier(texts: Vec<Tokens>, classifier: &Classifier) -> Wanted {
    let steps = VectorSteps { layers: classifier.layers.clone(), dimensions: None, scale: VectorScale::AsIs };
    Wanted { texts, pooling: classifier.pooling, steps }
}
