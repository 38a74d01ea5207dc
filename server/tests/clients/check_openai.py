"""The `openai` package, unmodified, against a running server.

Every answer is validated strictly against the package's own types.

    pip install -r requirements.txt
    hearth serve --model <a model with a chat template> --port 8000 &
    HEARTH_URL=http://127.0.0.1:8000 python check_openai.py        # and HEARTH_KEY=..., if the server has keys
"""

import asyncio
import json
import math
import os

import openai
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

URL = os.environ["HEARTH_URL"]
KEY = os.environ.get("HEARTH_KEY", "none")
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
MODEL = CLIENT.models.list().data[0].id
MESSAGES = [{"role": "user", "content": "Name three colours."}]


def strict(kind, raw):
    """The answer, validated without coercion: as the type says, field by field."""
    return kind.model_validate_json(raw.content, strict=True)


def strict_chunks(kind, stream):
    """Chunks as the package parses them, each checked as strictly as a whole answer."""
    chunks = list(stream)
    for chunk in chunks:
        raw = json.loads(chunk.to_json())
        if kind is Completion:
            # Null until the last chunk, at OpenAI's service too; the package's type is that of a whole answer.
            for choice in raw["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        kind.model_validate_json(json.dumps(raw), strict=True)
    return chunks


def models():
    page = CLIENT.models.with_raw_response.list()
    assert all(Model.model_validate(entry, strict=True) for entry in page.http_response.json()["data"])
    one = strict(Model, CLIENT.models.with_raw_response.retrieve(MODEL))
    assert one.id == MODEL
    assert one.model_extra["max_model_len"] > 0


def completions():
    create = CLIENT.completions.with_raw_response.create
    answer = strict(Completion, create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0))
    assert answer.object == "text_completion" and answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    several = strict(Completion, create(model=MODEL, prompt=["One", "Two"], n=2, max_tokens=4, seed=7))
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    again = strict(Completion, create(model=MODEL, prompt=["One", "Two"], n=2, max_tokens=4, seed=7))
    assert [choice.text for choice in several.choices] == [choice.text for choice in again.choices]

    raw = create(model=MODEL, prompt="The sky is", echo=True, logprobs=3, max_tokens=2, temperature=0)
    echoed = json.loads(raw.content)
    # The first token of a prompt has no log-probability: OpenAI's service says null, which the package's type forgets.
    for name in ("token_logprobs", "top_logprobs"):
        assert echoed["choices"][0]["logprobs"][name][0] is None
        echoed["choices"][0]["logprobs"][name].pop(0)
    echoed = Completion.model_validate_json(json.dumps(echoed), strict=True)
    logprobs = echoed.choices[0].logprobs
    assert echoed.choices[0].text.startswith("The sky is")
    assert "".join(logprobs.tokens) == echoed.choices[0].text
    assert all(number <= 0 for number in logprobs.token_logprobs)
    # Greedy: the token drawn is the best, and the very same number.
    assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())

    best = strict(Completion, create(model=MODEL, prompt="The sky is", n=1, best_of=3, max_tokens=4, seed=1))
    assert len(best.choices) == 1 and best.usage.completion_tokens > 4

    beams = {"use_beam_search": True, "best_of": 3, "n": 2}
    searched = strict(Completion, create(model=MODEL, prompt="The sky is", max_tokens=4, extra_body=beams))
    assert len(searched.choices) == 2


def streamed_completions():
    body = dict(model=MODEL, prompt="Once upon a time", max_tokens=24, seed=3, stop=["\n"])
    whole = CLIENT.completions.create(**body)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    chunks = strict_chunks(Completion, CLIENT.completions.create(**body, stream=True, stream_options=usage))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is not None for chunk in chunks)


def chat():
    create = CLIENT.chat.completions.with_raw_response.create
    body = dict(model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0)
    answer = strict(ChatCompletion, create(**body, logprobs=True, top_logprobs=4))
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 4
        assert token.logprob == token.top_logprobs[0].logprob
        assert bytes(token.bytes).decode(errors="replace") == token.token or token.token.startswith("bytes:")
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    same = strict(ChatCompletion, create(**{**body, "messages": parts}))
    assert same.choices[0].message.content == choice.message.content
    started = MESSAGES + [{"role": "assistant", "content": "Red, green and"}]
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    assert strict(ChatCompletion, create(**{**body, "messages": started}, extra_body=continued)).choices[0].message.content


def streamed_chat():
    body = dict(model=MODEL, messages=MESSAGES, max_tokens=20, seed=11, n=2, logprobs=True, top_logprobs=1)
    whole = CLIENT.chat.completions.create(**body)
    usage = {"include_usage": True}
    chunks = strict_chunks(ChatCompletionChunk, CLIENT.chat.completions.create(**body, stream=True, stream_options=usage))
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    for expected in whole.choices:
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == expected.index]
        assert choices[0].delta.role == "assistant" and choices[0].delta.content == ""
        assert "".join(choice.delta.content or "" for choice in choices) == expected.message.content
        assert choices[-1].finish_reason == expected.finish_reason
        assert all(choice.finish_reason is None for choice in choices[:-1])
        told = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
        assert told == expected.logprobs.content
    # The package's own accumulator agrees.
    with CLIENT.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=8, seed=1) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        snapshot = stream.current_completion_snapshot
    assert snapshot.choices[0].message.content == text and snapshot.choices[0].message.role == "assistant"
    same = CLIENT.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, seed=1)
    assert text == same.choices[0].message.content


def extensions():
    raw = CLIENT.completions.with_raw_response.create(
        model=MODEL, prompt="Once", max_tokens=4, seed=1, extra_body={"top_k": 5, "min_p": 0.1, "brand_new": 1}
    )
    assert raw.headers["x-ignored-params"] == "brand_new"
    extra = {"prompt_logprobs": 1, "return_token_ids": True, "mirostat": 2}
    choice = CLIENT.completions.create(model=MODEL, prompt="Once upon", max_tokens=4, extra_body=extra).choices[0]
    ids = choice.model_extra["prompt_token_ids"]
    assert len(choice.model_extra["token_ids"]) == 4 and choice.model_extra["prompt_logprobs"][0] is None
    assert str(ids[1]) in choice.model_extra["prompt_logprobs"][1]


def embeddings():
    create = CLIENT.embeddings.with_raw_response.create
    numbers = strict(CreateEmbeddingResponse, create(model=MODEL, input=["One", "Two"], encoding_format="float"))
    assert [entry.index for entry in numbers.data] == [0, 1] and numbers.usage.prompt_tokens == numbers.usage.total_tokens
    # Left to itself the package asks for base64 and decodes it.
    coded = CLIENT.embeddings.create(model=MODEL, input=["One", "Two"])
    for left, right in zip(numbers.data, coded.data):
        assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(left.embedding, right.embedding))
        assert math.isclose(sum(value * value for value in right.embedding), 1, rel_tol=1e-5)
    same = CLIENT.embeddings.create(model=MODEL, input="Two", extra_body={"pooling": "mean", "normalize": True})
    assert same.data[0].embedding == coded.data[1].embedding
    refused(openai.BadRequestError, "dimensions", CLIENT.embeddings.create, model=MODEL, input="One", dimensions=1)


def refused(kind, param, call, **body):
    try:
        call(**body)
    except kind as error:
        assert error.param == param, (error.param, param)
        assert error.type and error.message
        return error
    raise AssertionError(f"{body} was not refused")


def errors():
    completions, chat = CLIENT.completions.create, CLIENT.chat.completions.create
    refused(openai.BadRequestError, "temperature", completions, model=MODEL, prompt="x", temperature=9)
    refused(openai.NotFoundError, "model", completions, model="gpt-9", prompt="x")
    refused(openai.BadRequestError, "messages", chat, model=MODEL, messages=[])
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    assert "image_url" in refused(openai.BadRequestError, "messages", chat, model=MODEL, messages=image).message
    long = refused(openai.BadRequestError, "prompt", completions, model=MODEL, prompt=[1] * 100_000)
    assert long.code == "context_length_exceeded" and long.body["n_prompt_tokens"] == 100_000
    assert long.request_id
    # A stream is refused before it starts.
    refused(openai.BadRequestError, "top_p", completions, model=MODEL, prompt="x", top_p=2, stream=True)


async def asynchronous():
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)

    async def one(seed):
        body = dict(model=MODEL, messages=MESSAGES, max_tokens=8, seed=seed)
        whole, stream = await asyncio.gather(
            client.chat.completions.create(**body), client.chat.completions.create(**body, stream=True)
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == whole.choices[0].message.content

    await asyncio.gather(*(one(seed) for seed in range(4)))
    # A reader that leaves early does no harm.
    stream = await client.completions.create(model=MODEL, prompt="x", max_tokens=200, stream=True)
    async for _ in stream:
        break
    await stream.close()


def post(path, body):
    # The package's own HTTP client: no other dependency.
    answer = CLIENT._client.post(f"{URL}{path}", json=body, headers=CLIENT.auth_headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def as_lm_eval_asks():
    """The requests of lm-eval's `local-completions`, with the server as its tokenizer."""
    info = CLIENT._client.get(f"{URL}/tokenizer_info", headers=CLIENT.auth_headers).json()
    assert info["eos_token"]
    ids = [post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] for text in ("The cat sat", "A b")]
    assert post("/detokenize", {"tokens": ids[0]})["prompt"] == "The cat sat"
    body = {"model": MODEL, "prompt": ids, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = post("/v1/completions", body)
    for choice, prompt in zip(sorted(answer["choices"], key=lambda choice: choice["index"]), ids, strict=True):
        context = 1
        numbers = choice["logprobs"]["token_logprobs"][context:-1]
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        assert len(numbers) == len(tops) == len(prompt) - context
        assert math.isfinite(sum(numbers))
        # Whether a token was the greedy choice is decided by equality of floats.
        for number, top in zip(numbers, tops, strict=True):
            assert number in top.values() and number <= max(top.values())


CHECKS = [
    models, completions, streamed_completions, chat, streamed_chat, embeddings, extensions, errors, as_lm_eval_asks
]

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print("ok", check.__name__, flush=True)
    asyncio.run(asynchronous())
    print("ok asynchronous")
