"""Writes retrieval.json: measures of random rankings by pytrec_eval, with ties, judgments of several grades, documents that are not
found, and a query without a relevant document.

Run from this folder with pytrec_eval-terrier installed: python retrieval.py
"""

import json
import random
from pathlib import Path

import pytrec_eval

CUTOFFS = (1, 3, 10)
random.seed(5)
documents = [f"d{number}" for number in range(40)]
cases = []
for number in range(12):
    # In quarters, so that several have the same score.
    scores = {document: random.randrange(12) / 4 for document in random.sample(documents, random.randrange(3, 40))}
    judged = {document: random.choice([-1, 0, 0, 1, 1, 2, 3]) for document in random.sample(documents, random.randrange(2, 20))}
    judged |= {f"gone{n}": 1 + n for n in range(number % 3)}
    if number == 5:
        judged = {document: 0 for document in judged}
    measure = lambda names, run: pytrec_eval.RelevanceEvaluator({"q": judged}, names).evaluate({"q": run})["q"]
    cutoffs = ",".join(map(str, CUTOFFS))
    found = measure({f"ndcg_cut.{cutoffs}", f"recall.{cutoffs}", "map"}, scores)
    # By trec_eval's order: of equal scores, the greater id first.
    ranking = sorted(scores, key=lambda document: (scores[document], document), reverse=True)
    firsts = [measure({"recip_rank"}, {document: scores[document] for document in ranking[:k]})["recip_rank"] for k in CUTOFFS]
    cases.append({
        "scores": scores, "judged": judged, "mrr": firsts, "map": found["map"],
        "ndcg": [found[f"ndcg_cut_{k}"] for k in CUTOFFS], "recall": [found[f"recall_{k}"] for k in CUTOFFS],
    })
Path("retrieval.json").write_text(json.dumps({"cutoffs": CUTOFFS, "documents": documents, "cases": cases}) + "\n")
