#!/usr/bin/env python3
"""Makes GGUF files of random weights in the shapes of models that people run, for measure_peers.py.

Usage: LLAMA_CPP=<checkout with build/bin> python make_peer_shapes.py DIR [SHAPE...] [--types F16 Q8_0 Q4_K_M MXFP4_MOE]

Needs what model/tests/gguf/make_gguf.py needs. Writes DIR/<shape>.<type>.gguf, each between 0.2 and 1 GB. Vocabularies are cut to
32,768 tokens, so that the layers are what is measured.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "model/tests/gguf"))

import make_gguf
import torch
import transformers

VOCAB = 32768
SHAPES = {
    # 470M parameters, 90M of which a token uses.
    "qwen3-moe": ("Qwen3MoeForCausalLM", {
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
        "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 384, "intermediate_size": 1536, "norm_topk_prob": True}),
    # Layers of Qwen3.5-0.8B.
    "qwen3.5": ("Qwen3_5ForCausalLM", {
        "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 3584, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "tie_word_embeddings": True}),
    # Half the layers of Gemma 4 E2B, inputs of each layer's own included.
    "gemma4": ("Gemma4ForCausalLM", {
        "hidden_size": 1536, "num_hidden_layers": 15, "intermediate_size": 6144, "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 5, "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": VOCAB, "sliding_window": 512, "final_logit_softcapping": 30.0,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3, "tie_word_embeddings": True}),
    # Layers of LFM2-350M.
    "lfm2": ("Lfm2ForCausalLM", {
        "hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 6656, "num_attention_heads": 16, "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "block_auto_adjust_ff_dim": True, "conv_bias": False}),
    # Layers of Granite 4.0 H 350M.
    "granite4-h": ("GraniteMoeHybridForCausalLM", {
        "hidden_size": 768, "num_hidden_layers": 32, "intermediate_size": 2048, "shared_intermediate_size": 2048,
        "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 0, "num_experts_per_tok": 0,
        "mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2,
        "layer_types": ["linear_attention" if n % 8 != 5 else "full_attention" for n in range(32)],
        "position_embedding_type": "nope", "tie_word_embeddings": True}),
    # Llama 3.2 1B's layers, half as many: a dense model to compare with.
    "llama": ("LlamaForCausalLM", {
        "hidden_size": 2048, "num_hidden_layers": 8, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": True}),
}


def make(folder, name, types):
    architecture, fields = SHAPES[name]
    torch.manual_seed(1)
    config_class = getattr(transformers, architecture).config_class
    config = config_class(vocab_size=VOCAB, max_position_embeddings=8192, bos_token_id=0, eos_token_id=0, pad_token_id=0, **fields)
    torch.set_default_dtype(torch.bfloat16)
    model = getattr(transformers, architecture)(config)
    print(name, f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.0f}M parameters", flush=True)
    full = folder / f"{name}.F16.gguf"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = Path(scratch)
        model.save_pretrained(scratch)
        del model
        if change := make_gguf.AS_PUBLISHED.get(architecture):
            config = json.loads((scratch / "config.json").read_text())
            change(config)
            (scratch / "config.json").write_text(json.dumps(config))
        vocab = {str(id): id for id in range(VOCAB)}
        (scratch / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
        make_gguf.convert(scratch, full, VOCAB, make_gguf.gguf.LlamaFileType.MOSTLY_F16)
    quantize = Path(os.environ["LLAMA_CPP"]) / "build/bin/llama-quantize"
    for kind in types:
        if kind != "F16":
            subprocess.run([quantize, full, folder / f"{name}.{kind}.gguf", kind], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}; all, if none is named")
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_K_M"], help="those of llama-quantize")
    args = parser.parse_args()
    if unknown := set(args.shapes) - set(SHAPES):
        parser.error(f"no shape is called {', '.join(unknown)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.shapes or SHAPES:
        make(args.folder, name, args.types)


main()
