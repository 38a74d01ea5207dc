//! Prepares a JSON Schema for compilation: limits and settings.

mod locate;

use serde_json::{Map, Number, Value, json};

pub(super) use self::locate::locate;
use super::GrammarError;

/// Maximum nesting of a schema.
const MAX_DEPTH: usize = 64;

/// Maximum number of values in a schema: members, items and their contents.
pub const MAX_VALUES: usize = 20_000;

/// Maximum value of counts in a schema; each makes that many copies.
const MAX_COUNT: u64 = 10_000;

/// Limit for the sum of `multipleOf` values in a schema, or their product if it combines schemas: the library tracks
/// each remainder.
const MAX_REMAINDERS: f64 = 50_000.0;

/// Maximum number of patterns and formats in a schema that combines schemas: the library tracks every combination of
/// their states.
const MAX_JOINT_PATTERNS: usize = 16;

/// Whole numbers up to this one are exact in f64, in which the library holds all numbers.
const MAX_EXACT: u64 = 1 << 53;

/// Keywords whose values are counts.
const COUNTS: [&str; 6] = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Keywords that contain schemas: one, a list, or several by name.
const PARTS: [&str; 11] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "anyOf",
    "oneOf",
    "allOf",
    "prefixItems",
    "items",
    "additionalItems",
    "additionalProperties",
];

/// Those that contain schemas by name.
const NAMED_PARTS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// White space between the tokens of JSON: a space, or a line break and its indentation. Without this limit, models may
/// generate white space for ever.
const WHITESPACE: &str = r" |\n {0,20}";

/// Formats that the library supports. JSON Schema treats others as annotations.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Date and time of day, with limited fractions of a second: the library's pattern allows any number of digits, and
/// some models never stop.
const DATE: &str = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-9]))";
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// The key of the library's settings in a schema.
const SETTINGS: &str = "x-guidance";

/// Rejects values that are not schemas, and schemas that exceed a limit.
///
/// # Errors
/// The location and the limit.
pub fn check(schema: &Value) -> Result<(), GrammarError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(GrammarError::whole("must be a JSON Schema: an object, true or false"));
    }
    let mut n_values = 0;
    check_value(schema, "", 0, &mut n_values)?;
    check_constants(schema)?;
    let (mut factors, mut n_patterns, mut joint) = (Vec::new(), 0, false);
    // References can point anywhere.
    visit_all(schema, &mut |members| {
        factors.extend(members.get("multipleOf").and_then(Value::as_f64).map(digits));
        n_patterns +=
            ["pattern", "format"].iter().filter(|name| members.get(**name).is_some_and(Value::is_string)).count();
        joint |= joins_others(members);
    });
    let n_remainders: f64 = if joint { factors.iter().product() } else { factors.iter().sum() };
    if n_remainders > MAX_REMAINDERS {
        let together = if joint { "multiplied, because the schema combines others" } else { "together" };
        let what = format!("`multipleOf` must be at most {MAX_REMAINDERS} {together}, got {n_remainders}");
        return Err(GrammarError::whole(what));
    }
    if joint && n_patterns > MAX_JOINT_PATTERNS {
        let what = format!(
            "a schema that combines others, as with `allOf`, must have at most {MAX_JOINT_PATTERNS} `pattern`s and `format`s, \
             got {n_patterns}"
        );
        return Err(GrammarError::whole(what));
    }
    Ok(())
}

/// [Checks](check) the schemas in a Lark grammar.
///
/// # Errors
/// As [`check`]. Invalid JSON is left to the compiler.
pub(super) fn check_in_lark(source: &str) -> Result<(), GrammarError> {
    let schemas = source.split("%json").skip(1);
    schemas.filter_map(|rest| serde_json::Deserializer::from_str(rest).into_iter().next()?.ok()).try_for_each(
        |schema| check(&schema).map_err(|GrammarError { what, .. }| GrammarError::whole(format!("a schema {what}"))),
    )
}

/// The regular expressions in a schema.
pub(super) fn patterns(schema: &Value) -> impl Iterator<Item = &str> {
    let mut found = Vec::new();
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(members) => {
                found.extend(members.get("pattern").and_then(Value::as_str));
                let named = members.get("patternProperties").and_then(Value::as_object);
                found.extend(named.into_iter().flatten().map(|(pattern, _)| pattern.as_str()));
                left.extend(members.values());
            }
            _ => {}
        }
    }
    found.into_iter()
}

/// Calls `visitor` for a schema and all schemas inside it.
fn visit(schema: &Value, visitor: &mut impl FnMut(&Map<String, Value>)) {
    if let Some(members) = schema.as_object() {
        visitor(members);
        parts(schema).into_iter().for_each(|(_, part)| visit(part, visitor));
    }
}

/// Calls `visitor` for all objects in a value, including itself.
fn visit_all<'a>(value: &'a Value, visitor: &mut impl FnMut(&'a Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit_all(item, visitor)),
        Value::Object(members) => {
            visitor(members);
            members.values().for_each(|member| visit_all(member, visitor));
        }
        _ => {}
    }
}

/// The significant digits of a number as a whole number: 5 for 0.05.
fn digits(number: f64) -> f64 {
    let text: String = number.to_string().chars().filter(char::is_ascii_digit).collect();
    text.parse().unwrap_or(f64::INFINITY)
}

/// Rejects constants that the library would take for a neighbouring number.
fn check_constants(schema: &Value) -> Result<(), GrammarError> {
    let mut found = None;
    visit(schema, &mut |members| {
        let mut constants = ["const", "enum"].into_iter().filter_map(|name| members.get(name));
        found = found.take().or_else(|| constants.find_map(inexact));
    });
    let Some(number) = found else { return Ok(()) };
    let what = format!("must have whole numbers from -{MAX_EXACT} to {MAX_EXACT} in `const` and `enum`, got {number}");
    Err(GrammarError::whole(what + "\nhint: use strings"))
}

fn inexact(value: &Value) -> Option<Number> {
    match value {
        Value::Array(items) => items.iter().find_map(inexact),
        Value::Object(members) => members.values().find_map(inexact),
        Value::Number(number) => {
            let size = number.as_i64().map(i64::unsigned_abs).or(number.as_u64())?;
            (size > MAX_EXACT).then(|| number.clone())
        }
        _ => None,
    }
}

fn check_value(value: &Value, at: &str, depth: usize, n_values: &mut usize) -> Result<(), GrammarError> {
    let refuse = |what: String| Err(GrammarError { at: at.to_owned(), what });
    *n_values += 1;
    if *n_values > MAX_VALUES {
        return Err(GrammarError::whole(format!("must have at most {MAX_VALUES} values, got more")));
    }
    if depth > MAX_DEPTH {
        return refuse(format!("must nest at most {MAX_DEPTH} levels deep, got more"));
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_value(item, &join(at, &index.to_string()), depth + 1, n_values)),
        Value::Object(members) => members.iter().try_for_each(|(name, member)| {
            let at = join(at, name);
            if COUNTS.contains(&name.as_str())
                && let Some(count) = member.as_u64().filter(|count| *count > MAX_COUNT)
            {
                return Err(GrammarError { at, what: format!("must be at most {MAX_COUNT}, got {count}") });
            }
            check_value(member, &at, depth + 1, n_values)
        }),
        _ => Ok(()),
    }
}

/// The schema with our settings instead of its own, and [rewritten](rewrite) so that models can complete it.
pub(super) fn with_settings(mut schema: Value) -> Value {
    let objects = if meets_others(&schema) { Objects::AsTheyAre } else { Objects::Closed };
    rewrite(&mut schema, objects);
    match schema {
        Value::Object(mut members) => {
            // If branches of `oneOf` may overlap, it is treated as `anyOf`.
            members.insert(SETTINGS.into(), json!({ "whitespace_pattern": WHITESPACE, "coerce_one_of": true }));
            Value::Object(members)
        }
        // `true` allows any JSON, `false` none.
        Value::Bool(true) => with_settings(json!({})),
        other => other,
    }
}

/// Treatment of objects without `additionalProperties`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objects {
    /// They have no further members: schemas that list members rarely intend more, and models might add members without
    /// end.
    Closed,
    AsTheyAre,
}

/// Keywords that say more about an object's members than `properties` does: an object with one of them is left as it
/// is.
const BESIDE: [&str; 10] = [
    "minProperties",
    "$ref",
    "anyOf",
    "oneOf",
    "if",
    "then",
    "dependentSchemas",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
];

/// Keywords that apply several schemas to the same value.
const JOINTS: [&str; 4] = ["$ref", "anyOf", "oneOf", "allOf"];

/// Keywords whose meaning depends on other schemas for the same value.
const JOINED: [&str; 7] =
    ["properties", "patternProperties", "additionalProperties", "items", "pattern", "format", "multipleOf"];

/// Whether several schemas apply to some value: closing one of them would exclude the others' members.
fn meets_others(schema: &Value) -> bool {
    let mut meets = false;
    visit(schema, &mut |members| meets |= joins_others(members));
    meets
}

/// Whether a schema itself applies several schemas to the same value.
fn joins_others(members: &Map<String, Value>) -> bool {
    // In `properties`, members may have these names too; their values are objects, neither lists nor strings.
    let is_joint = |name: &&str| members.get(*name).is_some_and(|joint| joint.is_array() || joint.is_string());
    let n_joints = JOINTS.iter().filter(|name| is_joint(name)).count();
    let several = members.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    several || n_joints > 1 || n_joints == 1 && JOINED.iter().any(|name| members.contains_key(*name))
}

/// Whether a keyword can be left out: annotations, defaults, and bounds beyond 64-bit integers, which schema generators
/// write and the library cannot compile.
fn changes_nothing(name: &str, value: &Value) -> bool {
    match name {
        "title" | "description" | "$comment" | "default" | "examples" => true,
        "uniqueItems" => *value == json!(false),
        "minimum" | "exclusiveMinimum" => value.as_f64().is_some_and(|bound| bound <= i64::MIN as f64),
        "maximum" | "exclusiveMaximum" => value.as_f64().is_some_and(|bound| bound > u64::MAX as f64),
        _ => false,
    }
}

/// Removes keywords that change nothing, limits the digits of times, and closes objects.
fn rewrite(schema: &mut Value, objects: Objects) {
    let Some(members) = schema.as_object_mut() else { return };
    let names = members.get("propertyNames");
    if names.is_some_and(|names| [json!(true), json!({}), json!({ "type": "string" })].contains(names)) {
        members.shift_remove("propertyNames");
    }
    let format = members.get("format").and_then(Value::as_str);
    let pattern = match format {
        Some("date-time") => Some(format!("^{DATE}[tT]{TIME}$")),
        Some("time") => Some(format!("^{TIME}$")),
        _ => None,
    };
    let is_remark = format.is_some_and(|format| !FORMATS.contains(&format));
    if is_remark || pattern.is_some() && !members.contains_key("pattern") {
        members.shift_remove("format");
        members.extend(pattern.map(|pattern| ("pattern".to_owned(), pattern.into())));
    }
    members.retain(|name, value| !changes_nothing(name, value));
    let names_all = members.get("properties").and_then(Value::as_object).is_some_and(|named| {
        let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
        !named.is_empty() && required.filter_map(Value::as_str).all(|name| named.contains_key(name))
    });
    if objects == Objects::Closed && names_all && !BESIDE.iter().any(|name| members.contains_key(*name)) {
        members.insert("additionalProperties".into(), false.into());
    }
    for (name, member) in members.iter_mut().filter(|(name, _)| PARTS.contains(&name.as_str())) {
        match member {
            Value::Array(items) => items.iter_mut().for_each(|part| rewrite(part, objects)),
            Value::Object(named) if NAMED_PARTS.contains(&name.as_str()) => {
                named.values_mut().for_each(|part| rewrite(part, objects));
            }
            part => rewrite(part, objects),
        }
    }
}

/// A schema as the right side of a rule in a Lark grammar. Its `$ref`s refer to the schema itself.
pub fn in_lark(schema: &Value) -> String {
    // `&` is an operator in Lark, and their number is limited: it is escaped in strings, so that it does not count.
    format!("%json {}", with_settings(schema.clone()).to_string().replace('&', r"\u0026"))
}

/// The direct parts of a schema, with their paths.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let Some(members) = schema.as_object() else { return Vec::new() };
    let mut parts = Vec::new();
    for (name, member) in members.iter().filter(|(name, _)| PARTS.contains(&name.as_str())) {
        match member {
            Value::Array(items) => {
                parts.extend(items.iter().enumerate().map(|(index, item)| (format!("{name}.{index}"), item)));
            }
            Value::Object(named) if NAMED_PARTS.contains(&name.as_str()) => {
                parts.extend(named.iter().map(|(key, part)| (format!("{name}.{key}"), part)));
            }
            // `false` is valid, although nothing matches it.
            Value::Bool(_) => {}
            part => parts.push((name.clone(), part)),
        }
    }
    parts
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(schema: Value) -> Value {
        let mut rewritten = with_settings(schema);
        rewritten.as_object_mut().map(|members| members.shift_remove(SETTINGS));
        rewritten
    }

    #[test]
    fn json_schema_bounds_beyond_64_bit_integers_are_dropped() {
        let integer = json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX });
        assert_eq!(rewritten(integer), json!({ "type": "integer", "maximum": u64::MAX }));
        let number = json!({ "type": "number", "exclusiveMinimum": -1e300, "maximum": 1e300, "minimum": -5 });
        assert_eq!(rewritten(number), json!({ "type": "number", "minimum": -5 }));
    }

    #[test]
    fn const_and_enum_integers_without_exact_f64_are_rejected() {
        let named = json!({ "const": { "maximum": i64::MAX }, "enum": { "minimum": i64::MIN } });
        let fine = json!({ "const": 1e300, "enum": [-(1i64 << 53), "9007199254740993"], "properties": named });
        assert_eq!(check(&fine), Ok(()));
        for number in [json!((1i64 << 53) + 1), json!(-(1i64 << 53) - 1), json!(u64::MAX)] {
            for schema in [json!({ "const": number }), json!({ "items": { "enum": ["a", { "b": [number] }] } })] {
                let refusal = check(&schema).err().map(|error| error.what).unwrap_or_default();
                assert!(refusal.contains(&format!("in `const` and `enum`, got {number}")), "{refusal}");
            }
        }
    }

    #[test]
    fn objects_with_named_properties_get_additional_properties_false() {
        let inner = json!({ "properties": { "b": {} } });
        let closed = json!({ "properties": { "b": {} }, "additionalProperties": false });
        for place in ["items", "additionalProperties", "$defs.d", "anyOf.0", "allOf.0"] {
            let at = |part: &Value| match place.split_once('.') {
                None => json!({ place: part }),
                Some((list, "0")) => json!({ list: [part] }),
                Some((map, name)) => json!({ map: { name: part } }),
            };
            assert_eq!(rewritten(at(&inner)), at(&closed), "{place}");
        }
        let open = [
            json!({ "type": "object" }),
            json!({ "properties": {} }),
            json!({ "properties": { "a": {} }, "additionalProperties": true }),
            json!({ "properties": { "a": {} }, "additionalProperties": { "type": "string" } }),
            json!({ "properties": { "a": {} }, "required": ["a", "b"] }),
            json!({ "properties": { "a": {} }, "minProperties": 2 }),
            // Closing one schema would exclude the members of the other.
            json!({ "allOf": [inner, { "properties": { "c": {} } }] }),
            json!({ "properties": { "a": {} }, "anyOf": [inner] }),
            json!({ "$ref": "#/$defs/d", "properties": { "a": {} }, "$defs": { "d": inner } }),
        ];
        for schema in open {
            assert_eq!(rewritten(schema.clone()), schema);
        }
        // A member may have the name of a keyword.
        let named = json!({ "properties": { "properties": { "type": "string" }, "propertyNames": {}, "title": {} } });
        assert_eq!(rewritten(named.clone())["properties"], named["properties"]);
    }

    #[test]
    fn json_schemas_that_would_take_too_long_are_rejected() {
        let many = |n: usize, part: Value| Value::Array(vec![part; n]);
        let fine = [
            json!({ "multipleOf": 9973 }),
            json!({ "multipleOf": 0.01 }),
            json!({ "properties": { "allOf": {}, "pattern": {}, "format": {}, "$ref": {}, "items": {} } }),
            json!({ "anyOf": many(5, json!({ "multipleOf": 9973 })) }),
            json!({ "anyOf": many(50, json!({ "pattern": "a" })) }),
            json!({ "allOf": many(16, json!({ "pattern": "a" })) }),
            json!({ "properties": { "a": { "allOf": [{ "$ref": "#" }] }, "multipleOf": { "const": 1000003 } } }),
        ];
        for schema in fine {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
        let refused = [
            json!({ "multipleOf": 1000003 }),
            json!({ "multipleOf": 1.000003 }),
            json!({ "items": { "anyOf": many(6, json!({ "multipleOf": 9973 })) } }),
            json!({ "allOf": many(2, json!({ "multipleOf": 9973 })) }),
            json!({ "$ref": "#/$defs/d", "multipleOf": 9973, "$defs": { "d": { "multipleOf": 9967 } } }),
            json!({ "allOf": many(17, json!({ "pattern": "a" })) }),
            json!({ "$ref": "#/elsewhere/x", "elsewhere": { "x": { "multipleOf": 1000003 } } }),
            json!({ "anyOf": many(17, json!({ "format": "date" })), "pattern": "a" }),
        ];
        for schema in refused {
            let what = check(&schema).map_err(|error| error.what);
            assert!(what.is_err_and(|what| what.contains("at most")), "{schema}");
            let lark = format!("start: %json {{}} x\nx: %json {schema}\n");
            assert!(check_in_lark(&lark).is_err_and(|error| error.what.contains("at most")), "{lark}");
        }
        assert_eq!(check_in_lark("start: %json {\"a\""), Ok(()), "no JSON");
    }

    #[test]
    fn json_schema_annotations_are_dropped_and_times_are_bounded() {
        assert_eq!(rewritten(json!({ "propertyNames": { "type": "string" } })), json!({}));
        let bounded = json!({ "propertyNames": { "pattern": "a" } });
        assert_eq!(rewritten(bounded.clone()), bounded);
        assert_eq!(rewritten(json!({ "format": "password", "uniqueItems": false, "title": "a" })), json!({}));
        assert!(in_lark(&json!({ "enum": ["R&D"], "title": "b" })).contains(r#""enum":["R\u0026D"],"x-guidance""#));
        for kept in [json!({ "format": "uuid", "uniqueItems": true }), json!({ "format": "time", "pattern": "Z$" })] {
            assert_eq!(rewritten(kept.clone()), kept);
        }
        for format in ["date-time", "time"] {
            let schema = rewritten(json!({ "format": format }));
            assert!(schema.get("format").is_none() && schema["pattern"].as_str().is_some_and(|p| p.contains("{1,9}")));
        }
    }
}
