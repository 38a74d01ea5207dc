//! JSON Schemas as grammars: which texts they admit, and what is refused instead.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use hearth_model::decode::constraint::{Constraint, Grammar, GrammarCompiler, GrammarError, lenient};
use serde_json::{Value, json};

#[path = "schemas/byte_texts.rs"]
mod byte_texts;

use byte_texts::{admits, compiler, random_text};

fn compiled(compiler: &GrammarCompiler, schema: &Value) -> Result<Constraint, GrammarError> {
    compiler.compile(&Grammar::Json(schema.clone()), "schema")
}

/// Checks which texts a schema admits.
fn check(compiler: &GrammarCompiler, schema: Value, admitted: &[&str], rejected: &[&str]) {
    let grammar = compiled(compiler, &schema).unwrap_or_else(|error| panic!("{schema}: {error:?}"));
    for text in admitted {
        assert_eq!(admits(&grammar, text), Ok(()), "{text} under {schema}");
    }
    for text in rejected {
        assert!(admits(&grammar, text).is_err(), "{text} under {schema}");
    }
    for seed in 0..8 {
        if let Some(text) = random_text(&grammar, seed, 600) {
            assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text} under {schema}");
        }
    }
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

#[test]
fn patterns_hold_for_characters_however_they_are_escaped() {
    let compiler = compiler();
    let check = |source: &str, admitted: &[&str], rejected: &[&str]| {
        check(&compiler, pattern(source), admitted, rejected);
        // The same for names.
        let names = json!({ "type": "object", "patternProperties": { source: {} }, "additionalProperties": false });
        let grammar = compiled(&compiler, &names).unwrap();
        for text in admitted {
            assert_eq!(admits(&grammar, &format!("{{{text}:1}}")), Ok(()), "{text} for {source}");
        }
        for text in rejected {
            assert!(admits(&grammar, &format!("{{{text}:1}}")).is_err(), "{text} for {source}");
        }
    };
    check(
        r#"^[^"]{3}$"#,
        &[r#""abc""#, r#""a\\c""#, r#""a\nc""#, r#""é\u00e9\u0001""#, r#""\ud83d\ude00bc""#, "\"a\u{7f}c\""],
        &[r#""a\"c""#, r#""\"\"\"""#, r#""ab""#, r#""abcd""#, r#""\ud83dbc""#],
    );
    check(
        r#"^[^\\/:*?"<>|]+$"#,
        &[r#""a b""#, r#""\n""#],
        &[r#""a\\b""#, r#""a\"b""#, r#""a/b""#, r#""a\/b""#, "\"\""],
    );
    check(r#"^[^,"]*$"#, &[r#""""#, r#""a\\""#], &[r#""a,""#, r#""\"""#, r#""\u0022""#, r#""\u002c""#]);
    check(r"^[^\\]$", &[r#""\"""#, r#""é""#], &[r#""\\""#, r#""\u005c""#]);
    check(r"^[^\n]$", &[r#""\r""#, r#""\u000b""#], &[r#""\n""#, r#""\u000a""#]);
    check(r"^[^é-ü]$", &[r#""e""#, r#""\u00fd""#], &[r#""é""#, r#""\u00E9""#, r#""\u00fc""#]);
    check("^[^\u{1f600}]$", &["\"\u{1f601}\"", r#""\ud83d\ude01""#], &["\"\u{1f600}\"", r#""\ud83d\ude00""#]);
    check(r#"^(foo|bar|"baz")$"#, &[r#""\"baz\"""#, r#""foo""#], &[r#""baz""#]);
    check(r"^[\]\[]$", &[r#""[""#], &[r#""a""#]);
}

#[test]
fn patterns_are_searched_for_unless_they_have_anchors() {
    let compiler = compiler();
    let check =
        |source: &str, admitted: &[&str], rejected: &[&str]| check(&compiler, pattern(source), admitted, rejected);
    check("ab", &[r#""ab""#, r#""\"ab\\""#], &[r#""a b""#]);
    check("^a|b$", &[r#""ax""#, r#""xb""#], &[r#""xa""#, r#""bx""#]);
    check("(^|,)a(,|$)", &[r#""a""#, r#""x,a""#, r#""b,a,c""#], &[r#""xa""#, r#""a b""#]);
    check("(?:^x|y)+", &[r#""xy""#, r#""zy""#], &[r#""zx""#]);
    check("^$", &[r#""""#], &[r#"" ""#]);
    check("(?i)^abc$", &[r#""aBc""#], &[r#""abd""#]);
    check("^a{2,}?b{0,1}$", &[r#""aab""#, r#""aaa""#], &[r#""ab""#]);
    check(r"^\x41\u0042\u{43}\cA$", &[r#""ABC\u0001""#], &[r#""ABCA""#]);
    check(r"^\p{Lu}\P{L}$", &[r#""É1""#], &[r#""é1""#, r#""ÉÉ""#]);
    check("^(?=.*[0-9])(?=.*[a-z]).{2,6}$", &[r#""a1""#, r#""1\"b""#], &[r#""ab""#, r#""a1bcdef""#]);
    check("^(?!a)[a-c]{2}$", &[r#""ba""#], &[r#""ab""#]);
    check(r"^\{.*\}$", &[r#""{}""#, r#""{\"a\"}""#], &[r#""{""#]);
    check(r"^{a}$", &[r#""{a}""#], &[r#""a""#]);
    // As in ECMA-262, and only where Python agrees.
    check(r"^\d\w$", &[r#""1_""#], &["\"\u{661}a\"", r#""1é""#]);
    check(r"^\W\S.$", &[r#""-a ""#], &["\"éaa\"", "\"-\u{85}a\"", r#""-a\n""#, r#""-a\r""#]);
}

#[test]
fn patterns_that_cannot_be_enforced_are_refused_by_keyword() {
    let compiler = compiler();
    for (source, reason) in [
        (r"\bfoo\b", "word boundary"),
        ("a(?=b)", "lookahead"),
        ("(?<=a)b", "lookbehind"),
        (r"(a)\1", "reference to a group"),
        ("(?P=n)", "group `(?P=`"),
        ("a{,3}", "least number"),
        ("a++", "repetition of a repetition"),
        ("[]a]", "empty class"),
        ("(?x)a", "flag `x`"),
        ("(^a){2}", "anchors"),
        ("(a", "lacks a `)`"),
        ("[a", "lacks a `]`"),
        ("a)", "without a `(`"),
        ("*a", "nothing to repeat"),
        ("[z-a]", "wrong order"),
        (r"\p{Nope}", "property"),
        (r"\ud800", "no Unicode character"),
    ] {
        let error = compiled(&compiler, &json!({ "items": pattern(source) })).unwrap_err();
        assert_eq!(error.at, "items.pattern", "{source}: {error:?}");
        assert!(error.what.contains(reason) && error.what.contains("hint:"), "{source}: {error:?}");
        // In other tools the keyword is passed over.
        let grammar = compiled(&compiler, &lenient(json!({ "items": pattern(source) }), "f")).unwrap();
        assert_eq!(admits(&grammar, r#"["x"]"#), Ok(()));
    }
}

#[test]
fn lengths_count_characters_also_beside_patterns_and_formats() {
    let compiler = compiler();
    let schema = json!({ "type": "string", "pattern": "^[^a]*$", "minLength": 2, "maxLength": 3 });
    check(&compiler, schema, &[r#""\"\\""#, r#""é\ud83d\ude00\n""#], &[r#""\"""#, r#""bbbb""#, r#""ab""#]);
    for (min, max) in [(0, 2_000), (1_900, 1_910), (1_984, 2_047), (64, 6_400), (20_000, 65_536)] {
        let schema = json!({ "type": "object", "required": ["a"], "properties": { "a": { "type": "string", "minLength": min, "maxLength": max } } });
        let grammar = compiled(&compiler, &schema).unwrap();
        for (length, is_right) in [(min, true), (min + 1, true), (max - 1, true), (max, true), (max + 1, false)] {
            let character = if max < 10_000 { "\\u00e9" } else { "a" };
            let text = format!("{{\"a\": \"{}\" }}", character.repeat(length));
            assert_eq!(admits(&grammar, &text).is_ok(), is_right, "{length} in {min} to {max}");
        }
        assert_eq!(admits(&grammar, &format!("{{\"a\":\"{}\"}}", "a".repeat(min.max(1) - 1))).is_ok(), min == 0);
    }
    let schema = json!({ "type": "string", "format": "date", "pattern": "-29$" });
    check(
        &compiler,
        schema,
        &[r#""2024-02-29""#, r#""2000-02-29""#],
        &[r#""2023-02-29""#, r#""1900-02-29""#, r#""2024-02-28""#],
    );
}

/// A model that writes the same character for ever is stopped.
#[test]
fn texts_of_every_format_and_numbers_come_to_an_end() {
    let compiler = compiler();
    let formats = [
        ("date", "2024-02-29"),
        ("time", "12:00:00.5+01:00"),
        ("date-time", "2024-02-29T12:00:00Z"),
        ("duration", "P1Y2M3DT4H5M6S"),
        ("email", "a.b@example.org"),
        ("idn-email", "a@b"),
        ("hostname", "www.example.org"),
        ("idn-hostname", "example"),
        ("ipv4", "192.168.0.1"),
        ("ipv6", "fe80::1:2.3.4.5"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
        ("uri", "https://me@example.org:80/a/b?c=d#e"),
        ("iri", "urn:isbn:1"),
        ("uri-reference", "../a?b"),
        ("iri-reference", "#a"),
        ("json-pointer", "/a/~0b/~1"),
        ("relative-json-pointer", "1/a"),
    ];
    for (format, text) in formats {
        check(&compiler, json!({ "type": "string", "format": format }), &[&format!("\"{text}\"")], &["\" \""]);
    }
    let endless = formats.map(|(format, _)| json!({ "type": "string", "format": format }));
    for schema in endless.into_iter().chain([json!({ "type": "integer" }), json!({ "type": "number" })]) {
        let grammar = compiled(&compiler, &schema).unwrap();
        for favourite in ["a", "0", "1", ".", "/", ":", "[", "@", "#", "P", "T", "-", "%"] {
            let mut text = String::new();
            let follows = |text: &str, next: char| admits(&grammar, &format!("{text}{next}")) != Err(text.len());
            while text.len() < 3_000 {
                let wanted = favourite.chars().chain("\"0123456789aDHMSTPYWZ-:.@/~1".chars());
                match wanted.into_iter().find(|next| follows(&text, *next)) {
                    Some('"') if text.len() > 1 => break,
                    Some(next) if text.len() < 1_500 => text.push(next),
                    _ => break,
                }
            }
            assert!(text.len() < 1_500, "{schema}: {text}");
        }
    }
    for (format, at) in [("regex", "format"), ("uri-template", "format")] {
        let error = compiled(&compiler, &json!({ "format": format })).unwrap_err();
        assert_eq!(error.at, at);
    }
    check(&compiler, json!({ "type": "string", "format": "password" }), &["\"a b\""], &[]);
}

#[test]
fn objects_never_begin_a_member_that_cannot_be_completed() {
    let compiler = compiler();
    let a = json!({ "type": "integer" });
    // No name is left.
    for (names, extra) in
        [(json!({ "^a$": {} }), "\"a\":1"), (json!({ "^b$": false }), "\"b\":1"), (json!({}), "\"c\":1")]
    {
        let schema = json!({
            "type": "object", "properties": { "a": a }, "required": ["a"], "patternProperties": names, "additionalProperties": false,
        });
        check(&compiler, schema, &["{\"a\":1}"], &["{\"a\":1,", &format!("{{\"a\":1,{extra}}}"), "{}"]);
    }
    let schema = json!({ "properties": { "a": a, "b": false }, "type": "object" });
    check(&compiler, schema, &["{}", "{\"a\":1}"], &["{\"b", "{\"a\":1,"]);
    let schema = json!({ "type": "object", "properties": { "a": a, "b": a }, "maxProperties": 1 });
    check(&compiler, schema, &["{}", "{\"b\":1}"], &["{\"a\":1,"]);
    let endless = json!({ "$defs": { "n": { "type": "object", "properties": { "n": { "$ref": "#/$defs/n" } }, "required": ["n"] } },
        "type": "object", "properties": { "a": a, "n": { "$ref": "#/$defs/n" } } });
    check(&compiler, endless, &["{}", "{\"a\":1}"], &["{\"n"]);
    let impossible = [
        json!(false),
        json!({ "enum": [] }),
        json!({ "type": "string", "pattern": "^a$", "minLength": 2 }),
        json!({ "type": "object", "required": ["a"], "properties": { "a": false } }),
        json!({ "type": "array", "minItems": 1, "items": { "allOf": [{ "type": "string" }, { "type": "null" }] } }),
        json!({ "type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5 }),
    ];
    for schema in impossible {
        assert!(compiled(&compiler, &schema).is_err_and(|error| error.what.contains("allows no value")), "{schema}");
    }
}

#[test]
fn schema_without_a_value_is_refused_with_the_path_of_the_part_that_allows_none() {
    let compiler = compiler();
    let object = |properties: Value, required: Value| json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    let never = json!({ "type": "string", "minLength": 3, "maxLength": 2 });
    let node = object(json!({ "n": { "$ref": "#/$defs/node" } }), json!(["n"]));
    for (schema, at, what) in [
        (json!({ "type": "integer", "minimum": 2, "maximum": 1 }), "", "allows no value"),
        (object(json!({ "a": {}, "b": never }), json!(["b"])), "properties.b", "allows no value"),
        // An optional member is not the reason.
        (object(json!({ "a": never, "b": never, "c": never }), json!(["b"])), "properties.b", "allows no value"),
        (
            object(json!({ "a": object(json!({ "b": never }), json!(["b"])) }), json!(["a"])),
            "properties.a.properties.b",
            "",
        ),
        (object(json!({ "a": object(json!({}), json!(["zz"])) }), json!(["a"])), "properties.a", "a member \"zz\""),
        (object(json!({ "a": {}, "b": false }), json!(["b"])), "", "a member \"b\""),
        (json!({ "type": "array", "minItems": 1, "items": never }), "items", "allows no value"),
        (json!({ "type": "array", "prefixItems": [{}, never], "minItems": 2 }), "prefixItems.1", "allows no value"),
        (json!({ "type": "array", "minItems": 1, "items": false }), "", "allows no value"),
        (json!({ "$defs": { "node": node }, "$ref": "#/$defs/node" }), "$defs.node.properties.n", "without end"),
    ] {
        let error = compiled(&compiler, &schema).unwrap_err();
        assert_eq!(error.at, at, "{schema}: {error:?}");
        assert!(error.what.contains("allows no value") && error.what.contains(what), "{schema}: {error:?}");
    }
}

#[test]
fn member_names_come_once_however_they_are_spelled() {
    let compiler = compiler();
    let schema = json!({ "type": "object", "properties": { "é\"a": { "type": "integer" } }, "additionalProperties": { "type": "string" } });
    let spelled = [r#""é\"a""#, r#""\u00e9\"a""#, r#""\u00E9\"a""#];
    let twice: Vec<String> = spelled.iter().map(|name| format!(r#"{{"é\"a":1,{name}:"x"}}"#)).collect();
    let twice: Vec<&str> =
        twice.iter().map(String::as_str).chain([r#"{"\u00e9\u0022a":1}"#, r#"{"é\"a":"x"}"#]).collect();
    check(&compiler, schema, &[r#"{"é\"a":1,"b":"x"}"#, r#"{"\u00e9\"a":1}"#, r#"{"e":"x"}"#], &twice);
    let schema = json!({ "type": "object", "properties": { "a": {}, "b": {} }, "additionalProperties": true, "minProperties": 1 });
    check(&compiler, schema, &["{\"a\":1}", "{\"c\":1}"], &["{}", r#"{"a":1,"\u0061":2}"#]);
    let error = compiled(&compiler, &json!({ "type": "object", "minProperties": 2 })).unwrap_err();
    assert_eq!(error.at, "minProperties");
}

#[test]
fn objects_count_their_members_and_check_their_names() {
    let compiler = compiler();
    let abc = json!({ "a": {}, "b": {}, "c": {} });
    let schema = json!({ "type": "object", "properties": abc, "minProperties": 2, "required": ["c"] });
    check(&compiler, schema, &[r#"{"a":1,"c":1}"#, r#"{"a":1,"b":2,"c":1}"#], &[r#"{"c":1}"#, r#"{"a":1,"b":1}"#]);
    let schema = json!({ "type": "object", "properties": abc, "maxProperties": 2, "additionalProperties": {} });
    check(
        &compiler,
        schema,
        &["{}", r#"{"a":1,"x":1}"#, r#"{"x":1,"y":2}"#],
        &[r#"{"a":1,"b":2,"c":3}"#, r#"{"a":1,"b":2,"x":3}"#],
    );
    let schema = json!({ "type": "object", "properties": abc, "propertyNames": { "enum": ["a", "z\""] }, "additionalProperties": {} });
    check(&compiler, schema, &[r#"{"a":1}"#, r#"{"z\"":1}"#], &[r#"{"b":1}"#, r#"{"y":1}"#]);
    let schema = json!({ "type": "object", "propertyNames": { "pattern": "^[^\"]$" } });
    check(&compiler, schema, &[r#"{"a":1,"\\":2}"#], &[r#"{"\"":1}"#, r#"{"ab":1}"#]);
    // Members that are not listed, beside those that match patterns.
    let schema = json!({
        "type": "object", "properties": { "ab": { "type": "integer" } },
        "patternProperties": { "^a": { "minimum": 5 }, "b$": { "maximum": 7 } }, "additionalProperties": { "type": "null" },
    });
    let admitted = [r#"{"ab":6}"#, r#"{"ac":5}"#, r#"{"xb":7}"#, r#"{"x":null}"#, r#"{"aab":"s"}"#];
    check(&compiler, schema, &admitted, &[r#"{"ab":4}"#, r#"{"ab":8}"#, r#"{"aab":8}"#, r#"{"x":1}"#]);
    // A schema that lists members has no others, unless it says so.
    for (schema, others) in [
        (json!({ "properties": { "a": {} } }), false),
        (json!({ "properties": {} }), false),
        (json!({ "properties": { "a": {} }, "additionalProperties": true }), true),
        (json!({ "properties": { "a": {} }, "required": ["b"] }), true),
        (json!({ "allOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }), false),
        (json!({ "required": [] }), true),
    ] {
        let grammar = compiled(&compiler, &schema).unwrap();
        let text = if schema["required"] == json!(["b"]) { r#"{"b":1,"x":1}"# } else { r#"{"x":1}"# };
        assert_eq!(admits(&grammar, text).is_ok(), others, "{schema}");
    }
}

#[test]
fn references_are_resolved_by_pointer_anchor_and_id() {
    let compiler = compiler();
    let integer = json!({ "type": "integer" });
    for (name, reference) in [
        ("x/y", "#/$defs/x~1y"),
        ("x~y", "#/$defs/x~0y"),
        ("x%y", "#/$defs/x%25y"),
        ("<x>", "#/$defs/%3Cx%3E"),
        ("x y", "#/$defs/x y"),
        ("é", "#/$defs/%C3%A9"),
        ("~1", "#/$defs/~01"),
    ] {
        let schema = json!({ "$defs": { name: integer }, "$ref": reference });
        check(&compiler, schema, &["12"], &["\"a\"", "null"]);
    }
    let named = |definition: Value, reference: &str| json!({ "$defs": { "d": definition }, "items": { "$ref": reference }, "type": "array" });
    for schema in [
        named(json!({ "$anchor": "n", "type": "integer" }), "#n"),
        named(json!({ "$dynamicAnchor": "n", "type": "integer" }), "#n"),
        named(json!({ "$id": "n.json", "type": "integer" }), "n.json"),
        named(json!({ "$id": "https://example.org/a/n.json", "type": "integer" }), "https://example.org/a/n.json#"),
        json!({ "$id": "https://example.org/a/root.json", "$defs": { "d": { "$id": "../n", "type": "integer" } },
            "type": "array", "items": { "$ref": "/n" } }),
        json!({ "$defs": { "d": { "$id": "n", "$defs": { "e": integer }, "items": { "$ref": "#/$defs/e" }, "type": "array" } }, "$ref": "n" }),
        json!({ "elsewhere": [{ "x": integer }], "type": "array", "items": { "$ref": "#/elsewhere/0/x" } }),
        json!({ "definitions": { "d": { "$id": "#n", "type": "integer" } }, "type": "array", "items": { "$ref": "#n" } }),
    ] {
        check(&compiler, schema, &["[12]"], &["[\"a\"]"]);
    }
    // Recursion, also where two schemas recur together.
    let tree = |name: &str, kind: &str| json!({ "properties": { "v": { "type": kind }, "next": { "$ref": format!("#/$defs/{name}") } }, "required": ["v"] });
    let schema = json!({ "$defs": { "a": tree("a", "number"), "b": tree("b", "integer") }, "type": "object", "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }] });
    check(&compiler, schema, &[r#"{"v":1,"next":{"v":2}}"#], &[r#"{"v":1.5}"#, r#"{"v":1,"next":{"v":2.5}}"#]);
    for (schema, reason) in [
        (json!({ "$ref": "#/$defs/gone" }), "`#/$defs/gone`, which the schema does not contain"),
        (json!({ "$ref": "https://example.org/other.json" }), "does not contain"),
        (json!({ "$ref": "#" }), "refers to itself"),
        (json!({ "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/a" }] } }, "$ref": "#/$defs/a" }), "refers to itself"),
    ] {
        let error = compiled(&compiler, &schema).unwrap_err();
        assert!(error.what.contains(reason), "{error:?}");
    }
}

#[test]
fn constants_are_data_and_no_keywords() {
    let compiler = compiler();
    let data = json!({ "maxItems": 20_000, "pattern": "(", "multipleOf": 1_000_003, "$ref": "#/gone", "type": 7 });
    let text = data.to_string();
    check(&compiler, json!({ "enum": [data] }), &[&text], &["{}"]);
    check(&compiler, json!({ "const": data }), &[&text], &["{}"]);
    check(&compiler, json!({ "type": "null", "default": data, "examples": [data] }), &["null"], &["1"]);
    let named =
        json!({ "type": "object", "properties": { "enum": { "type": "integer" }, "maxLength": {}, "$ref": {} } });
    check(&compiler, named, &[r#"{"enum":1,"$ref":2}"#], &[r#"{"enum":"a"}"#]);
    let texts = json!({ "enum": ["say \"hi\"", "a\\b", "\u{7f}\n", "é", 1, 1.5, null, 9_007_199_254_740_993i64] });
    let admitted = [r#""say \"hi\"""#, r#""a\\b""#, "\"\u{7f}\\n\"", r#""\u00e9""#, "1", "1.5", "9007199254740993"];
    check(&compiler, texts, &admitted, &[r#""hi""#, "2", "9007199254740992"]);
}

#[test]
fn arrays_hold_unique_items_and_contains() {
    let compiler = compiler();
    let days = json!({ "type": "array", "items": { "enum": ["mo", "t\"u", 3, null, true] }, "uniqueItems": true, "minItems": 1, "maxItems": 3 });
    check(&compiler, days, &[r#"["mo"]"#, r#"["t\"u",null,3]"#], &["[]", r#"["mo","mo"]"#, r#"["mo","t\"u",3,null]"#]);
    let small =
        json!({ "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 3 }, "uniqueItems": true });
    check(&compiler, small, &["[]", "[3,1,2]"], &["[1,1]", "[4]"]);
    check(&compiler, json!({ "type": "array", "uniqueItems": true, "maxItems": 1 }), &["[]", "[[1]]"], &["[1,2]"]);
    let contains =
        json!({ "type": "array", "items": { "type": "integer" }, "contains": { "const": 7 }, "maxItems": 3 });
    check(&compiler, contains, &["[7]", "[1,7,2]", "[7,7]"], &["[]", "[1,2]", "[1,2,3,7]"]);
    let contains = json!({ "contains": { "type": "string" }, "minContains": 0, "maxContains": 1, "type": "array" });
    check(&compiler, contains, &["[]", "[1,\"a\",2]"], &["[\"a\",1,\"b\"]"]);
    let prefix = json!({ "type": "array", "prefixItems": [{ "type": "integer" }, { "type": "string" }], "items": false, "minItems": 1 });
    check(&compiler, prefix, &["[1]", "[1,\"a\"]"], &["[]", "[\"a\"]", "[1,\"a\",2]"]);
    let prefix = json!({ "type": "array", "prefixItems": [{ "type": "integer" }], "unevaluatedItems": { "type": "null" }, "maxItems": 3 });
    check(&compiler, prefix, &["[1,null,null]"], &["[1,2]", "[1,null,null,null]"]);
    check(
        &compiler,
        json!({ "type": "array", "maxItems": 70_000, "items": { "const": 1 } }),
        &["[]", "[1,1]"],
        &["[2]"],
    );
    for (schema, at) in [
        (
            json!({ "properties": { "a": { "type": "array", "items": { "type": "string" }, "uniqueItems": true } } }),
            "properties.a.uniqueItems",
        ),
        (json!({ "prefixItems": [{}], "contains": {}, "type": "array" }), "contains"),
    ] {
        let error = compiled(&compiler, &schema).unwrap_err();
        assert_eq!(error.at, at);
        assert!(error.what.starts_with("cannot be enforced") && error.what.contains("hint:"), "{error:?}");
        assert!(compiled(&compiler, &lenient(schema, "f")).is_ok());
    }
}

#[test]
fn schemas_apply_others_to_the_same_value() {
    let compiler = compiler();
    let check = |schema: Value, admitted: &[&str], rejected: &[&str]| check(&compiler, schema, admitted, rejected);
    check(json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), &["1.5"], &["1"]);
    check(
        json!({ "oneOf": [{ "type": "number", "minimum": 2 }, { "type": "number", "maximum": 5 }] }),
        &["1", "6"],
        &["3"],
    );
    let kinds = |name: &str| json!({ "properties": { "kind": { "const": name }, name: { "type": "integer" } }, "type": "object" });
    // With defaults, as of pydantic, the members that tell branches apart are not required.
    check(
        json!({ "oneOf": [kinds("a"), kinds("b")] }),
        &[r#"{"kind":"a","a":1}"#, r#"{"kind":"b"}"#],
        &["{}", r#"{"kind":"c"}"#],
    );
    check(json!({ "not": { "type": "string" } }), &["1", "null"], &["\"a\""]);
    check(json!({ "type": "string", "not": { "enum": ["a", "é"] } }), &["\"b\""], &["\"a\"", "\"\\u00e9\""]);
    check(json!({ "type": "string", "not": { "pattern": "\"" } }), &["\"b\""], &["\"\\\"\""]);
    check(json!({ "type": "integer", "not": { "const": 5 } }), &["4", "6"], &["5"]);
    let conditional = json!({
        "type": "object", "properties": { "kind": { "enum": ["a", "b"] }, "n": { "type": "integer" } }, "required": ["kind"],
        "if": { "properties": { "kind": { "const": "a" } } }, "then": { "required": ["n"] }, "else": { "properties": { "n": false } },
    });
    check(conditional, &[r#"{"kind":"a","n":1}"#, r#"{"kind":"b"}"#], &[r#"{"kind":"a"}"#, r#"{"kind":"b","n":1}"#]);
    let dependent = json!({ "type": "object", "properties": { "a": {}, "b": {}, "c": {} }, "dependentRequired": { "a": ["b"] }, "dependentSchemas": { "c": { "required": ["a"] } } });
    check(
        dependent,
        &["{}", r#"{"b":1}"#, r#"{"a":1,"b":1}"#, r#"{"a":1,"b":1,"c":1}"#],
        &[r#"{"a":1}"#, r#"{"b":1,"c":1}"#],
    );
    let evaluated = json!({
        "type": "object", "allOf": [{ "properties": { "a": {} } }], "properties": { "b": {} }, "unevaluatedProperties": { "type": "null" },
    });
    check(evaluated, &[r#"{"a":1,"b":1}"#, r#"{"a":1,"z":null}"#], &[r#"{"z":1}"#]);
    // Keywords apply together in whatever order they stand.
    let mixed = json!({ "additionalProperties": false, "anyOf": [{ "required": ["a"] }, { "required": ["x1"] }], "properties": { "a": {} }, "patternProperties": { "^x": {} }, "type": "object" });
    check(mixed, &[r#"{"a":1}"#, r#"{"x1":1}"#], &["{}", r#"{"b":1}"#, r#"{"x2":1}"#]);
    check(
        json!({ "type": "number", "multipleOf": 0.25, "minimum": 1 }),
        &["1", "1.5", "1.25", "12"],
        &["1.1", "0.5", "1.125"],
    );
    check(
        json!({ "type": "integer", "multipleOf": 3, "exclusiveMinimum": 3, "maximum": 12 }),
        &["6", "12"],
        &["3", "4", "15"],
    );
    check(
        json!({ "allOf": [{ "multipleOf": 4 }, { "multipleOf": 6 }], "type": "integer" }),
        &["12", "0"],
        &["4", "6", "8"],
    );
}

#[test]
fn wrong_keywords_are_errors_at_their_path() {
    let compiler = compiler();
    for (schema, at) in [
        (json!({ "items": { "type": "int" } }), "items"),
        (json!({ "items": { "type": ["string", 7] } }), "items"),
        (json!({ "properties": [] }), "properties"),
        (json!({ "properties": { "a": 7 } }), "properties.a"),
        (json!({ "maxLength": -1 }), "maxLength"),
        (json!({ "minItems": 1.5 }), "minItems"),
        (json!({ "multipleOf": 0 }), "multipleOf"),
        (json!({ "required": "a" }), "required"),
        (json!({ "enum": "a" }), "enum"),
        (json!({ "anyOf": {} }), "anyOf"),
        (json!({ "pattern": 1 }), "pattern"),
    ] {
        let error = compiled(&compiler, &schema).unwrap_err();
        assert_eq!(error.at, at, "{error:?}");
        assert_eq!(compiled(&compiler, &lenient(schema, "f")).unwrap_err(), error, "also in other tools");
    }
    let fine = json!({ "minLength": 2.0, "type": "string", "x-own": 1, "title": "t", "nullable": true });
    check(&compiler, fine, &["\"ab\""], &["\"a\""]);
}

/// Generators of schemas write the largest integer of their language where there is no maximum.
#[test]
fn sizes_beyond_all_texts_are_no_maximum_and_no_possible_minimum() {
    let compiler = compiler();
    for most in [u64::MAX, (1 << 53) - 1, u64::from(u32::MAX), 1 << 31] {
        check(&compiler, json!({ "type": "string", "maxLength": most }), &["\"\"", "\"ab\""], &["1"]);
        check(
            &compiler,
            json!({ "type": "array", "items": { "const": 1 }, "maxItems": most }),
            &["[]", "[1,1]"],
            &["[2]"],
        );
        let members = json!({ "type": "object", "additionalProperties": { "const": 1 }, "maxProperties": most });
        check(&compiler, members, &["{}", "{\"a\":1}"], &["[]"]);
    }
    for keyword in ["minLength", "minItems", "minProperties"] {
        let schema = json!({ "type": ["string", "array", "object"], keyword: 1_000_000_000_000_u64 });
        let error = compiled(&compiler, &schema).unwrap_err();
        assert_eq!(
            (error.at.as_str(), error.what.contains("at most 1000000000, got 1000000000000")),
            (keyword, true),
            "{error}"
        );
    }
    let passed_over = lenient(json!({ "type": "string", "minLength": 1_000_000_000_000_u64 }), "f");
    check(&compiler, passed_over, &["\"ab\""], &["1"]);
}

/// `sample.json` and the script that made it, which compares thousands more, are in `tests/schemas/`.
#[test]
fn generated_schemas_admit_what_jsonschema_admits_and_nothing_else() {
    let compiler = compiler();
    let sample: Vec<Value> = serde_json::from_str(include_str!("schemas/sample.json")).unwrap();
    for case in &sample {
        let texts = |name: &str| -> Vec<&str> {
            case[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        match case["refused"].as_str() {
            None => check(&compiler, case["schema"].clone(), &texts("admitted"), &texts("rejected")),
            Some(at) => assert_eq!(compiled(&compiler, &case["schema"]).unwrap_err().at, at, "{}", case["schema"]),
        }
    }
}
