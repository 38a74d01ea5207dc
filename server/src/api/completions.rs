//! `POST /v1/completions`: [OpenAI's endpoint](https://platform.openai.com/docs/api-reference/completions) with the
//! sampling parameters that local servers add.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_model::{
    TokenId,
    sampling::SamplingParams,
    tokenizer::{DecodeOptions, EncodeOptions},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    error::ApiError,
    fields::{Fields, must_be, token_ids},
    state::{AppState, unix_seconds},
    stream::{self, Answer, Delta, Deltas, Echo, Part, TokenEntry, Usage},
};
use crate::{
    engine::{
        ServedModel,
        request::{GenerateRequest, MAX_LOGPROBS, RequestParts, StopConditions},
    },
    random::{fresh_id, random_u64},
};

/// Where `max_tokens` is not given; OpenAI's.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Most answers to one prompt.
const MAX_N: usize = 128;

/// Most answers to one request: prompts times `n`.
const MAX_CHOICES: usize = 2048;

/// What a client asks for, its types and ranges checked.
#[derive(Debug)]
struct CompletionRequest {
    model: Option<String>,
    prompts: Vec<Prompt>,
    n: usize,
    stream: bool,
    include_usage: bool,
    echo: bool,
    logprobs: Option<usize>,
    sampling: SamplingParams,
    stop: StopConditions,
    ignore_eos: bool,
}

#[derive(Clone, Debug)]
enum Prompt {
    Text(String),
    Ids(Vec<TokenId>),
}

#[derive(Debug, Serialize)]
struct Completion {
    #[serde(flatten)]
    head: Head,
    choices: Vec<WireChoice>,
    usage: Usage,
}

/// What every part of an answer repeats.
#[derive(Clone, Debug, Serialize)]
struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: Option<String>,
}

#[derive(Debug, Serialize)]
struct WireChoice {
    text: String,
    index: usize,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

/// Four arrays with one entry per token.
///
/// All log-probabilities go out as `f64`: an `f32` would be written with fewer digits in one place than as a JSON value
/// in another, and lm-eval compares a token's with the largest alternative's for equality.
#[derive(Debug, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

/// A prompt as token ids, and how its answer starts.
#[derive(Debug)]
struct PreparedPrompt {
    ids: Vec<TokenId>,
    echo: Option<Echo>,
}

/// Answers a completion request, streamed or not.
pub(crate) async fn create(State(state): State<AppState>, fields: Fields) -> Result<Response, ApiError> {
    let request = CompletionRequest::from_fields(fields)?;
    if let Some(name) = request.model.as_deref().filter(|name| *name != state.model_id()) {
        return Err(ApiError::unknown_model(name, state.model_id()));
    }
    let engine = state.working_engine()?.clone();
    let tokenizer = engine.model().tokenizer.clone();
    let (n, streams, include_usage) = (request.n, request.stream, request.include_usage);
    // Tokenizing a long text takes a while, and this thread serves others.
    let submitted = tokio::task::spawn_blocking(move || {
        let prompts = request.prepare_prompts(engine.model())?;
        let events = engine.submit(request.into_requests(&prompts, engine.model())?)?;
        Ok::<_, ApiError>((prompts, events))
    });
    let (prompts, events) =
        submitted.await.map_err(|error| ApiError::internal(format!("preparing the prompt failed: {error}")))??;

    let head = Head {
        id: fresh_id("cmpl-"),
        object: "text_completion",
        created: unix_seconds(),
        model: state.model_id().to_owned(),
        system_fingerprint: None,
    };
    let n_prompt = prompts.iter().map(|prompt| prompt.ids.len()).sum();
    let echoes = prompts.into_iter().flat_map(|prompt| vec![prompt.echo; n]).collect();
    let deltas = Deltas::new(&head.id, events, tokenizer, echoes).with_prompt_tokens(n_prompt);
    if streams {
        return Ok(stream::sse(deltas, move |part| chunk(&head, part, include_usage)));
    }
    let (answers, usage) = deltas.fold().await?;
    let choices = answers.into_iter().enumerate().map(|(index, answer)| WireChoice::whole(index, answer)).collect();
    Ok(Json(Completion { head, choices, usage }).into_response())
}

impl CompletionRequest {
    fn from_fields(mut fields: Fields) -> Result<Self, ApiError> {
        let prompts = prompts(&mut fields)?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        let n = fields.count("n", 1..=MAX_N)?.unwrap_or(1);
        if prompts.len() * n > MAX_CHOICES {
            let given = prompts.len();
            let message = format!("`prompt` times `n` must be at most {MAX_CHOICES} answers, got {given} times {n}");
            return Err(ApiError::invalid("prompt", message));
        }
        refuse_unsupported(&mut fields, n)?;
        let mut stream_options = fields.object("stream_options")?;
        let stop = StopConditions {
            max_tokens: max_tokens(&mut fields, echo)?,
            min_tokens: fields.count("min_tokens", 0..=usize::MAX)?.unwrap_or(0),
            stop_strings: fields.strings("stop")?,
            stop_token_ids: fields.token_ids("stop_token_ids")?.into_iter().collect(),
        };
        Ok(Self {
            model: fields.string("model")?,
            prompts,
            n,
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage: match &mut stream_options {
                Some(options) => options.flag("include_usage")?.unwrap_or(false),
                None => false,
            },
            echo,
            logprobs: fields.count("logprobs", 0..=MAX_LOGPROBS)?,
            sampling: sampling(&mut fields)?,
            stop,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        })
    }

    fn prepare_prompts(&self, model: &ServedModel) -> Result<Vec<PreparedPrompt>, ApiError> {
        let prompts = self.prompts.iter().map(|prompt| {
            let ids = match prompt {
                Prompt::Ids(ids) => ids.clone(),
                Prompt::Text(text) => {
                    let ids = model.tokenizer.encode(text, EncodeOptions::PROMPT);
                    ids.map_err(|error| ApiError::invalid("prompt", format!("`prompt` cannot be encoded: {error}")))?
                }
            };
            let echo = self.echo.then(|| Echo {
                text: match prompt {
                    Prompt::Text(text) => text.clone(),
                    Prompt::Ids(ids) => model.tokenizer.decode(ids, DecodeOptions { skip_special_tokens: false }),
                },
                prompt_ids: ids.clone(),
                with_logprobs: self.logprobs.is_some(),
            });
            Ok(PreparedPrompt { ids, echo })
        });
        prompts.collect()
    }

    /// One request per choice: the first prompt's `n` choices, then the second's.
    fn into_requests(self, prompts: &[PreparedPrompt], model: &ServedModel) -> Result<Vec<GenerateRequest>, ApiError> {
        let mut stop = self.stop;
        if !self.ignore_eos {
            stop.stop_token_ids.extend(&model.eos_token_ids);
        }
        let mut requests = Vec::with_capacity(prompts.len() * self.n);
        for prompt in prompts {
            for choice in 0..self.n {
                let parts = RequestParts {
                    prompt_ids: prompt.ids.clone(),
                    sampling: self.sampling.clone(),
                    stop: stop.clone(),
                    choice: choice as u32,
                    logprobs: self.logprobs,
                    prompt_logprobs: self.logprobs.filter(|_| self.echo),
                };
                requests.push(GenerateRequest::new(parts, &model.limits)?);
            }
        }
        Ok(requests)
    }
}

fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    const ALLOWED: &str = "a string, an array of strings, an array of token ids, or an array of such arrays";
    let Some(value) = fields.take("prompt") else {
        return Err(ApiError::invalid("prompt", format!("`prompt` is required: {ALLOWED}")));
    };
    let one = |value: &Value| match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        value => token_ids(value).map(Prompt::Ids),
    };
    let prompts = match &value {
        Value::Array(items) if items.iter().any(|item| !item.is_number()) => items.iter().map(one).collect(),
        Value::Array(items) if items.is_empty() => None,
        single => one(single).map(|prompt| vec![prompt]),
    };
    prompts.ok_or_else(|| must_be("prompt", ALLOWED, &value))
}

fn max_tokens(fields: &mut Fields, echo: bool) -> Result<usize, ApiError> {
    let max_tokens = fields.count("max_tokens", 0..=usize::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && !echo {
        let message = "`max_tokens` must be at least 1, got `0`\nhint: 0 is allowed with `echo`";
        return Err(ApiError::invalid("max_tokens", message));
    }
    Ok(max_tokens)
}

fn sampling(fields: &mut Fields) -> Result<SamplingParams, ApiError> {
    let default = SamplingParams::default();
    let penalty = fields.number("repetition_penalty", 0.0..=f32::INFINITY)?;
    let alias = fields.number("repeat_penalty", 0.0..=f32::INFINITY)?;
    Ok(SamplingParams {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(default.temperature),
        // 0 and -1 both mean that nothing is cut off.
        top_k: fields
            .integer("top_k", -1..=i64::MAX)?
            .map_or(default.top_k, |top_k| usize::try_from(top_k).unwrap_or(0)),
        // OpenAI allows 0, "the fewest tokens that reach nothing": the most likely one.
        top_p: fields.number("top_p", 0.0..=1.0)?.map_or(default.top_p, |top_p| top_p.max(f32::MIN_POSITIVE)),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(default.min_p),
        repetition_penalty: penalty.or(alias).unwrap_or(default.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(default.frequency_penalty),
        logit_bias: logit_bias(fields)?,
        // Without a seed, no two requests are alike.
        seed: fields.seed("seed")?.unwrap_or_else(random_u64),
    })
}

fn logit_bias(fields: &mut Fields) -> Result<BTreeMap<TokenId, f32>, ApiError> {
    const ALLOWED: &str = "an object of token ids with numbers from -100 to 100";
    let Some(entries) = fields.object("logit_bias")? else { return Ok(BTreeMap::new()) };
    let biases = entries.into_entries().map(|(id, bias)| {
        let number = bias.as_f64().map(|bias| bias as f32).filter(|bias| (-100.0..=100.0).contains(bias));
        let parsed = id.parse().ok().zip(number);
        parsed.ok_or_else(|| must_be("logit_bias", ALLOWED, &json!({ id: bias })))
    });
    biases.collect()
}

/// Parameters of the API that would change the answer and that are not served: a clear no instead of another answer.
fn refuse_unsupported(fields: &mut Fields, n: usize) -> Result<(), ApiError> {
    if let Some(best_of) = fields.count("best_of", 1..=MAX_N)?
        && best_of != n
    {
        let message = format!("`best_of` is not supported: it must be equal to `n`, got {best_of} and {n}");
        return Err(ApiError::invalid("best_of", message));
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::invalid("suffix", "`suffix` is not supported: the model cannot fill in the middle"));
    }
    Ok(())
}

/// One event of a stream.
fn chunk(head: &Head, part: Part, include_usage: bool) -> Option<Value> {
    let mut chunk = json!(head);
    match part {
        Part::Delta(delta) => {
            chunk["choices"] = json!([WireChoice::part(delta)]);
            if include_usage {
                chunk["usage"] = Value::Null;
            }
        }
        Part::Usage(usage) if include_usage => {
            chunk["choices"] = json!([]);
            chunk["usage"] = json!(usage);
        }
        Part::Usage(_) => return None,
    }
    Some(chunk)
}

impl WireChoice {
    fn whole(index: usize, Answer { text, logprobs, finish_reason }: Answer) -> Self {
        Self { text, index, logprobs: logprobs.map(Logprobs::new), finish_reason }
    }

    fn part(Delta { index, text, logprobs, finish_reason }: Delta) -> Self {
        Self { text, index, logprobs: logprobs.map(Logprobs::new), finish_reason }
    }
}

impl Logprobs {
    fn new(entries: Vec<TokenEntry>) -> Self {
        let mut logprobs =
            Self { tokens: Vec::new(), token_logprobs: Vec::new(), top_logprobs: Vec::new(), text_offset: Vec::new() };
        for TokenEntry { token, logprob, top, text_offset } in entries {
            logprobs.tokens.push(token);
            logprobs.token_logprobs.push(logprob.map(f64::from));
            logprobs.top_logprobs.push(top.map(top_object));
            logprobs.text_offset.push(text_offset);
        }
        logprobs
    }
}

/// Alternatives by their text. Tokens that look alike are one entry: the most likely, which comes first.
fn top_object(top: Vec<(String, f32)>) -> Map<String, Value> {
    let mut object = Map::new();
    for (token, logprob) in top {
        object.entry(token).or_insert_with(|| json!(f64::from(logprob)));
    }
    object
}
