//! `POST /v1/chat/completions`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/chat) with the
//! parameters that local servers add.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::request::MAX_LOGPROBS;
use hearth_model::{TokenId, decode::sampling::SamplingParams, text::tokenizer::Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{
    error::ApiError,
    exchange::{
        conversation::Conversation,
        generation::{GenerateParams, RunningAnswer, examples},
        prompt::WirePromptLogprobs,
        reply::{Reply, ReplyRequest},
        response_head::{ResponseHead, StreamChunk, UsageReports},
        stream::{self, Answer, Delta, StreamItem, TokenEntry, TokenText},
        submission::Usage,
        thinking::Thinking,
    },
    guard::options::RequestTemplates,
    tools::{
        reasoning::AnswerReader,
        tool_calls::{self, MessageDeltas, PieceDelta, ReadMessage, WireCall, WireCallDelta},
    },
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::{Fields, shown_limit},
        schema::Shape,
        state::AppState,
    },
};

#[derive(Debug, Serialize, JsonSchema)]
struct ChatCompletion {
    #[serde(flatten)]
    head: ResponseHead,
    choices: Vec<ChatChoice>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    prompt_logprobs: Option<WirePromptLogprobs>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatChoice {
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
    /// Null if there are only tool calls.
    content: Option<String>,
    #[serde(flatten)]
    reasoning: WireReasoning,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall>,
    /// Always null: for clients that expect it.
    refusal: Option<String>,
}

/// The model's thoughts (reasoning) before its answer, under the two names that clients read. Missing if there are
/// none.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatReasoning")]
struct WireReasoning {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct ChatChunkChoice {
    index: usize,
    delta: WireDelta,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatDelta")]
struct WireDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(flatten)]
    reasoning: WireReasoning,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[WireCallDelta; 1]>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatLogprobs")]
struct Logprobs {
    content: Vec<WireToken>,
    refusal: Option<Vec<WireToken>>,
}

/// A token with its log-probability and alternatives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatToken")]
pub(crate) struct WireToken {
    #[serde(flatten)]
    token: Alternative,
    top_logprobs: Vec<Alternative>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatAlternative")]
struct Alternative {
    token: String,
    /// As `f64`, like in the completions endpoint.
    logprob: f64,
    bytes: Vec<u8>,
}

const ASSISTANT: &str = "assistant";

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation = Operation::post(
    "Answer a conversation",
    describe,
    ResponseBody::JsonOrEvents(schema_of::<ChatCompletion>, schema_of::<StreamChunk<ChatChunkChoice>>),
);

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let tool = json!({ "type": "function", "function": { "name": "x" } });
    let smallest = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": [tool] });
    examples(&smallest).into_iter().try_for_each(|example| {
        let fields = Fields::describing(example, shape);
        chat_request(fields, state.options().request_templates, state.sampling_defaults()).map(drop)
    })
}

/// Handles a chat request, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let (defaults, templates) = (state.sampling_defaults(), state.options().request_templates);
    let request = body.read(&state, move |fields| chat_request(fields, templates, defaults)).await?;
    let Reply { started, reader, generation } = request.start(&state, "chatcmpl-", body).await?;
    let RunningAnswer { head, deltas, tokenizer, prompt_ids } = started;
    let prompt_token_ids = prompt_ids.first().filter(|_| generation.returns_token_ids).map(|ids| ids.to_vec());
    let response = if let Some(reports) = generation.stream {
        let writer = ChunkWriter {
            head: head.with_object("chat.completion.chunk"),
            reports,
            prompt_token_ids,
            choices: vec![ChoiceState { is_begun: false, message: MessageDeltas::new(reader) }; generation.n],
            generation: generation.clone(),
        };
        stream::sse(deltas, state.options(), writer.into_write())
    } else {
        let (answers, usage) = generation.fold(deltas).await?;
        let n_bytes = answers.iter().map(Answer::n_bytes).sum();
        let asked = generation.clone();
        let write = move || {
            let rest = Rest { usage, prompt_token_ids, reader, generation: &asked, tokenizer: &tokenizer };
            Json(complete_response(head, answers, rest)).into_response()
        };
        state.write(n_bytes, write).await?
    };
    Ok(generation.add_ignored(response))
}

fn chat_request(
    mut fields: Fields,
    templates: RequestTemplates,
    defaults: SamplingParams,
) -> Result<ReplyRequest, ApiError> {
    let conversation = Conversation::from_fields(&mut fields, templates)?;
    if let Some(modalities) = fields.string_list("modalities")?
        && modalities != ["text"]
    {
        let message = format!("`modalities` must be `[\"text\"]`, got `{}`", json!(modalities));
        return Err(ApiError::invalid("modalities", message));
    }
    let logprobs = logprobs(&mut fields)?;
    let max_tokens = max_tokens(&mut fields)?;
    let thinking = Thinking::from_fields(&mut fields)?;
    let generation = GenerateParams::from_fields(fields, max_tokens, defaults)?.with_logprobs(logprobs);
    let generation = generation.with_thinking(thinking);
    let generation = generation.with_prompt_param("messages").with_prompt_reported_once();
    Ok(ReplyRequest { conversation, generation })
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let is_asked = fields.flag_or("logprobs", false)?;
    let n_top = fields.count("top_logprobs", 0..=MAX_LOGPROBS)?;
    if n_top.is_some_and(|n_top| n_top > 0) && !is_asked {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` requires `logprobs` to be true"));
    }
    Ok(is_asked.then(|| n_top.unwrap_or(0)))
}

/// Without a limit, the answer may fill the rest of the context.
fn max_tokens(fields: &mut Fields) -> Result<usize, ApiError> {
    let newer = fields.token_limit("max_completion_tokens", 1)?;
    let older = fields.token_limit("max_tokens", 1)?;
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => {
            let [newer, older] = [newer, older].map(shown_limit);
            let message = format!(
                "`max_completion_tokens` and `max_tokens` are the same limit and must be equal, got {newer} and {older}"
            );
            Err(ApiError::invalid("max_completion_tokens", message))
        }
        _ => Ok(newer.or(older).unwrap_or(usize::MAX)),
    }
}

/// The data for an answer besides the choices and `ResponseHead`.
struct Rest<'a> {
    usage: Usage,
    prompt_token_ids: Option<Vec<TokenId>>,
    reader: AnswerReader,
    generation: &'a GenerateParams,
    tokenizer: &'a Tokenizer,
}

fn complete_response(head: ResponseHead, mut answers: Vec<Answer>, rest: Rest<'_>) -> ChatCompletion {
    let Rest { usage, prompt_token_ids, reader, generation, tokenizer } = rest;
    // All choices share the prompt.
    let prompt_logprobs = answers.first_mut().and_then(|answer| answer.prompt_logprobs.take());
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        let end = tool_calls::text_end(answer.finish_reason, &answer.stop_cause);
        let ReadMessage { reasoning, content, calls } = tool_calls::read(reader.clone(), &answer.text, end);
        let has_calls = !calls.is_empty();
        let reasoning = WireReasoning::new(reasoning);
        ChatChoice {
            index,
            finish_reason: tool_calls::finish_reason(answer.finish_reason, &answer.stop_cause, has_calls),
            message: WireMessage { role: ASSISTANT, content, reasoning, tool_calls: calls, refusal: None },
            stop_reason: generation.stop_reason(answer.stop_cause),
            // If requested, an empty list, not null, even if no token was sampled.
            logprobs: generation.logprobs.map(|_| Logprobs::new(answer.logprobs.unwrap_or_default())),
            token_ids: generation.returns_token_ids.then_some(answer.token_ids),
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
    head: ResponseHead,
    reports: UsageReports,
    prompt_token_ids: Option<Vec<TokenId>>,
    choices: Vec<ChoiceState>,
    generation: GenerateParams,
}

/// The state of one choice in a stream.
#[derive(Clone, Debug)]
struct ChoiceState {
    /// Whether the role has been sent.
    is_begun: bool,
    message: MessageDeltas,
}

impl ChunkWriter {
    fn into_write(mut self) -> impl FnMut(StreamItem) -> Vec<String> {
        move |part| match part {
            StreamItem::Delta(delta, usage) => {
                let opening = self.opening(delta.index, usage);
                opening.into_iter().chain(self.deltas(delta, usage)).collect()
            }
            StreamItem::End(usage) => {
                let last = StreamChunk::<ChatChunkChoice>::last(&self.head, self.reports, usage);
                last.iter().map(StreamChunk::to_json).collect()
            }
        }
    }

    /// The first event of a choice: its role.
    fn opening(&mut self, index: usize, usage: Usage) -> Option<String> {
        let choice = self.choices.get_mut(index)?;
        if std::mem::replace(&mut choice.is_begun, true) {
            return None;
        }
        let delta = WireDelta { role: Some(ASSISTANT), content: Some(String::new()), ..WireDelta::default() };
        let choice = ChatChunkChoice { index, delta, ..ChatChunkChoice::default() };
        let chunk = StreamChunk::more(&self.head, choice, self.reports.in_delta(usage));
        Some(StreamChunk { prompt_token_ids: self.prompt_token_ids.as_deref(), ..chunk }.to_json())
    }

    fn deltas(&mut self, Delta { index, mut piece }: Delta, usage: Usage) -> Vec<String> {
        let text = std::mem::take(&mut piece.text);
        let Some(choice) = self.choices.get_mut(index) else { return Vec::new() };
        let message = &mut choice.message;
        let mut parts = message.push(&text);
        if piece.finish_reason.is_some() {
            parts.extend(message.finish(tool_calls::text_end(piece.finish_reason, &piece.stop_cause)));
        }
        piece.finish_reason = tool_calls::finish_reason(piece.finish_reason, &piece.stop_cause, message.has_calls());
        // Text and the data of its tokens are one event.
        let last = parts.pop_if(|part| !matches!(part, PieceDelta::Call(_)));
        let choices = parts.into_iter().map(|part| ChatChunkChoice {
            index,
            delta: part.into(),
            token_ids: self.generation.returns_token_ids.then(Vec::new),
            ..ChatChunkChoice::default()
        });
        let mut events: Vec<String> = choices.map(|choice| self.event(choice, usage)).collect();
        let is_sent = piece.finish_reason.is_none() && piece.logprobs.is_none() && !self.generation.returns_token_ids;
        if last.is_some() || !is_sent {
            events.push(self.token_event(index, piece, last.map(WireDelta::from).unwrap_or_default(), usage));
        }
        events
    }

    /// An event with the data of a delta's tokens.
    fn token_event(&self, index: usize, piece: Answer, delta: WireDelta, usage: Usage) -> String {
        let choice = ChatChunkChoice {
            index,
            delta,
            logprobs: piece.logprobs.map(Logprobs::new),
            finish_reason: piece.finish_reason,
            stop_reason: self.generation.stop_reason(piece.stop_cause),
            token_ids: self.generation.returns_token_ids.then_some(piece.token_ids),
        };
        self.event(choice, usage)
    }

    fn event(&self, choice: ChatChunkChoice, usage: Usage) -> String {
        StreamChunk::more(&self.head, choice, self.reports.in_delta(usage)).to_json()
    }
}

impl WireReasoning {
    fn new(text: Option<String>) -> Self {
        Self { reasoning_content: text.clone(), reasoning: text }
    }
}

impl From<PieceDelta> for WireDelta {
    fn from(piece: PieceDelta) -> Self {
        match piece {
            PieceDelta::Reasoning(text) => Self { reasoning: WireReasoning::new(Some(text)), ..Self::default() },
            PieceDelta::Content(text) => Self { content: Some(text), ..Self::default() },
            PieceDelta::Call(call) => Self { tool_calls: Some([call]), ..Self::default() },
        }
    }
}

impl Logprobs {
    fn new(entries: Vec<TokenEntry>) -> Self {
        Self { content: WireToken::list(entries), refusal: None }
    }
}

impl WireToken {
    pub(crate) fn list(entries: Vec<TokenEntry>) -> Vec<Self> {
        let alternative = |TokenText { text, bytes }: TokenText, logprob: f32| Alternative {
            token: text,
            logprob: f64::from(logprob),
            bytes,
        };
        let content = entries.into_iter().filter_map(|TokenEntry { token, logprob, top, .. }| {
            let top = top.unwrap_or_default().into_iter().map(|(token, logprob)| alternative(token, logprob));
            // Only the first token of a prompt has no log-probability, and prompts are not part of a message.
            Some(Self { token: alternative(token, logprob?), top_logprobs: top.collect() })
        });
        content.collect()
    }
}
