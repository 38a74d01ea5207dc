//! The schemas in a document, and the targets of their references.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::join;

/// Keywords that contain schemas: one, a list, or several by name.
const PARTS: [&str; 21] = [
    "$defs",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Keywords that contain schemas by name.
const NAMED_PARTS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// Keywords whose values are data, which may look like schemas.
const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];

/// Calls `visitor` for every schema and everything inside it that may be one: references can point anywhere except into
/// data.
pub(super) fn visit<'a>(schema: &'a Value, visitor: &mut impl FnMut(&'a Map<String, Value>)) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| visit(item, visitor)),
        Value::Object(members) => {
            visitor(members);
            for (name, member) in members.iter().filter(|(name, _)| !DATA.contains(&name.as_str())) {
                match member {
                    Value::Object(named) if NAMED_PARTS.contains(&name.as_str()) => {
                        named.values().for_each(|part| visit(part, visitor));
                    }
                    part => visit(part, visitor),
                }
            }
        }
        _ => {}
    }
}

/// The direct parts of a schema, with their paths.
fn parts<'a>(members: &'a Map<String, Value>, at: &str) -> Vec<(String, &'a Value)> {
    let mut parts = Vec::new();
    for (name, member) in members.iter().filter(|(name, _)| PARTS.contains(&name.as_str())) {
        let path = join(at, name);
        match member {
            Value::Array(items) => {
                parts.extend(items.iter().enumerate().map(|(index, item)| (join(&path, &index.to_string()), item)));
            }
            Value::Object(named) if NAMED_PARTS.contains(&name.as_str()) => {
                parts.extend(named.iter().map(|(key, part)| (join(&path, key), part)));
            }
            part => parts.push((path, part)),
        }
    }
    parts
}

/// A document, with the schemas that have an identifier.
pub(super) struct Document<'a> {
    root: &'a Value,
    /// Schemas with an `$id`, by their URI without fragment; the root has its own URI.
    resources: HashMap<String, &'a Value>,
    /// Schemas with an `$anchor` or `$dynamicAnchor`, by the URI of their resource and the anchor.
    anchors: HashMap<(String, String), &'a Value>,
    /// The URI of the resource of each schema, by its address.
    bases: HashMap<*const Value, String>,
    /// The path of each schema, by its address.
    paths: HashMap<*const Value, String>,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let mut document = Self {
            root,
            resources: HashMap::from([(String::new(), root)]),
            anchors: HashMap::new(),
            bases: HashMap::new(),
            paths: HashMap::new(),
        };
        document.read(root, "", "");
        document
    }

    fn read(&mut self, schema: &'a Value, at: &str, base: &str) {
        let mut base = base.to_owned();
        if let Some(members) = schema.as_object() {
            let text = |name: &str| members.get(name).and_then(Value::as_str);
            let id = text("$id").or_else(|| text("id").filter(|id| !id.starts_with('#')));
            if let Some(id) = id {
                let (uri, anchor) = id.split_once('#').unwrap_or((id, ""));
                base = resolved(&base, uri);
                self.resources.entry(base.clone()).or_insert(schema);
                if !anchor.is_empty() {
                    self.anchors.insert((base.clone(), anchor.to_owned()), schema);
                }
            }
            let anchors = ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text);
            for anchor in anchors {
                self.anchors.insert((base.clone(), anchor.to_owned()), schema);
            }
            for (path, part) in parts(members, at) {
                self.read(part, &path, &base);
            }
        }
        self.bases.insert(schema, base);
        self.paths.insert(schema, at.to_owned());
    }

    /// The path of a schema.
    pub(super) fn path(&self, schema: &Value) -> String {
        self.paths.get(&std::ptr::from_ref(schema)).cloned().unwrap_or_default()
    }

    /// The schema that `reference`, in the schema `from`, refers to.
    ///
    /// # Errors
    /// The document does not contain it.
    pub(super) fn lookup(&mut self, from: &Value, reference: &str) -> Result<&'a Value, String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = self.bases.get(&std::ptr::from_ref(from)).cloned().unwrap_or_default();
        let base = if uri.is_empty() { base } else { resolved(&base, uri) };
        let missing = || format!("refers to `{reference}`, which the schema does not contain");
        let fragment = decoded(fragment);
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(base, fragment)).copied().ok_or_else(missing);
        }
        let resource = self.resources.get(&base).copied().ok_or_else(missing)?;
        let found = match fragment.as_str() {
            // Some generators write `#/` for the whole.
            "/" if resource.get("").is_none() => resource,
            _ => resource
                .pointer(&fragment)
                // A schema with an `$id` may also be addressed from the root.
                .or_else(|| self.root.pointer(&fragment).filter(|_| uri.is_empty()))
                .ok_or_else(missing)?,
        };
        if !self.paths.contains_key(&std::ptr::from_ref(found)) {
            let path = fragment.trim_start_matches('/').replace('/', ".");
            self.read(found, &path, &base);
        }
        Ok(found)
    }
}

/// Whether `reference` is an absolute URI.
fn has_scheme(reference: &str) -> bool {
    reference.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|character| character.is_ascii_alphanumeric() || "+-.".contains(character))
    })
}

/// A URI reference, resolved against a base.
fn resolved(base: &str, reference: &str) -> String {
    if reference.is_empty() {
        return base.to_owned();
    }
    if has_scheme(reference) {
        return reference.to_owned();
    }
    // The scheme and the host.
    let path_at = base.find("://").map_or(0, |at| base[at + 3..].find('/').map_or(base.len(), |slash| at + 3 + slash));
    let (origin, path) = base.split_at(path_at);
    if reference.starts_with('/') {
        return format!("{origin}{reference}");
    }
    let folder = path.rfind('/').map_or(if origin.is_empty() { "" } else { "/" }, |slash| &path[..=slash]);
    let mut segments: Vec<&str> = Vec::new();
    let joined = format!("{folder}{reference}");
    for segment in joined.split('/') {
        match segment {
            "." => {}
            ".." if segments.len() > 1 => {
                segments.pop();
            }
            ".." => {}
            other => segments.push(other),
        }
    }
    format!("{origin}{}", segments.join("/"))
}

/// A fragment without its percent escapes.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
