#!/usr/bin/env python3
"""Opens adapters that Hearth saved with peft, and the merged models with transformers, and compares the logits.

Usage: python check_adapters.py DIR [DIR...]

Each DIR has `base`, `adapter` and `merged`, and `expected-of-adapter.safetensors` with `input_ids` and `logits`, as
`model/tests/adapter.rs` leaves them in $HEARTH_SAVE_DIR/adapters. Logits of base with adapter must be within 1e-4 of
their standard deviation, those of the merged model within 2e-5 of them beside. Exits with 1 if any fails.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file


def opened(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
    )
    found = {what: keys for what, keys in info.items() if keys}
    assert not found, f"{folder}: loading reports {found}"
    return model.eval()


def check(folder):
    expected = load_file(folder / "expected-of-adapter.safetensors")
    ids = expected["input_ids"].long()

    def logits(model):
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits.float()

    base = logits(opened(folder / "base"))
    adapted = PeftModel.from_pretrained(opened(folder / "base"), folder / "adapter").eval()
    beside = logits(adapted)
    spread = beside.std()
    moved = ((beside - base).abs().max() / spread).item()
    assert moved > 0.05, f"the adapter moves the logits by {moved:.1e} only"
    far = ((beside - expected["logits"]).abs().max() / spread).item()
    assert far <= 1e-4, f"logits differ by {far:.1e} of their spread"
    merged = ((logits(opened(folder / "merged")) - beside).abs().max() / spread).item()
    assert merged <= 2e-5, f"the merged model differs by {merged:.1e} of the spread"
    return f"moved by {moved:.2f}, within {far:.1e}, merged within {merged:.1e}"


def main():
    torch.set_num_threads(2)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed = len(sys.argv) < 2
    for name in sys.argv[1:]:
        try:
            print(f"ok      {name}: {check(Path(name))}", flush=True)
        except Exception as error:
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
            failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
