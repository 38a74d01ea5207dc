//! The forms in which models write the arguments of calls. For each form one file has both its rules and its reader.

mod cursor;
mod members;
mod parameters;
mod python;
mod rules;
mod tags;

use hearth_model::decode::constraint::in_lark;
use serde_json::{Map, Value};

use self::parameters::Parameters;
pub(crate) use self::{
    cursor::Cursor,
    rules::{NUMBER, Rules, text_in_lark},
    tags::Tags,
};
use super::{json_text::json_at_start, mismatch::Mismatch};

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The schema of an object.
    pub(crate) parameters: Value,
}

/// A whole call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

/// A form of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arguments {
    /// A JSON object.
    Json,
    /// Each parameter's name and value between tags.
    Tags(Tags),
    /// `name=value`, with Python's literals.
    Python,
    /// `name:value`, with this mark on both sides of strings.
    Members { quote: &'static str },
}

impl Arguments {
    /// The arguments of a call as the right side of a rule. `name` is the prefix of the names of the rules that it
    /// needs.
    pub(crate) fn rule(self, name: &str, function: &Function, rules: &mut Rules) -> String {
        match self {
            Self::Json => {
                rules.add(name, &in_lark(&function.parameters));
                name.to_owned()
            }
            Self::Tags(tags) => tags.rule(name, &Self::parameters(function, rules), rules),
            Self::Python => python::rule(name, &Self::parameters(function, rules), rules),
            Self::Members { quote } => members::rule(name, &Self::parameters(function, rules), quote, rules),
        }
    }

    fn parameters(function: &Function, rules: &mut Rules) -> Parameters {
        let parameters = Parameters::of(&function.parameters);
        parameters.joint.iter().for_each(|keyword| rules.note_unheld(keyword.clone()));
        parameters
    }

    /// The arguments that a text starts with, as JSON.
    ///
    /// # Errors
    /// It does not start with arguments.
    pub(crate) fn read(self, cursor: &mut Cursor<'_>, function: &Function) -> Result<String, Mismatch> {
        let parameters = || Parameters::of(&function.parameters);
        match self {
            Self::Json => {
                cursor.skip_blanks();
                let (json, rest) = json_at_start(cursor.rest)?;
                if serde_json::from_str::<Map<String, Value>>(json).is_err() {
                    return Err(Mismatch::Other);
                }
                cursor.rest = rest;
                Ok(json.to_owned())
            }
            Self::Tags(tags) => tags.read(cursor, &parameters()),
            Self::Python => python::read(cursor, &parameters()),
            Self::Members { quote } => members::read(cursor, quote),
        }
    }
}

/// A JSON object from the names of its members and their values as JSON. If a name occurs twice, the last value counts.
fn object(members: Vec<(String, String)>) -> String {
    let mut object: Vec<(String, String)> = Vec::with_capacity(members.len());
    for (name, value) in members {
        match object.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => object.push((name, value)),
        }
    }
    let members = object.into_iter().map(|(name, value)| format!("{}: {value}", Value::from(name)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests;
