"""What agents speak, with the packages `openai` (responses, decisions), `anthropic`, `langchain-openai` and, if it is
installed, `litellm`, unmodified, against a running server.

    pip install -r requirements.txt
    hearth serve --model <a model with a chat template> --port 8000 &
    HEARTH_URL=http://127.0.0.1:8000 python check_agents.py        # and HEARTH_KEY=..., if the server has keys
"""

import importlib.util
import json
import math
import os
from typing import Literal

import anthropic
import jsonschema
import openai
from anthropic.types import Message
from langchain_openai import ChatOpenAI
from openai.types.decision import Decision
from openai.types.responses import Response
from pydantic import BaseModel, Field

URL = os.environ["HEARTH_URL"]
KEY = os.environ.get("HEARTH_KEY", "none")
OPENAI = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ANTHROPIC = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
MODEL = OPENAI.models.list().data[0].id
QUESTION = "What is the weather in Paris?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


class Report(BaseModel):
    city: str = Field(max_length=20)
    sky: Literal["clear", "cloudy"]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("it was taken")


def responses():
    create = OPENAI.responses.with_raw_response.create
    raw = create(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=12, temperature=0)
    answer = Response.model_validate_json(raw.content, strict=True)
    assert answer.output_text and answer.usage.output_tokens <= 12 and answer.store is False
    body = dict(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=12, temperature=0)
    with OPENAI.responses.stream(**body) as stream:
        events = list(stream)
    # The package's own `get_final_response` knows only responses that no limit has cut off.
    final = events[-1].response
    assert final.output_text == answer.output_text
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
    told = OPENAI.responses.create(**body, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = told.output[-1].content[0].logprobs
    assert logprobs and all(len(entry.top_logprobs) == 2 for entry in logprobs)
    parsed = OPENAI.responses.parse(model=MODEL, input=QUESTION, text_format=Report, max_output_tokens=200)
    if parsed.status == "completed":
        assert isinstance(parsed.output_parsed, Report)
    error = refused(openai.BadRequestError, lambda: OPENAI.responses.create(**body, previous_response_id="resp_1"))
    assert error.param == "previous_response_id"


def responses_tools():
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    # Agents send tools that OpenAI runs, unasked.
    tools = [tool, {"type": "web_search"}]
    body = dict(model=MODEL, input=QUESTION, tools=tools, tool_choice="required", parallel_tool_calls=False)
    answer = OPENAI.responses.create(**body, max_output_tokens=200, temperature=0)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [tool.type for tool in answer.tools] == ["function"]
    assert calls or answer.status == "incomplete"
    with OPENAI.responses.stream(**body, max_output_tokens=200, temperature=0) as stream:
        final = list(stream)[-1].response
    streamed = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    assert streamed == [(call.name, call.arguments) for call in calls]
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMA)
        # The next turn: the output so far, and the result.
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
        items = [{"role": "user", "content": QUESTION}, *answer.output, result]
        assert OPENAI.responses.create(model=MODEL, input=items, tools=tools, max_output_tokens=8).output
    grammar = {"type": "grammar", "syntax": "regex", "definition": "(left|right)"}
    turn = {"type": "custom", "name": "turn", "format": grammar}
    body = dict(model=MODEL, input="Turn.", tools=[turn], tool_choice={"type": "custom", "name": "turn"})
    call = OPENAI.responses.create(**body, max_output_tokens=50).output[-1]
    assert call.type == "custom_tool_call" and call.input in ("left", "right"), call


def decisions():
    questions = [
        {"type": "predicate", "name": "sky", "instructions": "The sky is blue."},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": True, "description": "yes"}]},
        {"type": "score", "instructions": "How warm?", "levels": [{"label": "cold"}, {"label": "warm"}, {"label": "hot"}]},
    ]
    create = OPENAI.decisions.with_raw_response.create
    items = [{"role": "user", "content": [{"type": "input_json", "data": {"degrees": 31}}]}]
    for given in ("It is 31 degrees.", items):
        raw = create(model=MODEL, input=given, questions=questions)
        sky, which, warm = Decision.model_validate_json(raw.content, strict=True).answers
        assert (sky.type, sky.name, which.type, warm.type) == ("predicate", "sky", "choice", "score")
        assert 0 <= sky.probability <= 1 and 0 <= warm.score <= 2
        for answer in (which, warm):
            assert math.isclose(sum(option.probability for option in answer.probabilities), 1, abs_tol=1e-9)
        assert which.choice in ("a", True)
        # The same, alone.
        alone = Decision.model_validate_json(create(model=MODEL, input=given, questions=questions[2:]).content, strict=True)
        assert alone.answers[0] == warm
    error = refused(openai.BadRequestError, lambda: OPENAI.decisions.create(model=MODEL, input="x", questions=[]))
    assert error.param == "questions"


def messages():
    body = dict(model=MODEL, max_tokens=12, messages=[{"role": "user", "content": QUESTION}], extra_body={"temperature": 0})
    body["system"] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    raw = ANTHROPIC.messages.with_raw_response.create(**body)
    answer = Message.model_validate_json(raw.http_response.content, strict=True)
    assert answer.content[0].text and answer.stop_reason in ("end_turn", "max_tokens")
    with ANTHROPIC.messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
        assert stream.get_final_message().stop_reason == answer.stop_reason
    count = ANTHROPIC.messages.count_tokens(model=MODEL, messages=body["messages"], system=body["system"])
    assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    beta = ANTHROPIC.beta.messages.create(**body, betas=["interleaved-thinking-2025-05-14"])
    assert beta.content[0].text == answer.content[0].text
    assert any(model.id == MODEL for model in ANTHROPIC.models.list().data)
    error = refused(anthropic.BadRequestError, lambda: ANTHROPIC.messages.create(**body | {"extra_body": {"temperature": 9}}))
    assert error.body["error"]["type"] == "invalid_request_error"
    refused(anthropic.NotFoundError, lambda: ANTHROPIC.messages.create(**body | {"model": "claude-9"}))


def messages_tools():
    tools = [
        {"name": "get_weather", "description": "The weather in a city.", "input_schema": SCHEMA},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    asked = [{"role": "user", "content": QUESTION}]
    body = dict(model=MODEL, max_tokens=200, messages=asked, tools=tools, extra_body={"temperature": 0})
    body["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    answer = ANTHROPIC.messages.create(**body)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert (answer.stop_reason == "tool_use") == bool(calls) or answer.stop_reason == "max_tokens"
    with ANTHROPIC.messages.stream(**body) as stream:
        streamed = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in streamed] == [(call.name, call.input) for call in calls]
    for call in calls:
        jsonschema.validate(call.input, SCHEMA)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
        turns = [*asked, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        assert ANTHROPIC.messages.create(model=MODEL, max_tokens=8, messages=turns, tools=tools).content


def langchain():
    shared = dict(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_retries=0)
    chat = ChatOpenAI(**shared, temperature=0, max_tokens=12, use_responses_api=True)
    answer = chat.invoke(QUESTION)
    assert answer.text and answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in chat.stream(QUESTION)) == answer.text


def litellm():
    if not importlib.util.find_spec("litellm"):
        print("skipped: litellm is not installed")
        return
    # Nothing is to be downloaded.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as package

    asked = dict(messages=[{"role": "user", "content": QUESTION}], max_tokens=12, temperature=0, api_key=KEY)
    chat = package.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", **asked)
    messages = package.completion(model=f"anthropic/{MODEL}", api_base=URL, **asked)
    assert chat.choices[0].message.content == messages.choices[0].message.content
    for model, base in ((f"openai/{MODEL}", f"{URL}/v1"), (f"anthropic/{MODEL}", URL)):
        chunks = package.completion(model=model, api_base=base, stream=True, **asked)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == chat.choices[0].message.content, model


if __name__ == "__main__":
    for check in (responses, responses_tools, decisions, messages, messages_tools, langchain, litellm):
        check()
        print("ok", check.__name__)
