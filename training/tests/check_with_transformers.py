"""Opens a model dir with transformers and computes the loss over the whole validation split with torch.

Usage: python check_with_transformers.py MODEL_DIR TEXT [VAL_LOSS]
With VAL_LOSS, the number that `hearth-train quickstart --json` printed as `best_val_loss` for a model stored in f32, the
exit code is 1 unless both agree: then tokenizer, weights and architecture mean the same on both sides.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model_dir, text_file = sys.argv[1:3]
tokenizer = AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForCausalLM.from_pretrained(model_dir).eval()

with open(text_file, encoding="utf-8", newline="") as file:
    text = file.read()
val_text = text[int(len(text) * 0.9) :]
ids = tokenizer(val_text, verbose=False)["input_ids"]
assert tokenizer.decode(ids) == val_text, "encoding and decoding does not give the text back"

ids = torch.tensor(ids)
seq_len = model.config.max_position_embeddings
n_targets = len(ids) - 1
n_full = n_targets // seq_len
inputs = list(ids[: n_full * seq_len].view(n_full, seq_len).split(64))
targets = list(ids[1 : n_full * seq_len + 1].view(n_full, seq_len).split(64))
if n_targets % seq_len:
    inputs.append(ids[None, n_full * seq_len : n_targets])
    targets.append(ids[None, n_full * seq_len + 1 :])

total = 0.0
with torch.no_grad():
    for x, y in zip(inputs, targets):
        logits = model(x).logits.flatten(0, 1).double()
        total += torch.nn.functional.cross_entropy(logits, y.flatten(), reduction="sum").item()
loss = total / n_targets
print(f"{type(model).__name__}: loss {loss:.6f} over {n_targets} tokens")
if len(sys.argv) > 3 and abs(loss - float(sys.argv[3])) > 1e-5 * loss:
    sys.exit(f"hearth-train said {sys.argv[3]}")
