"""Renders chats with transformers and writes golden.json, which model/tests/chat.rs compares with.

    python make_golden.py SMOLLM2_DIR

The templates in templates/ are written for this test, in the style of the model families that they name.
"""

import json
import sys
from pathlib import Path

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent

PLAIN = [{"role": "user", "content": "  What is 2+2?\n"}]
DIALOGUE = [
    {"role": "user", "content": "Hi there, you"},
    {"role": "assistant", "content": " <think>\nhm\n</think>\n\nHello! \n"},
    {"role": "user", "content": "Grüße, 你好 🙂 & <b>'\"</b>"},
]
SYSTEM = [{"role": "system", "content": "Be brief."}, *DIALOGUE]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather at a place; \"quoted\", <tagged> & 'ticked', ünïcode",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer", "default": 1, "maximum": 1e16}},
                "required": ["place"],
                "additionalProperties": False,
                "empty": {},
                "none": [],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
TOOL_CALL = [
    {"role": "user", "content": "Weather in Ulm?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"place": "Ulm", "days": 2, "x": 0.25, "b": True, "n": None}}}
        ],
    },
    {"role": "tool", "content": "{\"temp\": 21.5}"},
    {"role": "tool", "content": "second"},
]
VALUES = {
    "text": "é\u2028\x7f\x01\t\"\\/",
    "number": 1e-7,
    "big": 123456789012345678,
    "float": 2.50,
    "nested": {"b": [1, [], {}], "a": None},
    "flag": False,
    "emoji": "🙂",
    "zeta": 1e22,
}

CASES = [
    (template, case, messages, tools, kwargs)
    for template in ["headers", "chatml_tools", "turns", "instructions"]
    for case, messages, tools, kwargs in [
        ("plain", PLAIN, None, {}),
        ("dialogue", DIALOGUE, None, {}),
        ("system", SYSTEM, None, {}),
        ("tools", PLAIN, TOOLS, {}),
        ("tool call", TOOL_CALL, TOOLS, {}),
        ("kwargs", DIALOGUE, None, {"enable_thinking": False, "date_string": "1 Jan 2026"}),
        ("wrong order", [DIALOGUE[1], DIALOGUE[0]], None, {}),
    ]
] + [("python", "dialogue", DIALOGUE, None, {"values": VALUES})]


def render(template, messages, tools, kwargs, add_generation_prompt):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **special,
            **kwargs,
        )
        return {"text": rendered[0]}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}


def golden_cases():
    for template, case, messages, tools, kwargs in CASES:
        source = (HERE / "templates" / f"{template}.jinja").read_text()
        for add_generation_prompt in [False, True]:
            yield {
                "template": template,
                "case": case,
                "messages": messages,
                "tools": tools,
                "kwargs": kwargs,
                "add_generation_prompt": add_generation_prompt,
                **render(source, messages, tools, kwargs, add_generation_prompt),
            }


def golden_smollm2(model_dir):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    for messages in [PLAIN, DIALOGUE, SYSTEM]:
        for add_generation_prompt in [False, True]:
            arguments = dict(add_generation_prompt=add_generation_prompt)
            yield {
                "messages": messages,
                **arguments,
                "text": tokenizer.apply_chat_template(messages, tokenize=False, **arguments),
                "ids": list(tokenizer.apply_chat_template(messages, **arguments)["input_ids"]),
            }


golden = {
    "transformers": transformers.__version__,
    "jinja2": jinja2.__version__,
    "smollm2": list(golden_smollm2(sys.argv[1])),
    "cases": list(golden_cases()),
}
(HERE / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
print(f"{len(golden['cases'])} cases, {len(golden['smollm2'])} of SmolLM2")
