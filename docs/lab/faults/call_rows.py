"""Section 3, conversations: tool calls in chosen texts, earlier calls, and forms of requests."""

import json

import tiny_models
from builds import counted, row, short

SECTION = "3"
HERMES = "{# <tool_call> #}{% if tools %}{% endif %}"
USER = [{"role": "user", "content": "x"}]


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters} | more}


TOOLS = [tool("now", {"type": "object"}), tool("weather", {"type": "object"})]


def asked(build, text, body, template=HERMES + "x", n_prompt=1):
    """The answer of a model that writes `text`, or the error."""
    with build.serve(tiny_models.writer(build.folder() / "model", {n_prompt: text}, template), "--threads", "1") as server:
        return server.post("/v1/chat/completions", {"messages": USER, "temperature": 0, "max_tokens": len(text) + 250} | body)


def outcome(reply):
    """Content, thoughts, calls and how the answer ended."""
    if reply.status != 200:
        return reply.error()
    choice = reply.json["choices"][0]
    message = choice["message"]
    calls = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or []]
    return (message.get("content") or "", message.get("reasoning_content") or "", calls, choice["finish_reason"])


@row(SECTION, "a function without parameters")
def no_parameters(build):
    def fault(parameters):
        body = {"tools": [tool("now", parameters)] if parameters is not None else [{"type": "function", "function": {"name": "now"}}], "tool_choice": "required", "parallel_tool_calls": False}
        found = outcome(asked(build, '<tool_call>\n{"name": "now", "arguments": {"x": 1}}\n</tool_call>', body))
        return None if found[2:3] == ([("now", "{}")],) else short(found, 80)

    return counted((json.dumps(parameters), fault(parameters)) for parameters in [{"type": "object", "properties": {}}, {"type": "object"}, {}, None])


@row(SECTION, "keywords that cannot be held in tools")
def lenient(build):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}, "required": ["a"]}
    taken = asked(build, "<tool_call>", {"tools": [tool("f", schema)], "tool_choice": "required"})
    strict = asked(build, "hello", {"tools": [tool("f", schema, strict=True)], "tool_choice": "required"})
    text = f"`uniqueItems` in a required call: {taken.status}; in a strict one: {strict.error() if strict.status == 400 else 'taken'}"
    return taken.status == 200 and strict.status == 400 and "uniqueItems" in strict.text, text


# How templates write the arguments of an earlier call.
WRITTEN = {
    "tojson": "{{ f.arguments | tojson }}",
    "a string": "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}",
    "+": "{{ 'a ' + f.arguments }}",
    "| items": "{% for name, value in f.arguments | items %}{{ name }}:{{ value }} {% endfor %}",
    "items()": "{% for name, value in f.arguments.items() %}{{ name }}:{{ value }} {% endfor %}",
    "dictsort": "{% for name, value in f.arguments | dictsort %}{{ name }}:{{ value }} {% endfor %}",
    "is not mapping": "{% if f.arguments is not mapping %}{{ raise_exception('mapping') }}{% endif %}{{ f.arguments | tojson }}",
}


@row(SECTION, "earlier calls with empty, missing or cut arguments")
def earlier(build):
    results = []
    for label, written in WRITTEN.items():
        template = "{% for m in messages %}{% for call in m.tool_calls or [] %}{% set f = call.function or call %}" + written + "{% endfor %}{% endfor %}x"
        with build.serve(tiny_models.writer(build.folder() / "model", {1: "ok"}, template), "--threads", "1") as server:
            for arguments in ["", None, "missing", " ", "null", '{"a": 1', "[1]", "1", "a b"]:
                function = {"name": "now"} | ({} if arguments == "missing" else {"arguments": arguments})
                calls = [{"id": f"call_{n}", "type": "function", "function": each} for n, each in enumerate([function, {"name": "weather", "arguments": '{"b": 1}'}])]
                replies = [{"role": "tool", "tool_call_id": call["id"], "content": "noon"} for call in calls]
                messages = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}, *replies]
                reply = server.post("/tokenize", {"messages": messages})
                results.append((f"{label} of {arguments!r}", None if reply.status == 200 else reply.error()))
    return counted(results)


@row(SECTION, "calls without arguments under `auto`")
def without_arguments(build):
    forms = [
        (HERMES, '<tool_call>\n{"name": "now"}\n</tool_call>'), ("{# [TOOL_CALLS] #}", '[TOOL_CALLS][{"name": "now", "arguments": null}]'),
        ("{# [TOOL_CALLS] [ARGS] #}", "[TOOL_CALLS]now[ARGS]"), ("{# <|python_tag|> #}", '{"name": "now"}'),
        ("{# <|python_tag|> #}", '<|python_tag|>{"name": "now", "parameters": null}'), ("{# <|tool_call|> #}", '<|tool_call|>[{"name": "now", "arguments": ""}]'),
    ]
    results = []
    for sign, call in forms:
        found = outcome(asked(build, call, {"tools": TOOLS}, sign + "{% if tools %}{% endif %}x"))
        results.append((call, None if found[2:] == ([("now", "{}")], "tool_calls") else short(found, 80)))
    return counted(results)


@row(SECTION, "calls in an open thought stay text; text around a call keeps its spaces")
def thoughts(build):
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    results = []
    for opening in ["<think>", "[THINK]"]:
        found = outcome(asked(build, f"{opening}\n{call}", {"tools": TOOLS}))
        results.append((f"{opening} in the answer", None if found[2:3] == ([],) and call in found[0] + found[1] else short(found, 80)))
        prompt = HERMES + f"x{opening}"
        found = outcome(asked(build, f"\n{call}", {"tools": TOOLS}, prompt, 1 + len(opening)))
        results.append((f"{opening} in the prompt", None if found[2:3] == ([],) and call in found[0] + found[1] else short(found, 80)))
    found = outcome(asked(build, f"Before. {call} After.", {"tools": TOOLS}))
    results.append(("text around", None if found[0] in ["Before.  After.", "Before. After."] and len(found[2]) == 1 else short(found, 80)))
    return counted(results)


@row(SECTION, "`continue_final_message` keeps a closed thought")
def continued(build):
    # The template drops thoughts of earlier answers, as Qwen 3's does.
    template = "{% for m in messages %}{% if m.role == 'assistant' %}{{ (m.content or '').split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}|{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    results = []
    with build.serve(tiny_models.writer(build.folder() / "model", {1: "ok"}, template), "--threads", "1") as server:
        for text in ["<think>why</think>So", "So", "<think>why</think>", "<think>why"]:
            messages = [*USER, {"role": "assistant", "content": text}]
            reply = server.post("/tokenize", {"messages": messages, "continue_final_message": True, "add_generation_prompt": False})
            rendered = bytes(token for token in reply.json["tokens"] if token < 256).decode() if reply.status == 200 else reply.error()
            results.append((text, None if rendered.endswith(text) else rendered))
    return counted(results)


@row(SECTION, "forms of requests that peers take")
def forms(build):
    strict = "{% if messages[1:] | selectattr('role', 'equalto', 'system') | list %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}x"
    refusal = [*USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "user", "content": "b"}]
    two = [{"role": "system", "content": "a"}, *USER, {"role": "system", "content": "b"}, *USER]
    bodies = {
        "the part `refusal`": {"messages": refusal}, "`tools: []` with `auto`": {"tools": [], "tool_choice": "auto"}, "`max_tokens: -1`": {"max_tokens": -1},
        "`model: \"\"`": {"model": ""}, "a second `system` message": {"messages": two}, "`refusal` as a member": {"messages": [*USER, {"role": "assistant", "content": None, "refusal": "No."}, *USER]},
        "`tools: null`": {"tools": None, "tool_choice": "none"}, "`stop: null`": {"stop": None}, "`content: []`": {"messages": [{"role": "user", "content": []}]},
        "`developer` after a turn": {"messages": [*USER, {"role": "developer", "content": "b"}, *USER]}, "`max_completion_tokens: -1`": {"max_completion_tokens": -1},
    }
    with build.serve(tiny_models.writer(build.folder() / "model", {1: "ok"}, strict), "--threads", "1") as server:
        replies = {name: server.post("/v1/chat/completions", {"messages": USER, "temperature": 0} | body) for name, body in bodies.items()}
    return counted((name, None if reply.status == 200 else reply.error()) for name, reply in replies.items())
