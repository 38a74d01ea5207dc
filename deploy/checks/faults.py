#!/usr/bin/env python3
"""Loses replicas under load and counts what clients notice.

    deploy/checks/faults.py [--hearth PROGRAM] [--proxy haproxy,nginx,envoy] [--fault restart,drain,kill,stop,full] [--rate 12]

Three replicas of the bundled model run behind the proxy with the configuration of deploy/proxy. Requests arrive at random
times (Poisson) at `--rate` per second, whatever the replicas do: completions and chats, streamed or not, some in sessions,
some with prompts of 100 KB, and some whose client leaves. Faults:

- restart: each replica in turn gets SIGTERM, ends and starts again. No request may fail.
- drain: the same after haproxy was told to send nothing more to the replica, with bodies of 500 KB too, which do not fit
  into haproxy's buffer. For nginx and Envoy, `restart` has such bodies.
- kill: each replica in turn gets SIGKILL. Only answers whose first byte had arrived may fail.
- stop: one replica gets SIGSTOP: its connections stay open, and nothing comes.
- full: short queues and a burst of requests. Each is answered, or refused with 429 and `retry-after`.

A table shows requests that were sent and that failed, the 50th and 95th percentile of their time in ms, before, during and
after, and the tokens that were computed twice. The exit status is 1 if a rule is broken.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from replicas import NAMES, Answer, CheckFailed, Proxy, Replica, free_port, get, hearth_program, quantile, send

# How often each kind of request is sent.
KINDS = {"stream": 4, "whole": 4, "session": 4, "long stream": 1, "long whole": 1, "leaves": 2}
# nginx and Envoy notice by the longest time without a byte that a request's replica hangs. The check shortens it, so that it does
# not take ten minutes.
SHORTER = {
    "nginx": {"proxy_read_timeout 10m": "proxy_read_timeout 4s"},
    "envoy": {"per_try_idle_timeout: 600s": "per_try_idle_timeout: 4s"},
}


def request(kind: str, number: int, rng: random.Random) -> tuple[str, dict, dict, int | None]:
    """Path, body, headers, and after how many events the client leaves."""
    seed = {"temperature": 0, "max_tokens": rng.randint(24, 64), "ignore_eos": True}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    story = f"Tale {number}. Once upon a time, there was a {rng.choice(['fox', 'cat', 'bear', 'owl'])} who"
    headers = {"x-request-id": f"check-{number}"}
    if kind == "stream":
        return "/v1/completions", {"prompt": story, **seed, **usage}, headers, None
    if kind == "whole":
        return "/v1/completions", {"prompt": story, **seed}, headers, None
    if kind == "session":
        session = rng.randrange(30)
        turns = [{"role": "user", "content": f"I am client {session}. Tell me a story about a brave fox."}]
        turns += [{"role": "assistant", "content": "Once upon a time, there was a brave fox."}, {"role": "user", "content": f"And then {number}?"}]
        headers["x-session-id"] = f"session-{session}"
        return "/v1/chat/completions", {"messages": turns, **seed, **(usage if number % 2 else {})}, headers, None
    if kind in ("long stream", "long whole", "huge"):
        # 100 or 500 KB of text, of which the model reads the last 200 tokens.
        n_bytes = 500_000 if kind == "huge" else 100_000
        text = "The fox and the owl went home. " * (n_bytes // 31) + story
        body = {"prompt": text, "truncate_prompt_tokens": 200, **seed}
        return "/v1/completions", body | (usage if kind == "long stream" else {}), headers, None
    return "/v1/completions", {"prompt": story, **seed, **usage}, headers, rng.randint(0, 6)


class Load:
    """Requests at random times, until it is ended."""

    def __init__(self, port: int, rate: float, seed: int = 1):
        self.port, self.rate, self.rng, self.kinds = port, rate, random.Random(seed), dict(KINDS)
        self.answers: list[Answer] = []
        self.tasks: list[asyncio.Task] = []
        self.phase, self.phases = "before", {"before": [], "during": [], "after": []}
        self.number = 0
        # Tokens of answers that were in flight on replicas when these were lost.
        self.lost = 0.0
        self.is_ended = False

    def one(self, kind: str, **changes):
        path, body, headers, leaves = request(kind, self.number, self.rng)
        body |= changes
        self.number += 1
        phase = self.phase

        async def run():
            answer = await send(self.port, path, body, kind=kind, headers=headers, cancel_after=leaves, timeout=60)
            self.phases[phase].append(answer)

        self.tasks.append(asyncio.create_task(run()))

    async def run(self):
        while not self.is_ended:
            self.one(self.rng.choices(list(self.kinds), list(self.kinds.values()))[0])
            await asyncio.sleep(self.rng.expovariate(self.rate))

    async def finish(self):
        self.is_ended = True
        await asyncio.gather(*self.tasks)


async def until(condition, what: str, seconds: float = 60):
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        if time.monotonic() > end:
            raise CheckFailed(f"after {seconds} s it still does not hold that {what}")
        await asyncio.sleep(0.05)


async def start_again(replica: Replica):
    replica.start()
    await asyncio.to_thread(replica.wait_until_ready)


def tokens_in_flight(replica: Replica) -> float:
    """Tokens of answers that the replica has begun and not ended."""
    now = replica.metrics()
    return now.get("vllm:generation_tokens_total", 0) - now.get("vllm:request_generation_tokens_sum", 0)


async def restart(replicas, proxy, load, notes):
    statuses = []
    for replica in replicas:
        replica.signal(signal.SIGTERM)
        await until(lambda: replica.process.poll() is not None, f"replica {replica.name} has ended")
        statuses.append(replica.process.returncode)
        await start_again(replica)
        # As an orchestrator does (`minReadySeconds`): the proxy must have seen that it is back.
        await asyncio.sleep(4)
    notes.append(f"exit statuses {statuses}" + ("" if statuses == [0, 0, 0] else "; BROKEN: each must be 0"))


async def busy(victim: Replica, load: Load):
    """Gives all replicas work of half a second, and notes how much of it the victim has begun."""
    for _ in range(8):
        for kind in ["stream", "whole", "session"]:
            load.one(kind, max_tokens=240)
    await until(lambda: victim.metrics().get("vllm:num_requests_running", 0) >= 4, "four requests run on the replica")
    await asyncio.sleep(0.1)
    load.lost += await asyncio.to_thread(tokens_in_flight, victim)


async def drain(replicas, proxy, load, notes):
    for replica in replicas:
        proxy.haproxy(f"set server sessions/{replica.name} state drain; set server any/{replica.name} state drain")
        await asyncio.sleep(1)
        replica.signal(signal.SIGTERM)
        await until(lambda: replica.process.poll() is not None, f"replica {replica.name} has ended")
        await start_again(replica)
        proxy.haproxy(f"set server sessions/{replica.name} state ready; set server any/{replica.name} state ready")
        await asyncio.sleep(4)


async def kill(replicas, proxy, load, notes):
    for victim in replicas:
        await busy(victim, load)
        victim.signal(signal.SIGKILL)
        await asyncio.sleep(4)
        await start_again(victim)
        await asyncio.sleep(4)


async def stop(replicas, proxy, load, notes):
    victim = replicas[0]
    await busy(victim, load)
    victim.signal(signal.SIGSTOP)
    await asyncio.sleep(10)
    victim.signal(signal.SIGCONT)
    await asyncio.sleep(4)


async def full(replicas, proxy, load, notes):
    for _ in range(400):
        load.one("whole")
    await asyncio.gather(*load.tasks)
    refused = [answer for answer in load.phases["during"] if answer.status == 429]
    notes.append(f"{len(refused)} refused with 429")
    if not refused or any(not answer.retry_after for answer in refused):
        notes.append("BROKEN: a full queue must be a 429 with `retry-after`")


FAULTS = {"restart": restart, "drain": drain, "kill": kill, "stop": stop, "full": full}


def is_failed(fault: str, answer: Answer) -> bool:
    if answer.is_complete or answer.is_cancelled:
        return False
    return not (fault == "full" and answer.status == 429)


def report(proxy: str, fault: str, load: Load, notes: list[str]) -> bool:
    """Prints a row for each phase; returns whether the rules hold."""
    everything = [answer for phase in load.phases.values() for answer in phase]
    failed = [answer for answer in everything if is_failed(fault, answer)]
    not_begun = [answer for answer in failed if not answer.has_begun]
    for phase, answers in load.phases.items():
        times = [1000 * answer.seconds for answer in answers if answer.is_complete]
        bad = [answer for answer in answers if is_failed(fault, answer)]
        begun = sum(answer.has_begun for answer in bad)
        print(
            f"| {proxy} | {fault} | {phase} | {len(answers)} | {len(bad)} ({begun} begun) "
            f"| {quantile(times, 0.5):.0f} | {quantile(times, 0.95):.0f} |",
            flush=True,
        )
    if fault in ("kill", "stop"):
        # What clients have of streams that broke was computed once.
        twice = max(load.lost - sum(answer.n_chunks for answer in failed), 0)
        n_tokens = sum(answer.usage.get("completion_tokens", 0) for answer in everything)
        notes.append(f"{twice:.0f} tokens computed twice, {n_tokens} in answers")
    # In `stop`, nginx and Envoy may have to wait, but what comes after must be right.
    rules = {"restart": not failed, "drain": not failed, "kill": not not_begun, "stop": True, "full": not failed}
    after = [answer for answer in load.phases["after"] if is_failed(fault, answer)]
    is_right = rules[fault] and not after and not any("BROKEN" in note for note in notes)
    for what in sorted({f"{answer.kind}: {answer.error}" for answer in failed})[:6]:
        print(f"  failed: {what}")
    print(f"  {'; '.join(notes)}{'' if is_right else '; BROKEN'}", flush=True)
    return is_right


async def require_passes(proxy: Proxy):
    """The proxy passes tokens on at once, and neither metrics nor the loading of adapters."""
    answer = await send(proxy.port, "/v1/completions", {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True})
    if not answer.is_complete or answer.first_token > 0.5 * answer.seconds:
        raise CheckFailed(f"{proxy.kind} does not stream: first token after {answer.first_token:.3f} of {answer.seconds:.3f} s, {answer.error}")
    statuses = [(await asyncio.to_thread(get, proxy.port, "/metrics"))[0]]
    statuses += [(await send(proxy.port, f"/v1/{what}load_lora_adapter", {})).status for what in ("", "un")]
    if statuses != [404] * 3:
        raise CheckFailed(f"{proxy.kind} answers {statuses} to `/metrics` and the loading of adapters, expected 404 for each")


async def check(hearth: str, kind: str, fault: str, arguments) -> bool:
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        work = Path(folder)
        flags = ["--max-queue", "8", "--max-batch-size", "4"] if fault == "full" else []
        replicas = [Replica(hearth, name, free_port(), work, flags) for name in NAMES]
        proxy = Proxy(kind, free_port(), replicas, work, SHORTER.get(kind) if fault == "stop" else None)
        load, notes = Load(proxy.port, arguments.rate), []
        if fault == "drain" or (fault == "restart" and kind != "haproxy"):
            load.kinds["huge"] = 1
        try:
            for replica in replicas:
                replica.start()
            for replica in replicas:
                replica.wait_until_ready()
            proxy.start()
            await asyncio.sleep(3)
            await require_passes(proxy)
            running = asyncio.create_task(load.run())
            await asyncio.sleep(arguments.seconds)
            load.phase = "during"
            await FAULTS[fault](replicas, proxy, load, notes)
            load.phase = "after"
            await asyncio.sleep(arguments.seconds)
            await load.finish()
            await running
            is_right = report(kind, fault, load, notes)
            if not is_right and arguments.keep:
                Path(arguments.keep).mkdir(parents=True, exist_ok=True)
                for file in work.glob("*.log"):
                    (Path(arguments.keep) / f"{kind}-{fault}-{file.name}").write_bytes(file.read_bytes())
            return is_right
        finally:
            proxy.end()
            for replica in replicas:
                replica.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    parser.add_argument("--proxy", default="haproxy,nginx", help="which proxies [default: haproxy,nginx]")
    parser.add_argument("--fault", default="restart,drain,kill,stop,full", help="which faults [default: all]")
    parser.add_argument("--rate", type=float, default=12, help="requests per second [default: 12]")
    parser.add_argument("--seconds", type=float, default=8, help="how long the load runs before and after [default: 8]")
    parser.add_argument("--keep", metavar="DIR", help="keep the logs of a check that fails here")
    arguments = parser.parse_args()
    for value, known, what in [(arguments.proxy, Proxy.FILES, "proxy"), (arguments.fault, FAULTS, "fault")]:
        for name in value.split(","):
            if name not in known:
                parser.error(f"there is no {what} `{name}`: {', '.join(known)}")
    hearth = hearth_program(arguments.hearth)
    print("| proxy | fault | phase | sent | failed | p50, ms | p95, ms |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    results = [
        asyncio.run(check(hearth, kind, fault, arguments))
        for kind in arguments.proxy.split(",")
        for fault in arguments.fault.split(",")
        if fault != "drain" or kind == "haproxy"
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
