//! Attributes, items and methods of values.

use minijinja::{State, Value};

use super::{
    Result, Type, as_float, as_index, as_int,
    calls::{self, ANY, Arguments, Call, Row, find},
    error, int,
    objects::{View, function, pairs},
    operators::is_equal,
    strings::METHODS,
};

/// The methods of dicts, except methods that change a dict.
const DICT: &[Row] = &[
    ("copy", &[], |_, call| Ok(call.value.clone())),
    ("fromkeys", &["iterable", "value"], |_, call| from_keys(call.get(0), call.get(1))),
    ("get", &["key", "default"], |_, call| {
        let found = call.value.get_item(call.needed(0)?)?;
        Ok(if found.is_undefined() { call.get(1).cloned().unwrap_or_else(|| ().into()) } else { found })
    }),
    ("items", &[], |_, call| view("dict_items", pairs(call.value)?)),
    ("keys", &[], |_, call| view("dict_keys", call.value.try_iter()?.collect())),
    ("values", &[], |_, call| {
        let values = call.value.try_iter()?.map(|key| call.value.get_item(&key));
        view("dict_values", values.collect::<Result<_>>()?)
    }),
];
/// Methods that change a value: undefined in a sandbox.
const CHANGE_DICT: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST: &[Row] = &[("copy", &[], |_, call| Ok(call.value.clone())), SEQUENCE[0], SEQUENCE[1]];
const SEQUENCE: &[Row] =
    &[("count", &["value"], |_, call| count(call)), ("index", &["value", "start", "stop"], |_, call| index(call))];
const INT: &[Row] = &[
    ("as_integer_ratio", ANY, |_, call| unsupported(call)),
    ("bit_count", &[], |_, call| Ok(magnitude(call).count_ones().into())),
    ("bit_length", &[], |_, call| Ok((128 - magnitude(call).leading_zeros()).into())),
    ("conjugate", &[], |_, call| number_attribute(call.value, "real")),
    ("from_bytes", ANY, |_, call| unsupported(call)),
    ("to_bytes", ANY, |_, call| unsupported(call)),
];
const FLOAT: &[Row] = &[
    ("as_integer_ratio", ANY, |_, call| unsupported(call)),
    ("conjugate", &[], |_, call| number_attribute(call.value, "real")),
    ("fromhex", ANY, |_, call| unsupported(call)),
    ("hex", ANY, |_, call| unsupported(call)),
    ("is_integer", &[], |_, call| Ok(as_float(call.value).is_some_and(|float| float.fract() == 0.0).into())),
];
/// Numbers also have these values.
const NUMBER: &[&str] = &["real", "imag", "numerator", "denominator"];
/// Attributes of macros that the engine lacks.
const MACRO: &[&str] = &["arguments", "catch_kwargs", "catch_varargs"];

/// Whether some value may have this attribute or method, besides the items of dicts.
pub(crate) fn is_attribute(name: &str) -> bool {
    [METHODS, DICT, INT, FLOAT].iter().any(|table| find(table, name).is_some())
        || [CHANGE_DICT, NUMBER, MACRO].iter().any(|names| names.contains(&name))
}

fn method(kind: Type, name: &str) -> Option<&'static Row> {
    let table = match kind {
        Type::Str => METHODS,
        Type::Dict => DICT,
        Type::List => LIST,
        Type::Tuple | Type::Range => SEQUENCE,
        Type::Int | Type::Bool => INT,
        Type::Float => FLOAT,
        _ => &[],
    };
    find(table, name)
}

/// A method that Python has.
pub(super) fn unsupported(call: &Call<'_>) -> Result {
    let kind = Type::of(call.value).name();
    Err(error(format!("the method `{}` of a {kind} is not supported", call.name)))
}

fn of_undefined(what: &str) -> minijinja::Error {
    error(format!("an undefined value has no {what}"))
}

/// What Python's `getattr` finds.
pub(super) fn python_attribute(value: &Value, name: &str) -> Option<Result> {
    let kind = Type::of(value);
    if let Some(method) = method(kind, name) {
        let value = value.clone();
        return Some(Ok(function(move |state, arguments| {
            calls::call(method, state, &value, &Arguments::new(arguments))
        })));
    }
    match name {
        _ if kind == Type::Dict && CHANGE_DICT.contains(&name) => Some(Ok(Value::UNDEFINED)),
        "real" | "imag" | "numerator" | "denominator" if kind.is_number() => Some(number_attribute(value, name)),
        "arguments" if super::engine_type(value) == Some("Macro") => {
            Some(value.get_attr(name).and_then(|names| Ok(super::tuple(names.try_iter()?.collect()))))
        }
        // Macros that use `varargs` or `kwargs` are not supported.
        "catch_kwargs" | "catch_varargs" if super::engine_type(value) == Some("Macro") => Some(Ok(false.into())),
        _ => None,
    }
}

fn number_attribute(value: &Value, name: &str) -> Result {
    let number = as_int(value).map_or_else(|| value.clone(), int);
    match name {
        "real" => Ok(number),
        "numerator" if Type::of(value) != Type::Float => Ok(number),
        "denominator" if Type::of(value) != Type::Float => Ok(1.into()),
        "imag" => Ok(if Type::of(value) == Type::Float { 0.0.into() } else { 0.into() }),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `value.name`: an attribute, else an item.
pub(crate) fn attribute(value: &Value, name: &str) -> Result {
    match python_attribute(value, name) {
        Some(found) => found,
        None if value.is_undefined() => Err(of_undefined(&format!("attribute `{name}`"))),
        None => value.get_attr(name),
    }
}

/// `value[key]`: an item, else an attribute.
pub(crate) fn item(value: &Value, key: &Value) -> Result {
    let found = match Type::of(value) {
        Type::Undefined => return Err(of_undefined("items")),
        Type::List | Type::Tuple | Type::Str | Type::Range if as_int(key).is_some() => {
            return value.get_item(&as_index(key)?.into());
        }
        Type::Dict | Type::Other => value.get_item(key).unwrap_or(Value::UNDEFINED),
        _ => Value::UNDEFINED,
    };
    match key.as_str() {
        Some(name) if found.is_undefined() => match python_attribute(value, name) {
            Some(attribute) => attribute,
            // The names of a group.
            None if Type::of(value) == Type::Tuple => value.get_attr(name),
            None => Ok(found),
        },
        _ => Ok(found),
    }
}

/// `value.name(arguments)`.
pub(crate) fn call(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result {
    let kind = Type::of(value);
    if kind == Type::Undefined {
        return Err(of_undefined(&format!("method `{name}`")));
    }
    match (method(kind, name), kind) {
        (Some(method), _) => calls::call(method, state, value, &Arguments::new(arguments)),
        (None, Type::Other) => value.call_method(state, name, arguments),
        (None, _) => match attribute(value, name)? {
            function if function.is_undefined() => {
                Err(error(format!("a {} has no method `{name}` that a template may call", kind.name())))
            }
            function => function.call(state, arguments),
        },
    }
}

fn view(name: &'static str, items: Vec<Value>) -> Result {
    Ok(Value::from_object(View { name, items }))
}

/// `dict.fromkeys(keys, value)`.
pub(super) fn from_keys(keys: Option<&Value>, value: Option<&Value>) -> Result {
    let keys = keys.ok_or_else(|| error("`fromkeys` needs the argument `iterable`"))?;
    let value = value.cloned().unwrap_or_else(|| ().into());
    Ok(Value::from_pairs(super::items(keys)?.into_iter().map(|key| (key, value.clone()))))
}

fn count(call: &Call<'_>) -> Result {
    let wanted = call.needed(0)?;
    Ok(super::items(call.value)?.iter().filter(|item| is_equal(item, wanted)).count().into())
}

fn index(call: &Call<'_>) -> Result {
    let (items, wanted) = (super::items(call.value)?, call.needed(0)?);
    let len = items.len() as i64;
    let bound = |bound: i64| if bound < 0 { (bound + len).max(0) } else { bound };
    let range = bound(call.index_or(1, 0)?)..bound(call.index_or(2, len)?);
    let is_found = |(at, item): &(i64, &Value)| range.contains(at) && is_equal(item, wanted);
    let found = (0..).zip(&items).find(is_found);
    found.map(|(at, _)| at.into()).ok_or_else(|| error("`index` does not find the value"))
}

/// The number without its sign.
fn magnitude(call: &Call<'_>) -> u128 {
    as_int(call.value).unwrap_or_default().unsigned_abs()
}
