"""Opens a classifier that `hearth-train finetune` wrote, and prints what transformers computes for a text or a pair of texts.

python check_classifier.py MODEL_DIR TEXT [TEXT]
"""

import json
import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

path, *texts = sys.argv[1:]
model, tokenizer = AutoModelForSequenceClassification.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
with torch.no_grad():
    probabilities = model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(-1)[0].tolist()
print(json.dumps({"class": type(model).__name__, "probs": dict(zip(model.config.id2label.values(), probabilities))}))
