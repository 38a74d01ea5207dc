//! Getters of filters: the value to read from each item, and how these values are ordered.

use super::{Result, Value, operators, strings};

/// A text in lower case for comparisons without regard to case.
pub(super) fn ignore_case(value: Value) -> Value {
    value.as_str().map(str::to_lowercase).map_or(value, Value::from)
}

/// The value that a filter reads from each item: `attribute` may be a path such as `city.name`, or an index.
pub(super) struct Getter {
    path: Vec<Value>,
    default: Option<Value>,
}

impl Getter {
    pub(super) fn new(attribute: Option<&Value>, default: Option<Value>) -> Self {
        let path = match attribute {
            None => Vec::new(),
            Some(attribute) => match attribute.as_str() {
                None => vec![attribute.clone()],
                Some(text) => text.split('.').map(part).collect(),
            },
        };
        Self { path, default }
    }

    pub(super) fn get(&self, item: &Value) -> Result {
        let mut value = item.clone();
        for part in &self.path {
            value = super::item(&value, part)?;
            if let Some(default) = &self.default
                && value.is_undefined()
            {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// A part of a path: digits are an index.
fn part(text: &str) -> Value {
    let is_index = !text.is_empty() && text.chars().all(strings::is_decimal);
    text.parse::<i64>().ok().filter(|_| is_index).map_or_else(|| text.into(), Value::from)
}

/// The order of two keys, as `sorted` sees it: only `<` is asked.
pub(super) fn order(left: &Value, right: &Value) -> Result<std::cmp::Ordering> {
    Ok(operators::compare("<", left, right)?.unwrap_or(std::cmp::Ordering::Equal))
}
