#!/usr/bin/env python3
"""Makes the adapters that Hearth is compared with: by PEFT, over models of this folder.

Usage: python make_adapters.py [CASE...]   (needs torch, transformers, peft and safetensors; the versions are in versions.json)

Each case becomes a folder `adapters/<case>/`:
    adapter_config.json, adapter_model.safetensors   as `save_pretrained` writes them; the base is the folder of its name
    logits.safetensors                               `logits` [batch, seq, vocab] f32 of base and adapter, for the `input_ids` of the
                                                     base's oracle.safetensors
All values of both matrices of each pair are random. `experts-one-by-one` is written here with a pair for each expert, as by
versions of transformers in which each expert was a module; PEFT opens it. A case is refused if its adapter does not move the logits clearly.
"""

import json
import os
import shutil
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from peft import LoraConfig, PeftModel, get_peft_model
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
    "experts": (
        "qwen3-moe",
        {
            "r": 3,
            "lora_alpha": 6,
            "target_modules": ["q_proj", "o_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            "rank_pattern": {"experts.gate_up_proj": 2},
            "alpha_pattern": {"down_proj": 4},
        },
    ),
    "experts-transposed": (
        "gpt-oss",
        {"r": 3, "lora_alpha": 6, "target_modules": ["v_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    ),
    "experts-of-one-parameter": (
        "granite-moe",
        {"r": 2, "lora_alpha": 4, "target_modules": None, "target_parameters": ["experts.gate_up_proj"]},
    ),
    "experts-one-by-one": ("mixtral", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "w1", "w2", "w3"]}),
}


def main():
    cases = sys.argv[1:] or CASES
    for case, (base, settings) in ((case, CASES[case]) for case in cases):
        generator = torch.Generator().manual_seed(sum(case.encode()))
        oracle = load_file(HERE / base / "oracle.safetensors")
        ids = oracle["input_ids"].long()
        model = AutoModelForCausalLM.from_pretrained(HERE / base, dtype=torch.float32, attn_implementation="eager")
        out = HERE / "adapters" / case
        shutil.rmtree(out, ignore_errors=True)
        if case == "experts-one-by-one":
            write_one_by_one(out, model.config, settings, generator)
            adapted = PeftModel.from_pretrained(model, out).eval()
            finish(out, base, oracle, logits_of(adapted, ids), case)
            continue
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        with torch.no_grad():
            for name, values in adapted.named_parameters():
                if "lora_" in name:
                    values.copy_(torch.randn(values.shape, generator=generator) * 0.3)
        logits = logits_of(adapted, ids)
        adapted.save_pretrained(out)
        (out / "README.md").unlink(missing_ok=True)
        finish(out, base, oracle, logits, case)


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.float()


def finish(out, base, oracle, logits, case):
    moved = ((logits - oracle["logits"]).abs().max() / oracle["logits"].std()).item()
    assert moved > 0.1, f"{case}: the adapter moves the logits by {moved} of their spread only"
    path = out / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = f"../../{base}"
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file({"logits": logits.contiguous()}, out / "logits.safetensors")
    print(f"{case}: over {base}, the logits move by {moved:.2f} of their spread")


def write_one_by_one(out, config, settings, generator):
    """An adapter of a Mixtral whose experts are modules."""
    width, inner, rank = config.hidden_size, config.intermediate_size, settings["r"]
    head_dim = getattr(config, "head_dim", None) or width // config.num_attention_heads
    sizes = {"w1": (width, inner), "w2": (inner, width), "w3": (width, inner)}
    tensors = {}
    for layer in range(config.num_hidden_layers):
        modules = {"self_attn.q_proj": (width, config.num_attention_heads * head_dim)}
        for expert in range(config.num_local_experts):
            modules |= {f"block_sparse_moe.experts.{expert}.{name}": size for name, size in sizes.items()}
        for module, (d_in, d_out) in modules.items():
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, d_in, generator=generator) * 0.3
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(d_out, rank, generator=generator) * 0.3
    out.mkdir(parents=True)
    save_file(tensors, out / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", **settings}
    (out / "adapter_config.json").write_text(json.dumps(described))


if __name__ == "__main__":
    main()
