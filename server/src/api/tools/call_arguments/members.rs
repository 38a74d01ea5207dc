//! Arguments as `name:value`, with strings between special marks: Gemma.

use std::collections::BTreeSet;

use hearth_model::decode::constraint::in_lark;
use serde_json::{Map, Value};

use super::{
    Mismatch,
    cursor::Cursor,
    object,
    parameters::{Parameters, target},
    rules::{Rules, plain},
};

/// Maximum nesting of lists and objects.
const MAX_DEPTH: usize = 64;

/// Schemas are written out so far; deeper values are any.
const MAX_WRITTEN_DEPTH: usize = 6;

/// Limits on lists up to this length are held.
const MAX_COUNT: u64 = 64;

/// Keywords that do not restrict values, or that the rules enforce.
const HELD: [&str; 19] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "$ref",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "x-guidance",
    "minItems",
    "maxItems",
];

/// Keywords of numbers, which JSON's rules hold.
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

pub(super) fn rule(name: &str, parameters: &Parameters, quote: &'static str, rules: &mut Rules) -> String {
    let mut writer = Writer { quote, rules, n_rules: 0, name: name.to_owned() };
    let mut members = Vec::new();
    for own in &parameters.named {
        let value = writer.value(&own.schema, &own.schema, 0, &own.name);
        let before = writer.rules.text(&format!("{}:", own.name));
        members.push((writer.rule(&format!("{before} ({value})")), own.is_required));
    }
    // The template writes them by their names.
    let mut sorted: Vec<_> = parameters.named.iter().map(|own| &own.name).zip(members).collect();
    sorted.sort_by_key(|(name, _)| (*name).clone());
    let members: Vec<(String, bool)> = sorted.into_iter().map(|(_, member)| member).collect();
    match &parameters.others {
        Some(schema) => {
            let value = writer.value(schema, schema, 0, "*");
            let member = writer.rule(&format!("/[A-Za-z_][A-Za-z0-9_]*/ \":\" ({value})"));
            format!("({member} (\",\" {member}){{0,15}})?")
        }
        None => writer.rules.separated(name, &members, ","),
    }
}

/// Writes rules for values.
struct Writer<'a> {
    quote: &'static str,
    rules: &'a mut Rules,
    n_rules: usize,
    name: String,
}

impl Writer<'_> {
    /// Adds a rule and returns its name.
    fn rule(&mut self, right: &str) -> String {
        let name = format!("{}_value_{}", self.name, self.n_rules);
        self.n_rules += 1;
        self.rules.add(&name, right);
        name
    }

    /// The values of a schema at `path`.
    fn value(&mut self, schema: &Value, root: &Value, depth: usize, path: &str) -> String {
        let Value::Object(members) = schema else { return self.any(depth) };
        if depth > MAX_WRITTEN_DEPTH {
            self.rules.note_unheld(format!("properties.{path}"));
            return self.any(depth);
        }
        if let Some(part) = members.get("$ref").and_then(|reference| target(reference, root)) {
            return self.value(part, root, depth + 1, path);
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(parts) = members.get(name).and_then(Value::as_array) {
                let parts: Vec<String> = parts.iter().map(|part| self.value(part, root, depth + 1, path)).collect();
                return format!("({})", parts.join(" | "));
            }
        }
        if let Some(values) = members.get("enum").and_then(Value::as_array) {
            let values: Vec<String> = values.iter().map(|value| self.constant(value)).collect();
            return format!("({})", values.join(" | "));
        }
        if let Some(value) = members.get("const") {
            return self.constant(value);
        }
        let unheld: BTreeSet<&str> = members.keys().map(String::as_str).collect();
        for keyword in unheld.into_iter().filter(|keyword| !HELD.contains(keyword) && !OF_NUMBERS.contains(keyword)) {
            self.rules.note_unheld(format!("properties.{path}.{keyword}"));
        }
        match members.get("type") {
            Some(Value::Array(kinds)) => {
                let kinds: Vec<String> = kinds
                    .iter()
                    .map(|kind| {
                        let mut own = members.clone();
                        own.insert("type".into(), kind.clone());
                        self.of_type(kind.as_str().unwrap_or_default(), &own, root, depth, path)
                    })
                    .collect();
                format!("({})", kinds.join(" | "))
            }
            Some(Value::String(kind)) => self.of_type(kind, members, root, depth, path),
            _ if members.contains_key("properties") => self.of_type("object", members, root, depth, path),
            _ => self.any(depth),
        }
    }

    fn of_type(&mut self, kind: &str, members: &Map<String, Value>, root: &Value, depth: usize, path: &str) -> String {
        match kind {
            "string" => self.string(),
            "array" => {
                let any = Value::Bool(true);
                let item = self.value(members.get("items").unwrap_or(&any), root, depth + 1, path);
                let item = self.rule(&item);
                let count = |name: &str| members.get(name).and_then(Value::as_u64).filter(|count| *count <= MAX_COUNT);
                let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
                let more = |n: u64| n.saturating_sub(1);
                let most = most.map_or_else(String::new, |most| more(most).to_string());
                let items = format!("{item} (\",\" {item}){{{},{most}}}", more(least));
                if members.get("maxItems").is_some_and(|most| *most == 0) {
                    return "\"[]\"".into();
                }
                format!("\"[\" ({items}){} \"]\"", if least == 0 { "?" } else { "" })
            }
            "object" => {
                let own = Parameters::of(&Value::Object(members.clone()));
                if own.named.is_empty() {
                    let others = own.others.unwrap_or(Value::Bool(false));
                    if others == Value::Bool(false) {
                        return "\"{}\"".into();
                    }
                    let value = self.value(&others, root, depth + 1, path);
                    let member = self.rule(&format!("/[A-Za-z_][A-Za-z0-9_]*/ \":\" ({value})"));
                    return format!("\"{{\" ({member} (\",\" {member})*)? \"}}\"");
                }
                let mut named: Vec<_> = own.named.iter().collect();
                named.sort_by_key(|own| own.name.clone());
                let mut all = Vec::new();
                for own in named {
                    let value = self.value(&own.schema, root, depth + 1, path);
                    let member = format!("{} ({value})", plain(&format!("{}:", own.name)));
                    all.push((self.rule(&member), own.is_required));
                }
                let name = format!("{}_members_{}", self.name, self.n_rules);
                self.n_rules += 1;
                format!("\"{{\" {} \"}}\"", self.rules.separated(&name, &all, ","))
            }
            "integer" | "number" => {
                let held = members.iter().filter(|(name, _)| *name == "type" || OF_NUMBERS.contains(&name.as_str()));
                in_lark(&Value::Object(held.map(|(name, value)| (name.clone(), value.clone())).collect()))
            }
            "boolean" => "\"true\" | \"false\"".into(),
            "null" => "\"null\"".into(),
            _ => self.any(depth),
        }
    }

    fn string(&mut self) -> String {
        let text = self.rules.text_until(self.quote);
        format!("{} {text}", self.rules.text(self.quote))
    }

    fn constant(&mut self, value: &Value) -> String {
        let quote = self.rules.text(self.quote);
        match value {
            Value::String(text) if text.is_empty() => format!("{quote} {quote}"),
            Value::String(text) => format!("{quote} {} {quote}", plain(text)),
            other => plain(&written(other, self.quote)),
        }
    }

    /// Any value that is no list or object.
    fn any(&mut self, _depth: usize) -> String {
        let string = self.string();
        format!("({string} | {} | \"true\" | \"false\" | \"null\")", in_lark(&serde_json::json!({ "type": "number" })))
    }
}

/// A value as a model writes it.
fn written(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| written(item, quote)).collect::<Vec<_>>().join(","))
        }
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(name, value)| format!("{name}:{}", written(value, quote))).collect();
            format!("{{{}}}", members.join(","))
        }
        other => other.to_string(),
    }
}

pub(super) fn read(cursor: &mut Cursor<'_>, quote: &'static str) -> Result<String, Mismatch> {
    members(cursor, quote, 0).map_err(|mismatch| match mismatch {
        Mismatch::Cut { .. } => Mismatch::Until("}"),
        other => other,
    })
}

/// The members before a closing brace.
fn members(cursor: &mut Cursor<'_>, quote: &'static str, depth: usize) -> Result<String, Mismatch> {
    let mut found = Vec::new();
    loop {
        cursor.skip_blanks();
        if cursor.peek()? == '}' {
            return Ok(object(found));
        }
        if !found.is_empty() {
            cursor.expect(",")?;
            cursor.skip_blanks();
        }
        let name = match cursor.accepts(quote)? {
            true => cursor.until(quote)?,
            false => cursor.take_while(|character| !":,{}[]".contains(character)).trim(),
        };
        cursor.expect(":")?;
        let json = value(cursor, quote, depth)?;
        found.push((name.to_owned(), json));
    }
}

fn value(cursor: &mut Cursor<'_>, quote: &'static str, depth: usize) -> Result<String, Mismatch> {
    if depth > MAX_DEPTH {
        return Err(Mismatch::Other);
    }
    cursor.skip_blanks();
    if cursor.accepts(quote)? {
        return Ok(Value::from(cursor.until(quote)?).to_string());
    }
    match cursor.peek()? {
        '{' => {
            cursor.next()?;
            let json = members(cursor, quote, depth + 1)?;
            cursor.next()?;
            Ok(json)
        }
        '[' => {
            cursor.next()?;
            let mut items: Vec<String> = Vec::new();
            loop {
                cursor.skip_blanks();
                if cursor.peek()? == ']' {
                    cursor.next()?;
                    return Ok(format!("[{}]", items.join(", ")));
                }
                if !items.is_empty() {
                    cursor.expect(",")?;
                }
                items.push(value(cursor, quote, depth + 1)?);
            }
        }
        _ => {
            let text = cursor.take_while(|character| !",{}[]".contains(character));
            cursor.peek()?;
            let text = text.trim();
            let is_json = serde_json::from_str::<Value>(text).is_ok();
            Ok(if is_json { text.to_owned() } else { Value::from(text).to_string() })
        }
    }
}
