#!/usr/bin/env python3
"""Opens a GGUF file that `hearth export` wrote with the reader of transformers, and compares it with the model dir.

Usage: python check_exported.py MODEL_DIR FILE.gguf [TOLERANCE]

Logits must be within TOLERANCE (1e-4 unless given; rounded weights need more) of their standard deviation, and the ids of some texts
must be equal. Needs torch, transformers and gguf. (llama.cpp itself: CONTRIBUTING.md.)
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ["Hello, world! 123 4.5", "naïve café\n\n  indented\tλ 漢字 🙂", "The quick brown fox jumps over the lazy dog."]


def main(folder, file, tolerance):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    own, found = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ids = [own(text).input_ids for text in TEXTS]
    for text, expected in zip(TEXTS, ids):
        assert found(text).input_ids == expected, f"{text!r}: {found(text).input_ids}, expected {expected}"
    load = lambda *args, **more: AutoModelForCausalLM.from_pretrained(*args, dtype=torch.float32, **more).eval()
    models = [load(folder), load(file.parent, gguf_file=file.name)]
    far = 0.0
    for row in ids:
        with torch.no_grad():
            expected, logits = (model(torch.tensor([row])).logits for model in models)
        far = max(far, ((logits - expected).abs().max() / expected.std()).item())
    assert far <= tolerance, f"logits differ by {far:.1e} of their spread, allowed {tolerance:.0e}"
    print(f"ok      {file}: the same ids, logits within {far:.1e} of their spread")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 1e-4)
