//! Jinja's filters.

use minijinja::{State, Value};

use super::{
    Generator, Result, Type, as_float, as_int,
    calls::{ANY, Arguments, Call, Row, call, find},
    error, int, items, json, length,
    lists::{self, with_sorted_keys},
    methods::python_attribute,
    numbers,
    objects::pairs,
    repr, text,
    words::{self, change},
};

/// Every filter of Jinja.
pub(super) const FILTERS: &[Row] = &[
    ("abs", &[], |_, call| abs(call)),
    ("attr", &["name"], |_, call| attr(call)),
    ("batch", &["linecount", "fill_with"], |_, call| lists::batch(call)),
    ("capitalize", &[], |_, call| change(call, words::capitalized)),
    ("center", &["width"], |_, call| words::center(call)),
    ("count", &[], |_, call| count(call)),
    ("d", &["default_value", "boolean"], |_, call| default(call)),
    ("default", &["default_value", "boolean"], |_, call| default(call)),
    ("dictsort", &["case_sensitive", "by", "reverse"], |_, call| lists::sort_dict(call)),
    ("e", &[], |_, call| words::escape(call)),
    ("escape", &[], |_, call| words::escape(call)),
    ("filesizeformat", &["binary"], |_, call| words::file_size(call)),
    ("first", &[], |_, call| lists::first(call)),
    ("float", &["default"], |_, call| numbers::to_float(call)),
    ("forceescape", &[], |_, call| words::force_escape(call)),
    ("format", ANY, |_, call| words::format(call)),
    ("groupby", &["attribute", "default", "case_sensitive"], |_, call| lists::group_by(call)),
    ("indent", &["width", "first", "blank"], |_, call| words::indent(call)),
    ("int", &["default", "base"], |_, call| numbers::to_int(call)),
    ("items", &[], |_, call| pairs_of(call)),
    ("join", &["d", "attribute"], |_, call| lists::join(call)),
    ("last", &[], |_, call| lists::last(call)),
    ("length", &[], |_, call| count(call)),
    ("list", &[], |_, call| Ok(items(call.value)?.into())),
    ("lower", &[], |_, call| change(call, str::to_lowercase)),
    ("map", ANY, lists::map),
    ("max", &["case_sensitive", "attribute"], |_, call| lists::extreme(call)),
    ("min", &["case_sensitive", "attribute"], |_, call| lists::extreme(call)),
    ("pprint", &[], |_, call| pretty(call)),
    ("random", ANY, |_, call| unsupported(call)),
    ("reject", ANY, lists::select),
    ("rejectattr", ANY, lists::select),
    ("replace", &["old", "new", "count"], |_, call| words::replace(call)),
    ("reverse", &[], |_, call| lists::reverse(call)),
    ("round", &["precision", "method"], |_, call| numbers::round(call)),
    ("safe", &[], |_, call| Ok(Value::from_safe_string(call.shown()?))),
    ("select", ANY, lists::select),
    ("selectattr", ANY, lists::select),
    ("slice", &["slices", "fill_with"], |_, call| lists::columns(call)),
    ("sort", &["reverse", "case_sensitive", "attribute"], |_, call| lists::sort(call)),
    ("string", &[], |_, call| words::string(call)),
    ("striptags", &[], |_, call| words::strip_tags(call)),
    ("sum", &["attribute", "start"], |_, call| lists::sum(call)),
    ("title", &[], |_, call| change(call, words::title)),
    ("tojson", json::PARAMETERS, |_, call| json::tojson(call)),
    ("trim", &["chars"], |_, call| words::trim(call)),
    ("truncate", &["length", "killwords", "end", "leeway"], |_, call| words::truncate(call)),
    ("unique", &["case_sensitive", "attribute"], |_, call| lists::unique(call)),
    ("upper", &[], |_, call| change(call, str::to_uppercase)),
    ("urlencode", &[], |_, call| words::url_encode(call)),
    ("urlize", ANY, |_, call| unsupported(call)),
    ("wordcount", &[], |_, call| words::count(call)),
    ("wordwrap", &["width", "break_long_words", "wrapstring", "break_on_hyphens"], |_, call| words::wrap(call)),
    ("xmlattr", &["autospace"], |_, call| words::attributes(call)),
];

/// `value|name(arguments)`.
pub(crate) fn apply(state: &mut State<'_, '_>, name: &str, value: &Value, arguments: &[Value]) -> Result {
    let filter = find(FILTERS, name).ok_or_else(|| error(format!("there is no filter `{name}`")))?;
    call(filter, state, value, &Arguments::new(arguments))
}

fn unsupported(call: &Call<'_>) -> Result {
    Err(error(format!("the filter `{}` is not supported", call.name)))
}

fn default(call: &Call<'_>) -> Result {
    let replaces = call.value.is_undefined() || call.is_true(1) && !call.value.is_true();
    Ok(if replaces { call.get(0).cloned().unwrap_or_else(|| "".into()) } else { call.value.clone() })
}

fn attr(call: &Call<'_>) -> Result {
    let name = text(call.needed(0)?)?;
    match python_attribute(call.value, &name) {
        Some(found) => found,
        None if matches!(Type::of(call.value), Type::Other | Type::Tuple) => call.value.get_attr(&name),
        None => Ok(Value::UNDEFINED),
    }
}

fn abs(call: &Call<'_>) -> Result {
    match (as_int(call.value), as_float(call.value)) {
        (Some(whole), _) => Ok(int(whole.abs())),
        (None, Some(float)) => Ok(float.abs().into()),
        _ => Err(call.unsuitable()),
    }
}

fn count(call: &Call<'_>) -> Result {
    let without = || error(format!("a {} has no length", Type::of(call.value).name()));
    Ok(length(call.value).ok_or_else(without)?.into())
}

fn pairs_of(call: &Call<'_>) -> Result {
    match Type::of(call.value) {
        Type::Undefined => Ok(Generator::value(Vec::new())),
        Type::Dict => Ok(Generator::value(pairs(call.value)?)),
        _ => Err(call.unsuitable()),
    }
}

fn pretty(call: &Call<'_>) -> Result {
    let text = repr(&with_sorted_keys(call.value)?)?;
    if text.chars().count() > 76 {
        return Err(error("`pprint` of a value that takes more than a line is not supported"));
    }
    Ok(text.into())
}
