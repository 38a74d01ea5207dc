//! An opened model, whatever its file format.

use std::path::Path;

use burn::tensor::Device;

use super::passed_over::shown;
use crate::{
    TokenId,
    decode::sampling::SamplingParams,
    gpt::{
        Gpt,
        pooling::{Classifier, OwnPooling, Prompts},
    },
    ops::Dtype,
    text::{chat::ChatTemplate, tokenizer::Tokenizer},
};

/// Where to put a model, and how to hold its matrices.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The device.
    pub device: Device,
    /// Dtype of matrices. `None`: the dtype in the files if that is bf16 or quantized and the device computes with it,
    /// else f32; for a GGUF file, the dtype in the file or the nearest one that the device supports.
    pub dtype: Option<Dtype>,
}

/// The contents of a model dir besides the model.
#[derive(Clone, Debug)]
pub struct LoadedText {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt, if the model knows conversations.
    pub chat_template: Option<ChatTemplate>,
    /// Tokens that end a text, as in [`LoadedModel`].
    pub eos_token_ids: Vec<TokenId>,
}

/// Everything that a model dir holds, ready to use.
#[derive(Debug)]
pub struct LoadedModel {
    /// The model.
    pub gpt: Gpt,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt, if the model knows conversations.
    pub chat_template: Option<ChatTemplate>,
    /// Tokens that end a text: the tokens in `generation_config.json`, else in `config.json`, else the tokenizer's
    /// `eos`. For a GGUF file, the tokens that it names and tokens known to end turns.
    pub eos_token_ids: Vec<TokenId>,
    /// The tokens with which the decoder of an encoder-decoder begins: `decoder_start_token_id`, then `forced_bos_token_id` if there
    /// is one. Empty for other models.
    pub decoder_start: Vec<TokenId>,
    /// Sampling parameters from `generation_config.json` or a GGUF file; others are neutral.
    pub sampling_defaults: SamplingParams,
    /// The pooling that the files state.
    pub own_pooling: OwnPooling,
    /// Whether it has an output matrix for text, as all but encoders and some models for vectors and scores do.
    pub writes_text: bool,
    /// The prompts of an embedding model.
    pub prompts: Prompts,
    /// The maximum number of tokens of a text that its files state, if any.
    pub text_limit: Option<usize>,
    /// The classification head, if there is one.
    pub classifier: Option<Classifier>,
}

impl LoadedModel {
    /// With a tokenizer that knows the size of the model's vocabulary. `path` is the tokenizer's file.
    pub(super) fn with_known_vocabulary(mut self, path: &Path) -> Self {
        let vocab_size = self.gpt.config().vocab_size;
        let beyond = vocab_size..self.tokenizer.vocab_size();
        let names: Vec<_> = beyond.filter_map(|id| self.tokenizer.token(id as TokenId)).collect();
        if !names.is_empty() {
            tracing::warn!(
                "`{}`: {} tokens are beyond the model's `vocab_size` of {vocab_size}, so texts with them are rejected: {}",
                path.display(),
                names.len(),
                shown(names.iter().map(String::as_str).collect())
            );
        }
        self.tokenizer = self.tokenizer.for_vocabulary(vocab_size);
        self
    }
}
