//! Why a request is invalid.

use hearth_model::{Error, TokenId, decode::sampling::beam::BeamKind};

use super::{MAX_LOGPROBS, PRIORITIES, strategy_name};

/// Why a request is invalid. Messages use the names of parameters in requests.
#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    /// The prompt has no tokens.
    #[error("`{param}` must hold at least one token, got none")]
    Empty {
        /// The parameter that should hold them.
        param: &'static str,
    },
    /// The model is an encoder.
    #[error(
        "this model is an encoder: it makes vectors, scores or classes of texts, and writes none\nhint: use `/v1/embeddings`, \
         `/v1/rerank`, `/v1/score`, `/classify` or `/pooling`"
    )]
    Encoder,
    /// The model is an encoder-decoder, and the request wants a vector.
    #[error(
        "this model is an encoder-decoder: it writes texts about sources, and makes no vectors\nhint: use `/v1/completions`"
    )]
    NoVectors,
    /// The model is an encoder-decoder, and the endpoint gives it no source.
    #[error(
        "this model is an encoder-decoder: it reads a source and writes a text about it, and has no conversations\nhint: use \
         `/v1/completions`, with the source as `prompt`"
    )]
    NoSource,
    /// The model has no encoder that could read a source.
    #[error(
        "`{param}` is for encoder-decoders, and this model has no encoder that reads a source\nhint: put the text into `prompt`"
    )]
    NoEncoder {
        /// The parameter.
        param: &'static str,
    },
    /// The source has too many tokens.
    #[error(
        "the source has {n_tokens} tokens, but the encoder reads at most {max_source_len}\nhint: `truncate_prompt_tokens` cuts it"
    )]
    SourceLength {
        /// The parameter.
        param: &'static str,
        /// Tokens of the source.
        n_tokens: usize,
        /// Most tokens of a source.
        max_source_len: usize,
    },
    /// The source and the beginning of the answer leave no room in the KV cache.
    #[error(
        "the source has {n_tokens} tokens, and with what begins the answer it fills the KV cache, which has room for {n_places}\nhint: \
         shorten the source, or start the server with a larger `--kv-cache-tokens`"
    )]
    SourcePlaces {
        /// The parameter.
        param: &'static str,
        /// Tokens of the source.
        n_tokens: usize,
        /// Tokens that the KV cache has room for.
        n_places: usize,
    },
    /// The beginning of an encoder-decoder's answer leaves no room in the decoder's context.
    #[error("`decoder_prompt` begins the answer with {n_tokens} tokens, and the decoder's context has {max_seq_len}")]
    DecoderLength {
        /// Number of tokens of that beginning, including those that the model's files prescribe.
        n_tokens: usize,
        /// The decoder's context.
        max_seq_len: usize,
    },
    /// Encoder-decoders have no adapters.
    #[error("adapters are not supported for an encoder-decoder")]
    NoAdapters,
    /// Encoder-decoders do not support a parameter.
    #[error("`{param}` is not supported for an encoder-decoder")]
    NotWithSource {
        /// The parameter.
        param: &'static str,
    },
    /// A token id is outside the vocabulary.
    #[error("`{param}` must hold token ids below {vocab_size}, got {id}")]
    TokenId {
        /// The parameter.
        param: &'static str,
        /// The id.
        id: TokenId,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// Prompt and answer do not fit into the context.
    #[error(
        "This model's maximum context length is {max_seq_len} tokens, of prompt and answer together, but the prompt has \
         {n_prompt} and an answer needs at least one\nhint: `truncate_prompt_tokens` cuts the prompt"
    )]
    ContextLength {
        /// The parameter that has the prompt.
        param: &'static str,
        /// Tokens in the prompt.
        n_prompt: usize,
        /// Context length in tokens.
        max_seq_len: usize,
    },
    /// The text to embed does not fit into the context.
    #[error(
        "`{param}` has a text of {n_tokens} tokens, but the context holds {max_seq_len}\nhint: `truncate_prompt_tokens` cuts it"
    )]
    InputLength {
        /// The parameter that has the text.
        param: &'static str,
        /// Tokens in the text.
        n_tokens: usize,
        /// Context length in tokens.
        max_seq_len: usize,
    },
    /// A text has too many bytes to fit into the context.
    #[error(
        "This model's maximum context length is {max_seq_len} tokens, but `{param}` has {n_bytes} bytes of text, which are \
         at least {n_tokens} tokens\nhint: `truncate_prompt_tokens` cuts it"
    )]
    TextLength {
        /// The parameter that has the text.
        param: &'static str,
        /// Bytes of the text.
        n_bytes: usize,
        /// A lower bound of the number of its tokens.
        n_tokens: usize,
        /// Context length in tokens.
        max_seq_len: usize,
    },
    /// A stop string is empty: it would end every text at its start.
    #[error("`stop` must not hold an empty string")]
    EmptyStopString,
    /// `min_tokens` exceeds `max_tokens`.
    #[error("`min_tokens` must be at most `max_tokens`, got {min_tokens} and {max_tokens}")]
    MinTokens {
        /// As given.
        min_tokens: usize,
        /// As given.
        max_tokens: usize,
    },
    /// Too many alternatives.
    #[error("`{param}` must be at most {MAX_LOGPROBS}, got {given}")]
    Logprobs {
        /// The parameter.
        param: &'static str,
        /// As given.
        given: usize,
    },
    /// A priority out of range.
    #[error("`priority` must be from {} to {}, got {given}", PRIORITIES.start(), PRIORITIES.end())]
    Priority {
        /// As given.
        given: i32,
    },
    /// The number of beams is 0, exceeds the number of sequences that may run at once, or is below the number of
    /// answers to return.
    #[error(
        "`best_of` must be from `n` to {max_batch_size} beams, the sequences that run at once, got {width} with `n` \
         {n_best}"
    )]
    BeamWidth {
        /// As given.
        width: usize,
        /// As given.
        n_best: usize,
        /// Sequences that run at once.
        max_batch_size: usize,
    },
    /// The beams do not fit into the KV cache even if no other request runs.
    #[error(
        "`best_of` of {width} beams with up to {n_tokens} tokens each needs {needed} pages of the KV cache, which has \
         {n_pages}\nhint: lower `best_of` or `max_tokens`"
    )]
    BeamPages {
        /// As given.
        width: usize,
        /// Tokens of prompt and answer.
        n_tokens: usize,
        /// Pages that all beams could fill, counting shared pages of the prompt once.
        needed: usize,
        /// Pages of the KV cache.
        n_pages: usize,
    },
    /// Beam search does not support a parameter.
    #[error("`{param}` does not go with `{}`", strategy_name(*kind))]
    NotWithBeams {
        /// The parameter.
        param: &'static str,
        /// The kind of search.
        kind: BeamKind,
    },
    /// A parameter could exclude all tokens of a constrained answer, or cut it.
    #[error("`{param}` cannot be combined with `{constraint}`: {why}")]
    NotWithConstraint {
        /// The parameter.
        param: &'static str,
        /// The parameter with the constraint.
        constraint: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// All allowed tokens are stop tokens, which are excluded until `min_tokens`.
    #[error("`allowed_token_ids` must hold a token that does not end the answer while `min_tokens` is above 0")]
    OnlyStopTokens,
    /// All tokens are stop tokens, which are excluded until `min_tokens`.
    #[error("`stop_token_ids` must leave a token of the vocabulary while `min_tokens` is above 0")]
    AllStopTokens,
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(Error),
}

impl ValidationError {
    /// The parameter that caused the error, by its name in requests.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::InputLength { param, .. } => Some(param),
            Self::ContextLength { param, .. } | Self::TextLength { param, .. } => Some(param),
            Self::Encoder | Self::NoVectors | Self::NoSource => None,
            Self::NoEncoder { param } | Self::NotWithSource { param } => Some(param),
            Self::SourceLength { param, .. } | Self::SourcePlaces { param, .. } => Some(param),
            Self::DecoderLength { .. } => Some("decoder_prompt"),
            Self::NoAdapters => Some("model"),
            Self::Empty { param } | Self::TokenId { param, .. } | Self::Logprobs { param, .. } => Some(param),
            Self::EmptyStopString => Some("stop"),
            Self::MinTokens { .. } => Some("min_tokens"),
            Self::Priority { .. } => Some("priority"),
            Self::BeamWidth { .. } | Self::BeamPages { .. } => Some("best_of"),
            Self::NotWithBeams { param, .. } | Self::NotWithConstraint { param, .. } => Some(param),
            Self::OnlyStopTokens => Some("allowed_token_ids"),
            Self::AllStopTokens => Some("stop_token_ids"),
            Self::Sampling(Error::Param { name, .. }) => Some(name),
            Self::Sampling(_) => None,
        }
    }

    /// The error with `name` in place of `prompt` or `input`, for endpoints that read the prompt from another parameter.
    #[must_use]
    pub fn with_prompt_param(mut self, name: &'static str) -> Self {
        if let Self::ContextLength { param, .. }
        | Self::InputLength { param, .. }
        | Self::SourceLength { param, .. }
        | Self::SourcePlaces { param, .. }
        | Self::Empty { param }
        | Self::TokenId { param, .. } = &mut self
            && ["prompt", "input"].contains(param)
        {
            *param = name;
        }
        self
    }
}
