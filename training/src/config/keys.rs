//! Dotted keys of settings: the known keys, their values in a table, and suggestions for an unknown key.

use anyhow::Result;
use serde::Deserialize;
use toml::{Table, Value};

use super::{TrainConfig, foreign::hint_of_foreign};

/// All dotted keys of a configuration.
pub fn known_keys() -> Vec<String> {
    // An unknown key: serde's error lists the known ones.
    const NOBODYS: &str = "?";
    fn below(prefix: &str, keys: &mut Vec<String>) {
        let dotted = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let table = nested(&dotted(NOBODYS), Value::Boolean(true));
        match deserialize(table).map_err(|error| unknown_field(&error)) {
            Err(Some((field, expected))) if field == NOBODYS => {
                expected.iter().for_each(|name| below(&dotted(name), keys));
            }
            // A value, not a table.
            _ => keys.push(prefix.to_owned()),
        }
    }
    let mut keys = Vec::new();
    below("", &mut keys);
    keys
}

/// The value of a dotted key.
pub(super) fn value_at<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((section, rest)) => value_at(table.get(section)?.as_table()?, rest),
        None => table.get(key),
    }
}

/// Removes a dotted key.
pub(super) fn remove(table: &mut Table, key: &str) {
    match key.split_once('.') {
        Some((section, rest)) => {
            if let Some(Value::Table(section)) = table.get_mut(section) {
                remove(section, rest);
            }
        }
        None => {
            table.remove(key);
        }
    }
}

/// A table that has `value` under the dotted `key`.
pub(super) fn nested(key: &str, value: Value) -> Table {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = match rest {
        Some(rest) => Value::Table(nested(rest, value)),
        None => value,
    };
    Table::from_iter([(first.to_owned(), value)])
}

/// The settings in a table, with serde's error.
pub(super) fn deserialize(table: Table) -> Result<TrainConfig, toml::de::Error> {
    TrainConfig::deserialize(Value::Table(table))
}

/// The unknown field and the known ones, from serde's error message.
pub(super) fn unknown_field(error: &toml::de::Error) -> Option<(String, Vec<String>)> {
    let rest = error.message().strip_prefix("unknown field `")?;
    let (field, rest) = rest.split_once('`')?;
    let expected = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    Some((field.to_owned(), expected))
}

/// The dotted keys of all values in `table`.
pub(super) fn dotted_keys(table: &Table) -> Vec<String> {
    let keys = table.iter().map(|(key, value)| match value {
        Value::Table(below) => dotted_keys(below).into_iter().map(|rest| format!("{key}.{rest}")).collect(),
        _ => vec![key.clone()],
    });
    keys.flatten().collect()
}

/// What to write instead of an unknown key: the setting of that name in another program, the nearest known key, or the keys of its
/// section.
pub fn hint_of_unknown(key: &str) -> String {
    hint_of_foreign(key)
        .or_else(|| nearest(key).map(|known| format!("did you mean `{known}`?")))
        .or_else(|| keys_of_section(key))
        .unwrap_or_else(|| "docs/settings.md lists all settings".to_owned())
}

/// The known keys of the section that `key` is in, if there is such a section.
fn keys_of_section(key: &str) -> Option<String> {
    let (section, _) = key.rsplit_once('.')?;
    let known = known_keys();
    let names = known.iter().filter_map(|known| known.strip_prefix(section)?.strip_prefix('.'));
    let quoted: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    (!quoted.is_empty()).then(|| format!("`{section}` has {}", quoted.join(", ")))
}

/// How to give the setting that an unknown argument of the command line has the name of, here or in another program.
pub fn hint_of_argument(argument: &str) -> Option<String> {
    let name = argument.split('=').next()?.to_lowercase().replace('-', "_");
    let is_named = |key: &String| *key == name || key.rsplit('.').next() == Some(&name);
    match known_keys().into_iter().find(is_named) {
        Some(key) => Some(format!("settings are given with `--set`: `--set {key}=VALUE`")),
        None => Some(format!("settings are given with `--set KEY=VALUE`: {}", hint_of_foreign(&name)?)),
    }
}

/// The known key with the smallest edit distance, among those whose last part differs from that of `key` in at most half of its
/// characters, or is its beginning, or begins with it, in the same section; ties are resolved by the last part.
fn nearest(key: &str) -> Option<String> {
    let parts = |key: &str| {
        let (section, last) = key.rsplit_once('.').unwrap_or(("", key));
        (section.to_owned(), last.to_owned())
    };
    let (section, last) = parts(key);
    let is_near = |known: &String| {
        let (section_there, there) = parts(known);
        edits(&there, &last) <= last.chars().count() / 2
            || section_there == section && (there.starts_with(&last) || last.starts_with(&there))
    };
    let distance = |known: &String| edits(known, key).min(1 + edits(&parts(known).1, &last));
    known_keys().into_iter().filter(is_near).min_by_key(distance)
}

/// The Levenshtein distance: insertions, deletions and replacements that turn `from` into `to`.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (n, from) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], n + 1);
        for (m, &to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[m + 1];
            row[m + 1] = replaced.min(row[m] + 1).min(row[m + 1] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_include_top_level_nested_and_optional_settings() {
        let keys = known_keys();
        for key in ["seed", "model.rope_theta", "optim.muon.lr", "schedule.max_minutes", "checkpoint.keep_steps"] {
            assert!(keys.iter().any(|known| known == key), "{key} of {keys:?}");
        }
    }
}
