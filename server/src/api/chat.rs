//! `POST /v1/chat/completions`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/chat) with the
//! parameters that local servers add.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_model::{TokenId, chat::ChatTemplate, sampling::SamplingParams, tokenizer::Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    conversation::Conversation,
    error::ApiError,
    fields::{Body, Fields},
    generation::{Generation, Head, Started, UsageReports, examples},
    openapi::{Access, Answer as OpenApiAnswer, Operation, POST_REFUSALS, Request, answer},
    options::RequestTemplates,
    prompt::WirePromptLogprobs,
    schema::Shape,
    state::AppState,
    stream::{self, Answer, Delta, Part, TokenEntry, TokenText, Usage},
    tool_calls::{self, CallDeltas, WireCall, WireCallDelta},
    tool_parser::ToolParser,
};
use crate::engine::{ServedModel, request::MAX_LOGPROBS};

/// What a client asks for, its types and ranges checked.
#[derive(Debug)]
struct ChatRequest {
    conversation: Conversation,
    generation: Generation,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatCompletion {
    #[serde(flatten)]
    head: Head,
    choices: Vec<WireChoice>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    prompt_logprobs: Option<WirePromptLogprobs>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatChoice")]
struct WireChoice {
    index: usize,
    message: WireMessage,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
struct WireMessage {
    role: &'static str,
    /// Null where there are calls and nothing else.
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall>,
    /// There for clients that read it; no model served here refuses in this way.
    refusal: Option<String>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: WireDelta,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Default, Serialize)]
struct WireDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[WireCallDelta; 1]>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatLogprobs")]
struct Logprobs {
    content: Vec<WireToken>,
    refusal: Option<Vec<WireToken>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatToken")]
struct WireToken {
    #[serde(flatten)]
    token: Alternative,
    top_logprobs: Vec<Alternative>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatAlternative")]
struct Alternative {
    token: String,
    /// `f64`, as in the other endpoint.
    logprob: f64,
    bytes: Vec<u8>,
}

const ASSISTANT: &str = "assistant";

/// How `/openapi.json` tells of it.
pub(crate) const OPERATION: Operation = Operation {
    summary: "Answer a conversation",
    request: Request::Body(describe),
    answer: OpenApiAnswer::JsonOrEvents(answer::<ChatCompletion>),
    refusals: POST_REFUSALS,
    access: Access::WithKey,
    links: &[],
};

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    examples(&json!({ "messages": [{ "role": "user", "content": "x" }] })).into_iter().try_for_each(|example| {
        let fields = Fields::describing(example, shape);
        ChatRequest::from_fields(fields, state.options().request_templates, state.sampling_defaults()).map(drop)
    })
}

/// Answers a conversation, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, body: Body) -> Result<Response, ApiError> {
    let (defaults, templates) = (state.sampling_defaults(), state.options().request_templates);
    let request = body.read(&state, move |fields| ChatRequest::from_fields(fields, templates, defaults)).await?;
    let preparation = request.conversation.preparation(request.generation.n_bytes());
    let model = Arc::clone(state.working_engine()?.model());
    let (request, parser, template) = state.prepare_long(preparation, move || request.with_template(&model)).await?;
    let ChatRequest { conversation, generation } = request;
    let prepare = move |generation: &Generation, model: &ServedModel| {
        Ok(vec![generation.prompt(conversation.encode(&template, model)?, model)])
    };
    let started = generation.start(&state, "chatcmpl-", (preparation, prepare)).await?;
    let Started { head, deltas, tokenizer, prompt_ids } = started;
    let prompt_token_ids = generation.token_ids.and_then(|_| Some(prompt_ids.first()?.to_vec()));
    let response = if let Some(reports) = generation.stream {
        let writer = ChunkWriter {
            head: head.with_object("chat.completion.chunk"),
            reports,
            prompt_token_ids,
            choices: vec![ChoiceState { is_begun: false, calls: parser.map(CallDeltas::new) }; generation.n],
            generation: generation.clone(),
        };
        stream::sse(deltas, state.options(), writer.into_write())
    } else {
        let (answers, usage) = generation.fold(deltas).await?;
        let n_bytes = answers.iter().map(Answer::n_bytes).sum();
        let asked = generation.clone();
        let write = move || {
            let rest = Rest { usage, prompt_token_ids, parser, generation: &asked, tokenizer: &tokenizer };
            Json(whole(head, answers, rest)).into_response()
        };
        state.write(n_bytes, write).await?
    };
    Ok(generation.remark(response))
}

impl ChatRequest {
    fn from_fields(
        mut fields: Fields,
        templates: RequestTemplates,
        defaults: SamplingParams,
    ) -> Result<Self, ApiError> {
        let conversation = Conversation::from_fields(&mut fields, templates)?;
        if let Some(modalities) = fields.string_list("modalities")?
            && modalities != ["text"]
        {
            let message = format!("`modalities` is not supported but for `[\"text\"]`, got `{}`", json!(modalities));
            return Err(ApiError::invalid("modalities", message));
        }
        let logprobs = logprobs(&mut fields)?;
        let max_tokens = max_tokens(&mut fields)?;
        let generation = Generation::from_fields(fields, max_tokens, defaults)?.with_logprobs(logprobs);
        let generation = generation.telling_prompt_once();
        Ok(Self { conversation, generation })
    }

    /// What the template and tools make of a request: what nobody reads, the form of its answer, and how calls are found
    /// in it.
    fn with_template(self, model: &ServedModel) -> Result<(Self, Option<ToolParser>, ChatTemplate), ApiError> {
        let Self { conversation, generation } = self;
        let template = conversation.template(model)?;
        let mut generation = generation.ignoring(conversation.unread(&template));
        let mut parser = None;
        if let Some((tools, style)) = conversation.tools(&template) {
            if let Some(structure) = tools.structure(style, generation.structure())? {
                generation = generation.with_structure(structure);
            }
            if tools.hides_marks(style, &model.tokenizer) {
                generation = generation.showing_special_tokens();
            }
            parser = Some(tools.parser(style));
        }
        Ok((Self { conversation, generation }, parser, template))
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let is_asked = fields.flag_or("logprobs", false)?;
    let n_top = fields.count("top_logprobs", 0..=MAX_LOGPROBS)?;
    if n_top.is_some_and(|n_top| n_top > 0) && !is_asked {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` must come with `logprobs` true"));
    }
    Ok(is_asked.then(|| n_top.unwrap_or(0)))
}

/// Without a limit, an answer may be as long as the context has room for.
fn max_tokens(fields: &mut Fields) -> Result<usize, ApiError> {
    let newer = fields.count("max_completion_tokens", 1..=usize::MAX)?;
    let older = fields.count("max_tokens", 1..=usize::MAX)?;
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => {
            let message = format!(
                "`max_completion_tokens` and `max_tokens` are the same limit and must be equal, got {newer} and {older}"
            );
            Err(ApiError::invalid("max_completion_tokens", message))
        }
        _ => Ok(newer.or(older).unwrap_or(usize::MAX)),
    }
}

/// What an answer has besides its head and its choices.
struct Rest<'a> {
    usage: Usage,
    prompt_token_ids: Option<Vec<TokenId>>,
    parser: Option<ToolParser>,
    generation: &'a Generation,
    tokenizer: &'a Tokenizer,
}

fn whole(head: Head, mut answers: Vec<Answer>, rest: Rest<'_>) -> ChatCompletion {
    let Rest { usage, prompt_token_ids, parser, generation, tokenizer } = rest;
    // The choices have the prompt in common.
    let prompt_logprobs = answers.first_mut().and_then(|answer| answer.prompt_logprobs.take());
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        let (content, tool_calls) = match &parser {
            None => (Some(answer.text), Vec::new()),
            Some(parser) => tool_calls::read(parser.clone(), &answer.text),
        };
        WireChoice {
            index,
            finish_reason: tool_calls::finish_reason(answer.finish_reason, &answer.stop_cause, !tool_calls.is_empty()),
            message: WireMessage { role: ASSISTANT, content, tool_calls, refusal: None },
            stop_reason: generation.stop_reason(answer.stop_cause),
            // Asked for, but no token drawn to report: an empty list, not none.
            logprobs: generation.logprobs.map(|_| Logprobs::new(answer.logprobs.unwrap_or_default())),
            token_ids: generation.token_ids.map(|_| answer.token_ids),
        }
    });
    ChatCompletion {
        head: head.with_object("chat.completion"),
        choices: choices.collect(),
        usage,
        prompt_token_ids,
        prompt_logprobs: prompt_logprobs.map(|logprobs| WirePromptLogprobs { logprobs, tokenizer: tokenizer.clone() }),
    }
}

/// Writes the events of a stream.
struct ChunkWriter {
    head: Head,
    reports: UsageReports,
    prompt_token_ids: Option<Vec<TokenId>>,
    choices: Vec<ChoiceState>,
    generation: Generation,
}

/// How far a choice of a stream is.
#[derive(Clone, Debug)]
struct ChoiceState {
    /// Whether its role was told.
    is_begun: bool,
    /// The calls in its text, if there may be some.
    calls: Option<CallDeltas>,
}

impl ChunkWriter {
    fn into_write(mut self) -> impl FnMut(Part) -> Vec<Value> {
        move |part| match part {
            Part::Delta(delta, usage) => {
                let opening = self.opening(delta.index, usage);
                opening.into_iter().chain(self.deltas(delta, usage)).collect()
            }
            Part::End(_) if self.reports == UsageReports::Nowhere => Vec::new(),
            Part::End(usage) => {
                let mut chunk = json!(self.head);
                chunk["choices"] = json!([]);
                chunk["usage"] = json!(usage);
                vec![chunk]
            }
        }
    }

    /// The choice's first event: who speaks.
    fn opening(&mut self, index: usize, usage: Usage) -> Option<Value> {
        let choice = self.choices.get_mut(index)?;
        if std::mem::replace(&mut choice.is_begun, true) {
            return None;
        }
        let delta = WireDelta { role: Some(ASSISTANT), content: Some(String::new()), tool_calls: None };
        let choice =
            ChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None, token_ids: None };
        let mut chunk = self.chunk(choice, usage);
        if let Some(ids) = &self.prompt_token_ids {
            chunk["prompt_token_ids"] = json!(ids);
        }
        Some(chunk)
    }

    fn deltas(&mut self, mut delta: Delta, usage: Usage) -> Vec<Value> {
        let calls = self.choices.get_mut(delta.index).and_then(|choice| choice.calls.as_mut());
        let Some(calls) = calls else { return vec![self.delta(delta, usage)] };
        let pieces = calls.push(&std::mem::take(&mut delta.text), delta.finish_reason.is_some());
        delta.finish_reason = tool_calls::finish_reason(delta.finish_reason, &delta.stop_cause, calls.has_calls());
        let choices = pieces.into_iter().map(|(content, call)| ChunkChoice {
            index: delta.index,
            delta: WireDelta { role: None, content, tool_calls: call.map(|call| [call]) },
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: self.generation.token_ids.map(|_| Vec::new()),
        });
        let mut chunks: Vec<Value> = choices.map(|choice| self.chunk(choice, usage)).collect();
        // What belongs to tokens has an event of its own, where somebody asked.
        let is_said = delta.finish_reason.is_none() && delta.logprobs.is_none() && self.generation.token_ids.is_none();
        if !is_said {
            let choice = ChunkChoice {
                index: delta.index,
                delta: WireDelta::default(),
                logprobs: delta.logprobs.map(Logprobs::new),
                finish_reason: delta.finish_reason,
                stop_reason: self.generation.stop_reason(delta.stop_cause),
                token_ids: self.generation.token_ids.map(|_| delta.token_ids),
            };
            chunks.push(self.chunk(choice, usage));
        }
        chunks
    }

    fn delta(&self, delta: Delta, usage: Usage) -> Value {
        let Delta { index, text, token_ids, logprobs, finish_reason, stop_cause, .. } = delta;
        // The last event is often nothing but the end.
        let content = (finish_reason.is_none() || !text.is_empty()).then_some(text);
        let choice = ChunkChoice {
            index,
            delta: WireDelta { role: None, content, tool_calls: None },
            logprobs: logprobs.map(Logprobs::new),
            finish_reason,
            stop_reason: self.generation.stop_reason(stop_cause),
            token_ids: self.generation.token_ids.map(|_| token_ids),
        };
        self.chunk(choice, usage)
    }

    fn chunk(&self, choice: ChunkChoice, usage: Usage) -> Value {
        let mut chunk = json!(self.head);
        chunk["choices"] = json!([choice]);
        match self.reports {
            UsageReports::Nowhere => {}
            UsageReports::AtTheEnd => chunk["usage"] = Value::Null,
            UsageReports::Everywhere => chunk["usage"] = json!(usage),
        }
        chunk
    }
}

impl Logprobs {
    fn new(entries: Vec<TokenEntry>) -> Self {
        let alternative = |TokenText { text, bytes }: TokenText, logprob: f32| Alternative {
            token: text,
            logprob: f64::from(logprob),
            bytes,
        };
        let content = entries.into_iter().filter_map(|TokenEntry { token, logprob, top, .. }| {
            let top = top.unwrap_or_default().into_iter().map(|(token, logprob)| alternative(token, logprob));
            // Only the first token of a prompt has none, which is no part of a message.
            Some(WireToken { token: alternative(token, logprob?), top_logprobs: top.collect() })
        });
        Self { content: content.collect(), refusal: None }
    }
}
