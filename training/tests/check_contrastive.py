"""Trains Hearth and sentence-transformers on the same generated pairs, with the same first model, steps, rate and batch size, and
compares how many of the held-out positives are among the first ten documents. Then opens Hearth's model with sentence-transformers and
compares the vectors.

python check_contrastive.py HEARTH_TRAIN [--seeds 3] [--steps 300]

Needs torch, transformers and sentence-transformers. An anchor is a sentence of an invented language and its positive the same in another
one with other words and another order, so what is to be learned is the dictionary.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

WORDS, TRAIN, TEST, BATCH, LR = 150, 2000, 400, 32, 1e-3


def sentences(seed):
    """Pairs to train on, and pairs to search with."""
    random.seed(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    spell = lambda: "".join(random.choices(syllables, k=3))
    dictionary = [(spell(), spell()) for _ in range(WORDS)]

    def pair():
        words = random.sample(dictionary, 5)
        return " ".join(one for one, _ in words), " ".join(other for _, other in reversed(words))

    pairs = list({pair() for _ in range(TRAIN + TEST)})
    return pairs[:TRAIN], pairs[TRAIN:]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def recall(model, queries, documents):
    vectors = [model.encode(texts, normalize_embeddings=True, convert_to_tensor=True).double() for texts in (queries, documents)]
    firsts = (vectors[0] @ vectors[1].T).topk(10).indices
    return (firsts == torch.arange(len(queries))[:, None]).any(1).double().mean().item()


def train_sentence_transformers(base, pairs, steps, seed):
    torch.manual_seed(seed)
    encoder = Transformer(str(base), max_seq_length=64)
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_word_embedding_dimension(), "mean")], device="cpu")
    # As in Hearth's run: no dropout.
    model.float().eval()
    loss = MultipleNegativesRankingLoss(model, scale=20.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.0)
    order = []
    for _ in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(len(pairs)).tolist()
        chosen, order = [pairs[n] for n in order[:BATCH]], order[BATCH:]
        features = [model.tokenize([pair[place] for pair in chosen]) for place in range(2)]
        optimizer.zero_grad()
        loss(features, None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hearth_train")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    found = {"hearth": [], "sentence-transformers": []}
    for seed in range(1, args.seeds + 1):
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            run = lambda *words: subprocess.run([str(Path(args.hearth_train).resolve()), *map(str, words)], cwd=work, check=True, capture_output=True, text=True).stdout
            pairs, held_out = sentences(seed)
            (work / "text.txt").write_text("\n".join(text for pair in pairs for text in pair))
            write_lines(work / "pairs.jsonl", [{"anchor": one, "positive": other} for one, other in pairs])
            beir = work / "beir"
            (beir / "qrels").mkdir(parents=True)
            write_lines(beir / "queries.jsonl", [{"_id": f"q{n}", "text": one} for n, (one, _) in enumerate(held_out)])
            write_lines(beir / "corpus.jsonl", [{"_id": f"d{n}", "text": other} for n, (_, other) in enumerate(held_out)])
            qrels = "".join(f"q{n}\td{n}\t1\n" for n in range(len(held_out)))
            (beir / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
            run("tokenizer", "text.txt", "--out", "tokenizer", "--vocab-size", 600, "--encoder")
            run("prepare", "text.txt", "--tokenizer", "tokenizer", "--out", "data")
            sets = lambda *settings: [word for setting in settings for word in ("--set", setting)]
            run("pretrain", "--data", "data", "--preset", "bert-tiny", "--out", "base",
                *sets("schedule.max_steps=50", "schedule.warmup_steps=5", f"seed={seed}", "model.max_seq_len=64"))
            run("finetune", "base", "--data", "pairs.jsonl", "--out", "tuned",
                *sets("objective.kind=contrastive", f"schedule.max_steps={args.steps}", "schedule.warmup_steps=0", "schedule.kind=constant",
                      f"optim.lr={LR}", "optim.weight_decay=0", f"data.micro_batch_size={BATCH}", "data.val_fraction=0", f"seed={seed}"))
            report = json.loads(run("eval", "retrieval", "tuned", "--data", "beir", "--json").splitlines()[-1])
            queries, documents = zip(*held_out)
            opened = SentenceTransformer(str(work / "tuned/model"), device="cpu")
            again = recall(opened, queries, documents)
            assert abs(again - report["recall_10"]) < 1e-9, (again, report)
            model = train_sentence_transformers(work / "base/model", pairs, args.steps, seed)
            found["hearth"].append(report["recall_10"])
            found["sentence-transformers"].append(recall(model, queries, documents))
            print(f"seed {seed}: recall at 10 of {len(queries)}: " + ", ".join(f"{name} {values[-1]:.4f}" for name, values in found.items()), flush=True)
    for name, values in found.items():
        print(f"{name}: mean {sum(values) / len(values):.4f}")


if __name__ == "__main__":
    main()
