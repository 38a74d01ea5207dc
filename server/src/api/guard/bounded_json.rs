//! JSON parsing with a limit on the memory of the result: `[0],` is 4 bytes of text but 400 bytes as a list within a
//! list.

use std::{cell::Cell, fmt, mem::size_of};

use serde::{
    Deserializer as _,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Deserializer, Map, Number, Value};

/// Fields that may be arrays of token ids. The shortest ids take two bytes of the body each: `0,`.
const TOKEN_FIELDS: [&str; 3] = ["prompt", "input", "tokens"];

/// Limit for [`TOKEN_FIELDS`] in bytes of memory per byte of the largest body. It allows a body of token ids only: two
/// bytes of text become a [`Value`] of 72 bytes, and the capacity of a list exceeds its length by up to a quarter.
const TOKEN_BYTES_PER_BYTE: usize = 48;

/// Limit for all other fields together, without strings: bytes of memory per byte of the body.
pub(crate) const OTHER_BYTES_PER_BYTE: usize = 8;

/// Memory of an object member in bytes: name, value, and entry in a hash table that may be half empty.
const MEMBER_BYTES: usize = 2 * (size_of::<String>() + size_of::<Value>() + 2 * size_of::<usize>()) + 16;

/// Capacity of the shortest list.
const MIN_ITEMS: usize = 4;

/// How deep lists and objects may be nested: the limit of `serde_json`.
pub(crate) const MAX_DEPTH: usize = 127;

/// Why parsing failed.
#[derive(Debug)]
pub(crate) enum BadJson {
    /// The text is not valid JSON, or not an object.
    Malformed(serde_json::Error),
    /// An object has a name twice. Holds its path.
    Repeated(String),
    /// Lists and objects are nested deeper than [`MAX_DEPTH`]. Holds how deep.
    TooDeep(usize),
    /// The values take too much memory. Holds the limit in bytes.
    TooManyValues(usize),
}

/// The error in a JSON text, and its position. serde_json has no error kinds for these: only the message distinguishes
/// them.
pub(crate) fn problem(error: &serde_json::Error) -> String {
    let message = error.to_string();
    if let Some(place) = message.strip_prefix("recursion limit exceeded") {
        return format!("arrays and objects may be nested at most {MAX_DEPTH} deep, and they are deeper{place}");
    }
    if message.contains("hex escape") {
        return format!("{message}\nhint: a string has half of a surrogate pair, as when text is cut within an emoji");
    }
    message
}

/// Parses a body of at most `max_body_bytes`. Also returns the memory that the fields without tokens take, in bytes.
pub(crate) fn parse(body: &[u8], max_body_bytes: usize) -> Result<(Value, usize), BadJson> {
    let tokens = Room::new(max_body_bytes.saturating_mul(TOKEN_BYTES_PER_BYTE));
    let others = Room::new(max_body_bytes.saturating_mul(OTHER_BYTES_PER_BYTE));
    let repeated = Repeated::default();
    let mut deserializer = Deserializer::from_slice(body);
    let whole = Body { tokens: &tokens, others: &others, repeated: &repeated };
    match deserializer.deserialize_any(whole).and_then(|value| deserializer.end().map(|()| value)) {
        Ok(value) => Ok((value, others.total - others.left.get())),
        Err(error) => Err(reason(error, body, repeated, &[&tokens, &others])),
    }
}

/// Parses a text inside a body, with a limit that at least `max_values` values (members and items at any depth) fit
/// into, whatever their form.
pub(crate) fn parse_text(text: &str, max_values: usize) -> Result<Value, BadJson> {
    let room = Room::new(max_values.saturating_mul(MEMBER_BYTES.max(MIN_ITEMS * size_of::<Value>())));
    let repeated = Repeated::default();
    let mut deserializer = Deserializer::from_str(text);
    let parsed = Within { room: &room, repeated: &repeated }.deserialize(&mut deserializer);
    let parsed = parsed.and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| reason(error, text.as_bytes(), repeated, &[&room]))
}

fn reason(error: serde_json::Error, json: &[u8], repeated: Repeated, rooms: &[&Room]) -> BadJson {
    if let Some(path) = repeated.0.into_inner() {
        return BadJson::Repeated(path);
    }
    // serde_json has no error kind for it.
    if error.to_string().starts_with("recursion limit exceeded") {
        return BadJson::TooDeep(depth(json));
    }
    match rooms.iter().find(|room| room.is_exhausted.get()) {
        Some(room) => BadJson::TooManyValues(room.total),
        None => BadJson::Malformed(error),
    }
}

/// How deep lists and objects are nested in a JSON text.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut is_in_string, mut is_escaped) = (0usize, 0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            b'[' | b'{' if !is_in_string => depth += 1,
            b']' | b'}' if !is_in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The path of a place within the value at `outer`: `outer.name` or `outer[0]`.
pub(crate) fn join(outer: &str, inner: &str) -> String {
    let separator = if inner.starts_with('[') { "" } else { "." };
    format!("{outer}{separator}{inner}")
}

/// A memory budget for values.
struct Room {
    total: usize,
    left: Cell<usize>,
    is_exhausted: Cell<bool>,
}

impl Room {
    fn new(total: usize) -> Self {
        Self { total, left: Cell::new(total), is_exhausted: Cell::new(false) }
    }

    fn take<E: de::Error>(&self, n_bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(n_bytes);
        self.is_exhausted.set(left.is_none());
        left.map(|left| self.left.set(left)).ok_or_else(|| E::custom("too many values"))
    }
}

/// The path of a name that an object has twice, if one was found, relative to the value that is being parsed.
#[derive(Default)]
struct Repeated(Cell<Option<String>>);

impl Repeated {
    /// Rejects a name that `object` already has: JSON parsers differ in which of the two values they keep.
    fn check<E: de::Error>(&self, object: &Map<String, Value>, name: &str) -> Result<(), E> {
        if !object.contains_key(name) {
            return Ok(());
        }
        self.0.set(Some(cut(name)));
        Err(E::custom("repeated name"))
    }

    /// Prefixes the path, if there is one, with `place`, because the parser returns from that part to the value around
    /// it.
    fn leave(&self, place: impl FnOnce() -> String) {
        self.0.set(self.0.take().map(|path| join(&place(), &path)));
    }
}

/// A name for error messages, truncated.
fn cut(name: &str) -> String {
    const MAX_CHARS: usize = 60;
    name.chars().take(MAX_CHARS).collect()
}

/// The whole body: an object. [`TOKEN_FIELDS`] and the other fields have separate budgets.
struct Body<'a> {
    tokens: &'a Room,
    others: &'a Room,
    repeated: &'a Repeated,
}

/// A value within the body.
#[derive(Clone, Copy)]
struct Within<'a> {
    room: &'a Room,
    repeated: &'a Repeated,
}

impl Body<'_> {
    /// A value that takes memory from `room`.
    fn within<'a>(&'a self, room: &'a Room) -> Within<'a> {
        Within { room, repeated: self.repeated }
    }
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! scalars {
    () => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any JSON value")
        }

        fn visit_unit<E>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }

        fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
            Ok(Value::Bool(value))
        }

        fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
            Ok(Value::Number(value.into()))
        }

        fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
            Ok(Value::Number(value.into()))
        }

        fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
            Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
        }

        fn visit_str<E>(self, value: &str) -> Result<Value, E> {
            Ok(Value::String(value.to_owned()))
        }
    };
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = Value;

    scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Value, A::Error> {
        self.within(self.others).visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            self.others.take(MEMBER_BYTES)?;
            self.repeated.check(&object, &name)?;
            let is_tokens = TOKEN_FIELDS.contains(&name.as_str());
            let room = if is_tokens { self.tokens } else { self.others };
            let value = members.next_value_seed(self.within(room));
            let value = value.inspect_err(|_| self.repeated.leave(|| cut(&name)))?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Value;

    scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let leave = |index: usize| self.repeated.leave(|| format!("[{index}]"));
        while let Some(item) = items.next_element_seed(self).inspect_err(|_| leave(list.len()))? {
            if list.len() == list.capacity() {
                // Grows by less than the doubling of `Vec`, to save memory.
                let n_more = (list.len() / 4).max(MIN_ITEMS);
                self.room.take(n_more * size_of::<Value>())?;
                list.reserve_exact(n_more);
            }
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            self.room.take(MEMBER_BYTES)?;
            self.repeated.check(&object, &name)?;
            let value = members.next_value_seed(self).inspect_err(|_| self.repeated.leave(|| cut(&name)))?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn bounded_json_parses_and_fails_like_serde_json() {
        for text in [
            r#"{"a": [1, -2, 3.5, 1e300, 18446744073709551615, true, null, "é\n\u0041"], "prompt": [[1], "x", {}], "b": 2}"#,
            "[[], {\"x\": {\"y\": []}}]",
            "3",
            "\"text\"",
            "null",
        ] {
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text.as_bytes(), 1000).unwrap().0, expected, "{text}");
        }
        for text in ["", "{", "[1,]", "{\"a\": 1} 2", "{\"a\": \u{1}}", "{\"a\": 1e999}"] {
            let expected = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert!(
                matches!(parse(text.as_bytes(), 1000), Err(BadJson::Malformed(error)) if error.to_string() == expected)
            );
        }
    }

    #[test]
    fn json_nested_too_deep_is_rejected_with_its_depth() {
        let nested = |depth: usize| format!("{}\"[\\\"[\"{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse_text(&nested(MAX_DEPTH), 1000).is_ok());
        for depth in [MAX_DEPTH + 1, 1000] {
            let error = parse_text(&nested(depth), 10_000).err();
            assert!(matches!(error, Some(BadJson::TooDeep(found)) if found == depth), "{error:?}");
            let body = format!("{{\"a\": {}}}", nested(depth - 1));
            let error = parse(body.as_bytes(), 1 << 20).err();
            assert!(matches!(error, Some(BadJson::TooDeep(found)) if found == depth), "{error:?}");
        }
    }

    #[test]
    fn json_that_expands_beyond_the_memory_limit_is_rejected() {
        let max_body_bytes = 1 << 16;
        let ids = format!("{{\"prompt\": [{}0]}}", "0,".repeat(32_000));
        assert!(ids.len() <= max_body_bytes);
        assert_eq!(parse(ids.as_bytes(), max_body_bytes).unwrap().1, MEMBER_BYTES, "without the ids");
        for (bomb, bytes_per_byte) in [
            (format!("{{\"prompt\": [{}[0]]}}", "[0],".repeat(16_000)), TOKEN_BYTES_PER_BYTE),
            (format!("{{\"x\": [{}0]}}", "0,".repeat(32_000)), OTHER_BYTES_PER_BYTE),
            (format!("{{\"x\": [{}{{}}]}}", "{\"\":0},".repeat(7_000)), OTHER_BYTES_PER_BYTE),
        ] {
            assert!(bomb.len() <= max_body_bytes);
            let refused = parse(bomb.as_bytes(), max_body_bytes);
            let is_told = matches!(refused, Err(BadJson::TooManyValues(n)) if n == bytes_per_byte * max_body_bytes);
            assert!(is_told, "{bomb:.40}");
        }
    }

    #[test]
    fn duplicate_json_keys_are_reported_with_their_path() {
        for (text, expected) in [
            (r#"{"a": 1, "a": 2}"#, "a"),
            (r#"{"a": {"b": [0, [{"c": 1, "d": 2, "c": 1}]]}}"#, "a.b[1][0].c"),
            (r#"{"prompt": [1, {"x": 1, "x": 1}]}"#, "prompt[1].x"),
            (r#"[{"x": 1, "x": 1}]"#, "[0].x"),
        ] {
            let is_so = |refused| matches!(refused, BadJson::Repeated(path) if path == expected);
            assert!(is_so(parse(text.as_bytes(), 1000).unwrap_err()), "{text}");
            assert!(is_so(parse_text(text, 1000).unwrap_err()), "{text}");
        }
        for fine in [r#"{"a": {"b": 1}, "b": {"a": 1}}"#, r#"[{"a": 1}, {"a": 1}]"#] {
            assert!(parse(fine.as_bytes(), 1000).is_ok(), "{fine}");
        }
    }

    #[test]
    fn json_up_to_the_value_limit_is_accepted_in_any_nesting() {
        const N: usize = 1000;
        let members = |n: usize, value: &str| {
            let members: Vec<String> = (0..n).map(|at| format!("\"{at}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        };
        for text in [
            members(N, "0"),
            format!("[{}]", vec!["0"; N].join(",")),
            format!("[{}]", vec!["[0]"; N / 2].join(",")),
            members(N / 2, "[0]"),
            format!("[{}]", vec!["{\"a\":0}"; N / 2].join(",")),
            format!("[{}]", vec!["[0,0,0,0,0]"; N / 6].join(",")),
        ] {
            assert_eq!(parse_text(&text, N).unwrap(), serde_json::from_str::<Value>(&text).unwrap(), "{text:.40}");
        }
        assert!(matches!(parse_text(&format!("[{}0]", "[0],".repeat(10 * N)), N), Err(BadJson::TooManyValues(_))));
        assert!(matches!(parse_text("[0] 1", N), Err(BadJson::Malformed(_))));
    }
}
