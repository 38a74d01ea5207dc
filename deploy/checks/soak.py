#!/usr/bin/env python3
"""Many requests of all kinds over three replicas, of which a fifth are left by their clients.

    deploy/checks/soak.py [--hearth PROGRAM] [--requests 10000]

First one replica alone answers each of the different requests. Then three replicas behind haproxy answer them in random order,
24 at a time: completions, chats, answers in a schema, several choices, beams, log-probabilities, embeddings and tokenization,
streamed or not, with and without LoRA adapters, greedy or with a seed, with prompts of 100 KB among them. A fifth of the clients
leave: at once, or within the answer. Meanwhile an adapter is loaded and unloaded on all replicas.

Each answer that is kept must be the one that the lone replica gave. After each tenth, when no request runs: no page of the KV
cache is in use, nothing runs or waits, and after the second tenth file handles do not grow by more than 4, memory not by more
than 10 %.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from adapters import write_adapter
from replicas import NAMES, CheckFailed, Proxy, Replica, free_port, hearth_program, send

MODEL = "hearth-bundled"
# The adapter that comes and goes; the others stay.
MOVING = "moving"
ANIMALS = ["fox", "owl", "bear", "cat", "mouse", "frog", "hen", "goat"]


def different_requests() -> list[tuple[str, dict]]:
    """Path and body of each request. Each has one right answer: it is greedy, or has a seed."""
    found = []
    for number, animal in enumerate(ANIMALS):
        story = f"Once upon a time, there was a brave {animal} who"
        chat = [{"role": "user", "content": f"Tell me a story about a {animal}."}]
        greedy = {"temperature": 0, "max_tokens": 20 + 4 * number}
        sampled = {"temperature": 0.9, "seed": number, "max_tokens": 24}
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}}
        for model in (MODEL, "red", "blue", MOVING):
            found.append(("/v1/completions", {"model": model, "prompt": story, **greedy}))
            found.append(("/v1/chat/completions", {"model": model, "messages": chat, **greedy, **usage}))
        found += [
            ("/v1/completions", {"prompt": story, **sampled, **usage}),
            ("/v1/completions", {"prompt": story, **sampled, "n": 3}),
            ("/v1/completions", {"prompt": story, **greedy, "logprobs": 3}),
            ("/v1/completions", {"prompt": story, "max_tokens": 12, "temperature": 0, "use_beam_search": True, "n": 2}),
            ("/v1/completions", {"prompt": "They went home. " * 6400 + story, "truncate_prompt_tokens": 300, **greedy}),
            ("/v1/chat/completions", {"messages": chat, **sampled, "response_format": form}),
            ("/v1/chat/completions", {"messages": chat, **greedy, **usage, "stop": ["."]}),
            ("/v1/embeddings", {"input": [story, animal]}),
            ("/tokenize", {"prompt": story}),
        ]
    return found


async def ask(port: int, path: str, body: dict, leaves: int | None = None):
    answer = await send(port, path, body, cancel_after=leaves)
    if answer.is_complete:
        answer.result = result_of(answer)
    return answer


def result_of(answer) -> str:
    """What must be the same on every replica: all of it but ids, times, and what the prefix cache had."""

    def strip(value):
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key not in ("id", "created", "prompt_tokens_details")}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    if answer.body is None:
        return json.dumps([answer.text, strip(answer.usage)])
    return json.dumps(strip(answer.body), sort_keys=True)


class State:
    """What one replica holds."""

    def __init__(self, replica: Replica):
        process = Path(f"/proc/{replica.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        self.megabytes = int(status["VmRSS"].split()[0]) / 1024
        self.n_handles = len(list((process / "fd").iterdir()))
        now = replica.metrics()
        self.held = {name: now[name] for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")}
        self.n_aborted = now.get(next((name for name in now if name.startswith("vllm:request_success_total{") and '"abort"' in name), ""), 0)


async def adapters_come_and_go(ports: list[int], is_ended: asyncio.Event) -> int:
    n_loaded = 0
    while not is_ended.is_set():
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            for port in ports:
                answer = await send(port, path, {"lora_name": MOVING, "lora_path": MOVING})
                if answer.status != 200:
                    raise CheckFailed(f"{path} on port {port}: {answer.error}")
            n_loaded += path.startswith("/v1/load")
            await asyncio.sleep(random.uniform(0.2, 1.2))
    return n_loaded


async def soak(replicas, proxy, expected: dict[int, str], requests, n_requests: int) -> list[str]:
    rng, wrong, states = random.Random(5), [], []
    counts = {"right": 0, "left": 0, "no such adapter": 0}
    ended = asyncio.Event()
    moving = asyncio.create_task(adapters_come_and_go([replica.port for replica in replicas], ended))
    start = time.monotonic()

    async def one(limit):
        async with limit:
            index = rng.randrange(len(requests))
            path, body = requests[index]
            leaves = None
            if rng.random() < 0.2:
                leaves = rng.randint(0, 5) if body.get("stream") else 0
            answer = await ask(proxy.port, path, body, leaves)
            if answer.is_cancelled:
                counts["left"] += 1
            elif answer.status == 404 and body.get("model") == MOVING:
                counts["no such adapter"] += 1
            elif not answer.is_complete:
                wrong.append(f"request {index} ({path}) failed: {answer.error}")
            elif answer.result != expected[index]:
                wrong.append(f"request {index} ({path}) got {answer.result[:300]}, expected {expected[index][:300]}")
            else:
                counts["right"] += 1

    print("| requests | seconds | memory, MB | handles |\n| --- | --- | --- | --- |")
    for tenth in range(1, 11):
        limit = asyncio.Semaphore(24)
        await asyncio.gather(*(one(limit) for _ in range(n_requests // 10)))
        await asyncio.sleep(1)
        now = [State(replica) for replica in replicas]
        states.append(now)
        print(
            f"| {tenth * (n_requests // 10):,} | {time.monotonic() - start:.0f} | {', '.join(f'{state.megabytes:.0f}' for state in now)} "
            f"| {', '.join(str(state.n_handles) for state in now)} |",
            flush=True,
        )
        for replica, state, warm in zip(replicas, now, states[min(1, tenth - 1)]):
            if any(state.held.values()):
                wrong.append(f"after {tenth} tenths, idle replica {replica.name} holds {state.held}")
            if tenth > 2 and state.n_handles > warm.n_handles + 4:
                wrong.append(f"after {tenth} tenths, replica {replica.name} has {state.n_handles} file handles, {warm.n_handles} after two")
            if tenth > 2 and state.megabytes > 1.1 * warm.megabytes:
                wrong.append(f"after {tenth} tenths, replica {replica.name} has {state.megabytes:.0f} MB, {warm.megabytes:.0f} after two")
    ended.set()
    n_loaded = await moving
    print(f"{counts}; an adapter was loaded and unloaded {n_loaded} times; {sum(state.n_aborted for state in states[-1]):.0f} answers aborted")
    return wrong


async def check(hearth: str, work: Path, n_requests: int) -> list[str]:
    for seed, name in enumerate(("red", "blue", MOVING)):
        write_adapter(work / "adapters" / name, seed)
    flags = ["--lora-root", str(work / "adapters")]
    flags += [flag for name in ("red", "blue") for flag in ("--lora", f"{name}={work / 'adapters' / name}")]
    requests = different_requests()
    alone = Replica(hearth, "alone", free_port(), work, [*flags, "--lora", f"{MOVING}={work / 'adapters' / MOVING}"]).start()
    try:
        alone.wait_until_ready()
        answers = [await ask(alone.port, path, body) for path, body in requests]
    finally:
        alone.end()
    if failed := [(request, answer) for request, answer in zip(requests, answers) if not answer.is_complete]:
        raise CheckFailed(f"the lone replica does not answer {str(failed[0])[:600]}")
    expected = {index: answer.result for index, answer in enumerate(answers)}
    print(f"{len(requests)} different requests with {len(set(expected.values()))} different answers")
    replicas = [Replica(hearth, name, free_port(), work, flags).start() for name in NAMES]
    proxy = Proxy("haproxy", free_port(), replicas, work)
    try:
        for replica in replicas:
            replica.wait_until_ready()
        proxy.start()
        return await soak(replicas, proxy, expected, requests, n_requests)
    finally:
        proxy.end()
        for replica in replicas:
            replica.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    parser.add_argument("--requests", type=int, default=10_000, help="how many [default: 10000]")
    arguments = parser.parse_args()
    hearth = hearth_program(arguments.hearth)
    with tempfile.TemporaryDirectory(prefix="replicas-") as work:
        wrong = asyncio.run(check(hearth, Path(work), arguments.requests))
    for what in wrong[:10]:
        print(f"error: {what}")
    if wrong:
        print(f"error: {len(wrong)} in all")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
