"""Kills a run of a translator with SIGKILL at random moments, resumes it after each, and compares its bits with those of a run that was
never stopped: weights, moments and metrics without times.

Usage: python check_killed.py HEARTH_TRAIN [KILLS]
"""

import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 120
SETS = [
    "model.d_model=32", "model.max_seq_len=32", "model.dropout=0.2", "data.micro_batch_size=4", "data.tokens_per_step=256",
    f"schedule.max_steps={STEPS}", "eval.every=7", "eval.log_every=3", "checkpoint.every=5", "objective.label_smoothing=0.1",
    "sample.every=25", "sample.prompt=one two",
]
TIMES = ("tok_per_sec", "seconds")
WORDS = "one two three four five".split()


def pairs(n):
    for number in range(n):
        chosen = [WORDS[(number * (at + 1) + at) % 5] for at in range(2 + number % 3)]
        yield " ".join(chosen), " ".join(word + "o" for word in reversed(chosen))


def main():
    program, n_kills = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        records = list(pairs(400))
        (folder / "text.txt").write_text("".join(f"{source}\n{target}\n" for source, target in records))
        (folder / "pairs.jsonl").write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in records))
        run(program, folder, ["tokenizer", "text.txt", "--out", "tokenizer", "--vocab-size", "280", "--encoder"])
        command = ["pretrain", "--data", "pairs.jsonl", "--tokenizer", "tokenizer", "--preset", "seq2seq-tiny", "--device", "cpu"]
        command += [part for name in SETS for part in ("--set", name)]
        begun = time.monotonic()
        run(program, folder, [*command, "--out", "whole"])
        took = time.monotonic() - begun
        expected = bits(folder / "whole")

        seed = random.randrange(1 << 32)
        moments = random.Random(seed)
        print(f"a whole run takes {took:.1f} s; kills are seeded by {seed}")
        killed = 0
        while killed < n_kills:
            again = [*command, "--out", "killed", "--resume"]
            child = subprocess.Popen([program, *again], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                # So that most of them come before the end.
                status = child.wait(took * (0.1 + 1.2 * moments.random() / n_kills))
                assert status == 0, f"the run failed with {status}"
                print(f"it ended after {killed} kills; begun anew")
                subprocess.run(["rm", "-r", folder / "killed"], check=True)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                killed += 1
        run(program, folder, [*command, "--out", "killed", "--resume"])
        found = bits(folder / "killed")
        wrong = [name for name in expected if found[name] != expected[name]]
        assert not wrong, f"after {killed} kills, these differ: {wrong}"
        print(f"after {killed} kills: the same bits of {', '.join(expected)}")


def run(program, folder, args):
    done = subprocess.run([program, *args], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{args}: {done.stderr}"


def bits(run):
    checkpoint = run / f"checkpoints/step-{STEPS:08}"
    files = {"the model": run / "model/model.safetensors", "weights": checkpoint / "model.safetensors",
             "moments": checkpoint / "train_state/moments.safetensors"}
    digests = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    digests["metrics"] = [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
    return digests


if __name__ == "__main__":
    main()
