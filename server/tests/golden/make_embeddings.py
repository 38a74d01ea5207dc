"""Writes embeddings.json: texts and the final hidden states that transformers gives them, pooled.

    python server/tests/golden/make_embeddings.py SMOLLM2_DIR

torch and transformers in the versions of model/tests/golden/versions.json. Vectors are raw (not scaled to length 1), f32
in little-endian order as base64, by pooling.
"""

import base64
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwei Boote liegen im Hafen; 日本語 and naïve cafés, too.\n\nThe end",
]


def pooled(model, ids):
    with torch.no_grad():
        states = model.base_model(torch.tensor([ids])).last_hidden_state[0].double()
    vectors = {"mean": states.mean(0), "last": states[-1], "max": states.max(0).values}
    write = lambda vector: base64.b64encode(vector.float().numpy().astype("<f4").tobytes()).decode()
    return {name: write(vector) for name, vector in vectors.items()}


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


bundled = load(HERE / "../../bundled")
bundled_ids = [[7], [(at * 37 + 11) % 4096 for at in range(100)]]
smollm2, tokenizer = load(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
golden = {
    "bundled": [{"input": ids, "vectors": pooled(bundled, ids)} for ids in bundled_ids],
    "smollm2": [{"input": text, "vectors": pooled(smollm2, tokenizer(text)["input_ids"])} for text in TEXTS],
}
(HERE / "embeddings.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
