#!/usr/bin/env python3
"""Makes recurrent.json: what the functions of recurrent layers in transformers give, with their gradients.

Usage: python make_recurrent.py   (needs torch and transformers; the versions are in versions.json)

Inputs are not stored: they are `noise` of a seed, which the test computes too. Gradients are those of the sum of the output times
noise of seed 99.
"""

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridRMSNormGated
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

torch.set_num_threads(1)


def noise(seed: int, *dims: int, grad: bool = True) -> torch.Tensor:
    """Numbers in -1..1 by a linear congruential generator."""
    state, values = seed, []
    for _ in range(int(np.prod(dims))):
        state = (state * 1_664_525 + 1_013_904_223) % 2**32
        values.append(np.float32(state >> 8) / np.float32(1 << 23) - np.float32(1))
    return torch.tensor(np.array(values, dtype=np.float32)).reshape(dims).requires_grad_(grad)


def outcome(output: torch.Tensor, leaves: list[torch.Tensor]) -> list[list[float]]:
    """The output and the gradients of the leaves."""
    (output * noise(99, *output.shape, grad=False)).sum().backward()
    tensors = [output.detach(), *(leaf.grad for leaf in leaves)]
    return [[float(f"{value:.8g}") for value in tensor.flatten().tolist()] for tensor in tensors]


def conv(kernel: int, has_bias: bool, activation: str | None) -> list[list[float]]:
    x, weight = noise(1, 2, 9, 5), noise(2, 5, kernel)
    leaves = [x, weight] + ([noise(3, 5)] if has_bias else [])
    output = qwen.causal_conv1d_fn(x.transpose(1, 2), weight, leaves[2] if has_bias else None, activation=activation)
    return outcome(output.transpose(1, 2).contiguous(), leaves)


def gated_delta() -> list[list[float]]:
    """70 rows: more than the 64 of a chunk there. Output, state and gradients."""
    n_rows, n_k, n_v, k_dim, v_dim = 70, 1, 2, 4, 5
    qkv, ba = noise(1, n_rows, 2 * n_k * k_dim + n_v * v_dim), noise(2, n_rows, 2 * n_v)
    # Time steps are small, so that states last for more than a chunk.
    a_log, dt_bias = noise(3, n_v), (noise(4, n_v, grad=False) - 3).requires_grad_()
    q, k, v = qkv.unsqueeze(0).split([n_k * k_dim, n_k * k_dim, n_v * v_dim], dim=-1)
    heads = [q.reshape(1, n_rows, n_k, k_dim), k.reshape(1, n_rows, n_k, k_dim), v.reshape(1, n_rows, n_v, v_dim)]
    b, a = ba.unsqueeze(0).split(n_v, dim=-1)
    g = -a_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    args = dict(g=g, beta=b.sigmoid(), output_final_state=True, use_qk_l2norm_in_kernel=True)
    output, state = qwen.torch_chunk_gated_delta_rule(*heads, **args)
    by_row, _ = qwen.torch_recurrent_gated_delta_rule(*heads, **args)
    assert (output - by_row).abs().max() < 1e-5
    found = outcome(output, [qkv, ba, a_log, dt_bias])
    return [found[0], [float(f"{value:.8g}") for value in state.flatten().tolist()], *found[1:]]


def state_space(limits: tuple[float, float]) -> list[list[float]]:
    n_rows, n_groups, n_heads, d_state, head_dim = 40, 2, 4, 4, 3
    xbc, dt = noise(1, n_rows, n_heads * head_dim + 2 * n_groups * d_state), noise(2, n_rows, n_heads)
    a_log, dt_bias, skip = noise(3, n_heads), (noise(4, n_heads, grad=False) - 3).requires_grad_(), noise(5, n_heads)
    x, b, c = xbc.unsqueeze(0).split([n_heads * head_dim, n_groups * d_state, n_groups * d_state], dim=-1)
    output, state = mamba2_chunk_scan(
        x.reshape(1, n_rows, n_heads, head_dim),
        dt.unsqueeze(0),
        -a_log.exp(),
        b.reshape(1, n_rows, n_groups, d_state),
        c.reshape(1, n_rows, n_groups, d_state),
        chunk_size=16,
        D=skip,
        dt_bias=dt_bias,
        dt_softplus=True,
        dt_limit=limits,
        return_final_states=True,
    )
    found = outcome(output, [xbc, dt, a_log, dt_bias, skip])
    # There [heads, head_dim, d_state].
    state = state.transpose(-1, -2).flatten().tolist()
    return [found[0], [float(f"{value:.8g}") for value in state], *found[1:]]


def norm_after() -> list[list[float]]:
    """Qwen 3.5's: each head of 4, a gate after the norm."""
    x, z, weight = noise(1, 3, 8), noise(2, 3, 8), noise(3, 4)
    norm = qwen.Qwen3_5RMSNormGated(4, eps=1e-5)
    norm.weight = torch.nn.Parameter(weight.detach())
    output = norm(x.reshape(-1, 4), z.reshape(-1, 4)).reshape(3, 8)
    return outcome(output, [x, z, norm.weight])


def norm_before() -> list[list[float]]:
    """Mamba-2's: each group of 4, a gate before the norm."""
    x, z, weight = noise(1, 3, 8), noise(2, 3, 8), noise(3, 8)
    norm = GraniteMoeHybridRMSNormGated(8, group_size=4, eps=1e-5)
    norm.weight = torch.nn.Parameter(weight.detach())
    return outcome(norm(x, z), [x, z, norm.weight])


cases = {
    "conv-4-silu": conv(4, False, "silu"),
    "conv-4-bias-silu": conv(4, True, "silu"),
    "conv-3": conv(3, False, None),
    "conv-3-bias": conv(3, True, None),
    "gated-delta": gated_delta(),
    "state-space": state_space((0.0, float("inf"))),
    "state-space-limits": state_space((0.03, 0.1)),
    "norm-after": norm_after(),
    "norm-before": norm_before(),
}
path = Path(__file__).resolve().parent / "recurrent.json"
path.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()) + "\n}\n")
