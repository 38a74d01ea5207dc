#!/usr/bin/env python3
"""Training speed beside PyTorch, in one command, alone on the machine (pip install torch):

    training/benches/measure_peers.py target/release/hearth-train [--rows NAME ...] [--rounds 3]

Each round runs `hearth-train bench` and then PyTorch on the same shape, on random tokens. PyTorch runs the training step of
nanoGPT, written anew here: flash attention, fused AdamW, clipping, f32; in rows named bf16, products under `torch.autocast`.
Prints a Markdown table: the median over the rounds of the speed, of the ratio within a round, and of peak memory, each less what
the process held before there was a model.

With `--to-loss TEXT`, nanoGPT's CPU run (2,000 steps of 12 x 64, an evaluation over the whole validation split every 250) in
PyTorch, and the presets `shakespeare-char-cpu` and `shakespeare-fast` until they have the same loss, +0.01: times from the first
step on, evaluations included.

With `--device gpu`, the rows named gpu: on a card that PyTorch reaches through CUDA. In bf16 PyTorch's model is compiled.

The row `lora` trains an adapter of a real model beside peft (pip install transformers peft): `--model DIR`.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

# The row that needs a model: settings, rows and length. Rank 16 on all matrices.
LORA = (["--set", "lora.r=16", "--set", "data.micro_batch_size=4", "--set", "model.max_seq_len=256", "--set", "data.tokens_per_step=1024"], [4, 256])

# name: (settings of `hearth-train bench`, [layers, heads, width, rows, length, vocabulary], the class of model)
ROWS = {
    "4x128": (["--preset", "shakespeare-char-cpu"], [4, 4, 128, 12, 64, 65], "gpt2"),
    "6x384": (
        ["--preset", "shakespeare-char", "--set", "data.micro_batch_size=8", "--set", "model.dropout=0"],
        [6, 6, 384, 8, 256, 65],
        "gpt2",
    ),
    "gpt2-124m": (
        ["--preset", "gpt2-124m", "--set", "data.micro_batch_size=2", "--set", "model.max_seq_len=512"]
        + ["--set", "data.tokens_per_step=1024"],
        [12, 12, 768, 2, 512, 50257],
        "gpt2",
    ),
    "llama-8x512": (
        ["--preset", "shakespeare-char-cpu", "--set", "model.arch=llama", "--set", "model.n_layers=8"]
        + ["--set", "model.n_heads=8", "--set", "model.d_model=512", "--set", "model.d_ff=1376"]
        + ["--set", "model.max_seq_len=256", "--set", "data.micro_batch_size=8", "--set", "model.tie_embeddings=false"],
        [8, 8, 512, 8, 256, 8192],
        "llama",
    ),
}
GPU_ROWS = {
    "gpt2-124m-gpu": (
        ["--preset", "gpt2-124m", "--set", "data.micro_batch_size=8", "--set", "data.tokens_per_step=8192"],
        [12, 12, 768, 8, 1024, 50257],
        "gpt2",
    ),
}
for rows, name in [(ROWS, "gpt2-124m"), (ROWS, "llama-8x512"), (GPU_ROWS, "gpt2-124m-gpu")]:
    settings, shape, kind = rows[name]
    rows[f"{name}-bf16"] = ([*settings, "--set", "optim.precision=bf16"], shape, kind)


def model_of(torch, kind, layers, heads, width, length, vocabulary):
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            bias = kind == "gpt2"
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)

        def forward(self, x, angles):
            batch, n, _ = x.shape
            q, k, v = (part.view(batch, n, heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, 2))
            if angles is not None:
                q, k = rotate(q, *angles), rotate(k, *angles)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(batch, n, width))

    def rotate(x, cos, sin):
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            if kind == "gpt2":
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            else:
                self.gate, self.up = (nn.Linear(width, 1376, bias=False) for _ in range(2))
                self.down = nn.Linear(1376, width, bias=False)

        def forward(self, x):
            if kind == "gpt2":
                return self.down(functional.gelu(self.up(x)))
            return self.down(functional.silu(self.gate(x)) * self.up(x))

    norm = (lambda: nn.LayerNorm(width)) if kind == "gpt2" else (lambda: nn.RMSNorm(width, eps=1e-5))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.attention, self.norm2, self.mlp = norm(), Attention(), norm(), Mlp()

        def forward(self, x, angles):
            x = x + self.attention(self.norm1(x), angles)
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.places = nn.Embedding(length, width) if kind == "gpt2" else None
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), norm()
            self.head = nn.Linear(width, vocabulary, bias=False)
            if kind == "gpt2":
                self.head.weight = self.tokens.weight
            half = width // heads // 2
            waves = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
            self.angles = (waves.cos(), waves.sin()) if kind == "llama" else None
            # As in nanoGPT: the two matrices of a block that write into the residual stream start smaller, biases at 0.
            for name, parameter in self.named_parameters():
                if name.endswith(("out.weight", "down.weight")):
                    nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
                elif parameter.dim() >= 2:
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, ids, targets):
            x = self.tokens(ids)
            if self.places is not None:
                x = x + self.places(torch.arange(length, device=ids.device))
            for block in self.blocks:
                x = block(x, self.angles)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))

    return Model()


def peer(kind, shape, steps, is_bf16, device):
    """The training step of nanoGPT. Prints one line of JSON."""
    import torch

    layers, heads, width, rows, length, vocabulary = shape
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device(device):
        model = model_of(torch, kind, layers, heads, width, length, vocabulary)
    forward = torch.compile(model) if is_bf16 and device == "cuda" else model
    forward = torch.autocast(device, dtype=torch.bfloat16)(forward) if is_bf16 else forward
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    loss_of = lambda data: forward(data[:, :-1], data[:, 1:].contiguous())
    time_steps(torch, model, optimizer, loss_of, (rows, length, vocabulary), steps, before)


def peft_peer(model_dir, steps):
    """A training step of peft's adapter. Prints one line of JSON."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    rows, length = LORA[1]
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    vocabulary = model.config.vocab_size
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.99), fused=True)
    # `transformers` shifts the labels itself.
    loss_of = lambda data: model(input_ids=data[:, :-1], labels=data[:, :-1]).loss
    time_steps(torch, model, optimizer, loss_of, (rows, length, vocabulary), steps, before)


def time_steps(torch, model, optimizer, loss_of, sizes, steps, before):
    rows, length, vocabulary = sizes
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    times = []
    for _ in range(3 + steps):
        data = torch.randint(0, vocabulary, (rows, length + 1), device=device)
        wait()
        started = time.perf_counter()
        loss_of(data).backward()
        torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - started)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak
    report = {"tok_per_sec": rows * length / statistics.median(times[3:]), "peak_bytes": peak}
    print(json.dumps(report))


def nanogpt_run(text):
    """nanoGPT's CPU run on characters. Prints one line of JSON: its last loss, and the seconds from the first step on."""
    import torch

    text = open(text, encoding="utf-8").read()
    characters = sorted(set(text))
    number = {c: n for n, c in enumerate(characters)}
    ids = torch.tensor([number[c] for c in text])
    train, val = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
    torch.manual_seed(1337)
    torch.set_num_threads(os.cpu_count())
    rows, length, steps, warmup, peak, least = 12, 64, 2000, 100, 1e-3, 1e-4
    model = model_of(torch, "gpt2", 4, 4, 128, length, len(characters))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.99), fused=True)

    def val_loss():
        starts = torch.arange(0, len(val) - length, length)
        with torch.no_grad():
            losses = [
                model(torch.stack([val[s : s + length] for s in part]), torch.stack([val[s + 1 : s + 1 + length] for s in part])).item()
                * len(part)
                for part in starts.split(rows)
            ]
        return sum(losses) / len(starts)

    started, loss = time.perf_counter(), None
    for step in range(steps):
        share = (step - warmup) / (steps - warmup)
        rate = peak * (step + 1) / (warmup + 1) if step < warmup else least + (peak - least) * 0.5 * (1 + math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(train) - length, (rows,))
        x = torch.stack([train[s : s + length] for s in starts])
        y = torch.stack([train[s + 1 : s + 1 + length] for s in starts])
        model(x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 250 == 0:
            loss = val_loss()
    print(json.dumps({"val_loss": loss, "seconds": time.perf_counter() - started}))


def seconds_to(loss, hearth_train, preset, text):
    """Seconds from the first step until an evaluation has at most `loss`, and that evaluation's step and loss."""
    with tempfile.TemporaryDirectory() as work:
        out = f"{work}/run"
        command = [hearth_train, "quickstart", text, "--out", out, "--preset", preset, "--device", "cpu", "--json"]
        report = last_line([*command, "--set", "eval.every=250", "--set", "sample.every=0"])
        with open(f"{out}/metrics.jsonl") as lines:
            records = [json.loads(line) for line in lines]
    for at, record in enumerate(records):
        if record.get("val_loss", math.inf) <= loss:
            later = [r["seconds"] for r in records[at:] if "seconds" in r]
            return (later or [report["seconds"]])[0], record["step"], record["val_loss"]
    return math.inf, None, min(record["val_loss"] for record in records if "val_loss" in record)


def race(hearth_train, text, rounds):
    for number in range(rounds):
        peer = last_line([sys.executable, __file__, "--peer", "nanogpt", "--to-loss", text])
        print(f"round {number + 1}: nanoGPT's loop {peer['seconds']:.1f} s to {peer['val_loss']:.4f}", flush=True)
        for preset in ["shakespeare-char-cpu", "shakespeare-fast"]:
            seconds, step, loss = seconds_to(peer["val_loss"] + 0.01, hearth_train, preset, text)
            ratio = seconds / peer["seconds"]
            print(f"  {preset} {seconds:.1f} s to {loss:.4f} after {step} steps: {ratio:.2f} of the time", flush=True)


def last_line(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hearth_train", nargs="?", help="the binary")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, "lora", *GPU_ROWS], help="all of the device by default")
    parser.add_argument("--to-loss", metavar="TEXT", help="measure the time to nanoGPT's loss on this text (tiny Shakespeare)")
    parser.add_argument("--model", help="the model of the row lora, a model dir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help="steps of a round (by default as many as take some seconds)")
    args = parser.parse_args()
    if args.peer == "nanogpt":
        return nanogpt_run(args.to_loss)
    if args.peer == "lora":
        return peft_peer(args.model, args.steps)
    on_gpu = args.device == "gpu"
    table = GPU_ROWS if on_gpu else ROWS
    args.rows = args.rows or list(table)
    if args.peer:
        _, shape, kind = table[args.peer]
        return peer(kind, shape, args.steps, args.peer.endswith("bf16"), "cuda" if on_gpu else "cpu")
    if not on_gpu and set(args.rows) & set(GPU_ROWS) or on_gpu and set(args.rows) - set(GPU_ROWS):
        parser.error(f"rows of `--device {args.device}` are {', '.join(table)}")
    if "lora" in args.rows and not args.model:
        parser.error("the row lora needs --model")
    if not args.hearth_train:
        parser.error("name the hearth-train binary")
    if args.to_loss:
        return race(args.hearth_train, args.to_loss, args.rounds)
    import torch

    where = torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} threads"
    print(f"PyTorch {torch.__version__}, {where}\n")
    print("| Shape | Hearth tok/s | MFU | PyTorch tok/s | ratio | Hearth MB | PyTorch MB | ratio |\n" + "| --- " * 8 + "|")
    for name in args.rows:
        if name == "lora":
            settings = ["--preset", "finetune-lora", "--set", f"model.init={args.model}", *LORA[0]]
        else:
            settings, shape, _ = table[name]
            settings = ["--vocab-size", str(shape[5]), *settings]
        steps = args.steps or {"4x128": 60, "6x384": 8}.get(name, 20 if on_gpu else 3)
        rounds = []
        for _ in range(args.rounds):
            ours = last_line(
                [args.hearth_train, "bench", "--device", args.device, "--json", "--steps", str(steps), *settings]
            )
            model = ["--model", args.model] if name == "lora" else []
            theirs = last_line(
                [sys.executable, __file__, "--device", args.device, "--peer", name, "--steps", str(steps), *model]
            )
            rounds.append((ours, theirs))
        middle = lambda of: statistics.median(of(*each) for each in rounds)
        speed, peer_speed = middle(lambda o, t: o["tok_per_sec"]), middle(lambda o, t: t["tok_per_sec"])
        memory, peer_memory = middle(lambda o, t: o["peak_bytes"]), middle(lambda o, t: t["peak_bytes"])
        ratio = middle(lambda o, t: o["tok_per_sec"] / t["tok_per_sec"])
        memory_ratio = middle(lambda o, t: o["peak_bytes"] / t["peak_bytes"])
        print(
            f"| {name} | {speed:,.0f} | {100 * middle(lambda o, t: o['mfu']):.0f} % | {peer_speed:,.0f} | {ratio:.2f} "
            f"| {memory / 1e6:,.0f} | {peer_memory / 1e6:,.0f} | {memory_ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
