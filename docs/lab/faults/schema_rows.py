"""Section 3, structured output: a model writes what a schema forbids, and the answer must still be valid."""

import json

from jsonschema import Draft202012Validator

import tiny_models
from builds import counted, row, short

SECTION = "3"
INTEGER = {"type": "integer"}


def answers(build, cases):
    """What is wrong with the answer to each case: a schema, the text that the model writes, and whether it is to be the answer."""
    texts, places, start = {}, [], 1
    for _, text, _ in cases:
        texts[start] = text
        places.append(start)
        start += len(text.encode()) + 320
    with build.serve(tiny_models.writer(build.folder() / "model", texts), "--threads", "1") as server:
        for (schema, text, is_expected), place in zip(cases, places):
            body = {"prompt": [32] * place, "temperature": 0, "max_tokens": len(text.encode()) + 280, "structured_outputs": {"json": schema}}
            yield f"{json.dumps(schema)[:90]} with {short(text, 40)}", fault(server.post("/v1/completions", body), schema, text, is_expected)


def fault(reply, schema, text, is_expected):
    if is_expected is None:
        return None if reply.status == 400 else reply.error() if reply.status != 200 else "taken"
    if reply.status != 200:
        return reply.error()
    choice = reply.json["choices"][0]
    answer = choice["text"]
    if choice["finish_reason"] != "stop":
        return f"no end: {short(answer, 40)}"
    if is_expected:
        return None if answer == text else f"answer {short(answer, 40)}"
    try:
        values = [json.loads(answer), json.loads(answer, object_pairs_hook=lambda pairs: dict(reversed(pairs)))]
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        is_valid = all(validator.is_valid(value) for value in values)
    except (ValueError, OverflowError) as error:
        return f"{type(error).__name__}: {short(answer, 40)}"
    if not is_valid:
        return f"invalid: {short(answer, 40)}"
    return None


def schemas(kind, cases):
    row(SECTION, kind)(lambda build: counted(answers(build, cases)))


def text_of(pattern):
    return {"type": "string", "pattern": pattern}


def members(names, required=(), **more):
    return {"type": "object", "properties": names, "required": list(required)} | more


BACKSLASHED = r'"a\"b"'
schemas("patterns whose class leaves out `\"` or `\\`", [
    (text_of('^[^"]{3}$'), BACKSLASHED, False),
    (text_of('^[^\\\\/:*?"<>|]+$'), r'"a\\b"', False),
    (text_of('^[^\\\\/:*?"<>|]+$'), BACKSLASHED, False),
    (text_of('^[^,"]*$'), BACKSLASHED, False),
    (text_of('^[^,"]*$'), r'"\u0022"', False),
    ({"anyOf": [text_of('^[^"]*$'), {"type": "null"}]}, BACKSLASHED, False),
    ({"type": "object", "patternProperties": {'^[^"]{3}$': {}}, "additionalProperties": False}, '{"a\\"b":1}', False),
    (text_of("^[^\\n]+$"), r'"a\nb"', False),
    (text_of("^[^\\u0041]+$"), r'"\u0041"', False),
    (text_of('^[^"]{3}$'), r'"a\\b"', True),
])
schemas("a comma where no name is left", [
    (members({"a": INTEGER}, ["a"], patternProperties={"^a$": {}}, additionalProperties=False), '{"a":1,"a":2}', False),
    (members({"a": INTEGER, "b": False}), '{"a":1,', False),
    (members({"a": INTEGER, "b": INTEGER}, maxProperties=1), '{"a":1,"b":2}', False),
    (members({"a": INTEGER}, ["a"], propertyNames={"enum": ["a"]}, additionalProperties={}), '{"a":1,"b":2}', False),
])
schemas("a member's name twice, also with an escape", [
    (members({"a": INTEGER}, additionalProperties=True), '{"a":1,"a":"x"}', False),
    (members({"a": INTEGER}, additionalProperties=True), '{"a":1,"\\u0061":"x"}', False),
    (members({"a": {}, "b": {}}, minProperties=2, additionalProperties=False), '{"a":1,"\\u0061":2}', False),
    (members({"a": INTEGER, "b": {}}, ["b"], additionalProperties={"type": "string"}), '{"a":1,"a":"x","b":1}', False),
    (members({"a": {"type": "object", "properties": {"b": INTEGER}}}, additionalProperties={}), '{"a":{"b":1,"\\u0062":"x"},"\\u0061":7}', False),
])


def named(definition, reference):
    return {"$defs": {"d": definition}, "type": "array", "items": {"$ref": reference}}


schemas("`~1`, `~0`, `%3C`, `$anchor`, `$id`", [
    ({"$defs": {"x/y": INTEGER}, "$ref": "#/$defs/x~1y"}, "12", True),
    ({"$defs": {"x~y": INTEGER}, "$ref": "#/$defs/x~0y"}, "12", True),
    ({"$defs": {"<x>": INTEGER}, "$ref": "#/$defs/%3Cx%3E"}, "12", True),
    (named({"$anchor": "n", "type": "integer"}, "#n"), "[12]", True),
    (named({"$dynamicAnchor": "n", "type": "integer"}, "#n"), "[12]", True),
    (named({"$id": "n.json", "type": "integer"}, "n.json"), "[12]", True),
    (named({"$id": "https://example.org/n", "type": "integer"}, "https://example.org/n#"), "[12]", True),
    ({"$defs": {"d": {"$id": "n", "$defs": {"e": INTEGER}, "type": "array", "items": {"$ref": "#/$defs/e"}}}, "$ref": "n"}, "[12]", True),
])
DATA = {"maxItems": 20000}
schemas("counts above 10,000; counts in data", [
    ({"type": "string", "maxLength": 65536}, '"abc"', True),
    ({"type": "string", "maxLength": 10_000_000}, '"abc"', True),
    ({"type": "array", "items": INTEGER, "maxItems": 65536}, "[1,2]", True),
    ({"enum": [DATA]}, '{"maxItems":20000}', True),
    ({"const": DATA}, '{"maxItems":20000}', True),
    ({"type": "null", "default": DATA, "examples": [DATA]}, "null", True),
    ({"type": "string", "pattern": "^a{0,20000}$"}, '"aa"', True),
    (members({"maxItems": INTEGER}, ["maxItems"], additionalProperties=False), '{"maxItems":20000}', True),
])
SMALL = {"enum": [1, 2, 3]}
schemas("`uniqueItems`, `contains`, `not`, `if`, `dependentRequired`", [
    ({"type": "array", "items": SMALL, "uniqueItems": True}, "[1,1]", False),
    ({"type": "array", "items": INTEGER, "contains": {"const": 7}, "maxItems": 2}, "[1,2]", False),
    ({"type": "string", "enum": ["a", "b"], "not": {"const": "a"}}, '"a"', False),
    ({"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a":1}', False),
    (members({"a": INTEGER, "b": INTEGER}, dependentRequired={"a": ["b"]}), '{"a":1}', False),
    (members({"a": INTEGER, "b": INTEGER}, dependentSchemas={"a": {"required": ["b"]}}), '{"a":1}', False),
    ({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2, "unevaluatedItems": False}, '["a"]', False),
    ({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, "4", False),
    ({"uniqueItems": True, "type": "array", "items": {"type": "string"}}, '["a","a"]', None),
    ({"type": "string", "contentEncoding": "base64"}, '"****"', False),
])
LONG = "a" * 900
ENDLESS = [
    ({"type": "string", "format": "email"}, f'"{LONG}', False),
    ({"type": "string", "format": "uri"}, f'"a:{LONG}', False),
    ({"type": "string", "format": "duration"}, '"P' + "1" * 900, False),
    ({"type": "string", "format": "hostname"}, f'"{LONG}', False),
    ({"type": "string", "format": "json-pointer"}, f'"/{LONG}', False),
    (INTEGER, "1" * 900, False),
    ({"type": "integer", "minimum": 0}, "1" * 900, False),
    ({"type": "number"}, "0." + "1" * 900, False),
    ({"type": "number", "maximum": 0.5}, "-" + "1" * 900, False),
    ({"type": "number", "multipleOf": 0.5}, "1" * 900, False),
    ({"type": "string", "format": "date-time"}, '"2024-02-29T12:00:00.' + "1" * 900, False),
    ({"type": "array", "items": INTEGER, "maxItems": 1}, "[" + " " * 900, False),
]


@row(SECTION, "formats and numbers without an end")
def endless(build):
    return counted(result for at in range(0, len(ENDLESS), 3) for result in answers(build, ENDLESS[at : at + 3]))


@row(SECTION, "\"allows no value\" names the part")
def no_value(build):
    never = {"type": "string", "minLength": 3, "maxLength": 2}
    cases = [
        (members({"a": {}, "b": never}, ["b"]), "properties.b"),
        ({"type": "array", "minItems": 1, "items": never}, "items"),
        ({"type": "array", "prefixItems": [{}, never], "minItems": 2}, "prefixItems.1"),
        (members({"a": never, "b": never, "c": never}, ["b"]), "properties.b"),
        ({"$defs": {"n": members({"n": {"$ref": "#/$defs/n"}}, ["n"])}, "$ref": "#/$defs/n"}, "$defs.n.properties.n"),
        (members({"a": members({"b": never}, ["b"])}, ["a"]), "properties.a.properties.b"),
        (members({"a": {"enum": []}}, ["a"]), "properties.a"),
        (members({"a": {"anyOf": [never, never]}}, ["a"]), "properties.a"),
    ]
    with build.serve(tiny_models.writer(build.folder() / "model", {1: "{"}), "--threads", "1") as server:
        results = []
        for schema, path in cases:
            reply = server.post("/v1/completions", {"prompt": [32], "max_tokens": 20, "structured_outputs": {"json": schema}})
            results.append((path, None if reply.status == 400 and path in reply.text else reply.error()))
    return counted(results)


@row(SECTION, "`json_object` with a schema; `format`, `regex`, `ebnf` at top level")
def dropped(build):
    schema = members({"ok": {"type": "boolean"}}, ["ok"], additionalProperties=False)
    user = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 60}
    with build.serve(tiny_models.writer(build.folder() / "model", {1: '{"x":1}'}), "--threads", "1") as server:
        def fault(more, path="/v1/chat/completions", is_right=lambda text: json.loads(text).keys() == {"ok"}):
            reply = server.post(path, user | more)
            if reply.status == 400:
                return None
            content = reply.json["choices"][0]["message"]["content"] if reply.status == 200 else reply.error()
            try:
                return None if is_right(content) else f"dropped: {short(content, 40)}"
            except ValueError:
                return f"dropped: {short(content, 40)}"

        return counted([
            ("json_object with schema", fault({"response_format": {"type": "json_object", "schema": schema}})),
            ("json_object with json_schema", fault({"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": schema}}})),
            ("format", fault({"format": schema})),
            ("regex", fault({"regex": "ab"}, is_right=lambda text: text == "ab")),
            ("ebnf", fault({"ebnf": 'root ::= "ab"'}, is_right=lambda text: text == "ab")),
            ("json_schema at top level", fault({"json_schema": schema})),
            ("grammar at top level", fault({"grammar": 'start: "ab"'}, is_right=lambda text: text == "ab")),
            ("guided_json", fault({"guided_json": schema})),
            ("response_format regex", fault({"response_format": {"type": "regex", "pattern": "ab"}}, is_right=lambda text: text == "ab")),
        ])
