#!/usr/bin/env python3
"""Rates of an engine for Python on a GGUF file, as a line of JSON: what `measure_peers.py` asks of llama.cpp.

    python python_peers.py mistralrs|openvino FILE [--threads 2] [--depth 2048] [--depth-only]

Needs the package `mistralrs` or `openvino-genai`. Prompts are random words of one token each, all different, so that no engine finds the
beginning of one in another's cache. A rate of reading is the tokens over the time to the first one written; one of writing leaves that out.
"""
import argparse, json, os, pathlib, random, statistics, time

WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part place case week company system program question work government number night point home water room mother area money story fact month lot right study book eye job word business issue side kind head house service friend father power hour game line end member law car city community name".split()


def prompt(n_tokens):
    return " ".join(random.choices(WORDS, k=n_tokens))


class MistralRs:
    def __init__(self, file, threads):
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        import mistralrs

        self.package = mistralrs
        which = mistralrs.Which.GGUF(quantized_model_id=str(file.parent), quantized_filename=file.name)
        self.runner = mistralrs.Runner(which=which, prefix_cache_n=0)

    def generate(self, n_prompt, n_new, n_sequences):
        """Rates of reading and of writing, over all sequences."""
        assert n_sequences == 1, "the package takes one request after the other"
        request = self.package.CompletionRequest(model="default", prompt=prompt(n_prompt), max_tokens=n_new, temperature=0.0, ignore_eos=True)
        usage = self.runner.send_completion_request(request).usage
        return usage.prompt_tokens / usage.total_prompt_time_sec, usage.completion_tokens / usage.total_completion_time_sec


class OpenVino:
    def __init__(self, file, threads):
        import openvino_genai

        self.package = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching, scheduler.cache_size, scheduler.max_num_batched_tokens = False, 1, 512
        options = {"INFERENCE_NUM_THREADS": threads, "scheduler_config": scheduler}
        self.pipeline = openvino_genai.LLMPipeline(str(file), "CPU", **options)

    def generate(self, n_prompt, n_new, n_sequences):
        def seconds(n_new):
            config = self.package.GenerationConfig(max_new_tokens=n_new, ignore_eos=True, do_sample=False, apply_chat_template=False)
            prompts, start = [prompt(n_prompt) for _ in range(n_sequences)], time.perf_counter()
            self.pipeline.generate(prompts, config)
            return time.perf_counter() - start

        # Its own times for a token are means over sequences that are written at once.
        read = seconds(1)
        return n_sequences * n_prompt / read, n_sequences * (n_new - 1) / max(seconds(n_new) - read, 1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = {"mistralrs": MistralRs, "openvino": OpenVino}
    parser.add_argument("engine", choices=engines)
    parser.add_argument("file", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", nargs="*", type=int, default=[])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 4], help="how many sequences decode at each --depth")
    parser.add_argument("--depth-only", action="store_true")
    args = parser.parse_args()
    engine = engines[args.engine](args.file, args.threads)
    engine.generate(32, 8, 1)
    found = {}
    if not args.depth_only:
        found["prefill 512"] = statistics.median(engine.generate(512, 2, 1)[0] for _ in range(3))
        found["1 sequence"] = engine.generate(128, 64, 1)[1]
        if args.engine != "mistralrs":
            found["16 sequences"] = engine.generate(128, 64, 16)[1]
    for depth in args.depth:
        for n in args.sequences if args.engine != "mistralrs" else [1]:
            read, write = engine.generate(depth, 32, n)
            found |= {f"prompt of {depth}": read} if n == 1 else {}
            found[f"{n} behind {depth}"] = write
    print(json.dumps(found), flush=True)
    # mistral.rs has threads that outlive the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main()
