#!/usr/bin/env python3
"""Makes the references for a real model, SmolLM2-135M-Instruct, into `smollm2.json` beside this file.

Usage:
    python make_smollm2.py SMOLLM2_DIR

SMOLLM2_DIR is the model's folder in Hugging Face format. Nothing is drawn at random, so there is no seed;
the library versions and the sha256 of the weights are in the file. Needs torch and transformers; no GPU,
no network; 4 GiB of memory; half a minute on two cores.

The file holds
    prompts     ten of {name, prompt, prompt_ids, greedy_ids, runner_up_ids, gaps, text}
    chat        {messages, rendered, prompt_ids, greedy_ids, runner_up_ids, gaps, text}
where prompt_ids is `tokenizer(prompt).input_ids`, or `apply_chat_template(add_generation_prompt=True)` for
the chat, and at each of 32 steps
    greedy_ids      the id of the largest logit, also where that is the end-of-text id: nothing stops a run
    runner_up_ids   the id of the second largest
    gaps            how far apart the two logits are. Where it is below 1e-3 either id is right; go on from
                    there with greedy_ids as the prefix.

Logits are float32, with eager attention and a key-value cache, one prompt at a time. The script refuses to
write unless one float64 pass over each whole text, without a cache, chooses the same ids wherever the gap
is 1e-3 or more.
"""

import hashlib
import json
import os
import platform
import re
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch.overrides import TorchFunctionMode

OUT_FILE = Path(__file__).resolve().parent / "smollm2.json"
N_STEPS = 32
NEAR_TIE = 1e-3

PROMPTS = {
    "prose": "The old lighthouse keeper climbed the stairs every evening, and",
    "code": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n    if n < 2:\n',
    "list": "Things to pack for a week in the mountains:\n1. A warm jacket\n2. Good boots\n3.",
    "question": "Question: Why does the moon always show the same side to the earth?\nAnswer:",
    "numbers": "2, 4, 8, 16, 32, 64, 128, 256, 512,",
    "unicode": "Weather today: ☀️ 27 °C – later ⛈️, so take an umbrella 🌂! Tomorrow: naïve café 👩‍🚀",
    "french": "La semaine dernière, nous avons visité un petit village au bord de la mer où",
    "short": "A",
    "long": (
        "Dear committee,\n\nI am writing to tell you what happened to the community garden over the past year, "
        "and to ask for your help with the next one. In March we cleared the eastern corner, which had been "
        "full of brambles and broken glass, and planted twelve apple trees that a nursery gave us for nothing. "
        "Nine of them survived the dry summer. In June the children of the primary school came to sow beans, "
        "pumpkins and sunflowers, and they came back every week to water them, even in the holidays. By "
        "September we had given away more than two hundred kilograms of vegetables to the families of the "
        "neighbourhood. What we lack is water: the only tap is on the far side of the car park, and carrying "
        "cans is more than our older members can do. We would therefore like to ask you"
    ),
    "dialogue": "Alice: Did you finish the report?\nBob: Almost. I still need the sales figures.\nAlice:",
}

MESSAGES = [
    {"role": "system", "content": "You are a careful assistant who answers in one short sentence."},
    {"role": "user", "content": "What is the capital of Norway?"},
    {"role": "assistant", "content": "The capital of Norway is Oslo."},
    {"role": "user", "content": "And which sea lies between it and Denmark? 🌊"},
]


class Float64(TorchFunctionMode):
    """Lifts what a model pins to float32 to float64, while a float64 copy of it runs."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def lift(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(lift, args), **{name: lift(value) for name, value in (kwargs or {}).items()})


def greedy(model, prompt_ids):
    """Ids, runner-ups and gaps of N_STEPS greedy steps."""
    best_ids, second_ids, gaps = [], [], []
    cache = transformers.DynamicCache(config=model.config)
    fed = list(prompt_ids)
    for _ in range(N_STEPS):
        logits = model(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True).logits[0, -1]
        (first, second), (first_id, second_id) = (pair.tolist() for pair in logits.topk(2))
        best_ids.append(first_id)
        second_ids.append(second_id)
        gaps.append(float(f"{first - second:.6g}"))
        fed = [first_id]
    return {"greedy_ids": best_ids, "runner_up_ids": second_ids, "gaps": gaps}


def check_in_float64(model, name, prompt_ids, steps):
    ids = [*prompt_ids, *steps["greedy_ids"]]
    with Float64():
        logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0, len(prompt_ids) - 1 :]
    assert logits.dtype == torch.float64 and len(logits) == N_STEPS
    for step, (row, best, gap) in enumerate(zip(logits, steps["greedy_ids"], steps["gaps"])):
        if gap >= NEAR_TIE and row.argmax().item() != best:
            sys.exit(f"{name}, step {step}: float64 chooses {row.argmax().item()}, float32 {best} (gap {gap})")
    worst = max(abs(row.topk(2).values.diff().abs().item() - gap) for row, gap in zip(logits, steps["gaps"]))
    print(f"{name}: {len(prompt_ids)} ids, smallest gap {min(steps['gaps']):.2g}, gaps within {worst:.0e} of float64")


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    folder = Path(sys.argv[1])
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, double = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
        for dtype in (torch.float32, torch.float64)
    )

    prompts = []
    for name, prompt in PROMPTS.items():
        prompt_ids = tokenizer(prompt).input_ids
        prompts.append({"name": name, "prompt": prompt, "prompt_ids": prompt_ids})
    rendered = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    chat = {"messages": MESSAGES, "rendered": rendered, "prompt_ids": prompt_ids}
    for entry in [*prompts, chat]:
        name = entry.get("name", "chat")
        entry |= greedy(model, entry["prompt_ids"])
        entry["text"] = tokenizer.decode(entry["greedy_ids"], skip_special_tokens=False)
        check_in_float64(double, name, entry["prompt_ids"], entry)

    record = {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": {
            "name": "SmolLM2-135M-Instruct",
            "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        },
        "n_steps": N_STEPS,
        "prompts": prompts,
        "chat": chat,
    }
    OUT_FILE.write_text(compact(json.dumps(record, indent=1, ensure_ascii=False)) + "\n", encoding="utf-8")


def compact(text):
    """Puts each list of numbers on one line, where indented JSON gives every number its own."""

    def one_line(found):
        return "[" + ", ".join(found[1].replace(",", " ").split()) + "]"

    return re.sub(r"(?<=: )\[([-\d.e,\s]+)\]", one_line, text)


if __name__ == "__main__":
    main()
