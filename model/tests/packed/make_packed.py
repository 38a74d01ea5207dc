"""Makes the model dirs of this folder: tiny Llamas with random weights as other programs quantize them, and a tiny gpt-oss.
The names of cases may follow.

Needs torch, transformers, safetensors, compressed-tensors and bitsandbytes. Each dir has `config.json`,
`model.safetensors` and `oracle.safetensors` (`input_ids`, and the `logits` that transformers computes in f64 from the
dequantized weights). Weights of compressed-tensors and bitsandbytes are packed and dequantized by these libraries. GPTQ's,
AWQ's and block-wise 8-bit floats are packed here as the programs document it, and dequantized from the packed tensors
once more, in plain PyTorch.
"""

import json
import os
import sys
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = Path(__file__).parent
D_MODEL, N_HEADS, N_KV_HEADS, VOCAB = 64, 2, 1, 48
LINEAR = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
          "mlp.down_proj"]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
Tensors = dict[str, torch.Tensor]


def ints(rows: int, columns: int, bits: int) -> torch.Tensor:
    return torch.randint(0, 1 << bits, (rows, columns), dtype=torch.int32)


def scales(rows: int, columns: int, dtype: torch.dtype, bits: int) -> torch.Tensor:
    """So that weights have a deviation of about 0.1."""
    return (torch.rand(rows, columns) * 0.4 + 0.1).div(1 << (bits - 1)).to(dtype)


def pack(values: torch.Tensor, bits: int, order: list[int] | None = None) -> torch.Tensor:
    """Packs along the last dimension, the first number lowest, or in the order of AWQ."""
    n = 32 // bits
    parts = values.reshape(*values.shape[:-1], -1, n).to(torch.int64)
    parts = parts[..., order] if order else parts
    packed = (parts << (bits * torch.arange(n))).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def unpack(packed: torch.Tensor, bits: int, order: list[int] | None = None) -> torch.Tensor:
    n = 32 // bits
    parts = (packed.unsqueeze(-1) >> (bits * torch.arange(n, dtype=torch.int32))) & ((1 << bits) - 1)
    if order:
        parts = parts[..., torch.argsort(torch.tensor(order))]
    return parts.reshape(*packed.shape[:-1], -1)


def gptq(d_out: int, d_in: int, bits: int, group: int, act: bool, sym: bool) -> tuple[Tensors, torch.Tensor]:
    n_groups = d_in // group if group > 0 else 1
    index = torch.arange(d_in, dtype=torch.int32) // (d_in // n_groups)
    if act:
        index = index[torch.randperm(d_in)]
    zeros = torch.full((n_groups, d_out), (1 << (bits - 1)) - 1) if sym else ints(n_groups, d_out, bits)
    tensors = {
        "qweight": pack(ints(d_out, d_in, bits), bits).T.contiguous(),
        "qzeros": pack(zeros, bits),
        "scales": scales(n_groups, d_out, torch.float16, bits),
        "g_idx": index,
    }
    codes = unpack(tensors["qweight"].T, bits).T
    zeros = unpack(tensors["qzeros"], bits) + 1
    values = (codes - zeros[index.long()]) * tensors["scales"].double()[index.long()]
    return tensors, values.T


def awq(d_out: int, d_in: int, group: int) -> tuple[Tensors, torch.Tensor]:
    tensors = {
        "qweight": pack(ints(d_in, d_out, 4), 4, AWQ_ORDER),
        "qzeros": pack(ints(d_in // group, d_out, 4), 4, AWQ_ORDER),
        "scales": scales(d_in // group, d_out, torch.float16, 4),
    }
    index = torch.arange(d_in) // group
    codes, zeros = (unpack(tensors[name], 4, AWQ_ORDER) for name in ("qweight", "qzeros"))
    return tensors, ((codes - zeros[index]) * tensors["scales"].double()[index]).T


def packed_rows(d_out: int, d_in: int, bits: int, group: int, asym: bool, act: bool) -> tuple[Tensors, torch.Tensor]:
    n_groups = d_in // group if group > 0 else 1
    numbers = (ints(d_out, d_in, bits) - (1 << (bits - 1))).to(torch.int8)
    tensors = {
        "weight_packed": pack_to_int32(numbers, bits),
        "weight_scale": scales(d_out, n_groups, torch.bfloat16, bits),
        "weight_shape": torch.tensor([d_out, d_in]),
    }
    index = torch.arange(d_in, dtype=torch.int32) // (d_in // n_groups)
    zeros = torch.zeros(d_out, n_groups)
    if act:
        index = index[torch.randperm(d_in)]
        tensors["weight_g_idx"] = index
    if asym:
        points = (ints(d_out, n_groups, bits) - (1 << (bits - 1))).to(torch.int8)
        tensors["weight_zero_point"] = pack_to_int32(points, bits, packed_dim=0)
        zeros = unpack_from_int32(tensors["weight_zero_point"], bits, points.shape, packed_dim=0).double()
    numbers = unpack_from_int32(tensors["weight_packed"], bits, torch.Size([d_out, d_in])).double()
    index = index.long()
    return tensors, (numbers - zeros[:, index]) * tensors["weight_scale"].double()[:, index]


def bytes_by_row(d_out: int, d_in: int) -> tuple[Tensors, torch.Tensor]:
    tensors = {
        "weight": (ints(d_out, d_in, 8) - 128).to(torch.int8),
        "weight_scale": scales(d_out, 1, torch.float32, 8),
    }
    return tensors, tensors["weight"].double() * tensors["weight_scale"].double()


def fp8(d_out: int, d_in: int, block: int | None, powers: bool) -> tuple[Tensors, torch.Tensor]:
    weight = (torch.randn(d_out, d_in) * 60).to(torch.float8_e4m3fn)
    if block is None:
        scale = scales(d_out, 1, torch.bfloat16, 8)
        wide = scale.double()
    else:
        scale = scales(-(-d_out // block), -(-d_in // block), torch.float32, 8)
        if powers:
            scale = 2.0 ** torch.round(torch.log2(scale))
        wide = scale.double().repeat_interleave(block, 0)[:d_out].repeat_interleave(block, 1)[:, :d_in]
    return {"weight": weight, "weight_scale" if block is None else "weight_scale_inv": scale}, weight.double() * wide


def nf4(d_out: int, d_in: int, double: bool) -> tuple[Tensors, torch.Tensor]:
    weight = (torch.randn(d_out, d_in) * 0.1).to(torch.bfloat16)
    packed, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=double)
    tensors = {"weight": packed}
    for name, tensor in state.as_dict(packed=True).items():
        tensors[f"weight.{name}"] = tensor
    return tensors, bnb.dequantize_4bit(packed, state).double()


def mxfp4(n_experts: int, d_out: int, d_in: int) -> tuple[Tensors, torch.Tensor]:
    tensors = {
        "blocks": torch.randint(0, 256, (n_experts, d_out, d_in // 32, 16), dtype=torch.uint8),
        "scales": torch.randint(121, 125, (n_experts, d_out, d_in // 32), dtype=torch.uint8),
    }
    # Transposed, as the class holds them.
    return tensors, convert_moe_packed_tensors(tensors["blocks"], tensors["scales"], dtype=torch.float64)


def group_config(bits: int, kind: str, **weights: object) -> dict[str, object]:
    return {
        "quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, **weights}}},
    }


def fp8_config(block: int) -> dict[str, object]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [block, block]}


CASES = {
    "gptq": (lambda *dims: gptq(*dims, 4, 64, False, False), {"quant_method": "gptq", "bits": 4, "group_size": 64}),
    "gptq-act": (lambda *dims: gptq(*dims, 4, 32, True, False), {"quant_method": "gptq", "bits": 4, "group_size": 32,
                                                                 "desc_act": True}),
    "gptq-8": (lambda *dims: gptq(*dims, 8, -1, False, True), {"quant_method": "gptq", "bits": 8, "group_size": -1}),
    "gptq-odd": (lambda *dims: gptq(*dims, 4, 16, False, False), {"quant_method": "gptq", "bits": 4, "group_size": 16}),
    "awq": (lambda *dims: awq(*dims, 64), {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "int4": (lambda *dims: packed_rows(*dims, 4, 32, False, False), group_config(4, "pack-quantized", group_size=32)),
    "int4-asym": (lambda *dims: packed_rows(*dims, 4, 64, True, False), group_config(4, "pack-quantized", group_size=64)),
    "int8-act": (lambda *dims: packed_rows(*dims, 8, 32, True, True), group_config(8, "pack-quantized", group_size=32)),
    "int8": (bytes_by_row, group_config(8, "int-quantized", strategy="channel")),
    "fp8": (lambda *dims: fp8(*dims, None, False), group_config(8, "float-quantized", strategy="channel")),
    "fp8-block": (lambda *dims: fp8(*dims, 32, False), fp8_config(32)),
    "fp8-powers": (lambda *dims: fp8(*dims, 128, True), fp8_config(128)),
    "nf4": (lambda *dims: nf4(*dims, True), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}


def make(name: str) -> None:
    torch.manual_seed(sum(name.encode()))
    quantize, quantization = CASES[name]
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=D_MODEL, intermediate_size=192 if name == "fp8-powers" else 128,
        num_hidden_layers=1, num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, max_position_embeddings=32,
        tie_word_embeddings=False, rope_theta=500.0, bos_token_id=None, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    state, stored = {}, {}
    for path, parameter in model.state_dict().items():
        module = path.removesuffix(".weight")
        if module.endswith(tuple(LINEAR)):
            tensors, state[path] = quantize(*parameter.shape)
            assert state[path].shape == parameter.shape
            stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in tensors.items()}
        else:
            weight = (torch.randn(parameter.shape) * 0.2 + (parameter.ndim == 1)).to(torch.bfloat16)
            stored[path], state[path] = weight, weight.double()
    model = model.double()
    model.load_state_dict(state)
    ids = torch.randint(0, VOCAB, (1, 20))
    with torch.inference_mode():
        logits = model(ids).logits[0].float().contiguous()
    target = HERE / name
    target.mkdir(exist_ok=True)
    json_config = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "quantization_config": quantization}
    (target / "config.json").write_text(json.dumps(json_config, indent=2) + "\n")
    save_file(stored, target / "model.safetensors")
    save_file({"input_ids": ids.to(torch.int32), "logits": logits}, target / "oracle.safetensors")
    for file in ("model.safetensors", "oracle.safetensors"):
        os.chmod(target / file, 0o644)


def make_gpt_oss() -> None:
    """As OpenAI's folders: experts in MXFP4, the rest in bf16."""
    torch.manual_seed(4)
    config = transformers.GptOssConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=N_HEADS,
        num_key_value_heads=N_KV_HEADS, head_dim=16, num_local_experts=3, num_experts_per_tok=2, sliding_window=8,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
    model = transformers.GptOssForCausalLM._from_config(
        config, attn_implementation="eager", experts_implementation="eager").eval()
    state, stored = {}, {}
    for path, parameter in model.state_dict().items():
        if path.endswith(("gate_up_proj", "down_proj")):
            n_experts, d_in, d_out = parameter.shape
            tensors, state[path] = mxfp4(n_experts, d_out, d_in)
            assert state[path].shape == parameter.shape
            stored |= {f"{path}_{part}": tensor for part, tensor in tensors.items()}
        else:
            weight = (torch.randn(parameter.shape) * 0.2 + ("norm" in path)).to(torch.bfloat16)
            stored[path], state[path] = weight, weight.double()
    model = model.double()
    model.load_state_dict(state)
    ids = torch.randint(0, VOCAB, (1, 20))
    with torch.inference_mode():
        logits = model(ids).logits[0].float().contiguous()
    # The keys as these folders have them.
    fields = config.to_dict()
    rope = fields.pop("rope_parameters")
    fields |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "experts_per_token": 2}
    fields.pop("swiglu_alpha")
    modules = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantization = {"modules_to_not_convert": modules, "quant_method": "mxfp4"}
    target = HERE / "mxfp4"
    target.mkdir(exist_ok=True)
    fields |= {"architectures": ["GptOssForCausalLM"], "quantization_config": quantization}
    (target / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    save_file(stored, target / "model.safetensors")
    save_file({"input_ids": ids.to(torch.int32), "logits": logits}, target / "oracle.safetensors")
    for file in ("model.safetensors", "oracle.safetensors"):
        os.chmod(target / file, 0o644)


if __name__ == "__main__":
    for case in sys.argv[1:] or [*CASES, "mxfp4"]:
        make_gpt_oss() if case == "mxfp4" else make(case)
