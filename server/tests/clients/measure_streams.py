#!/usr/bin/env python3
"""What streams cost each other, on a real model: measure_streams.py HEARTH MODEL_DIR [hearth serve's flags].

Starts `HEARTH serve` itself, once per question, and prints one line of JSON for each:
- slow reader: decode speed of a stream alone, and beside one whose client reads a byte a second;
- queue: decode speed of the one stream that runs, alone and while 200 streams wait behind it, and the comments that
  keep those alive;
- long prompt: for several sizes of a step, how long a short request takes to its first token when it arrives behind a
  prompt of 2,000 tokens, and how long the tokens of a stream are apart while that prompt is computed.
Needs nothing but Python. Figures of one run compare with each other, those of two machines do not.
"""
import asyncio, json, re, subprocess, sys, threading, time

WORDS = "the of and to in that was his he it with is for as had you not be her on at by which have or from this".split()


class Server:
    def __init__(self, *flags):
        command = [sys.argv[1], "serve", "--port", "0", "--model", sys.argv[2], "--device", "cpu", *sys.argv[3:], *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            line = re.sub(r"\x1b\[[0-9;]*m", "", line)
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
            if "is ready" in line:
                break
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    async def open(self, prompt, max_tokens, limit=2**16):
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return reader, writer

    async def stream(self, prompt, max_tokens):
        """When each event came, and when the request was sent."""
        sent, times = time.perf_counter(), []
        reader, writer = await self.open(prompt, max_tokens)
        async for line in reader:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
        writer.close()
        return sent, times


def text(n_words, seed=0):
    return " ".join(WORDS[(seed * 7 + at * at + at * seed) % len(WORDS)] for at in range(n_words))


def speed(times):
    return round((len(times) - 1) / (times[-1] - times[0]), 1)


async def slow_reader():
    with Server() as server:
        await server.stream(text(20), 64)
        alone = [speed((await server.stream(text(20), 256))[1]) for _ in range(3)]
        # The slow one's answer is done soon and waits in buffers; what is measured comes after that.
        reader, writer = await server.open(text(20, 1), 2000, limit=1)

        async def sip():
            while await reader.read(1):
                await asyncio.sleep(1)

        sipping = asyncio.create_task(sip())
        both = await server.stream(text(20, 2), 256)
        while (await metric(server, "num_requests_running")) > 0:
            await asyncio.sleep(0.2)
        beside = [speed((await server.stream(text(20), 256))[1]) for _ in range(3)]
        sipping.cancel()
        writer.close()
    report("slow reader", tok_per_sec_alone=alone, while_its_answer_is_computed=speed(both[1]), while_it_reads=beside)


async def queue():
    with Server("--max-batch-size", "1", "--max-queue", "256") as server:
        await server.stream(text(20), 64)
        alone = speed((await server.stream(text(20), 1500))[1])
        running = asyncio.create_task(server.stream(text(20), 1500))
        while (await metric(server, "num_requests_running")) < 1:
            await asyncio.sleep(0.01)
        waiting = [await server.open(text(20, seed), 4) for seed in range(200)]
        while (n_waiting := await metric(server, "num_requests_waiting")) < len(waiting):
            await asyncio.sleep(0.01)
        comments = [0] * len(waiting)

        async def listen(index, reader):
            async for line in reader:
                comments[index] += line.startswith(b":")

        listening = [asyncio.create_task(listen(index, reader)) for index, (reader, _) in enumerate(waiting)]
        behind = speed((await running)[1])
        for _, writer in waiting:
            writer.close()
        await asyncio.gather(*listening, return_exceptions=True)
    report("queue", waiting=n_waiting, tok_per_sec_alone=alone, with_200_waiting=behind, streams_with_comments=sum(map(bool, comments)))


async def long_prompt():
    for n_tokens in [64, 128, 256, 512, 2048]:
        with Server("--max-batch-tokens", str(n_tokens)) as server:
            await server.stream(text(20), 32)
            stream = asyncio.create_task(server.stream(text(20), 400))
            await asyncio.sleep(1)
            start = time.perf_counter()
            long = asyncio.create_task(server.stream(text(2000, 3), 2))
            await asyncio.sleep(0.05)
            sent, short = await server.stream(text(20, 4), 2)
            long_sent, long_times = await long
            _, times = await stream
        gaps = [(b - a) * 1e3 for a, b in zip(times, times[1:])]
        during = sorted((b - a) * 1e3 for a, b in zip(times, times[1:]) if start < b < long_times[0])
        quiet = sorted(gaps[:20])
        report(
            "long prompt", step_tokens=n_tokens, short_ttft_ms=round((short[0] - sent) * 1e3),
            long_ttft_ms=round((long_times[0] - long_sent) * 1e3), stream_ms_per_token=round(quiet[len(quiet) // 2], 1),
            during_prefill_p50=round(during[len(during) // 2]), during_prefill_max=round(during[-1]),
        )


async def metric(server, name):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    page = (await reader.read(-1)).decode()
    writer.close()
    return float(re.search(rf"vllm:{name}{{.*}} (\S+)", page)[1])


def report(question, **figures):
    print(json.dumps({"question": question, **figures}), flush=True)


if __name__ == "__main__":
    for question in (slow_reader, queue, long_prompt):
        asyncio.run(question())
