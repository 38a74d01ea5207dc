"""Writes contrastive.json and margins.json: the loss of pairs of texts and the norm of its gradients, by sentence-transformers'
`MultipleNegativesRankingLoss` and `MarginMSELoss` and its poolings on transformers' encoders.

Run from this folder with torch, transformers and sentence-transformers installed: python contrastive.py
The models are those of the model crate's golden dirs, and the texts are drawn here.
"""

import json
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MarginMSELoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel

# The golden dir, the pooling, texts of an item, and the temperature.
CASES = (("bert", "mean", 2, 0.05), ("roberta", "cls", 3, 0.5), ("distilbert", "max", 2, 0.3), ("modernbert", "mean", 3, 0.1))
GOLDEN = Path(__file__).resolve().parents[3] / "model/tests/golden"
ITEMS, LONGEST = 5, 14


def of(number, case, mode, texts_per_item, temperature):
    generator = torch.Generator().manual_seed(70 + number)
    draw = lambda low, high, size: torch.randint(low, high, size, generator=generator)
    model = AutoModel.from_pretrained(GOLDEN / case, attn_implementation="eager", dtype=torch.float64).eval()
    pooling = Pooling(model.config.hidden_size, pooling_mode=mode)
    loss = MultipleNegativesRankingLoss(SentenceTransformer(modules=[pooling]), scale=1 / temperature)
    texts = [draw(5, model.config.vocab_size, (int(draw(3, LONGEST + 1, ())),)) for _ in range(ITEMS * texts_per_item)]

    def vector(ids):
        features = {"token_embeddings": model(input_ids=ids[None]).last_hidden_state, "attention_mask": torch.ones_like(ids[None])}
        return pooling(features)["sentence_embedding"]

    vectors = [torch.cat([vector(ids) for ids in texts[place::texts_per_item]]) for place in range(texts_per_item)]
    found = loss.compute_loss_from_embeddings(vectors, None)
    found.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    nearest = torch.nn.functional.cosine_similarity(vectors[0][:, None], torch.cat(vectors[1:])[None], dim=-1).argmax(1)
    accuracy = (nearest == torch.arange(ITEMS)).double().mean()
    return {
        "model": case, "pooling": mode, "texts_per_item": texts_per_item, "temperature": temperature,
        "texts": [text.tolist() for text in texts], "loss": found.item(), "norm": norm.item(), "accuracy": accuracy.item(),
    }


def of_margins(number, case, mode):
    generator = torch.Generator().manual_seed(170 + number)
    draw = lambda low, high, size: torch.randint(low, high, size, generator=generator)
    model = AutoModel.from_pretrained(GOLDEN / case, attn_implementation="eager", dtype=torch.float64).eval()
    pooling = Pooling(model.config.hidden_size, pooling_mode=mode)
    loss = MarginMSELoss(SentenceTransformer(modules=[pooling]))
    texts = [draw(5, model.config.vocab_size, (int(draw(3, LONGEST + 1, ())),)) for _ in range(ITEMS * 3)]

    def vector(ids):
        features = {"token_embeddings": model(input_ids=ids[None]).last_hidden_state, "attention_mask": torch.ones_like(ids[None])}
        return pooling(features)["sentence_embedding"]

    vectors = [torch.cat([vector(ids) for ids in texts[place::3]]) for place in range(3)]
    products = [(vectors[0] * other).sum(-1) for other in vectors[1:]]
    # Some are missed by little, some by much.
    margins = (products[0] - products[1]).detach() + torch.randn(ITEMS, generator=generator, dtype=torch.float64) * 2
    found = loss.compute_loss_from_embeddings(vectors, margins)
    found.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return {
        "model": case, "pooling": mode, "texts": [text.tolist() for text in texts], "margins": margins.tolist(), "loss": found.item(),
        "norm": torch.nn.utils.get_total_norm(gradients).item(),
        "accuracy": (products[0] > products[1]).double().mean().item(),
    }


torch.set_num_threads(1)
found = [of(number, *case) for number, case in enumerate(CASES)]
Path("contrastive.json").write_text(json.dumps(found) + "\n")
margins = [of_margins(number, *case) for number, case in enumerate((("bert", "mean"), ("modernbert", "cls")))]
Path("margins.json").write_text(json.dumps(margins) + "\n")
