"""Section 4: folders and GGUF files that should open, templates and tokens that say something else."""

import base64
import json
import math
import pathlib

import numpy
import tiny_models
from builds import NoStart, copy, counted, row, short
from safetensors.numpy import load_file, save_file

SECTION = "4"
TESTS = pathlib.Path(__file__).parents[3] / "model/tests"


def generated(build, model, prompt="hello"):
    ran = build.hearth("generate", prompt, "--model", model, "--device", "cpu", "--temperature", "0", "--max-tokens", "12", seconds=30)
    return (ran.out, None) if ran.code == 0 else (None, ran.said())


def opened(build, folder, plain):
    """What is wrong with a folder that should give the text of another one."""
    text, error = generated(build, folder)
    return error if error else None if text == generated(build, plain)[0] else "another text"


def folders(kind, *cases):
    """Each case: a name, the base model, and what is done to a copy of it."""

    def observe(build):
        results = []
        for name, base, change in cases:
            plain = tiny_models.base(base)
            folder = copy(plain, build.folder() / "model")
            change(folder)
            results.append((name, opened(build, folder, plain)))
        return counted(results)

    row(SECTION, kind)(observe)


def change(file, **members):
    def apply(folder):
        path = folder / f"{file}.json"
        content = json.loads(path.read_text()) | members
        path.write_text(json.dumps(content))

    return apply


def rope(**members):
    def apply(folder):
        path = folder / "config.json"
        content = json.loads(path.read_text())
        content["rope_parameters"] = content["rope_parameters"] | members
        path.write_text(json.dumps(content))

    return apply


def tensors(edit):
    def apply(folder):
        path = folder / "model.safetensors"
        values = load_file(path)
        edit(values)
        save_file(values, path, {"format": "pt"})

    return apply


def added_tokens(n):
    def apply(folder):
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
        content["added_tokens"] += [{"id": 259 + i, "content": f"<more{i}>", "special": True} | flags for i in range(n)]
        path.write_text(json.dumps(content))

    return apply


folders("a tokenizer with more tokens than `vocab_size`", ("one more", "llama", added_tokens(6)), ("four more", "llama", added_tokens(9)))


def older(**scaling):
    """The rope keys of versions before 5."""

    def apply(folder):
        path = folder / "config.json"
        content = json.loads(path.read_text())
        content |= {"rope_theta": content.pop("rope_parameters").get("rope_theta", 1e4)} | scaling
        path.write_text(json.dumps(content))

    return apply


folders(
    "rope keys that transformers passes over; `rope_scaling: false`; `mrope_section`",
    ("attn_factor beside YaRN", "yarn", rope(attn_factor=0.878, extrapolation_factor=1.0)),
    ("mrope_section", "qwen2", rope(mrope_section=[4, 2, 2], mrope_interleaved=True)),
    ("factor beside the default", "llama", rope(factor=4.0, short_factor=[1.0])),
    ("rope_scaling: false", "llama", older(rope_scaling=False)),
    ("rope_scaling: {}", "llama", older(rope_scaling={})),
    ("rope_scaling with `type` default and mrope_section", "qwen2", older(rope_scaling={"type": "default", "rope_type": "default", "mrope_section": [4, 2, 2]})),
)


def head_only(values):
    values["lm_head.weight"] = values.pop("model.embed_tokens.weight")


def sharded(folder, names, sub="", overlay=None):
    values = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / sub).mkdir(exist_ok=True)
    place = {name: f"{sub}{'b' if name in names else 'a'}.safetensors" for name in values}
    for file in set(place.values()):
        part = {name: value for name, value in values.items() if place[name] == file}
        if overlay and file.endswith("a.safetensors"):
            part |= {name: value * 0 + 7 for name, value in values.items() if name in names}
        save_file(part, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": place}))


def with_tensor(name, shape):
    return tensors(lambda values: values.update({name: numpy.full(shape, 0.5, numpy.float32)}))


folders(
    "a tied model with the head only; overlay and sub-folder shards; surplus tensors",
    ("the head only", "tied", tensors(head_only)),
    ("an overlay", "llama", lambda folder: sharded(folder, ["model.norm.weight"], overlay=True)),
    ("shards in a folder", "llama", lambda folder: sharded(folder, ["model.norm.weight"], "sub/")),
    ("inv_freq in Qwen 3", "qwen3", with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", [8])),
    ("k_scale", "qwen3", with_tensor("model.layers.1.self_attn.k_scale", [])),
    ("v_scale", "llama", with_tensor("model.layers.1.self_attn.v_proj.v_scale", [1])),
)


def spliced(file, more):
    """Text in front of the last brace: NaN, and keys twice."""

    def apply(folder):
        path = folder / f"{file}.json"
        path.write_text(path.read_text().rstrip().removesuffix("}") + more + "}")

    return apply


folders(
    "Infinity, NaN, a key twice",
    ("NaN in config.json", "llama", spliced("config", ', "some_scale": NaN')),
    ("a key twice in config.json", "llama", spliced("config", ', "model_type": "llama"')),
    ("Infinity in tokenizer_config.json", "llama", spliced("tokenizer_config", ', "model_max_length": Infinity')),
    ("a key twice in tokenizer_config.json", "llama", spliced("tokenizer_config", ', "eos_token": "<|im_end|>"')),
    ("NaN in generation_config.json", "llama", spliced("generation_config", ', "typical_p": NaN')),
)
folders(
    "`generation_config.json` out of range",
    ("top_p", "llama", change("generation_config", top_p=1.5)), ("top_k", "llama", change("generation_config", top_k=-7)),
    ("temperature", "llama", change("generation_config", temperature=-1)), ("eos_token_id", "llama", change("generation_config", eos_token_id="</s>")),
    ("repetition_penalty", "llama", change("generation_config", repetition_penalty=0)), ("min_p", "llama", change("generation_config", min_p=3)),
)
folders(
    "a known `model_type` with another class",
    ("Qwen3Model", "qwen3", change("config", architectures=["Qwen3Model"])), ("LLaMAForCausalLM", "llama", change("config", architectures=["LLaMAForCausalLM"])),
    ("no class", "llama", change("config", architectures=None)), ("an empty list", "qwen2", change("config", architectures=[])),
)


@row(SECTION, "Gemma 3 text models as folders")
def gemma(build):
    plain = tiny_models.base("gemma3")
    folder = copy(plain, build.folder() / "model")
    added_tokens(6)(folder)
    return counted([("one token more", opened(build, folder, plain))])


@row(SECTION, "GGUF: per-layer arrays, a padding id of -1, flags as u8")
def gguf_notations(build):
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    original = TESTS / "gguf/llama.gguf"

    def continued(path):
        with build.serve(path, "--threads", "1", "--device", "cpu") as server:
            reply = server.post("/v1/completions", {"prompt": [3, 4, 5], "max_tokens": 6, "temperature": 0, "logprobs": 2})
            return reply.json["choices"][0]["logprobs"] if reply.status == 200 else reply.error()

    def rewritten(edits):
        reader = GGUFReader(original)
        path = build.folder() / "a.gguf"
        writer = GGUFWriter(path, "llama")
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name in edits:
                continue
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
        for name, (value, kind, inner) in edits.items():
            writer.add_key_value(name, value, kind, inner)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    fields = {field.name: field.contents() for field in GGUFReader(original).fields.values()}
    layers, heads = fields["llama.block_count"], fields["llama.attention.head_count"]
    unsigned, signed, byte, array = GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.UINT8, GGUFValueType.ARRAY
    plain = continued(original)

    def fault(**edits):
        try:
            found = continued(rewritten({name.replace("__", "."): value for name, value in edits.items()}))
        except NoStart as error:
            return short(error)
        return None if found == plain else "other numbers"

    return counted([
        ("head_count per layer", fault(llama__attention__head_count=([heads] * layers, array, unsigned))),
        ("feed_forward_length per layer", fault(llama__feed_forward_length=([fields["llama.feed_forward_length"]] * layers, array, signed))),
        ("padding id -1", fault(tokenizer__ggml__padding_token_id=(-1, signed, None))),
        ("add_bos_token as u8", fault(tokenizer__ggml__add_bos_token=(int(fields.get("tokenizer.ggml.add_bos_token", False)), byte, None))),
        ("causal as u8", fault(llama__attention__causal=(1, byte, None))),
    ])


@row(SECTION, "`tekken.json` only")
def tekken(build):
    folder = copy(tiny_models.base(), build.folder() / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    special = [{"rank": n, "token_str": name, "is_control": True} for n, name in enumerate(["<unk>", "<s>", "</s>", "[INST]"])]
    vocab = [{"rank": n, "token_bytes": base64.b64encode(bytes([n])).decode(), "token_str": None} for n in range(256)]
    config = {"pattern": "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|\\s+", "num_vocab_tokens": 260, "default_vocab_size": 260, "default_num_special_tokens": 4, "version": "v3"}
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    return counted([("bytes", generated(build, folder)[1])])


@row(SECTION, "Jinja as transformers has it: the table of expressions")
def jinja(build):
    golden = json.loads((TESTS / "golden/chat/expressions.json").read_text())
    results, n_refused = [], 0
    with build.serve(tiny_models.base(), "--trust-request-chat-template", "--device", "cpu") as server:
        for source, expected in golden["cases"]:
            body = {"messages": [{"role": "user", "content": "x"}], "chat_template": source, "chat_template_kwargs": golden["variables"]}
            reply = server.post("/tokenize", body | {"add_special_tokens": False})
            if expected is None:
                results.append((source, None if reply.status == 400 else "no error"))
            elif isinstance(expected, str) and expected:
                n_refused += reply.status == 400
                text = bytes(token for token in reply.json["tokens"] if token < 256).decode(errors="replace") if reply.status == 200 else expected
                results.append((source, None if text == expected else text))
    ok, text = counted(results)
    # `UNSUPPORTED` in model/tests/chat.rs: 13 that Jinja has and Hearth rejects by name.
    return ok and n_refused <= 13, f"{text}; {n_refused} rejected that Jinja takes"


@row(SECTION, "`reasoning_content`, `reasoning`, `thinking` of earlier answers")
def reasoning(build):
    results = []
    for read in ["reasoning_content", "reasoning", "thinking"]:
        template = "{% for m in messages %}{{ m." + read + " or '' }}{% endfor %}|x"
        with build.serve(tiny_models.writer(build.folder() / "model", {1: "a"}, template), "--threads", "1") as server:
            for given in ["reasoning_content", "reasoning", "thinking"]:
                messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", given: "why"}, {"role": "user", "content": "c"}]
                reply = server.post("/tokenize", {"messages": messages})
                text = bytes(token for token in reply.json["tokens"] if token < 256).decode() if reply.status == 200 else reply.error()
                results.append((f"{given} read as {read}", None if text == "why|x" else text))
    return counted(results)


@row(SECTION, "tokens and flags only in tokenizer_config.json; `add_prefix_space`; dropout")
def tokenizer_config(build):
    golden = json.loads((TESTS / "golden/tokenizers/tokenizers.json").read_text())
    results = []
    for case in golden["cases"]:
        content = json.loads(json.dumps(golden["base"]))
        for name, value in case["parts"].items():
            if name in ["dropout", "merges", "continuing_subword_prefix"]:
                content["model"][name] = value
            else:
                content[name] = value
        folder = copy(tiny_models.base(), build.folder() / "model")
        (folder / "tokenizer.json").write_text(json.dumps(content))
        (folder / "tokenizer_config.json").write_text(json.dumps(case["config"]))
        if case["map"]:
            (folder / "special_tokens_map.json").write_text(json.dumps(case["map"]))
        wrong = None
        try:
            with build.serve(folder, "--threads", "1", "--device", "cpu") as server:
                for text, ids in zip(golden["texts"], case["ids"]):
                    replies = [server.post("/tokenize", {"prompt": text, "add_special_tokens": special}) for special in [True, False]]
                    found = [reply.json["tokens"] if reply.status == 200 else reply.error() for reply in replies]
                    wrong = wrong or (f"{text!r}" if found != ids else None)
        except Exception as error:
            wrong = short(error)
        results.append((case["name"], wrong))
    return counted(results)


@row(SECTION, "a role that is an ordinary word")
def roles(build):
    results = []
    for name, word in [("pad_token", "!"), ("unk_token", "Ċ"), ("pad_token", "e"), ("bos_token", "l")]:
        folder = build.folder() / "model"
        tiny_models.writer(folder, {1: "well!\n!e"}, **{name: word})
        with build.serve(folder, "--threads", "1") as server:
            reply = server.post("/v1/completions", {"prompt": [32], "temperature": 0, "max_tokens": 9})
            text = reply.json["choices"][0]["text"] if reply.status == 200 else reply.error()
            results.append((f"{name} {word}", None if text == "well!\n!e" else text))
            reply = server.post("/tokenize", {"prompt": "well!\n"})
            results.append((f"{name} {word} in a prompt", None if reply.status == 200 and reply.json["tokens"][-6:] == list(b"well!\n") else reply.error()))
    return counted(results)


@row(SECTION, "an answer that never ends: the tokenizer names the end")
def ends(build):
    folder = tiny_models.writer(build.folder() / "model", {1: "hello"}, fallback=b"a")
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 7, "bos_token_id": 7}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    with build.serve(folder, "--threads", "1") as server:
        reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 20})
        choice = reply.json["choices"][0]
    return choice["message"]["content"] == "hello" and choice["finish_reason"] == "stop", f"{short(choice['message']['content'], 30)}, {choice['finish_reason']}"


@row(SECTION, "tokenizers on which the library panics")
def panics(build):
    text = {"Sequence": {"id": "A", "type_id": 0}}
    normalizer = lambda **content: {"normalizer": {"type": "Sequence", "normalizers": [content]}}  # noqa: E731
    cases = {
        "a merge that is no token": {"model": {"merges": [["a", "b"]]}}, "an empty `Replace`": normalizer(type="Replace", pattern={"String": ""}, content="x"),
        "`FixedLength` 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "a charsmap cut short": normalizer(type="Precompiled", precompiled_charsmap="/////wAAAAA="),
        "an undeclared token": {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, text], "pair": [], "special_tokens": {}}},
        "an empty `Prepend`": normalizer(type="Prepend", prepend=""), "a regular expression without width": normalizer(type="Replace", pattern={"Regex": "q*"}, content="x"),
        "a panic at one text": normalizer(type="Replace", pattern={"Regex": "(?=edd)"}, content="x"),
    }
    results = []
    for name, parts in cases.items():
        folder = copy(tiny_models.base(), build.folder() / "model")
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"] |= parts.get("model", {})
        content |= {part: value for part, value in parts.items() if part != "model"}
        (folder / "tokenizer.json").write_text(json.dumps(content))
        ran = build.hearth("generate", "edd hello", "--model", folder, "--device", "cpu", "--max-tokens", "2", seconds=30)
        is_panic = "panicked" in ran.text or "backtrace" in ran.text
        results.append((name, "a panic" if is_panic else "accepted" if ran.code == 0 else None))
        if name == "a panic at one text":
            with build.serve(folder, "--threads", "1", "--device", "cpu") as server:
                reply = server.post("/v1/completions", {"prompt": "edd hello", "max_tokens": 2})
                next_one = server.post("/v1/completions", {"prompt": "hello", "max_tokens": 2})
                is_named = reply.status in [400, 500] and "tokenizer" in reply.text
                results.append(("the same over HTTP", None if is_named and next_one.status == 200 else f"{reply.error()}, then {next_one.status}"))
    return counted(results)


@row(SECTION, "q8 KV cache under large key biases")
def key_biases(build):
    folder = copy(tiny_models.base("qwen2"), build.folder() / "model")
    choose = numpy.random.default_rng(3)

    def edit(values):
        for name in values:
            if name.endswith("k_proj.bias"):
                values[name] = (choose.standard_normal(values[name].shape) * 400).astype(numpy.float32)
            if name.endswith("q_proj.weight") or name.endswith("q_proj.bias"):
                values[name] = values[name] / 100

    tensors(edit)(folder)
    logprobs = {}
    for dtype in ["f32", "q8"]:
        with build.serve(folder, "--kv-cache-dtype", dtype, "--device", "cpu") as server:
            body = {"prompt": "The fox sleeps by the river, and the river runs down the hill. " * 3, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
            logprobs[dtype] = server.post("/v1/completions", body).json["choices"][0]["logprobs"]["token_logprobs"][1:]
    change = sum(abs(a - b) for a, b in zip(*logprobs.values())) / len(logprobs["f32"])
    return change < 0.03, f"log-probabilities change by {change:.3f} on average"


@row(SECTION, "an embedding model's own pooling")
def pooling(build):
    plain, results, vectors = tiny_models.base(), [], {}
    for mode in ["mean_tokens", "lasttoken", "cls_token", "max_tokens", "weightedmean_tokens"]:
        folder = copy(plain, build.folder() / "model")
        (folder / "1_Pooling").mkdir()
        names = ["mean_tokens", "lasttoken", "cls_token", "max_tokens", "weightedmean_tokens", "mean_sqrt_len_tokens"]
        (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 64} | {f"pooling_mode_{name}": name == mode for name in names}))
        modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        with build.serve(folder, "--threads", "1", "--device", "cpu") as server:
            reply = server.post("/v1/embeddings", {"input": "The fox sleeps."})
            vectors[mode] = reply.json["data"][0]["embedding"] if reply.status == 200 else None
    for mode, vector in vectors.items():
        if mode == "weightedmean_tokens":
            results.append((mode, "taken as the mean" if vector else None))
        elif mode != "mean_tokens":
            is_other = vector is not None and any(not math.isclose(a, b, abs_tol=1e-4) for a, b in zip(vector, vectors["mean_tokens"]))
            results.append((mode, None if is_other else "the mean"))
    return counted(results)

