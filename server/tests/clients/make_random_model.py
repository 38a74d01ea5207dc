#!/usr/bin/env python3
"""A model with random weights, as a model dir: make_random_model.py docs/shapes/llama-1b MODEL_DIR OUT [CONTEXT]

To measure speed at the shapes of larger models (measure_peers.py). The shape is that of the config.json in the first folder, with a context
of CONTEXT tokens if one is given; the tokenizer is that of MODEL_DIR, and further ids of the vocabulary stand for no text. Then, for the
same file on all sides:

    hearth export --quantize q8 OUT shape.Q8_0.gguf

or `hearth export OUT shape.BF16.gguf` and llama-quantize for other types. Needs transformers and torch.
"""
import pathlib, shutil, sys
import torch, transformers


def main():
    if len(sys.argv) not in [4, 5]:
        sys.exit(__doc__)
    shape, model, out = map(pathlib.Path, sys.argv[1:4])
    config = transformers.AutoConfig.from_pretrained(shape)
    if len(sys.argv) == 5:
        config.max_position_embeddings = int(sys.argv[4])
    config.bos_token_id = config.eos_token_id = 0
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(out)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(model / name, out)


main()
