//! Nested columns that are lists: of objects with texts, such as the messages of conversations, or of texts.

use std::{fs::File, path::Path};

use anyhow::{Result, anyhow};
use serde_json::{Map, Value};

use super::{
    super::message::may_say_trained,
    DAMAGED, Problem, RECORDS_HINT,
    footer::{Footer, Leaf, Levels},
    read_values,
};

/// Where the texts of a list are.
enum Part {
    /// Each element is a text.
    Element,
    /// Each element is an object with the text in this field.
    Field(String),
}

impl Part {
    /// For `leaf`, one of the `n_leaves` leaves of a column; `None` unless it is in a single list, directly below the column.
    fn of(leaf: &Leaf, n_leaves: usize) -> Option<Part> {
        let Some((1, _)) = leaf.list.filter(|_| leaf.levels.repetition == 1) else { return None };
        let names: Vec<&str> = leaf.path.iter().map(String::as_str).collect();
        match names.as_slice() {
            [_, _] => Some(Part::Element),
            // The column, its list, and its element; the group may also be an element with one field, by the rules of
            // <https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#lists>.
            [column, list, _] if n_leaves == 1 && *list != "array" && *list != format!("{column}_tuple") => {
                Some(Part::Element)
            }
            [_, _, field] | [_, _, _, field] => Some(Part::Field((*field).to_owned())),
            _ => None,
        }
    }

    fn empty(&self) -> Value {
        match self {
            Part::Element => Value::Null,
            Part::Field(_) => Map::new().into(),
        }
    }
}

/// Reads the lists of a column: for every row an array of objects or of texts, or `None`. Fields of objects without a value
/// are left out, and those that are numbers, which are rejected if they may say what is trained, and else added to `unread`; a
/// text without a value is null.
pub(super) fn read(
    path: &Path,
    file: &mut File,
    footer: &Footer,
    name: &str,
    unread: &mut Vec<String>,
) -> Result<Vec<Option<Value>>> {
    let named = |problem: Problem| anyhow!("`{}`: {problem}", path.display());
    let mut rows: Vec<Option<Value>> = Vec::new();
    let leaves = footer.leaves(name).map_err(named)?;
    let mut is_first = true;
    for leaf in &leaves {
        let (Some(part), Some((_, in_list))) = (Part::of(leaf, leaves.len()), leaf.list) else {
            return Err(named(no_list(&leaf.path.join("."))));
        };
        let Some(column) = &leaf.column else {
            match &part {
                Part::Field(field) if may_say_trained(field) && !leaf.is_null => {
                    return Err(named(decides(name, field)));
                }
                Part::Field(field) if !leaf.is_null => {
                    unread.push(format!("{name}.{field}"));
                    continue;
                }
                _ => continue,
            }
        };
        let differs = || named(format!("the fields of column `{name}` have lists of different lengths; {DAMAGED}"));
        let (mut row, mut element) = (0, 0);
        let mut n_rows = 0;
        let mut take = |levels: Levels, text: Option<&str>| {
            if levels.repetition == 0 {
                row = n_rows;
                n_rows += 1;
                element = 0;
                if is_first {
                    // A null list and an empty list both stay `None`.
                    rows.push(None);
                }
            }
            if levels.definition < in_list {
                return Ok(());
            }
            let list = rows.get_mut(row).ok_or_else(differs)?;
            if is_first {
                match list.get_or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(list) => list.push(part.empty()),
                    _ => return Err(differs()),
                }
            }
            let value = list.as_mut().and_then(|list| list.get_mut(element)).ok_or_else(differs)?;
            match (&part, text, value) {
                (_, None, _) => {}
                (Part::Element, Some(text), value) => *value = text.into(),
                (Part::Field(field), Some(text), Value::Object(object)) => {
                    object.insert(field.clone(), text.into());
                }
                _ => return Err(differs()),
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
    if is_first {
        // There is no text in it.
        return Err(named(no_list(name)));
    }
    Ok(rows)
}

fn decides(column: &str, field: &str) -> Problem {
    format!(
        "the messages of column `{column}` have `{field}`, which says whether a message is trained and is only read from JSON\nhint: \
         {RECORDS_HINT}"
    )
}

fn no_list(column: &str) -> Problem {
    format!("column `{column}` is not a list of texts, or of objects with texts\nhint: {RECORDS_HINT}")
}
