"""Writes recipe/: short training runs in torch, step by step: weights before and after, batches, losses.

Run from this folder with torch and transformers installed: python recipe.py
- adamw: a tiny GPT-2, AdamW, warmup and cosine, clipping by the global norm.
- muon: a tiny Qwen 3, Muon in its published form (https://kellerjordan.github.io/posts/muon/) with the iteration in f32
  for the matrices of the blocks, AdamW for the rest, warmup and linear decay, a momentum that rises, clipping.
"""

import json
import math

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

torch.set_num_threads(1)

STEPS, ROWS, SEQ_LEN, VOCAB = 20, 4, 16, 32


def warmup(step, steps):
    return (step + 1) / (steps + 1) if step < steps else None


def cosine(step, warmup_steps, low):
    done = (step - warmup_steps) / (STEPS - warmup_steps)
    return low + 0.5 * (1 + math.cos(math.pi * done)) * (1 - low)


def linear(step, warmup_steps, low):
    return low + (1 - low) * (1 - (step - warmup_steps) / (STEPS - warmup_steps))


def orthogonalized(matrix, steps):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class Muon:
    def __init__(self, params, weight_decay):
        self.params = [(p, torch.zeros_like(p)) for p in params]
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, lr, beta):
        for p, momentum in self.params:
            momentum.lerp_(p.grad, 1 - beta)
            update = orthogonalized(p.grad.lerp(momentum, beta), 5)
            update *= max(1, p.size(0) / p.size(1)) ** 0.5
            p.mul_(1 - lr * self.weight_decay)
            p.add_(update, alpha=-lr)


def run(name, model, sets, rate, muon):
    generator = torch.Generator().manual_seed(20261124)
    with torch.no_grad():
        for path, p in model.named_parameters():
            noise = 0.1 * torch.randn(p.shape, generator=generator)
            p.copy_(noise + 1 if p.dim() == 1 and "norm" in path or "ln_" in path and path.endswith("weight") else noise)
    model.save_pretrained(f"recipe/{name}/start")
    batches = torch.randint(0, VOCAB, (STEPS, ROWS, SEQ_LEN + 1), generator=generator)

    of_muon = [p for path, p in model.named_parameters() if muon and p.dim() == 2 and ".layers." in path]
    rest = [p for p in model.parameters() if all(p is not q for q in of_muon)]
    settings = dict(set.split("=") for set in sets)
    decay = float(settings["optim.weight_decay"])
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
        ],
        betas=(float(settings["optim.beta1"]), float(settings["optim.beta2"])),
        eps=float(settings["optim.eps"]),
    )
    if muon:
        muon = Muon(of_muon, float(settings["optim.muon.weight_decay"]))
    losses, norms = [], []
    for step, batch in enumerate(batches):
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float(settings["optim.clip"]))
        share = warmup(step, 4) or rate(step, 4, 0.1)
        for group in adamw.param_groups:
            group["lr"] = share * float(settings["optim.lr"])
        adamw.step()
        if muon:
            muon.step(share * float(settings["optim.muon.lr"]), 0.85 + 0.1 * min(step / 10, 1))
        losses.append(loss.item())
        norms.append(norm.item())
    model.save_pretrained(f"recipe/{name}/end")
    with open(f"recipe/{name}/run.json", "w") as file:
        json.dump({"torch": torch.__version__, "sets": sets, "losses": losses, "norms": norms, "batches": batches.tolist()}, file)
        file.write("\n")
    print(name, losses[0], losses[-1], min(norms), max(norms))


COMMON = [
    f"schedule.max_steps={STEPS}",
    "schedule.warmup_steps=4",
    "schedule.min_lr_ratio=0.1",
    f"model.max_seq_len={SEQ_LEN}",
    f"data.micro_batch_size={ROWS}",
    "optim.beta1=0.9",
    "optim.beta2=0.95",
    "optim.eps=1e-6",
    "optim.weight_decay=0.1",
    "optim.lr=0.003",
]
gpt2 = GPT2Config(
    vocab_size=VOCAB, n_positions=SEQ_LEN, n_embd=16, n_layer=2, n_head=2, embd_pdrop=0, resid_pdrop=0, attn_pdrop=0
)
run("adamw", GPT2LMHeadModel(gpt2), [*COMMON, "schedule.kind=cosine", "optim.clip=0.7"], cosine, False)
qwen3 = Qwen3Config(
    vocab_size=VOCAB,
    max_position_embeddings=SEQ_LEN,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    tie_word_embeddings=False,
)
MUON = [
    "optim.matrices=muon",
    "optim.clip=1.0",
    "optim.muon.lr=0.02",
    "optim.muon.weight_decay=0.05",
    "optim.muon.momentum_start=0.85",
    "optim.muon.momentum=0.95",
    "optim.muon.momentum_warmup_steps=10",
]
run("muon", Qwen3ForCausalLM(qwen3), [*COMMON, "schedule.kind=linear", *MUON], linear, True)
