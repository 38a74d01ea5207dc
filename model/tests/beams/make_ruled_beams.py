"""Writes ruled_beams.json: what `transformers` finds with beam search under penalties and bans.

The model is a table: the logits depend on the last token alone. Usage:
    python make_ruled_beams.py
"""

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

VOCAB, END, START, PAD = 13, 0, 1, 12


class Config(PretrainedConfig):
    model_type = "table"


class Table(PreTrainedModel, GenerationMixin):
    config_class = Config

    def __init__(self, table):
        super().__init__(Config(vocab_size=VOCAB))
        self.table = torch.nn.Parameter(table)
        self.post_init()

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=self.table[input_ids])

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}


def case(seed, width, max_tokens, length_penalty, early_stopping, **rules):
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5
    # The padding is never drawn.
    table[:, PAD] = -1e9
    settings = dict(
        num_beams=width, max_new_tokens=max_tokens, num_return_sequences=width, length_penalty=length_penalty,
        early_stopping=early_stopping, eos_token_id=END, pad_token_id=PAD, do_sample=False,
        return_dict_in_generate=True, output_scores=True, use_cache=False,
    )

    def answers(**rules):
        found = Table(table).generate(torch.tensor([[START]]), generation_config=GenerationConfig(**{**settings, **rules}))
        for ids, score in zip(found.sequences[:, 1:].tolist(), found.sequences_scores.tolist()):
            if END in ids:
                ids = ids[: ids.index(END) + 1]
            yield {"ids": ids, "score": score}

    ruled = list(answers(**rules))
    assert ruled != list(answers()), f"{rules} change nothing"
    # Answers with the same pairs of tokens in another order have the same score, and rounding would choose among them.
    scores = [answer["score"] for answer in answers(**rules, num_beams=4 * width, num_return_sequences=4 * width)]
    assert all(one - next > 1e-5 for one, next in zip(scores, scores[1:])), f"seed {seed}: equal scores"
    return {
        "table": table.tolist(), "width": width, "max_tokens": max_tokens, "length_penalty": length_penalty,
        "early_stopping": early_stopping, "rules": rules, "answers": ruled,
    }


cases = [
    case(13, 4, 9, 1.0, False, no_repeat_ngram_size=2),
    case(2, 4, 8, 1.5, False, repetition_penalty=1.7),
    # Here a word does not begin in the prompt, as in vLLM: none of these begins with its token.
    case(3, 3, 8, 1.0, False, bad_words_ids=[[3], [4, 5], [2, 4]]),
    case(4, 4, 9, 1.5, True, suppress_tokens=[2, 6], no_repeat_ngram_size=1),
    case(5, 5, 7, 1.0, "never", repetition_penalty=1.3, no_repeat_ngram_size=3, bad_words_ids=[[8, 9], [10]]),
]
Path(__file__).with_name("ruled_beams.json").write_text(json.dumps(cases) + "\n")
