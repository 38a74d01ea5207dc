//! Sampling defaults from `generation_config.json`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    sampling::SamplingParams,
};

/// The sampling parameters that the file sets; others are neutral. With `do_sample` false all are neutral, because the
/// file's parameters are for other strategies then. `vocab_size` is the model's.
///
/// # Errors
/// [`Error::File`] with the field that is invalid.
pub(super) fn sampling_defaults(json: &Map<String, Value>, path: &Path, vocab_size: usize) -> Result<SamplingParams> {
    let default = SamplingParams::default();
    if json.get("do_sample") == Some(&Value::Bool(false)) {
        return Ok(default);
    }
    let number = |name: &str| match json.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(|number| Some(number as f32)).ok_or_else(|| wrong(path, name, value)),
    };
    let top_k = match json.get("top_k") {
        None | Some(Value::Null) => 0,
        // Some files say -1 for none.
        Some(value) if value.as_i64() == Some(-1) => 0,
        Some(value) => value.as_u64().ok_or_else(|| wrong(path, "top_k", value))? as usize,
    };
    let params = SamplingParams {
        temperature: number("temperature")?.unwrap_or(default.temperature),
        top_k,
        top_p: number("top_p")?.unwrap_or(default.top_p),
        min_p: number("min_p")?.unwrap_or(default.min_p),
        typical_p: number("typical_p")?.unwrap_or(default.typical_p),
        repetition_penalty: number("repetition_penalty")?.unwrap_or(default.repetition_penalty),
        ..default
    };
    params
        .validate(vocab_size)
        .map_err(|error| Error::file(path, error.to_string()).with_hint("remove the field to use the default"))?;
    Ok(params)
}

fn wrong(path: &Path, name: &str, value: &Value) -> Error {
    Error::file(path, format!("`{name}` must be a number, got `{value}`"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(json: &str) -> Result<SamplingParams> {
        sampling_defaults(&serde_json::from_str(json).unwrap(), Path::new("generation_config.json"), 100)
    }

    #[test]
    fn generation_config_sets_sampling_defaults_and_rejects_bad_values() {
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
        assert_eq!(given.unwrap(), expected);
        for nothing in ["{}", r#"{"do_sample": false, "temperature": 0.7}"#, r#"{"top_k": -1, "min_p": null}"#] {
            assert_eq!(read(nothing).unwrap(), SamplingParams::default());
        }
        let refusal = |json| read(json).unwrap_err().to_string();
        assert!(refusal(r#"{"top_p": 2}"#).contains("`top_p`"));
        assert!(refusal(r#"{"temperature": "hot"}"#).contains("`temperature` must be a number, got `\"hot\"`"));
        assert!(refusal(r#"{"top_k": 1.5}"#).contains("`top_k`"));
    }
}
