//! Distinguishes special tokens that a template writes from the same strings in inputs.
//!
//! A character that occurs nowhere is inserted into such strings, after the first character, and at the start of each
//! text part of a content, so that several parts cannot form a special token together. The tokenizer then finds only
//! the template's own special tokens in the rendered text, and removes the marks.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::Inputs;
use crate::{
    TokenId,
    error::{Error, Result},
};

/// Private-use characters that occur in neither the inputs nor the templates.
pub(super) fn unused<const N: usize>(inputs: &Inputs, template_sources: &str) -> Result<[char; N]> {
    let mut used: HashSet<char> = template_sources.chars().filter(|character| is_private(*character)).collect();
    for_each_input(inputs, &mut |text| used.extend(text.chars().filter(|character| is_private(*character))));
    let free: Vec<char> = ('\u{E000}'..='\u{F8FF}').filter(|character| !used.contains(character)).take(N).collect();
    let range = "U+E000 to U+F8FF";
    let what = || format!("the messages use every private-use character of Unicode, {range}; {N} must be free");
    free.try_into().map_err(|_| Error::template(what()))
}

fn is_private(character: char) -> bool {
    ('\u{E000}'..='\u{F8FF}').contains(&character)
}

fn for_each_input(inputs: &Inputs, visit: &mut impl FnMut(&str)) {
    let values = inputs.messages.iter().chain(&inputs.tools).chain(inputs.kwargs.values());
    values.for_each(|value| for_each_string(value, visit));
}

fn for_each_string(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| for_each_string(item, visit)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            visit(key);
            for_each_string(value, visit);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Inserts `mark` into every special-token string of the inputs, and into every text part of a content.
pub(super) fn break_up(inputs: &mut Inputs, special_tokens: &[(TokenId, String)], mark: char) {
    let breaks: Vec<Break> = special_tokens.iter().filter_map(|(_, content)| Break::new(content, mark)).collect();
    let values = inputs.messages.iter_mut().chain(&mut inputs.tools).chain(inputs.kwargs.values_mut());
    values.for_each(|value| break_up_value(value, &breaks));
    let contents = inputs.messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut());
    for part in contents.flatten() {
        if let Some(Value::String(text)) = part.get_mut("text")
            && let Some(start) = text.find(|character: char| !character.is_whitespace())
        {
            // Behind the white space, so that a template can trim it.
            text.insert(start, mark);
        }
    }
}

/// A special-token string, and the same with the mark.
struct Break<'a> {
    whole: &'a str,
    broken: String,
}

impl<'a> Break<'a> {
    /// `None` for a string of one character, which cannot be marked.
    fn new(whole: &'a str, mark: char) -> Option<Self> {
        let (at, _) = whole.char_indices().nth(1)?;
        let (first, rest) = whole.split_at(at);
        Some(Self { whole, broken: format!("{first}{mark}{rest}") })
    }
}

fn break_up_value(value: &mut Value, breaks: &[Break]) {
    match value {
        Value::String(text) => break_up_text(text, breaks),
        Value::Array(items) => items.iter_mut().for_each(|item| break_up_value(item, breaks)),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(mut key, mut value)| {
                    break_up_text(&mut key, breaks);
                    break_up_value(&mut value, breaks);
                    (key, value)
                })
                .collect::<Map<_, _>>();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn break_up_text(text: &mut String, breaks: &[Break]) {
    for Break { whole, broken } in breaks {
        // Repeated for overlapping occurrences: replacing the first leaves the second intact.
        while text.contains(whole) {
            *text = text.replace(whole, broken);
        }
    }
}
