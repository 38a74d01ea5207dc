#!/usr/bin/env python3
"""Makes model dirs with prediction heads, and what the heads compute.

Usage:
    python make_prediction_heads.py           every case, into prediction-heads/

Needs torch, transformers and safetensors (no GPU, no network).

Each case is one of the folders beside this file with random weights for a head added. transformers drops a head's
tensors, so the head is written here, in plain PyTorch and float64, from what vLLM (`qwen3_next_mtp.py`) and llama.cpp
(`qwen35.cpp`) compute: the model's hidden states behind its last norm and the embeddings of the tokens that follow are
normalized, the embeddings first put side by side, projected, and go through a layer that attends, and a norm. The
output matrix is the model's. To predict further, the head's output stands for the model's hidden state.

`oracle.safetensors` has
    input_ids       [seq] int32
    hidden          [seq, d_model] f32: the model's, by transformers
    logits          [seq - 1, vocab] f32: the head's, of all positions but the last
    further_ids     [n] int32: tokens with which the head goes on from its last output
    further_logits  [n, vocab] f32
"""

import json
import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
OUT = HERE / "prediction-heads"
# Cases, and whether the head's experts are one tensor each or stacked.
CASES = {"qwen3_5": False, "qwen3_5-moe": True, "qwen3-next": False}
SEQ_LEN, N_FURTHER = 20, 3


class Head:
    """Qwen's head: `mtp.*`."""

    def __init__(self, config: dict, tensors: dict, embedding: torch.Tensor, output: torch.Tensor):
        self.config = config
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self.embedding, self.output = embedding.double(), output.double()

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = self.tensors.get(f"mtp.{name}.bias")
        y = x @ self.tensors[f"mtp.{name}.weight"].T
        return y if bias is None else y + bias

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        rms = (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt()
        return x / rms * (1 + self.tensors[f"mtp.{name}.weight"])

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x: [seq, heads, head_dim]."""
        rope = self.config["rope_parameters"]
        n = int(x.shape[-1] * rope["partial_rotary_factor"])
        wavelengths = rope["rope_theta"] ** (torch.arange(0, n, 2, dtype=torch.float64) / n)
        angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None, None] / wavelengths
        a, b, rest = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        config, seq = self.config, x.shape[0]
        n_heads, n_kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        attn = "layers.0.self_attn"
        queries, gates = self.linear(f"{attn}.q_proj", x).view(seq, n_heads, 2 * dim).chunk(2, -1)
        keys = self.linear(f"{attn}.k_proj", x).view(seq, n_kv, dim)
        values = self.linear(f"{attn}.v_proj", x).view(seq, n_kv, dim)
        queries = self.rotate(self.norm(f"{attn}.q_norm", queries))
        keys = self.rotate(self.norm(f"{attn}.k_norm", keys))
        keys, values = (t.repeat_interleave(n_heads // n_kv, 1) for t in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / dim**0.5
        scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        return self.linear(f"{attn}.o_proj", (mixed * gates.sigmoid()).reshape(seq, -1))

    def mlp(self, path: str, x: torch.Tensor) -> torch.Tensor:
        gate = torch.nn.functional.silu(self.linear(f"{path}.gate_proj", x))
        return self.linear(f"{path}.down_proj", gate * self.linear(f"{path}.up_proj", x))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        config, path = self.config, "layers.0.mlp"
        if "num_experts" not in config:
            return self.mlp(path, x)
        scores = self.linear(f"{path}.gate", x).softmax(-1)
        weights, chosen = scores.topk(config["num_experts_per_tok"], -1)
        if config.get("norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        y = self.linear(f"{path}.shared_expert_gate", x).sigmoid() * self.mlp(f"{path}.shared_expert", x)
        for expert in range(config["num_experts"]):
            weight = (weights * (chosen == expert)).sum(-1, keepdim=True)
            y = y + weight * self.mlp(f"{path}.experts.{expert}", x)
        return y

    def forward(self, hidden: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
        tokens = self.norm("pre_fc_norm_embedding", self.embedding[next_ids])
        x = self.linear("fc", torch.cat([tokens, self.norm("pre_fc_norm_hidden", hidden)], -1))
        x = x + self.attend(self.norm("layers.0.input_layernorm", x))
        x = x + self.feed_forward(self.norm("layers.0.post_attention_layernorm", x))
        return self.norm("norm", x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.output.T


def draw(config: dict, generator: torch.Generator) -> dict:
    d_model, dim = config["hidden_size"], config["head_dim"]
    q_width, kv_width = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "pre_fc_norm_embedding": [d_model],
        "pre_fc_norm_hidden": [d_model],
        "fc": [d_model, 2 * d_model],
        "layers.0.input_layernorm": [d_model],
        "layers.0.self_attn.q_proj": [2 * q_width, d_model],
        "layers.0.self_attn.k_proj": [kv_width, d_model],
        "layers.0.self_attn.v_proj": [kv_width, d_model],
        "layers.0.self_attn.o_proj": [d_model, q_width],
        "layers.0.self_attn.q_norm": [dim],
        "layers.0.self_attn.k_norm": [dim],
        "layers.0.post_attention_layernorm": [d_model],
        "norm": [d_model],
    }

    def mlp(path: str, d_ff: int) -> dict:
        up = [d_ff, d_model]
        return {f"{path}.gate_proj": up, f"{path}.up_proj": up, f"{path}.down_proj": [d_model, d_ff]}

    if "num_experts" in config:
        shapes["layers.0.mlp.gate"] = [config["num_experts"], d_model]
        shapes["layers.0.mlp.shared_expert_gate"] = [1, d_model]
        shapes |= mlp("layers.0.mlp.shared_expert", config["shared_expert_intermediate_size"])
        for expert in range(config["num_experts"]):
            shapes |= mlp(f"layers.0.mlp.experts.{expert}", config["moe_intermediate_size"])
    else:
        shapes |= mlp("layers.0.mlp", config["intermediate_size"])
    tensors = {
        f"mtp.{name}.weight": torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else 0.4)
        for name, shape in shapes.items()
    }
    if config.get("attention_bias"):
        for name in ("q_proj", "k_proj", "v_proj"):
            d_out = shapes[f"layers.0.self_attn.{name}"][0]
            tensors[f"mtp.layers.0.self_attn.{name}.bias"] = torch.randn(d_out, generator=generator) * 0.4
        tensors["mtp.layers.0.self_attn.o_proj.bias"] = torch.randn(d_model, generator=generator) * 0.4
    return tensors


def stacked(tensors: dict, n_experts: int) -> dict:
    """The experts as transformers holds them."""
    path = "mtp.layers.0.mlp.experts"
    of = lambda name: torch.stack([tensors.pop(f"{path}.{expert}.{name}.weight") for expert in range(n_experts)])
    tensors = dict(tensors)
    gate, up, down = of("gate_proj"), of("up_proj"), of("down_proj")
    return tensors | {f"{path}.gate_up_proj": torch.cat([gate, up], 1), f"{path}.down_proj": down}


def make(case: str, is_stacked: bool) -> None:
    source, target = HERE / case, OUT / case
    config = json.loads((source / "config.json").read_text())
    generator = torch.Generator().manual_seed(54 + len(case))
    head = draw(config, generator)
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, **eager).eval()
    ids = torch.randint(config["vocab_size"], [SEQ_LEN], generator=generator)
    further = torch.randint(config["vocab_size"], [N_FURTHER], generator=generator)
    body = Head(config, head, model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    with torch.inference_mode():
        hidden = model.model(ids[None]).last_hidden_state[0]
        inputs, next_ids = hidden[:-1], ids[1:]
        output = body.forward(inputs, next_ids)
        logits, further_logits = body.logits(output), []
        for id in further:
            inputs, next_ids = torch.cat([inputs, output[-1:]]), torch.cat([next_ids, id[None]])
            output = body.forward(inputs, next_ids)
            further_logits.append(body.logits(output[-1]))
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    text = (source / "config.json").read_text()
    (target / "config.json").write_text(text)
    of_model = load_file(source / "model.safetensors")
    if is_stacked:
        head = stacked(dict(head), config["num_experts"])
    save_file(of_model | head, target / "model.safetensors", metadata={"format": "pt"})
    oracle = {
        "input_ids": ids.int(),
        "hidden": hidden.float(),
        "logits": logits.float(),
        "further_ids": further.int(),
        "further_logits": torch.stack(further_logits).float(),
    }
    save_file({name: tensor.contiguous() for name, tensor in oracle.items()}, target / "oracle.safetensors")
    print(case, "logits' spread", logits.std().item())


for case, is_stacked in CASES.items():
    make(case, is_stacked)
