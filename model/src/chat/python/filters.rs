//! Jinja's filters.

use minijinja::{State, Value};

use super::{
    Arguments, Generator, Result, Type, as_float, as_index, as_int, as_text, error, int, is_true, items, json, length,
    lists, methods::python_attribute, numbers, objects::pairs, repr, required, text, words,
};

/// Every filter of Jinja.
pub(super) const NAMES: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// `value|name(arguments)`.
pub(crate) fn apply(state: &mut State<'_, '_>, name: &str, value: &Value, arguments: &[Value]) -> Result {
    let arguments = Arguments::new(arguments);
    match name {
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => lists::mapped(state, name, value, &arguments),
        "batch" | "slice" | "sort" | "unique" | "groupby" | "dictsort" | "max" | "min" | "sum" | "first" | "last"
        | "reverse" | "join" => lists::apply(name, value, &arguments),
        "capitalize" | "center" | "e" | "escape" | "forceescape" | "indent" | "lower" | "upper" | "replace"
        | "safe" | "string" | "striptags" | "title" | "trim" | "truncate" | "urlencode" | "wordcount" | "wordwrap"
        | "xmlattr" | "filesizeformat" | "format" => words::apply(name, value, &arguments),
        "tojson" => json::tojson(value, &arguments).map(Value::from),
        "default" | "d" => {
            let [default, boolean] = arguments.bind(name, ["default_value", "boolean"])?;
            let replaces = value.is_undefined() || is_true(boolean.as_ref()) && !value.is_true();
            Ok(if replaces { default.unwrap_or_else(|| "".into()) } else { value.clone() })
        }
        "int" => {
            let [default, base] = arguments.bind(name, ["default", "base"])?;
            let base = base.as_ref().map_or(Ok(10), as_index)?;
            numbers::to_int(value, default.unwrap_or_else(|| 0.into()), base)
        }
        "float" => {
            let [default] = arguments.bind(name, ["default"])?;
            numbers::to_float(value, default.unwrap_or_else(|| 0.0.into()))
        }
        "round" => {
            let [precision, method] = arguments.bind(name, ["precision", "method"])?;
            let precision = precision.as_ref().map_or(Ok(0), as_index)?;
            let method =
                method.map_or_else(|| Ok("common".to_owned()), |method| as_text(name, &method).map(str::to_owned))?;
            numbers::round(value, precision, &method)
        }
        "attr" => {
            let [attribute] = arguments.bind(name, ["name"])?;
            let attribute = text(&required(name, "name", attribute)?)?;
            match python_attribute(value, &attribute) {
                Some(found) => found,
                None if matches!(Type::of(value), Type::Other | Type::Tuple) => value.get_attr(&attribute),
                None => Ok(Value::UNDEFINED),
            }
        }
        "random" | "urlize" => Err(error(format!("the filter `{name}` is not supported"))),
        _ => {
            if !NAMES.contains(&name) {
                return Err(error(format!("there is no filter `{name}`")));
            }
            arguments.none(name)?;
            simple(name, value)
        }
    }
}

/// Filters without arguments.
fn simple(name: &str, value: &Value) -> Result {
    match name {
        "abs" => match (as_int(value), as_float(value)) {
            (Some(whole), _) => Ok(int(whole.abs())),
            (None, Some(float)) => Ok(float.abs().into()),
            _ => Err(error(format!("`abs` of a {}", Type::of(value).name()))),
        },
        "count" | "length" => {
            let length = length(value).ok_or_else(|| error(format!("a {} has no length", Type::of(value).name())))?;
            Ok(length.into())
        }
        "list" => Ok(items(value)?.into()),
        "items" if value.is_undefined() => Ok(Generator::value(Vec::new())),
        "items" if Type::of(value) == Type::Dict => Ok(Generator::value(pairs(value)?)),
        "items" => Err(error(format!("`items` of a {}", Type::of(value).name()))),
        "pprint" => {
            let text = repr(&lists::with_sorted_keys(value)?)?;
            if text.chars().count() > 76 {
                return Err(error("`pprint` of a value that takes more than a line is not supported"));
            }
            Ok(text.into())
        }
        _ => Err(error(format!("there is no filter `{name}`"))),
    }
}
