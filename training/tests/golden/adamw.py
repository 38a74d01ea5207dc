"""Writes adamw.json: some steps of torch.optim.AdamW and clip_grad_norm_ on two small matrices and a vector.

Run from this folder with torch installed: python adamw.py
The gradients are made up; what is checked is the update. Matrices decay, the vector does not, as in Hearth.
"""

import json

import torch

torch.manual_seed(20261120)
torch.set_num_threads(1)

SETTINGS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.5}
# A rate that changes, steps with and without clipping, and a gradient that is zero.
RATES = [1e-2, 2e-2, 1.5e-2, 5e-3, 1e-3]
SCALES = [0.1, 1.0, 3.0, 0.0, 0.5]

params = {
    "first": torch.randn(3, 4).requires_grad_(),
    "second": torch.randn(4, 2).requires_grad_(),
    "bias": torch.randn(5).requires_grad_(),
}
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": SETTINGS["weight_decay"]},
        {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
    ],
    betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
    eps=SETTINGS["eps"],
)


def values():
    return {name: p.detach().flatten().tolist() for name, p in params.items()}


golden = {
    "torch": torch.__version__,
    "settings": SETTINGS,
    "shapes": {name: list(p.shape) for name, p in params.items()},
    "start": values(),
    "steps": [],
}
for lr, scale in zip(RATES, SCALES):
    for p in params.values():
        p.grad = scale * torch.randn_like(p)
    gradients = {name: p.grad.flatten().tolist() for name, p in params.items()}
    norm = torch.nn.utils.clip_grad_norm_(params.values(), SETTINGS["clip"])
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    golden["steps"].append({"lr": lr, "gradients": gradients, "norm": norm.item(), "after": values()})

with open("adamw.json", "w") as file:
    json.dump(golden, file, indent=1)
    file.write("\n")
