"""Opens a run's encoder-decoder with transformers, computes the loss of held-out pairs with torch, and lets it write.

Usage: python check_seq2seq.py MODEL_DIR PAIRS VAL_LOSS HYPOTHESES
PAIRS has `source` and `target` in each line; VAL_LOSS is what `hearth-train pretrain --json` printed as `best_val_loss` for them, and
HYPOTHESES what `hearth-train eval translation --out` wrote, greedily. The exit code is 1 unless all agree.
"""

import json
import sys

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model_dir, pairs_file, said, hypotheses_file = sys.argv[1:5]
tokenizer = AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForSeq2SeqLM.from_pretrained(model_dir).eval()
with open(pairs_file, encoding="utf-8") as file:
    pairs = [json.loads(line) for line in file]
with open(hypotheses_file, encoding="utf-8") as file:
    hypotheses = [json.loads(line)["hypothesis"] for line in file]

total = n_targets = n_other = 0
with torch.no_grad():
    for pair, hypothesis in zip(pairs, hypotheses, strict=True):
        source = tokenizer(pair["source"], return_tensors="pt").input_ids
        labels = tokenizer(pair["target"], return_tensors="pt").input_ids
        total += model(input_ids=source, labels=labels).loss.item() * labels.numel()
        n_targets += labels.numel()
        written = model.generate(source, max_new_tokens=24, do_sample=False)[0]
        n_other += tokenizer.decode(written, skip_special_tokens=True).strip() != hypothesis
loss = total / n_targets
print(f"{type(model).__name__}: loss {loss:.6f} over {n_targets} tokens, {n_other} of {len(pairs)} texts differ")
if abs(loss - float(said)) > 1e-5 * loss or n_other > 0:
    sys.exit(f"hearth-train said {said}, and wrote other texts {n_other} times")
