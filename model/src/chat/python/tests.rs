//! Jinja's tests, which follow `is`.

use minijinja::Value;

use super::{Arguments, Result, Type, as_text, error, filters, is_callable, operators, required, strings, text};

/// Tests that are operators, with their other names.
const COMPARISONS: &[(&str, &[&str])] = &[
    ("==", &["==", "eq", "equalto"]),
    ("!=", &["!=", "ne"]),
    (">", &[">", "gt", "greaterthan"]),
    (">=", &[">=", "ge"]),
    ("<", &["<", "lt", "lessthan"]),
    ("<=", &["<=", "le"]),
    ("in", &["in"]),
];

/// Every other test of Jinja.
const NAMES: &[&str] = &[
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "integer",
    "iterable",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

fn comparison(name: &str) -> Option<&'static str> {
    COMPARISONS.iter().find(|(_, names)| names.contains(&name)).map(|(operator, _)| *operator)
}

/// `value is name(arguments)`.
pub(crate) fn perform(name: &str, value: &Value, arguments: &[Value]) -> Result<bool> {
    let arguments = Arguments::new(arguments);
    let needed = |parameter: &'static str| {
        arguments.bind(name, [parameter]).and_then(|[value]| required(name, parameter, value))
    };
    if let Some(operator) = comparison(name) {
        return Ok(operators::compute(operator, value, &needed("other")?)?.is_true());
    }
    let rest = |divisor: &Value| operators::compute("%", value, divisor);
    match name {
        "divisibleby" => return Ok(operators::is_equal(&rest(&needed("num")?)?, &0.into())),
        "sameas" => return Ok(is_same(value, &needed("other")?)),
        _ => arguments.none(name)?,
    }
    let kind = Type::of(value);
    Ok(match name {
        "boolean" => kind == Type::Bool,
        "callable" => is_callable(value),
        "defined" => kind != Type::Undefined,
        "undefined" => kind == Type::Undefined,
        "escaped" => value.is_safe(),
        "even" => operators::is_equal(&rest(&2.into())?, &0.into()),
        "odd" => operators::is_equal(&rest(&2.into())?, &1.into()),
        "false" => kind == Type::Bool && !value.is_true(),
        "true" => kind == Type::Bool && value.is_true(),
        "filter" => filters::NAMES.contains(&as_text(name, value)?),
        "test" => as_text(name, value).map(|name| NAMES.contains(&name) || comparison(name).is_some())?,
        "float" => kind == Type::Float,
        "integer" => kind == Type::Int,
        "iterable" => !kind.is_number() && !matches!(kind, Type::None | Type::Other),
        "lower" => strings::is_lower(&text(value)?),
        "upper" => strings::is_upper(&text(value)?),
        "mapping" => kind == Type::Dict,
        "none" => kind == Type::None,
        "number" => kind.is_number(),
        "sequence" => matches!(kind, Type::Undefined | Type::Str | Type::List | Type::Tuple | Type::Dict | Type::Range),
        "string" => kind == Type::Str,
        _ => return Err(error(format!("there is no test `{name}`"))),
    })
}

/// `value is sameas(other)`. Two equal lists count as the same, which cannot be told here.
fn is_same(value: &Value, other: &Value) -> bool {
    Type::of(value) == Type::of(other) && operators::is_equal(value, other)
}
