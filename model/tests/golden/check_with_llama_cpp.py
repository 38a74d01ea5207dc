#!/usr/bin/env python3
"""Exports a model, and an adapter of it, as GGUF files in f32, and compares what llama.cpp and Hearth continue prompts with.

Usage: python check_with_llama_cpp.py LLAMA_SERVER HEARTH MODEL_DIR [ADAPTER]

LLAMA_SERVER and HEARTH are the binaries `llama-server` and `hearth`. Without sampling, all texts must be the same. Needs nothing
beyond Python; takes a minute with a model of 135M parameters.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from socket import socket

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "To be, or not to be",
    "The three laws of",
]
MESSAGES = [[{"role": "user", "content": text}] for text in ["Hello! Who are you?", "Give me three colors."]]


class Server:
    def __init__(self, name, command, ready):
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            assert self.process.poll() is None, f"{name} ended with {self.process.returncode}"
            try:
                urllib.request.urlopen(self.url + ready, timeout=2)
                return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError(f"{name} is not ready")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["choices"][0]

    def texts(self, model):
        greedy = {"model": model, "max_tokens": 40, "temperature": 0}
        plain = [self.post("/v1/completions", {**greedy, "prompt": prompt})["text"] for prompt in PROMPTS]
        chats = [self.post("/v1/chat/completions", {**greedy, "messages": messages}) for messages in MESSAGES]
        return plain + [chat["message"]["content"] for chat in chats]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def main(llama_server, hearth, folder, adapter=None):
    with tempfile.TemporaryDirectory() as work:
        model, lora = Path(work, "model.gguf"), Path(work, "adapter.gguf")
        subprocess.run([hearth, "export", folder, model], check=True, stdout=subprocess.DEVNULL)
        ours, theirs, name = [hearth, "serve", "--device", "cpu", "--model", folder], [llama_server, "-c", "1024", "-m", model], Path(folder).name
        if adapter:
            subprocess.run([hearth, "export", folder, lora, "--adapter", adapter], check=True, stdout=subprocess.DEVNULL)
            name, ours, theirs = "adapter", [*ours, "--lora", f"adapter={adapter}"], [*theirs, "--lora", lora]
        with Server("hearth", ours, "/ready") as server:
            expected = server.texts(name)
            base = server.texts(Path(folder).name)
        with Server("llama-server", theirs, "/health") as server:
            found = server.texts("model")
        if adapter:
            assert expected != base, "the adapter changes nothing, so this shows nothing"
            with Server("hearth", [*ours[:-1], f"adapter={lora}"], "/ready") as server:
                assert server.texts(name) == expected, "Hearth reads another adapter from its own GGUF file"
    for prompt, one, other in zip([*PROMPTS, *MESSAGES], expected, found, strict=True):
        assert one == other, f"{prompt}:\n  hearth: {one!r}\n  llama.cpp: {other!r}"
    print(f"ok      {folder}{' with ' + adapter if adapter else ''}: {len(found)} texts are the same in llama.cpp")


if __name__ == "__main__":
    main(*sys.argv[1:])
