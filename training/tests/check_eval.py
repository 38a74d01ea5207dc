"""Compares what `hearth-train eval` says of a model with what others' programs say of it: transformers (perplexity), lm-eval
(multiple choice), sacrebleu and rouge-score (scores and signatures of generated text), transformers again (greedy text), and
scikit-learn (probes on embeddings).

Usage: python check_eval.py HEARTH_TRAIN MODEL_DIR TEXT [PARTS]
TEXT is a text file for the perplexity, of which at most 5,000 characters are used. PARTS: letters of the parts to run, of `pmts`
(perplexity, multiple choice, translation, sklearn).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Everything is on this machine.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

hearth_train, model_dir, text_file = sys.argv[1:4]
parts = sys.argv[4] if len(sys.argv) > 4 else "pmts"
tasks = pathlib.Path(__file__).parent / "eval"
work = pathlib.Path(tempfile.mkdtemp())
torch.set_grad_enabled(False)
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(model_dir)
context = model.config.max_position_embeddings


def run(kind, *args):
    command = [hearth_train, "eval", kind, *map(str, args), "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=550)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    return json.loads(result.stdout.splitlines()[-1])


def on_model(kind, *args):
    return run(kind, model_dir, "--device", "cpu", *args)


def check(what, found, expected, relative=0.0, absolute=0.0):
    if not abs(found - expected) <= max(absolute, relative * abs(expected)):
        sys.exit(f"{what}: {found}, expected {expected}")


def logprobs(ids):
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def perplexity():
    """The loop of https://huggingface.co/docs/transformers/perplexity. Its windows are weighted by the number of tokens that they
    score; the documentation counts one token less for each window, also where none is lost."""
    with open(text_file, encoding="utf-8", newline="") as file:
        text = file.read()[:5_000]
    path = work / "text.txt"
    path.write_text(text, encoding="utf-8")
    ids = tokenizer(text, verbose=False)["input_ids"]
    top = min(context, 512)
    for window, stride in [(top, top // 2), (top, top), (top // 4, 37)]:
        nats, n_scored, previous_end = 0.0, 0, 0
        for start in range(0, len(ids), stride):
            end = min(start + window, len(ids))
            scored = logprobs(ids[start:end])[max(previous_end - start - 1, 0) :]
            nats -= scored.sum().item()
            n_scored += len(scored)
            previous_end = end
            if end == len(ids):
                break
        found = on_model("loss", "--data", path, "--window", window, "--stride", stride)
        expected = torch.tensor(nats / n_scored).exp().item()
        check(f"perplexity with windows of {window} by {stride}", found["perplexity"], expected, relative=1e-4)
        assert found["n_scored"] == n_scored, (found["n_scored"], n_scored)
        if stride < window:
            n_bytes = len(text.encode()) - len(tokenizer.decode(ids[:1], skip_special_tokens=True).encode())
            assert found["n_bytes"] == n_bytes, (found["n_bytes"], n_bytes)
        print(f"perplexity, windows of {window} by {stride}: {found['perplexity']:.6f}, transformers {expected:.6f}")


def for_lm_eval():
    """The model as lm-eval asks it."""
    from lm_eval.api.model import TemplateLM

    class Model(TemplateLM):
        backend = "causal"
        eot_token_id = tokenizer.eos_token_id

        def tok_encode(self, string, add_special_tokens=None, **kwargs):
            extra = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
            return tokenizer.encode(string, **extra)

        def _loglikelihood_tokens(self, requests, **kwargs):
            return [(logprobs(context_ids + ids)[-len(ids) :].sum().item(), False) for _, context_ids, ids in requests]

        def loglikelihood_rolling(self, requests, **kwargs):
            raise NotImplementedError

        def generate_until(self, requests, **kwargs):
            raise NotImplementedError

    return Model()


def multiple_choice():
    import lm_eval

    common = {
        "dataset_path": "json",
        "output_type": "multiple_choice",
        "test_split": "test",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    forms = {
        "choices": {"doc_to_text": "{{ctx}}", "doc_to_target": "{{label}}", "doc_to_choice": "endings"},
        # As lm-eval's own arc_easy has it.
        "arc": {
            "doc_to_text": "Question: {{question}}\nAnswer:",
            "doc_to_target": "{{choices.label.index(answerKey)}}",
            "doc_to_choice": "{{choices.text}}",
        },
    }
    for name, form in forms.items():
        path = tasks / f"{name}.jsonl"
        task = {"task": f"hearth_{name}", "dataset_kwargs": {"data_files": {"test": str(path)}}, **common, **form}
        results = lm_eval.simple_evaluate(for_lm_eval(), tasks=[task], log_samples=True, bootstrap_iters=0)
        expected = results["results"][f"hearth_{name}"]
        samples = sorted(results["samples"][f"hearth_{name}"], key=lambda sample: sample["doc_id"])
        found = on_model("multiple-choice", "--data", path)
        assert found["n_items"] == len(samples), (found["n_items"], len(samples))
        for metric in ["acc", "acc_norm"]:
            check(f"{metric} of {name}", found[metric]["value"], expected[f"{metric},none"], absolute=1e-12)
        worst = 0.0
        for at, (item, sample) in enumerate(zip(found["items"], samples)):
            # lm-eval has a list per choice of (log-likelihood, is greedy).
            for log_likelihood, (other, *_) in zip(item["log_likelihoods"], sample["filtered_resps"], strict=True):
                check(f"item {at} of {name}", log_likelihood, float(other), absolute=1e-3)
                worst = max(worst, abs(log_likelihood - float(other)))
        print(
            f"{name}: {len(samples)} items, acc {found['acc']['value']:.4f}, acc_norm {found['acc_norm']['value']:.4f}, as lm-eval; "
            f"log-likelihoods within {worst:.1e}"
        )


def translation():
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU, CHRF, TER

    path = tasks / "translation.jsonl"
    n_tokens = 12
    for beams in [1, 4]:
        args = ["--data", path, "--max-tokens", n_tokens, "--out", work / "texts.jsonl"]
        found = on_model("translation", *args, *([] if beams == 1 else ["--beams", beams]))
        lines = [json.loads(line) for line in (work / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
        n_equal = 0
        for line in lines:
            ids = tokenizer(line["prompt"], return_tensors="pt")
            output = model.generate(**ids, max_new_tokens=n_tokens, do_sample=False, num_beams=beams, pad_token_id=0)
            new = tokenizer.decode(output[0, ids["input_ids"].size(1) :], skip_special_tokens=True)
            n_equal += new.strip() == line["hypothesis"]
        # Rounding may decide between tokens that are equally likely.
        assert n_equal >= 0.95 * len(lines), f"{n_equal} of {len(lines)} texts are those of transformers, {beams} beams"
        hypotheses = [line["hypothesis"] for line in lines]
        most = max(len(line["references"]) for line in lines)
        streams = [[(line["references"] + [None] * most)[at] for line in lines] for at in range(most)]
        metrics = [BLEU(), CHRF(), CHRF(word_order=2), TER()]
        for metric, score in zip(metrics, found["scores"], strict=True):
            expected = metric.corpus_score(hypotheses, streams)
            check(score["name"], score["score"], expected.score, relative=1e-12)
            assert score["name"] == expected.name
            signature = str(metric.get_signature()).rsplit("|", 1)[0]
            assert score["signature"].rsplit("|", 1)[0] == signature, (score["signature"], signature)
            assert "|version:hearth-" in score["signature"]
        scorer = RougeScorer(["rougeL"])
        rouge = [scorer.score_multi(line["references"], line["hypothesis"])["rougeL"].fmeasure for line in lines]
        check("ROUGE-L", found["rouge_l"]["f_measure"], sum(rouge) / len(rouge), absolute=1e-12)
        scores = ", ".join(f"{score['name']} {score['score']:.2f}" for score in found["scores"])
        print(f"translation, {beams} beams: {n_equal} of {len(lines)} texts as transformers; {scores}, as sacrebleu; ROUGE-L too")


def sklearn():
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    args = ["--data", tasks / "topics.jsonl", "--test-fraction", 0.4, "--template", "{text} Topic:"]
    found = on_model("classify", *args, "--out", work / "embeddings.jsonl")
    lines = [json.loads(line) for line in (work / "embeddings.jsonl").read_text().splitlines()]
    is_test = np.array([line["part"] == "test" for line in lines])
    labels = np.array([line["label"] for line in lines])
    texts = {}
    for probe in found["probes"]:
        features = np.array([line[probe["pooling"]] for line in lines])
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000, tol=1e-8))
        model.fit(features[~is_test], labels[~is_test])
        expected = model.score(features[is_test], labels[is_test])
        check(f"accuracy of the probe on {probe['pooling']}", probe["accuracy"]["value"], expected, absolute=0.01)
        texts[probe["pooling"]] = f"{probe['accuracy']['value']:.4f} ({expected:.4f})"
    print(f"probes, accuracy and scikit-learn's: {texts}; label tokens {found['label_tokens']['acc']['value']:.4f}")


for letter, part in {"p": perplexity, "m": multiple_choice, "t": translation, "s": sklearn}.items():
    if letter in parts:
        part()
