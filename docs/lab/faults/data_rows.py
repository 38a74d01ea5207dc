"""Section 2, the data: what `prepare` and `finetune` make of files."""

import gzip
import json
import re

import tiny_models
from builds import counted, row

SECTION = "2"


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def chat(user, assistant, **more):
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant} | more]}


def chats(n, start=0):
    return [chat(f"What is {i}?", f"It is {i * 7 % 10}.") for i in range(start, start + n)]


def sets(*settings):
    return [part for setting in settings for part in ("--set", setting)]


def inspect(build, data, *flags):
    return build.train("finetune", tiny_models.base(), "--data", data, "--inspect", "1", "--device", "cpu", *flags)


def n_examples(ran):
    found = re.search(r"(\d+) (?:examples|pairs)(?:, (\d+) tokens)?", ran.text)
    return (int(found[1]), int(found[2] or 0)) if found else (None, None)


def prepare(build, *sources, flags=()):
    """The tokens of both splits, or nothing."""
    ran = build.train("prepare", *sources, "--tokenizer", tiny_models.base(), "--out", build.folder() / "data", "--json", *flags)
    if ran.code:
        return None, ran
    data = json.loads(ran.out)["data"]
    return sum((data.get(split) or {"tokens": 0})["tokens"] for split in ["train", "val"]), ran


@row(SECTION, "rendered chats in `text`")
def rendered(build):
    texts = [f"<|im_start|>user\nWhat about {i}?<|im_end|>\n<|im_start|>assistant\nIt is {i}.<|im_end|>\n" for i in range(20)]
    data = build.write("a.jsonl", lines({"text": text} for text in texts))
    n_right = sum(tiny_models.n_tokens(text) for text in texts)
    tuned, prepared = n_examples(inspect(build, data))[1], prepare(build, data)[0]
    ok = all(n is not None and n <= n_right + 2 * len(texts) for n in [tuned, prepared])
    return ok, f"finetune makes {tuned} tokens of them, prepare {prepared}; with the marks as tokens it is {n_right}"


@row(SECTION, "marks of the end of a document")
def documents(build):
    text = "".join(f"A document says {i}.<|endoftext|>" for i in range(100))
    n_right = tiny_models.n_tokens(text)
    n, _ = prepare(build, build.write("a.txt", text))
    return n is not None and n <= n_right + 3, f"{n} tokens; with the marks as tokens it is {n_right}"


def split_folder(build):
    folder = build.folder() / "data"
    for name, start, n in [("train.jsonl", 0, 20), ("sub/test.jsonl", 20, 5), ("validation-00000-of-00001.jsonl", 30, 4)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(lines(chats(n, start)))
    return folder


@row(SECTION, "test and validation files of a folder")
def folder_splits(build):
    folder = split_folder(build)
    ran = inspect(build, folder)
    n, _ = n_examples(ran)
    whole, _ = prepare(build, folder)
    apart = sum(prepare(build, folder / name)[0] or 0 for name in ["train.jsonl", "validation-00000-of-00001.jsonl"])
    text = f"finetune trains on {n} of 29 examples, of which 5 are the test's and 4 for validation; prepare takes {whole} tokens, {apart} without the test"
    return n is not None and n <= 24 and whole == apart, text


@row(SECTION, "`--val`; `val_fraction=0`")
def own_validation(build):
    train, val = build.write("a.jsonl", lines(chats(20))), build.write("b.jsonl", lines(chats(4, 50)))
    return counted([
        ("finetune --val", inspect(build, train, "--val", val).said().replace("accepted", "")),
        ("prepare --val", prepare(build, train, flags=["--val", val])[1].said().replace("accepted", "")),
        ("finetune data.val_fraction=0", inspect(build, train, *sets("data.val_fraction=0")).said().replace("accepted", "")),
        ("prepare --val-fraction 0", prepare(build, train, flags=["--val-fraction", "0"])[1].said().replace("accepted", "")),
    ])


FLAGS = [("loss", False), ("loss_mask", 0), ("trainable", False), ("training", False), ("train", False), ("weight", 0), ("loss", 0.0), ("trainable", "false"), ("mask", True)]


@row(SECTION, "\"do not train\" by other names")
def flags(build):
    def fault(name, value):
        messages = chat("Hi", "BAD", **{name: value})["messages"] + chat("So?", "good", **{name: not value if isinstance(value, bool) else 1 if value in [0, 0.0] else value})["messages"]
        ran = inspect(build, build.write("a.jsonl", lines([{"messages": messages}] * 3)))
        return "trained" if ran.code == 0 and "[B][A][D]" in ran.text else None

    return counted((f"{name}: {json.dumps(value)}", fault(name, value)) for name, value in FLAGS)


@row(SECTION, "the same in Parquet")
def flags_in_parquet(build):
    import pyarrow
    import pyarrow.parquet

    def fault(name, value, kind):
        message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), (name, kind)])
        texts = [("user", "Hi", None), ("assistant", "BAD", value), ("user", "So?", None), ("assistant", "good", type(value)(1))]
        messages = [{"role": role, "content": content, name: flag} for role, content, flag in texts]
        path = build.folder() / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.array([messages] * 3, pyarrow.list_(message))}), path)
        ran = inspect(build, path)
        return "trained" if ran.code == 0 and "[B][A][D]" in ran.text else None

    kinds = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    values = [("loss", False), ("loss_mask", 0), ("trainable", False), ("training", False), ("weight", 0.0), ("train", False)]
    return counted((f"{name} as {type(value).__name__}", fault(name, value, kinds[type(value)])) for name, value in values)


@row(SECTION, "members that the template does not write; empty answers")
def members(build):
    def fault(record, word):
        ran = inspect(build, build.write("a.jsonl", lines([record] * 3)))
        return None if word in ran.text and (ran.code or "note" in ran.text.lower() or "warning" in ran.text.lower() or word in ran.err) else "passed over in silence"

    call = {"name": "clock", "arguments": "{}"}
    with_functions = chat("a", "b") | {"functions": [{"name": "clock", "parameters": {}}]}
    return counted([
        ("function_call", fault(chat("time?", "", function_call=call), "function_call")),
        ("reasoning_content", fault(chat("a", "b", reasoning_content="because"), "reasoning_content")),
        ("thinking", fault(chat("a", "b", thinking="because"), "thinking")),
        ("reasoning", fault(chat("a", "b", reasoning="because"), "reasoning")),
        ("functions", fault(with_functions, "functions")),
        ("an empty answer", fault(chat("a", ""), "empty")),
        ("a null answer", fault(chat("a", None), "content")),
        ("name of a speaker", fault(chat("a", "b", name="Eve"), "name")),
    ])


CSV = "instruction,input,output\n" + "".join(f'"Say {i}, please.","","It is {i}."\n' for i in range(10))


@row(SECTION, "CSV, TSV, JSON under another name")
def tables(build):
    def fault(name, content):
        ran = inspect(build, build.write(name, content))
        n, _ = n_examples(ran)
        return None if n == 10 or ran.code else f"{n} examples of 10"

    return counted([
        ("alpaca.csv", fault("alpaca.csv", CSV)),
        ("alpaca.tsv", fault("alpaca.tsv", CSV.replace(",", "\t").replace(".\t", "."))),
        ("lines in data.txt", fault("data.txt", lines(chats(10)))),
        ("an array in data.jsonl", fault("data.jsonl", json.dumps(chats(10)))),
        ("lines in data.json", fault("data.json", lines(chats(10)))),
        ("lines in `data`", fault("data", lines(chats(10)))),
        ("CSV with ;", fault("semicolon.csv", CSV.replace(",", ";"))),
    ])


@row(SECTION, "layouts of other programs")
def layouts(build):
    def fault(record, kept=None):
        ran = inspect(build, build.write("a.jsonl", lines([record] * 10)))
        n, _ = n_examples(ran)
        if ran.code:
            named = kept and any(word in ran.text for word in kept)
            return None if named else ran.said()
        return None if n == 10 and not kept else f"trained as {n} examples"

    return counted([
        ("ShareGPT", fault({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})),
        ("Alpaca", fault({"instruction": "a", "input": "", "output": "b"})),
        ("Dolly", fault({"instruction": "a", "context": "", "response": "b", "category": "qa"})),
        ("prompt and response", fault({"prompt": "a", "response": "b"})),
        ("question and answer", fault({"question": "a", "answer": "b"})),
        ("MMLU is named", fault({"question": "a", "subject": "x", "choices": ["p", "q"], "answer": 1}, ["MMLU", "choices"])),
        ("KTO's `label: false` is named", fault({"prompt": "a", "completion": "b", "label": False}, ["KTO", "label"])),
    ])


def pair(prompt, chosen, rejected):
    turn = lambda role, text: [{"role": role, "content": text}]  # noqa: E731
    return {"prompt": turn("user", prompt), "chosen": turn("assistant", chosen), "rejected": turn("assistant", rejected)}


@row(SECTION, "pairs without a difference, given or cut")
def same_pairs(build):
    def fault(records, *settings):
        ran = inspect(build, build.write("a.jsonl", lines(records)), *sets("objective.kind=dpo", *settings))
        n, _ = n_examples(ran)
        return f"{n} pairs are trained" if ran.code == 0 and n != 5 else None

    cut = sets("model.max_seq_len=64", "data.too_long=cut")
    apart = [pair(f"Q {i}?", "yes", "no") for i in range(5)]
    good = "good " * 60
    return counted([
        ("all the same", fault([pair(f"Q {i}?", "same", "same") for i in range(5)] + apart)),
        ("the same after the cut", fault([pair(f"Q {i}?", good + "yes", good + "no") for i in range(5)] + apart, *cut[1::2])),
        ("only these", None if inspect(build, build.write("a.jsonl", lines([pair("Q?", "same", "same")] * 8)), *sets("objective.kind=dpo")).code else "accepted"),
    ])


@row(SECTION, "`cut` that removes every end of turn")
def cut_ends(build):
    data = build.write("a.jsonl", lines(chat(f"What about {i}?", "It is fox. " * 60) for i in range(12)))
    ran = inspect(build, data, *sets("data.too_long=cut", "model.max_seq_len=64"))
    return ran.code != 0, ran.said()


@row(SECTION, "KTO's `label: false`")
def kto(build):
    def ran(label):
        return inspect(build, build.write("a.jsonl", lines([{"prompt": "a ", "completion": "BAD", "label": label}] * 6)))

    refused, taken = ran(False), ran(True)
    return refused.code != 0 and "label" in refused.text and taken.code == 0, f"`label: false`: {refused.said()}; `label: true`: {taken.said()}"


@row(SECTION, "`prepare` and `finetune` read the same JSON")
def both_commands(build):
    def fault(name, content, *flags):
        path = build.write(name, content)
        tuned, prepared = inspect(build, path), prepare(build, path, flags=flags)[1]
        return None if (tuned.code == 0) == (prepared.code == 0) else f"finetune: {tuned.said()}, prepare: {prepared.said()}"

    call = {"role": "assistant", "content": None, "function_call": {"name": "clock"}}
    nulls = [{"messages": [{"role": "user", "content": "time?"}, call, {"role": "assistant", "content": "ok"}]}] * 10
    return counted([
        ("null content beside function_call", fault("a.jsonl", lines(nulls))),
        ("conversations", fault("a.jsonl", lines(chats(10)))),
        ("an array", fault("a.json", json.dumps(chats(10)))),
        ("ShareGPT", fault("a.jsonl", lines([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}] * 10))),
        ("Alpaca in CSV", fault("a.csv", CSV)),
        ("empty lines between", fault("a.jsonl", lines(chats(10)).replace("\n", "\n\n"))),
        ("a role that is a number", fault("a.jsonl", lines([{"messages": [{"role": 7, "content": "a"}]}] * 10))),
        ("content in parts", fault("a.jsonl", lines([chat([{"type": "text", "text": "a"}], "b")] * 10))),
        ("a record without any known member", fault("a.jsonl", lines([{"foo": "a"}] * 10))),
        ("a text that is a number", fault("a.jsonl", lines([{"text": 7}] * 10))),
        ("a byte order mark", fault("a.jsonl", "\ufeff" + lines(chats(10)))),
        ("records one after another", fault("a.json", "".join(json.dumps(each, indent=1) for each in chats(10)))),
    ])


@row(SECTION, "UTF-16; zstd with a long window; gzip with zero padding")
def encodings(build):
    import zstandard

    text = "A river runs down the hill, and the fox sleeps.\n" * 400

    def fault(name, content):
        n, ran = prepare(build, build.write(name, content))
        return None if n and abs(n - len(text)) <= 3 else ran.said() if n is None else f"{n} tokens of {len(text)} bytes"

    long_window = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    compressed = zstandard.ZstdCompressor(compression_params=long_window).compressobj()
    stream = compressed.compress(text.encode()) + compressed.flush()
    return counted([
        ("UTF-16, little-endian", fault("a.txt", b"\xff\xfe" + text.encode("utf-16-le"))),
        ("UTF-16, big-endian", fault("a.txt", b"\xfe\xff" + text.encode("utf-16-be"))),
        ("zstd with a window of 256 MiB", fault("a.txt.zst", stream)),
        ("gzip with zeros at the end", fault("a.txt.gz", gzip.compress(text.encode()) + bytes(512))),
        ("gzip of two members", fault("a.txt.gz", gzip.compress(text[:999].encode()) + gzip.compress(text[999:].encode()))),
        ("UTF-16 in gzip", fault("a.txt.gz", gzip.compress(b"\xff\xfe" + text.encode("utf-16-le")))),
    ])


@row(SECTION, "one line of 600 MB: a limit per document")
def huge_line(build):
    path = build.folder() / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"text": "')
        for _ in range(600):
            file.write(b"a" * 1_000_000)
        file.write(b'"}\n')
    ran = build.train("prepare", path, "--tokenizer", tiny_models.base(), "--out", build.folder() / "data", seconds=60, max_bytes=3 << 30)
    return ran.code == 1 and "error" in ran.text, f"with 3 GB of memory: {ran.said()}"


@row(SECTION, "an empty text names its file; data of another tokenizer names both sides")
def named_files(build):
    folder, hollow = build.folder(), build.write("hollow.txt", "")
    empty = {
        "prepare": prepare(build, hollow)[1], "finetune": inspect(build, hollow), "tokenizer": build.train("tokenizer", hollow, "--out", folder / "tok"),
        "quickstart": build.train("quickstart", hollow, "--out", folder / "run"),
    }
    text = build.write("a.txt", "The fox sleeps by the river. " * 300)
    for name, size in [("one", 270), ("two", 280)]:
        build.train("tokenizer", text, "--out", folder / f"tok-{name}", "--vocab-size", size)
        build.train("prepare", text, "--tokenizer", folder / f"tok-{name}", "--out", folder / name)
    shard = next(path.name for path in sorted((folder / "two").iterdir()) if path.name.startswith("train"))
    (folder / "one" / shard).write_bytes((folder / "two" / shard).read_bytes())
    mixed = build.train("pretrain", "--data", folder / "one", "--out", folder / "run", "--preset", "tiny", "--dry-run")
    return counted([
        *[(f"{name} of an empty text", None if ran.code and "hollow.txt" in ran.text else ran.said()) for name, ran in empty.items()],
        ("mixed", None if mixed.code and mixed.text.count("(hash ") == 2 and shard in mixed.text else mixed.said()),
    ])
