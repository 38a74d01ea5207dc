//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, with vLLM's names, which lm-eval uses.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use hearth_engine::ServedModel;
use hearth_model::{
    TokenId,
    text::tokenizer::{DecodeOptions, EncodeOptions, SpecialToken, Tokenizer},
};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::api::{
    error::ApiError,
    exchange::{adapters, conversation::Conversation, stream::MAX_ANSWER_BYTES},
    guard::{options::RequestTemplates, preparation::WorkClass},
    wire::{
        body::Body,
        endpoint::{Link, Operation, ParamIn, ResponseBody, schema_of},
        fields::{Fields, must_be, token_ids},
        ignored_params,
        schema::{self, Shape},
        state::AppState,
    },
};

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Tokens {
    count: usize,
    /// Context length in tokens: prompt and answer together.
    max_model_len: usize,
    tokens: Vec<TokenId>,
    /// The tokens as spelled in the vocabulary, if requested.
    #[schemars(with = "Option<Vec<Option<String>>>")]
    token_strs: Option<TokenStrings>,
}

/// Tokens as spelled in the vocabulary. Converted during serialization, because strings take many times the memory of
/// ids.
#[derive(Debug)]
struct TokenStrings {
    ids: Vec<TokenId>,
    tokenizer: Tokenizer,
}

impl Serialize for TokenStrings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ids.iter().map(|&id| self.tokenizer.token(id)))
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Text {
    prompt: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenizerInfo {
    tokenizer_class: &'static str,
    vocab_size: usize,
    max_model_len: usize,
    bos_token: Option<String>,
    eos_token: Option<String>,
    pad_token: Option<String>,
    unk_token: Option<String>,
    chat_template: Option<String>,
}

/// The request of `/tokenize`.
struct TokenizeRequest {
    model: Option<String>,
    returns_strings: bool,
    source: TokenizeInput,
}

impl TokenizeRequest {
    fn from_fields(fields: &mut Fields, templates: RequestTemplates) -> Result<Self, ApiError> {
        Ok(Self {
            model: fields.string("model")?,
            returns_strings: fields.flag_or("return_token_strs", false)?,
            source: source(fields, templates)?,
        })
    }
}

/// The request of `/detokenize`.
struct DetokenizeRequest {
    model: Option<String>,
    ids: Vec<TokenId>,
    options: DecodeOptions,
}

impl DetokenizeRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        const ALLOWED: &str = "an array of token ids";
        let value = fields.require_as("tokens", ALLOWED, || schema::array(schema::token_id(), 0))?;
        Ok(Self {
            model: fields.string("model")?,
            ids: token_ids(&value).ok_or_else(|| must_be("tokens", ALLOWED, &value))?,
            options: DecodeOptions { skip_special_tokens: fields.flag_or("skip_special_tokens", false)? },
        })
    }
}

/// The text to tokenize.
enum TokenizeInput {
    Prompt(String, EncodeOptions),
    Conversation(Box<Conversation>),
}

/// The endpoint's entry in `/openapi.json`.
pub(crate) const TOKENIZE: Operation = Operation::post(
    "Convert a prompt or a conversation to token ids",
    describe_tokenize,
    ResponseBody::Json(schema_of::<Tokens>),
)
.with_links(&[Link {
    name: "Detokenize",
    to: "/detokenize",
    param_in: ParamIn::Body,
    param: "tokens",
    from: "/tokens",
}]);

/// The endpoint's entry in `/openapi.json`.
pub(crate) const DETOKENIZE: Operation =
    Operation::post("Convert token ids to text", describe_detokenize, ResponseBody::Json(schema_of::<Text>))
        .with_links(&[Link {
            name: "Tokenize",
            to: "/tokenize",
            param_in: ParamIn::Body,
            param: "prompt",
            from: "/prompt",
        }]);

/// The endpoint's entry in `/openapi.json`.
pub(crate) const TOKENIZER_INFO: Operation = Operation::get(
    "The tokenizer's special tokens and the chat template",
    ResponseBody::Json(schema_of::<TokenizerInfo>),
);

fn describe_tokenize(state: &AppState, shape: &Shape) -> Result<(), ApiError> {
    let message = json!({ "role": "user", "content": "x" });
    let tool = json!({ "type": "function", "function": { "name": "x" } });
    for example in [json!({ "prompt": "x" }), json!({ "messages": [message], "tools": [tool] })] {
        TokenizeRequest::from_fields(&mut Fields::describing(example, shape), state.options().request_templates)?;
    }
    // Only used without `prompt`.
    shape.note_optional("messages");
    Ok(())
}

fn describe_detokenize(_: &AppState, shape: &Shape) -> Result<(), ApiError> {
    DetokenizeRequest::from_fields(&mut Fields::describing(json!({ "tokens": [0] }), shape)).map(drop)
}

/// Tokenizes a prompt or a conversation exactly as the generation endpoints do.
pub(crate) async fn tokenize(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let templates = state.options().request_templates;
    let read = move |mut fields: Fields| {
        let request = TokenizeRequest::from_fields(&mut fields, templates)?;
        Ok((request, ignored_params::of(&fields), fields.n_bytes()))
    };
    let (request, ignored, n_bytes) = body.read(&state, read).await?;
    let TokenizeRequest { model: name, returns_strings, source } = request;
    let model = model(&state, &body, name)?;
    let preparation = match &source {
        TokenizeInput::Prompt(..) => WorkClass::of_body(n_bytes),
        TokenizeInput::Conversation(conversation) => conversation.preparation(n_bytes),
    };
    let encode = move || {
        let tokens = match source {
            TokenizeInput::Prompt(text, options) => model
                .tokenizer
                .encode(&text, options)
                .map_err(|error| ApiError::invalid("prompt", format!("`prompt` cannot be encoded: {error}")))?,
            TokenizeInput::Conversation(conversation) => {
                let template = conversation.template(&model)?;
                // No limit: this endpoint counts the tokens of texts of any length.
                conversation.encode(&template, &model, |_| Ok(()))?
            }
        };
        let strings = || TokenStrings { ids: tokens.clone(), tokenizer: model.tokenizer.clone() };
        let encoded = Tokens {
            count: tokens.len(),
            max_model_len: model.limits.max_seq_len,
            token_strs: returns_strings.then(strings),
            tokens,
        };
        Ok(Json(encoded).into_response())
    };
    Ok(ignored_params::add_header(ignored, state.prepare(preparation, body.turn_wait(), encode).await?))
}

/// Converts token ids to text, with special tokens unless the request has `skip_special_tokens`.
pub(crate) async fn detokenize(State(state): State<AppState>, mut body: Body) -> Result<Response, ApiError> {
    let read = |mut fields: Fields| {
        let request = DetokenizeRequest::from_fields(&mut fields)?;
        Ok((request, ignored_params::of(&fields), fields.n_bytes()))
    };
    let (request, ignored, n_bytes) = body.read(&state, read).await?;
    let DetokenizeRequest { model: name, ids, options } = request;
    let model = model(&state, &body, name)?;
    let decode = move || {
        let vocab_size = model.limits.vocab_size;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
            let message = format!("`tokens` must contain token ids below {vocab_size}, got {id}");
            return Err(ApiError::invalid("tokens", message));
        }
        let n_bytes: usize = ids.iter().map(|&id| model.tokenizer.token_bytes(id).len()).sum();
        if n_bytes > MAX_ANSWER_BYTES {
            let message = format!("the text of `tokens` must be at most {MAX_ANSWER_BYTES} bytes, got {n_bytes}");
            return Err(ApiError::invalid("tokens", message));
        }
        Ok(Json(Text { prompt: model.tokenizer.decode(&ids, options) }).into_response())
    };
    let preparation = WorkClass::of_body(n_bytes);
    Ok(ignored_params::add_header(ignored, state.prepare_long(preparation, body.turn_wait(), decode).await?))
}

/// The special tokens and the chat template.
pub(crate) async fn tokenizer_info(State(state): State<AppState>) -> Result<Json<TokenizerInfo>, ApiError> {
    let model = state.working_engine()?.model();
    let content = |token: Option<SpecialToken>| token.map(|token| token.content);
    Ok(Json(TokenizerInfo {
        tokenizer_class: "PreTrainedTokenizerFast",
        vocab_size: model.tokenizer.vocab_size(),
        max_model_len: model.limits.max_seq_len,
        bos_token: content(model.tokenizer.bos()),
        eos_token: content(model.tokenizer.eos()),
        pad_token: content(model.tokenizer.pad()),
        unk_token: content(model.tokenizer.unk()),
        chat_template: model.chat_template.as_ref().map(|template| template.source().to_owned()),
    }))
}

/// The served model; an error if `name` is neither the model nor an adapter. Adapters have the same vocabulary.
fn model(state: &AppState, body: &Body, name: Option<String>) -> Result<std::sync::Arc<ServedModel>, ApiError> {
    adapters::choose(state, name.as_deref())?;
    Ok(state.engine_for(body.arrived())?.model().clone())
}

fn source(fields: &mut Fields, templates: RequestTemplates) -> Result<TokenizeInput, ApiError> {
    match (fields.string("prompt")?, fields.has("messages")) {
        (Some(_), true) => {
            Err(ApiError::invalid("prompt", "`prompt` cannot be combined with `messages`: send one of them"))
        }
        (None, false) => {
            Err(ApiError::invalid("prompt", "`prompt` is required: a string, unless there are `messages`"))
        }
        (Some(prompt), false) => {
            let add_special_tokens = fields.flag_or("add_special_tokens", true)?;
            Ok(TokenizeInput::Prompt(prompt, EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT }))
        }
        (None, true) => Ok(TokenizeInput::Conversation(Box::new(Conversation::from_fields(fields, templates)?))),
    }
}
