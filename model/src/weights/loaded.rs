//! An opened model, whatever its file format.

use std::path::Path;

use burn::tensor::Device;

use crate::{
    TokenId,
    chat::ChatTemplate,
    error::{Error, Result},
    gpt::Gpt,
    ops::Dtype,
    sampling::SamplingParams,
    tokenizer::Tokenizer,
};

/// Where to put a model, and how to hold its matrices.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The device.
    pub device: Device,
    /// Dtype of matrices. `None`: the dtype in the files if that is bf16 or quantized and the device computes with it, else
    /// f32; for a GGUF file, the dtype in the file or the nearest that the device computes with.
    pub dtype: Option<Dtype>,
}

/// What a model dir holds beside the model.
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
    /// Tokens that end a text: those of `generation_config.json`, else of `config.json`, else the tokenizer's `eos`. In a
    /// GGUF file, those that it names and those that are known to end turns.
    pub eos_token_ids: Vec<TokenId>,
    /// Sampling parameters from `generation_config.json` or a GGUF file; others are neutral.
    pub sampling_defaults: SamplingParams,
}

impl LoadedModel {
    /// Rejects a tokenizer with more tokens than the model has. `path` is the tokenizer's file.
    pub(super) fn checked(self, path: &Path) -> Result<Self> {
        let (n_tokens, vocab_size) = (self.tokenizer.vocab_size(), self.gpt.config().vocab_size);
        if n_tokens <= vocab_size {
            return Ok(self);
        }
        Err(Error::file(path, format!("has {n_tokens} tokens, but the model's `vocab_size` is {vocab_size}"))
            .with_hint("tokenizer and weights belong to different models"))
    }
}
