//! Jinja's tests, which follow `is`.

use minijinja::{State, Value};

use super::{
    Result, Type,
    calls::{Arguments, Call, Row, call, find},
    error,
    filters::FILTERS,
    is_callable, operators, strings,
};

/// Every test of Jinja.
const TESTS: &[Row] = &[
    ("!=", &["other"], |_, call| compare(call, "!=")),
    ("<", &["other"], |_, call| compare(call, "<")),
    ("<=", &["other"], |_, call| compare(call, "<=")),
    ("==", &["other"], |_, call| compare(call, "==")),
    (">", &["other"], |_, call| compare(call, ">")),
    (">=", &["other"], |_, call| compare(call, ">=")),
    ("boolean", &[], |_, call| is_type(call, |kind| kind == Type::Bool)),
    ("callable", &[], |_, call| Ok(is_callable(call.value).into())),
    ("defined", &[], |_, call| is_type(call, |kind| kind != Type::Undefined)),
    ("divisibleby", &["num"], |_, call| leaves(call, call.needed(0)?, 0)),
    ("eq", &["other"], |_, call| compare(call, "==")),
    ("equalto", &["other"], |_, call| compare(call, "==")),
    ("escaped", &[], |_, call| Ok(call.value.is_safe().into())),
    ("even", &[], |_, call| leaves(call, &2.into(), 0)),
    ("false", &[], |_, call| is_type(call, |kind| kind == Type::Bool && !call.value.is_true())),
    ("filter", &[], |_, call| is_filter(call)),
    ("float", &[], |_, call| is_type(call, |kind| kind == Type::Float)),
    ("ge", &["other"], |_, call| compare(call, ">=")),
    ("greaterthan", &["other"], |_, call| compare(call, ">")),
    ("gt", &["other"], |_, call| compare(call, ">")),
    ("in", &["other"], |_, call| compare(call, "in")),
    ("integer", &[], |_, call| is_type(call, |kind| kind == Type::Int)),
    ("iterable", &[], |_, call| is_type(call, |kind| !kind.is_number() && !matches!(kind, Type::None | Type::Other))),
    ("le", &["other"], |_, call| compare(call, "<=")),
    ("lessthan", &["other"], |_, call| compare(call, "<")),
    ("lower", &[], |_, call| Ok(strings::is_lower(&call.shown()?).into())),
    ("lt", &["other"], |_, call| compare(call, "<")),
    ("mapping", &[], |_, call| is_type(call, |kind| kind == Type::Dict)),
    ("ne", &["other"], |_, call| compare(call, "!=")),
    ("none", &[], |_, call| is_type(call, |kind| kind == Type::None)),
    ("number", &[], |_, call| is_type(call, Type::is_number)),
    ("odd", &[], |_, call| leaves(call, &2.into(), 1)),
    ("sameas", &["other"], |_, call| is_same(call)),
    ("sequence", &[], |_, call| is_type(call, is_sequence)),
    ("string", &[], |_, call| is_type(call, |kind| kind == Type::Str)),
    ("test", &[], |_, call| is_test(call)),
    ("true", &[], |_, call| is_type(call, |kind| kind == Type::Bool && call.value.is_true())),
    ("undefined", &[], |_, call| is_type(call, |kind| kind == Type::Undefined)),
    ("upper", &[], |_, call| Ok(strings::is_upper(&call.shown()?).into())),
];

/// `value is name(arguments)`.
pub(crate) fn perform(state: &mut State<'_, '_>, name: &str, value: &Value, arguments: &[Value]) -> Result<bool> {
    let test = find(TESTS, name).ok_or_else(|| error(format!("there is no test `{name}`")))?;
    Ok(call(test, state, value, &Arguments::new(arguments))?.is_true())
}

fn compare(call: &Call<'_>, operator: &str) -> Result {
    operators::compute(operator, call.value, call.needed(0)?)
}

fn is_type(call: &Call<'_>, is_wanted: impl Fn(Type) -> bool) -> Result {
    Ok(is_wanted(Type::of(call.value)).into())
}

/// Whether the division by `divisor` leaves `rest`.
fn leaves(call: &Call<'_>, divisor: &Value, rest: i32) -> Result {
    let left = operators::compute("%", call.value, divisor)?;
    Ok(operators::is_equal(&left, &rest.into()).into())
}

fn is_filter(call: &Call<'_>) -> Result {
    Ok(find(FILTERS, call.as_text(call.value)?).is_some().into())
}

fn is_test(call: &Call<'_>) -> Result {
    Ok(find(TESTS, call.as_text(call.value)?).is_some().into())
}

fn is_sequence(kind: Type) -> bool {
    matches!(kind, Type::Undefined | Type::Str | Type::List | Type::Tuple | Type::Dict | Type::Range)
}

/// `value is sameas(other)`. Two equal lists count as the same object, since identity is not known here.
fn is_same(call: &Call<'_>) -> Result {
    let other = call.needed(0)?;
    Ok((Type::of(call.value) == Type::of(other) && operators::is_equal(call.value, other)).into())
}
