"""Writes classify.json and the folders classify-*: the loss of classes of texts and of pairs of texts and the norm of its gradients, by
transformers' `BertForSequenceClassification` and others, on the encoders of the model crate's golden dirs with random heads.

Run from this folder with torch and transformers installed: python classify.py
"""

import json
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

# The golden dir, whether texts are pairs, and the keys of the configuration that differ.
CASES = (("bert", True, {}), ("xlm-roberta", False, {}), ("distilbert", False, {}), ("modernbert", False, {"classifier_pooling": "mean"}))
GOLDEN = Path(__file__).resolve().parents[3] / "model/tests/golden"
ITEMS, LONGEST, LABELS = 5, 14, ("red", "green", "blue")


def of(number, case, is_pairs, keys):
    generator = torch.Generator().manual_seed(90 + number)
    torch.manual_seed(90 + number)
    draw = lambda low, high, size: torch.randint(low, high, size, generator=generator)
    keys = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}} | keys
    model = AutoModelForSequenceClassification.from_pretrained(
        GOLDEN / case, num_labels=len(LABELS), attn_implementation="eager", dtype=torch.float64,
        problem_type="single_label_classification", **keys,
    ).eval()
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("classifier", "pooler", "head.")):
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
    texts = [draw(5, model.config.vocab_size, (int(draw(4, LONGEST + 1, ())),)) for _ in range(ITEMS)]
    seconds = [len(text) // 2 if is_pairs else None for text in texts]
    classes = draw(0, len(LABELS), (ITEMS,))
    rows = []
    for text, second in zip(texts, seconds):
        types = {} if second is None else {"token_type_ids": (torch.arange(len(text)) >= second).long()[None]}
        rows.append(model(input_ids=text[None], **types).logits)
    logits = torch.cat(rows)
    loss = torch.nn.functional.cross_entropy(logits, classes)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    out = Path(f"classify-{case}")
    shutil.rmtree(out, ignore_errors=True)
    model.float().save_pretrained(out)
    return {
        "dir": out.name, "texts": [text.tolist() for text in texts], "second_texts": seconds, "classes": classes.tolist(),
        "loss": loss.item(), "norm": norm.item(), "accuracy": (logits.argmax(1) == classes).double().mean().item(),
    }


torch.set_num_threads(1)
found = [of(number, *case) for number, case in enumerate(CASES)]
Path("classify.json").write_text(json.dumps(found) + "\n")
