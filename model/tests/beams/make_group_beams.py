"""Writes group_beams.json: what `transformers` 4.49 finds with diverse beam search, which version 5 no longer has.

The model is a table: the logits depend on the last token alone. Usage, with that version installed:
    python make_group_beams.py
"""

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

# The padding, which groups that are done repeat, is never drawn.
VOCAB, END, START, PAD = 13, 0, 1, 12


class Config(PretrainedConfig):
    model_type = "table"


class Table(PreTrainedModel, GenerationMixin):
    config_class = Config

    def __init__(self, table):
        super().__init__(Config(vocab_size=VOCAB))
        self.table = torch.nn.Parameter(table)

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=self.table[input_ids])

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}


def case(seed, width, n_groups, penalty, max_tokens, length_penalty, early_stopping):
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5
    table[:, PAD] = -1e9
    settings = GenerationConfig(
        num_beams=width, num_beam_groups=n_groups, diversity_penalty=penalty, max_new_tokens=max_tokens, num_return_sequences=width,
        length_penalty=length_penalty, early_stopping=early_stopping, eos_token_id=END, pad_token_id=PAD, do_sample=False,
        return_dict_in_generate=True, output_scores=True, use_cache=False,
    )
    found = Table(table).generate(torch.tensor([[START]]), generation_config=settings)
    answers = []
    for ids, score in zip(found.sequences[:, 1:].tolist(), found.sequences_scores.tolist()):
        if END in ids:
            ids = ids[: ids.index(END) + 1]
        answers.append({"ids": ids, "score": score})
    return {
        "table": table.tolist(), "width": width, "n_groups": n_groups, "penalty": penalty, "max_tokens": max_tokens,
        "length_penalty": length_penalty, "early_stopping": early_stopping, "answers": answers,
    }


cases = [
    case(1, 6, 3, 0.5, 7, 1.0, True),
    case(2, 6, 2, 1.5, 7, 0.0, True),
    case(3, 4, 4, 0.8, 6, 1.0, True),
    case(4, 6, 3, 0.5, 7, 1.0, False),
    case(5, 8, 2, 0.3, 9, -0.5, False),
    case(6, 6, 3, 20.0, 5, 2.0, "never"),
]
Path(__file__).with_name("group_beams.json").write_text(json.dumps(cases) + "\n")
