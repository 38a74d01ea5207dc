"""Sections 1 and 5: one compute thread, shares of clients, and the terminal."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pty
import select
import socket
import subprocess
import time

import tiny_models
from builds import Reply, counted, row, short


def text(n):
    return ("The fox sleeps by the river. " * 60)[:n]


@row("1", "every kind of request at one thread")
def one_thread(build):
    person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"], "additionalProperties": False}
    bodies = {
        "/v1/completions": {"prompt": text(31), "max_tokens": 3}, "/v1/embeddings": {"input": text(31)}, "/tokenize": {"prompt": text(31)},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text(31)}], "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": person}}},
        "/v1/inspect": {"input": text(200), "attention": {}, "logit_lens": {}},
    }
    with build.serve(tiny_models.base(), "--threads", "1", "--device", "cpu") as server:
        results = []
        for path, body in bodies.items():
            reply = server.post(path, body, seconds=8)
            health = server.get("/health").status
            results.append((path, None if reply.status == 200 else f"{reply.error()} (/health: {health})"))
    return counted(results)


@row("1", "memory of structured answers and required calls")
def memory(build):
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 12}}, "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    messages = [{"role": "user", "content": "x"}]
    bodies = [{"messages": messages, "max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}}, {"messages": messages, "max_tokens": 30, "tools": tools, "tool_choice": "required"}]
    results = []
    for n_threads in ["1", "2"]:
        with build.serve(tiny_models.base(), "--threads", n_threads, "--device", "cpu") as server:
            sizes = []
            for _ in range(3):
                for at in range(200):
                    server.post("/v1/chat/completions", bodies[at % 2])
                sizes.append(server.resident_mb())
            growth = sizes[2] - sizes[0]
            results.append((f"{n_threads} threads", None if growth < 4 else f"{growth:.0f} MB more after 400 requests"))
    return counted(results)


@row("1", "the turn of a client that has gone is given back")
def turns(build):
    """A chat template that runs until its limit of time, and then another request with a template."""
    slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "chat_template": slow}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with build.serve(tiny_models.base(), "--trust-request-chat-template", "--device", "cpu") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as leaves:
            leaves.sendall(head + body)
            time.sleep(0.3)
        begun = time.time()
        reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x", "max_tokens": 1}, seconds=40)
        seconds = time.time() - begun
    return reply.status == 200 and seconds < 2, f"the next request takes {seconds:.1f} s ({reply.status})"


@row("1", "/health notices work without progress")
def health(build):
    """A text to inspect that takes long, beside a limit of a second."""
    with build.serve(tiny_models.base(), "--threads", "1", "--device", "cpu", "--step-timeout", "1") as server:
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(server.post, "/v1/inspect", {"input": text(31), "attention": {}}, 6)
            time.sleep(4)
            seen = server.get("/health").status
            answered = waiting.result().status == 200
    return answered or seen == 503, f"inspect is {'answered' if answered else 'not answered'}, /health says {seen}"


@row("5", "shares by key")
def fairness(build):
    keys = ["--api-key", "sk-one", "--api-key", "sk-two"]
    with build.serve(tiny_models.base(), *keys, "--device", "cpu", "--max-batch-size", "8") as server:
        greedy = {"prompt": [text(20)] * 16, "n": 100, "max_tokens": 400, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/v1/completions", json.dumps(greedy), {"content-type": "application/json", "authorization": "Bearer sk-one"})
        time.sleep(1)
        begun = time.time()
        reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, headers={"authorization": "Bearer sk-two"}, seconds=20)
        seconds = time.time() - begun
        connection.close()
    return reply.status == 200 and seconds < 1.5, f"two tokens beside 1,600 answers of another key: {seconds:.2f} s ({reply.status})"


@row("5", "`/set` checks names at once")
def chat_set(build):
    results = []
    for line, words in [("/set temprature 0.5", "did you mean"), ("/set temperature hot", "must be"), ("/set top_k -7", "must be"), ("/set frobnicate 1", "frobnicate`")]:
        terminal, other = pty.openpty()
        command = build.command("hearth", ["chat", "--model", tiny_models.base(), "--device", "cpu"])
        process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=os.environ | {"TERM": "xterm", "HOME": str(build.folder())})
        os.close(other)
        seen, until, has_asked = b"", time.time() + 15, False
        while time.time() < until and words.encode() not in seen:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            with contextlib.suppress(OSError):
                part = os.read(terminal, 65536)
                seen += part
                if b"\x1b[6n" in part:
                    os.write(terminal, b"\x1b[1;1R")  # where the cursor is
            if not has_asked and b"\x1b[6n" in seen:
                time.sleep(0.3)
                os.write(terminal, line.encode() + b"\r")
                has_asked, until = True, time.time() + 5
        process.kill()
        process.wait()
        os.close(terminal)
        results.append((line, None if words.encode() in seen else "taken"))
    return counted(results)


@row("5", "errors in a library's words")
def library_words(build):
    """What was given and what is allowed, and none of a library's names for it."""
    with build.serve(tiny_models.writer(build.folder() / "model", {1: "a"}), "--threads", "1") as server:
        def fault(path, body, words):
            reply = raw_post(server, path, body if isinstance(body, str) else json.dumps(body))
            is_plain = not any(word in reply.text for word in ["lexer", "fuel", "recursion", "llguidance", "serde"])
            return None if reply.status == 400 and is_plain and all(word in reply.text for word in words) else reply.error()

        completion = {"prompt": [32], "max_tokens": 4}
        deep = "[" * 300 + "]" * 300
        alternatives = "start: " + " | ".join(f'"a{n}" b' for n in range(30000)) + '\nb: "b"'
        results = [
            ("JSON of 300 levels", fault("/v1/completions", f'{{"prompt": {deep}}}', ["deep"])),
            ("a large grammar", fault("/v1/completions", completion | {"structured_outputs": {"grammar": alternatives}}, ["allowed"])),
        ]
    return counted(results)


def raw_post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    return Reply(response.status, response.read().decode())


@row("5", "TLS files in the wrong place")
def tls(build):
    results = []
    for certificate, key in [("no pem", "no pem"), ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")]:
        paths = build.write("cert.pem", certificate), build.write("key.pem", key)
        ran = build.hearth("serve", "--model", tiny_models.base(), "--port", "0", "--tls-cert", paths[0], "--tls-key", paths[1], seconds=10)
        results.append((short(certificate, 20), None if ran.code == 1 and ("`--tls-cert` must" in ran.text or "`--tls-key` must" in ran.text or ".pem`" in ran.text) else ran.said()))
    return counted(results)
