"""Encodes texts with tokenizers of transformers and writes tokenizers.json, which model/tests/tokenizer_config.rs compares with.

    python make_tokenizers.py

All are one small byte-level tokenizer, with other parts of `tokenizer.json` and other contents of the files beside it.
"""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

TEXTS = [
    "hello world!",
    " hello  <a> hello <a>hello!!! \n\n",
    "<b> hello <b>. <pad><c> hello <c>hello",
    "x<d>x <d> <e>",
    "<s>hello</s> <im> world",
]


def base():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["hello world hello !! !!! \n\n \n"] * 9 + ["<abcdeimpsx/>."], trainer)
    return json.loads(tokenizer.to_str())


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags


ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>"}


def cases(base):
    n = len(base["model"]["vocab"])
    json_tokens = base["added_tokens"]

    def decoder(*tokens, start=n):
        return {"added_tokens_decoder": {str(start + index): each for index, each in enumerate(tokens)}}

    def added(*tokens):
        return {"added_tokens": json_tokens + [each | {"id": n + index} for index, each in enumerate(tokens)]}

    plain = [token("<a>"), token("<b>"), token("<c>"), token("<d>")]
    flags = [token("<a>", rstrip=True, special=True), token("<b>", lstrip=True), token("<c>", lstrip=True, rstrip=True), token("<d>", single_word=True, normalized=True)]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}
    yield "no configuration", {}, {}, None
    yield "tokens of added_tokens_decoder", {}, decoder(*flags), None
    yield "flags of added_tokens_decoder", added(*plain), decoder(*flags), None
    yield "without flags in added_tokens_decoder", added(*flags), decoder(*plain), None
    yield "special only in added_tokens_decoder", added(*plain), decoder(*[each | {"special": True} for each in plain]), None
    yield "additional_special_tokens", {}, {"additional_special_tokens": ["<a>", "<b>", "!"]}, None
    yield "extra_special_tokens", {}, {"extra_special_tokens": ["<b>", "<a>"]}, None
    yield "named extra_special_tokens", {}, {"extra_special_tokens": {"image_token": "<im>", "audio_token": "<a>"}}, None
    yield "additional tokens and a decoder", {}, decoder(token("<b>", rstrip=True)) | {"additional_special_tokens": ["<b>", "<c>"]}, None
    yield "roles that are no tokens", {}, ROLES | {"pad_token": "<pad>", "cls_token": "<c>", "image_token": "<im>"}, None
    yield "a role with flags", {}, {"pad_token": token("<a>", rstrip=True, special=True) | {"__type": "AddedToken"}}, None
    yield "special_tokens_map", {}, {"pad_token": "<pad>"}, {"pad_token": "<a>", "mask_token": {"content": "<b>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}, "additional_special_tokens": ["<c>"]}
    yield "special_tokens_map beside a decoder", {}, decoder(token("<d>")), {"pad_token": "<a>"}
    yield "padding with an ordinary word", {}, {"pad_token": "!"}, None
    yield "padding with a line break", {}, {"pad_token": "Ċ"}, None
    yield "an unknown token that is an ordinary word", {}, {"unk_token": "hello", "bos_token": "x"}, None
    yield "add_bos_token", {}, ROLES | {"add_bos_token": True, "add_eos_token": True}, None
    yield "add_bos_token beside a template", {"post_processor": template}, ROLES | {"add_bos_token": False, "add_eos_token": True}, None
    for name in ["GPT2Tokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast"]:
        for prefix in [True, False, None]:
            config = ROLES | {"tokenizer_class": name} | ({} if prefix is None else {"add_prefix_space": prefix})
            yield f"{name}, add_prefix_space {prefix}", {}, config, None
            spaced = {"pre_tokenizer": base["pre_tokenizer"] | {"add_prefix_space": True}}
            yield f"{name}, add_prefix_space {prefix}, true in tokenizer.json", spaced, config, None
    yield "dropout", {"model": base["model"] | {"dropout": 0.9}}, {}, None


def encoded(parts, config, special_map):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in [("tokenizer.json", parts), ("tokenizer_config.json", config), ("special_tokens_map.json", special_map)]:
            if content is not None:
                (Path(folder) / name).write_text(json.dumps(content))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    # transformers would drop merges at random.
    if parts["model"].get("dropout"):
        tokenizer._tokenizer.model.dropout = None
    return [[tokenizer(text).input_ids, tokenizer(text, add_special_tokens=False).input_ids] for text in TEXTS]


def main():
    tokenizer = base()
    rows = []
    for name, parts, config, special_map in cases(tokenizer):
        ids = encoded(tokenizer | parts, config, special_map)
        # Only the differences: the model is the largest part.
        if "model" in parts:
            parts = {"dropout": parts["model"]["dropout"]}
        rows.append({"name": name, "parts": parts, "config": config, "map": special_map, "ids": ids})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{{"texts": {json.dumps(TEXTS)},\n"base": {json.dumps(tokenizer, ensure_ascii=False)},\n"cases": [\n{lines}\n]}}\n'
    (Path(__file__).parent / "tokenizers.json").write_text(text, encoding="utf-8")
    print(f"{len(rows)} tokenizers")


main()
