#!/usr/bin/env python3
"""How many drafts of a prediction head are accepted, and how much faster decoding is: measure_prediction_head.py HEARTH MODEL TEXT
[flags for the server with drafts].

Continues 16 parts of TEXT, which the model should not have been trained on, by 160 tokens each, one after the other and
greedily: nine rounds without drafts and nine with `--speculative mtp`, in turns. Prints one line of JSON: the drafted and
the accepted tokens, the tokens per second of each round, and what the medians say. The answers must be equal.
Needs nothing but Python. Figures of one run compare with each other, those of two machines do not.
"""
import json, re, statistics, subprocess, sys, threading, time, urllib.request

N_PROMPTS, PROMPT_CHARS, MAX_TOKENS, ROUNDS = 16, 64, 160, 9


class Server:
    def __init__(self, *flags):
        command = [sys.argv[1], "serve", "--port", "0", "--model", sys.argv[2], "--device", "cpu", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in self.process.stderr:
            line = re.sub(r"\x1b\[[0-9;]*m", "", line)
            lines.append(line)
            if found := re.search(r"listening on (http://127\.0\.0\.1:\d+)", line):
                self.url = found[1]
            if "is ready" in line:
                break
        else:
            sys.exit("".join(lines))
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()

    def metric(self, name):
        return sum(float(value) for value in re.findall(rf"^vllm:{name}{{.*}} (\S+)$", self.get("/metrics"), re.M))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def continue_all(server, prompts):
    """The answers, and the tokens per second."""
    start, answers, n_tokens = time.perf_counter(), [], 0
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        answer = json.loads(server.get("/v1/completions", body))
        answers.append(answer["choices"][0]["text"])
        n_tokens += answer["usage"]["completion_tokens"]
    return answers, n_tokens / (time.perf_counter() - start)


def main():
    text = open(sys.argv[3], encoding="utf-8").read()
    step = (len(text) - PROMPT_CHARS) // N_PROMPTS
    prompts = [text[start : start + PROMPT_CHARS] for start in range(0, step * N_PROMPTS, step)]
    servers = {"plain": Server(), "mtp": Server("--speculative", "mtp", *sys.argv[4:])}
    speeds, answers = {name: [] for name in servers}, {}
    for _ in range(ROUNDS):
        for name, server in servers.items():
            answers[name], speed = continue_all(server, prompts)
            speeds[name].append(round(speed, 1))
    drafted, accepted = (servers["mtp"].metric(f"spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
    for server in servers.values():
        server.stop()
    assert answers["plain"] == answers["mtp"], "drafts changed an answer"
    medians = {name: statistics.median(of_rounds) for name, of_rounds in speeds.items()}
    print(json.dumps({
        "drafted": int(drafted),
        "accepted": int(accepted),
        "acceptance": round(accepted / max(drafted, 1), 3),
        "tokens_per_s": speeds,
        "speedup": round(medians["mtp"] / medians["plain"], 2),
    }))


main()
