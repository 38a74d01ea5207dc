"""Two builds of Hearth, how to run and serve with them, and the table of rows."""

import contextlib
import dataclasses
import json
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROWS = []


@dataclasses.dataclass
class Row:
    """A kind of fault. `observe(build)` gives whether the build does the right thing, and what it does."""

    section: str
    kind: str
    observe: object


def row(section, kind):
    def add(observe):
        ROWS.append(Row(section, kind, observe))
        return observe

    return add


@dataclasses.dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def text(self):
        return re.sub(r"\x1b\[[0-9;]*m", "", self.out + self.err)

    def said(self):
        """The error, or else that the command succeeded."""
        if self.code == 0:
            return "accepted"
        lines = [line for line in self.text.splitlines() if "error" in line.lower()] or self.text.splitlines() or [f"status {self.code}"]
        return short(lines[0])


def short(text, n=150):
    text = " ".join(str(text).split())
    return text if len(text) <= n else text[: n - 1] + "…"


class Build:
    """The programs of one build, and a folder for what they write."""

    def __init__(self, programs, work):
        self.programs, self.work = pathlib.Path(programs).resolve(), pathlib.Path(work)
        self.work.mkdir(parents=True, exist_ok=True)

    def folder(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.work))

    def write(self, name, content):
        path = self.folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def command(self, program, arguments):
        return [str(self.programs / program), *map(str, arguments)]

    def run(self, program, *arguments, stdin=None, seconds=120, max_bytes=None):
        # No limit of memory is inherited by the other build.
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))) if max_bytes else None
        try:
            ran = subprocess.run(self.command(program, arguments), input=stdin, capture_output=True, timeout=seconds, preexec_fn=limit, errors="replace", text=True)
        except subprocess.TimeoutExpired:
            return Ran(124, "", f"error: no end after {seconds} s")
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def train(self, *arguments, **options):
        return self.run("hearth-train", *arguments, **options)

    def hearth(self, *arguments, **options):
        return self.run("hearth", *arguments, **options)

    @contextlib.contextmanager
    def serve(self, model, *flags):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = self.folder() / "log"
        with open(log, "w") as stream:
            command = self.command("hearth", ["serve", "--model", model, "--port", port, *flags])
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
        server = Server(port, process, log)
        try:
            server.wait()
            yield server
        finally:
            process.kill()
            process.wait()


class NoStart(Exception):
    """A server that ended instead."""


@dataclasses.dataclass
class Reply:
    status: int
    text: str

    @property
    def json(self):
        return json.loads(self.text)

    def error(self):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"{self.status}: {short(self.json['error']['message'])}"
        return f"{self.status}: {short(self.text)}"


class Server:
    def __init__(self, port, process, log):
        self.port, self.process, self.log = port, process, log

    def wait(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise NoStart(short(([line for line in self.log.read_text().splitlines() if "rror" in line] or ["ended"])[0]))
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5)
                return
            time.sleep(0.05)
        raise NoStart("not ready after 30 s")

    def post(self, path, body, seconds=30, headers=None):
        headers = {"content-type": "application/json"} | (headers or {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), headers)
        return self.open(request, seconds)

    def get(self, path, seconds=10):
        return self.open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"), seconds)

    @staticmethod
    def open(request, seconds):
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return Reply(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.read().decode())
        except TimeoutError:
            return Reply(0, f"no answer in {seconds} s")
        except OSError as error:
            return Reply(0, f"no answer: {error}")

    def resident_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def counted(results):
    """One result of several: `results` are pairs of a name and what is wrong, or nothing."""
    results = list(results)
    wrong = [f"{name}: {fault}" for name, fault in results if fault]
    if not wrong:
        return True, f"all {len(results)} right"
    return False, f"{len(wrong)} of {len(results)} wrong ({short('; '.join(wrong), 330)})"


def copy(source, target, **changes):
    """A copy of a model dir, with other members in its JSON files: `copy(a, b, config={...})`."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    for name, members in changes.items():
        path = pathlib.Path(target) / f"{name}.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        content.update(members)
        path.write_text(json.dumps(content))
    return pathlib.Path(target)
