//! Arguments whose names and values are between tags: Qwen3-Coder, GLM, Seed-OSS. Strings are written unchanged, other
//! values as JSON.

use hearth_model::decode::constraint::in_lark;
use serde_json::{Map, Value};

use super::{
    Mismatch,
    cursor::Cursor,
    object,
    parameters::{Parameter, Parameters, Types, surely_fits, target},
    python,
    rules::{Rules, plain},
};

/// The texts around a name and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    pub(crate) before_name: &'static str,
    /// The tag that ends the name.
    pub(crate) after_name: &'static str,
    /// The text between that tag and the value. If it ends with a line break, so does the value.
    pub(crate) before_value: &'static str,
    /// The tag that ends the value, which no value has in it. The first character occurs in it only there.
    pub(crate) after_value: &'static str,
    /// The text between two parameters.
    pub(crate) separator: &'static str,
    /// Texts around a value which may have any characters.
    pub(crate) wrapper: Option<[&'static str; 2]>,
}

/// Parameters in a call, if the function does not name them.
const MAX_OTHERS: usize = 16;

/// Keywords of strings, which rules for texts without quotation marks do not hold.
const OF_STRINGS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];

impl Tags {
    pub(super) fn rule(self, name: &str, parameters: &Parameters, rules: &mut Rules) -> String {
        let mut parts: Vec<String> = Vec::new();
        for (index, own) in parameters.named.iter().enumerate() {
            let value_name = format!("{name}_{index}");
            let before = format!("{}{}{}{}", self.before_name, own.name, self.after_name, self.before_value);
            let right = format!("{} {} {}", rules.text(&before), self.value(own, rules), rules.text(self.separator));
            rules.add(&value_name, &right);
            parts.push(value_name + if own.is_required { "" } else { "?" });
        }
        if let Some(schema) = &parameters.others {
            let other = Parameter { name: "*".into(), schema: schema.clone(), is_required: false };
            let between = format!("{}{}", self.after_name, self.before_value);
            let value = self.value(&other, rules);
            let [before, between, separator] =
                [self.before_name, &between, self.separator].map(|text| rules.text(text));
            rules.add(name, &format!("{before} /[A-Za-z_][A-Za-z0-9_.\\-]*/ {between} {value} {separator}"));
            parts.push(format!("{name}{{0,{MAX_OTHERS}}}"));
        }
        parts.join(" ")
    }

    /// The rule of a value and the tag after it.
    fn value(self, own: &Parameter, rules: &mut Rules) -> String {
        let types = Types::of_schema(&own.schema);
        let line_end = if self.before_value.ends_with('\n') { "\n" } else { "" };
        let end = format!("{line_end}{}", self.after_value);
        if !types.has(Types::STRING) {
            return format!("({}) {}", in_lark(&own.schema), rules.text(&end));
        }
        if let Some(texts) = choices(&own.schema, &own.schema, 0) {
            let texts: Vec<String> = texts.iter().map(|text| plain(text)).collect();
            return format!("({}) {}", texts.join(" | "), rules.text(&end));
        }
        for keyword in string_keywords(&own.schema, &own.schema, 0) {
            rules.note_unheld(format!("properties.{}.{keyword}", own.name));
        }
        rules.text_until(self.after_value)
    }

    pub(super) fn read(self, cursor: &mut Cursor<'_>, parameters: &Parameters) -> Result<String, Mismatch> {
        let mut members = Vec::new();
        // At the end of the text so far, decide by what must follow.
        while !cursor.rest.trim().is_empty() && cursor.accepts(self.before_name)? {
            let name = cursor.until(self.after_name)?.trim().to_owned();
            cursor.expect(self.before_value)?;
            let mut value = cursor.until(self.after_value)?;
            if self.before_value.ends_with('\n') {
                value = value.strip_prefix('\n').unwrap_or(value);
                value = value.strip_suffix('\n').unwrap_or(value);
            }
            let wrapped = self.wrapper.and_then(|[start, end]| value.trim().strip_prefix(start)?.strip_suffix(end));
            let json = typed(wrapped.unwrap_or(value), parameters.schema(&name));
            members.push((name, json));
        }
        Ok(object(members))
    }
}

/// References are followed so far.
const MAX_DEPTH: usize = 16;

/// The only values that a schema admits, as texts, if it names them.
fn choices(schema: &Value, root: &Value, depth: usize) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let list = |name: &str| schema.get(name).and_then(Value::as_array);
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(values) = list("enum") {
        return Some(values.iter().map(text).collect());
    }
    if let Some(value) = schema.get("const") {
        return Some(vec![text(value)]);
    }
    if let Some(part) = schema.get("$ref").and_then(|reference| target(reference, root)) {
        return choices(part, root, depth + 1);
    }
    if let Some(parts) = list("anyOf").or_else(|| list("oneOf")) {
        let all: Option<Vec<_>> = parts.iter().map(|part| choices(part, root, depth + 1)).collect();
        return all.map(|all| all.concat());
    }
    match schema.get("type")?.as_str()? {
        "null" => Some(vec!["null".into()]),
        "boolean" => Some(vec!["true".into(), "false".into()]),
        _ => None,
    }
}

/// The keywords about strings in a schema that admits strings.
fn string_keywords(schema: &Value, root: &Value, depth: usize) -> Vec<&'static str> {
    if depth > MAX_DEPTH {
        return Vec::new();
    }
    let parts = ["anyOf", "oneOf", "allOf"].iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
    let parts = parts.chain(schema.get("$ref").and_then(|reference| target(reference, root)));
    let own = OF_STRINGS.into_iter().filter(|keyword| schema.get(keyword).is_some());
    own.chain(parts.flat_map(|part| string_keywords(part, root, depth + 1))).collect()
}

/// A value as JSON, of a type that its schema admits.
fn typed(text: &str, schema: &Value) -> String {
    let types = Types::of_schema(schema);
    let json = serde_json::from_str::<Value>(text).ok().filter(|value| !value.is_string());
    let is_other = match json {
        Some(value) if types.has(Types::STRING) => surely_fits(schema, &value),
        Some(_) => true,
        None => false,
    };
    if is_other {
        return text.trim().to_owned();
    }
    // Templates write values as Python does, so models may write `True`.
    let read = || {
        // At the end of a text, a literal may be incomplete.
        let text = format!("{}\n", text.trim());
        let mut cursor = Cursor::new(&text);
        let json = python::value(&mut cursor, 0).ok()?;
        cursor.rest.trim().is_empty().then_some(json)
    };
    match (!types.has(Types::STRING)).then(read).flatten() {
        Some(json) if serde_json::from_str::<Map<String, Value>>(&format!("{{\"\": {json}}}")).is_ok() => json,
        _ => Value::from(text).to_string(),
    }
}
