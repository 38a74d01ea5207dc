//! The served model, for use outside the inference thread.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use hearth_model::{
    TokenId,
    config::GptConfig,
    decode::{constraint::GrammarCompiler, inspect::Inspector, sampling::SamplingParams},
    gpt::pooling::{Classifier, OwnPooling, Prompts},
    text::{chat::ChatTemplate, tokenizer::Tokenizer},
};

use crate::request::{ModelLimits, ValidationError};

/// Data about the served model, for use outside the inference thread.
#[derive(Debug)]
pub struct ServedModel {
    /// The architecture.
    pub config: GptConfig,
    /// Limits for requests.
    pub limits: ModelLimits,
    /// Maximum number of bytes of a text that can fit into the context; `None` if unknown.
    pub max_text_bytes: Option<usize>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
    pub chat_template: Option<ChatTemplate>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<TokenId>,
    /// The tokens with which the decoder of an encoder-decoder begins; empty for other models.
    pub decoder_start: Vec<TokenId>,
    /// Defaults of sampling parameters.
    pub sampling_defaults: SamplingParams,
    /// The pooling that the model's files state.
    pub own_pooling: OwnPooling,
    /// The prompts of an embedding model.
    pub prompts: Prompts,
    /// The classification head, if the model has one.
    pub classifier: Option<Classifier>,
    /// A fingerprint of everything except the weights that affects answers: the version, the architecture, dtypes, the
    /// precision and the device. If it changes, the same seeds may give other answers.
    pub fingerprint: String,
    /// Computes attention maps and the predictions of layers.
    pub inspector: Inspector,
    /// The name of the device that computes.
    pub device: String,
    /// The dtype of most weights.
    pub dtype: String,
    /// The grammar compiler for structured output, created on first use.
    pub(crate) grammars: OnceLock<hearth_model::Result<GrammarCompiler>>,
    /// The tokens of DRY's default sequence breakers, found on first use.
    pub default_breakers: OnceLock<Arc<BTreeSet<TokenId>>>,
}

impl ServedModel {
    /// The grammar compiler for structured output. The first call creates it.
    ///
    /// # Errors
    /// The vocabulary does not support grammars.
    pub fn grammars(&self) -> Result<&GrammarCompiler, &hearth_model::Error> {
        self.grammars.get_or_init(|| GrammarCompiler::new(&self.tokenizer)).as_ref()
    }

    /// Most tokens of a text that the model reads: of the source, if it is an encoder-decoder.
    pub fn max_prompt_len(&self) -> usize {
        match self.limits.max_source_len {
            0 => self.limits.max_seq_len,
            max_source_len => max_source_len,
        }
    }

    /// Checks whether a text of `n_bytes`, the parameter `param`, may fit into the context, before it is tokenized.
    ///
    /// # Errors
    /// It has too many bytes.
    pub fn check_text_length(&self, param: &'static str, n_bytes: usize) -> Result<(), ValidationError> {
        let max_seq_len = self.max_prompt_len();
        match self.max_text_bytes {
            Some(most) if n_bytes > most => {
                let n_tokens = (n_bytes as u128 * max_seq_len as u128).div_ceil(most.max(1) as u128) as usize;
                Err(ValidationError::TextLength { param, n_bytes, n_tokens, max_seq_len })
            }
            _ => Ok(()),
        }
    }
}
