//! `POST /infill`: [llama.cpp's endpoint](https://github.com/ggml-org/llama.cpp/tree/master/tools/server#post-infill), with
//! which editors complete code: the text between a prefix and a suffix.

use std::time::Instant;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::{ServedModel, StopCause};
use hearth_model::{
    TokenId,
    decode::{
        infill::{Infill, OtherFile},
        sampling::SamplingParams,
    },
    text::tokenizer::{DecodeOptions, EncodeOptions},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::{
    error::ApiError,
    exchange::{
        generation::{GenerateParams, OneAnswer, RunningAnswer},
        prompt::Prompt,
        stream::{self, Answer, Delta, Frame, StreamItem, WriteEvents},
        submission::Usage,
    },
    guard::preparation::WorkClass,
    wire::{
        body::Body,
        endpoint::{Operation, ResponseBody, schema_of},
        fields::{Fields, string_list},
        schema::Shape,
        state::AppState,
    },
};

/// The default name of a file without a name, as in llama.cpp.
const UNNAMED: &str = "tmp";

/// The sampler of llama.cpp that editors list. It chooses where a completion ends, which no distribution here depends on.
const INFILL_SAMPLER: &str = "infill";

/// A parsed request; types and ranges are checked.
#[derive(Debug)]
struct InfillRequest {
    gap: Gap,
    generation: GenerateParams,
    view: View,
}

/// The texts around the gap.
#[derive(Debug)]
struct Gap {
    before: String,
    behind: String,
    /// How the text in the gap begins.
    begun: String,
    files: Vec<OtherFile>,
}

/// The parts of an answer that the client requested.
#[derive(Clone, Debug)]
struct View {
    returns_tokens: bool,
    /// The members of the last answer, each as a path with slashes. `None`: all.
    fields: Option<Vec<String>>,
}

/// The text in the gap, or a piece of it.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Infilled")]
struct WireInfilled {
    index: usize,
    content: String,
    /// Empty unless `return_tokens` is set.
    tokens: Vec<TokenId>,
    id_slot: usize,
    /// Whether this is the last event.
    stop: bool,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    #[serde(flatten)]
    ending: Option<Ending>,
}

/// The members of the last event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InfillEnding")]
struct Ending {
    model: String,
    /// The whole prompt, with its special tokens.
    prompt: String,
    has_new_line: bool,
    truncated: bool,
    /// `eos`, `word` or `limit`.
    stop_type: &'static str,
    /// The string of `stop` that ended the text.
    stopping_word: String,
    /// Number of prompt tokens found in the prefix cache.
    tokens_cached: usize,
    timings: Timings,
}

/// Times in milliseconds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "InfillTimings")]
struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const OPERATION: Operation = Operation::post(
    "Fill the gap between two texts, as llama.cpp does",
    describe,
    ResponseBody::JsonOrEvents(schema_of::<WireInfilled>, schema_of::<WireInfilled>),
);

fn describe(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let example = json!({ "input_prefix": "x", "input_suffix": "x", "input_extra": [{ "text": "x" }] });
    InfillRequest::from_fields(Fields::describing(example, shape), state.sampling_defaults()).map(drop)
}

/// Handles a request, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let defaults = state.sampling_defaults();
    let read = move |fields| InfillRequest::from_fields(fields, defaults);
    let InfillRequest { gap, generation, view } = body.read(&state, read).await?;
    let preparation = WorkClass::of_body(generation.n_bytes());
    let prepare = move |generation: &GenerateParams, model: &ServedModel| Ok(vec![gap.prompt(generation, model)?]);
    let started = generation.start(&state, "infill-", (preparation, prepare)).await;
    let RunningAnswer { head, deltas, tokenizer, prompt_ids } = started.map_err(ApiError::without_truncation)?;
    // The texts are tokenized, so the body's share of the memory limit can be released.
    drop(body);
    let options = DecodeOptions { skip_special_tokens: false };
    let prompt = prompt_ids.first().map(|ids| tokenizer.decode(ids, options)).unwrap_or_default();
    let mut writer = Writer { view, progress: Progress::new(head.model, prompt, generation.arrived()) };
    let response = if generation.stream.is_some() {
        stream::sse_of(deltas, state.options(), writer)
    } else {
        let (mut content, mut tokens) = (String::new(), Vec::new());
        let take = |delta: Delta| {
            let piece = writer.progress.push(delta.piece);
            content.push_str(&piece.text);
            tokens.extend(piece.token_ids);
        };
        let usage = deltas.for_each(take).await?;
        let n_bytes = content.len() + writer.progress.prompt.len();
        state.write(n_bytes, move || Json(writer.last(content, tokens, usage)).into_response()).await?
    };
    Ok(generation.add_ignored(response))
}

impl InfillRequest {
    fn from_fields(mut fields: Fields, defaults: SamplingParams) -> Result<Self, ApiError> {
        let given = &mut fields;
        let gap = Gap {
            before: given.require("input_prefix", Fields::string)?,
            behind: given.require("input_suffix", Fields::string)?,
            begun: given.string("prompt")?.unwrap_or_default(),
            files: files(given)?,
        };
        if given.has("truncate_prompt_tokens") {
            let message = "`truncate_prompt_tokens` is not supported by this endpoint: truncation would remove the special \
                           tokens that separate the texts";
            return Err(ApiError::invalid("truncate_prompt_tokens", message));
        }
        let max_tokens = max_tokens(given)?;
        let view = View {
            returns_tokens: given.flag_or("return_tokens", false)?,
            fields: given.string_list("response_fields")?,
        };
        without_infill_sampler(given);
        // Members of llama.cpp's requests that have no effect on the answer of this server.
        for name in ["cache_prompt", "id_slot", "n_indent", "timings_per_token"] {
            given.ignore(name);
        }
        let answer = OneAnswer {
            streams: given.flag_or("stream", false)?,
            structure: None,
            stop_strings: ("stop", given.strings("stop")?),
            prompt_param: "input_prefix",
        };
        let generation = GenerateParams::of_one_answer(fields, max_tokens, defaults, answer)?;
        Ok(Self { gap, generation, view })
    }
}

/// Reads `n_predict`, or `max_tokens`; without them, the answer may fill the rest of the context. 0 only computes the
/// prompt, so that the next request finds it in the prefix cache.
fn max_tokens(fields: &mut Fields) -> Result<usize, ApiError> {
    let limit = fields.token_limit("n_predict", 0)?;
    let other = fields.token_limit("max_tokens", 0)?;
    match (limit, other) {
        (Some(limit), Some(other)) if limit != other => {
            let message = "`n_predict` and `max_tokens` are the same limit and must be equal";
            Err(ApiError::invalid("n_predict", message))
        }
        _ => Ok(limit.or(other).unwrap_or(usize::MAX)),
    }
}

/// Reads `input_extra`.
fn files(fields: &mut Fields) -> Result<Vec<OtherFile>, ApiError> {
    let file = |mut file: Fields| {
        let text = file.require("text", Fields::string)?;
        let name = file.string("filename")?.unwrap_or_else(|| UNNAMED.to_owned());
        // Editors add further members, such as `time`.
        file.ignore_rest();
        Ok(OtherFile { name, text })
    };
    fields.objects("input_extra")?.unwrap_or_default().into_iter().map(file).collect()
}

/// Removes llama.cpp's sampler for infilling from `samplers`.
fn without_infill_sampler(fields: &mut Fields) {
    let Some(mut names) = fields.get("samplers").and_then(string_list) else { return };
    names.retain(|name| name != INFILL_SAMPLER);
    fields.replace("samplers", json!(names));
}

impl Gap {
    /// The prompt in the model's fill-in-the-middle format.
    fn prompt(self, generation: &GenerateParams, model: &ServedModel) -> Result<Prompt, ApiError> {
        const PARAM: &str = "input_prefix";
        let tokenizer = &model.tokenizer;
        let Some(infill) = Infill::of(tokenizer) else {
            let message = "this endpoint needs a model that was trained to fill in the middle, and this one's vocabulary has \
                           no tokens for it\nhint: `POST /v1/completions` continues a text";
            return Err(ApiError::invalid(PARAM, message));
        };
        model.check_text_length(PARAM, self.before.len())?;
        model.check_text_length("input_suffix", self.behind.len())?;
        model.check_text_length("prompt", self.begun.len())?;
        let n_extra = self.files.iter().map(|file| file.name.len() + file.text.len()).sum();
        model.check_text_length("input_extra", n_extra)?;
        let refusal = |param: &'static str| {
            move |error: hearth_model::Error| ApiError::invalid(param, format!("`{param}` cannot be encoded: {error}"))
        };
        let options = EncodeOptions { add_special_tokens: true, parse_special_tokens: false };
        let before = tokenizer.encode(&self.before, options).map_err(refusal(PARAM))?;
        let ids = infill.prompt_beside(tokenizer, &self.files, &before, &self.behind);
        let mut ids = ids.map_err(refusal("input_suffix"))?;
        if !self.begun.is_empty() {
            ids.extend(infill.encode(tokenizer, &self.begun).map_err(refusal("prompt"))?);
        }
        Ok(generation.prompt(ids, model).ending_on(infill.end_ids()))
    }
}

/// The state of an answer so far.
#[derive(Debug)]
struct Progress {
    model: String,
    prompt: String,
    arrived: Instant,
    first_token: Option<Instant>,
    has_new_line: bool,
    finish_reason: Option<&'static str>,
    stop_cause: Option<StopCause>,
}

impl Progress {
    fn new(model: String, prompt: String, arrived: Instant) -> Self {
        let (first_token, has_new_line, finish_reason, stop_cause) = (None, false, None, None);
        Self { model, prompt, arrived, first_token, has_new_line, finish_reason, stop_cause }
    }

    fn push(&mut self, mut piece: Answer) -> Answer {
        if !piece.token_ids.is_empty() {
            self.first_token.get_or_insert_with(Instant::now);
        }
        self.has_new_line |= piece.text.contains('\n');
        self.finish_reason = piece.finish_reason.or(self.finish_reason);
        self.stop_cause = piece.stop_cause.take().or(self.stop_cause.take());
        piece
    }

    fn ending(&self, usage: Usage) -> Ending {
        let stopping_word = match &self.stop_cause {
            Some(StopCause::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let stop_type = match self.finish_reason {
            Some("length") => "limit",
            _ if !stopping_word.is_empty() => "word",
            _ => "eos",
        };
        Ending {
            model: self.model.clone(),
            prompt: self.prompt.clone(),
            has_new_line: self.has_new_line,
            truncated: false,
            stop_type,
            stopping_word,
            tokens_cached: usage.prompt_tokens_details.cached_tokens,
            timings: self.timings(usage),
        }
    }

    fn timings(&self, usage: Usage) -> Timings {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        let (prompt_ms, predicted_ms) = (ms(self.arrived, first), ms(first, now));
        let cache_n = usage.prompt_tokens_details.cached_tokens;
        let (prompt_n, predicted_n) = (usage.prompt_tokens.saturating_sub(cache_n), usage.completion_tokens);
        let each = |ms: f64, n: usize| if n > 0 { ms / n as f64 } else { 0.0 };
        let per_second = |n: usize, ms: f64| if ms > 0.0 { n as f64 / ms * 1e3 } else { 0.0 };
        Timings {
            cache_n,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: each(prompt_ms, prompt_n),
            prompt_per_second: per_second(prompt_n, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: each(predicted_ms, predicted_n),
            predicted_per_second: per_second(predicted_n, predicted_ms),
        }
    }
}

/// Writes answers.
struct Writer {
    view: View,
    progress: Progress,
}

impl Writer {
    fn piece(&self, content: String, tokens: Vec<TokenId>, usage: Usage) -> WireInfilled {
        WireInfilled {
            content,
            tokens: if self.view.returns_tokens { tokens } else { Vec::new() },
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
            ..WireInfilled::default()
        }
    }

    /// The last event, or the whole answer: the requested members.
    fn last(&self, content: String, tokens: Vec<TokenId>, usage: Usage) -> Value {
        let ending = Some(self.progress.ending(usage));
        let whole = json!(WireInfilled { stop: true, ending, ..self.piece(content, tokens, usage) });
        let Some(fields) = &self.view.fields else { return whole };
        let found = fields.iter().filter_map(|path| Some((path.clone(), whole.pointer(&format!("/{path}"))?.clone())));
        Value::Object(found.collect::<Map<_, _>>())
    }
}

impl WriteEvents for Writer {
    fn item(&mut self, part: StreamItem) -> Vec<Frame> {
        let data = match part {
            StreamItem::Delta(delta, usage) => {
                let Answer { text, token_ids, .. } = self.progress.push(delta.piece);
                if text.is_empty() {
                    return Vec::new();
                }
                json!(self.piece(text, token_ids, usage))
            }
            StreamItem::End(usage) => self.last(String::new(), Vec::new(), usage),
        };
        vec![Frame { event: None, data: data.to_string() }]
    }

    fn failure(&mut self, error: ApiError) -> Vec<Frame> {
        vec![Frame { event: Some("error"), data: error.envelope().to_string() }]
    }
}
