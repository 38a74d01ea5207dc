//! Rejects fields that would change the answer and are not supported, instead of ignoring them.

use serde_json::Value;

use super::fields::Fields;
use crate::api::error::ApiError;

/// The fields, with their replacements.
const UNSUPPORTED: [(&str, Option<&str>); 8] = [
    ("format", Some("structured_outputs.json")),
    ("regex", Some("structured_outputs.regex")),
    ("ebnf", Some("structured_outputs.grammar")),
    ("grammar", Some("structured_outputs.grammar")),
    ("json_schema", Some("structured_outputs.json")),
    ("functions", Some("tools")),
    ("function_call", Some("tool_choice")),
    ("logits_processors", None),
];

/// Removes these fields.
///
/// # Errors
/// 400 if one of them has a value.
pub(crate) fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, replacement) in UNSUPPORTED {
        // Some clients send a parameter that they do not use, with an empty value.
        let is_off = |value: &Value| match value {
            Value::String(word) => {
                word.is_empty() || name == "function_call" && matches!(word.as_str(), "none" | "auto")
            }
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if fields.take(name).is_some_and(|value| !is_off(&value)) {
            let hint = replacement.map_or_else(String::new, |other| format!("\nhint: use `{other}`"));
            return Err(ApiError::invalid(name, format!("`{name}` is not supported{hint}")));
        }
    }
    Ok(())
}
