#!/usr/bin/env python3
"""Hearth beside llama.cpp, ik_llama.cpp, mistral.rs, OpenVINO and PyTorch on one CPU, in turn, in tokens per second.

For each format and round: prefill of 512 tokens (logits of the last one), decoding of 1 and of 16 sequences behind prompts of 128 and, with
--depth, a prompt of so many tokens and decoding of one and of four sequences (--sequences) behind prompts of their own that long.

Prints a table of each one's median, with the median over the rounds of the ratio to the best peer of the same round (a machine's memory may change its speed from one round to the next), then one line of JSON. A measurement of
Hearth in which a share of the bandwidth, read before and after, is above 100 % does not count, and is repeated up to twice. Stop everything else first; figures of one run compare with
each other, those of two machines or two days do not.

Peers are built for a level of instructions (`LEVEL=avx2` of the scripts that build them); --level makes Hearth and PyTorch keep to it.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, time

FORMATS = {"F32": ["--dtype", "f32"], "Q8_0": ["--quantize", "q8"], "Q4_0": ["--quantize", "q4"]}
LEVELS = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "avx-vnni": {}, "avx512": {}}
JOBS = ["prefill 512", "1 sequence", "16 sequences"]


def lines_of_json(command):
    out = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def deep_jobs(args):
    """Names of what is measured with --depth, in the table's order."""
    return [name for depth in args.depth for name in [f"prompt of {depth}", *(f"{n} behind {depth}" for n in args.sequences)]]


def hearth(binary, source, args):
    """Rates, and the share of the bandwidth that one sequence used."""
    kv_cache = args.kv_cache and {"f32": "f32", "f16": "f16", "q8_0": "q8"}[args.kv_cache]
    cache = ["--kv-cache-dtype", kv_cache] if kv_cache else []
    rounded = ["--precision", "bf16"] if args.rounded and "BF16" in str(source[1]) else []
    bench = [binary, "bench", "--device", "cpu", *source, *cache, *rounded]
    results = [] if args.depth_only else lines_of_json([*bench, "--prefill", 512, "--batch", 1, 16])[-1]["results"]
    for depth in args.depth:
        deep = [*bench, "--prefill", depth, "--batch", *args.sequences, "--prompt", depth, "--steps", 32, "--runs", 1]
        results += lines_of_json(deep)[-1]["results"]
    shares = [result["fraction_of_bandwidth"] or 0 for result in results]
    if max(shares) > 1:
        return None
    return dict(zip(args.jobs, (result["tok_per_sec"] for result in results))), shares[1]


def llama(folder, file, args, is_ik):
    ik = ["-rtr", 1] if is_ik else []
    found = {}

    def batched(tokens, steps, counts, *flags):
        """Rates of reading prompts of so many tokens and of writing behind them, by the number of sequences."""
        context = max(8192, (tokens + steps) * max(counts))
        sizes = ["-c", context, "-b", 2048, "-ub", 512, "-npp", tokens, "-ntg", steps, "-npl", ",".join(map(str, counts))]
        command = [folder / "llama-batched-bench", "-m", file, "-t", args.threads, *sizes, *flags]
        out = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        rows = [[cell.strip() for cell in line.split("|")] for line in (out.stdout + out.stderr).splitlines() if line.startswith("|")]
        header = next(row for row in rows if any("S_TG" in cell for cell in row))
        columns = [next(n for n, cell in enumerate(header) if name in cell) for name in ["S_PP", "S_TG"]]
        rows = [row for row in rows if row[1].isdigit()]
        return [[float(row[column]) for row in rows] for column in columns]

    if not args.depth_only:
        bench = [folder / "llama-bench", "-m", file, "-t", args.threads, "-r", 3, "-o", "json", *ik, "-p", 512, "-n", 64]
        out = subprocess.run([str(word) for word in bench], capture_output=True, text=True, check=True).stdout
        found = dict(zip(JOBS, [test["avg_ts"] for test in json.loads(out[out.index("[\n"):])]))
        # ik_llama.cpp's flash attention stops at an assertion with several sequences.
        [found[JOBS[2]]] = batched(128, 64, [16], *(["-fa", "off"] if is_ik else []))[1]
    cache = ["-ctk", args.kv_cache, "-ctv", args.kv_cache] if args.kv_cache else []
    for depth in args.depth:
        for n in args.sequences:
            has_flash = not is_ik or n == 1
            # Values in 8 bits need flash attention.
            if not has_flash and args.kv_cache == "q8_0":
                continue
            [read], [write] = batched(depth, 32, [n], "-fa", "on" if has_flash else "off", *cache, *(["-rtr"] if is_ik else []))
            if n == 1:
                found[f"prompt of {depth}"] = read
            found[f"{n} behind {depth}"] = write
    return found


def python_peer(engine, file, args):
    """An engine of `python_peers.py`. An empty answer if it cannot read the file."""
    deep = ["--depth", *args.depth, "--sequences", *args.sequences, *(["--depth-only"] if args.depth_only else [])]
    command = [args.python, pathlib.Path(__file__).with_name("python_peers.py"), engine, file, "--threads", args.threads, *deep]
    out = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    found = [json.loads(line) for line in out.stdout.splitlines() if line.startswith('{"p')]
    if not found:
        print(f"{engine} does not run {file}: {out.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return found[0] if found else {}


def pytorch(model):
    import torch

    vocab = model.config.vocab_size

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
        return batch / statistics.median(times)

    with torch.inference_mode():
        return {JOBS[0]: 512 / statistics.median(prefill() for _ in range(4)), JOBS[1]: decode(1), JOBS[2]: decode(16)}


def torch_model(folder, threads):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", required=True, type=pathlib.Path, help="the binary")
    parser.add_argument("--model", type=pathlib.Path, help="a model dir; without one, only files are measured")
    parser.add_argument("--gguf", required=True, help="the same model in files, {} standing for the format, such as smollm2.{}.gguf")
    parser.add_argument("--llama", type=pathlib.Path, help="the folder with llama.cpp's llama-bench and llama-batched-bench")
    parser.add_argument("--ik", type=pathlib.Path, help="the same of ik_llama.cpp")
    parser.add_argument("--engines", nargs="+", default=[], choices=["mistralrs", "openvino"], help="engines of python_peers.py")
    parser.add_argument("--python", default=sys.executable, help="the Python that has them")
    parser.add_argument("--torch", action="store_true", help="also PyTorch, with the transformers of this Python; needs --model")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    parser.add_argument("--level", choices=LEVELS, help="the instructions to keep to")
    parser.add_argument("--depth", nargs="*", type=int, default=[])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 4], help="how many sequences decode at each --depth")
    parser.add_argument("--depth-only", action="store_true")
    parser.add_argument("--kv-cache", choices=["f32", "f16", "q8_0"], help="the cache behind --depth, and Hearth's elsewhere; by default each one's choice")
    parser.add_argument("--rounded", action="store_true", help="Hearth rounds activations to bf16 for BF16, as the peers do")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.jobs = ([] if args.depth_only else JOBS) + deep_jobs(args)
    if args.level:
        os.environ.update(LEVELS[args.level], HEARTH_CPU=args.level)
    peer = torch_model(args.model, args.threads) if args.torch else None
    runs, shares = {}, {}

    for number in range(args.rounds):
        for format in args.formats:
            note = lambda name, rates: runs.setdefault(f"{format} {name}", {}).update({number: rates})
            file = args.gguf.replace("{}", format)
            if args.llama:
                note("llama.cpp", llama(args.llama.absolute(), file, args, False))
            if args.ik:
                note("ik_llama.cpp", llama(args.ik.absolute(), file, args, True))
            for engine in args.engines:
                note(engine, python_peer(engine, file, args))
            sources = {"Hearth, GGUF": ["--model", file]}
            if args.model and format in FORMATS:
                sources["Hearth"] = ["--model", args.model, *FORMATS[format]]
            for name, source in sources.items():
                # Where the machine's memory changes its speed from second to second, many measurements do not count.
                attempts = (hearth(args.hearth.absolute(), source, args) for _ in range(3))
                if found := next(filter(None, attempts), None):
                    note(name, found[0])
                    shares[f"{format} {name}"] = max(found[1], shares.get(f"{format} {name}", 0))
            if peer and format == "F32":
                note("PyTorch", pytorch(peer))

    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    known = [flag for flag in ["avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"] if flag in flags]
    print(f"CPU with {' '.join(known)}; level {args.level or 'of the machine'}; medians of {args.rounds} rounds\n")
    print("| tok/s | " + " | ".join(args.jobs) + " | bandwidth, 1 sequence |\n|" + " --- |" * (len(args.jobs) + 2))
    table = {}
    for name in sorted(runs, key=lambda name: (args.formats.index(name.split()[0]), "Hearth" in name)):
        peers = [of for other, of in runs.items() if other.split()[0] == name.split()[0] and "Hearth" not in other]

        def cell(job):
            own = {number: rates[job] for number, rates in runs[name].items() if job in rates}
            if not own:
                return ""
            table.setdefault(name, {})[job] = rate = statistics.median(own.values())
            best = {number: max((of[number][job] for of in peers if job in of.get(number, {})), default=0) for number in own}
            if "Hearth" not in name or not all(best.values()):
                return f"{rate:.0f}"
            return f"{rate:.0f} ({statistics.median(own[number] / best[number] for number in own):.2f} times)"

        print(f"| {name} | " + " | ".join(map(cell, args.jobs)) + f" | {f'{shares[name]:.0%}' if name in shares else ''} |")
    print(json.dumps({"medians": table, "fraction_of_bandwidth": shares}))


if __name__ == "__main__":
    main()
