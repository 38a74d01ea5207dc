#!/usr/bin/env python3
"""Opens model folders that Hearth saved with transformers, and compares the logits.

Usage:
    python check_reopened.py DIR [DIR...]

Each DIR is a Hugging Face model folder with `expected.safetensors` beside the weights, which holds
    input_ids   [batch, seq] int32
    logits      [batch, seq, vocab] f32, as Hearth computed them before it saved
The folder must open with `AutoModelForCausalLM.from_pretrained`, or `AutoModel` or
`AutoModelForMaskedLM` if it is an encoder, as the class its config.json names, with no
tensor missing, left over or of another shape, and give those logits within 1e-4 of their standard deviation
(float32, eager attention). Prints one line per folder; exits with 1 if any fails, 2 if called wrongly.

Needs torch, transformers and safetensors; no GPU, no network.
"""

import inspect
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from make_golden import OWN_CLASSES
from safetensors.torch import load_file

TOLERANCE = 1e-4  # of the logits' standard deviation

# Classes of code beside weights, which transformers computes as another.
COMPUTED_AS = {"ExaoneForCausalLM": "LlamaForCausalLM", "InternLM3ForCausalLM": "LlamaForCausalLM"}


class Refused(Exception):
    """What is wrong with a folder."""


def read_expected(folder):
    path = folder / "expected.safetensors"
    if not path.is_file():
        raise Refused(f"there is no {path.name}")
    tensors = load_file(path)
    if set(tensors) != {"input_ids", "logits"}:
        raise Refused(f"{path.name} holds {sorted(tensors)}, expected input_ids and logits")
    input_ids, logits = tensors["input_ids"], tensors["logits"]
    if input_ids.ndim != 2 or input_ids.dtype != torch.int32:
        raise Refused(f"input_ids is {input_ids.dtype} {list(input_ids.shape)}, expected int32 [batch, seq]")
    if logits.ndim != 3 or logits.shape[:2] != input_ids.shape or logits.dtype != torch.float32:
        raise Refused(
            f"logits is {logits.dtype} {list(logits.shape)}, expected float32 {[*input_ids.shape, 'vocab']}"
        )
    if logits.numel() == 0 or not torch.isfinite(logits).all():
        raise Refused("logits is empty or not finite")
    if logits.std() == 0:
        raise Refused("logits are all equal, which would prove nothing")
    return input_ids, logits


def open_model(folder):
    classes = json.loads((folder / "config.json").read_text()).get("architectures") or [""]
    # Encoders; some have a head for the first token, which Hearth does not save.
    is_encoder = names_encoder(classes[0])
    auto = transformers.AutoModel if is_encoder else transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForMaskedLM if classes[0].endswith("ForMaskedLM") else auto
    # Transformers has the text part of this one only within a model for pictures.
    auto = OWN_CLASSES.get(classes[0], auto)
    has_pooler = is_encoder and "add_pooling_layer" in inspect.signature(
        getattr(transformers, classes[0]).__init__
    ).parameters
    model, info = auto.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
        **({"add_pooling_layer": False} if has_pooler else {}),
    )
    found = {what: sorted(map(str, keys)) for what, keys in info.items() if keys}
    if found:
        raise Refused(f"loading reports {found}")
    named = json.loads((folder / "config.json").read_text()).get("architectures")
    if [COMPUTED_AS.get(name, name) for name in named] != [type(model).__name__]:
        raise Refused(f"config.json names {named}, transformers opened {type(model).__name__}")
    return model.eval()


def names_encoder(name):
    """Whether this is the name of a class without a head. Some with one end alike."""
    return name.endswith("Model") and not name.endswith("LMHeadModel")


def logits_of(model, input_ids):
    """The logits; of an encoder, which has none, the products of the last hidden states and the embeddings."""
    if names_encoder(type(model).__name__):
        return model(input_ids=input_ids).last_hidden_state @ model.get_input_embeddings().weight.T
    if type(model).__name__.endswith("ForMaskedLM"):
        return model(input_ids=input_ids).logits
    return model(input_ids=input_ids, use_cache=False).logits


def check(folder):
    """What to say about a folder that passes."""
    input_ids, expected = read_expected(folder)
    model = open_model(folder)
    with torch.no_grad():
        logits = logits_of(model, input_ids.long())
    if logits.shape != expected.shape:
        raise Refused(f"logits are {list(expected.shape)}, transformers gives {list(logits.shape)}")
    difference = ((logits - expected).abs().max() / logits.std()).item()
    if not difference <= TOLERANCE:
        raise Refused(f"logits differ by {difference:.1e} of their spread, allowed {TOLERANCE:.0e}")
    return f"{type(model).__name__}, logits within {difference:.1e} of their spread"


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    torch.set_num_threads(2)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed = False
    for name in sys.argv[1:]:
        try:
            print(f"ok      {name}: {check(Path(name))}", flush=True)
        # Whatever stops a folder from opening is a failure of that folder; the others are still looked at.
        except Exception as error:
            kind = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
            print(f"FAILED  {name}: {kind}{error}", flush=True)
            failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
