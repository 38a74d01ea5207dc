"""Writes imports/: small checkpoints as nanoGPT, LitGPT and nanochat save them, and what their models compute.

Run from this folder with torch, safetensors, tiktoken and litgpt (0.5.13) installed: python make_imports.py
Each folder has the files of the program, and `expected.safetensors`:
    input_ids   [rows] int32
    logits      [rows, vocab] f32, computed in f64 from the stored values
    text_ids    [tokens] int32, nanogpt and nanochat only: what the program's tokenizer makes of TEXT

The models of nanoGPT and nanochat are written here anew, from the descriptions of their architectures; LitGPT's is LitGPT's
own. nanochat itself rounds cosines and sines to bfloat16; neither `transformers` nor this script does.
"""

import json
import pickle
from collections import OrderedDict
from pathlib import Path

import tiktoken
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent / "imports"
TEXT = "To be, or not to be: 12345 was it?\n"
torch.set_num_threads(1)


def rows(vocab, n, seed):
    return torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(seed))


def weights(shapes, seed, std):
    """Named tensors: matrices normal, norms around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    named = OrderedDict()
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator)
        is_norm = "ln_" in name or "norm" in name
        if len(shape) > 1:
            value *= std
        elif is_norm and name.endswith("weight"):
            value = 1 + 0.3 * value
        else:
            value *= 0.3
        named[name] = value
    return named


def write(name, ids, logits, extra=None):
    save_file(
        {"input_ids": ids.int(), "logits": logits.float().contiguous(), **(extra or {})},
        HERE / name / "expected.safetensors",
    )


def attention(q, k, v):
    """Causal attention over [heads, rows, width]; key heads are shared by groups of query heads."""
    group = q.size(0) // k.size(0)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT / q.size(-1) ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return mixed.transpose(0, 1).flatten(1)


def heads(x, n):
    return x.view(x.size(0), n, -1).transpose(0, 1)


# nanoGPT


def gpt2_shapes(vocab, context, width, layers, bias):
    shapes = {"transformer.wte.weight": (vocab, width), "transformer.wpe.weight": (context, width)}
    for layer in range(layers):
        h = f"transformer.h.{layer}."
        parts = {
            "ln_1": (width,),
            "attn.c_attn": (3 * width, width),
            "attn.c_proj": (width, width),
            "ln_2": (width,),
            "mlp.c_fc": (4 * width, width),
            "mlp.c_proj": (width, 4 * width),
        }
        for part, shape in parts.items():
            shapes[f"{h}{part}.weight"] = shape
            if bias:
                shapes[f"{h}{part}.bias"] = shape[:1]
    shapes["transformer.ln_f.weight"] = (width,)
    if bias:
        shapes["transformer.ln_f.bias"] = (width,)
    return shapes


def gpt2_logits(named, ids, layers, n_heads):
    named = {name: value.double() for name, value in named.items()}

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], named[f"{name}.weight"], named.get(f"{name}.bias"), 1e-5)

    def linear(x, name):
        return F.linear(x, named[f"{name}.weight"], named.get(f"{name}.bias"))

    x = named["transformer.wte.weight"][ids] + named["transformer.wpe.weight"][: len(ids)]
    for layer in range(layers):
        h = f"transformer.h.{layer}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1)
        x = x + linear(attention(*(heads(part, n_heads) for part in qkv)), h + "attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ named["transformer.wte.weight"].T


def nanogpt():
    """As trained on characters without biases, compiled, with the optimizer; the vocabulary is padded."""
    (HERE / "nanogpt").mkdir(parents=True, exist_ok=True)
    chars = sorted(set(TEXT))
    stoi = {char: index for index, char in enumerate(chars)}
    with open(HERE / "nanogpt/meta.pkl", "wb") as file:
        pickle.dump({"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": stoi}, file)
    vocab, context, width, layers, n_heads = 32, 24, 8, 2, 2
    named = weights(gpt2_shapes(vocab, context, width, layers, bias=False), seed=1, std=0.5)
    ids = rows(vocab, 20, seed=2)
    write("nanogpt", ids, gpt2_logits(named, ids, layers, n_heads), {"text_ids": torch.tensor([stoi[c] for c in TEXT]).int()})
    state = OrderedDict((f"_orig_mod.{name}", value) for name, value in named.items())
    # The same storage a second time.
    state["_orig_mod.lm_head.weight"] = state["_orig_mod.transformer.wte.weight"]
    state._metadata = OrderedDict([("", {"version": 1})])
    params = [torch.nn.Parameter(value.clone()) for value in list(named.values())[-3:]]
    optimizer = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.95))
    sum(param.sum() for param in params).backward()
    optimizer.step()
    torch.save(
        {
            "model": state,
            "optimizer": optimizer.state_dict(),
            "model_args": dict(
                n_layer=layers, n_head=n_heads, n_embd=width, block_size=context, bias=False, vocab_size=vocab, dropout=0.2
            ),
            "iter_num": 250,
            "best_val_loss": torch.tensor(1.5),
            "config": {"out_dir": "out", "dataset": "shakespeare_char", "compile": True, "learning_rate": 1e-3},
        },
        HERE / "nanogpt/ckpt.pt",
    )


def nanogpt_bf16():
    """With biases, in bf16, under DDP; every tensor is a view of one storage, and matrices are transposed in it."""
    (HERE / "nanogpt-bf16").mkdir(parents=True, exist_ok=True)
    vocab, context, width, layers, n_heads = 19, 16, 8, 2, 2
    shapes = gpt2_shapes(vocab, context, width, layers, bias=True)
    named = {name: value.bfloat16() for name, value in weights(shapes, seed=3, std=0.5).items()}
    ids = rows(vocab, 16, seed=4)
    write("nanogpt-bf16", ids, gpt2_logits(named, ids, layers, n_heads))
    storage = torch.cat([value.T.flatten() if value.dim() > 1 else value for value in named.values()])
    state, start = OrderedDict(), 0
    for name, value in named.items():
        view = storage[start : start + value.numel()]
        start += value.numel()
        state[f"module.{name}"] = view.view(value.T.shape).T if value.dim() > 1 else view
        assert torch.equal(state[f"module.{name}"], value)
    mask = torch.ones(context, context).tril().view(1, 1, context, context)
    for layer in range(layers):
        state[f"module.transformer.h.{layer}.attn.bias"] = mask
    args = dict(n_layer=layers, n_head=n_heads, n_embd=width, block_size=context, bias=True, vocab_size=vocab, dropout=0.0)
    torch.save({"model": state, "model_args": args, "iter_num": 1}, HERE / "nanogpt-bf16/ckpt.pt")


# LitGPT


def litgpt():
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import incremental_save

    common = dict(block_size=32, n_layer=2, n_embd=16, n_head=4, vocab_size=21, padding_multiple=8)
    cases = {
        # As Pythia: parallel, partly rotated, all defaults.
        "litgpt-neox": (Config(name="tiny-pythia", **{**common, "n_head": 2}), torch.float32, False),
        # As Llama 3.1: grouped heads, scaled rotation, in f16; as pretraining saves it.
        "litgpt-llama": (
            Config(
                name="tiny-llama", n_query_groups=2, rotary_percentage=1.0, parallel_residual=False, bias=False,
                norm_class_name="RMSNorm", norm_eps=1e-3, mlp_class_name="LLaMAMLP", intermediate_size=20, rope_base=500,
                rope_adjustments=dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=16),
                **common,
            ),
            torch.float16,
            True,
        ),
        # As Gemma 2: norms before and after, weights less 1, soft caps, windows on some layers.
        "litgpt-gemma": (
            Config(
                name="tiny-Gemma", n_query_groups=1, head_size=6, rotary_percentage=1.0, parallel_residual=False, bias=False,
                norm_class_name="RMSNorm", mlp_class_name="GemmaMLP", gelu_approximate="tanh", intermediate_size=20,
                scale_embeddings=True, post_attention_norm=True, post_mlp_norm=True, attention_logit_softcapping=2.0,
                final_logit_softcapping=3.0, attention_scores_scalar=9, sliding_window_size=5,
                sliding_window_indices=[1, 0], **common,
            ),
            torch.float32,
            False,
        ),
    }
    for seed, (name, (config, dtype, whole)) in enumerate(cases.items()):
        (HERE / name).mkdir(parents=True, exist_ok=True)
        model = GPT(config)
        named = weights({name: value.shape for name, value in model.state_dict().items()}, seed=10 + seed, std=0.5)
        if "Gemma" in config.name:
            named = OrderedDict((key, value - 1 if "norm" in key or "ln_f" in key else value) for key, value in named.items())
        named = OrderedDict((key, value.to(dtype)) for key, value in named.items())
        model.load_state_dict(named)
        model.double()
        model.max_seq_length = config.block_size
        model.cos, model.sin = model.rope_cache()
        ids = rows(config.padded_vocab_size, 24, seed=20 + seed)
        with torch.no_grad():
            logits = model(ids[None])[0]
        write(name, ids, logits)
        with open(HERE / name / "model_config.yaml", "w", encoding="utf-8") as file:
            from dataclasses import asdict

            yaml.dump(asdict(config), file)
        path = HERE / name / "lit_model.pth"
        if whole:
            torch.save({"model": named, "iter_num": 3, "step_count": 2}, path)
        else:
            # As checkpoints of others are converted.
            with incremental_save(path) as saver:
                saver.save({key: saver.store_early(value) for key, value in named.items()})


# nanochat

SPECIAL = [
    "<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>", "<|python_start|>",
    "<|python_end|>", "<|output_start|>", "<|output_end|>",
]  # fmt: skip
PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
)


def nanochat_logits(named, ids, layers, n_heads, n_kv_heads):
    named = {name: value.double() for name, value in named.items()}

    def norm(x):
        return x * (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()

    def rotate(x):
        half = x.size(-1) // 2
        frequencies = 10000.0 ** -(torch.arange(half).double() / half)
        angles = torch.arange(x.size(1)).double()[:, None] * frequencies
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            [first * angles.cos() + second * angles.sin(), second * angles.cos() - first * angles.sin()], -1
        )

    x = norm(named["transformer.wte.weight"][ids])
    for layer in range(layers):
        h = f"transformer.h.{layer}."
        y = norm(x)
        q = norm(rotate(heads(y @ named[h + "attn.c_q.weight"].T, n_heads)))
        k = norm(rotate(heads(y @ named[h + "attn.c_k.weight"].T, n_kv_heads)))
        v = heads(y @ named[h + "attn.c_v.weight"].T, n_kv_heads)
        x = x + attention(q, k, v) @ named[h + "attn.c_proj.weight"].T
        x = x + F.relu(norm(x) @ named[h + "mlp.c_fc.weight"].T).square() @ named[h + "mlp.c_proj.weight"].T
    logits = norm(x) @ named["lm_head.weight"].T
    return 15 * torch.tanh(logits / 15)


def nanochat():
    """With a tokenizer, the embedding in bf16 and the rest in f32; rows are padded, which nanochat leaves out."""
    (HERE / "nanochat").mkdir(parents=True, exist_ok=True)
    ranks = {bytes([byte]): index for index, byte in enumerate([*range(33, 127), *range(33), *range(127, 256)])}
    for merged in [b"to", b" b", b" be", b" t", b" to", b"no", b"not", b"or", b" no", b" not"]:
        ranks[merged] = len(ranks)
    special = {name: len(ranks) + index for index, name in enumerate(SPECIAL)}
    encoding = tiktoken.Encoding(name="rustbpe", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    with open(HERE / "nanochat/tokenizer.pkl", "wb") as file:
        pickle.dump(encoding, file)
    vocab, width, layers, n_heads, n_kv_heads = encoding.n_vocab, 16, 2, 4, 2
    padded = (vocab + 63) // 64 * 64
    shapes = {"transformer.wte.weight": (padded, width)}
    for layer in range(layers):
        h = f"transformer.h.{layer}."
        shapes[h + "attn.c_q.weight"] = (width, width)
        shapes[h + "attn.c_k.weight"] = (n_kv_heads * 4, width)
        shapes[h + "attn.c_v.weight"] = (n_kv_heads * 4, width)
        shapes[h + "attn.c_proj.weight"] = (width, width)
        shapes[h + "mlp.c_fc.weight"] = (4 * width, width)
        shapes[h + "mlp.c_proj.weight"] = (width, 4 * width)
    shapes["lm_head.weight"] = (padded, width)
    named = weights(shapes, seed=30, std=0.6)
    named["transformer.wte.weight"] = named["transformer.wte.weight"].bfloat16()
    ids = rows(vocab, 24, seed=31)
    text_ids = torch.tensor(encoding.encode_ordinary(TEXT)).int()
    write("nanochat", ids, nanochat_logits(named, ids, layers, n_heads, n_kv_heads)[:, :vocab], {"text_ids": text_ids})
    torch.save(OrderedDict((f"_orig_mod.{name}", value) for name, value in named.items()), HERE / "nanochat/model_000010.pt")
    config = dict(
        sequence_len=32, vocab_size=vocab, n_layer=layers, n_head=n_heads, n_kv_head=n_kv_heads, n_embd=width
    )
    (HERE / "nanochat/meta_000010.json").write_text(json.dumps({"step": 10, "model_config": config}, indent=2) + "\n")


if __name__ == "__main__":
    nanogpt()
    nanogpt_bf16()
    litgpt()
    nanochat()
