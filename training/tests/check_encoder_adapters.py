"""Trains adapters of an encoder, by `contrastive` and by `mlm`, and compares what peft makes of them with what `hearth merge` makes.

Usage: check_encoder_adapters.py HEARTH HEARTH_TRAIN

Needs peft, torch and transformers; no network.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from peft import PeftModel
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

NUMBERS = "one two three four five six seven".split()
SMALL = "model.d_model=32 model.n_layers=2 model.n_heads=2 model.max_seq_len=32 data.micro_batch_size=8 data.tokens_per_step=256".split()


def main():
    hearth, train = (str(Path(path).resolve()) for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        run = lambda *args: subprocess.run(args, cwd=folder, check=True, capture_output=True)
        folder = Path(folder)
        (folder / "text.txt").write_text("".join(f"line {NUMBERS[n % 7]} of the house\n" for n in range(300)))
        pairs = [{"anchor": f"line {a} of", "positive": f"{a} {b} the house"} for a in NUMBERS for b in NUMBERS]
        (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        texts = [{"text": f"line {a} of the {b} house"} for a in NUMBERS for b in NUMBERS]
        (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
        run(train, "tokenizer", "text.txt", "--out", "tokenizer", "--vocab-size", "280", "--encoder")
        run(train, "prepare", "text.txt", "--tokenizer", "tokenizer", "--out", "data")
        small = [part for setting in SMALL for part in ("--set", setting)]
        run(train, "pretrain", "--data", "data", "--preset", "bert-tiny", "--device", "cpu", "--out", "base", *small, "--set", "schedule.max_steps=4")
        base = folder / "base/model"
        ids = AutoTokenizer.from_pretrained(base)(["line two of the house", "one"], padding=True, return_tensors="pt")
        for kind, data, opened in [("contrastive", "pairs.jsonl", AutoModel), ("mlm", "texts.jsonl", AutoModelForMaskedLM)]:
            settings = ["--lora", "r=4", "--set", f"objective.kind={kind}", "--set", "schedule.max_steps=6", "--set", "optim.lr=2e-2"]
            run(train, "finetune", "base", "--data", data, "--device", "cpu", "--out", kind, *settings)
            adapter = folder / kind / "model"
            run(hearth, "merge", str(base), str(adapter), f"{kind}-merged")
            output = lambda model: getattr(model.eval()(**ids), "logits" if kind == "mlm" else "last_hidden_state").detach()
            plain = output(opened.from_pretrained(base))
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                tuned = output(PeftModel.from_pretrained(opened.from_pretrained(base), adapter))
            assert not [warning for warning in said if "missing" in str(warning.message)], [str(warning.message) for warning in said]
            merged = output(opened.from_pretrained(folder / f"{kind}-merged"))
            far, changed = ((tuned - other).abs().max().item() for other in (merged, plain))
            assert far < 1e-5 and changed > 1e-2, (far, changed)
            print(f"ok      {kind}: peft and hearth merge differ by {far:.1e}, from the encoder by {changed:.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(2)
    main()
