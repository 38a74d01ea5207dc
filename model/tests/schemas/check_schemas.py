#!/usr/bin/env python3
"""Compares Hearth's grammars of JSON Schemas with the library `jsonschema`, on generated schemas and texts.

    cargo build --release -p hearth-model --example constrained_texts
    python check_schemas.py ../../../target/release/examples/constrained_texts --schemas 3000 --seed 1

For each schema that Hearth takes: random texts under its grammar come to an end (but for a few that are still long after
600 bytes) and are valid; a valid text with its members in the order of the schema is admitted; an invalid one is not.
A schema that is refused is counted with the reason. `--sample FILE` writes cases for `model/tests/schemas.rs` instead.

With `--hearth BINARY`, servers also answer under the schemas, of models that write chosen texts (`scripted_answers.py`).
"""

import argparse
import collections
import functools
import json
import random
import re
import subprocess
import sys

from jsonschema import Draft202012Validator

import scripted_answers

CHARACTERS = ['"', "\\", "\n", "\t", "\x01", "\x7f", "/", "a", "b", "c", "x", "A", "Z", "0", "5", "9", " ", "-", "_", "{", "}",
              "[", "]", ",", ":", "é", "ü", "日", "😀", "\u2028", "<", "*", "|"]
# Patterns, with texts that match them.
PATTERNS = {
    '^[^"]{3}$': ["abc", "é\\\n"], r'^[^\\/:*?"<>|]+$': ["a b", "é"], '^[^,"]*$': ["\\"], r"^\d{2,4}$": ["123"],
    r"^\w+$": ["a_b"], r"\w": [" a"], r"^\S+$": ['"\\'], "^a|b$": ["ax", "xb"], "^(a|b)*c?$": ["abac", ""], "ab": ['xab"'],
    "^$": [""], ".": ["x"], "^.$": ["é"], "^.{2}$": ['"\\'], r"^[^\\]$": ['"', "é"], "^[^a-z]{1,3}$": ["A\n"],
    '^[\\u0000-\\u001f"]+$': ['"\x01\n'], r"^\\$": ["\\"], '^"$': ['"'], r"^[\]\[]$": ["["], "^(?:^a|b$)$": ["a", "b"],
    r"^[\w.+-]+@[a-z]+\.[a-z]{2,3}$": ["a.b@cd.de"], r"\\": ["a\\"], '"': ['"'], "^[A-Z][a-z]*$": ["Ab"], r"^[^\s]*$": ["a"],
    r"^[^\d]{2}$": ["a-"], r"^\W$": ["-"], "^é+$": ["éé"], "[é-ü]": ["ü"], "^😀$": ["😀"], "^[^😀]{1,2}$": ["é"],
    "^(?=.*[0-9])(?=.*[a-z]).{2,6}$": ["a1", '1"b'], "^(?!a)[a-c]{2}$": ["ba"], "^[/]+$": ["//"], "^a{2,}b{0,1}$": ["aab"],
    "(^|,)a(,|$)": ["x,a", "a"], r"^\x41\u0042$": ["AB"], r"^[\n\r]$": ["\n"], r"^\{.*\}$": ["{}", '{"a"}'],
    r'^(foo|bar|"baz")$': ['"baz"'], "a+?": ["ba"], r"\bfoo\b": ["foo"], r"^[^\n]*$": ["a"], "(?i)^abc$": ["aBc"],
}
FORMATS = {
    "date": ["2024-02-29"], "time": ["12:00:00Z"], "date-time": ["2024-02-29T12:00:00Z"], "duration": ["P1Y"], "email": ["a@b.co"],
    "hostname": ["a.example"], "ipv4": ["1.2.3.4"], "ipv6": ["::1", "fe80::1:2", "::", "::ffff:1.2.3.4"], "regex": ["a"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "uri": ["https://example.com/a?b#c"], "uri-reference": ["/a/b"],
    "json-pointer": ["/a/~0b"], "password": ["a b"],
}
# Formats that `jsonschema` checks only with further libraries.
UNCHECKED = ["time", "date-time", "duration", "hostname", "uri", "uri-reference", "json-pointer"]
NAMES = ["a", "b", "c", "id", "x y", "é", 'q"', "b\\", "n\n", "type", "enum", "日"]
NAME_PATTERNS = ["^a", "^[ab]$", "b$", '^[^"]*$', "^é", "x", "^a$", r"^\w+$"]
DEFINITIONS = ["d", "x/y", "t~", "a b%"]


class Generator:
    """Random schemas, and values that follow them more or less."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, choices):
        return self.random.choice(list(choices))

    def count(self, least, most):
        return self.random.randint(least, most)

    def text(self, most=4):
        return "".join(self.pick(CHARACTERS) for _ in range(self.count(0, most)))

    def value(self, depth=0):
        kind = self.count(0, 7 if depth < 2 else 4)
        if kind < 2:
            return self.pick([None, True, False])
        if kind == 2:
            return self.pick([0, 1, -1, 2, 3, 5, 7, 10, 100, -5, 12, 2**53, 10**12])
        if kind == 3:
            return self.pick([0.5, -0.25, 1.5, 2.75, 0.1, 3.14, 100.125])
        if kind == 4:
            return self.text()
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.count(0, 3))]
        return {self.pick(NAMES): self.value(depth + 1) for _ in range(self.count(0, 3))}

    def some(self, schema, keyword, value, probability=0.3):
        if self.chance(probability):
            schema[keyword] = value()

    def root(self):
        schema = self.schema(0)
        if isinstance(schema, dict) and '"$ref"' in json.dumps(schema):
            schema = {**schema, "$defs": {name: self.schema(2) for name in DEFINITIONS}}
        return schema

    def schema(self, depth):
        kinds = [self.any, self.numbers, self.strings, self.strings, self.constants, self.types]
        if depth < 3:
            kinds += [self.arrays, self.arrays, self.objects, self.objects, self.objects, self.combined, self.beside,
                      self.conditional, self.reference]
        return self.pick(kinds)(depth)

    def any(self, _):
        return self.pick([{}, True, {"type": "null"}, {"type": "boolean"}])

    def numbers(self, _):
        schema = {"type": self.pick(["integer", "number"])}
        self.some(schema, "minimum", lambda: self.pick([-5, 0, 1, 0.5, -0.25, 10]))
        self.some(schema, "maximum", lambda: self.pick([10, 100, 7.5, 20]))
        self.some(schema, "exclusiveMinimum", lambda: self.pick([-1, 0, 2]), 0.15)
        self.some(schema, "exclusiveMaximum", lambda: self.pick([50, 9]), 0.15)
        self.some(schema, "multipleOf", lambda: self.pick([2, 5, 3, 0.5, 0.25]), 0.15)
        return schema

    def strings(self, _):
        schema = {"type": "string"}
        self.some(schema, "minLength", lambda: self.count(0, 4))
        self.some(schema, "maxLength", lambda: self.count(2, 8))
        self.some(schema, "pattern", lambda: self.pick(PATTERNS), 0.5)
        self.some(schema, "format", lambda: self.pick(FORMATS), 0.15)
        return schema

    def constants(self, _):
        if self.chance(0.5):
            return {"const": self.value(1)}
        return {"enum": [self.value(1) for _ in range(self.count(1, 5))]}

    def types(self, _):
        schema = {"type": self.random.sample(["null", "boolean", "integer", "string"], self.count(1, 3))}
        self.some(schema, "maxLength", lambda: 3)
        return schema

    def arrays(self, depth):
        schema = {"type": "array"}
        inner = lambda: self.schema(depth + 1)  # noqa: E731
        self.some(schema, "prefixItems", lambda: [inner() for _ in range(self.count(1, 3))], 0.2)
        self.some(schema, "items", inner, 0.8)
        self.some(schema, "minItems", lambda: self.count(0, 2))
        self.some(schema, "maxItems", lambda: self.count(1, 4), 0.5)
        self.some(schema, "uniqueItems", lambda: True, 0.15)
        if self.chance(0.15):
            schema["contains"] = inner()
            self.some(schema, "minContains", lambda: self.count(0, 2), 0.4)
            self.some(schema, "maxContains", lambda: self.count(1, 3), 0.4)
        self.some(schema, "unevaluatedItems", lambda: False, 0.05)
        return schema

    def objects(self, depth):
        schema = {"type": "object"}
        inner = lambda: self.schema(depth + 1)  # noqa: E731
        names = list(dict.fromkeys(self.pick(NAMES) for _ in range(self.count(0, 4))))
        self.some(schema, "properties", lambda: {name: inner() for name in names}, 0.9)
        required = [name for name in names if self.chance(0.5)] + ["zz"] * self.chance(0.1)
        self.some(schema, "required", lambda: required, 0.6)
        self.some(schema, "additionalProperties", lambda: self.pick([False, False, True, inner()]), 0.8)
        self.some(schema, "patternProperties", lambda: {self.pick(NAME_PATTERNS): inner() for _ in range(self.count(1, 2))}, 0.2)
        self.some(schema, "minProperties", lambda: self.count(0, 2), 0.15)
        self.some(schema, "maxProperties", lambda: self.count(1, 3), 0.15)
        names_schemas = [{"pattern": "^[a-z]+$"}, {"enum": ["a", "b", 'q"']}, {"maxLength": 2}, {"type": "string"}]
        self.some(schema, "propertyNames", lambda: self.pick(names_schemas), 0.12)
        self.some(schema, "dependentRequired", lambda: {"a": ["b"]}, 0.08)
        needs_b = {"properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": True}
        self.some(schema, "dependentSchemas", lambda: {"a": needs_b}, 0.05)
        self.some(schema, "unevaluatedProperties", lambda: self.pick([False, inner()]), 0.05)
        return schema

    def combined(self, depth):
        keyword = self.pick(["anyOf", "anyOf", "oneOf", "allOf"])
        return {keyword: [self.schema(depth + 1) for _ in range(self.count(1, 3))]}

    def beside(self, depth):
        schema = self.schema(depth + 1)
        schema = schema if isinstance(schema, dict) else {}
        if self.chance(0.5):
            return {**schema, "not": self.schema(depth + 2)}
        return {**schema, self.pick(["anyOf", "allOf", "oneOf"]): [self.schema(depth + 1) for _ in range(2)]}

    def conditional(self, depth):
        schema = {"if": self.schema(depth + 1), "then": self.schema(depth + 1)}
        self.some(schema, "else", lambda: self.schema(depth + 1), 0.5)
        return schema

    def reference(self, _):
        name = self.pick(DEFINITIONS).replace("~", "~0").replace("/", "~1").replace("%", "%25")
        return {"$ref": "#/$defs/" + name.replace(" ", self.pick(["%20", " "]))}

    def value_of(self, schema, root, depth=0):
        if depth > 8 or not isinstance(schema, dict):
            return self.value(2)
        inner = lambda schema: self.value_of(schema, root, depth + 1)  # noqa: E731
        if "$ref" in schema:
            name = schema["$ref"][8:].replace("%20", " ").replace("%25", "%").replace("~1", "/").replace("~0", "~")
            return inner(root.get("$defs", {}).get(name, {}))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.pick(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and self.chance(0.9):
                return inner(self.pick(schema[keyword]))
        if "allOf" in schema and "type" not in schema:
            return inner(self.pick(schema["allOf"]))
        if "if" in schema and "type" not in schema:
            return inner(schema[self.pick(keyword for keyword in ("if", "then", "else") if keyword in schema)])
        kind = schema.get("type")
        kind = self.pick(kind) if isinstance(kind, list) else kind
        if kind == "boolean":
            return self.chance(0.5)
        if kind in ("integer", "number"):
            number = self.count(-10, 60) * schema.get("multipleOf", 1 if kind == "integer" else self.pick([1, 0.5, 0.25]))
            return int(number) if number == int(number) else number
        if kind == "string":
            return self.string_of(schema)
        if kind == "array":
            return self.array_of(schema, inner)
        if kind == "object":
            return self.object_of(schema, inner)
        return None if kind == "null" else self.value(1)

    def string_of(self, schema):
        if schema.get("format") in FORMATS:
            return self.pick(FORMATS[schema["format"]])
        if schema.get("pattern") in PATTERNS and self.chance(0.7):
            return self.pick(PATTERNS[schema["pattern"]])
        least = schema.get("minLength", 0)
        return "".join(self.pick(CHARACTERS) for _ in range(self.count(least, max(least, schema.get("maxLength", 5)) + 1)))

    def array_of(self, schema, inner):
        first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        n = self.count(least, max(least, schema.get("maxItems", 3)) + self.chance(0.1))
        items = [inner(first[index] if index < len(first) else schema.get("items", {})) for index in range(n)]
        if items and "contains" in schema and self.chance(0.8):
            items[self.random.randrange(len(items))] = inner(schema["contains"])
        return items

    def object_of(self, schema, inner):
        properties, required, members = schema.get("properties", {}), schema.get("required", []), {}
        others = schema.get("additionalProperties")
        others = others if isinstance(others, dict) else next(iter(schema.get("patternProperties", {}).values()), {})
        for name, member in properties.items():
            if name in required or self.chance(0.6):
                members[name] = inner(member)
        for name in required:
            if name not in members:
                members[name] = inner(others)
        name = self.pick([self.pick(NAMES), "ab", "zb", self.text(3)])
        if self.chance(0.4) and name not in properties:
            members.setdefault(name, inner(others))
        return members


def closes_objects(schema):
    """Whether an object has no members but those it lists, as Hearth understands it and `jsonschema` does not."""
    if isinstance(schema, list):
        return any(map(closes_objects, schema))
    if not isinstance(schema, dict):
        return False
    return "properties" in schema and "additionalProperties" not in schema or any(map(closes_objects, schema.values()))


def may_be_rejected(schema, text):
    """Whether Hearth may reject a text that `jsonschema` admits, as the guide says."""
    source = json.dumps(schema, ensure_ascii=False)
    # A format has an end here, and nothing is surely not of a format.
    is_negated = '"format"' in source and any(keyword in source for keyword in ('"not"', '"if"', '"oneOf"'))
    has_formats = is_negated or any(f'"format": "{name}"' in source for name in UNCHECKED)
    # `\w`, `\W`, `\s`, `.` and `$` mean less here than in Python.
    is_dialect = re.search(r"\\\\[wWsSdD]|\$\"|\.", source) and (not text.isascii() or "\\u" in text or "\\n" in text)
    return closes_objects(schema) or has_formats or bool(is_dialect)


def cases(seed, n_schemas):
    generator = Generator(seed)
    while n_schemas > 0:
        schema = generator.root()
        try:
            Draft202012Validator.check_schema(schema)
        except Exception:  # noqa: BLE001
            continue
        n_schemas -= 1
        values = [generator.value_of(schema, schema) for _ in range(8)]
        texts = [json.dumps(value, separators=(",", ":"), ensure_ascii=generator.chance(0.5)) for value in values]
        yield schema, list(dict.fromkeys(texts))


def judged(validator, value):
    """Whether the value is valid; `None` for a pattern that Python does not have, or a reference without end."""
    try:
        return validator.is_valid(value)
    except Exception:  # noqa: BLE001
        return None


def answers(driver, all_cases, seed):
    lines = [json.dumps({"schema": schema, "texts": texts, "walks": 6, "seed": seed + index}) for index, (schema, texts) in enumerate(all_cases)]
    result = subprocess.run([driver], input="\n".join(lines).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return [json.loads(line) for line in result.stdout.decode().split("\n") if line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample")
    parser.add_argument("--hearth", metavar="BINARY")
    arguments = parser.parse_args()
    all_cases = list(cases(arguments.seed, arguments.schemas))
    counts, reasons, faults, sample = collections.Counter(), collections.Counter(), [], []
    results = answers(arguments.driver, all_cases, arguments.seed)
    assert len(results) == len(all_cases), "the driver ended early"
    scripts = []
    for (schema, texts), result in zip(all_cases, results):
        is_valid = functools.partial(judged, Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER))
        counts["schemas"] += 1
        fault = lambda kind, text: faults.append(f"{kind}: {text}\n    under {json.dumps(schema, ensure_ascii=False)}")  # noqa: E731
        if "refused" in result:
            counts["refused"] += 1
            reasons[re.sub(r"[0-9]+|`[^`]*`", "..", result["refused"].split("\n")[0])] += 1
            sample.append({"schema": schema, "refused": result["at"]})
            if result["refused"].startswith("allows no value"):
                for text in texts:
                    if is_valid(json.loads(text)) and not may_be_rejected(schema, text):
                        fault("refused as empty", text)
            continue
        for walk in result["walks"]:
            counts["random texts"] += 1
            if "error" in walk:
                fault("no end", walk["error"])
            elif walk["text"] is not None:
                counts["random texts that ended"] += 1
                if is_valid(json.loads(walk["text"])) is False:
                    fault("written", walk["text"])
        for text, admitted in zip(texts, result["admitted"]):
            valid = is_valid(json.loads(text))
            counts["texts"] += 1
            counts["valid texts"] += valid is True
            if valid and admitted is not True and not may_be_rejected(schema, text):
                fault(f"rejected at {admitted}", text)
            if valid is False and admitted is True:
                fault("admitted", text)
        if arguments.hearth and is_valid(None) is not None:
            written = [text for text in texts if is_valid(json.loads(text)) and not may_be_rejected(schema, text)]
            scripts += scripted_answers.scripts_of(schema, texts, written, is_valid, random.Random(counts["schemas"]))
        admitted = [text for text, admitted in zip(texts, result["admitted"]) if admitted is True]
        rejected = [text for text, admitted in zip(texts, result["admitted"]) if admitted is not True]
        sample.append({"schema": schema, "admitted": admitted, "rejected": rejected})
    if scripts:
        scripted_answers.run(arguments.hearth, scripts, counts, faults)
    if arguments.sample and not faults:
        with open(arguments.sample, "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in sample) + "\n]\n")
    print("\n".join(faults))
    print(dict(counts))
    for reason, n in reasons.most_common():
        print(f"refused {n} times: {reason}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
