"""Encodes documents with transformers and compares the ids with those that `hearth-train prepare` wrote.

Usage: python check_data.py DATA DOCUMENT...
DATA was prepared from these text files, a document each, or several where the end-of-text token is written out between them.
Each document must be in one of the splits as transformers encodes it, with the end-of-text token behind it, and nothing else
may be there.
"""

import json
import pathlib
import struct
import sys

from transformers import AutoTokenizer

data = pathlib.Path(sys.argv[1])
manifest = json.loads((data / "data.json").read_text())
tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
assert len(tokenizer) == manifest["vocab_size"], (len(tokenizer), manifest["vocab_size"])
eos = manifest["eos_id"]
assert tokenizer.eos_token_id == eos, (tokenizer.eos_token_id, eos)


def read_shard(path):
    content = path.read_bytes()
    magic, version, width, n_tokens = struct.unpack_from("<8sIIQ", content)
    assert (magic, version) == (b"HEARTHTK", 1), (magic, version)
    return struct.unpack_from(f"<{n_tokens}{'H' if width == 2 else 'I'}", content, 96)


found = []
for split in ["train", "val"]:
    ids = [id for shard in manifest[split]["shards"] for id in read_shard(data / shard["file"])]
    assert len(ids) == manifest[split]["tokens"]
    start = 0
    for end, id in enumerate(ids, 1):
        if id == eos:
            found.append(tuple(ids[start:end]))
            start = end
    assert start == len(ids), f"{split} does not end with the end-of-text token"

expected = []
for name in sys.argv[2:]:
    with open(name, encoding="utf-8", newline="") as file:
        text = file.read()
    for document in filter(str.strip, text.split(tokenizer.eos_token)):
        ids = tokenizer(document, split_special_tokens=True, verbose=False)["input_ids"]
        assert tokenizer.decode(ids) == document, f"{name}: encoding and decoding does not give the text back"
        expected.append((*ids, eos))
if sorted(found) != sorted(expected):
    sys.exit(f"{len(found)} documents, expected {len(expected)}, and their ids differ")
print(f"{len(found)} documents, {sum(map(len, found))} tokens: the ids of transformers")
