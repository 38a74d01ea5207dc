"""What `/v1/inspect` says of a text beside what transformers computes from the same model dir.

    pip install -r requirements.txt
    hearth serve --model DIR --port 8000 &
    HEARTH_URL=http://127.0.0.1:8000 python check_inspect.py DIR

Compared: attention maps with `output_attentions`; the residual stream of every layer with `output_hidden_states`, by what the last norm and
the head make of it; log-probabilities, ranks and entropies. The model must be served in f32.
"""

import base64
import json
import os
import sys
import urllib.request

import numpy as np
import torch
from transformers import AutoModelForCausalLM

URL = os.environ["HEARTH_URL"]
TEXTS = ["The capital of France is Paris, and the capital of Italy is", "x", "Ünïcödé 🦊 and\n\n\ttabs, 12345"]
TOP = 5


def inspect(**body) -> dict:
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ.get('HEARTH_KEY', 'none')}"}
    request = urllib.request.Request(f"{URL}/v1/inspect", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def largest_difference(top: list[dict], logprobs: torch.Tensor) -> float:
    """Of the listed tokens, and of the list's values from the largest there are."""
    listed = torch.tensor([entry["logprob"] for entry in top])
    own = logprobs[[entry["id"] for entry in top]]
    best = logprobs.topk(len(top)).values
    return max((listed - own).abs().max().item(), (listed - best).abs().max().item())


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager")
    model.eval()
    worst = {"attention": 0.0, "lens": 0.0, "logprobs": 0.0, "entropy": 0.0}
    for text in TEXTS:
        found = inspect(input=text, attention={}, logit_lens={"top": TOP}, top_logprobs=TOP)
        ids = torch.tensor([[token["id"] for token in found["tokens"]]])
        with torch.no_grad():
            expected = model(ids, output_attentions=True, output_hidden_states=True)
        assert (found["layer_count"], found["head_count"]) == (len(expected.attentions), expected.attentions[0].shape[1])
        shape = found["attention"]["shape"]
        maps = np.frombuffer(base64.b64decode(found["attention"]["data"]), "<f2").reshape(shape).astype(np.float32)
        eager = torch.cat(expected.attentions).numpy()
        worst["attention"] = max(worst["attention"], np.abs(maps - eager).max())

        logprobs = expected.logits[0].log_softmax(-1)
        for position, prediction in enumerate(found["predictions"]):
            row = logprobs[position]
            worst["logprobs"] = max(worst["logprobs"], largest_difference(prediction["top_logprobs"], row))
            entropy = -(row.exp() * row).sum().item()
            worst["entropy"] = max(worst["entropy"], abs(entropy - prediction["entropy"]))
        assert found["tokens"][0]["logprob"] is None and found["tokens"][0]["rank"] is None
        for position, token in enumerate(found["tokens"][1:]):
            own = logprobs[position, token["id"]]
            worst["logprobs"] = max(worst["logprobs"], abs(token["logprob"] - own.item()))
            rank = (logprobs[position] > own + 1e-4).sum().item() + 1
            last = (logprobs[position] > own - 1e-4).sum().item() + 1
            assert rank <= token["rank"] <= last, (text, position, token, rank)

        assert found["logit_lens"]["layers"] == list(range(len(expected.hidden_states)))
        with torch.no_grad():
            for layer, hidden in enumerate(expected.hidden_states):
                # The last one is normed already.
                is_last = layer + 1 == len(expected.hidden_states)
                logits = model.lm_head(hidden[0] if is_last else model.model.norm(hidden[0])).log_softmax(-1)
                for position, top in enumerate(found["logit_lens"]["predictions"][layer]):
                    worst["lens"] = max(worst["lens"], largest_difference(top, logits[position]))
    print("inspection, largest differences:", ", ".join(f"{name} {value:.2e}" for name, value in worst.items()))
    assert worst["attention"] < 6e-4, "maps are rounded to f16"
    assert worst["lens"] < 2e-3 and worst["logprobs"] < 1e-3 and worst["entropy"] < 1e-3


if __name__ == "__main__":
    main()
