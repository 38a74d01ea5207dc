//! The names of a model dir's files.

use std::path::Path;

use crate::text::{
    chat,
    tokenizer::{
        BPE_PIECES_FILE, SENTENCE_PIECE_FILE, SOURCE_PIECES_FILE, TEKKEN_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE,
    },
};

/// The configuration, with the keys of its class.
pub(super) const CONFIG_FILE: &str = "config.json";
/// Sampling defaults, and the tokens that end a text.
pub(super) const GENERATION_FILE: &str = "generation_config.json";
/// Weights in one file.
pub(super) const WEIGHTS_FILE: &str = "model.safetensors";
/// The list of an embedding model's modules: the model, pooling, and further layers.
pub(super) const MODULES_FILE: &str = "modules.json";
/// The settings of the pooling, in the folder that all programs give it.
pub(super) const POOLING_FILE: &str = "1_Pooling/config.json";
/// The settings of the encoder in an embedding model, among them how many tokens of a text it reads.
pub(super) const TEXT_LIMIT_FILE: &str = "sentence_bert_config.json";
/// The prompts of an embedding model, by name, and how one for late interaction reads texts.
pub(super) const PROMPTS_FILE: &str = "config_sentence_transformers.json";
/// The index of sharded weights.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Files that a model dir may have besides its configuration and its weights.
pub(super) const BESIDE_WEIGHTS: [&str; 25] = [
    TOKENIZER_FILE,
    TEKKEN_FILE,
    SENTENCE_PIECE_FILE,
    SOURCE_PIECES_FILE,
    "target.spm",
    BPE_PIECES_FILE,
    TOKENIZER_CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    chat::DEFAULT_FILE,
    chat::TOOL_USE_FILE,
    GENERATION_FILE,
    MODULES_FILE,
    POOLING_FILE,
    TEXT_LIMIT_FILE,
    PROMPTS_FILE,
    // The layers that some embedding models have after the pooling.
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
    "1_Dense/config.json",
    "1_Dense/model.safetensors",
    // The settings of Stanford's ColBERT.
    "artifact.metadata",
];

/// The name of shard `number` of `n_shards`, counted from 0.
pub(super) fn shard_file(number: usize, n_shards: usize) -> String {
    match n_shards {
        1 => WEIGHTS_FILE.to_owned(),
        _ => format!("model-{:05}-of-{n_shards:05}.safetensors", number + 1),
    }
}

/// Whether `path`, relative to the model dir, is a file of the model. A save removes it if the new model has no such file.
pub(super) fn is_model_file(path: &Path) -> bool {
    let Some(name) = path.to_str() else { return false };
    [CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE].contains(&name) || BESIDE_WEIGHTS.contains(&name) || is_shard(name)
}

fn is_shard(name: &str) -> bool {
    let numbers = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.and_then(|numbers| numbers.split_once("-of-")).is_some_and(|(number, n)| is_number(number) && is_number(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_model_file_accepts_only_files_of_a_model_dir() {
        let shards = [(0, 1), (0, 2), (99_999, 123_456)].map(|(number, n)| shard_file(number, n));
        for name in BESIDE_WEIGHTS.into_iter().chain(shards.iter().map(String::as_str)).chain([CONFIG_FILE, INDEX_FILE])
        {
            assert!(is_model_file(Path::new(name)), "{name}");
        }
        for name in [
            "README.md",
            "metrics.jsonl",
            "train_config.json",
            "model-best.safetensors",
            "model-00001-of-x.safetensors",
            "lora/model.safetensors",
            "additional_chat_templates/mine.jinja",
            "additional_chat_templates",
        ] {
            assert!(!is_model_file(Path::new(name)), "{name}");
        }
    }
}
