//! Single parameters of a generation: parameters that differ between endpoints, rejected parameters, and shared
//! readers.

use std::time::Duration;

use hearth_engine::{
    prefix_cache::PrefixSalt,
    request::{PRIORITIES, SpecialTokens, StopText, Strategy, TextOptions},
};
use serde_json::{Value, json};

use super::super::response_head::UsageReports;
use crate::api::{error::ApiError, tools::structured::Structure, wire::fields::Fields};

/// Maximum length of `cache_salt`, as in vLLM.
const MAX_SALT_CHARS: usize = 1024;

/// Fields of the completion endpoints that would change the answer, for endpoints without these fields; an `n` of 1 is
/// accepted.
const OF_COMPLETIONS: [&str; 11] = [
    "n",
    "best_of",
    "use_beam_search",
    "stochastic_beam_search",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
];

/// The fields that an endpoint with one answer per request has read itself.
#[derive(Debug)]
pub(crate) struct OneAnswer {
    pub(crate) streams: bool,
    pub(crate) structure: Option<Structure>,
    /// The strings that end the answer, and the parameter that has them.
    pub(crate) stop_strings: (&'static str, Vec<String>),
    /// The parameter that has the prompt, for error messages.
    pub(crate) prompt_param: &'static str,
}

/// The fields in which endpoints differ.
pub(super) struct Choices {
    pub(super) n: usize,
    pub(super) best_of: usize,
    pub(super) stream: Option<UsageReports>,
    pub(super) strategy: Strategy,
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) returns_token_ids: bool,
    pub(super) structure: Option<Structure>,
    pub(super) stop_strings: (&'static str, Vec<String>),
    pub(super) prompt_param: &'static str,
}

/// Rejects fields of the completion endpoints.
pub(super) fn refuse_choices(fields: &mut Fields) -> Result<(), ApiError> {
    for name in OF_COMPLETIONS {
        if fields.take(name).is_some_and(|value| value != false && value != 1) {
            let message =
                format!("`{name}` is not supported by this endpoint\nhint: `POST /v1/chat/completions` has it");
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

/// Checks the number of candidates against the number of answers.
pub(super) fn check_best_of(
    [n, best_of]: [usize; 2],
    strategy: Strategy,
    stream: Option<UsageReports>,
) -> Result<(), ApiError> {
    if best_of < n {
        let message = format!("`best_of` must be at least `n`, got {best_of} and {n}");
        return Err(ApiError::invalid("best_of", message));
    }
    if best_of > n && stream.is_some() && strategy == Strategy::Sample {
        let message = format!(
            "`best_of` must be equal to `n` with `stream`, got {best_of} and {n}\nhint: which answers are best is known \
             only when all are complete"
        );
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(())
}

/// How tokens become text.
pub(super) fn text_options(fields: &mut Fields) -> Result<TextOptions, ApiError> {
    let skips = fields.flag_or("skip_special_tokens", true)?;
    let keeps = fields.flag_or("include_stop_str_in_output", false)?;
    Ok(TextOptions {
        special_tokens: if skips { SpecialTokens::Skip } else { SpecialTokens::Show },
        stop_text: if keeps { StopText::Keep } else { StopText::Cut },
    })
}

/// The request's salt, else the salt of its API key.
pub(crate) fn prefix_salt(fields: &mut Fields) -> Result<Option<PrefixSalt>, ApiError> {
    const NAME: &str = "cache_salt";
    let Some(salt) = fields.string(NAME)? else { return Ok(fields.sender().salt) };
    let n_chars = salt.chars().count();
    if n_chars > MAX_SALT_CHARS {
        let message = format!("`{NAME}` must have at most {MAX_SALT_CHARS} characters, got {n_chars}");
        return Err(ApiError::invalid(NAME, message));
    }
    Ok(Some(PrefixSalt::of_request(&salt)))
}

/// Reads `priority`.
pub(crate) fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    let range = i64::from(*PRIORITIES.start())..=i64::from(*PRIORITIES.end());
    Ok(i32::try_from(fields.integer_or("priority", range, 0)?).unwrap_or(0))
}

/// Reads `deadline_ms`.
pub(crate) fn deadline(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    Ok(fields.count("deadline_ms", 1..=usize::MAX)?.map(|ms| Duration::from_millis(ms as u64)))
}

/// Example requests for the schema: the smallest one, and ones with each nested object.
pub(crate) fn examples(smallest: &Value) -> Vec<Value> {
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": {} } });
    let objects = [
        ("stream_options", json!({})),
        ("response_format", schema),
        ("structured_outputs", json!({ "regex": "x" })),
        ("chat_template_kwargs", json!({})),
    ];
    let with = objects.into_iter().map(|(name, object)| {
        let mut example = smallest.clone();
        example[name] = object;
        example
    });
    [smallest.clone()].into_iter().chain(with).collect()
}
