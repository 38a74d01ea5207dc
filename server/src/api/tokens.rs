//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, under vLLM's names, with which lm-eval takes the
//! server for its tokenizer.

use axum::{Json, extract::State};
use hearth_model::{
    TokenId,
    tokenizer::{DecodeOptions, EncodeOptions, SpecialToken},
};
use serde::Serialize;

use super::{conversation::Conversation, error::ApiError, fields::Fields, state::AppState};
use crate::engine::ServedModel;

#[derive(Debug, Serialize)]
pub(crate) struct Tokens {
    count: usize,
    /// Tokens of prompt and answer together.
    max_model_len: usize,
    tokens: Vec<TokenId>,
    /// As the vocabulary spells them, if asked for.
    token_strs: Option<Vec<Option<String>>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Text {
    prompt: String,
}

#[derive(Debug, Serialize)]
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

/// What to encode.
enum Source {
    Prompt(String, EncodeOptions),
    Conversation(Box<Conversation>),
}

/// The ids of a prompt or of a conversation, as the generation endpoints would read them.
pub(crate) async fn tokenize(State(state): State<AppState>, mut fields: Fields) -> Result<Json<Tokens>, ApiError> {
    let model = model(&state, &mut fields)?;
    let returns_strings = fields.flag("return_token_strs")?.unwrap_or(false);
    let source = source(&mut fields)?;
    // Tokenizing a long text takes a while, and this thread serves others.
    let encoded = tokio::task::spawn_blocking(move || {
        let tokens = match source {
            Source::Prompt(text, options) => model
                .tokenizer
                .encode(&text, options)
                .map_err(|error| ApiError::invalid("prompt", format!("`prompt` cannot be encoded: {error}")))?,
            Source::Conversation(conversation) => conversation.encode(&model)?,
        };
        let strings = || tokens.iter().map(|&id| model.tokenizer.token(id)).collect();
        Ok(Json(Tokens {
            count: tokens.len(),
            max_model_len: model.limits.max_seq_len,
            token_strs: returns_strings.then(strings),
            tokens,
        }))
    });
    encoded.await.map_err(|error| ApiError::internal(format!("encoding failed: {error}")))?
}

/// The text of token ids, special tokens included.
pub(crate) async fn detokenize(State(state): State<AppState>, mut fields: Fields) -> Result<Json<Text>, ApiError> {
    let model = model(&state, &mut fields)?;
    let Some(ids) = fields.token_ids("tokens")? else {
        return Err(ApiError::invalid("tokens", "`tokens` is required: an array of token ids"));
    };
    let vocab_size = model.limits.vocab_size;
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
        return Err(ApiError::invalid("tokens", format!("`tokens` must hold token ids below {vocab_size}, got {id}")));
    }
    let skips = fields.flag("skip_special_tokens")?.unwrap_or(false);
    Ok(Json(Text { prompt: model.tokenizer.decode(&ids, DecodeOptions { skip_special_tokens: skips }) }))
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
        chat_template: model.chat_template.as_ref().map(|template| template.source()),
    }))
}

/// The served model, if that is the one that `model` names.
pub(crate) fn model(state: &AppState, fields: &mut Fields) -> Result<std::sync::Arc<ServedModel>, ApiError> {
    if let Some(name) = fields.string("model")?.filter(|name| name != state.model_id()) {
        return Err(ApiError::unknown_model(&name, state.model_id()));
    }
    Ok(state.working_engine()?.model().clone())
}

fn source(fields: &mut Fields) -> Result<Source, ApiError> {
    match (fields.string("prompt")?, fields.has("messages")) {
        (Some(_), true) => {
            Err(ApiError::invalid("prompt", "`prompt` cannot be combined with `messages`: give one of them"))
        }
        (None, false) => Err(ApiError::invalid("prompt", "`prompt` is required: a string; or else `messages`")),
        (Some(prompt), false) => {
            let add_special_tokens = fields.flag("add_special_tokens")?.unwrap_or(true);
            Ok(Source::Prompt(prompt, EncodeOptions { add_special_tokens, ..EncodeOptions::PROMPT }))
        }
        (None, true) => Ok(Source::Conversation(Box::new(Conversation::from_fields(fields)?))),
    }
}
