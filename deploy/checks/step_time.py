#!/usr/bin/env python3
"""How long a step of training takes in several processes: a model of its time, and real runs beside it.

    deploy/checks/step_time.py predict [--tokens N] [--sync-every H]   the table of deploy/SCALE.md
    deploy/checks/step_time.py check HEARTH_TRAIN [--steps N]          one and two processes on this machine (needs mpirun)

HEARTH_TRAIN is a build with `--features mpi`. What a process does in a step, in order (docs/training/several-machines.md):

1. It computes its micro-batches.
2. It tells the others whether it has gradients, in log2 N short exchanges; so it does with the squares of its gradients before it clips,
   and with signals at the end.
3. Gradients: log2 N exchanges, with a rank twice as far away each time. It sends what ranks on the other side own, and waits for both.
4. It updates the parameters that it owns.
5. Weights: the same exchanges in the other order.

An exchange takes `latency` for each message of at most 16 MB, and for each byte the time to read, copy and add it in memory
(`per_byte`) and to go over the wire. Sending and receiving go on at once. Nothing overlaps with computing.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

# Values that are sent in one message, about: `BUNDLE` in training/src/run/sharding.rs.
BUNDLE = 1 << 22
# What `check` found on two cores of a Zen 5, one for each process: for `predict`. Between machines the wire comes on top.
PER_BYTE = 3.1e-9
UPDATE_PER_VALUE = 1.3e-9
# Assumed: TCP between two machines, and the 100 us for which a waiting rank sleeps.
LATENCY = 200e-6
# Training tokens per second of GPT-2 124M on one machine: deploy/SCALE.md.
RATES = {"2 cores Zen 5, f32": 444, "H200, bf16": 65_200}
NETWORKS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}


@dataclass(frozen=True)
class Costs:
    """Seconds: of a micro-batch, of the update of one value, of a byte in memory and on the wire, of a message."""

    micro_batch: float
    update_per_value: float
    # What each process does in a step besides.
    rest: float = 0.0
    per_byte: float = 0.0
    wire_per_byte: float = 0.0
    latency: float = 0.0


# A parameter: its path, its values, and the values of its optimizer's state.
Param = tuple[str, int, int]


def owners(params: list[Param], n_ranks: int) -> dict[str, int]:
    """Which rank owns a parameter: `owners` in training/src/run/sharding.rs."""
    loads, found = [0] * n_ranks, {}
    for path, _, n_state in sorted(params, key=lambda param: (-param[2], param[0])):
        owner = min(range(n_ranks), key=lambda rank: (loads[rank], rank))
        loads[owner] += n_state
        found[path] = owner
    return found


class Machines:
    """N ranks, and when each of them is done with what it does."""

    def __init__(self, params: list[Param], n_ranks: int, costs: Costs):
        self.n, self.costs, self.params = n_ranks, costs, params
        self.times = [0.0] * n_ranks
        self.n_levels = n_ranks.bit_length() - 1
        self.owned = [0] * n_ranks
        # Values that a rank sends at a level on the way of gradients, and receives on the way of weights.
        self.sent = [[0] * n_ranks for _ in range(self.n_levels)]
        for path, owner in owners(params, n_ranks).items():
            n_values = next(n for other, n, _ in params if other == path)
            self.owned[owner] += n_values
            for rank in range(n_ranks):
                differs = rank ^ owner
                if differs:
                    self.sent[(differs & -differs).bit_length() - 1][rank] += n_values

    def exchange(self, level: int, n_values: list[int]) -> None:
        """Each rank sends so many values to the one that differs from it in this bit."""
        before, costs = self.times[:], self.costs
        for rank in range(self.n):
            peer = rank ^ (1 << level)
            most = max(n_values[rank], n_values[peer])
            n_messages = max(1, math.ceil(most / BUNDLE))
            each = 4 * most * (costs.per_byte + costs.wire_per_byte)
            self.times[rank] = max(before[rank], before[peer]) + n_messages * costs.latency + each

    def gather(self) -> None:
        """A short message of each rank to all: its length first."""
        for level in range(self.n_levels):
            self.exchange(level, [0] * self.n)
            self.exchange(level, [0] * self.n)

    def sum_gradients(self) -> None:
        for level in range(self.n_levels):
            self.exchange(level, self.sent[level])

    def send_weights(self) -> None:
        for level in reversed(range(self.n_levels)):
            # A rank receives what it has sent, and its peer sends it.
            self.exchange(level, [self.sent[level][rank ^ (1 << level)] for rank in range(self.n)])

    def compute(self, n_micro_batches: int) -> None:
        share = max(1 << (n_micro_batches - 1).bit_length(), self.n) // self.n
        for rank in range(self.n):
            own = min((rank + 1) * share, n_micro_batches) - min(rank * share, n_micro_batches)
            self.times[rank] += own * self.costs.micro_batch + self.costs.rest

    def update(self, owned: list[int]) -> None:
        self.times = [time + n * self.costs.update_per_value for time, n in zip(self.times, owned)]


def step_time(params: list[Param], n_ranks: int, n_micro_batches: int, costs: Costs) -> float:
    """Seconds of a step."""
    machines = Machines(params, n_ranks, costs)
    machines.compute(n_micro_batches)
    machines.gather()
    machines.sum_gradients()
    machines.gather()
    machines.update(machines.owned)
    machines.send_weights()
    machines.gather()
    return max(machines.times)


def replicas_step_time(params: list[Param], n_ranks: int, n_micro_batches: int, costs: Costs, sync_every: int) -> float:
    """Seconds of a step with a replica on each rank, on average over the steps from one meeting to the next."""
    n_values = sum(n for _, n, _ in params)
    step = Machines(params, n_ranks, costs)
    step.compute(n_micro_batches)
    step.gather()
    step.update([n_values] * n_ranks)
    step.gather()
    meeting = Machines(params, n_ranks, costs)
    meeting.sum_gradients()
    meeting.update(meeting.owned)
    meeting.send_weights()
    return max(step.times) + max(meeting.times) / sync_every


def gpt2(n_layers: int, d: int, n_vocab: int, n_positions: int) -> list[Param]:
    """The parameters of a GPT-2 with AdamW, which has two values of state for each."""
    sizes = [("embedding", n_vocab * d), ("positions", n_positions * d), ("norm.weight", d), ("norm.bias", d)]
    of_block = {"norm1.weight": d, "norm1.bias": d, "qkv": 3 * d * d, "qkv.bias": 3 * d, "out": d * d, "out.bias": d}
    of_block |= {"norm2.weight": d, "norm2.bias": d, "up": 4 * d * d, "up.bias": 4 * d, "down": 4 * d * d, "down.bias": d}
    sizes += [(f"blocks.{layer:02}.{name}", n) for layer in range(n_layers) for name, n in of_block.items()]
    return [(path, n, 2 * n) for path, n in sizes]


def predict(n_tokens: int, sync_every: int) -> None:
    row = 1024
    params = gpt2(12, 768, 50_257, row)
    n_values, n_micro = sum(n for _, n, _ in params), n_tokens // row
    print(f"GPT-2, {n_values / 1e6:.1f} million parameters, {n_tokens} tokens in a step, a row of {row} in a micro-batch\n")
    print(f"| machine | machines | network | computing, s | a step, s | tok/s | of N times one | with replicas that meet every {sync_every} steps |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for machine, rate in RATES.items():
        update = UPDATE_PER_VALUE if "cores" in machine else 0.0
        # The rate includes the update, which is measured with eight rows.
        micro = row / rate - update * n_values / 8
        for n in [8, 64, 512]:
            for network, bandwidth in NETWORKS.items():
                costs = Costs(micro, update, per_byte=PER_BYTE, wire_per_byte=1 / bandwidth, latency=LATENCY)
                alone = step_time(params, 1, n_micro, costs)
                took = step_time(params, n, n_micro, costs)
                apart = replicas_step_time(params, n, n_micro, costs, sync_every)
                computing = n_micro / n * micro
                shares = [f"{100 * alone / n / time:.0f} %" for time in (took, apart)]
                print(f"| {machine} | {n} | {network} | {computing:.2f} | {took:.2f} | {n_tokens / took:,.0f} | {shares[0]} | {shares[1]} |")
    print("\nBytes of one direction, as parts of the gradient: what a rank sends at most, and what the longest chain of exchanges waits for:")
    for n in [2, 4, 8, 64, 512]:
        sent = Machines(params, n, Costs(0, 0)).sent
        most = max(sum(level[rank] for level in sent) for rank in range(n))
        chain = Machines(params, n, Costs(0, 0, wire_per_byte=1.0))
        chain.sum_gradients()
        print(f"{n} ranks: (N-1)/N is {(n - 1) / n:.3f}, a rank sends {most / n_values:.3f}, the chain has {max(chain.times) / 4 / n_values:.3f}")


# The models of `check`: their settings, and the micro-batches of a step.
MODELS = {
    "small": ["model.n_layers=6", "model.d_model=256", "model.n_heads=8"],
    "wide": ["model.n_layers=3", "model.d_model=640", "model.n_heads=10"],
}
MICRO_BATCHES = [2, 8]
MICRO_TOKENS = 256


class Runs:
    def __init__(self, program: str, work: Path, n_steps: int):
        self.program, self.work, self.n_steps = program, work, n_steps
        self.text = work / "text.txt"
        self.text.write_text("".join(f"line {n * n % 17} of the house\n" for n in range(4000)))

    def measure(self, model: str, n_ranks: int, n_micro: int) -> tuple[float, Path]:
        """Seconds of a step, the lower quartile of all but the first three, and the run's folder."""
        out = self.work / f"{model}-{n_ranks}-{n_micro}"
        sets = [*MODELS[model], "model.max_seq_len=64", "data.micro_batch_size=4", f"data.tokens_per_step={n_micro * MICRO_TOKENS}"]
        sets += [f"schedule.max_steps={self.n_steps}", "schedule.kind=constant", "eval.every=0", "eval.log_every=1", "checkpoint.every=0"]
        command = [self.program, "quickstart", str(self.text), "--out", str(out), "--preset", "tiny", "--device", "cpu"]
        command += [argument for one in [*sets, "sample.every=0"] for argument in ("--set", one)]
        if n_ranks > 1:
            command = ["mpirun", "-np", str(n_ranks), *command]
        env = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HEARTH_THREADS": "1"}
        ended = subprocess.run(command, env=env, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"error: `{' '.join(command)}` ended with {ended.returncode}\n{ended.stderr}")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        times = [n_micro * MICRO_TOKENS / line["tok_per_sec"] for line in lines if line.get("tok_per_sec")][3:]
        return statistics.quantiles(times, n=4)[0], out


def params_of(run: Path) -> list[Param]:
    """The parameters of a run, from the header of its optimizer's state."""
    [checkpoint] = (run / "checkpoints").iterdir()
    with (checkpoint / "train_state/moments.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found: dict[str, list[int]] = {}
    for name, info in header.items():
        if name != "__metadata__":
            found.setdefault(name.rpartition(".")[0], []).append(info["shape"][0])
    return [(path, sizes[0], sum(sizes)) for path, sizes in found.items()]


def check(program: str, n_steps: int) -> None:
    if shutil.which("mpirun") is None:
        raise SystemExit("error: there is no mpirun\nhint: on Debian, apt-get install openmpi-bin")
    with tempfile.TemporaryDirectory(prefix="step-time-") as work:
        runs = Runs(str(Path(program).resolve()), Path(work), n_steps)
        per_byte = None
        print("| parameters | micro-batches | one process, ms | two, predicted | two, measured | measured / predicted |")
        print("| --- | --- | --- | --- | --- | --- |")
        for model in MODELS:
            (few, run), (many, _) = (runs.measure(model, 1, n_micro) for n_micro in MICRO_BATCHES)
            params = params_of(run)
            n_values = sum(n for _, n, _ in params)
            micro = (many - few) / (MICRO_BATCHES[1] - MICRO_BATCHES[0])
            costs = Costs(micro, (few - MICRO_BATCHES[0] * micro) / n_values, latency=20e-6)
            for n_micro, alone in zip(MICRO_BATCHES, [few, many]):
                measured, _ = runs.measure(model, 2, n_micro)
                if per_byte is None:
                    # Two processes of the first model say what a byte costs; all others are predicted.
                    base = step_time(params, 2, n_micro, costs)
                    n_bytes = step_time(params, 2, n_micro, Costs(0, 0, per_byte=1.0))
                    per_byte = max(measured - base, 0.0) / n_bytes
                    note = "fitted"
                    predicted = measured
                else:
                    predicted = step_time(params, 2, n_micro, replace(costs, per_byte=per_byte))
                    note = f"{measured / predicted:.2f}"
                print(f"| {n_values / 1e6:.2f} M | {n_micro} | {1e3 * alone:.1f} | {1e3 * predicted:.1f} | {1e3 * measured:.1f} | {note} |", flush=True)
            print(f"<!-- a micro-batch {1e3 * micro:.2f} ms, the update {1e9 * costs.update_per_value:.2f} ns a value -->")
        print(f"\na byte in memory: {1e9 * per_byte:.3f} ns ({1 / per_byte / 1e9 if per_byte else math.inf:.2f} GB/s)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_predict = commands.add_parser("predict")
    of_predict.add_argument("--tokens", type=int, default=524_288, help="tokens in a step [default: 524288]")
    of_predict.add_argument("--sync-every", type=int, default=50, help="steps from one meeting of replicas to the next [default: 50]")
    of_check = commands.add_parser("check")
    of_check.add_argument("program")
    of_check.add_argument("--steps", type=int, default=40, help="steps of each run [default: 40]")
    arguments = parser.parse_args()
    if arguments.command == "predict":
        predict(arguments.tokens, arguments.sync_every)
    else:
        check(arguments.program, arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
