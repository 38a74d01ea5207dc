//! Nested columns that are lists of objects with texts, such as the messages of conversations.

use std::{fs::File, path::Path};

use anyhow::{Result, anyhow};
use serde_json::{Map, Value};

use super::{
    DAMAGED, Problem,
    footer::{Footer, Levels},
    read_values,
};

/// Reads the lists of a column: for every row an array of objects, or `None`. Fields of objects without a value are left
/// out, and those that are numbers.
pub(super) fn read(path: &Path, file: &mut File, footer: &Footer, name: &str) -> Result<Vec<Option<Value>>> {
    let named = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    let mut rows: Vec<Option<Value>> = Vec::new();
    let leaves = footer.leaves(name).map_err(named)?;
    let mut is_first = true;
    for leaf in leaves {
        // The column, its list, and an element with a field, or directly a field.
        let (field, in_list) = match (leaf.path.as_slice(), leaf.list) {
            ([_, _, field] | [_, _, _, field], Some((1, in_list))) if leaf.levels.repetition == 1 => (field, in_list),
            _ => {
                return Err(named(format!(
                    "column `{}` is not a list of objects with texts\nhint: convert the file to jsonl, for example with \
                     `datasets`: `Dataset.from_parquet(...).to_json(...)`",
                    leaf.path.join(".")
                )));
            }
        };
        let Some(column) = &leaf.column else { continue };
        let differs = || named(format!("the fields of column `{name}` have lists of different lengths; {DAMAGED}"));
        let (mut row, mut element) = (0, 0);
        let mut n_rows = 0;
        let mut take = |levels: Levels, text: Option<&str>| {
            if levels.repetition == 0 {
                row = n_rows;
                n_rows += 1;
                element = 0;
                if is_first {
                    // Lists that are none and lists without elements are not told apart.
                    rows.push(None);
                }
            }
            if levels.definition < in_list {
                return Ok(());
            }
            let list = rows.get_mut(row).ok_or_else(differs)?;
            if is_first {
                match list.get_or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(list) => list.push(Map::new().into()),
                    _ => return Err(differs()),
                }
            }
            let object = list.as_mut().and_then(|list| list.get_mut(element)).and_then(Value::as_object_mut);
            let object = object.ok_or_else(differs)?;
            if let Some(text) = text {
                object.insert(field.clone(), text.into());
            }
            element += 1;
            Ok(())
        };
        read_values(path, file, column, &mut take, &mut |_| {})?;
        if n_rows != rows.len() {
            return Err(differs());
        }
        is_first = false;
    }
    Ok(rows)
}
