#!/usr/bin/env python3
"""Makes the adapters that Hearth is compared with: by PEFT, over models of this folder.

Usage: python make_adapters.py   (needs torch, transformers, peft and safetensors; the versions are in versions.json)

Each case becomes a folder `adapters/<case>/`:
    adapter_config.json, adapter_model.safetensors   as `save_pretrained` writes them; the base is the folder of its name
    logits.safetensors                               `logits` [batch, seq, vocab] f32 of base and adapter, for the `input_ids` of the
                                                     base's oracle.safetensors
All values of both matrices of each pair are random. A case is refused if its adapter does not move the logits clearly.
"""

import json
import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
CASES = {
    "separate": ("llama", {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"}),
    "patterns": (
        "llama",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj", "down_proj", "gate_proj"],
            "layers_to_transform": [1],
            "use_rslora": True,
            "rank_pattern": {"model.layers.1.self_attn.q_proj": 2, "down_proj": 1},
            "alpha_pattern": {"v_proj": 3},
        },
    ),
    "pattern-of-names": ("llama", {"r": 2, "lora_alpha": 4, "target_modules": r".*\.mlp\.(up|down)_proj"}),
    "transposed": ("gpt2", {"r": 3, "lora_alpha": 6, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "by-key-head": ("gpt-neox-parallel", {"r": 3, "lora_alpha": 6, "target_modules": ["query_key_value", "dense", "dense_4h_to_h"]}),
    "interleaved": ("cohere", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "v_proj"]}),
    "fused": ("phi3", {"r": 3, "lora_alpha": 6, "target_modules": ["qkv_proj", "gate_up_proj"]}),
}


def main():
    for case, (base, settings) in CASES.items():
        generator = torch.Generator().manual_seed(sum(case.encode()))
        oracle = load_file(HERE / base / "oracle.safetensors")
        ids = oracle["input_ids"].long()
        model = AutoModelForCausalLM.from_pretrained(HERE / base, dtype=torch.float32, attn_implementation="eager")
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        with torch.no_grad():
            for name, values in adapted.named_parameters():
                if "lora_" in name:
                    values.copy_(torch.randn(values.shape, generator=generator) * 0.3)
            logits = adapted(input_ids=ids, use_cache=False).logits.float()
        moved = ((logits - oracle["logits"]).abs().max() / oracle["logits"].std()).item()
        assert moved > 0.1, f"{case}: the adapter moves the logits by {moved} of their spread only"
        out = HERE / "adapters" / case
        shutil.rmtree(out, ignore_errors=True)
        adapted.save_pretrained(out)
        (out / "README.md").unlink(missing_ok=True)
        path = out / "adapter_config.json"
        config = json.loads(path.read_text())
        config["base_model_name_or_path"] = f"../../{base}"
        path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        save_file({"logits": logits.contiguous()}, out / "logits.safetensors")
        print(f"{case}: over {base}, the logits move by {moved:.2f} of their spread")


if __name__ == "__main__":
    main()
