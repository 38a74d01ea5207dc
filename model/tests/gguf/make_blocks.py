"""Random blocks of every type of GGUF and their values by the package `gguf`, and the codebooks of some types.

Needs torch, safetensors and gguf. Writes:

blocks.safetensors
    For each type of blocks, <TYPE>.bytes (U8), random but for the scales, and <TYPE>.values (F32): what the package
    decodes from them. The package does not decode Q1_0, which is computed here.

../../src/weights/ggml_types/grids.bin
    The codebooks of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and IQ1_S (which IQ1_M shares): an u16 for each entry, with the
    numbers of its levels in 2 bits each (3 for IQ3), the first lowest.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import quants
from safetensors.torch import save_file

HERE = Path(__file__).parent
GRIDS = HERE / "../../src/weights/ggml_types/grids.bin"
# Where a block has f16 factors.
FACTORS = {
    "Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "Q3_K": [108], "Q2_K": [80, 82], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [], "Q1_0": [0], "TQ1_0": [52],
    "TQ2_0": [64], "IQ3_S": [0], "IQ3_XXS": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ1_S": [0], "IQ1_M": [],
}


def decode(blocks: np.ndarray, name: str) -> np.ndarray:
    if name == "Q1_0":
        bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
        return blocks[:, :2].copy().view(np.float16).astype(np.float32) * (2 * bits - 1)
    return quants.dequantize(np.ascontiguousarray(blocks), gguf.GGMLQuantizationType[name])


def make_blocks() -> None:
    rng = np.random.default_rng(5)
    arrays = {}
    for name in ["F16", "BF16", *FACTORS]:
        block_len, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        n_blocks = max(3, 32 // block_len)
        blocks = rng.integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)
        values = rng.normal(size=(n_blocks, 8)).astype(np.float16)
        if name in ("F16", "BF16"):
            plain = rng.normal(size=n_blocks).astype(np.float32)
            blocks = plain.astype(np.float16).view(np.uint8).reshape(n_blocks, 2) if name == "F16" else (
                (plain.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(n_blocks, 2))
        # Scales that are numbers.
        for n, start in enumerate(FACTORS.get(name, [])):
            blocks[:, start : start + 2] = values[:, n : n + 1].copy().view(np.uint8)
        if name == "MXFP4":
            blocks[:, 0] = [0, 1, 122]
        if name == "IQ1_M":
            bits = values[:, 0].copy().view(np.uint16)
            for n in range(4):
                blocks[:, 49 + 2 * n] = blocks[:, 49 + 2 * n] & 15 | ((bits >> (4 * n)) & 15).astype(np.uint8) << 4
        arrays[f"{name}.bytes"] = torch.from_numpy(blocks.reshape(-1).copy())
        arrays[f"{name}.values"] = torch.from_numpy(decode(blocks, name).astype(np.float32).reshape(-1).copy())
    save_file(arrays, HERE / "blocks.safetensors")
    (HERE / "blocks.safetensors").chmod(0o644)


def make_grids() -> None:
    with GRIDS.open("wb") as file:
        for name in ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"]:
            codebook = getattr(quants, name)
            codebook.init_grid()
            entries = np.asarray(codebook.grid).reshape(codebook.grid_shape).astype(np.int64)
            codes = np.searchsorted(np.array(codebook.grid_map), entries)
            bits = 3 if name.startswith("IQ3") else 2
            packed = (codes << (bits * np.arange(entries.shape[1]))).sum(axis=1)
            file.write(packed.astype("<u2").tobytes())


if __name__ == "__main__":
    make_blocks()
    make_grids()
