#!/usr/bin/env python3
"""Follows the events of a server's prefix cache with other people's libraries, as a router does, while requests run.

    cargo build --release --features hearth-server/kv-events
    pip install pyzmq msgspec
    deploy/checks/kv_events.py [--hearth PROGRAM] [--seconds N]

Without a server, the publisher alone with random changes (seconds to build):

    (cd kv-events && cargo build --example publish)
    deploy/checks/kv_events.py --publisher kv-events/target/debug/examples/publish

The structs are those that vLLM's documentation gives to subscribers (vLLM 0.24 to 0.29: batches are lists, events are maps). Checked
are: every batch decodes strictly, numbers have no gap, hashes are those that docs/serving/security.md describes, the followed set of
blocks is what the server finds in its cache (`cached_tokens` of prompts asked again), and missed batches are sent again.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from replicas import CheckFailed, Replica, free_port, hearth_program

try:
    import msgspec
    import zmq
except ImportError as error:
    raise SystemExit(f"error: the package `{error.name}` is missing\nhint: pip install pyzmq msgspec") from None

PAGE = 16
TOPIC = "kv@one@hearth-bundled"


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    ts: float
    events: "list[BlockStored | BlockRemoved | AllBlocksCleared]"
    data_parallel_rank: int | None = None


class CacheEvent(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(CacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(CacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(CacheEvent):
    pass


class Follower(threading.Thread):
    """Knows which blocks the server has."""

    def __init__(self, port: int, checks_hashes: bool = True):
        super().__init__(daemon=True)
        self.checks_hashes = checks_hashes
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.socket.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        self.decoder = msgspec.msgpack.Decoder(type=Batch)
        self.batches: dict[int, bytes] = {}
        self.blocks: set[int] = set()
        # All that were ever there.
        self.seen: set[int] = set()
        self.stored = self.removed = 0
        self.error: str | None = None

    def run(self):
        try:
            while True:
                topic, number, payload = self.socket.recv_multipart()
                self.take(topic, int.from_bytes(number, "big"), payload)
        except (CheckFailed, msgspec.MsgspecError, ValueError) as error:
            self.error = str(error)

    def take(self, topic: bytes, number: int, payload: bytes):
        if topic.decode() != TOPIC:
            raise CheckFailed(f"a batch has the topic {topic!r}")
        if self.batches and number != max(self.batches) + 1:
            raise CheckFailed(f"batch {number} follows {max(self.batches)}")
        self.batches[number] = payload
        batch = self.decoder.decode(payload)
        if not abs(time.time() - batch.ts) < 60 or batch.data_parallel_rank != 0:
            raise CheckFailed(f"batch {number}: time {batch.ts}, rank {batch.data_parallel_rank}")
        for event in batch.events:
            match event:
                case AllBlocksCleared():
                    self.blocks.clear()
                case BlockRemoved():
                    self.blocks.difference_update(event.block_hashes)
                    self.removed += len(event.block_hashes)
                case BlockStored():
                    if event.block_size != PAGE or len(event.token_ids) != PAGE * len(event.block_hashes):
                        raise CheckFailed(f"{len(event.token_ids)} tokens in {len(event.block_hashes)} blocks of {event.block_size}")
                    if event.parent_block_hash is None and self.checks_hashes:
                        known = hashes(event.token_ids)
                        if event.block_hashes != known:
                            raise CheckFailed(f"blocks {event.block_hashes} are not {known}")
                    elif event.parent_block_hash is not None and event.parent_block_hash not in self.seen:
                        raise CheckFailed(f"block {event.block_hashes[0]} has a parent that nobody was told of")
                    self.blocks.update(event.block_hashes)
                    self.seen.update(event.block_hashes)
                    self.stored += len(event.block_hashes)


def hashes(token_ids: list[int]) -> list[int]:
    """Of the full blocks of a text without a salt: docs/serving/security.md; the last 8 bytes as a number."""
    found, last = [], bytes(32)
    for start in range(0, len(token_ids) - PAGE + 1, PAGE):
        tokens = b"".join(token.to_bytes(4, "little") for token in token_ids[start : start + PAGE])
        last = hashlib.sha256(last + tokens).digest()
        found.append(int.from_bytes(last[-8:], "big"))
    return found


def post(port: int, path: str, body: dict) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def asked_again(port: int, follower: Follower, prompts: list[list[int]]) -> tuple[int, int]:
    """Compares what the followed set says of prompts with what the server finds. Returns blocks found, and prompts."""
    n_found = 0
    for prompt in prompts:
        time.sleep(0.05)
        known = 0
        # At least one token is computed.
        for block in hashes(prompt[: len(prompt) - 1]):
            if block not in follower.blocks:
                break
            known += 1
        usage = post(port, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if cached != PAGE * known:
            raise CheckFailed(f"the events say {known} blocks of a prompt of {len(prompt)} tokens, the server found {cached} tokens")
        n_found += known
    return n_found, len(prompts)


def replayed(port: int, follower: Follower) -> int:
    """Asks for all batches again; returns how many came."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    socket.send_multipart([b"", (0).to_bytes(8, "big")])
    found = {}
    while socket.poll(5000):
        _, number, payload = socket.recv_multipart()
        if number == b"\xff" * 8:
            break
        found[int.from_bytes(number, "big")] = payload
    else:
        raise CheckFailed("the end of the batches that are sent again did not come")
    if min(found) != 0 or msgspec.msgpack.Decoder(type=Batch).decode(found[0]).events != [AllBlocksCleared()]:
        raise CheckFailed("the first batch does not say that the cache is empty")
    for number, payload in follower.batches.items():
        if found.get(number) != payload:
            raise CheckFailed(f"batch {number} is another one when it is sent again")
    return len(found)


def check_publisher(program: str, n_batches: int) -> None:
    """The publisher alone: the followed set of blocks must be the one that it writes at its end."""
    events, replay = free_port(), free_port()
    command = [program, f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}", TOPIC, str(n_batches)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    follower = Follower(events, checks_hashes=False)
    follower.start()
    blocks = set()
    n_replayed = 0
    for line in process.stdout:
        blocks.add(int(line))
        if not n_replayed:
            time.sleep(0.5)
            n_replayed = replayed(replay, follower)
    if follower.error:
        raise CheckFailed(follower.error)
    if process.wait() or n_replayed != n_batches + 1 or len(follower.batches) < n_batches:
        raise CheckFailed(f"{n_batches} batches: {len(follower.batches)} came, {n_replayed} came again, status {process.returncode}")
    if follower.blocks != blocks or follower.removed == 0:
        raise CheckFailed(f"the events say {len(follower.blocks)} blocks, the publisher has {len(blocks)}")
    print(f"{n_batches} batches decoded by msgspec: {follower.stored} blocks stored, {follower.removed} removed, the same {len(blocks)} at the end")
    print(f"{n_replayed} batches were sent again, the same bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="a build with the feature `kv-events`")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--publisher", metavar="PROGRAM", help="check this program of kv-events instead of a server")
    arguments = parser.parse_args()
    if arguments.publisher:
        check_publisher(arguments.publisher, 3000)
        return 0
    port, events, replay = free_port(), free_port(), free_port()
    choose = random.Random(5)
    with tempfile.TemporaryDirectory(prefix="kv-events-") as work:
        flags = ["--kv-events", f"tcp://*:{events}", "--kv-events-topic", TOPIC, "--kv-events-replay", f"tcp://127.0.0.1:{replay}"]
        replica = Replica(hearth_program(arguments.hearth), "one", port, Path(work), flags)
        # So few pages that many are evicted.
        replica.command[replica.command.index("--kv-cache-tokens") + 1] = "8192"
        replica.start()
        try:
            replica.wait_until_ready()
            follower = Follower(events)
            follower.start()
            time.sleep(0.5)
            began, prompts, n_requests = time.monotonic(), [], 0
            lock = threading.Lock()

            def client():
                nonlocal n_requests
                while time.monotonic() - began < arguments.seconds:
                    with lock:
                        start = choose.choice(prompts)[: choose.randrange(1, 300)] if prompts and choose.random() < 0.6 else []
                        prompt = start + [choose.randrange(3, 250) for _ in range(choose.randrange(1, 200))]
                        prompts.append(prompt)
                        n_requests += 1
                    post(port, "/v1/completions", {"prompt": prompt, "max_tokens": choose.randrange(1, 40), "temperature": 1, "n": choose.choice([1, 1, 2])})

            clients = [threading.Thread(target=client) for _ in range(6)]
            [thread.start() for thread in clients]
            [thread.join() for thread in clients]
            time.sleep(0.5)
            if follower.error:
                raise CheckFailed(follower.error)
            recent = prompts[-60:] + choose.sample(prompts, min(60, len(prompts)))
            n_found, n_asked = asked_again(port, follower, recent)
            if follower.error:
                raise CheckFailed(follower.error)
            n_replayed = replayed(replay, follower)
        finally:
            replica.end()
    print(f"{n_requests} requests: {len(follower.batches)} batches decoded, {follower.stored} blocks stored, {follower.removed} removed")
    print(f"{n_asked} prompts asked again: {n_found} blocks known from the events, as many found by the server for each")
    print(f"{n_replayed} batches were sent again, the same bytes")
    if not (n_found and follower.removed):
        raise CheckFailed("the test shows too little: no block was found or removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
