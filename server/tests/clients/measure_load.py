#!/usr/bin/env python3
"""Loads a server that speaks OpenAI's API: measure_load.py URL [--clients 16] [--requests 64] [--prompt-words 128] [--max-tokens 64] [--api-key KEY].

Each client sends one streaming completion after the other, at temperature 0.8 and without ending early. The prompts are random words, all
different, and the same in every run. Prints one line of JSON: tokens per second over all clients, time to the first token and time
between tokens (median and 95th percentile, in ms), and how many requests failed. Needs nothing but Python. Run it against one server after
the other on one machine, with nothing else running, and compare ratios.
"""
import argparse, http.client, json, queue, random, threading, time, urllib.parse

WORDS = "the of and to in that was his he it with is for as had you not be her on at by which have or from this but all she they were".split()


def complete(url, options, prompt):
    """The times at which the tokens of one answer arrived, and their number."""
    connection = (http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection)(url.netloc, timeout=600)
    body = {"prompt": prompt, "max_tokens": options.max_tokens, "temperature": 0.8, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json", "authorization": f"Bearer {options.api_key}"}
    connection.request("POST", url.path.rstrip("/") + "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {response.read(500).decode()}")
    arrivals, n_tokens = [], 0
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            n_tokens = (event.get("usage") or {}).get("completion_tokens", n_tokens)
            if event.get("choices"):
                arrivals.append(time.perf_counter())
    connection.close()
    if not (arrivals and n_tokens):
        raise RuntimeError("the stream ended early")
    return arrivals, n_tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--api-key", default="none")
    options = parser.parse_args()
    url, words, waiting = urllib.parse.urlsplit(options.url), random.Random(1), queue.SimpleQueue()
    for _ in range(options.requests):
        waiting.put(" ".join(words.choices(WORDS, k=options.prompt_words)))
    first, gaps, counts, failures = [], [], [], []

    def client():
        while True:
            try:
                prompt = waiting.get_nowait()
            except queue.Empty:
                return
            start = time.perf_counter()
            try:
                arrivals, n_tokens = complete(url, options, prompt)
            except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
                failures.append(str(error))
                continue
            first.append(arrivals[0] - start)
            gaps.extend(after - before for before, after in zip(arrivals, arrivals[1:]))
            counts.append(n_tokens)

    threads, start = [threading.Thread(target=client) for _ in range(options.clients)], time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    ms = lambda times, share: round(1000 * sorted(times)[int(share * (len(times) - 1))], 1) if times else None
    print(json.dumps({
        "clients": options.clients, "requests": options.requests, "tok_per_sec": round(sum(counts) / seconds, 1),
        "first_token_ms": {"median": ms(first, 0.5), "p95": ms(first, 0.95)},
        "between_tokens_ms": {"median": ms(gaps, 0.5), "p95": ms(gaps, 0.95)},
        "failed": len(failures), "first_failure": failures[0] if failures else None}))


main()
