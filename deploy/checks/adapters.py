"""LoRA adapters for the bundled model, with random values, in PEFT's format. For the checks in this folder."""

import json
import random
import struct
from pathlib import Path

RANK = 4
# The projections of the bundled model: 4 layers, 256 wide.
LAYERS, WIDTH = 4, 256


def write_adapter(folder: Path, seed: int, strength: float = 0.2):
    """Writes an adapter of the query and value projections."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for layer in range(LAYERS):
        for module in ("q_proj", "v_proj"):
            for part, shape in [("A", [RANK, WIDTH]), ("B", [WIDTH, RANK])]:
                values = struct.pack(f"<{RANK * WIDTH}f", *(rng.gauss(0, strength) for _ in range(RANK * WIDTH)))
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{part}.weight"
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
