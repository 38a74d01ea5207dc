"""Answers under schemas, of models that write chosen texts whatever the schema says.

A text that the schema admits must be the answer, byte by byte. After any other text, the answer must come to an end, must be one
JSON value, and `jsonschema` must admit it.
"""

import collections
import concurrent.futures
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import scripted_model

# Tokens that an answer may take to its end after the model has written its text.
ROOM = 400
CLOSING = list(b'"}]')

Script = collections.namedtuple("Script", "schema text is_expected is_valid")


def scripts_of(schema, texts, valid, is_valid, choose):
    """Scripts for one schema: texts that it admits, and hostile ones made of these or of others."""
    for text in valid[:2]:
        yield Script(schema, text.encode(), True, is_valid)
    for text in hostile(choose.choice(valid or texts), choose):
        yield Script(schema, text, False, is_valid)


def hostile(text, choose):
    """Texts that are nearly `text`."""
    value = json.loads(text)
    string = r'"(?:[^"\\]|\\.)*"'
    number = r"(?<=[\[:,])-?\d+|^-?\d+$"

    def spelled(match):
        return '"' + "".join(f"\\u{ord(character):04X}" if character.isalpha() and ord(character) < 0x10000 else json.dumps(character)[1:-1]
                             for character in json.loads(match[0])) + '"'

    yield re.sub(r"\{", '{"zz":1,', text, count=1).encode()
    yield re.sub(r"\{([^{}]+)\}", r"{\1,\1}", text, count=1).encode()
    yield re.sub(string, spelled, text).encode()
    yield re.sub(string, lambda _: '"' + "x" * 60 + '"', text, count=1).encode()
    yield re.sub(string, lambda _: r'"\ud800"', text, count=1).encode()
    yield re.sub(string, lambda _: '"\xff\xfe"', text, count=1).encode("latin-1", "replace")
    yield re.sub(string, lambda _: "7", text, count=1).encode()
    yield re.sub(number, lambda _: choose.choice(["1e400", "-0", "007", "1.", "0.10", "99999999999999999999", '"1"', "null"]), text).encode()
    yield re.sub(r"([\]}])", r",\1", text).encode()
    yield text[: len(text) // 2].encode()
    yield (text + choose.choice(["}", "]", ",1", " {}", "\n\n\n"])).encode()
    yield json.dumps(value, indent=choose.choice([1, 4, 40]), ensure_ascii=False).encode()
    yield choose.choice([b"", b"{", b"[[[[[[[[", b'{"a":{"a":{"a":{"a":', b"Sure! Here is the JSON:\n```json\n", b"true", b"-", b'"'])


def batches(scripts):
    """Scripts that fit into one model, each with the length of its prompt."""
    batch, start = [], 1
    for script in scripts:
        end = start + len(script.text) + ROOM
        if end >= scripted_model.N_POSITIONS:
            yield batch
            batch, end = [], 1 + len(script.text) + ROOM
            start = 1
        batch.append((start, script))
        start = end
    yield batch


def likely_tokens(batch):
    """The script, then the end; if the schema does not allow that, what closes something, in an order that changes."""
    choose, likely = random.Random(7), {}
    for start, script in batch:
        for offset in range(len(script.text) + ROOM):
            wanted = script.text[offset] if offset < len(script.text) else scripted_model.END
            likely[start + offset] = [wanted, *choose.sample(CLOSING, len(CLOSING)), ord(":")]
    return likely


class Server:
    """A server of a model that writes these texts."""

    def __init__(self, hearth, batch):
        self.folder = tempfile.TemporaryDirectory()
        scripted_model.save(pathlib.Path(self.folder.name), likely_tokens(batch))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # The model is tiny: a second thread would only wait.
        command = [hearth, "--threads", "1", "serve", "--model", self.folder.name, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready")
                return self
            except urllib.error.URLError:
                time.sleep(0.1)
        raise TimeoutError("the server does not become ready")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def answer(self, start, script):
        """The text, and why it ended; or what the server says instead."""
        request = {
            "prompt": [32] * start, "temperature": 0, "max_tokens": len(script.text) + ROOM - 1,
            "structured_outputs": {"json": script.schema},
        }
        url, headers = f"http://127.0.0.1:{self.port}/v1/completions", {"content-type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(request).encode(), headers)) as response:
                choice = json.load(response)["choices"][0]
                return choice["text"], choice["finish_reason"]
        except urllib.error.HTTPError as error:
            return error.read().decode(), f"status {error.code}"


def fault_of(script, answer, reason):
    """What is wrong with an answer, if anything is."""
    if reason == "length" and not script.is_expected:
        return None
    if reason != "stop":
        return f"ended by {reason}"
    if script.is_expected:
        return None if answer.encode() == script.text else "changed"
    try:
        # Of members with the same name, the last one counts, or with other parsers the first one.
        values = [json.loads(answer), json.loads(answer, object_pairs_hook=lambda pairs: dict(reversed(pairs)))]
    except ValueError as error:
        return f"no JSON ({error})"
    return "invalid" if any(script.is_valid(value) is False for value in values) else None


def run(hearth, scripts, counts, faults):
    """Adds what is wrong to `faults`."""
    for batch in batches(scripts):
        with Server(hearth, batch) as server, concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = threads.map(lambda job: server.answer(*job), batch)
            for (_, script), (answer, reason) in zip(batch, answers):
                counts["scripted answers"] += 1
                counts["scripted answers that are the script"] += answer.encode() == script.text
                counts["scripted answers without end"] += reason == "length"
                fault = fault_of(script, answer, reason)
                if fault:
                    schema = json.dumps(script.schema, ensure_ascii=False)
                    faults.append(f"scripted {script.text!r}, {fault}: {answer!r}\n    under {schema}")
        print(f"{counts['scripted answers']} of {len(scripts)} scripted answers, {len(faults)} faults", file=sys.stderr)
