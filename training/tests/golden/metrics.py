"""Writes metrics.json: scores of generated text by sacrebleu, rouge-score and NLTK, and a logistic probe by scikit-learn.

Run from this folder with the packages of .ci/requirements.txt and server/tests/clients/requirements.txt installed:
python metrics.py
Texts are drawn by a grammar and damaged at random; some have punctuation, entities, other scripts, odd white space, or nothing.
"""

import json
import random

import numpy as np
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF, TER
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

WORDS = """the a old young river mountain child doctor said went saw gave 3.14 1,000 well-known don't (perhaps) "never" U.S. and
but slowly, quickly; Straße naïve Ελλάς Σίσυφος 東京 дом &amp; &quot;yes&quot; e-mail 10-12 $5 50% <skipped> x_y [sic] {…} it's""".split()


def sentence(rng, n):
    words = [rng.choice(WORDS) for _ in range(n)]
    text = " ".join(words).capitalize()
    return text + rng.choice([".", "!", "?", "...", "", " ."])


def damaged(rng, text):
    words = text.split()
    for _ in range(rng.randrange(6)):
        if not words:
            break
        at = rng.randrange(len(words))
        kind = rng.randrange(5)
        if kind == 0:
            del words[at]
        elif kind == 1:
            words.insert(at, rng.choice(WORDS))
        elif kind == 2:
            words[at] = rng.choice(WORDS)
        elif kind == 3:
            end = min(len(words), at + rng.randrange(1, 5))
            phrase = words[at:end]
            del words[at:end]
            to = rng.randrange(len(words) + 1)
            words[to:to] = phrase
        else:
            words[at] = words[at].upper()
    return rng.choice([" ", " ", " ", "  ", "\t", "\u00a0", "\x1f"]).join(words)


def corpus(seed, n, n_references, length):
    rng = random.Random(seed)
    segments = []
    for _ in range(n):
        text = sentence(rng, rng.randrange(1, length))
        count = n_references if isinstance(n_references, int) else rng.choice(n_references)
        segments.append((damaged(rng, text), [text] + [damaged(rng, text) or "x" for _ in range(count - 1)]))
    return segments


def scored(name, segments):
    hypotheses = [hypothesis for hypothesis, _ in segments]
    most = max(len(references) for _, references in segments)
    streams = [[refs[at] if at < len(refs) else None for _, refs in segments] for at in range(most)]
    scores = {}
    for key, metric in {
        "bleu": BLEU(),
        "bleu_lower": BLEU(lowercase=True),
        "chrf": CHRF(),
        "chrf_lower": CHRF(lowercase=True),
        "chrf_words": CHRF(word_order=2),
        "ter": TER(),
        "ter_mixed": TER(case_sensitive=True),
    }.items():
        score = metric.corpus_score(hypotheses, streams)
        scores[key] = {
            "name": score.name,
            "score": score.score,
            "signature": str(metric.get_signature()),
            "details": score._verbose.strip(),
        }
    scorer = RougeScorer(["rougeL"])
    rouge = [scorer.score_multi(references, hypothesis)["rougeL"] for hypothesis, references in segments]
    scores["rouge_l"] = [sum(score[at] for score in rouge) / len(rouge) for at in range(3)]
    return {"name": name, "segments": segments, **scores}


def self_bleu(seed, n, length, n_words, order):
    rng = random.Random(seed)
    texts = [[rng.randrange(n_words) for _ in range(rng.randrange(1, length))] for _ in range(n)]
    weights = [1 / order] * order
    smoothing = SmoothingFunction().method1
    scores = [
        sentence_bleu(texts[:at] + texts[at + 1 :], text, weights=weights, smoothing_function=smoothing)
        for at, text in enumerate(texts)
    ]
    return {"texts": texts, "order": order, "scores": scores}


def probe(seed, n_classes, c):
    rng = np.random.default_rng(seed)
    classes = np.arange(60) % n_classes
    centers = rng.normal(size=(n_classes, 6))
    features = (centers[classes] + 1.2 * rng.normal(size=(60, 6))) * [1, 10, 0.1, 1, 1, 1] + [0, 0, 0, 5, 0, 0]
    features = features.astype(np.float32).round(4)
    new = (centers[np.arange(40) % n_classes] + 1.5 * rng.normal(size=(40, 6))).astype(np.float32).round(4)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-10, max_iter=10000))
    model.fit(features.astype(np.float64), classes)
    logits = model.decision_function(new.astype(np.float64)).reshape(len(new), -1)
    return {
        "c": c,
        "n_classes": n_classes,
        "features": features.tolist(),
        "classes": classes.tolist(),
        "new": new.tolist(),
        "logits": logits.tolist(),
        "predicted": model.predict(new.astype(np.float64)).tolist(),
    }


def main():
    long = random.Random(9)
    hard = [(damaged(long, text), [text]) for text in (sentence(long, 70) for _ in range(3))]
    shifted = []
    for _ in range(12):
        words = sentence(long, 25).split()
        shuffled = words[:]
        long.shuffle(shuffled)
        shifted.append((" ".join(shuffled), [" ".join(words)]))
    golden = {
        "corpora": [
            scored("one reference", corpus(1, 60, 1, 20)),
            scored("three references", corpus(2, 30, 3, 15)),
            scored("one to three references", corpus(3, 30, [1, 2, 3], 15)),
            scored("short", corpus(4, 10, 1, 3)),
            scored("one segment", corpus(5, 1, 1, 12)),
            scored("nothing", [("", ["a reference"]), ("  ", ["b"])]),
            scored("no match", [("a b c d e", ["v w x y z"])]),
            scored("empty references", [("some words", [""]), ("", [""])]),
            scored("long", hard),
            scored("shuffled", shifted),
            scored("unequal lengths", [("word", [" ".join(["word"] * 80)]), (" ".join(["a b"] * 60), ["a b a"])]),
        ],
        "self_bleu": [self_bleu(6, 12, 25, 6, 4), self_bleu(7, 12, 25, 12, 5), self_bleu(8, 5, 4, 3, 4)],
        "probes": [probe(1, 2, 1.0), probe(2, 4, 0.1), probe(3, 3, 10.0)],
    }
    with open("metrics.json", "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=False, indent=None)
        file.write("\n")


main()
