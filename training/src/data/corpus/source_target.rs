//! Records with a source and a target: the input of an encoder-decoder, and the text that it learns to write.

use serde_json::{Map, Value};

use super::{
    message::Problem,
    notes::Note,
    record_kind::{Members, record_members},
};

/// Usual names of a source and its target. The first that a record has both of are read.
const LAYOUTS: [[&str; 2]; 3] = [["source", "target"], ["input", "output"], ["prompt", "completion"]];

/// The member that has a text by language, in data sets of translations.
const TRANSLATION: &str = "translation";

const HINT: &str = "a record has `source` and `target`, or `input` and `output`, or `prompt` and `completion`; other members are named by \
                    `data.source_field` and `data.target_field`";
const LANGUAGES_HINT: &str = "say which of them is the source and which the target, such as `--set data.source_field=de --set \
                              data.target_field=en`";

/// The members to read in place of the usual ones: source and target.
pub(crate) type FieldNames = Option<[String; 2]>;

/// A source and its target, both not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceTarget {
    pub(crate) source: String,
    pub(crate) target: String,
}

/// The members of such records, for tables: only these columns are read.
pub(crate) fn source_target_members(names: &FieldNames) -> Vec<&str> {
    let own = names.iter().flatten().map(String::as_str);
    let mut all: Vec<&str> = own.chain(LAYOUTS.iter().flatten().copied()).chain([TRANSLATION]).collect();
    all.extend(record_members("text"));
    all.sort_unstable();
    all.dedup();
    all
}

impl SourceTarget {
    /// Source and target of a record, and notes about it.
    pub(crate) fn of(members: &Map<String, Value>, names: &FieldNames) -> Result<(SourceTarget, Vec<Note>), Problem> {
        let members = Members::new(members);
        let mut notes = Vec::new();
        let [source, target] = match names {
            Some(names) => {
                let languages =
                    names.iter().any(|name| !members.has(name)).then(|| members.take(TRANSLATION)).flatten();
                let languages = languages.and_then(Value::as_object);
                let others = languages.into_iter().flatten().filter(|(name, _)| !names.contains(name));
                notes.extend(others.map(|(name, _)| Note::Unread(format!("{TRANSLATION}.{name}"))));
                let [source, target] = names.each_ref().map(|name| {
                    let value = members.take(name).or_else(|| languages.and_then(|languages| languages.get(name)));
                    text(name, value, &members)
                });
                [source?, target?]
            }
            None => usual(&members)?,
        };
        notes.extend(members.finish()?);
        Ok((SourceTarget { source, target }, notes))
    }
}

fn usual(members: &Members<'_>) -> Result<[String; 2], Problem> {
    let has = |name: &&str| members.has(name);
    let layout = LAYOUTS.iter().find(|layout| layout.iter().all(has));
    let Some([source, target]) = layout.or_else(|| LAYOUTS.iter().find(|layout| layout.iter().any(has))) else {
        if let Some(languages) = members.take(TRANSLATION).and_then(Value::as_object) {
            let names: Vec<&str> = languages.keys().map(String::as_str).collect();
            return Err((format!("there is a `{TRANSLATION}` with `{}`", names.join("` and `")), LANGUAGES_HINT));
        }
        return Err((format!("there is no source and target, only {}", members.names()), HINT));
    };
    Ok([text(source, members.take(source), members)?, text(target, members.take(target), members)?])
}

/// The text of a required member.
fn text(name: &str, value: Option<&Value>, members: &Members<'_>) -> Result<String, Problem> {
    match value {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
        Some(Value::String(_)) => Err((format!("`{name}` is empty"), "remove the line, or add a text")),
        Some(_) => Err((format!("`{name}` is not a string"), HINT)),
        None => Err((format!("there is no `{name}`, only {}", members.names()), HINT)),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    fn read(record: Value, names: Option<[&str; 2]>) -> Result<(SourceTarget, Vec<Note>), Problem> {
        SourceTarget::of(record.as_object().unwrap(), &names.map(|names| names.map(str::to_owned)))
    }

    #[test]
    fn source_and_target_are_read_in_all_layouts_and_by_language() {
        let expected = SourceTarget { source: "ein Haus".to_owned(), target: "a house".to_owned() };
        let languages = json!({ "translation": { "de": "ein Haus", "en": "a house", "fr": "une maison" }, "id": 3 });
        for (record, names, said) in [
            (json!({ "source": "ein Haus", "target": "a house" }), None, vec![]),
            (json!({ "input": "ein Haus", "output": "a house", "id": 3 }), None, vec!["id"]),
            (json!({ "prompt": "ein Haus", "completion": "a house" }), None, vec![]),
            (json!({ "de": "ein Haus", "en": "a house" }), Some(["de", "en"]), vec![]),
            (languages, Some(["de", "en"]), vec!["translation.fr", "id"]),
        ] {
            let (found, notes) = read(record, names).unwrap();
            assert_eq!(found, expected);
            assert_eq!(notes, said.into_iter().map(|name| Note::Unread(name.to_owned())).collect::<Vec<_>>());
        }
    }

    #[test]
    fn records_without_a_source_or_a_target_are_refused_by_member() {
        for (record, names, message) in [
            (json!({ "source": "a" }), None, "there is no `target`, only `source`"),
            (json!({ "source": "a", "target": " " }), None, "`target` is empty"),
            (json!({ "source": "a", "target": ["b"] }), None, "`target` is not a string"),
            (json!({ "messages": [] }), None, "there is no source and target, only `messages`"),
            (json!({ "translation": { "de": "a", "en": "b" } }), None, "a `translation` with `de` and `en`"),
            (json!({ "translation": { "de": "a", "en": "b" } }), Some(["de", "fr"]), "there is no `fr`"),
            (json!({ "source": "a", "target": "b", "train": false }), None, "`train` of the whole record is false"),
        ] {
            let (error, _) = read(record, names).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
