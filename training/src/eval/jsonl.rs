//! Records of evaluation data: JSON objects, one per line or in an array, or rows of CSV and TSV. Errors name the file and the line.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Map, Value};

use crate::data::corpus::{self, BytesRead, FileKind, FileSplit, Marks, Notes, RecordOptions, SourceFile};

/// An object and where it is.
#[derive(Clone, Debug)]
pub struct JsonRecord {
    place: String,
    fields: Map<String, Value>,
}

/// Reads the records of a file, decompressed if it is compressed. Empty lines and a byte order mark are skipped.
///
/// # Errors
/// The file cannot be read, is not UTF-8, has a line or an element that is not a JSON object, or has no record.
pub fn read_json_records(path: &Path) -> Result<Vec<JsonRecord>> {
    let shown = path.display();
    let is_missing = path.try_exists().is_ok_and(|exists| !exists);
    ensure!(!is_missing, "cannot read `{shown}`: no such file\nhint: give a file that is on this machine");
    let file = SourceFile {
        path: path.to_owned(),
        kind: FileKind::Json,
        n_bytes: 0,
        is_found: false,
        split: FileSplit::Train,
    };
    let marks = Marks::default();
    let options = RecordOptions { members: &[], text_member: "", expected: "one JSON object", marks: &marks };
    let mut records = Vec::new();
    corpus::read_records(&file, options, &BytesRead::default(), &mut Notes::default(), &mut |record| {
        records.push(JsonRecord { place: format!("`{shown}`, {}", record.place), fields: record.members });
        Ok(())
    })?;
    ensure!(!records.is_empty(), "`{shown}` is empty\nhint: it must have one JSON object per line");
    Ok(records)
}

impl JsonRecord {
    /// Where it is, for messages.
    pub fn place(&self) -> String {
        self.place.clone()
    }

    /// Whether it has a field that is not null.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A field that is not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// The text in a field.
    ///
    /// # Errors
    /// There is no such field, or it is not a string.
    pub fn text(&self, name: &str) -> Result<&str> {
        let value = self.required(name)?;
        value.as_str().ok_or_else(|| self.wrong(name, "a string", value))
    }

    /// The texts in a field: a list of strings.
    ///
    /// # Errors
    /// There is no such field, it is not a list of strings, or it is empty.
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        let value = self.required(name)?;
        let texts: Option<Vec<String>> =
            value.as_array().and_then(|list| list.iter().map(|text| text.as_str().map(str::to_owned)).collect());
        texts
            .filter(|texts| !texts.is_empty())
            .ok_or_else(|| self.wrong(name, "a list of strings with at least one", value))
    }

    /// The text of a field that is a string or a number, as labels are.
    ///
    /// # Errors
    /// There is no such field, or it is neither.
    pub fn label(&self, name: &str) -> Result<String> {
        match self.required(name)? {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            value => Err(self.wrong(name, "a string or a number", value)),
        }
    }

    fn required(&self, name: &str) -> Result<&Value> {
        self.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.fields.keys().map(String::as_str).collect();
            anyhow!(
                "{}: there is no field `{name}`, only: `{}`\nhint: see `docs/evaluation.md` for the forms of data",
                self.place,
                names.join("`, `")
            )
        })
    }

    fn wrong(&self, name: &str, expected: &str, value: &Value) -> anyhow::Error {
        let shown: String = value.to_string().chars().take(60).collect();
        anyhow!("{}: `{name}` must be {expected}, got `{shown}`\nhint: correct this line", self.place)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str) -> Result<Vec<JsonRecord>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, text).unwrap();
        read_json_records(&path)
    }

    #[test]
    fn read_json_records_errors_name_the_line_and_the_field() {
        for (text, message) in [
            ("{\"a\": 1}\n\n{\"a\": \n", "line 3: EOF"),
            ("1\n", "line 1: invalid type"),
            ("[1]\n", "behind element 0 of the array: invalid type"),
            ("[]\n", "is empty"),
            ("", "is empty"),
            ("\n \n", "is empty"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("a.jsonl") && error.contains("\nhint: "), "{error}");
        }
        // Some editors write a byte order mark at the start.
        let records = read("\u{feff}{\"a\": 1, \"b\": null, \"c\": [\"x\"], \"d\": [], \"e\": \"text\"}").unwrap();
        let record = &records[0];
        assert_eq!((record.label("a").unwrap(), record.text("e").unwrap()), ("1".to_owned(), "text"));
        assert_eq!(record.texts("c").unwrap(), ["x"]);
        assert!(!record.has("b") && record.has("c"));
        for (error, message) in [
            (record.text("b").map(drop), "line 1: there is no field `b`, only: `a`, `b`"),
            (record.text("a").map(drop), "`a` must be a string, got `1`"),
            (record.texts("d").map(drop), "`d` must be a list of strings with at least one, got `[]`"),
            (record.label("c").map(drop), "`c` must be a string or a number"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("\nhint: "), "{error}");
        }
    }
}
