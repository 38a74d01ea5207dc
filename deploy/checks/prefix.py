#!/usr/bin/env python3
"""How much of the prompts is found in prefix caches, by how a replica is chosen.

    deploy/checks/prefix.py [--hearth PROGRAM]

Conversations of four turns, whose applications have long instructions in common, go to three replicas in four ways: all to one
replica (the most that can be found), through haproxy without a session header, through haproxy with it, and to the replica
that has most pages of the prompt, unless it has more requests than the others. For the last, this program does what a router can do: it asks `/tokenize` for the tokens,
computes the names of the pages as docs/serving/security.md describes, and remembers which replica got which pages.
"""

import argparse
import asyncio
import hashlib
import json
import random
import struct
import sys
import tempfile
import urllib.request
from pathlib import Path

from replicas import NAMES, CheckFailed, Proxy, Replica, free_port, hearth_program, send

PAGE_SIZE = 16
# docs/serving/security.md: the names of the pages with the token ids 1 to 32, without key or salt.
DOCUMENTED = [
    "7ec4609c870147b78a4746aa72a2d0395ebc270f29ada09fd4810afafd2200f2",
    "6298ede207dd77d78c7f62808a113a34ccb465ac3dd5ea0edde61da38b5b081a",
]
INSTRUCTIONS = "You tell tales for children. Use short words, be kind, and end each tale with a lesson. The hero is a {}. "
WAYS = ["one replica", "fewest requests", "session header", "names of pages"]


def page_names(tokens: list[int], root: bytes = bytes(32)) -> list[str]:
    """The names of the full pages of a prompt."""
    names, last = [], root
    for start in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
        last = hashlib.sha256(last + struct.pack(f"<{PAGE_SIZE}I", *tokens[start : start + PAGE_SIZE])).digest()
        names.append(last.hex())
    return names


class PageRouter:
    """Chooses the replica with the fewest pages to compute, where a request in flight counts as much as 2 pages."""

    def __init__(self, ports: list[int]):
        self.ports = ports
        self.pages: dict[int, set[str]] = {port: set() for port in ports}
        self.in_flight = dict.fromkeys(ports, 0)

    def tokenize(self, messages: list[dict]) -> list[int]:
        body = json.dumps({"messages": messages, "add_generation_prompt": True}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[0]}/tokenize", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)["tokens"]

    async def send(self, path: str, body: dict):
        names = page_names(await asyncio.to_thread(self.tokenize, body["messages"]))

        def known(port: int) -> int:
            return next((count for count, name in enumerate(names) if name not in self.pages[port]), len(names))

        port = min(self.ports, key=lambda port: 2 * self.in_flight[port] - known(port))
        self.pages[port].update(names)
        self.in_flight[port] += 1
        try:
            return await send(port, path, body)
        finally:
            self.in_flight[port] -= 1


async def conversation(number: int, way: str, proxy: Proxy, router: PageRouter, limit: asyncio.Semaphore):
    rng = random.Random(number)
    animal = ["fox", "owl", "bear", "cat", "hen", "frog"][number % 6]
    messages = [{"role": "system", "content": INSTRUCTIONS.format(animal) * 4}]
    for turn in range(4):
        messages.append({"role": "user", "content": f"Conversation {number}: tell me part {turn} about a {rng.choice(['lake', 'hill', 'farm'])}."})
        body = {"messages": messages, "temperature": 0, "max_tokens": 20}
        async with limit:
            if way == "names of pages":
                answer = await router.send("/v1/chat/completions", body)
            else:
                headers = {"x-session-id": f"conversation-{number}"} if way == "session header" else {}
                port = router.ports[0] if way == "one replica" else proxy.port
                answer = await send(port, "/v1/chat/completions", body, headers=headers)
        if not answer.is_complete:
            raise CheckFailed(f"conversation {number} with {way}: {answer.error}")
        messages.append({"role": "assistant", "content": answer.text})
        await asyncio.sleep(rng.expovariate(2))


async def measure(way: str, proxy: Proxy, replicas: list[Replica]):
    limit = asyncio.Semaphore(12)
    router = PageRouter([replica.port for replica in replicas])
    await asyncio.gather(*(conversation(number, way, proxy, router, limit) for number in range(60)))
    now = [replica.metrics() for replica in replicas]
    hits, queries = ([sample[f"vllm:prefix_cache_{what}_total"] for sample in now] for what in ("hits", "queries"))
    spread = "/".join(f"{part / max(sum(queries), 1):.0%}" for part in queries)
    print(f"| {way} | {sum(hits) / sum(queries):.0%} | {sum(queries) - sum(hits):,.0f} of {sum(queries):,.0f} | {spread} |", flush=True)
    return sum(hits) / sum(queries)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    hearth = hearth_program(parser.parse_args().hearth)
    if page_names(list(range(1, 33))) != DOCUMENTED:
        raise CheckFailed("the names of pages are not those of docs/serving/security.md")
    print("| replica chosen by | found in the cache | prompt tokens computed | share of each replica |\n| --- | --- | --- | --- |", flush=True)
    shares = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory(prefix="replicas-") as work:
            replicas = [Replica(hearth, name, free_port(), Path(work), []).start() for name in NAMES]
            proxy = Proxy("haproxy", free_port(), replicas, Path(work))
            try:
                for replica in replicas:
                    replica.wait_until_ready()
                proxy.start()
                shares[way] = asyncio.run(measure(way, proxy, replicas))
            finally:
                proxy.end()
                for replica in replicas:
                    replica.end()
    if not shares["fewest requests"] < min(shares["session header"], shares["names of pages"]):
        print("error: a choice that knows sessions or pages must find more in the cache than one that does not")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
