//! Sampling defaults from `generation_config.json`, and how an encoder-decoder begins.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config_json::Fields;
use crate::{TokenId, config::GptConfig, decode::sampling::SamplingParams, error::Result};

/// The end-of-sequence tokens, here and in `config.json`.
pub(super) const EOS: &str = "eos_token_id";

/// Sets one parameter of `params` from a value of the file. `None` if the value is not a number.
type Set = fn(SamplingParams, &Value) -> Option<SamplingParams>;

/// They shape the distribution that tokens are drawn from.
const SHAPING: [(&str, Set); 7] = [
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
];

/// They exclude or penalize tokens, however tokens are chosen.
const EXCLUDING: [(&str, Set); 5] = [
    ("encoder_repetition_penalty", |params, value| {
        Some(SamplingParams { prompt_bonus: value.as_f64()? as f32, ..params })
    }),
    ("no_repeat_ngram_size", |params, value| {
        Some(SamplingParams { no_repeat_ngram_size: usize::try_from(value.as_u64()?).ok()?, ..params })
    }),
    ("repetition_penalty", |params, value| {
        Some(SamplingParams { repetition_penalty: value.as_f64()? as f32, ..params })
    }),
    ("bad_words_ids", |params, value| {
        with_bad_words(params, value.as_array()?.iter().map(ids).collect::<Option<_>>()?)
    }),
    ("suppress_tokens", |params, value| with_bad_words(params, ids(value)?.into_iter().map(|id| vec![id]).collect())),
];

fn ids(value: &Value) -> Option<Vec<TokenId>> {
    value.as_array()?.iter().map(|id| TokenId::try_from(id.as_u64()?).ok()).collect()
}

fn with_bad_words(params: SamplingParams, words: Vec<Vec<TokenId>>) -> Option<SamplingParams> {
    let bad_words = params.bad_words.iter().cloned().chain(words).collect();
    Some(SamplingParams { bad_words, ..params })
}

/// The sampling parameters that the file sets; others are neutral. With `do_sample` false those that shape the distribution are
/// neutral, because they are for other strategies then. A parameter that is no number or out of range is neutral too, with a
/// warning. `vocab_size` is the model's.
pub(super) fn sampling_defaults(json: &Map<String, Value>, path: &Path, vocab_size: usize) -> SamplingParams {
    let shaping = SHAPING.iter().filter(|_| json.get("do_sample") != Some(&Value::Bool(false)));
    read(shaping.chain(&EXCLUDING), json, path, vocab_size)
}

/// The sampling defaults of a model dir; `files` are `generation_config.json` and `config.json`. Names in the log what an encoder-decoder's
/// files ask for and is not done.
pub(super) fn defaults_of_files(files: &[(PathBuf, Map<String, Value>); 2], config: &GptConfig) -> SamplingParams {
    if config.is_encoder_decoder() {
        warn_of_keys_not_applied(files);
        return translating_defaults(files, config.vocab_size);
    }
    let [(path, generation), _] = files;
    sampling_defaults(generation, path, config.vocab_size)
}

/// The [`sampling_defaults`] of an encoder-decoder. `files` are `generation_config.json` and `config.json`, which counts if there is
/// no other, as in `transformers`; but older ones list what is for drawing tokens only.
fn translating_defaults(files: &[(PathBuf, Map<String, Value>); 2], vocab_size: usize) -> SamplingParams {
    let params = match files {
        [(_, generation), (path, config)] if generation.is_empty() => read(EXCLUDING.iter(), config, path, vocab_size),
        [(path, generation), _] => sampling_defaults(generation, path, vocab_size),
    };
    // There it is about the source.
    SamplingParams { prompt_bonus: 1.0, ..params }
}

fn read<'a>(
    keys: impl Iterator<Item = &'a (&'static str, Set)>,
    json: &Map<String, Value>,
    path: &Path,
    vocab_size: usize,
) -> SamplingParams {
    let mut params = SamplingParams::default();
    for (name, set) in keys {
        let Some(value) = json.get(*name).filter(|value| !value.is_null()) else { continue };
        let changed = set(params.clone(), value).ok_or_else(|| "must be a number, or token ids".to_owned());
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

/// Keys by which `generate` of transformers changes the answers of an encoder-decoder, and that are not applied, with what to do.
const NOT_APPLIED: [(&str, &str); 9] = [
    ("min_length", "`min_tokens` of a request sets the least number of tokens of an answer"),
    ("min_new_tokens", "`min_tokens` of a request sets the least number of tokens of an answer"),
    (
        "forced_eos_token_id",
        "an answer that reaches `max_tokens` is not ended by this token, so that its end can be told",
    ),
    ("begin_suppress_tokens", "`bad_words` of a request excludes tokens"),
    ("encoder_no_repeat_ngram_size", "`no_repeat_ngram_size` is about the answer alone"),
    ("encoder_repetition_penalty", "`repetition_penalty` is about the answer alone"),
    ("exponential_decay_length_penalty", "`length_penalty` of a request ranks the answers of a beam search"),
    ("sequence_bias", "`logit_bias` of a request changes single tokens"),
    ("num_beams", "a request asks for beam search with `use_beam_search` and `best_of`"),
];

/// Names the [`NOT_APPLIED`] keys in the log, if they would change answers. `files` as of [`translating_defaults`].
fn warn_of_keys_not_applied(files: &[(PathBuf, Map<String, Value>); 2]) {
    let (path, json) = spoken(files);
    let neutral = [Value::Null, 0.into(), 1.into(), 1.0.into(), Value::Array(Vec::new())];
    for (key, hint) in NOT_APPLIED {
        if let Some(value) = json.get(key).filter(|value| !neutral.contains(value)) {
            tracing::warn!(
                "`{}`: `{key}` {value} is not applied, as `generate` of transformers does: {hint}",
                path.display()
            );
        }
    }
}

/// The file that says how to generate: `config.json` if there is no `generation_config.json`, as in `transformers`.
fn spoken(files: &[(PathBuf, Map<String, Value>); 2]) -> &(PathBuf, Map<String, Value>) {
    let [generation, config] = files;
    if generation.1.is_empty() { config } else { generation }
}

/// The tokens with which the decoder of an encoder-decoder begins, as `generate` of transformers has it: `decoder_start_token_id` of the
/// first of the `files` that names it, and `forced_bos_token_id` of the file that [says](spoken) how to generate. None for other models.
///
/// # Errors
/// [`Error::File`](crate::Error::File) if no file has `decoder_start_token_id`, or an id is outside the vocabulary.
pub(super) fn decoder_start(files: &[(PathBuf, Map<String, Value>); 2], config: &GptConfig) -> Result<Vec<TokenId>> {
    if !config.is_encoder_decoder() {
        return Ok(Vec::new());
    }
    let vocab_size = config.vocab_size;
    let find = |key: &str, (path, json): &(PathBuf, Map<String, Value>)| -> Result<Option<TokenId>> {
        let fields = Fields::new(json, path);
        let Some(id) = fields.size(key)? else { return Ok(None) };
        match TokenId::try_from(id).ok().filter(|_| id < vocab_size) {
            Some(id) => Ok(Some(id)),
            None => Err(fields.invalid(key, format!("must be below vocab_size = {vocab_size}, got {id}"))),
        }
    };
    const START: &str = "decoder_start_token_id";
    let [generation, config] = files;
    let missing = || Fields::new(&config.1, &config.0).missing(&[START]);
    let start = find(START, generation)?.map_or_else(|| find(START, config), |id| Ok(Some(id)))?.ok_or_else(missing)?;
    Ok([Some(start), find("forced_bos_token_id", spoken(files))?].into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::config::Sizes;

    fn read_text(json: &str) -> SamplingParams {
        sampling_defaults(&serde_json::from_str(json).unwrap(), Path::new("generation_config.json"), 100)
    }

    #[test]
    fn generation_config_sets_sampling_defaults_and_leaves_out_bad_values() {
        let given = read_text(
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
            r#"{"bad_words_ids": [[100]], "suppress_tokens": [-1]}"#,
            r#"{"top_k": -1, "min_p": null}"#,
            r#"{"top_p": 2, "min_p": -0.5, "typical_p": 0, "repetition_penalty": 0, "top_k": 1.5}"#,
            r#"{"temperature": "Infinity", "repetition_penalty": "NaN", "top_k": -2, "top_p": [0.5]}"#,
        ] {
            assert_eq!(read_text(nothing), SamplingParams::default(), "{nothing}");
        }
        // The others count.
        let expected = SamplingParams { temperature: 0.6, ..SamplingParams::default() };
        assert_eq!(read_text(r#"{"top_p": 1.5, "temperature": 0.6, "top_k": "all"}"#), expected);
    }
    #[test]
    fn generation_config_excludes_and_penalizes_tokens_however_they_are_chosen() {
        let given = read_text(
            r#"{"do_sample": false, "top_k": 7, "bad_words_ids": [[5], [3, 4]], "suppress_tokens": [9], "no_repeat_ngram_size": 3}"#,
        );
        let bad_words = [vec![5], vec![3, 4], vec![9]].into();
        assert_eq!(given, SamplingParams { bad_words, no_repeat_ngram_size: 3, ..SamplingParams::default() });
    }

    #[test]
    fn config_json_says_how_to_translate_only_without_generation_config() {
        let file = |json: &str| (PathBuf::from("x.json"), serde_json::from_str(json).unwrap());
        let config = r#"{"no_repeat_ngram_size": 3, "top_k": 50, "encoder_repetition_penalty": 2}"#;
        let defaults = |generation: &str| translating_defaults(&[file(generation), file(config)], 100);
        let expected = SamplingParams { no_repeat_ngram_size: 3, ..SamplingParams::default() };
        assert_eq!(defaults("{}"), expected);
        let expected = SamplingParams { repetition_penalty: 1.5, ..SamplingParams::default() };
        assert_eq!(defaults(r#"{"repetition_penalty": 1.5}"#), expected);
    }

    #[test]
    fn first_token_of_config_json_is_forced_only_without_generation_config() {
        let sizes =
            Sizes { vocab_size: 50, max_seq_len: 8, n_layers: 1, n_heads: 1, n_kv_heads: 1, d_model: 4, d_ff: 4 };
        let file = |json: &str| (PathBuf::from("x.json"), serde_json::from_str(json).unwrap());
        let start = |generation: &str| {
            let files = [file(generation), file(r#"{"decoder_start_token_id": 2, "forced_bos_token_id": 7}"#)];
            decoder_start(&files, &GptConfig::t5(sizes)).unwrap()
        };
        assert_eq!(start("{}"), [2, 7]);
        assert_eq!(start(r#"{"decoder_start_token_id": 3}"#), [3]);
        assert_eq!(start(r#"{"forced_bos_token_id": 9}"#), [2, 9]);
    }
}
