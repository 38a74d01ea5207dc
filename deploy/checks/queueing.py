#!/usr/bin/env python3
"""A queueing simulation of replicas: how many are needed for how many users, and what a million tokens costs.

    deploy/checks/queueing.py plan [--first-token 2] [--price NAME=DOLLARS]     the tables of deploy/SCALE.md
    deploy/checks/queueing.py check [--hearth PROGRAM] [--rate R]               compared with three real replicas

A replica makes steps, as Hearth does: each running sequence gets a token, and what is left of `--max-batch-tokens` is spent on
prompts. A step takes `base + per_sequence * sequences + per_prompt_token * tokens` seconds; the three come from the rates of one
sequence, of many, and of prompts, which BENCHMARKS.md has or `check` measures. Requests arrive at random (Poisson) and go to
the replica with the fewest requests, as with haproxy's `leastconn`. Replicas may share cores: if more of them compute than
there are cores, each is slower.
"""

import argparse
import asyncio
import heapq
import math
import os
import random
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from replicas import NAMES, CheckFailed, Proxy, Replica, free_port, hearth_program, quantile, send


@dataclass(frozen=True)
class Machine:
    """What a step costs, in seconds, and the server's limits."""

    name: str
    base: float
    per_sequence: float
    per_prompt_token: float
    price: float = 0.0
    # Bytes of the KV cache for a token: two values of 16 bits for each layer, key head and dimension.
    kv_bytes: int = 0
    batch: int = 32
    step_tokens: int = 256

    @staticmethod
    def of_rates(name: str, prompt: float, one: float, many: float, n_many: int, price: float, **limits) -> "Machine":
        """From tokens per second: of a long prompt, of one sequence, of `n_many` sequences together."""
        per_sequence = (n_many / many - 1 / one) / (n_many - 1)
        return Machine(name, 1 / one - per_sequence, per_sequence, 1 / prompt, price, **limits)

    def step(self, n_sequences: int, n_prompt: int) -> float:
        # A step of prompts alone reads the weights, too, which the rate of prompts includes.
        base = self.base if n_sequences else 0.0
        return base + self.per_sequence * n_sequences + self.per_prompt_token * n_prompt


# The part of the most that a replica can do which is planned for.
HEADROOM = 0.8
KV_1B = 2 * 2 * 16 * 8 * 64
# Rates: BENCHMARKS.md and docs/lab/measurements.md. Prices in dollars per hour are assumptions, to be replaced.
MACHINES = [
    Machine.of_rates("135M q8, 2 cores Zen 5", 3849, 365, 2309, 16, 0.08, kv_bytes=2 * 2 * 30 * 3 * 64),
    Machine.of_rates("1B Q4_K_M, 2 cores Zen 5", 508, 55, 390, 16, 0.08, kv_bytes=KV_1B),
    Machine.of_rates("1B Q8_0, 2 cores Zen 5", 594, 35, 422, 16, 0.08, kv_bytes=KV_1B),
    Machine.of_rates("1B f16, H200", 8820, 547, 4904, 64, 3.50, kv_bytes=KV_1B, batch=64, step_tokens=1024),
]
# Tokens per second of a training step of GPT-2 124M, and dollars per hour.
TRAINING = [
    ("2 cores Zen 5, f32", 444, 0.08),
    ("2 cores Zen 5, bf16", 662, 0.08),
    ("2 cores Zen 4, f32", 234, 0.08),
    ("2 cores Emerald Rapids, f32", 307, 0.08),
    ("H200, f32", 45_900, 3.50),
    ("H200, bf16", 65_200, 3.50),
]


@dataclass(frozen=True)
class Behaviour:
    """What users do: a tenth of them are active, and each of these sends a message a minute."""

    active: float = 0.1
    seconds_between: float = 60.0
    # Mean tokens: of a prompt, of these found in the prefix cache, of an answer. Lengths are exponential.
    prompt: float = 600.0
    cached: float = 400.0
    answer: float = 250.0

    def rate(self, users: float) -> float:
        return users * self.active / self.seconds_between

    def requests(self, rate: float, n: int, seed: int) -> list["Request"]:
        rng, now, found = random.Random(seed), 0.0, []
        for _ in range(n):
            now += rng.expovariate(rate)
            n_prompt = max(1, round(rng.expovariate(1 / (self.prompt - self.cached))))
            found.append(Request(now, n_prompt, max(1, round(rng.expovariate(1 / self.answer)))))
        return found


@dataclass
class Request:
    arrival: float
    n_prompt: int
    n_answer: int
    prompt_left: int = 0
    answer_left: int = 0
    first: float = math.inf
    end: float = math.inf


@dataclass
class Server:
    waiting: deque = field(default_factory=deque)
    running: list = field(default_factory=list)
    # What the step in progress does, and how many core-seconds of it are left.
    decoding: list = field(default_factory=list)
    filling: list = field(default_factory=list)
    left: float = 0.0
    is_busy: bool = False
    # How fast the step goes, and since when.
    speed: float = 1.0
    since: float = 0.0
    version: int = 0


def simulate(machine: Machine, requests: list[Request], n_servers: int, cores: float = math.inf, delay: float = 0.0) -> float:
    """Fills in the times of the requests; returns the mean share of time in which a server computes. `delay` is added to each."""
    servers = [Server() for _ in range(n_servers)]
    for request in requests:
        request.prompt_left, request.answer_left = request.n_prompt, request.n_answer
    events: list = []
    now, busy_time, next_arrival, n_busy = 0.0, 0.0, 0, 0

    def begin(server: Server):
        while server.waiting and len(server.running) < machine.batch:
            server.running.append(server.waiting.popleft())
        server.decoding = [request for request in server.running if not request.prompt_left]
        room, server.filling = machine.step_tokens - len(server.decoding), []
        for request in server.running:
            if request.prompt_left and room > 0:
                part = min(room, request.prompt_left)
                server.filling.append((request, part))
                room -= part
        server.left = machine.step(len(server.decoding), sum(part for _, part in server.filling))

    def reschedule():
        """After the number of busy servers has changed: their speed, and when their steps end."""
        speed = min(1.0, cores / max(n_busy, 1))
        for server in servers:
            if server.is_busy:
                server.left -= (now - server.since) * server.speed
                server.since, server.speed, server.version = now, speed, server.version + 1
                heapq.heappush(events, (now + max(server.left, 0) / speed, id(server), server.version, server))

    def start(server: Server):
        begin(server)
        server.since, server.version = now, server.version + 1
        server.speed = min(1.0, cores / max(n_busy, 1))
        heapq.heappush(events, (now + server.left / server.speed, id(server), server.version, server))

    while next_arrival < len(requests) or n_busy:
        arrival = requests[next_arrival].arrival if next_arrival < len(requests) else math.inf
        if events and events[0][0] <= arrival:
            time_of, _, version, server = heapq.heappop(events)
            if version != server.version:
                continue
            busy_time += n_busy * (time_of - now)
            now = time_of
            for request, part in server.filling:
                request.prompt_left -= part
                if not request.prompt_left:
                    request.first = now
                    request.answer_left -= 1
            for request in server.decoding:
                request.answer_left -= 1
            for request in [request for request in server.running if not request.prompt_left and request.answer_left <= 0]:
                request.end = now
                server.running.remove(request)
            if server.running or server.waiting:
                start(server)
            else:
                server.is_busy, n_busy = False, n_busy - 1
                server.version += 1
                if cores < n_servers:
                    reschedule()
        else:
            busy_time += n_busy * (arrival - now)
            now = arrival
            server = min(servers, key=lambda server: len(server.waiting) + len(server.running))
            server.waiting.append(requests[next_arrival])
            next_arrival += 1
            if not server.is_busy:
                server.is_busy, n_busy = True, n_busy + 1
                if cores < n_servers:
                    server.left, server.since, server.speed = 0.0, now, 1.0
                    reschedule()
                start(server)
    for request in requests:
        request.first += delay
        request.end += delay
    return busy_time / now / n_servers if now else 0.0


def measures(requests: list[Request]) -> tuple[float, float, float]:
    """95 % of first tokens, the median and 95 % of answers, in seconds; the first fifth warms up."""
    kept = requests[len(requests) // 5 :]
    first = [request.first - request.arrival for request in kept]
    whole = [request.end - request.arrival for request in kept]
    return quantile(first, 0.95), quantile(whole, 0.5), quantile(whole, 0.95)


def best_rate(machine: Machine, behaviour: Behaviour, n_servers: int, first_token: float) -> float:
    """The most requests per second and server with 95 % of first tokens in time."""
    low, high = 0.0, 100.0
    n = 250 * n_servers + 1000
    for _ in range(12):
        rate = (low + high) / 2 if low else high / 2
        requests = behaviour.requests(rate * n_servers, n, 1)
        simulate(machine, requests, n_servers)
        if measures(requests)[0] <= first_token:
            low = rate
        else:
            high = rate
    return low


def plan(arguments):
    behaviour = Behaviour()
    prices = dict(price.split("=", 1) for price in arguments.price)
    print("| machine | requests/s of a replica | without prefix cache | it computes | first token p95 | answer p50, p95 | tok/s | $ per million tokens | KV cache | 10^3 users | 10^5 | 10^7 |")
    print("|" + " --- |" * 12)
    for machine in MACHINES:
        price = float(prices.get(machine.name, machine.price))
        # Many replicas share peaks; 8 stand for any larger number.
        rate = best_rate(machine, behaviour, 8, arguments.first_token)
        uncached = best_rate(machine, replace(behaviour, cached=0), 8, arguments.first_token) * HEADROOM
        if not rate:
            print(f"| {machine.name} | none: the first token takes longer than {arguments.first_token} s" + " |" * 11)
            continue
        rate *= HEADROOM
        requests = behaviour.requests(rate * 8, 3000, 2)
        share = simulate(machine, requests, 8)
        first, half, most = measures(requests)
        tokens = rate * behaviour.answer
        without = f"{uncached:.2f}" if uncached else "none"
        # Conversations whose next message comes to this replica must stay in its cache until then.
        cache = rate * behaviour.seconds_between * (behaviour.prompt + behaviour.answer) * machine.kv_bytes / 1e9
        needed = [fleet(machine, behaviour, users, rate, arguments.first_token) for users in (1e3, 1e5, 1e7)]
        print(
            f"| {machine.name} | {rate:.2f} | {without} | {share:.0%} of the time | {first:.1f} s | {half:.1f} s, {most:.1f} s | {tokens:.0f} "
            f"| {price / 3600 / tokens * 1e6:.2f} | {cache:.1f} GB | {' | '.join(f'{n:,}' for n in needed)} |"
        )
    print("\n| training GPT-2 124M | tok/s | $ per million tokens | days for 2.5 billion tokens on one machine |\n| --- | --- | --- | --- |")
    for name, rate, price in TRAINING:
        print(f"| {name} | {rate:,} | {price / 3600 / rate * 1e6:.2f} | {2.5e9 / rate / 86400:.1f} |")


def fleet(machine: Machine, behaviour: Behaviour, users: float, rate: float, first_token: float) -> int:
    """Replicas for so many users, and one more, so that one may be restarted or lost."""
    needed = behaviour.rate(users) / rate
    if needed > 8:
        return math.ceil(needed) + max(1, math.ceil(needed / 50))
    for n in range(1, 17):
        requests = behaviour.requests(behaviour.rate(users) / HEADROOM, 3000, 3)
        simulate(machine, requests, n)
        if measures(requests)[0] <= first_token:
            return n + 1
    return math.ceil(needed) + 1


async def calibrate(port: int) -> tuple[Machine, float]:
    """Measures one replica alone: the machine, and what a request takes beside its steps."""

    async def seconds(n_sequences: int, n_prompt: int, n_answer: int) -> float:
        times = []
        for attempt in range(7):
            bodies = [body_of(random.Random(f"{n_sequences} {n_prompt} {attempt} {k}"), n_prompt, n_answer) for k in range(n_sequences)]
            start = time.monotonic()
            answers = await asyncio.gather(*(send(port, "/v1/completions", body) for body in bodies))
            if wrong := [answer for answer in answers if not answer.is_complete]:
                raise CheckFailed(f"the replica does not answer: {wrong[0].error}")
            times.append(time.monotonic() - start)
        return quantile(times, 0.5)

    delay = await seconds(1, 1, 1)
    one = 200 / (await seconds(1, 1, 201) - delay)
    many = 8 * 200 / (await seconds(8, 1, 201) - await seconds(8, 1, 1))
    prompt = 400 / (await seconds(1, 401, 1) - delay)
    return Machine.of_rates("measured", prompt, one, many, 8, 0.0), delay


def body_of(rng: random.Random, n_prompt: int, n_answer: int) -> dict:
    """A prompt of token ids, so that nothing is in the prefix cache and the length is exact."""
    ids = [rng.randrange(100, 4000) for _ in range(n_prompt)]
    return {"prompt": ids, "max_tokens": n_answer, "temperature": 0, "ignore_eos": True}


async def compare(proxy_port: int, machine: Machine, delay: float, rate: float, seconds: float, cores: float) -> bool:
    behaviour = Behaviour(prompt=120, cached=0, answer=60)
    requests = behaviour.requests(rate, round(rate * seconds), 7)
    for request in requests:
        # The bundled model has a context of 512 tokens.
        request.n_prompt, request.n_answer = min(request.n_prompt, 350), min(request.n_answer, 150)
    rng, start, tasks = random.Random(9), time.monotonic(), []
    for request in requests:
        await asyncio.sleep(max(0.0, request.arrival - (time.monotonic() - start)))
        body = body_of(rng, request.n_prompt, request.n_answer)
        tasks.append(asyncio.create_task(send(proxy_port, "/v1/completions", body)))
    answers = await asyncio.gather(*tasks)
    if wrong := [answer for answer in answers if not answer.is_complete]:
        raise CheckFailed(f"a request failed: {wrong[0].error}")
    real = sorted(answer.seconds for answer in answers[len(answers) // 5 :])
    share = simulate(machine, requests, 3, cores, delay)
    _, half, most = measures(requests)
    real_half, real_most = quantile(real, 0.5), quantile(real, 0.95)
    print(
        f"| {rate:.0f} | {share:.0%} | {1000 * real_half:.0f} | {1000 * half:.0f} | {1000 * real_most:.0f} | {1000 * most:.0f} |", flush=True
    )
    return all(0.5 < simulated / measured < 2 for simulated, measured in [(half, real_half), (most, real_most)])


async def cost_of_proxy(proxy: Proxy):
    """Prints haproxy's processor time for a request and for a token of a stream."""

    def used() -> float:
        fields = Path(f"/proc/{proxy.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def cost(n: int, **changes) -> tuple[float, int]:
        start, limit = used(), asyncio.Semaphore(16)

        async def one(number: int):
            async with limit:
                return await send(proxy.port, "/v1/completions", body_of(random.Random(number), 20, 1) | changes)

        answers = await asyncio.gather(*(one(number) for number in range(n)))
        return used() - start, sum(answer.n_chunks for answer in answers)

    request = (await cost(3000))[0] / 3000
    seconds, n_chunks = await cost(400, stream=True, max_tokens=100)
    print(f"\nhaproxy takes {1e6 * request:.0f} us of a core for a request, {1e6 * (seconds - 400 * request) / n_chunks:.0f} us for a token of a stream")


def check(arguments) -> bool:
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        work = Path(folder)
        hearth = hearth_program(arguments.hearth)
        replicas = [Replica(hearth, name, free_port(), work, []).start() for name in NAMES]
        proxy = Proxy("haproxy", free_port(), replicas, work)
        try:
            for replica in replicas:
                replica.wait_until_ready()
            proxy.start()
            machine, delay = asyncio.run(calibrate(replicas[0].port))
            print(
                f"measured: a step takes {1e6 * machine.base:.0f} us, {1e6 * machine.per_sequence:.0f} us for each sequence and "
                f"{1e6 * machine.per_prompt_token:.0f} us for each token of a prompt; a request takes {1e3 * delay:.1f} ms beside\n"
            )
            print("| requests/s | a replica computes | p50 measured, ms | simulated | p95 measured, ms | simulated |\n| --- | --- | --- | --- | --- | --- |")
            rates = [float(rate) for rate in arguments.rate.split(",")]
            is_right = all([asyncio.run(compare(proxy.port, machine, delay, rate, arguments.seconds, arguments.cores)) for rate in rates])
            asyncio.run(cost_of_proxy(proxy))
            return is_right
        finally:
            proxy.end()
            for replica in replicas:
                replica.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    planned = commands.add_parser("plan", help="replicas and costs by machine")
    planned.add_argument("--first-token", type=float, default=2.0, help="95 %% of answers must begin within so many seconds [default: 2]")
    planned.add_argument("--price", action="append", default=[], metavar="NAME=DOLLARS", help="price of a machine per hour")
    checked = commands.add_parser("check", help="the simulation beside three real replicas")
    checked.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    checked.add_argument("--rate", default="10,25,40", help="requests per second [default: 10,25,40]")
    checked.add_argument("--seconds", type=float, default=30, help="how long each rate runs [default: 30]")
    checked.add_argument("--cores", type=float, default=1.4, help="cores that the replicas share [default: 1.4, what haproxy and the client leave of 2]")
    arguments = parser.parse_args()
    if arguments.command == "plan":
        plan(arguments)
        return 0
    return 0 if check(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
