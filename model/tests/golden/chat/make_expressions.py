"""Renders expressions.txt's templates with Jinja and writes expressions.json, which model/tests/chat.rs compares with.

    python make_expressions.py

Each line of expressions.txt is a template, in which `\\n` is a line break; empty lines and lines that begin with `##` are
left out. A line that has only expressions is split into a template for each. The environment is the one that transformers
gives chat templates, with VARIABLES. A result is the text, or null if the template fails.
"""

import json
import warnings
from pathlib import Path

import jinja2

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).parent
VARIABLES = {
    "text": "Hello, wörld! <b>It's</b>",
    "lines": "one\n  two\n\nthree\n",
    "spaced": " \t pad ded \n",
    "word": "straße",
    "empty": "",
    "digits": "42",
    "zero": 0,
    "seven": 7,
    "minus": -7,
    "half": 0.5,
    "big": 123456789012345678,
    "tiny": 1e-7,
    "huge": 1e22,
    "yes": True,
    "no": False,
    "nothing": None,
    "numbers": [3, 1, 2, 3],
    "words": ["b", "A", "c", "B"],
    "mixed": [1, "a", None, True, 2.5, [], {}],
    "nested": [[1, 2], [3, [4]]],
    "people": [
        {"name": "Eve", "age": 30, "city": {"name": "Ulm", "zip": "89073"}},
        {"name": "adam", "age": 7, "city": {"name": "Bonn", "zip": "53111"}},
        {"name": "Bob", "age": 30, "city": {"name": "ulm", "zip": "89073"}},
    ],
    "mapping": {"b": 1, "a": [1, 2], "C": {"x": None}, "items": "shadowed", "1": "one"},
    "tree": [{"v": 1, "sub": [{"v": 2, "sub": []}, {"v": 3, "sub": [{"v": 4, "sub": []}]}]}, {"v": 5, "sub": []}],
    "quotes": "it's \"q\" \\ \t \n é \u2028 \x7f \x01 🙂",
}


def result(source):
    try:
        return _compile_jinja_template(source).render(**VARIABLES)
    except Exception:  # whatever it raises, the template fails
        return None


def split(line):
    """The expressions of a line that has nothing else, each with the text behind it."""
    if any(start in line for start in ("{%", "{#", "\\n", "{{-", "-}}")):
        return [line]
    try:
        tokens = list(jinja2.Environment().lex(line))
    except jinja2.TemplateSyntaxError:
        return [line]
    parts = [""]
    for _, kind, text in tokens:
        if kind == "variable_begin" and parts[-1]:
            parts.append("")
        parts[-1] += text
    return [part.rstrip(" ") for part in parts]


def main():
    warnings.simplefilter("ignore")
    lines = (HERE / "expressions.txt").read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line and not line.startswith("##")]
    sources = [source.replace("\\n", "\n") for line in lines for source in split(line)]
    sources = list(dict.fromkeys(sources))
    cases = [[source, result(source)] for source in sources]
    assert not any(text and " at 0x" in text for _, text in cases), [case for case in cases if case[1] and " at 0x" in case[1]]
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    variables = json.dumps(VARIABLES, ensure_ascii=False)
    (HERE / "expressions.json").write_text(f'{{"variables": {variables},\n"cases": [\n{rows}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} templates, {sum(text is None for _, text in cases)} of which fail")


main()
