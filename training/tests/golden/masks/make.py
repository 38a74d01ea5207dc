"""Writes tokenizer/, and masks.json: what transformers makes of conversations with the chat templates that TRL has.

TRL's wheel has the chat templates of many families in two forms: as published, and with `{% generation %}` around what the
assistant writes. They are other people's text, so this folder has only their hashes. For each family and each conversation
of conversations.json, masks.json has the ids with both templates, and the assistant's tokens with the second one, as ranges.

Run from this folder, with transformers and trl (`pip install --no-deps trl==1.16.0`) installed:
    python make.py                 writes masks.json
    python make.py --tokenizer TEXT   first writes tokenizer/ from the merges of a text file
    python make.py --check         fails if masks.json would change
"""

import argparse
import hashlib
import importlib.util
import json
import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
# Lists of parts instead of strings: templates of models that see images.
LEFT_OUT = {"idefics3", "llava_next", "smolvlm"}
VOCAB_SIZE = 1024


def templates():
    """The folder of TRL's templates, without importing TRL, which needs more packages."""
    spec = importlib.util.find_spec("trl")
    return Path(spec.submodule_search_locations[0]) / "chat_templates"


def raw_text(path):
    """The text with its own line ends."""
    return path.read_bytes().decode()


def families(folder):
    """For each family, its published template and the one with generation tags."""
    for marked in sorted(folder.glob("*_training.jinja")):
        name = marked.name.removesuffix("_training.jinja")
        texts = [raw_text(path) for path in (folder / f"{name}.jinja", marked)]
        # A template that writes today's date has other ids tomorrow.
        if name not in LEFT_OUT and not any("strftime_now" in text for text in texts):
            yield name, *texts


def special_tokens(folder):
    form = r"<[|｜][^<>\s{}']+?[|｜]>|<end_of_turn>|<start_of_turn>|\[gMASK\]|<sop>"
    text = "".join(path.read_text() for path in folder.glob("*.jinja"))
    return ["<s>", "</s>", "<pad>", "<unk>", *sorted(set(re.findall(form, text)))]


def make_tokenizer(folder, text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_special_tokens(special_tokens(folder))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(HERE / "tokenizer")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    (HERE / "tokenizer/tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encoded(tokenizer, template, conversation):
    """Ids and mask, or None if the template rejects the conversation."""
    try:
        return tokenizer.apply_chat_template(
            conversation["messages"], tools=conversation.get("tools"), chat_template=template, tokenize=True,
            return_dict=True, return_assistant_tokens_mask=True,
        )
    except Exception:  # Jinja's errors and Python's, as templates raise them.
        return None


def ranges(mask):
    edges = [at for at in range(len(mask) + 1) if (mask[at - 1] if at else 0) != (mask[at] if at < len(mask) else 0)]
    return list(zip(edges[::2], edges[1::2]))


# Conversations of which transformers gets the mask wrong (https://github.com/huggingface/transformers/issues/47325): with
# tags around the text alone, a turn that is empty or one token at the start of the conversation. The right answers are in
# tests/masks.rs.
TIGHT = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
WRONG = {
    "first_token": [{"role": "assistant", "content": "A"}, {"role": "user", "content": "Hi"}],
    "empty_first": [{"role": "assistant", "content": ""}, {"role": "user", "content": "Hi"}],
}


def wrong(tokenizer, messages):
    """The mask of transformers, or the name of its error."""
    try:
        out = tokenizer.apply_chat_template(
            messages, chat_template=TIGHT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return out["assistant_masks"]
    except Exception as error:
        return type(error).__name__


def make(folder):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(HERE / "tokenizer")
    conversations = json.loads((HERE / "conversations.json").read_text())
    golden = {}
    for name, published, marked in families(folder):
        cases = {}
        for title, conversation in conversations.items():
            with_tags, without = (encoded(tokenizer, template, conversation) for template in (marked, published))
            if with_tags is None:
                continue
            case = {"ids": with_tags["input_ids"], "trained": ranges(with_tags["assistant_masks"])}
            if without is None or without["input_ids"] != case["ids"]:
                case["published_ids"] = without and without["input_ids"]
            cases[title] = case
        digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
        golden[name] = {"published": digest(published), "marked": digest(marked), "cases": cases}
    cases = {name: {"messages": messages, "transformers": wrong(tokenizer, messages)} for name, messages in WRONG.items()}
    golden = {"families": golden, "transformers_is_wrong": {"template": TIGHT, "cases": cases}}
    # A line for each case: short, and readable as a difference.
    text = json.dumps(golden, separators=(",", ":"))
    return re.sub(r'(\{"published"|"\w+":\{"ids")', r"\n\1", text) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    folder = templates()
    if arguments.tokenizer:
        make_tokenizer(folder, arguments.tokenizer.read_text())
    path, text = HERE / "masks.json", make(folder)
    if arguments.check:
        assert path.read_text() == text, "masks.json differs from what transformers computes now"
    else:
        path.write_text(text)


main()
