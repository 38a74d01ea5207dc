//! Attributes, items and methods of values.

use minijinja::{State, Value};

use super::{
    Arguments, Result, Type, as_index, error, int,
    objects::{Method, View, pairs},
    operators::is_equal,
    required, strings,
};

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
/// Methods that change a value: undefined in a sandbox.
const CHANGE_DICT: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST: &[&str] = &["copy", "count", "index"];
const TUPLE: &[&str] = &["count", "index"];
const INT: &[&str] = &["as_integer_ratio", "bit_count", "bit_length", "conjugate", "from_bytes", "to_bytes"];
const FLOAT: &[&str] = &["as_integer_ratio", "conjugate", "fromhex", "hex", "is_integer"];
/// Numbers also have these values.
const NUMBER: &[&str] = &["real", "imag", "numerator", "denominator"];
/// Attributes of macros that the engine lacks.
const MACRO: &[&str] = &["arguments", "catch_kwargs", "catch_varargs"];

/// Whether some value may have this attribute or method, besides the items of dicts.
pub(crate) fn is_attribute(name: &str) -> bool {
    [STR, DICT, CHANGE_DICT, INT, FLOAT, NUMBER, MACRO].iter().any(|names| names.contains(&name))
}

fn method_names(kind: Type) -> &'static [&'static str] {
    match kind {
        Type::Str => STR,
        Type::Dict => DICT,
        Type::List => LIST,
        Type::Tuple | Type::Range => TUPLE,
        Type::Int | Type::Bool => INT,
        Type::Float => FLOAT,
        _ => &[],
    }
}

fn of_undefined(what: &str) -> minijinja::Error {
    error(format!("an undefined value has no {what}"))
}

/// What Python's `getattr` finds.
pub(super) fn python_attribute(value: &Value, name: &str) -> Option<Result> {
    let kind = Type::of(value);
    if method_names(kind).contains(&name) {
        return Some(Ok(Value::from_object(Method { value: value.clone(), name: name.to_owned() })));
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
    let number = super::as_int(value).map_or_else(|| value.clone(), int);
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
        Type::List | Type::Tuple | Type::Str | Type::Range if super::as_int(key).is_some() => {
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
    if !method_names(kind).contains(&name) {
        return match kind {
            Type::Other => value.call_method(state, name, arguments),
            _ => match attribute(value, name)? {
                function if function.is_undefined() => {
                    Err(error(format!("a {} has no method `{name}` that a template may call", kind.name())))
                }
                function => function.call(state, arguments),
            },
        };
    }
    let arguments = Arguments::new(arguments);
    match kind {
        Type::Str => strings::call(value, name, &arguments),
        Type::Dict => of_dict(value, name, &arguments),
        Type::List | Type::Tuple | Type::Range => of_list(value, name, &arguments),
        _ => of_number(value, name, &arguments),
    }
}

fn of_dict(dict: &Value, name: &str, arguments: &Arguments) -> Result {
    let view = |name, items| Ok(Value::from_object(View { name, items }));
    match name {
        "get" => {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            let key = required(name, "key", key)?;
            let found = dict.get_item(&key)?;
            Ok(if found.is_undefined() { default.unwrap_or_else(|| ().into()) } else { found })
        }
        "fromkeys" => from_keys(arguments),
        _ => {
            arguments.none(name)?;
            match name {
                "items" => view("dict_items", pairs(dict)?),
                "keys" => view("dict_keys", dict.try_iter()?.collect()),
                "values" => {
                    let values = dict.try_iter()?.map(|key| dict.get_item(&key));
                    view("dict_values", values.collect::<Result<_>>()?)
                }
                _ => Ok(dict.clone()),
            }
        }
    }
}

/// `dict.fromkeys(keys, value)`.
pub(super) fn from_keys(arguments: &Arguments) -> Result {
    let [keys, value] = arguments.bind("fromkeys", ["iterable", "value"])?;
    let value = value.unwrap_or_else(|| ().into());
    let keys = super::items(&required("fromkeys", "iterable", keys)?)?;
    Ok(Value::from_pairs(keys.into_iter().map(|key| (key, value.clone()))))
}

fn of_list(list: &Value, name: &str, arguments: &Arguments) -> Result {
    let items = super::items(list)?;
    match name {
        "count" => {
            let [value] = arguments.bind(name, ["value"])?;
            let value = required(name, "value", value)?;
            Ok(items.iter().filter(|item| is_equal(item, &value)).count().into())
        }
        "index" => {
            let [value, start, stop] = arguments.bind(name, ["value", "start", "stop"])?;
            let value = required(name, "value", value)?;
            let len = items.len() as i64;
            let bound = |bound: Option<Value>, default: i64| match bound {
                None => Ok(default),
                Some(bound) => as_index(&bound).map(|at| if at < 0 { (at + len).max(0) } else { at }),
            };
            let (start, stop) = (bound(start, 0)?, bound(stop, len)?);
            let is_found =
                |(at, item): &(usize, &Value)| (start..stop).contains(&(*at as i64)) && is_equal(item, &value);
            let found = items.iter().enumerate().find(is_found);
            found.map(|(at, _)| at.into()).ok_or_else(|| error("`index` does not find the value"))
        }
        _ => {
            arguments.none(name)?;
            Ok(list.clone())
        }
    }
}

fn of_number(number: &Value, name: &str, arguments: &Arguments) -> Result {
    arguments.none(name)?;
    match (name, super::as_int(number), super::as_float(number)) {
        ("is_integer", _, Some(float)) => Ok((float.fract() == 0.0).into()),
        ("bit_length", Some(int), _) => Ok((128 - int.unsigned_abs().leading_zeros()).into()),
        ("bit_count", Some(int), _) => Ok(int.unsigned_abs().count_ones().into()),
        ("conjugate", _, _) => number_attribute(number, "real"),
        _ => Err(error(format!("the method `{name}` of a {} is not supported", Type::of(number).name()))),
    }
}
