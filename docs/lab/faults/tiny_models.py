"""Tiny models: random ones that `transformers` writes, and one that writes a chosen text."""

import functools
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "model/tests/schemas"))

import scripted_model  # noqa: E402

MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 264
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer():
    content = scripted_model.tokenizer()
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    content["added_tokens"] = [{"id": 256 + n, "content": mark, "special": True} | flags for n, mark in enumerate(MARKS)]
    return content


def n_tokens(text):
    """The tokens of a text under this tokenizer: bytes, and the marks."""
    for mark in MARKS:
        text = text.replace(mark, "\x00")
    return len(text.encode())


def write_tokenizer(folder, template=CHATML, **config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@functools.cache
def base(kind="llama"):
    """A folder that `transformers` saved."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.manual_seed(5)
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.25, "eos_token_id": 258, "bos_token_id": None, "pad_token_id": None}
    of_kind = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
        "tied": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True)),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=16)),
        "yarn": lambda: transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**sizes, rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 256})
        ),
        "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes, head_dim=16, sliding_window=64)),
    }
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"faults-{kind}-"))
    of_kind[kind]().eval().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


PROMPT = "x"


def writer(folder, texts, template=PROMPT, fallback=b'"}]', **config):
    """A model that writes these texts, each after a prompt of as many tokens as its place says: `{n_prompt: text}`. At the
    end of a text, if it may not end there, it writes what closes something."""
    likely = {}
    for start, text in texts.items():
        content = text if isinstance(text, bytes) else text.encode()
        for offset in range(len(content) + 300):
            wanted = content[offset] if offset < len(content) else scripted_model.END
            likely.setdefault(start + offset, [wanted, *fallback])
    folder.mkdir(parents=True, exist_ok=True)
    scripted_model.save(folder, likely)
    settings = {"eos_token": "<|end|>", "chat_template": template} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
