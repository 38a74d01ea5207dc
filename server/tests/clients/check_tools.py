"""Structured output and tool calls with the `openai` package, unmodified, against a running server.

    pip install -r requirements.txt
    hearth serve --model <a model with a chat template> --port 8000 &
    HEARTH_URL=http://127.0.0.1:8000 python check_tools.py
"""

import json
import os
import re
from typing import Literal

import jsonschema
import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field

URL = os.environ["HEARTH_URL"]
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEARTH_KEY", "none"), max_retries=0)
MODEL = CLIENT.models.list().data[0].id
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
SEEDS = int(os.environ.get("SEEDS", "6"))


class Place(BaseModel):
    city: str = Field(max_length=20)
    country: Literal["FR", "DE", "日本"]


class Report(BaseModel):
    place: Place
    degrees: list[int] = Field(max_length=3)
    sky: Literal["clear", "cloudy"] | None
    wind: float = Field(ge=0, le=40)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
REPORT = openai.pydantic_function_tool(Report, name="report")
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, REPORT)}


def check_calls(message):
    for call in message.tool_calls or []:
        assert call.type == "function" and call.id
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])


def forced_calls():
    create = CLIENT.chat.completions.with_raw_response.create
    named = {"type": "function", "function": {"name": "report"}}
    n_calls = 0
    for seed in range(SEEDS):
        choice = "required" if seed % 2 else named
        body = dict(model=MODEL, messages=MESSAGES, tools=[WEATHER, REPORT], tool_choice=choice, seed=seed)
        body |= dict(temperature=1.5, max_tokens=200, parallel_tool_calls=seed % 4 == 1)
        raw = create(**body)
        whole = ChatCompletion.model_validate_json(raw.content, strict=True).choices[0]
        calls = whole.message.tool_calls or []
        if whole.finish_reason == "tool_calls":
            assert calls and whole.message.content is None
            check_calls(whole.message)
            n_calls += len(calls)
        else:
            assert whole.finish_reason == "length"
        chunks = list(CLIENT.chat.completions.create(**body, stream=True))
        for chunk in chunks:
            ChatCompletionChunk.model_validate_json(chunk.to_json(), strict=True)
        streamed = {}
        for delta in (call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []):
            if delta.index not in streamed:
                assert delta.id and delta.type == "function" and delta.function.name
                streamed[delta.index] = [delta.function.name, ""]
            streamed[delta.index][1] += delta.function.arguments
        assert list(streamed.values()) == [[call.function.name, call.function.arguments] for call in calls]
        assert chunks[-1].choices[0].finish_reason == whole.finish_reason
        # The package's own accumulator agrees.
        with CLIENT.chat.completions.stream(**body) as stream:
            done = [event.arguments for event in stream if event.type == "tool_calls.function.arguments.done"]
            snapshot = stream.current_completion_snapshot.choices[0]
        assert snapshot.finish_reason == whole.finish_reason
        if whole.finish_reason == "tool_calls":
            assert done == [call.function.arguments for call in calls]
    assert n_calls > SEEDS // 2, n_calls


def free_calls_and_results():
    """The model may call or not; what it called is told back to it."""
    for seed in range(SEEDS):
        answer = CLIENT.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=[WEATHER], seed=seed, max_tokens=60, temperature=0.7
        ).choices[0]
        assert answer.message.content or answer.message.tool_calls
        assert (answer.finish_reason == "tool_calls") <= bool(answer.message.tool_calls)
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = dict(model=MODEL, tools=[WEATHER], max_tokens=60, seed=1)
    call = CLIENT.chat.completions.create(messages=MESSAGES, tool_choice=named, **body).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "21 degrees"}
    told = CLIENT.chat.completions.create(messages=[*MESSAGES, call, result], tool_choice="none", **body)
    assert told.choices[0].message.content


def parsed_answers():
    n_parsed = 0
    for seed in range(SEEDS):
        body = dict(model=MODEL, messages=MESSAGES, seed=seed, temperature=1.5, max_tokens=200)
        try:
            parsed = CLIENT.chat.completions.parse(**body, response_format=Report).choices[0].message.parsed
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(parsed, Report)
        n_parsed += 1
        with CLIENT.chat.completions.stream(**body, response_format=Report) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == parsed
    assert n_parsed > SEEDS // 2, n_parsed
    called = CLIENT.chat.completions.parse(
        model=MODEL, messages=MESSAGES, tools=[REPORT], tool_choice="required", parallel_tool_calls=False, max_tokens=300,
        temperature=0,
    ).choices[0]
    if called.finish_reason == "tool_calls":
        assert isinstance(called.message.tool_calls[0].function.parsed_arguments, Report)


def forms():
    def text(**form):
        answer = CLIENT.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=80, seed=1, **form)
        return answer.choices[0].message.content, answer.choices[0].finish_reason

    # vLLM's own example: the stop string is part of the expression.
    extra = {"structured_outputs": {"regex": r"[a-z0-9.]{1,20}@\w{6,10}\.com\n"}}
    mail, reason = text(extra_body=extra, stop=["\n"])
    assert reason == "stop" and re.fullmatch(r"[a-z0-9.]{1,20}@\w{6,10}\.com", mail), mail
    assert text(extra_body={"structured_outputs": {"choice": ["yes", "no"]}})[0] in ("yes", "no")
    assert text(extra_body={"guided_choice": ["rain", "sun"]})[0] in ("rain", "sun")
    answer, reason = text(response_format={"type": "json_object"})
    assert reason == "length" or isinstance(json.loads(answer), dict)


def refusals():
    def refused(param, **body):
        try:
            CLIENT.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, **body)
        except openai.BadRequestError as error:
            assert error.param == param, (error.param, error.message)
            return
        raise AssertionError(f"{body} was not refused")

    schema = {"type": "object", "properties": {"a": {"type": "thing"}}}
    described = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    refused("response_format.json_schema.schema.properties.a", response_format=described)
    refused("tool_choice", tool_choice="required")
    refused("tools[0].function.name", tools=[{"type": "function", "function": {"name": "a b"}}])
    refused("structured_outputs.regex", extra_body={"structured_outputs": {"json": {}, "regex": "a"}})


CHECKS = [forced_calls, free_calls_and_results, parsed_answers, forms, refusals]

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print("ok", check.__name__, flush=True)
