#!/usr/bin/env python3
"""Runs Prometheus against three real replicas with load, and checks that each query has data.

    deploy/checks/dashboard.py [--hearth PROGRAM]

Prometheus runs with deploy/compose/prometheus, in which only the addresses and the interval are replaced. Checked are: all
targets are up; each query of each panel of the dashboard returns numbers; each metric that an alert names exists; each
alert's rule can be evaluated, and none fires on healthy replicas. `promtool test rules` tests when alerts fire.
"""

import argparse
import asyncio
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from adapters import write_adapter
from faults import Load
from replicas import NAMES, ROOT, CheckFailed, Replica, free_port, get, hearth_program, program, send

COMPOSE = ROOT / "deploy/compose"
DASHBOARD = COMPOSE / "grafana/dashboards/hearth.json"


class Prometheus:
    def __init__(self, port: int, replicas: list[Replica], work: Path):
        config = (COMPOSE / "prometheus/prometheus.yml").read_text()
        for number, replica in enumerate(replicas, 1):
            config = config.replace(f"hearth-{number}:8080", f"127.0.0.1:{replica.port}")
        config = config.replace("scrape_interval: 15s", "scrape_interval: 1s").replace("evaluation_interval: 15s", "evaluation_interval: 1s")
        (work / "prometheus.yml").write_text(config)
        (work / "alerts.yml").write_text((COMPOSE / "prometheus/alerts.yml").read_text())
        self.port, self.log = port, work / "prometheus.log"
        command = [program("prometheus"), f"--config.file={work / 'prometheus.yml'}", f"--storage.tsdb.path={work / 'tsdb'}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

    def api(self, path: str, **query: str):
        status, text = get(self.port, f"/api/v1/{path}?{urllib.parse.urlencode(query)}", 10)
        if status != 200:
            raise CheckFailed(f"Prometheus: status {status} for {path} {query}: {text[:300]}; {self.log.read_text()[-500:] if not status else ''}")
        return json.loads(text)["data"]

    def query(self, expression: str) -> list[float]:
        return [float(sample["value"][1]) for sample in self.api("query", query=expression)["result"]]


def panel_queries() -> list[tuple[str, str]]:
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            found.append((panel["title"], target["expr"].replace("$__rate_interval", "30s").replace("$instance", ".*")))
    return found


async def load(port: int, seconds: float):
    """Load on one replica, of all kinds, with an adapter too."""
    running = Load(port, 4)
    task = asyncio.create_task(running.run())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await send(port, "/v1/completions", {"model": "tales", "prompt": "Once", "max_tokens": 4})
        await asyncio.sleep(0.5)
    await running.finish()
    await task


async def loads(replicas: list[Replica], seconds: float):
    await asyncio.gather(*(load(replica.port, seconds) for replica in replicas))


def check(hearth: str, work: Path) -> list[str]:
    write_adapter(work / "adapters/tales", 1)
    flags = ["--lora", f"tales={work / 'adapters/tales'}"]
    replicas = [Replica(hearth, name, free_port(), work, flags).start() for name in NAMES]
    prometheus = None
    try:
        for replica in replicas:
            replica.wait_until_ready()
        prometheus = Prometheus(free_port(), replicas, work)
        asyncio.run(loads(replicas, 30))
        wrong = []
        states = [target["health"] for target in prometheus.api("targets")["activeTargets"]]
        if states != ["up"] * 3:
            wrong.append(f"targets are {states}, expected three that are up")
        queries = panel_queries()
        for title, expression in queries:
            values = prometheus.query(expression)
            if not values or all(math.isnan(value) for value in values):
                wrong.append(f"panel `{title}`: no data for {expression}")
        rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        for rule in rules:
            if rule["health"] != "ok" or rule["state"] == "firing":
                wrong.append(f"alert `{rule['name']}`: {rule['health']}, {rule['state']} {rule.get('lastError', '')}")
            for name in set(re.findall(r"([a-zA-Z_:][\w:]*)\{", rule["query"])):
                if not prometheus.query(f'{name}{{job="hearth"}}'):
                    wrong.append(f"alert `{rule['name']}`: the metric `{name}` does not exist")
        print(f"{len(queries)} queries of {DASHBOARD.name} and {len(rules)} alerts checked against {len(replicas)} replicas")
        return wrong
    finally:
        if prometheus:
            prometheus.process.terminate()
            prometheus.process.wait()
        for replica in replicas:
            replica.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    hearth = hearth_program(parser.parse_args().hearth)
    with tempfile.TemporaryDirectory(prefix="replicas-") as work:
        wrong = check(hearth, Path(work))
    for what in wrong:
        print(f"error: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
