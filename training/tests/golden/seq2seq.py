"""Writes seq2seq.json: losses of targets behind their sources, and norms of the gradients, by transformers' T5, BART and Marian.

Run from this folder with torch and transformers installed: python seq2seq.py
The models are those of the model crate's golden dirs. Sources and targets have different lengths: the shorter ones are filled up,
which an attention mask hides, and labels of -100 do not count. With label smoothing, the gradients are those of transformers'
`LabelSmoother`. The padding token, with which Marian's and T5's decoders begin, learns as an input, too: torch's `padding_idx` is
taken away. Marian's positions are waves, which are no weights here.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.trainer_pt_utils import LabelSmoother

GOLDEN = Path(__file__).resolve().parents[3] / "model/tests/golden"
CASES = ("t5", "bart", "marian")
SOURCE_LENS, TARGET_LENS = (9, 4, 12, 7), (5, 9, 3, 8)


def filled(rows, value):
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def of(case, number):
    generator = torch.Generator().manual_seed(60 + number)
    model = AutoModelForSeq2SeqLM.from_pretrained(GOLDEN / case, attn_implementation="eager", dtype=torch.float64).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    vocab_size, start = model.config.vocab_size, model.config.decoder_start_token_id

    def draw(lens):
        return [torch.randint(3, vocab_size - 2, (length,), generator=generator).tolist() for length in lens]

    sources, targets = draw(SOURCE_LENS), draw(TARGET_LENS)
    decoder_inputs = [[start] + target[:-1] for target in targets]
    source_ids, labels = filled(sources, 0), filled(targets, -100)
    mask = filled([[1] * len(source) for source in sources], 0)
    norms = {}
    for smoothing in (0.0, 0.1):
        model.zero_grad()
        output = model(input_ids=source_ids, attention_mask=mask, decoder_input_ids=filled(decoder_inputs, 0), labels=labels)
        loss = output.loss if smoothing == 0.0 else LabelSmoother(epsilon=smoothing)(output, labels)
        loss.backward()
        fixed = "embed_positions" if case == "marian" else "no parameter"
        gradients = [weight.grad for name, weight in model.named_parameters() if weight.grad is not None and fixed not in name]
        norms[str(smoothing)] = torch.nn.utils.get_total_norm(gradients).item()
    targets = [[start] + target for target in targets]
    return {"sources": sources, "targets": targets, "loss": output.loss.item(), "norms": norms}


torch.set_num_threads(1)
found = {case: of(case, number) for number, case in enumerate(CASES)}
Path("seq2seq.json").write_text(json.dumps(found) + "\n")
