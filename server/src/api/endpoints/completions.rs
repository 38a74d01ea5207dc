//! `POST /v1/completions`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/completions) with the
//! parameters that local servers add.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::{
    ServedModel,
    request::{MAX_LOGPROBS, ValidationError, begun_by},
};
use hearth_model::{
    TokenId,
    decode::{infill::Infill, sampling::SamplingParams},
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::{
    error::ApiError,
    exchange::{
        generation::{GenerateParams, RunningAnswer, examples},
        prompt::{Prompt, WirePromptLogprobs},
        response_head::{ResponseHead, StreamChunk, UsageReports},
        stream::{self, Answer, Delta, StreamItem, TokenEntry},
        submission::Usage,
    },
    guard::preparation::WorkClass,
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::Fields,
        schema::Shape,
        state::AppState,
        text_input::TextOrIds,
    },
};

/// Default of `max_tokens`, as at OpenAI.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A parsed request; types and ranges are checked.
#[derive(Debug)]
struct CompletionRequest {
    prompts: Prompts,
    generation: GenerateParams,
}

/// The prompts, and how to tokenize them.
#[derive(Debug)]
struct Prompts {
    sources: Vec<TextOrIds>,
    encode: EncodeOptions,
    start: Start,
    /// The text after the gap (`suffix`), for fill-in-the-middle.
    suffix: Option<String>,
    /// The parameter that has the prompts.
    param: &'static str,
    /// How the answer of an encoder-decoder begins (`decoder_prompt`).
    decoder: Option<TextOrIds>,
}

/// Whether the answer begins with the prompt (`echo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Echo,
    FirstToken,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Completion {
    #[serde(flatten)]
    head: ResponseHead,
    choices: Vec<CompletionChoice>,
    usage: Usage,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
struct CompletionChoice {
    text: String,
    index: usize,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    prompt_logprobs: Option<WirePromptLogprobs>,
}

/// Four arrays with one entry per token.
///
/// Log-probabilities are written as `f64`: an `f32` would be written with fewer digits here than as a JSON value
/// elsewhere, and lm-eval tests a token's log-probability and the largest alternative's for equality.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "CompletionLogprobs")]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation = Operation::post(
    "Continue a prompt",
    describe,
    ResponseBody::JsonOrEvents(schema_of::<Completion>, schema_of::<StreamChunk<CompletionChoice>>),
);

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    examples(&json!({ "prompt": "x" })).into_iter().try_for_each(|example| {
        CompletionRequest::from_fields(Fields::describing(example, shape), state.sampling_defaults()).map(drop)
    })
}

/// Handles a completion request, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let defaults = state.sampling_defaults();
    let read = move |fields| CompletionRequest::from_fields(fields, defaults);
    let CompletionRequest { prompts, generation } = body.read(&state, read).await?;
    let preparation = WorkClass::of_body(generation.n_bytes());
    let has_suffix = prompts.suffix.is_some();
    let prepare = move |generation: &GenerateParams, model: &ServedModel| prompts.prepare(generation, model);
    let started = generation.start(&state, "cmpl-", (preparation, prepare)).await;
    // A suffix cannot be combined with truncation.
    let started = started.map_err(|error| if has_suffix { error.without_truncation() } else { error });
    let RunningAnswer { head, deltas, tokenizer, prompt_ids } = started?;
    // The texts are tokenized, so the body's share of the memory limit can be released.
    drop(body);
    let head = head.with_object("text_completion");
    let writer = Writer { head, tokenizer, prompt_ids, generation: generation.clone() };
    let response = if let Some(reports) = generation.stream {
        let mut is_begun = vec![false; writer.prompt_ids.len() * generation.n];
        stream::sse(deltas, state.options(), move |part| {
            let begun = match &part {
                StreamItem::Delta(delta, _) => is_begun.get_mut(delta.index),
                StreamItem::End(_) => None,
            };
            let is_first = begun.is_some_and(|begun| !std::mem::replace(begun, true));
            writer.chunk(part, reports, is_first).into_iter().collect()
        })
    } else {
        let (answers, usage) = generation.fold(deltas).await?;
        let n_bytes = answers.iter().map(Answer::n_bytes).sum();
        let write = move || {
            let choices = answers.into_iter().enumerate().map(|(index, answer)| writer.choice(index, answer)).collect();
            Json(Completion { head: writer.head, choices, usage }).into_response()
        };
        state.write(n_bytes, write).await?
    };
    Ok(generation.add_ignored(response))
}

impl CompletionRequest {
    fn from_fields(mut fields: Fields, defaults: SamplingParams) -> Result<Self, ApiError> {
        let (param, sources) = prompts(&mut fields)?;
        let decoder = decoder_prompt(&mut fields)?;
        let start = if fields.flag_or("echo", false)? { Start::Echo } else { Start::FirstToken };
        let suffix = suffix(&mut fields, start)?;
        let add_special_tokens = fields.flag_or("add_special_tokens", true)?;
        let logprobs = fields.count("logprobs", 0..=MAX_LOGPROBS)?;
        let max_tokens = max_tokens(&mut fields, start)?;
        let encode = EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT };
        let generation = GenerateParams::from_fields(fields, max_tokens, defaults)?.with_logprobs(logprobs);
        generation.check_answers(sources.len())?;
        if start == Start::Echo {
            generation.check_echo()?;
        }
        let generation = generation.with_prompt_param(param);
        Ok(Self { prompts: Prompts { sources, encode, start, suffix, param, decoder }, generation })
    }
}

impl Prompts {
    fn prepare(self, generation: &GenerateParams, model: &ServedModel) -> Result<Vec<Prompt>, ApiError> {
        if model.config.is_encoder_decoder() {
            return self.into_sources(generation, model);
        }
        if model.limits.is_encoder {
            return Err(ValidationError::Encoder.into());
        }
        if let Some(param) = self.decoder.as_ref().map(|_| DECODER).or((self.param == SOURCE).then_some(SOURCE)) {
            return Err(ValidationError::NoEncoder { param }.into());
        }
        if let Some(suffix) = &self.suffix {
            return self.with_gap(suffix, generation, model);
        }
        let prompts = self.sources.into_iter().map(|source| {
            if generation.keeps_whole_prompt() {
                source.check_length(self.param, model)?;
            }
            let ids = source.encode(self.param, &model.tokenizer, self.encode)?;
            let prompt = generation.prompt(ids, model);
            let text = match source {
                TextOrIds::Text(text) => Some(text),
                TextOrIds::Ids(_) => None,
            };
            // A longer prompt is rejected later, so it is not decoded.
            let is_possible = prompt.ids.len() <= model.limits.max_seq_len;
            let echoes = self.start == Start::Echo && is_possible;
            Ok(if echoes { prompt.echoed(text, &model.tokenizer) } else { prompt })
        });
        prompts.collect()
    }

    /// The prompts as sources of an encoder-decoder.
    fn into_sources(self, generation: &GenerateParams, model: &ServedModel) -> Result<Vec<Prompt>, ApiError> {
        for (param, is_given) in [("echo", self.start == Start::Echo), ("suffix", self.suffix.is_some())] {
            if is_given {
                return Err(ValidationError::NotWithSource { param }.into());
            }
        }
        let decoder_ids = match &self.decoder {
            Some(begun) => {
                let ids = begun.encode(DECODER, &model.tokenizer, EncodeOptions::RENDERED)?;
                begun_by(&model.decoder_start, ids)
            }
            None => model.decoder_start.clone(),
        };
        let prompts = self.sources.iter().map(|source| {
            if generation.keeps_whole_prompt() {
                source.check_length(self.param, model)?;
            }
            let prompt = generation.source(source, (self.param, self.encode), model)?;
            if prompt.ids.is_empty() {
                return Err(ValidationError::Empty { param: self.param }.into());
            }
            Ok(prompt.into_source_of(decoder_ids.clone()))
        });
        prompts.collect()
    }

    /// The prompts with the suffix, in the model's fill-in-the-middle format.
    fn with_gap(
        &self,
        suffix: &str,
        generation: &GenerateParams,
        model: &ServedModel,
    ) -> Result<Vec<Prompt>, ApiError> {
        let tokenizer = &model.tokenizer;
        let Some(infill) = Infill::of(tokenizer) else {
            let message = "`suffix` needs a model that was trained to fill in the middle, and this one's vocabulary has no \
                           tokens for it\nhint: leave `suffix` out to continue `prompt`";
            return Err(ApiError::invalid("suffix", message));
        };
        let prompts = self.sources.iter().map(|source| {
            source.check_length("prompt", model)?;
            model.check_text_length("suffix", suffix.len())?;
            let before = source.encode("prompt", tokenizer, self.encode)?;
            let refusal = |error| ApiError::invalid("suffix", format!("`suffix` cannot be encoded: {error}"));
            let ids = infill.prompt(tokenizer, &before, suffix).map_err(refusal)?;
            Ok(generation.prompt(ids, model).ending_on(infill.end_ids()))
        });
        prompts.collect()
    }
}

/// vLLM's name of the source of an encoder-decoder.
const SOURCE: &str = "encoder_prompt";
/// How its answer begins, also by vLLM's name.
const DECODER: &str = "decoder_prompt";

/// The prompts and the parameter that has them: for encoder-decoders also [`SOURCE`].
fn prompts(fields: &mut Fields) -> Result<(&'static str, Vec<TextOrIds>), ApiError> {
    match TextOrIds::from_fields_if_any(fields, SOURCE)? {
        Some(_) if fields.has("prompt") => {
            let message = "`encoder_prompt` cannot be combined with `prompt`: both are the source";
            Err(ApiError::invalid(SOURCE, message))
        }
        Some(sources) => Ok((SOURCE, sources)),
        None => Ok(("prompt", TextOrIds::from_fields(fields, "prompt")?)),
    }
}

/// How the answer to each source begins: one text, or its tokens.
fn decoder_prompt(fields: &mut Fields) -> Result<Option<TextOrIds>, ApiError> {
    let Some(mut given) = TextOrIds::from_fields_if_any(fields, DECODER)? else { return Ok(None) };
    match (given.len(), given.pop()) {
        (1, one) => Ok(one),
        (n, _) => Err(ApiError::invalid(DECODER, format!("`{DECODER}` must be one text for all sources, got {n}"))),
    }
}

/// An empty suffix counts as absent.
fn suffix(fields: &mut Fields, start: Start) -> Result<Option<String>, ApiError> {
    let Some(suffix) = fields.string("suffix")?.filter(|suffix| !suffix.is_empty()) else { return Ok(None) };
    if start == Start::Echo {
        let message = "`suffix` cannot be combined with `echo`: the answer is between prompt and suffix";
        return Err(ApiError::invalid("suffix", message));
    }
    if fields.has("truncate_prompt_tokens") {
        let message = "`suffix` cannot be combined with `truncate_prompt_tokens`: truncation would remove the special \
                       tokens that separate prompt and suffix";
        return Err(ApiError::invalid("suffix", message));
    }
    Ok(Some(suffix))
}

fn max_tokens(fields: &mut Fields, start: Start) -> Result<usize, ApiError> {
    let max_tokens = fields.token_limit("max_tokens", 0)?;
    fields.note_default("max_tokens", &DEFAULT_MAX_TOKENS);
    let max_tokens = max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && start != Start::Echo {
        let message = "`max_tokens` must be at least 1, got `0`\nhint: 0 is allowed with `echo`";
        return Err(ApiError::invalid("max_tokens", message));
    }
    Ok(max_tokens)
}

/// Writes answers in this endpoint's format.
struct Writer {
    head: ResponseHead,
    tokenizer: Tokenizer,
    prompt_ids: Vec<Arc<[TokenId]>>,
    generation: GenerateParams,
}

impl Writer {
    /// A choice, or an event's part of it.
    fn choice(&self, index: usize, answer: Answer) -> CompletionChoice {
        let Answer { text, token_ids, logprobs, prompt_logprobs, finish_reason, stop_cause, .. } = answer;
        CompletionChoice {
            text,
            index,
            logprobs: logprobs.map(Logprobs::new),
            finish_reason,
            stop_reason: self.generation.stop_reason(stop_cause),
            token_ids: self.generation.returns_token_ids.then_some(token_ids),
            prompt_token_ids: self.prompt_token_ids(index),
            prompt_logprobs: prompt_logprobs
                .map(|logprobs| WirePromptLogprobs { logprobs, tokenizer: self.tokenizer.clone() }),
        }
    }

    /// The data of one event of a stream.
    fn chunk(&self, part: StreamItem, reports: UsageReports, is_first: bool) -> Option<String> {
        let (Delta { index, piece }, usage) = match part {
            StreamItem::Delta(delta, usage) => (delta, usage),
            StreamItem::End(usage) => {
                return Some(StreamChunk::<CompletionChoice>::last(&self.head, reports, usage)?.to_json());
            }
        };
        let mut choice = self.choice(index, piece);
        if !is_first {
            choice.prompt_token_ids = None;
        }
        Some(StreamChunk::more(&self.head, choice, reports.in_delta(usage)).to_json())
    }

    fn prompt_token_ids(&self, index: usize) -> Option<Vec<TokenId>> {
        let ids = self.prompt_ids.get(index / self.generation.n);
        ids.filter(|_| self.generation.returns_token_ids).map(|ids| ids.to_vec())
    }
}

impl Logprobs {
    fn new(entries: Vec<TokenEntry>) -> Self {
        let mut logprobs = Self::default();
        for TokenEntry { token, logprob, top, text_offset } in entries {
            let top = top.map(|top| {
                let others = top.into_iter().map(|(token, logprob)| (token.text, logprob));
                // The token itself is listed even if it is not among the most likely ones.
                top_object(others.chain(logprob.map(|logprob| (token.text.clone(), logprob))))
            });
            logprobs.tokens.push(token.text);
            logprobs.token_logprobs.push(logprob.map(f64::from));
            logprobs.top_logprobs.push(top);
            logprobs.text_offset.push(text_offset);
        }
        logprobs
    }
}

/// Alternatives by their text. If several tokens have the same text, only the most likely one is kept.
fn top_object(top: impl Iterator<Item = (String, f32)>) -> Map<String, Value> {
    let mut object = Map::new();
    for (token, logprob) in top {
        object.entry(token).or_insert_with(|| json!(f64::from(logprob)));
    }
    object
}
