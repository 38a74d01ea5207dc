"""Makes quantized-mixed.gguf, a random Llama whose tensors have all types that `llama-quantize` is not needed for, and
quantized-mixed.safetensors: `input_ids`, and the `logits.mixed` that transformers computes from the values that the package
`gguf` decodes.

Needs torch, transformers, safetensors and gguf.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from make_blocks import FACTORS, decode

HERE = Path(__file__).parent
N_HEADS, N_KV_HEADS, HEAD_DIM, D_MODEL, D_FF, VOCAB = 4, 1, 32, 256, 256, 96
Q_WIDTH, KV_WIDTH = N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM
SHAPES = {
    "attn_q": (Q_WIDTH, D_MODEL), "attn_k": (KV_WIDTH, D_MODEL), "attn_v": (KV_WIDTH, D_MODEL),
    "attn_output": (D_MODEL, Q_WIDTH), "ffn_gate": (D_FF, D_MODEL), "ffn_up": (D_FF, D_MODEL), "ffn_down": (D_MODEL, D_FF),
}
# Three tensors that are one matrix in memory have types of several kinds, and rows of 128 values those that fit.
TYPES = [
    {"attn_q": "IQ4_XS", "attn_k": "Q3_K", "attn_v": "Q6_K", "attn_output": "MXFP4", "ffn_gate": "IQ3_S",
     "ffn_up": "IQ4_NL", "ffn_down": "Q2_K"},
    {"attn_q": "IQ2_XXS", "attn_k": "IQ2_S", "attn_v": "Q5_0", "attn_output": "Q1_0", "ffn_gate": "IQ3_XXS",
     "ffn_up": "TQ2_0", "ffn_down": "IQ1_S"},
    {"attn_q": "IQ1_M", "attn_k": "NVFP4", "attn_v": "TQ1_0", "attn_output": "IQ4_NL", "ffn_gate": "IQ2_XS",
     "ffn_up": "IQ2_XS", "ffn_down": "IQ3_S"},
]
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def draw(rng: np.random.Generator, shape: tuple[int, int], name: str) -> np.ndarray:
    """Random blocks whose values have a deviation of about 0.1."""
    block_len, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block_len, n_bytes), dtype=np.uint8)

    def put(scale: np.ndarray) -> None:
        half = scale.astype(np.float16)
        for start in FACTORS[name]:
            blocks[:, start : start + 2] = half.reshape(-1, 1).view(np.uint8)
        if name == "IQ1_M":
            for n in range(4):
                top = ((half.view(np.uint16) >> (4 * n)) & 15).astype(np.uint8) << 4
                blocks[:, 49 + 2 * n] = blocks[:, 49 + 2 * n] & 15 | top

    if name == "MXFP4":
        blocks[:, 0] = rng.integers(121, 124, len(blocks))
    elif name == "NVFP4":
        blocks[:, :4] = rng.integers(0x10, 0x1C, (len(blocks), 4))
    else:
        put(np.ones(len(blocks)))
        put(rng.uniform(0.07, 0.13, len(blocks)) / decode(blocks, name).std())
    return blocks.reshape(shape[0], -1)


def values(rows: np.ndarray, name: str, shape: tuple[int, int]) -> torch.Tensor:
    n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    return torch.from_numpy(decode(rows.reshape(-1, n_bytes), name).astype(np.float64).reshape(shape))


def main() -> None:
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(HERE / "quantized-mixed.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(D_MODEL)
    writer.add_block_count(len(TYPES))
    writer.add_feed_forward_length(D_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500.0)
    state = {}

    def quantized(tensor: str, hf: str, shape: tuple[int, int], name: str) -> None:
        rows = draw(rng, shape, name)
        writer.add_tensor(f"{tensor}.weight", rows, raw_dtype=gguf.GGMLQuantizationType[name])
        decoded = values(rows, name, shape)
        if tensor.endswith(("attn_q", "attn_k")):
            n_heads = shape[0] // HEAD_DIM
            decoded = decoded.reshape(n_heads, HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(shape)
        state[f"{hf}.weight"] = decoded

    def norm(tensor: str, hf: str) -> None:
        weight = rng.normal(1.0, 0.1, D_MODEL).astype(np.float32)
        writer.add_tensor(f"{tensor}.weight", weight)
        state[f"{hf}.weight"] = torch.from_numpy(weight.astype(np.float64))

    quantized("token_embd", "model.embed_tokens", (VOCAB, D_MODEL), "Q3_K")
    for layer, types in enumerate(TYPES):
        norm(f"blk.{layer}.attn_norm", f"model.layers.{layer}.input_layernorm")
        norm(f"blk.{layer}.ffn_norm", f"model.layers.{layer}.post_attention_layernorm")
        for tensor, name in types.items():
            quantized(f"blk.{layer}.{tensor}", f"model.layers.{layer}.{NAMES[tensor]}", SHAPES[tensor], name)
    norm("output_norm", "model.norm")
    quantized("output", "lm_head", (VOCAB, D_MODEL), "IQ4_XS")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=D_MODEL, intermediate_size=D_FF, num_hidden_layers=len(TYPES),
        num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=64,
        tie_word_embeddings=False, rope_theta=500.0, rms_norm_eps=1e-6)
    model = transformers.LlamaForCausalLM(config).double().eval()
    model.load_state_dict(state)
    ids = torch.from_numpy(rng.integers(0, VOCAB, (1, 24)))
    with torch.inference_mode():
        logits = model(ids).logits[0].float().contiguous()
    save_file({"input_ids": ids.to(torch.int32), "logits.mixed": logits}, HERE / "quantized-mixed.safetensors")
    (HERE / "quantized-mixed.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
