//! Records of texts that become vectors: pairs of an anchor and its positive, and texts with labels.

use serde_json::{Map, Value};

use super::{
    conversation::is_empty,
    files::{NamedSplit, named_split},
    message::Problem,
    notes::Note,
};

/// A member with the split that a record is of.
pub(super) const SPLIT: &str = "split";
/// The class of a text; to KTO, whether a completion is good.
pub(super) const LABEL: &str = "label";

/// Names of a pair's texts, by sentence-transformers and as data sets for search have them.
const ANCHORS: [&str; 2] = ["anchor", "query"];
pub(crate) const POSITIVE: &str = "positive";
pub(crate) const NEGATIVE: &str = "negative";

/// By how much the positive suits the anchor better than the negative, by a model that reads both texts at once; or its two scores.
pub(crate) const MARGIN: &str = "margin";
const SCORES: &str = "scores";

/// Members of records that would change what is trained, if they were read.
const CHANGING: [&str; 5] = ["label", "score", "negatives", "negative_1", "positives"];

const PAIR_HINT: &str = "a pair has `anchor` (or `query`) and `positive`, and may have `negative`; every positive is right for its \
                         anchor, and wrong for the other anchors of a batch";
const MARGIN_HINT: &str = "with a `negative`, a pair may have `margin`, by how much the score of the positive is above that of the \
                           negative, or `scores`, both of them, such as [9.1, 2.3]";

/// The members that records of pairs may have, for tables: only these columns are read.
pub(crate) fn pair_members() -> Vec<&'static str> {
    ANCHORS.into_iter().chain([POSITIVE, NEGATIVE, MARGIN, SCORES, SPLIT]).chain(CHANGING).collect()
}

/// The texts of a record with the names of their members, and notes about it.
pub(crate) type NamedTexts<'a> = (Vec<(&'static str, &'a str)>, Vec<Note>);

/// The margin of a record, if it has one.
pub(crate) fn margin_of(members: &Map<String, Value>) -> Result<Option<f64>, Problem> {
    let given = |name: &str| members.get(name).filter(|value| !value.is_null());
    let finite = |value: &Value| value.as_f64().filter(|number| number.is_finite());
    let margin = match (given(MARGIN), given(SCORES)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err((format!("there is both `{MARGIN}` and `{SCORES}`"), MARGIN_HINT)),
        (Some(margin), None) => {
            finite(margin).ok_or_else(|| (format!("`{MARGIN}` must be a number, got `{margin}`"), MARGIN_HINT))?
        }
        (None, Some(scores)) => match scores.as_array().map(|scores| scores.iter().map(finite).collect::<Vec<_>>()) {
            Some(found) if let [Some(positive), Some(negative)] = found[..] => positive - negative,
            _ => return Err((format!("`{SCORES}` must be two numbers, got `{scores}`"), MARGIN_HINT)),
        },
    };
    match given(NEGATIVE) {
        Some(_) => Ok(Some(margin)),
        None => Err((format!("there is no `{NEGATIVE}`, which a margin is about"), MARGIN_HINT)),
    }
}

/// The texts of a pair: the anchor, its positive, and its negative if
/// it has one.
pub(crate) fn pair_of(members: &Map<String, Value>) -> Result<NamedTexts<'_>, Problem> {
    let has = |name: &str| members.get(name).is_some_and(|value| !value.is_null());
    let anchors: Vec<&str> = ANCHORS.into_iter().filter(|name| has(name)).collect();
    let anchor = match anchors[..] {
        [anchor] => ANCHORS.into_iter().find(|name| *name == anchor).unwrap_or(ANCHORS[0]),
        [] => return Err((format!("there is no `{}`, only {}", ANCHORS[0], names(members)), PAIR_HINT)),
        _ => return Err((format!("there is both `{}` and `{}`", ANCHORS[0], ANCHORS[1]), PAIR_HINT)),
    };
    if !has(POSITIVE) {
        return Err((format!("there is no `{POSITIVE}`, only {}", names(members)), PAIR_HINT));
    }
    let wanted = [anchor, POSITIVE].into_iter().chain(has(NEGATIVE).then_some(NEGATIVE));
    let texts = wanted.map(|name| Ok((name, text(members, name)?))).collect::<Result<Vec<_>, Problem>>()?;
    let mut notes = Vec::new();
    for (name, value) in
        members.iter().filter(|(name, value)| !is_empty(value) && !texts.iter().any(|(read, _)| read == name))
    {
        if CHANGING.contains(&name.as_str()) {
            return Err((format!("`{name}` is not read"), PAIR_HINT));
        }
        if [MARGIN, SCORES].contains(&name.as_str()) {
            continue;
        }
        if let Some(problem) = wrong_split(name, value) {
            return Err(problem);
        }
        notes.push(Note::Unread(name.clone()));
    }
    Ok((texts, notes))
}

/// A text, or two texts that are read together, with the names of their members, and the label.
pub(crate) type LabeledRecord<'a> = (Vec<(&'static str, &'a str)>, String);

/// Names of a text, and of the texts of a pair.
const TEXTS: [&[&str]; 5] =
    [&["text"], &["sentence"], &["text1", "text2"], &["sentence1", "sentence2"], &["premise", "hypothesis"]];

const LABELED_HINT: &str = "a record has `text` (or `text1` and `text2`, or `sentence1` and `sentence2`) and `label`";

/// The members that records with labels may have.
pub(crate) fn labeled_members() -> Vec<&'static str> {
    TEXTS.into_iter().flatten().copied().chain([LABEL, "labels", SPLIT]).collect()
}

/// The text or the texts of a record with their label, and notes about it.
pub(crate) fn labeled_of(members: &Map<String, Value>) -> Result<(LabeledRecord<'_>, Vec<Note>), Problem> {
    let has = |name: &str| members.get(name).is_some_and(|value| !value.is_null());
    let there: Vec<&[&'static str]> = TEXTS.into_iter().filter(|layout| layout.iter().any(|name| has(name))).collect();
    let layout = match there[..] {
        [layout] => layout,
        [] => return Err((format!("there is no `text`, only {}", names(members)), LABELED_HINT)),
        [one, other, ..] => return Err((format!("there is both `{}` and `{}`", one[0], other[0]), LABELED_HINT)),
    };
    if let Some(missing) = layout.iter().find(|name| !has(name)) {
        return Err((format!("there is no `{missing}`, only {}", names(members)), LABELED_HINT));
    }
    let texts = layout.iter().map(|&name| Ok((name, text(members, name)?))).collect::<Result<Vec<_>, Problem>>()?;
    let label = match members.get(LABEL) {
        Some(Value::String(label)) if !label.is_empty() => label.clone(),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => number.to_string(),
        None | Some(Value::Null) => {
            return Err((format!("there is no `{LABEL}`, only {}", names(members)), LABELED_HINT));
        }
        Some(other) => {
            let what = format!("`{LABEL}` must be a text or a whole number, got `{other}`");
            return Err((what, "a text has one class; name it, or number it"));
        }
    };
    let mut notes = Vec::new();
    let is_read = |name: &str| name == LABEL || layout.contains(&name);
    for (name, value) in members.iter().filter(|(name, value)| !is_empty(value) && !is_read(name)) {
        if name == "labels" {
            return Err((format!("`{name}` is not read"), "a text has one `label`; several at once are not supported"));
        }
        if let Some(problem) = wrong_split(name, value) {
            return Err(problem);
        }
        notes.push(Note::Unread(name.clone()));
    }
    Ok(((texts, label), notes))
}

/// The text in the member `name`.
fn text<'a>(members: &'a Map<String, Value>, name: &str) -> Result<&'a str, Problem> {
    match members.get(name) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text),
        Some(Value::String(_)) => Err((format!("`{name}` is empty"), "remove the line, or add a text")),
        _ => Err((format!("`{name}` is not a string"), "write one text")),
    }
}

/// The error if the member `name` marks the record as not for training.
pub(super) fn wrong_split(name: &str, value: &Value) -> Option<Problem> {
    let split = value.as_str().filter(|_| name == SPLIT)?;
    named_split(split).filter(|split| *split != NamedSplit::Train)?;
    Some((
        format!("`{SPLIT}` is `{split}`, but the records of a file are all for one split"),
        "write the records of each split to a file of its own, such as `train.jsonl` and `validation.jsonl`",
    ))
}

pub(super) fn names(members: &Map<String, Value>) -> String {
    if members.is_empty() {
        return "an empty object".to_owned();
    }
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    format!("`{}`", names.join("`, `"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    fn read(record: &Value) -> Result<Vec<String>, String> {
        let found = pair_of(record.as_object().unwrap()).map_err(|(what, _)| what)?;
        Ok(found.0.into_iter().map(|(name, text)| format!("{name}: {text}")).collect())
    }

    #[test]
    fn pairs_are_read_by_both_names_of_the_anchor_and_others_are_refused_by_member() {
        let pair = read(&json!({ "anchor": "a", "positive": "b", "negative": null })).unwrap();
        assert_eq!(pair, ["anchor: a", "positive: b"]);
        let triplet = read(&json!({ "query": "a", "positive": "b", "negative": "c", "split": "train" })).unwrap();
        assert_eq!(triplet, ["query: a", "positive: b", "negative: c"]);
        for (record, message) in [
            (json!({ "positive": "b" }), "there is no `anchor`, only `positive`"),
            (json!({ "anchor": "a", "query": "a", "positive": "b" }), "there is both `anchor` and `query`"),
            (json!({ "anchor": "a", "negative": "b" }), "there is no `positive`, only `anchor`, `negative`"),
            (json!({ "anchor": "a", "positive": ["b"] }), "`positive` is not a string"),
            (json!({ "anchor": " ", "positive": "b" }), "`anchor` is empty"),
            (json!({ "anchor": "a", "positive": "b", "score": 0.1 }), "`score` is not read"),
            (json!({ "anchor": "a", "positive": "b", "split": "test" }), "`split` is `test`"),
        ] {
            let error = read(&record).unwrap_err();
            assert!(error.starts_with(message), "{record}: {error}");
        }
        let margin = |record: Value| margin_of(record.as_object().unwrap()).map_err(|(what, _)| what);
        let with = |name: &str, value: Value| json!({ "anchor": "a", "positive": "b", "negative": "c", name: value });
        assert_eq!(margin(with("id", json!(1))), Ok(None));
        assert_eq!(margin(with("margin", json!(-2))), Ok(Some(-2.0)));
        assert_eq!(margin(with("scores", json!([1.5, 4]))), Ok(Some(-2.5)));
        assert_eq!(read(&with("scores", json!([1.5, 4]))).unwrap().len(), 3);
        for (record, message) in [
            (with("margin", json!("3")), "`margin` must be a number, got `\"3\"`"),
            (with("scores", json!([1])), "`scores` must be two numbers, got `[1]`"),
            (json!({ "anchor": "a", "positive": "b", "margin": 1 }), "there is no `negative`, which a margin is about"),
            (json!({ "margin": 1, "scores": [1, 2] }), "there is both `margin` and `scores`"),
        ] {
            assert_eq!(margin(record), Err(message.to_owned()));
        }
        for (record, message) in [
            (json!({ "label": 1 }), "there is no `text`, only `label`"),
            (json!({ "text": "a" }), "there is no `label`, only `text`"),
            (json!({ "text1": "a", "label": 1 }), "there is no `text2`, only"),
            (json!({ "text": "a", "sentence1": "b", "label": 1 }), "there is both `text` and `sentence1`"),
            (json!({ "text": "a", "label": 0.5 }), "`label` must be a text or a whole number, got `0.5`"),
            (json!({ "text": "a", "label": ["x"] }), "`label` must be a text or a whole number, got `[\"x\"]`"),
            (json!({ "text": "", "label": "x" }), "`text` is empty"),
            (json!({ "text": "a", "label": "x", "labels": ["x"] }), "`labels` is not read"),
        ] {
            let error = labeled_of(record.as_object().unwrap()).unwrap_err().0;
            assert!(error.starts_with(message), "{record}: {error}");
        }
        let record = json!({ "sentence1": "a", "sentence2": "b", "label": 3, "idx": 0 });
        let found = labeled_of(record.as_object().unwrap()).unwrap();
        assert_eq!(found.0, (vec![("sentence1", "a"), ("sentence2", "b")], "3".to_owned()));
        let record = json!({ "anchor": "a", "positive": "b", "id": 7 });
        assert_eq!(pair_of(record.as_object().unwrap()).unwrap().1, [Note::Unread("id".to_owned())]);
    }
}
