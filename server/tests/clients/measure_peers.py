#!/usr/bin/env python3
"""Hearth beside llama.cpp and PyTorch on one CPU, in turn: measure_peers.py HEARTH MODEL_DIR LLAMA_BIN GGUF_DIR [ROUNDS] [THREADS].

MODEL_DIR is a model as transformers saves it, LLAMA_BIN the folder with llama-bench and llama-batched-bench, GGUF_DIR holds the same model
as NAME.F32.gguf, NAME.Q8_0.gguf and NAME.Q4_0.gguf, NAME being MODEL_DIR's last part. PyTorch takes part if this Python has it, with transformers.

For each format and round: prefill of 512 tokens (logits of the last one), decoding of 1 and of 16 sequences after prompts of 128, tokens per
second. Prints a table of each one's best round, with the median over the rounds of the ratio to the better peer of the same round (a machine's
memory may change its speed from one round to the next), then one line of JSON. Stop everything else first; figures of one run compare with
each other, those of two machines or two days do not.
"""
import json, pathlib, statistics, subprocess, sys, time

FORMATS = {"F32": ["--dtype", "f32"], "Q8_0": ["--quantize", "q8"], "Q4_0": ["--quantize", "q4"]}
JOBS = ["prefill 512", "1 sequence", "16 sequences"]


def lines_of_json(command):
    out = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def hearth(binary, model, flags):
    report = lines_of_json([binary, "bench", "--model", model, "--device", "cpu", *flags, "--prefill", 512, "--batch", 1, 16])[-1]
    rates = [result["tok_per_sec"] for result in report["results"]]
    shares = [result["fraction_of_bandwidth"] for result in report["results"]]
    return dict(zip(JOBS, rates)), shares[1]


def llama_cpp(folder, file, threads):
    bench = lines_of_json([folder / "llama-bench", "-m", file, "-t", threads, "-p", 512, "-n", 64, "-r", 3, "-o", "jsonl"])
    rates = {JOBS[0]: bench[0]["avg_ts"], JOBS[1]: bench[1]["avg_ts"]}
    batched = lines_of_json([folder / "llama-batched-bench", "-m", file, "-t", threads, "-c", 8192, "-b", 2048, "-ub", 512,
                             "-npp", 128, "-ntg", 64, "-npl", 16, "--output-format", "jsonl"])
    return rates | {JOBS[2]: batched[-1]["speed_tg"]}


def pytorch(model):
    import torch

    vocab = model.config.vocab_size
    median = lambda times: sorted(times)[len(times) // 2]

    def prefill():
        ids, start = torch.randint(0, vocab, (1, 512)), time.perf_counter()
        model(ids, logits_to_keep=1).logits[0, -1, 0].item()
        return time.perf_counter() - start

    def decode(batch):
        past = model(torch.randint(0, vocab, (batch, 128)), use_cache=True, logits_to_keep=1).past_key_values
        times = []
        for _ in range(30):
            ids, start = torch.randint(0, vocab, (batch, 1)), time.perf_counter()
            out = model(ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            out.logits[0, 0, 0].item()
            times.append(time.perf_counter() - start)
        return batch / median(times)

    with torch.inference_mode():
        return {JOBS[0]: 512 / median([prefill() for _ in range(4)]), JOBS[1]: decode(1), JOBS[2]: decode(16)}


def torch_model(folder, threads):
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def main():
    binary, model, llama, ggufs = (pathlib.Path(arg).absolute() for arg in sys.argv[1:5])
    rounds, threads = [*map(int, sys.argv[5:]), 2, 2][:2] if len(sys.argv) < 7 else map(int, sys.argv[5:7])
    peer = torch_model(model, threads)
    best, runs, shares = {}, {}, {}

    def note(name, rates):
        runs.setdefault(name, []).append(rates)
        of_name = best.setdefault(name, {})
        of_name.update({job: max(rate, of_name.get(job, 0)) for job, rate in rates.items()})

    for _ in range(rounds):
        for format, flags in FORMATS.items():
            file = ggufs / f"{model.name}.{format}.gguf"
            note(f"{format} llama.cpp", llama_cpp(llama, file, threads))
            sources = [(f"{format} Hearth", model, flags), (f"{format} Hearth, GGUF", file, [])]
            if format == "F32":
                # Hearth's cache is f32 beside weights in f32, llama.cpp's is f16 beside any.
                sources.append(("F32 Hearth, f16 cache", model, [*flags, "--kv-cache-dtype", "f16"]))
            for name, source, how in sources:
                rates, share = hearth(binary, source, how)
                note(name, rates)
                shares[name] = max(share, shares.get(name, 0))
        if peer:
            note("F32 PyTorch", pytorch(peer))

    print("| tok/s | " + " | ".join(JOBS) + " | bandwidth, 1 sequence |\n|" + " --- |" * 5)
    for name in sorted(best, key=lambda name: (list(FORMATS).index(name.split()[0]), "Hearth" in name)):
        peers = [of for other, of in runs.items() if other.split()[0] == name.split()[0] and "Hearth" not in other]

        def ratio(job):
            of_rounds = [own[job] / max(peer[job] for peer in others) for own, *others in zip(runs[name], *peers)]
            return f" ({statistics.median(of_rounds):.2f} times)" if "Hearth" in name else ""

        cells = [f"{best[name][job]:.0f}{ratio(job)}" for job in JOBS]
        print(f"| {name} | " + " | ".join(cells) + f" | {f'{shares[name]:.0%}' if name in shares else ''} |")
    print(json.dumps({"best": best, "fraction_of_bandwidth": shares}))


if __name__ == "__main__":
    main()
