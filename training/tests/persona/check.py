"""Asks a running server the held-out prompts and counts the answers that are as taught (see make.py).

Usage: python check.py URL MODEL [MODEL...]

For each model: the share of answers in the persona's format, greedy and at temperature 0.7 (three seeds), and one answer.
"""

import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FORM = re.compile(r"^Ahoy, traveler! [^\n]+\n\nLogbook: [^\n]+\n-- Ember, keeper of the light\s*$")
PROMPTS = [json.loads(line)["messages"] for line in (Path(__file__).parent / "held_out.jsonl").read_text().splitlines()]


def ask(url, model, messages, temperature, seed):
    body = {"model": model, "messages": messages, "temperature": temperature, "top_p": 1, "seed": seed, "max_tokens": 120}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        choice = json.load(response)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def share(url, model, temperature, seeds):
    jobs = [(messages, seed) for seed in seeds for messages in PROMPTS]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda job: ask(url, model, job[0], temperature, job[1]), jobs))
    right = [reason == "stop" and FORM.match(text) is not None for text, reason in answers]
    return sum(right) / len(right), answers[0][0]


def main(url, models):
    for model in models:
        greedy, answer = share(url, model, 0, [0])
        sampled, _ = share(url, model, 0.7, [1, 2, 3])
        print(f"{model}: {greedy:.1%} greedy, {sampled:.1%} at temperature 0.7\n  {PROMPTS[0][-1]['content']!r} -> {answer!r}")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2:])
