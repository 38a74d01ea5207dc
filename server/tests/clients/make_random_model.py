#!/usr/bin/env python3
"""A model dir with random weights in the shape of a Llama of about 1B parameters: make_random_model.py OUT TOKENIZER_DIR

To measure speed at sizes and depths that no small model has (measure_peers.py --depth). The tokenizer is that of another model, whose
vocabulary the model gets. Then, for the same file on all sides:

    hearth export OUT shape.BF16.gguf
    llama-quantize shape.BF16.gguf shape.Q8_0.gguf Q8_0

Needs numpy.
"""
import json, pathlib, shutil, struct, sys
import numpy

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 2048, 8192, 16, 32, 8, 64, 131072


def tensors(vocab):
    yield "model.embed_tokens.weight", [vocab, WIDTH]
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for matrix, rows in [("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)]:
            yield f"{name}.self_attn.{matrix}_proj.weight", [rows, WIDTH]
        yield f"{name}.self_attn.o_proj.weight", [WIDTH, HEADS * HEAD_DIM]
        for matrix, dims in [("gate", [HIDDEN, WIDTH]), ("up", [HIDDEN, WIDTH]), ("down", [WIDTH, HIDDEN])]:
            yield f"{name}.mlp.{matrix}_proj.weight", dims
        for norm in ["input_layernorm", "post_attention_layernorm"]:
            yield f"{name}.{norm}.weight", [WIDTH]
    yield "model.norm.weight", [WIDTH]


def main():
    out, tokenizer = map(pathlib.Path, sys.argv[1:])
    out.mkdir()
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
        shutil.copy(tokenizer / name, out)
    vocab = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    ends = {key: value for key, value in json.loads((tokenizer / "config.json").read_text()).items() if key in ["bos_token_id", "eos_token_id"]}
    (out / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": WIDTH, "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": True, **ends}, indent=2))
    header, offset = {}, 0
    for name, dims in tensors(vocab):
        size = 2 * int(numpy.prod(dims))
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(1)
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors(vocab):
            values = numpy.ones(dims, "f4") if len(dims) == 1 else random.standard_normal(dims, "f4") * numpy.float32(0.02)
            # The upper halves are bf16.
            file.write((values.view("u4") >> 16).astype("u2").tobytes())


main()
