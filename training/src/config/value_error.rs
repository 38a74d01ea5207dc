//! Explains invalid values in terms of settings, and suggests valid ones.

use toml::Value;

use super::{LoraSettings, TrainConfig};

const WHOLE: &str = "a whole number from 0 to 9223372036854775807, such as `1_000_000`";

/// The message for a value of another type than its setting.
pub(super) fn of_type(error: &toml::de::Error) -> String {
    let (shown, what) = (error.to_string(), error.message());
    // The last line names the key.
    let key = shown.trim_end().rsplit_once("\nin `").map_or("", |(_, key)| key.trim_end_matches('`'));
    let found =
        ["invalid type: ", "invalid value: ", "unknown variant "].iter().find_map(|start| what.strip_prefix(start));
    let told = match found.and_then(|found| found.rsplit_once(", expected ")) {
        Some((given, expected)) => {
            let kinds = ["string ", "floating point ", "integer ", "boolean "];
            let given = kinds.iter().find_map(|kind| given.strip_prefix(kind)).unwrap_or(given);
            format!("`{key}` must be {}, got {given}", type_in_words(expected))
        }
        None => what.to_owned(),
    };
    format!("{told}\nhint: {}", hint(key))
}

/// The type that serde expects, in words for users.
fn type_in_words(expected: &str) -> &str {
    match expected {
        "u64" | "usize" => WHOLE,
        "f64" | "f32" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" | "string only" => "a text",
        "path string" => "a path",
        "a sequence" => "a list",
        name if name.starts_with("struct ") => "a section of settings",
        other => other,
    }
}

/// `error` with a hint: its own, or one about the setting that it names first.
pub(super) fn with_hint(error: anyhow::Error) -> anyhow::Error {
    let told = error.to_string();
    match told.split('`').nth(1) {
        Some(key) if !told.contains("\nhint: ") => anyhow::anyhow!("{told}\nhint: {}", hint(key)),
        _ => error,
    }
}

/// The default of the setting `key`, if it has one, and where all settings are listed.
fn hint(key: &str) -> String {
    const ALL: &str = "docs/settings.md lists all settings";
    let all = TrainConfig { lora: Some(LoraSettings::default()), ..TrainConfig::default() };
    let defaults = all.to_table().map(Value::Table).ok();
    let default = defaults.and_then(|all| key.split('.').try_fold(all, |value, part| value.get(part).cloned()));
    match default.filter(|default| !default.is_table()) {
        Some(default) => format!("the default is `{key}={default}`; {ALL}"),
        None => ALL.to_owned(),
    }
}
