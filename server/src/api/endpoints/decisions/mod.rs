//! `POST /v1/decisions`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/decisions): questions about
//! an input, answered with probabilities.
//!
//! Each question is a separate prompt: the input, then the question with a label for each option. The answer is the
//! model's distribution at the position after the prompt. The first question is computed before the others, so that
//! these find the input in the prefix cache.

mod labels;
mod questions;

use std::future::poll_fn;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::{
    Event, ServedModel,
    request::{EngineRequest, RequestParts, StopConditions},
};
use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    text::{
        chat::{ChatTemplate, Ending, Message},
        tokenizer::EncodeOptions,
    },
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use self::{
    labels::Labels,
    questions::{Answer, Question},
};
use super::responses;
use crate::{
    api::{
        error::ApiError,
        exchange::{
            adapters,
            conversation::Conversation,
            generation,
            submission::{Submission, Submitted, Usage},
            thinking::{ModelThoughts, Thinking},
        },
        guard::preparation::{AdmissionWait, Deadline, WorkClass, WorkHandle},
        wire::{
            body::Body,
            endpoint::{Operation, ResponseBody, schema_of},
            fields::Fields,
            ignored_params,
            request_log::RequestLog,
            schema::Shape,
            state::AppState,
        },
    },
    engine::Engine,
    random::fresh_id,
};

/// Approximate size of an option's probability as JSON in bytes.
const OPTION_BYTES: usize = 80;

/// Between the input and a question, if both are in one message.
const BETWEEN_TEXTS: &str = "\n\n";

const USER: &str = "user";

/// A parsed request; types and ranges are checked.
#[derive(Debug)]
struct DecisionRequest {
    model: Option<String>,
    input: Vec<Message>,
    questions: Vec<Question>,
    /// Settings that all questions share; `prompt_ids` is empty.
    parts: RequestParts,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Decision {
    /// In the order of the questions.
    answers: Vec<Answer>,
    model: String,
    usage: WireUsage,
}

/// Token counts over all questions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DecisionUsage")]
struct WireUsage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DecisionInputDetails")]
struct InputDetails {
    cache_write_tokens: usize,
    /// Number of prompt tokens found in the prefix cache.
    cached_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DecisionOutputDetails")]
struct OutputDetails {
    reasoning_tokens: usize,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation = Operation::post(
    "Answer questions about an input with probabilities",
    describe,
    ResponseBody::Json(schema_of::<Decision>),
);

fn describe(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let instructions = "x";
    let questions = json!([
        { "type": "predicate", "instructions": instructions },
        { "type": "choice", "instructions": instructions, "choices": [{ "value": "a" }, { "value": "b" }] },
        { "type": "score", "instructions": instructions, "levels": [{ "label": "a" }, { "label": "b" }] },
    ]);
    let example = json!({ "model": "x", "input": "x", "questions": questions, "prompt_cache_options": {} });
    DecisionRequest::from_fields(&mut Fields::describing(example, shape)).map(drop)
}

/// Handles a request.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let read = |mut fields: Fields| {
        let request = DecisionRequest::from_fields(&mut fields)?;
        Ok((request, ignored_params::of(&fields), fields.n_bytes(), fields.log().clone()))
    };
    let (mut request, ignored, n_bytes, log) = body.read(&state, read).await?;
    let chosen = adapters::choose(&state, request.model.as_deref())?;
    let arrived = log.arrived();
    let engine = state.engine_for(arrived)?.clone();
    let deadline = request.parts.deadline.and_then(|limit| Deadline::new(arrived, limit));
    let wait = AdmissionWait { tenant: request.parts.tenant, submits: true, deadline };
    request.parts.adapter = chosen.adapter(&state, &engine, wait).await?;
    // Each question is tokenized with the input.
    let preparation = WorkClass::of_body(n_bytes.saturating_mul(request.questions.len()));
    let model = engine.model().clone();
    let prepare = move |progress: &WorkHandle| {
        let requests = request.prepare(&model, progress).map_err(ApiError::without_truncation)?;
        Ok((requests, request.questions))
    };
    let (mut requests, questions) = state.prepare_in_parts(preparation, wait, prepare).await?;
    // The texts are tokenized, so the body's share of the memory limit can be released.
    drop(body);
    let name = chosen.name(&state).to_owned();
    log.work(|work| (work.id, work.model) = (Some(fresh_id("dec-")), Some(name.clone())));
    let others = requests.split_off(1.min(requests.len()));
    let (mut logprobs, mut usage) = (Vec::new(), Usage::default());
    for requests in [requests, others] {
        logprobs.extend(ask(&engine, &log, requests, &mut usage).await?);
    }
    let n_options: usize = logprobs.iter().map(Vec::len).sum();
    let write = move || {
        let answers = questions.into_iter().zip(logprobs).map(|(question, logprobs)| question.answer(&logprobs));
        Json(Decision { answers: answers.collect(), model: name, usage: usage.into() }).into_response()
    };
    Ok(ignored_params::add_header(ignored, state.write(n_options * OPTION_BYTES, write).await?))
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        let cached_tokens = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cache_write_tokens: 0, cached_tokens },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: 0 },
            total_tokens: usage.total_tokens,
        }
    }
}

impl DecisionRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let request = Self {
            model: fields.string("model")?,
            input: responses::messages_with_json(fields)?,
            questions: Question::list(fields)?,
            parts: RequestParts {
                // The label itself is not used.
                sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
                stop: StopConditions { max_tokens: 1, ..StopConditions::default() },
                tenant: fields.sender().tenant,
                prefix_salt: generation::prefix_salt(fields)?,
                priority: generation::priority(fields)?,
                deadline: generation::deadline(fields)?,
                ..RequestParts::default()
            },
        };
        for name in ["prompt_cache_key", "prompt_cache_options", "safety_identifier"] {
            fields.ignore(name);
        }
        Ok(request)
    }

    /// The engine's requests, one for each question.
    fn prepare(&self, model: &ServedModel, progress: &WorkHandle) -> Result<Vec<EngineRequest>, ApiError> {
        let template = Conversation::new("input", Vec::new(), None, Ending::GenerationPrompt).template(model)?;
        let thoughts = ModelThoughts::new(&template, &model.tokenizer, None);
        let with_template = (&template, thoughts);
        let probe = self.prompt("x", model, with_template)?;
        let labels = Labels::new(&model.tokenizer, &probe);
        let mut requests = Vec::with_capacity(self.questions.len());
        for (index, question) in self.questions.iter().enumerate() {
            if !progress.report() {
                return Err(ApiError::internal("the client has gone"));
            }
            let labels = labels.first(question.label_kind(), question.n_labels()).map_err(|n_labels| {
                let message = format!(
                    "`questions[{index}]` has {} options, and this model's vocabulary has {n_labels} tokens that can be \
                     their labels\nhint: ask about fewer options at once",
                    question.n_labels()
                );
                ApiError::invalid(format!("questions[{index}]"), message)
            })?;
            let texts: Vec<String> = labels.iter().map(|label| label.text.clone()).collect();
            let parts = RequestParts {
                prompt_ids: self.prompt(&question.prompt(&texts), model, with_template)?.into(),
                logprobs_of: Some(labels.iter().map(|label| label.id).collect()),
                ..self.parts.clone()
            };
            let request = EngineRequest::new(parts, &model.limits).map_err(|error| error.with_prompt_param("input"))?;
            requests.push(request);
        }
        Ok(requests)
    }

    /// The prompt of a question.
    fn prompt(
        &self,
        question: &str,
        model: &ServedModel,
        (template, thoughts): (&ChatTemplate, ModelThoughts),
    ) -> Result<Vec<TokenId>, ApiError> {
        let mut messages = self.input.clone();
        // Many templates allow only one message of the user in a row.
        match messages.last_mut().filter(|last| last.role == USER) {
            Some(last) => last.content = format!("{}{BETWEEN_TEXTS}{question}", last.content),
            None => messages.push(Message::new(USER, question)),
        }
        let mut conversation = Conversation::new("input", messages, None, Ending::GenerationPrompt);
        conversation.add_thinking(Thinking { is_enabled: Some(false), ..Thinking::default() }, template);
        let check_length = |n_bytes| model.check_text_length("input", n_bytes).map_err(ApiError::from);
        let mut ids = conversation.encode(template, model, check_length)?;
        // The label comes first in the answer.
        let between = thoughts.without_thought(&ids, &model.tokenizer);
        if !between.is_empty() {
            let between = model.tokenizer.encode(&between, EncodeOptions::RENDERED);
            ids.extend(between.map_err(|error| ApiError::internal(error.to_string()))?);
        }
        Ok(ids)
    }
}

/// Submits requests, adds their counts to `usage`, and returns the log-probabilities of each one's labels. Dropping the
/// future cancels the remaining work.
async fn ask(
    engine: &Engine,
    log: &RequestLog,
    requests: Vec<EngineRequest>,
    usage: &mut Usage,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let n_answers = requests.len();
    if n_answers == 0 {
        return Ok(Vec::new());
    }
    let n_prompt = requests.iter().map(|request| request.parts().prompt_ids.len()).sum();
    let arrived = log.arrived();
    let events = engine.submit_at(requests, arrived).map_err(|error| ApiError::not_submitted(error, "questions"))?;
    let submitted = Submitted { events, n_answers, arrived, n_prompt, n_truncated: None };
    let mut submission = Submission::new(log.clone(), submitted);
    let mut logprobs = vec![Vec::new(); n_answers];
    while let Some(event) = poll_fn(|context| submission.poll_event(context)).await {
        let (index, event) = event?;
        if let (Event::Token { logprobs: Some(token), .. }, Some(place)) = (event, logprobs.get_mut(index)) {
            *place = token.top.into_iter().map(|(_, logprob)| logprob).collect();
        }
    }
    *usage = usage.and(submission.usage());
    log.work(|work| {
        work.prompt_tokens = Some(usage.prompt_tokens);
        work.cached_tokens = Some(usage.prompt_tokens_details.cached_tokens);
        work.completion_tokens = Some(usage.completion_tokens);
    });
    Ok(logprobs)
}
