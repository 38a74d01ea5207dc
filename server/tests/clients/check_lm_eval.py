"""Compares what lm-eval measured over HTTP with `transformers` computed directly.

    pip install -r requirements.txt
    hearth serve --model MODEL_DIR --port 8000 &
    cd lm_eval_task
    lm_eval run --model local-completions --tasks sentences --include_path . --log_samples --output_path out \
        --model_args base_url=http://127.0.0.1:8000/v1/completions,model=NAME,tokenizer_backend=remote --batch_size 4
    python ../check_lm_eval.py MODEL_DIR out

Needs `torch` and `transformers`.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Log-probabilities of a whole answer, in nats: single precision over some tokens.
TOLERANCE = 1e-3


def main(model_dir, out):
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    [samples] = Path(out).rglob("samples_sentences_*.jsonl")
    n_right = {"measured": 0, "computed": 0}
    worst = 0.0
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    for row in rows:
        computed = []
        for choice, (measured, greedy) in zip(row["doc"]["choices"], row["filtered_resps"], strict=True):
            prompt = tokenizer.encode(row["doc"]["sentence"], add_special_tokens=False)
            whole = tokenizer.encode(f"{row['doc']['sentence']} {choice}", add_special_tokens=False)
            with torch.no_grad():
                logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
            rows_of_answer = logprobs[len(prompt) - 1 : len(whole) - 1]
            answer = torch.tensor(whole[len(prompt) :])
            number = rows_of_answer.gather(1, answer[:, None]).sum().item()
            computed.append(number)
            worst = max(worst, abs(number - float(measured)))
            assert str(greedy) == str(bool((rows_of_answer.argmax(-1) == answer).all())), (row["doc"], choice)
        measured = [float(number) for number, _ in row["filtered_resps"]]
        n_right["measured"] += measured.index(max(measured)) == row["doc"]["answer"]
        n_right["computed"] += computed.index(max(computed)) == row["doc"]["answer"]
    assert worst < TOLERANCE, worst
    assert n_right["measured"] == n_right["computed"] == sum(row["acc"] for row in rows), n_right
    print(f"ok lm-eval: {n_right['measured']} of {len(rows)} right both ways, largest difference {worst:.1e} nats")


if __name__ == "__main__":
    main(*sys.argv[1:])
