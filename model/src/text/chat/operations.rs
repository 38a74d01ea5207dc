//! The functions that a template's instructions call: each computes as Python does, and counts what it creates.

use std::sync::Arc;

use minijinja::{
    Environment, Error, Output, State, Value,
    value::{Kwargs, Object},
};

use super::{budget::Budget, python};

/// Names of the functions, which no template can spell. The names of operators have the operator in the middle.
pub(super) const ADD: &str = "left + right";
pub(super) const SUBTRACT: &str = "left - right";
pub(super) const MULTIPLY: &str = "left * right";
pub(super) const DIVIDE: &str = "left / right";
pub(super) const FLOOR_DIVIDE: &str = "left // right";
pub(super) const MODULO: &str = "left % right";
pub(super) const POWER: &str = "left ** right";
pub(super) const CONCATENATE: &str = "left ~ right";
pub(super) const IN: &str = "left in right";
pub(super) const EQUAL: &str = "left == right";
pub(super) const NOT_EQUAL: &str = "left != right";
pub(super) const LESS: &str = "left < right";
pub(super) const LESS_OR_EQUAL: &str = "left <= right";
pub(super) const GREATER: &str = "left > right";
pub(super) const GREATER_OR_EQUAL: &str = "left >= right";
pub(super) const NEGATE: &str = "- right";
pub(super) const COMPARE_AND_KEEP: &str = "compare and keep";
pub(super) const SLICE: &str = "value[start:stop:step]";
pub(super) const FILTER: &str = "value | filter";
pub(super) const TEST: &str = "value is test";
pub(super) const METHOD: &str = "value.method()";
pub(super) const ATTRIBUTE: &str = "value.attribute";
pub(super) const ITEM: &str = "value[key]";
pub(super) const ITEMS: &str = "items of";
pub(super) const MADE: &str = "was made";
pub(super) const RETURNED: &str = "was returned";
pub(super) const KEEP: &str = "is kept";
pub(super) const SPREAD: &str = "are spread";
pub(super) const UNSUPPORTED: &str = "is not supported";
pub(super) const GIVEN: &str = "are given";
pub(super) const UNWRAP: &str = "was given";

const ALL: [&str; 31] = [
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    FLOOR_DIVIDE,
    MODULO,
    POWER,
    CONCATENATE,
    IN,
    EQUAL,
    NOT_EQUAL,
    LESS,
    LESS_OR_EQUAL,
    GREATER,
    GREATER_OR_EQUAL,
    NEGATE,
    COMPARE_AND_KEEP,
    SLICE,
    FILTER,
    TEST,
    METHOD,
    ATTRIBUTE,
    ITEM,
    ITEMS,
    MADE,
    RETURNED,
    KEEP,
    SPREAD,
    UNSUPPORTED,
    GIVEN,
    UNWRAP,
];

/// The environment for a rendering: with the functions, without other templates.
pub(super) fn watch<'source>(budget: &Arc<Budget>, environment: &Environment<'source>) -> Environment<'source> {
    let mut watched = environment.clone();
    watched.clear_templates();
    let for_output = Arc::clone(budget);
    watched.set_formatter(move |out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value| {
        for_output.check_output(value)?;
        match value.as_str() {
            Some(text) => out.write_str(text).map_err(Error::from),
            None => out.write_str(&python::text(value)?).map_err(Error::from),
        }
    });
    for name in ALL {
        watched.add_global(name, Value::from_object(Operation { budget: Arc::clone(budget), name }));
    }
    watched
}

/// A function that is called in place of an instruction.
#[derive(Debug)]
struct Operation {
    budget: Arc<Budget>,
    name: &'static str,
}

impl Object for Operation {
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        let Self { budget, name } = self.as_ref();
        match arguments {
            _ if *name == SPREAD => Err(python::error(
                "a filter, a test or a method gets a list as arguments (`*args`), which is not supported",
            )),
            _ if *name == GIVEN => Ok(arguments.iter().rev().map(given).collect()),
            [value] => one(budget, name, value),
            [value, key] if matches!(*name, ATTRIBUTE | ITEM) => {
                budget.spend(1)?;
                match key.as_str() {
                    Some(key) if *name == ATTRIBUTE => python::attribute(value, key),
                    _ => python::item(value, key),
                }
            }
            [left, right] if !matches!(*name, FILTER | TEST | METHOD) => binary(budget, name, left, right),
            [value, start, stop, step] if *name == SLICE => {
                budget.check_items(value)?;
                budget.made(python::slice(value, [start, stop, step])?)
            }
            // The last two are pushed in reverse.
            [value, namespace, member] if *name == KEEP => {
                python::check_member(member.as_str().unwrap_or_default())?;
                budget.keep(value, 0)?;
                Ok([namespace.clone(), value.clone()].to_vec().into())
            }
            [left, right, operator] if *name == COMPARE_AND_KEEP => {
                let result = compare(budget, operator.as_str().unwrap_or_default(), left, right)?;
                Ok([result, right.clone()].to_vec().into())
            }
            [value, rest @ .., called] => {
                let called = called.as_str().unwrap_or_default();
                budget.before(called, value, rest)?;
                let result = match *name {
                    FILTER => python::apply_filter(state, called, value, rest)?,
                    METHOD => python::call_method(state, value, called, rest)?,
                    _ => return python::perform_test(state, called, value, rest).map(Value::from),
                };
                budget.made(result)
            }
            [] => Ok(Value::UNDEFINED),
        }
    }
}

/// An undefined value as an argument of a macro: no default replaces it.
#[derive(Debug)]
struct GivenUndefined;

impl Object for GivenUndefined {}

/// An argument of a macro with defaults.
fn given(value: &Value) -> Value {
    match value.is_kwargs() {
        _ if value.is_undefined() => Value::from_object(GivenUndefined),
        true => {
            let names = value.try_iter().into_iter().flatten();
            let pairs = names.filter_map(|name| Some((name.as_str()?.to_owned(), given(&value.get_item(&name).ok()?))));
            Kwargs::from_iter(pairs).into()
        }
        false => value.clone(),
    }
}

fn one(budget: &Budget, name: &str, value: &Value) -> Result<Value, Error> {
    match name {
        ITEMS => {
            budget.check_items(value)?;
            Ok(python::items(value)?.into())
        }
        UNWRAP if value.downcast_object_ref::<GivenUndefined>().is_some() => Ok(Value::UNDEFINED),
        UNWRAP => Ok(value.clone()),
        UNSUPPORTED => Err(python::error(format!("a macro uses `{value}`, which is not supported"))),
        _ => budget.made(value.clone()),
    }
}

fn binary(budget: &Budget, name: &str, left: &Value, right: &Value) -> Result<Value, Error> {
    match name {
        // The right one is -1.
        NEGATE => match python::Type::of(left).is_number() {
            true => python::compute("*", left, right),
            false => Err(python::error(format!("`-` is not defined for a {}", python::Type::of(left).name()))),
        },
        _ => {
            let operator = name.split(' ').nth(1).unwrap_or_default();
            budget.before_operator(operator, left, right)?;
            budget.made(python::compute(operator, left, right)?)
        }
    }
}

/// A comparison in a chain, by the engine's name of the operator.
fn compare(budget: &Budget, operator: &str, left: &Value, right: &Value) -> Result<Value, Error> {
    budget.spend(1)?;
    let operator = match operator {
        "Eq" => "==",
        "Ne" => "!=",
        "Lt" => "<",
        "Lte" => "<=",
        "Gt" => ">",
        "Gte" => ">=",
        "NotIn" => return python::compute("in", left, right).map(|found| (!found.is_true()).into()),
        _ => "in",
    };
    python::compute(operator, left, right)
}
