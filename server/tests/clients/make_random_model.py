#!/usr/bin/env python3
"""A Llama with random weights, as a model dir: make_random_model.py docs/shapes/llama-1b MODEL_DIR OUT

To measure speed at sizes and depths that no small model has (measure_peers.py --depth). The shape is that of the first folder's config.json,
with a context of 131,072 tokens; tokenizer and vocabulary are those of MODEL_DIR. Then, for the same file on all sides:

    hearth export OUT shape.BF16.gguf
    llama-quantize shape.BF16.gguf shape.Q8_0.gguf Q8_0

Needs numpy.
"""
import json, pathlib, shutil, struct, sys
import numpy


def tensors(config):
    width, hidden, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", [config["vocab_size"], width]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for matrix, rows in [("q", queries), ("k", keys), ("v", keys)]:
            yield f"{name}.self_attn.{matrix}_proj.weight", [rows, width]
        yield f"{name}.self_attn.o_proj.weight", [width, queries]
        for matrix, dims in [("gate", [hidden, width]), ("up", [hidden, width]), ("down", [width, hidden])]:
            yield f"{name}.mlp.{matrix}_proj.weight", dims
        for norm in ["input_layernorm", "post_attention_layernorm"]:
            yield f"{name}.{norm}.weight", [width]
    yield "model.norm.weight", [width]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    shape, model, out = map(pathlib.Path, sys.argv[1:])
    config, other = [json.loads((folder / "config.json").read_text()) for folder in [shape, model]]
    config |= {key: value for key, value in other.items() if key in ["vocab_size", "bos_token_id", "eos_token_id"]}
    config["max_position_embeddings"] = 131072
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config, indent=2))
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
        shutil.copy(model / name, out)
    header, offset = {}, 0
    for name, dims in tensors(config):
        size = 2 * int(numpy.prod(dims))
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(1)
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors(config):
            values = numpy.ones(dims, "f4") if len(dims) == 1 else random.standard_normal(dims, "f4") * numpy.float32(0.02)
            # The upper halves are bf16.
            file.write((values.view("u4") >> 16).astype("u2").tobytes())


main()
