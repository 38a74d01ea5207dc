"""Makes the folders `token-classes/<family>`: tiny encoders of transformers' classes `...ForTokenClassification` with random weights and a
tokenizer, and `expected.json`: texts, their ids, and the probabilities of the classes of each token.

Needs torch, transformers and tokenizers.
"""

import json
import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

HERE = Path(__file__).resolve().parent / "token-classes"
WORDS = "the cat sat on a mat ada lives in london and works for hearth . ,".split()
LABELS = {0: "O", 1: "B-PER", 2: "B-LOC"}
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=32)
TEXTS = ["Ada lives in London.", "the cat", "a", "Ada works for Hearth, and the cat sat on a mat."]


def main():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}, model_max_length=32)
    keys = dict(SIZES, vocab_size=len(words), pad_token_id=0, id2label=LABELS, label2id={name: n for n, name in LABELS.items()})
    modern = dict(keys, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, local_attention=8)
    configs = {
        "bert": transformers.BertConfig(**keys),
        "modernbert": transformers.ModernBertConfig(**modern),
    }
    for number, (family, config) in enumerate(configs.items()):
        torch.manual_seed(700 + number)
        model = transformers.AutoModelForTokenClassification.from_config(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn(weight.shape) * 0.4 + (1.0 if weight.dim() == 1 else 0.0))
        folder = HERE / family
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        expected = []
        for text in TEXTS:
            inputs = tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                probabilities = model(**inputs).logits[0].softmax(-1)
            assert probabilities.std() > 0.05, "the classes are nearly as likely"
            expected.append({"text": text, "ids": inputs.input_ids[0].tolist(), "classes": probabilities.tolist()})
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        for file in folder.iterdir():
            file.chmod(0o644)
        print(family, sum(file.stat().st_size for file in folder.iterdir()))


if __name__ == "__main__":
    main()
