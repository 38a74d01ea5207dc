#!/usr/bin/env python3
"""Tests each row of the model server protocol of the Gateway API Inference Extension against a running replica.

    deploy/checks/protocol.py [--hearth PROGRAM]

The replica serves the bundled model with two LoRA adapters, of which one may run at a time, and one place in its batch, so
that requests and adapters wait.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path

from adapters import write_adapter
from replicas import Replica, free_port, get, hearth_program, send

MODEL = "hearth-bundled"
LONG = "Once upon a time, there was a brave fox who lived on a quiet square. " * 8


class Server:
    def __init__(self, port: int):
        self.port = port

    async def complete(self, **changes):
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **changes}
        return await send(self.port, "/v1/completions", body)

    async def metric(self, name: str) -> tuple[str, float, dict[str, str]]:
        """Type, value and labels of a metric with one sample."""
        _, text = await asyncio.to_thread(get, self.port, "/metrics")
        kind = re.search(rf"^# TYPE {name} (\w+)$", text, re.M)
        samples = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", text, re.M)
        if not kind or len(samples) != 1:
            raise AssertionError(f"`{name}` must have one sample, got {samples}")
        return kind[1], float(samples[0][1]), dict(re.findall(r'(\w+)="([^"]*)"', samples[0][0]))

    async def while_busy(self, requests: list, wanted):
        """Sends the requests, and asks `wanted` until it holds, which must happen before they are answered."""
        tasks = [asyncio.create_task(request) for request in requests]
        seen = None
        while not all(task.done() for task in tasks):
            is_right, seen = await wanted()
            if is_right:
                await asyncio.gather(*tasks)
                return
        raise AssertionError(f"it was never so while requests ran; at last {seen}")


async def completions_and_chat(server):
    answer = await server.complete()
    assert answer.is_complete and answer.usage["completion_tokens"] == 8, answer
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8}
    for stream in (False, True):
        answer = await send(server.port, "/v1/chat/completions", body | {"stream": stream})
        assert answer.is_complete and answer.text, answer


async def gauge_counts(server, name: str, expected: int):
    kind, value, _ = await server.metric(name)
    assert kind == "gauge" and value == 0, f"{name} is a {kind} of {value} on an idle server"

    async def wanted():
        value = (await server.metric(name))[1]
        return value >= expected, value

    await server.while_busy([server.complete(max_tokens=300, prompt=f"Tale {number}") for number in range(4)], wanted)
    await asyncio.sleep(0.2)
    assert (await server.metric(name))[1] == 0, f"{name} stays above 0"


async def queued(server):
    await gauge_counts(server, "vllm:num_requests_waiting", 3)


async def running(server):
    await gauge_counts(server, "vllm:num_requests_running", 1)


async def kv_cache(server):
    kind, value, _ = await server.metric("vllm:kv_cache_usage_perc")
    assert kind == "gauge" and value == 0, f"it is a {kind} of {value} on an idle server"
    n_pages = int((await server.metric("vllm:cache_config_info"))[2]["num_gpu_blocks"])

    async def wanted():
        value = (await server.metric("vllm:kv_cache_usage_perc"))[1]
        # A sequence of 300 tokens has 19 pages of 16 tokens.
        return 10 / n_pages < value <= 21 / n_pages, value

    await server.while_busy([server.complete(max_tokens=300)], wanted)


async def blocks(server):
    kind, value, labels = await server.metric("vllm:cache_config_info")
    assert (kind, value) == ("gauge", 1) and labels["block_size"] == "16", labels
    # `--kv-cache-tokens 32768` of replicas.py.
    assert labels["num_gpu_blocks"] == "2048", labels


async def adapter_by_model(server):
    plain = await server.complete(model=MODEL)
    texts = {name: (await server.complete(model=name)).text for name in ("red", "blue")}
    assert len({plain.text, *texts.values()}) == 3, f"adapters make no difference: {plain.text!r}, {texts}"
    unknown = await server.complete(model="green")
    assert unknown.status == 404, unknown
    listed = {model["id"] for model in json.loads(get(server.port, "/v1/models")[1])["data"]}
    assert listed == {MODEL, "red", "blue"}, listed


async def adapters_in_use(server):
    kind, value, labels = await server.metric("vllm:lora_requests_info")
    assert kind == "gauge" and abs(value - time.time()) < 5, f"it is a {kind} of {value}, not the time"
    assert (labels["max_lora"], labels["running_lora_adapters"], labels["waiting_lora_adapters"]) == ("1", "", ""), labels

    async def wanted():
        labels = (await server.metric("vllm:lora_requests_info"))[2]
        return {labels["running_lora_adapters"], labels["waiting_lora_adapters"]} == {"red", "blue"}, labels

    await server.while_busy([server.complete(model=name, max_tokens=300) for name in ("red", "blue")], wanted)


async def prefix_cache(server):
    before = (await server.metric("vllm:prefix_cache_hits_total"))[1]
    first, second = [(await server.complete(prompt=LONG)).usage for _ in range(2)]
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["prompt_tokens"] - 16, f"{cached} of {first['prompt_tokens']} tokens are cached"
    kind, after, _ = await server.metric("vllm:prefix_cache_hits_total")
    assert kind == "counter" and after - before >= cached, (before, after, cached)


async def probes(server):
    for path in ("/v1/models", "/health", "/ready"):
        assert get(server.port, path)[0] == 200, path


ROWS = [
    ("OpenAI's completions and chat", completions_and_chat),
    ("TotalQueuedRequests", queued),
    ("TotalRunningRequests", running),
    ("KVCacheUtilization", kv_cache),
    ("BlockSize and NumGPUBlocks", blocks),
    ("An adapter is chosen by `model`", adapter_by_model),
    ("Adapters that run and wait", adapters_in_use),
    ("Prefix cache", prefix_cache),
    ("Probes", probes),
]


async def check(port: int) -> int:
    n_wrong = 0
    for row, test in ROWS:
        try:
            await test(Server(port))
            print(f"{row}: holds")
        except (AssertionError, KeyError) as error:
            n_wrong += 1
            print(f"error: {row}: {error}")
    return n_wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    hearth = hearth_program(parser.parse_args().hearth)
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        work = Path(folder)
        flags = ["--max-loras", "1", "--max-batch-size", "1"]
        for seed, name in enumerate(("red", "blue")):
            write_adapter(work / name, seed)
            flags += ["--lora", f"{name}={work / name}"]
        replica = Replica(hearth, "one", free_port(), work, flags).start()
        try:
            replica.wait_until_ready()
            return 1 if asyncio.run(check(replica.port)) else 0
        finally:
            replica.end()


if __name__ == "__main__":
    sys.exit(main())
