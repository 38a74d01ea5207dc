"""Conversations through chat templates of real models: a running server must render what `transformers` renders.

    hearth serve --model MODEL_DIR --trust-request-chat-template --port 8000 &
    HEARTH_URL=http://127.0.0.1:8000 python check_templates.py MODEL_DIR FOLDER_OF_TEMPLATES

Templates expect different forms of a conversation (arguments of tool calls as objects or as text, `content` of a message with nothing
but calls as none or as an empty text, or any `content` as a list of parts or as a text, `system` or `developer`, one system message at
the beginning, the user and the assistant in turn), and requests have one. So what the server renders must be what
`transformers` renders of one of the forms; where `transformers` renders none, anything goes. Templates that ignore tools are not
compared with tools: the server describes these in its own words.
"""

import copy
import functools
import itertools
import json
import os
import pathlib
import sys
import urllib.error
import urllib.request

import transformers

URL = os.environ["HEARTH_URL"]
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {os.environ.get('HEARTH_KEY', 'none')}"}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, **arguments):
    return {"id": f"{name}1234"[:9], "type": "function", "function": {"name": name, "arguments": arguments}}


def call_of(arguments):
    """A call with arguments that are no object."""
    return call("weather") | {"function": {"name": "weather", "arguments": arguments}}


def result(name, content):
    return message("tool", content, tool_call_id=f"{name}1234"[:9], name=name)


ASKED = message("user", "Weather in Köln & \"Bonn\"?\n")
NESTED = {"x": 1.5, "none": None, "yes": True, "list": [1, "a"]}
PROPERTIES = {
    "city": {"type": "string", "description": "A city <b>"},
    "days": {"type": "integer", "minimum": 1, "default": 3},
    "unit": {"type": "string", "enum": ["C", "F"]},
    "place": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"About the {name}", "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}}
    for name, properties in [("weather", PROPERTIES), ("time", {})]
]
# Each has messages, whether there are tools, and the template's variables.
CONVERSATIONS = {
    "one message": ([message("user", "It's 5 > 3, é 漢 ☀")], False, {}),
    "a system message": ([message("system", "Be brief."), ASKED], False, {}),
    "text parts": ([message("user", [{"type": "text", "text": text} for text in ("Weather", "in Köln", "& Bonn?")])], False, {}),
    "turns": ([message("system", "Be brief."), ASKED, message("assistant", "Rain.\n"), message("user", "  And now?")], False, {}),
    "developer": ([message("developer", "Be brief."), ASKED], False, {}),
    "reasoning": ([ASKED, message("assistant", "Rain.", reasoning_content="I look."), message("user", "Sure?")], False, {}),
    "reasoning in the text": ([ASKED, message("assistant", "<think>\nI look.\n</think>\n\nRain."), message("user", "Sure?")], False, {}),
    "no thinking": ([ASKED], False, {"enable_thinking": False}),
    "tools": ([message("system", "Be brief."), ASKED], True, {}),
    "tools, no system message": ([ASKED], True, {}),
    "a call": ([ASKED, message("assistant", None, tool_calls=[call("weather", city="Köln", more=NESTED)])], True, {}),
    "a result": ([ASKED, message("assistant", None, tool_calls=[call("weather", city="Köln")]), result("weather", '{"sky": "☁"}')], True, {}),
    "a text and a call": ([ASKED, message("assistant", "I look.", tool_calls=[call("time")]), result("time", "12:00"), message("assistant", "12."), message("user", "Thanks")], True, {}),
    "cut arguments": ([ASKED, message("assistant", None, tool_calls=[call_of('{"city": "Kö')]), result("weather", "?"), message("user", "And now?")], True, {}),
    "empty arguments": ([ASKED, message("assistant", None, tool_calls=[call_of("")]), result("weather", "?"), message("user", "And now?")], True, {}),
    "two system messages": ([message("system", "Be brief."), message("system", "Be kind."), ASKED], False, {}),
    "a later system message": ([ASKED, message("assistant", "Rain."), message("system", "Be kind."), message("user", "Sure?")], False, {}),
    "two messages of the user": ([message("system", "Be brief."), ASKED, message("user", "And now?")], False, {}),
    "the assistant first": ([message("assistant", "Hello!"), ASKED], False, {}),
    "two calls": ([ASKED, message("assistant", "", tool_calls=[call("weather", city="Bonn"), call("time")]), result("weather", "rain"), result("time", "12:00")], True, {}),
}


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)


def as_sent(messages):
    """Arguments of calls are text, as in OpenAI's API."""
    return with_arguments(messages, lambda given: given if isinstance(given, str) else text_of(given))


def text_of(arguments):
    return arguments if isinstance(arguments, str) and arguments else json.dumps(arguments or {}, ensure_ascii=False)


def object_of(arguments):
    return (arguments or {}) if isinstance(arguments, dict) or not arguments else {"arguments": arguments}


def with_arguments(messages, form):
    changed = copy.deepcopy(messages)
    for made in itertools.chain.from_iterable(each.get("tool_calls", []) for each in changed):
        made["function"]["arguments"] = form(made["function"]["arguments"])
    return changed


def joined(first, second):
    texts = [as_texts(each["content"]) or "" for each in (first, second)]
    return first | {**second, **first, "content": "\n\n".join(filter(None, texts))}


def groups(messages):
    """The conversation as it is, and with one more change each for templates that reject the order of its messages."""
    yield messages
    system = [each for each in messages if each["role"] in ("system", "developer")]
    others = [each for each in messages if each["role"] not in ("system", "developer")]
    messages = ([functools.reduce(joined, system)] if system else []) + others
    yield messages
    merged = []
    for each in messages:
        if merged and merged[-1]["role"] == each["role"] in ("user", "assistant") and not merged[-1].get("tool_calls"):
            merged[-1] = joined(merged[-1], each)
        else:
            merged.append(each)
    yield merged
    first = next((at for at, each in enumerate(merged) if each["role"] != "system"), 0)
    if merged[first]["role"] == "assistant":
        merged = merged[:first] + [message("user", "")] + merged[first:]
    yield merged
    if merged[0]["role"] == "system" and len(merged) > 1:
        yield [joined(merged[0], merged[1]) | {"role": "user"}, *merged[2:]]


def as_texts(content):
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def as_parts(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def forms(messages):
    contents = [lambda content: content, as_texts, as_parts]
    arguments = [lambda given: given or {}, text_of, object_of]
    given = [with_arguments(group, form) for group in groups(messages) for form in arguments]
    for form, shape, content, role in itertools.product(given, contents, [None, ""], ["developer", "system"]):
        form = copy.deepcopy(form)
        for each in form:
            if each["role"] != "tool":
                each["content"] = shape(each["content"])
            if each.get("tool_calls") and not each["content"]:
                each["content"] = content
            if each["role"] == "developer":
                each["role"] = role
        yield form


def rendered(tokenizer, template, messages, tools, variables):
    """What `transformers` makes of the forms that the template accepts."""
    texts = []
    for form in forms(messages):
        try:
            texts.append(tokenizer.apply_chat_template(form, chat_template=template, tokenize=False, add_generation_prompt=True, tools=tools, **variables))
        except Exception:
            pass  # Whatever a template raises, it does not accept this form.
    return texts


def check(tokenizer, template, messages, tools, variables):
    """What is wrong, or None; and whether it was compared."""
    allowed = rendered(tokenizer, template, messages, tools, variables)
    if not allowed or (tools and allowed[0] in rendered(tokenizer, template, messages, None, variables)):
        return None, False
    body = {"messages": as_sent(messages), "chat_template": template, "chat_template_kwargs": variables, "add_special_tokens": False}
    answer = post("/tokenize", body | ({"tools": tools} if tools else {}))
    if "tokens" not in answer:
        return f"refused: {answer['error']['message']}", True
    text = post("/detokenize", {"tokens": answer["tokens"]})["prompt"]
    if text in allowed:
        return None, True
    same = len(os.path.commonprefix([text, allowed[0]]))
    return f"{text[max(same - 40, 0):same + 60]!r} instead of {allowed[0][max(same - 40, 0):same + 60]!r}", True


def main():
    model, folder = map(pathlib.Path, sys.argv[1:])
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    n_compared, faults = 0, []
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for name, (messages, has_tools, variables) in CONVERSATIONS.items():
            fault, is_compared = check(tokenizer, template, messages, TOOLS if has_tools else None, variables)
            n_compared += is_compared
            if fault:
                faults.append(f"{path.name}, {name}: {fault}")
    print("\n".join(faults))
    assert n_compared > 0, f"no template in {folder}"
    print(f"{n_compared} conversations are rendered as by transformers, {len(faults)} are not")
    sys.exit(len(faults) > 0)


main()
