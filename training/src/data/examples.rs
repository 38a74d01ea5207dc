//! Examples for fine-tuning: conversations, prompts with completions, and texts, as token ids with the tokens that the
//! model learns to predict; pairs of them for DPO; sources with targets for encoder-decoders; and packing.
//!
//! Conversations are encoded by the chat template code of serving, so the ids of both are equal. Data that would not
//! train what it is meant to is rejected before training, with file and line: a doubled BOS token, an end of turn that
//! is not trained, an example without a trained token or longer than the context.

mod describe;
mod encode;
mod pack;
mod read;
#[cfg(test)]
mod tests;
mod texts;
mod translation;

use std::path::PathBuf;

use hearth_model::TokenId;
use serde::{Deserialize, Serialize};

pub use self::{
    describe::{Style, describe, inspect_json},
    encode::ExampleEncoder,
    pack::pack,
    read::{read, read_preferences},
    texts::{TextItem, read_labeled_texts, read_text_pairs},
    translation::{Translation, TranslationEncoder, read_translations},
};
use crate::data::corpus::{LeftOut, Notes, Origin};

/// One example as it is trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The token ids.
    pub ids: Vec<TokenId>,
    /// For each id, whether the model learns to predict it.
    pub trained: Vec<bool>,
    /// File and line, for messages, such as "`data.jsonl`, line 3".
    pub origin: String,
}

impl Example {
    /// The number of tokens that the model learns to predict. The first token has no context, so it is not one of them.
    pub fn n_trained(&self) -> usize {
        self.trained.iter().skip(1).filter(|trained| **trained).count()
    }
}

/// Two answers to one prompt, for DPO. In messages, each is named by its member: "`data.jsonl`, line 3, `chosen`".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferencePair {
    /// The prompt with the better answer.
    pub chosen: Example,
    /// The prompt with the worse answer.
    pub rejected: Example,
}

/// How to handle an example that is longer than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TooLong {
    /// An error.
    #[default]
    Refuse,
    /// The end is removed.
    Cut,
    /// The example is dropped.
    Drop,
}

/// Settings for reading examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleSettings {
    /// Maximum length of an example in tokens: the model's context, or less.
    pub max_len: usize,
    /// How to handle longer examples.
    pub too_long: TooLong,
    /// The member or column of plain texts.
    pub text_field: String,
    /// Sources of examples for validation only.
    pub validation: Vec<Origin>,
}

/// Examples or pairs, and how many were changed or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examples<T> {
    /// The examples to train on, in the order of the files.
    pub examples: Vec<T>,
    /// Validation examples: from files that are for validation by their names, and from the validation sources.
    pub val: Vec<T>,
    /// How many were cut.
    pub n_cut: usize,
    /// Number of examples dropped because they are too long, or because no trained token was left when they were cut.
    pub n_dropped: usize,
    /// Number of the cut examples that lost the end of their last turn.
    pub n_endless: usize,
    /// Pairs that were left out because both answers are the same, or became so when they were cut.
    pub n_same: usize,
    /// Files in folders that are not text, and were skipped.
    pub not_text: Vec<PathBuf>,
    /// Files that were left out.
    pub left_out: Vec<LeftOut>,
    /// Notes about the data.
    pub notes: Notes,
    /// For each source, the commit that its files are from, of a data set of the hub.
    pub commits: Vec<Option<String>>,
}

impl<T> Examples<T> {
    /// The number of examples, or pairs, that were read.
    fn n_read(&self) -> usize {
        self.examples.len() + self.val.len() + self.n_dropped + self.n_same
    }
}

impl<T> Default for Examples<T> {
    /// No examples, and no changes.
    fn default() -> Self {
        Examples {
            examples: Vec::new(),
            val: Vec::new(),
            n_cut: 0,
            n_dropped: 0,
            n_endless: 0,
            n_same: 0,
            not_text: Vec::new(),
            left_out: Vec::new(),
            notes: Notes::default(),
            commits: Vec::new(),
        }
    }
}
