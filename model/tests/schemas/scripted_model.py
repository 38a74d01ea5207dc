"""A model that writes chosen texts byte by byte: its next token depends on the position alone. Needs numpy and safetensors."""

import json

import numpy
from safetensors.numpy import save_file

# The tokens are the bytes, and the end of a text.
END = 256
VOCAB_SIZE = 257
N_POSITIONS = 4096
# At least one dimension for each token: the embedding of a position says which tokens come next.
WIDTH = 288


def tokenizer():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end = {"id": END, "content": "<|end|>", "special": True}
    end |= dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    vocab = {characters[byte]: byte for byte in range(256)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    return {"version": "1.0", "added_tokens": [end], "pre_tokenizer": bytes_, "decoder": bytes_, "model": model}


def save(folder, likely):
    """Saves the model as a folder. `likely[n]` are tokens after a text of `n` tokens, the most likely one first."""
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB_SIZE, "n_positions": N_POSITIONS,
        "n_embd": WIDTH, "n_inner": 32, "n_layer": 1, "n_head": 9, "activation_function": "gelu_new",
        "tie_word_embeddings": False, "bos_token_id": END, "eos_token_id": END, "torch_dtype": "float32",
    }
    block = {"ln_1.weight": [WIDTH], "ln_1.bias": [WIDTH], "ln_2.weight": [WIDTH], "ln_2.bias": [WIDTH]}
    block |= {"attn.c_attn.weight": [WIDTH, 3 * WIDTH], "attn.c_attn.bias": [3 * WIDTH]}
    block |= {"attn.c_proj.weight": [WIDTH, WIDTH], "attn.c_proj.bias": [WIDTH]}
    block |= {"mlp.c_fc.weight": [WIDTH, 32], "mlp.c_fc.bias": [32], "mlp.c_proj.weight": [32, WIDTH], "mlp.c_proj.bias": [WIDTH]}
    shapes = {f"transformer.h.0.{name}": shape for name, shape in block.items()}
    shapes |= {"transformer.wte.weight": [VOCAB_SIZE, WIDTH], "transformer.ln_f.bias": [WIDTH]}
    tensors = {name: numpy.zeros(shape, numpy.float32) for name, shape in shapes.items()}
    positions = numpy.zeros([N_POSITIONS, WIDTH], numpy.float32)
    for n_before, tokens in likely.items():
        for rank, token in enumerate(tokens):
            if positions[n_before - 1, token] == 0:
                positions[n_before - 1, token] = 1 - rank / 16
    tensors["transformer.wpe.weight"] = positions
    tensors["transformer.ln_f.weight"] = numpy.ones(WIDTH, numpy.float32)
    tensors["lm_head.weight"] = numpy.eye(VOCAB_SIZE, WIDTH, dtype=numpy.float32)
    save_file(tensors, folder / "model.safetensors")
    for name, content in [("config", config), ("tokenizer", tokenizer()), ("tokenizer_config", {"eos_token": "<|end|>"})]:
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
