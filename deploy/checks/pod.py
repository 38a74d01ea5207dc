#!/usr/bin/env python3
"""Runs the pod of the CPU overlay without a cluster: what its init container and its container would run.

    pip install pyyaml
    deploy/checks/pod.py [--hearth PROGRAM]

As root (to become the pod's user): the arguments, settings and probes come from the built manifest. A stand-in for the hub
offers the bundled model under the name in HEARTH_MODEL. Checked are: the init container downloads it; the server starts from it
without the hub, as the pod's user, with a folder of models that it cannot write; the probes answer as Kubernetes needs;
requests need the key of the Secret; and when the pod ends, a request that runs is answered, new ones are until preStop is over
and get a 503 then, `/ready` fails and `/health` does not, and all is over within the grace period. preStop is shortened to 2 s.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from manifests import KUBERNETES, at, build
from replicas import ROOT, CheckFailed, free_port, get, hearth_program, send

KEY = "key-of-the-secret"
PRE_STOP = 2.0


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as `hearth pull` uses, for one model."""

    repo = ""
    n_requests = 0

    def do_GET(self):
        Hub.n_requests += 1
        files = {path.name: path.read_bytes() for path in (ROOT / "server/bundled").iterdir() if path.is_file()}
        path = self.path.partition("?")[0]
        if re.fullmatch(rf"/api/models/{self.repo}/revision/[^/]+", path):
            self.reply(200, json.dumps({"sha": "0123456789abcdef0123456789abcdef01234567"}).encode())
        elif re.fullmatch(rf"/api/models/{self.repo}/tree/[^/]+", path):
            digests = {name: hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest() for name, data in files.items()}
            entries = [{"type": "file", "path": name, "size": len(data), "oid": digests[name]} for name, data in files.items()]
            self.reply(200, json.dumps(entries).encode())
        elif (found := re.fullmatch(rf"/{self.repo}/resolve/[^/]+/(.+)", path)) and found[1] in files:
            self.reply(200, files[found[1]])
        else:
            self.reply(404, b"", "EntryNotFound")

    def reply(self, status: int, body: bytes, code: str = ""):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if code:
            self.send_header("x-error-code", code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def require(holds: bool, what: str, got=""):
    print(f"{'holds' if holds else 'error'}: {what}{'' if holds else f', got {got}'}", flush=True)
    if not holds:
        raise CheckFailed(what)


class Pod:
    """What the manifest says, with folders of this machine in place of volumes."""

    def __init__(self, hearth: str, work: Path, hub_port: int):
        documents = build(KUBERNETES / "overlays/cpu")
        self.settings = next(document["data"] for document in documents if document["kind"] == "ConfigMap")
        self.spec = next(document for document in documents if document["kind"] == "Deployment")["spec"]["template"]["spec"]
        self.pull, self.server = self.spec["initContainers"][0], self.spec["containers"][0]
        self.uid = self.spec["securityContext"]["runAsUser"]
        self.hearth, self.work, self.port, self.hub_port = hearth, work, free_port(), hub_port
        self.models, self.keys = work / "models", work / "keys"
        self.process: subprocess.Popen | None = None
        self.models.mkdir()
        self.keys.mkdir()
        (self.keys / "api-keys").write_text(KEY)
        os.chmod(work, 0o755)
        os.chown(self.models, self.uid, self.uid)

    def environment(self, container: dict) -> dict[str, str]:
        # Of the image, of the ConfigMap, and the container's own.
        given = {"PATH": os.environ["PATH"], "HF_HOME": "/models", "HEARTH_HOST": "127.0.0.1", "HEARTH_PORT": str(self.port), **self.settings}
        for variable in container.get("env", []):
            if "value" in variable:
                given[variable["name"]] = variable["value"]
            elif field := at(variable, "valueFrom.resourceFieldRef.resource"):
                given[variable["name"]] = str(at(container, f"resources.{field}"))
        given |= {"HF_ENDPOINT": f"http://127.0.0.1:{self.hub_port}", "HEARTH_DEVICE": "cpu"}
        folders = {"/models": str(self.models), "/run/hearth": str(self.keys)}
        for mount in container["volumeMounts"]:
            if mount["mountPath"] not in folders:
                raise CheckFailed(f"the manifest mounts `{mount['mountPath']}`, which this check does not know")
        for name, value in given.items():
            for inside, outside in folders.items():
                if value == inside or value.startswith(f"{inside}/"):
                    given[name] = outside + value.removeprefix(inside)
        return given

    def start(self, container: dict) -> subprocess.Popen:
        environment = self.environment(container)
        arguments = [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], argument) for argument in container["args"]]
        log = (self.work / f"{container['name']}.log").open("wb")
        user = {"user": self.uid, "group": self.uid, "extra_groups": []}
        self.process = subprocess.Popen([self.hearth, *arguments], env=environment, cwd="/", stdout=log, stderr=log, **user)
        return self.process

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self, container: dict) -> str:
        return (self.work / f"{container['name']}.log").read_text(errors="replace")[-800:]

    def probe(self, name: str) -> int:
        return get(self.port, at(self.server, f"{name}.httpGet.path"))[0]


async def ask(pod: Pod, n_tokens: int, **headers):
    body = {"prompt": "Once upon a time", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    return await send(pod.port, "/v1/completions", body, headers=headers)


async def run(pod: Pod):
    key = {"authorization": f"Bearer {KEY}"}
    pull = pod.start(pod.pull)
    require(pull.wait(120) == 0, "the init container downloads the model", pod.log(pod.pull))
    # As a volume that is mounted for reading.
    for folder, _, names in os.walk(pod.models):
        os.chown(folder, 0, 0)
        os.chmod(folder, 0o555)
        for name in names:
            os.chown(Path(folder, name), 0, 0, follow_symlinks=False)
    n_before = Hub.n_requests
    server = pod.start(pod.server)
    end = time.monotonic() + 60
    live = set()
    while pod.probe("startupProbe") != 200:
        live.add(pod.probe("livenessProbe"))
        if server.poll() is not None or time.monotonic() > end:
            raise CheckFailed(f"the server does not start: {pod.log(pod.server)}")
        await asyncio.sleep(0.02)
    require(Hub.n_requests == n_before, "the server starts without the hub, as the pod's user, and writes nothing")
    require(live <= {0, 200}, "while it loads, the liveness probe does not fail", live)
    require((await ask(pod, 4)).status == 401 and (await ask(pod, 4, **key)).is_complete, "requests need the key of the Secret")
    require(get(pod.port, "/metrics")[0] == 200, "Prometheus needs no key")

    # The pod ends. A request begins just before SIGTERM, others come all the time.
    start = time.monotonic()
    while time.monotonic() < start + PRE_STOP:
        answer = await ask(pod, 4, **key)
        if not answer.is_complete:
            raise CheckFailed(f"a request during preStop is not answered: {answer}")
        await asyncio.sleep(0.1)
    running = [asyncio.create_task(ask(pod, 450, **key)) for _ in range(12)]
    await asyncio.sleep(0.1)
    server.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.05)
    late = await ask(pod, 4, **key)
    ready, alive = pod.probe("readinessProbe"), pod.probe("livenessProbe")
    was_running = not all(task.done() for task in running)
    answers = await asyncio.gather(*running)
    require(all(answer.is_complete for answer in answers), "requests that run at SIGTERM are answered", [answer.error for answer in answers])
    require(was_running, "they ran on after it")
    require((late.status, ready, alive) == (503, 503, 200), "new requests and `/ready` get a 503, `/health` a 200", (late.status, ready, alive))
    status = server.wait(60)
    took, grace = time.monotonic() - start, pod.spec["terminationGracePeriodSeconds"]
    require(status == 0 and took < grace, f"the server ends with status 0 after {took:.1f} s, within {grace} s", (status, took))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    hearth = hearth_program(parser.parse_args().hearth)
    if os.geteuid():
        raise CheckFailed("only root can become the pod's user\nhint: run this check as root")
    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        # Where the pod's user can run it.
        own = shutil.copy(hearth, folder)
        pod = Pod(own, Path(folder), hub.server_address[1])
        Hub.repo = pod.settings["HEARTH_MODEL"]
        try:
            asyncio.run(run(pod))
        finally:
            pod.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
