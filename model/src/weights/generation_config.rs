//! Sampling defaults from `generation_config.json`, and how an encoder-decoder begins.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config_json::Fields;
use crate::{TokenId, config::GptConfig, decode::sampling::SamplingParams, error::Result};

/// The end-of-sequence tokens, here and in `config.json`.
pub(super) const EOS: &str = "eos_token_id";

/// Sets one parameter of `params` from a value of the file. `None` if the value is not a number.
type Set = fn(SamplingParams, &Value) -> Option<SamplingParams>;

const PARAMS: [(&str, Set); 10] = [
    ("temperature", |params, value| Some(SamplingParams { temperature: value.as_f64()? as f32, ..params })),
    ("top_k", |params, value| {
        // Some files use -1 for none.
        let none = value.as_i64() == Some(-1);
        let top_k = if none { 0 } else { usize::try_from(value.as_u64()?).ok()? };
        Some(SamplingParams { top_k, ..params })
    }),
    ("top_p", |params, value| Some(SamplingParams { top_p: value.as_f64()? as f32, ..params })),
    ("min_p", |params, value| Some(SamplingParams { min_p: value.as_f64()? as f32, ..params })),
    ("typical_p", |params, value| Some(SamplingParams { typical_p: value.as_f64()? as f32, ..params })),
    ("epsilon_cutoff", |params, value| Some(SamplingParams { epsilon_cutoff: value.as_f64()? as f32, ..params })),
    ("eta_cutoff", |params, value| Some(SamplingParams { eta_cutoff: value.as_f64()? as f32, ..params })),
    ("encoder_repetition_penalty", |params, value| {
        Some(SamplingParams { prompt_bonus: value.as_f64()? as f32, ..params })
    }),
    ("no_repeat_ngram_size", |params, value| {
        Some(SamplingParams { no_repeat_ngram_size: usize::try_from(value.as_u64()?).ok()?, ..params })
    }),
    ("repetition_penalty", |params, value| {
        Some(SamplingParams { repetition_penalty: value.as_f64()? as f32, ..params })
    }),
];

/// The sampling parameters that the file sets; others are neutral. With `do_sample` false all are neutral, because the
/// file's parameters are for other strategies then. A parameter that is no number or out of range is neutral too, with a
/// warning. `vocab_size` is the model's.
pub(super) fn sampling_defaults(json: &Map<String, Value>, path: &Path, vocab_size: usize) -> SamplingParams {
    let mut params = SamplingParams::default();
    if json.get("do_sample") == Some(&Value::Bool(false)) {
        return params;
    }
    for (name, set) in PARAMS {
        let Some(value) = json.get(name).filter(|value| !value.is_null()) else { continue };
        let changed = set(params.clone(), value).ok_or_else(|| "must be a number".to_owned());
        let checked = changed.and_then(|changed| match changed.validate(vocab_size) {
            Ok(()) => Ok(changed),
            Err(error) => Err(error.to_string()),
        });
        match checked {
            Ok(changed) => params = changed,
            Err(problem) => {
                tracing::warn!("`{}`: `{name}` is {value}, so it is left out: {problem}", path.display());
            }
        }
    }
    params
}

/// Keys by which `generate` of transformers bans or forces tokens of an encoder-decoder, and that are not read.
const NOT_READ: [&str; 6] = [
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "min_length",
    "min_new_tokens",
    "forced_eos_token_id",
];

/// Names the [`NOT_READ`] keys of the file in the log, if they would change answers.
pub(super) fn warn_of_keys_not_read((path, json): &(PathBuf, Map<String, Value>)) {
    let changes = |value: &Value| {
        !value.is_null() && value.as_u64() != Some(0) && value.as_array().is_none_or(|list| !list.is_empty())
    };
    let given: Vec<&str> = NOT_READ.into_iter().filter(|key| json.get(*key).is_some_and(changes)).collect();
    if !given.is_empty() {
        let names = given.join("`, `");
        tracing::warn!(
            "`{}`: `{names}` is not applied, so answers may differ from those of transformers",
            path.display()
        );
    }
}

/// The tokens with which the decoder of an encoder-decoder begins, as in `generate` of transformers: each from the
/// first of the `files` that has it. Empty for other models.
///
/// # Errors
/// [`Error::File`](crate::Error::File) if no file has `decoder_start_token_id`, or an id is outside the vocabulary.
pub(super) fn decoder_start(files: &[(PathBuf, Map<String, Value>); 2], config: &GptConfig) -> Result<Vec<TokenId>> {
    if !config.is_encoder_decoder() {
        return Ok(Vec::new());
    }
    let vocab_size = config.vocab_size;
    let find = |key: &str| -> Result<Option<TokenId>> {
        for (path, json) in files {
            let fields = Fields::new(json, path);
            let Some(id) = fields.size(key)? else { continue };
            return match TokenId::try_from(id).ok().filter(|_| id < vocab_size) {
                Some(id) => Ok(Some(id)),
                None => Err(fields.invalid(key, format!("must be below vocab_size = {vocab_size}, got {id}"))),
            };
        }
        Ok(None)
    };
    let [_, (config_path, json)] = files;
    let missing = || Fields::new(json, config_path).missing(&["decoder_start_token_id"]);
    let start = find("decoder_start_token_id")?.ok_or_else(missing)?;
    Ok([Some(start), find("forced_bos_token_id")?].into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(json: &str) -> SamplingParams {
        sampling_defaults(&serde_json::from_str(json).unwrap(), Path::new("generation_config.json"), 100)
    }

    #[test]
    fn generation_config_sets_sampling_defaults_and_leaves_out_bad_values() {
        let given = read(
            r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "eos_token_id": 3}"#,
        );
        let expected = SamplingParams {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.8,
            repetition_penalty: 1.05,
            ..SamplingParams::default()
        };
        assert_eq!(given, expected);
        for nothing in [
            "{}",
            r#"{"do_sample": false, "temperature": 0.7}"#,
            r#"{"top_k": -1, "min_p": null}"#,
            r#"{"top_p": 2, "min_p": -0.5, "typical_p": 0, "repetition_penalty": 0, "top_k": 1.5}"#,
            r#"{"temperature": "Infinity", "repetition_penalty": "NaN", "top_k": -2, "top_p": [0.5]}"#,
        ] {
            assert_eq!(read(nothing), SamplingParams::default(), "{nothing}");
        }
        // The others count.
        let expected = SamplingParams { temperature: 0.6, ..SamplingParams::default() };
        assert_eq!(read(r#"{"top_p": 1.5, "temperature": 0.6, "top_k": "all"}"#), expected);
    }
}
