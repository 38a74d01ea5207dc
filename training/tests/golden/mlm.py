"""Writes mlm.json: the loss of masked tokens and the norm of its gradients, by transformers' `BertForMaskedLM` and others.

Run from this folder with torch and transformers installed: python mlm.py
The models are those of the model crate's golden dirs, and the masks are drawn here: labels of -100 do not count.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM

CASES = ("bert-mlm", "roberta-mlm", "distilbert-mlm", "modernbert-mlm")
GOLDEN = Path(__file__).resolve().parents[3] / "model/tests/golden"
BATCH, SEQ_LEN, MASK = 4, 16, 3


def of(case, number):
    generator = torch.Generator().manual_seed(40 + number)
    model = AutoModelForMaskedLM.from_pretrained(GOLDEN / case, attn_implementation="eager", dtype=torch.float64).eval()
    targets = torch.randint(5, model.config.vocab_size, (BATCH, SEQ_LEN), generator=generator)
    chosen = torch.rand(targets.shape, generator=generator) < 0.2
    chosen[:, 2] = True
    inputs = torch.where(chosen, MASK, targets)
    loss = model(input_ids=inputs, labels=torch.where(chosen, targets, -100)).loss
    loss.backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    numbers = {"inputs": inputs, "targets": targets, "weights": chosen.int()}
    return {name: value.flatten().tolist() for name, value in numbers.items()} | {"loss": loss.item(), "norm": norm.item()}


torch.set_num_threads(1)
found = {case: of(case, number) for number, case in enumerate(CASES)}
Path("mlm.json").write_text(json.dumps({"seq_len": SEQ_LEN, "cases": found}) + "\n")
