#!/usr/bin/env python3
"""Serving with transformers on an NVIDIA card, beside which Hearth is measured: JSON lines, one for each case.

  peers.py [docs/shapes/llama-1b] [--steps 15] [--prompt 128] [--prefill 512] [--batch 1 16 64] [--tiny]

The model has random weights in f16. Decoding runs with a static cache, step by step, and again as a CUDA graph of one step; prompts
run as one pass. Each figure is the median. Needs torch and transformers; without them, or without a card, one line says so.
`--tiny` runs a small model on the CPU instead, without graphs, to test the script. Training: `training/benches/measure_peers.py`.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path


def line(**fields):
    print(json.dumps(fields), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=Path, nargs="?", default=Path(__file__).resolve().parents[3] / "docs/shapes/llama-1b")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        line(peer="transformers", skipped=str(error))
        return
    if not args.tiny and not torch.cuda.is_available():
        line(peer="transformers", skipped="torch finds no CUDA device")
        return
    settings = json.loads((args.shape / "config.json").read_text())
    if args.tiny:
        settings.update(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        args.batch, args.prompt, args.prefill, args.steps = [2], 8, 16, 3
    device, dtype = ("cpu", torch.float32) if args.tiny else ("cuda", torch.float16)
    wait = (lambda: None) if args.tiny else torch.cuda.synchronize
    config = transformers.AutoConfig.for_model(**settings)
    torch.manual_seed(1)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    where = "CPU" if args.tiny else torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    line(peer="transformers", device=where, parameters=sum(p.numel() for p in model.parameters()), **versions)

    def median(run, n):
        times = []
        for _ in range(n):
            wait()
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    with torch.inference_mode():
        ids = torch.randint(0, config.vocab_size, (1, args.prefill), device=device)
        prefill = lambda: model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        median(prefill, 3)
        seconds = median(prefill, 7)
        line(peer="transformers", case=f"prefill of {args.prefill}", tok_per_s=args.prefill / seconds, ms=1e3 * seconds)
        for batch in args.batch:
            cache = transformers.StaticCache(config=config, max_cache_len=args.prompt + 2 * args.steps + 16)
            ids = torch.randint(0, config.vocab_size, (batch, args.prompt), device=device)
            positions = torch.arange(args.prompt, device=device)
            model(ids, past_key_values=cache, cache_position=positions, logits_to_keep=1)
            token = ids[:, -1:].clone()
            position = torch.full((1,), args.prompt, device=device)

            def step():
                logits = model(token, past_key_values=cache, cache_position=position, logits_to_keep=1).logits
                return logits[:, -1].argmax(-1, keepdim=True)

            def loop():
                token.copy_(step())
                position.add_(1)

            median(loop, 3)
            seconds = median(loop, args.steps)
            line(peer="transformers", case=f"decode, {batch} sequences", tok_per_s=batch / seconds, ms=1e3 * seconds)
            if args.tiny:
                continue
            position.fill_(args.prompt)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                following = step()

            def replay():
                graph.replay()
                token.copy_(following)
                token[0, 0].item()

            median(replay, 3)
            seconds = median(replay, args.steps)
            line(peer="transformers, CUDA graph", case=f"decode, {batch} sequences", tok_per_s=batch / seconds, ms=1e3 * seconds)
            del graph, cache
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
