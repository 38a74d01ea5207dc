#!/usr/bin/env python3
"""Other people's routers in front of two replicas: litellm's proxy, unmodified.

    python -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]==1.106.12'
    deploy/checks/routers.py --litellm /tmp/litellm/bin/litellm [--hearth PROGRAM]

Checked are: completions and chats, streamed or not, reach both replicas; after one replica has gone, no request fails once
litellm has noticed; the replicas' metrics and litellm's own `/health` can be read; the error of a replica (a prompt that is
too long) keeps its status. The version is one that was tried; 1.107.0 was compromised and is no longer in the index.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replicas import CheckFailed, Replica, free_port, get, hearth_program, send

CONFIG = """
model_list:
  - model_name: tales
    litellm_params: {{model: openai/hearth-bundled, api_base: "http://127.0.0.1:{one}/v1", api_key: none}}
  - model_name: tales
    litellm_params: {{model: openai/hearth-bundled, api_base: "http://127.0.0.1:{two}/v1", api_key: none}}
router_settings: {{routing_strategy: least-busy, num_retries: 2, allowed_fails: 1, cooldown_time: 30}}
litellm_settings: {{drop_params: false, telemetry: false}}
general_settings: {{master_key: sk-check-of-replicas}}
"""


KEY = {"authorization": "Bearer sk-check-of-replicas"}


def chat(number: int, stream: bool) -> dict:
    messages = [{"role": "user", "content": f"Tell me story {number} about a brave fox."}]
    return {"model": "tales", "messages": messages, "max_tokens": 24, "temperature": 0, "stream": stream}


async def many(port: int, n: int) -> list:
    """Chats and completions, streamed or not, eight at a time."""
    limit = asyncio.Semaphore(8)

    async def one(number: int):
        async with limit:
            if number % 4 == 3:
                body = {"model": "tales", "prompt": f"Tale {number}.", "max_tokens": 24, "temperature": 0}
                return await send(port, "/v1/completions", body, headers=KEY)
            return await send(port, "/v1/chat/completions", chat(number, number % 2 == 0), headers=KEY)

    return await asyncio.gather(*(one(number) for number in range(n)))


def require(holds: bool, what: str, got=""):
    print(f"{'holds' if holds else 'error'}: {what}{'' if holds else f', got {got}'}", flush=True)
    if not holds:
        raise CheckFailed(what)


def check(litellm: str, hearth: str, work: Path):
    replicas = [Replica(hearth, name, free_port(), work, []).start() for name in ("one", "two")]
    port, process = free_port(), None
    try:
        for replica in replicas:
            replica.wait_until_ready()
        (work / "config.yaml").write_text(CONFIG.format(one=replicas[0].port, two=replicas[1].port))
        log = (work / "litellm.log").open("wb")
        # Nothing is fetched: the table of prices is that of the package.
        environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PATH": f"{Path(litellm).parent}:{os.environ['PATH']}"}
        command = [litellm, "--config", str(work / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        end = time.monotonic() + 180
        while get(port, "/health/liveliness")[0] != 200:
            if process.poll() is not None or time.monotonic() > end:
                raise CheckFailed(f"litellm did not start: {(work / 'litellm.log').read_text()[-1500:]}")
            time.sleep(0.5)
        answers = asyncio.run(many(port, 40))
        wrong = [answer for answer in answers if not (answer.is_complete and answer.text)]
        require(not wrong, "40 completions and chats, streamed or not, are answered", wrong[:2])
        counts = [replica.metrics()["vllm:request_success_total"] for replica in replicas]
        require(min(counts) >= 8 and sum(counts) == 40, "both replicas' metrics count their part of them", counts)
        status, text = get(port, "/health", 60, KEY)
        healthy = json.loads(text).get("healthy_count") if status == 200 else text
        require(healthy == 2, "litellm's `/health` reports two healthy replicas", healthy)
        long = asyncio.run(send(port, "/v1/chat/completions", {"model": "tales", "messages": [{"role": "user", "content": "fox " * 2000}]}, headers=KEY))
        require(long.status == 400, "a prompt that is too long is a 400 through litellm, too", long)
        replicas[0].signal(signal.SIGKILL)
        answers = asyncio.run(many(port, 40))
        wrong = [answer for answer in answers if not answer.is_complete]
        require(not wrong, "after SIGKILL of one replica, 40 requests are answered by the other", wrong[:2])
    finally:
        if process and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
        for replica in replicas:
            replica.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="the server [default: $HEARTH, or what cargo has built]")
    parser.add_argument("--litellm", default="litellm", help="litellm's program [default: litellm]")
    arguments = parser.parse_args()
    litellm = shutil.which(arguments.litellm)
    if not litellm:
        raise CheckFailed(f"there is no program `{arguments.litellm}`\nhint: pip install 'litellm[proxy]==1.106.12', and name it with `--litellm`")
    with tempfile.TemporaryDirectory(prefix="replicas-") as work:
        check(litellm, hearth_program(arguments.hearth), Path(work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
