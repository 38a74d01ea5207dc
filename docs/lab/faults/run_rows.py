"""Section 2, the run: settings, lengths, signals, resuming, and the commands around it."""

import json
import os
import re
import signal
import struct
import subprocess
import time

import tiny_models
from builds import counted, row, short
from data_rows import chats, lines, sets

SECTION = "2"
BASE = ["model.max_seq_len=64", "sample.every=0", "schedule.kind=constant", "schedule.warmup_steps=1", "data.val_fraction=0.2"]


def tuned(build, out, *settings, data=None, flags=()):
    data = data or build.write("a.jsonl", lines(chats(40)))
    return build.train("finetune", tiny_models.base(), "--data", data, "--out", out, "--device", "cpu", *sets(*settings), *flags)


def metrics(out):
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def checkpoints(out):
    folder = out / "checkpoints"
    names = [each.name for each in folder.iterdir()] if folder.exists() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))


@row(SECTION, "a small set: defaults follow the data")
def handful(build):
    out = build.folder() / "run"
    ran = tuned(build, out, data=build.write("eight.jsonl", lines(chats(8))), flags=["--lora"])
    n_updates = sum("loss" in each for each in metrics(out))
    wide = tuned(build, build.folder() / "run", "schedule.epochs=3", data=build.write("forty.jsonl", lines(chats(40))), flags=["--lora"])
    text = f"8 conversations: {ran.said()}, {n_updates} updates; 40 conversations, 3 epochs: {wide.said()}"
    return ran.code == 0 and n_updates >= 20 and wide.code == 0, text


@row(SECTION, "epochs are epochs")
def epochs(build):
    out = build.folder() / "run"
    settings = [setting for setting in BASE if "val_fraction" not in setting and "max_seq_len" not in setting]
    ran = tuned(build, out, *settings, "schedule.epochs=3", "data.tokens_per_step=512", "model.max_seq_len=128", data=build.write("a.jsonl", lines(chats(9))))
    last = [each for each in metrics(out) if "loss" in each][-1:]
    passes = re.search(r"([\d.]+) passes", ran.text)
    epoch = last[0].get("epoch") if last else None
    return ran.code == 0 and passes is not None and float(passes[1]) == 3 and epoch == 3, f"{ran.said()}; said: {passes and passes[0]}; `epoch` of the last step: {epoch}"


@row(SECTION, "few updates are warned about")
def few_updates(build):
    ran = tuned(build, build.folder() / "run", *BASE, "schedule.max_steps=5")
    return "fewer than 20" in ran.text, short(next((line for line in ran.text.splitlines() if "warning" in line), "no warning"))


def prepared(build):
    text = build.write("a.txt", "".join(f"The fox number {i} sleeps by the river.\n" for i in range(300)))
    out = build.folder() / "data"
    build.train("prepare", text, "--tokenizer", tiny_models.base(), "--out", out)
    return out


@row(SECTION, "settings that do nothing")
def no_effect(build):
    data = prepared(build)

    def fault(command, *settings):
        out = build.folder() / "run"
        if command == "finetune":
            ran = tuned(build, out, *settings, flags=["--dry-run"])
        else:
            init = ["--init", tiny_models.base()] if "init" in command else []
            ran = build.train("pretrain", "--data", data, "--out", out, "--preset", "tiny", "--device", "cpu", "--dry-run", *init, *sets(*settings))
        return None if ran.code and settings[0].split("=")[0] in ran.text else ran.said()

    return counted([
        ("model.n_layers beside --init", fault("pretrain --init", "model.n_layers=3", "schedule.max_steps=50")),
        ("optim.muon.lr without Muon", fault("pretrain", "optim.muon.lr=0.1", "optim.matrices=adamw", "schedule.max_steps=50")),
        ("schedule.cooldown_ratio with a cosine", fault("pretrain", "schedule.cooldown_ratio=0.5", "schedule.kind=cosine", "schedule.max_steps=50")),
        ("objective.beta without DPO", fault("finetune", "objective.beta=0.5", "schedule.max_steps=50")),
        ("sample.top_k at temperature 0", fault("pretrain", "sample.top_k=5", "sample.temperature=0", "schedule.max_steps=50")),
        ("schedule.min_lr_ratio with a constant rate", fault("pretrain", "schedule.min_lr_ratio=0.5", "schedule.kind=constant", "schedule.max_steps=50")),
        ("data.vocab_size of quickstart", fault("finetune", "data.vocab_size=500", "schedule.max_steps=50")),
        ("eval.patience without evaluations", fault("finetune", "eval.patience=2", "data.val_fraction=0", "schedule.max_steps=50")),
    ])


def hangs_up():
    """A child of `nohup` would ignore the signal, and Hearth leaves it so."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@row(SECTION, "SIGHUP, SIGUSR1")
def signals(build):
    def fault(number):
        out = build.folder() / "run"
        data = build.write("a.jsonl", lines(chats(40)))
        command = ["finetune", tiny_models.base(), "--data", data, "--out", out, "--device", "cpu", *sets(*BASE, "schedule.max_steps=100000", "checkpoint.every=90000", "eval.every=90000", "eval.log_every=1")]
        process = subprocess.Popen(build.command("hearth-train", command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=hangs_up)
        try:
            until = time.time() + 30
            while len(metrics(out)) < 5 and time.time() < until and process.poll() is None:
                time.sleep(0.05)
            os.kill(process.pid, number)
            until = time.time() + 15
            while not checkpoints(out) and process.poll() is None and time.time() < until:
                time.sleep(0.05)
            return None if checkpoints(out) else f"ended ({process.poll()}) without a checkpoint"
        finally:
            process.kill()
            process.wait()

    return counted((name, fault(getattr(signal, name))) for name in ["SIGHUP", "SIGUSR1", "SIGTERM", "SIGINT"])


def event_times(out):
    """The wall times of the records of TensorBoard."""
    times = []
    for path in sorted(out.rglob("*tfevents*")):
        data = path.read_bytes()
        while len(data) >= 12:
            (length,) = struct.unpack("<Q", data[:8])
            record, data = data[12 : 12 + length], data[16 + length :]
            if record[:1] == b"\x09":
                times.append(struct.unpack("<d", record[1:9])[0])
    return times


@row(SECTION, "TensorBoard's times and `seconds` after a resume")
def times(build):
    out = build.folder() / "run"
    first = tuned(build, out, *BASE, "schedule.max_steps=8", "checkpoint.every=4", "eval.log_every=1")
    before = {round(each, 3) for each in event_times(out)}
    time.sleep(1.5)
    second = tuned(build, out, *BASE, "schedule.max_steps=12", "checkpoint.every=4", "eval.log_every=1", flags=["--resume"])
    seconds = [each["seconds"] for each in metrics(out) if "seconds" in each]
    kept = before & {round(each, 3) for each in event_times(out)}
    text = f"{first.said()}, {second.said()}; {len(kept)} of {len(before)} earlier times are kept; `seconds` {'rise' if seconds == sorted(seconds) else 'begin again'}"
    return first.code == second.code == 0 and len(kept) >= len(before) - 1 and seconds == sorted(seconds), text


@row(SECTION, "`best` after a kill between model and checkpoint")
def best(build):
    import shutil

    out = build.folder() / "run"
    settings = [*BASE, "optim.lr=1e-3", "checkpoint.every=6", "eval.every=2", "schedule.max_steps=12"]
    first = tuned(build, out, *settings)
    best_before = [each["step"] for each in metrics(out) if each.get("best")]
    shutil.rmtree(out / "checkpoints" / "step-00000012", ignore_errors=True)
    second = tuned(build, out, *settings, flags=["--resume"])
    best_after = [each["step"] for each in metrics(out) if each.get("best")]
    return first.code == second.code == 0 and best_before == best_after and 12 in best_before, f"best evaluations before {best_before}, after the resume {best_after}"


@row(SECTION, "resume with a smaller micro-batch")
def micro_batch(build):
    out = build.folder() / "run"
    settings = [*BASE, "data.tokens_per_step=256", "data.rows=unpacked"]
    tuned(build, out, *settings, "schedule.max_steps=4", "data.micro_batch_size=4")
    second = tuned(build, out, *settings, "schedule.max_steps=8", "data.micro_batch_size=2", flags=["--resume"])
    return second.code == 0, second.said()


@row(SECTION, "`model.d_model=6 model.n_heads=2` names the setting")
def odd_width(build):
    ran = build.train("pretrain", "--data", prepared(build), "--out", build.folder() / "run", "--preset", "tiny", *sets("model.arch=qwen3", "model.d_model=6", "model.n_heads=2", "schedule.max_steps=50"))
    return "model.d_model" in ran.text or "model.head_dim" in ran.text, ran.said()


NAMES = {
    "batch_size": "data.micro_batch_size", "block_size": "model.max_seq_len", "learning_rate": "optim.lr", "per_device_train_batch_size": "data.micro_batch_size",
    "num_train_epochs": "schedule.epochs", "max_iters": "schedule.max_steps", "n_embd": "model.d_model", "warmup_ratio": "schedule.warmup_steps",
    "lora_alpha": "lora.alpha", "eval_interval": "eval.every", "gradient_accumulation_steps": "data.tokens_per_step", "save_steps": "checkpoint.every",
    "weight_decay": "optim.weight_decay", "dropout": "model.dropout", "beta2": "optim.beta2", "max_steps": "schedule.max_steps", "lr": "optim.lr", "epochs": "schedule.epochs",
}


@row(SECTION, "names of other programs")
def names(build):
    def fault(name):
        ran = tuned(build, build.folder() / "run", f"{name}=1", flags=["--dry-run"])
        return None if ran.code and NAMES[name] in ran.text else ran.said()

    return counted((name, fault(name)) for name in NAMES)


@row(SECTION, "`hearth-train export`")
def export(build):
    results = []
    for name in ["export", "serve", "chat", "quantize"]:
        ran = build.train(name)
        results.append((name, None if f"hearth {name}" in ran.text else ran.said()))
    return counted(results)


@row(SECTION, "early stopping")
def patience(build):
    out = build.folder() / "run"
    ran = tuned(build, out, *BASE, "optim.lr=0.5", "eval.every=2", "eval.patience=2", "schedule.max_steps=200")
    return ran.code == 0 and (checkpoints(out) or [200])[-1] < 200, f"{ran.said()}; ended at step {(checkpoints(out) or [None])[-1]}"


@row(SECTION, "epochs and tokens in the progress line and metrics")
def progress(build):
    out = build.folder() / "run"
    ran = tuned(build, out, *BASE, "schedule.max_steps=6", "eval.log_every=1")
    line = next((line for line in ran.text.splitlines() if re.match(r"\s*step \d+", line)), "")
    first = next((each for each in metrics(out) if "loss" in each), {})
    return "epoch" in line and "epoch" in first and "tokens" in first, f"line: {short(line)}; metrics: {', '.join(first)}"


@row(SECTION, "`sample -n`")
def sample(build):
    ran = build.train("sample", tiny_models.base(), "a", "-n", "2", "--device", "cpu", *sets("sample.max_tokens=4"))
    return ran.code == 0 and "---" in ran.out, ran.said()
