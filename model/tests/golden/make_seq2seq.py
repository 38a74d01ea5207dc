#!/usr/bin/env python3
"""Makes the golden references of encoder-decoders: one folder for each case of the table below.

Usage: python make_seq2seq.py [CASE...]

Needs torch, transformers, tokenizers and safetensors in the versions of `versions.json` beside this file (no network).

Each case becomes a folder `<case>/`:
    config.json, model.safetensors, generation_config.json, and in some cases tokenizer.json and tokenizer_config.json
        written by transformers' `save_pretrained`
    seq2seq.safetensors
        source_ids      [batch, source] int32, uniform random ids
        input_ids       [batch, seq] int32, the decoder's: the start token, then uniform random ids
        encoded         [batch, source, d_model] f32: the encoder's last hidden states
        logits          [batch, seq, vocab] f32
        loss            [1] f32: mean cross entropy, in nats, of input_ids[:, 1:] under logits[:, :-1]
        grad.<name>     f32, the shape of the tensor <name> of model.safetensors: d loss / d parameter
        generated       [n] int32: what `generate` appends to the start token for the first source, greedily
        beams           [n] int32: the same by beam search with three beams
    attentions.safetensors, in the cases of `ATTENTIONS`, for the first source and text
        encoder_attentions, decoder_attentions, cross_attentions  [layers, heads, rows, rows they attend to] f16

All weights are random. Everything is computed in float64, but for the generated ids. A case is refused unless the logits
spread, float32 and float64 agree, every parameter has a gradient, and greedy choices are clear.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
SOURCE_LEN, SEQ_LEN, BATCH = 21, 19, 2


@dataclass(frozen=True)
class Case:
    """One tiny model. `weight_std` is the deviation of every matrix, unless `std_of` names a part of its name."""

    architecture: str
    config: dict
    seed: int
    weight_std: float
    std_of: dict = field(default_factory=dict)
    words: tuple = ()
    forced_bos: int | None = None


T5 = {
    "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 14, "layer_norm_epsilon": 1e-3,
    "n_positions": 64, "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": 96, "max_position_embeddings": 48, "encoder_layers": 3, "encoder_ffn_dim": 40,
    "encoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 32, "decoder_attention_heads": 2,
    "d_model": 24, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}
WORDS = tuple("the cat dog sees house small big of and a in runs sleeps tree river old new green hand over".split())

CASES = {
    "t5": Case(
        "T5ForConditionalGeneration", {**T5, "feed_forward_proj": "relu"}, seed=906, weight_std=0.5,
        std_of={"Attention.q": 0.15, "relative_attention_bias": 1.0, "shared": 0.8}, words=WORDS,
    ),
    "t5-gated": Case(
        "T5ForConditionalGeneration",
        {**T5, "vocab_size": 96, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, seed=910,
        weight_std=0.5, std_of={"Attention.q": 0.15, "relative_attention_bias": 1.0, "shared": 0.8, "lm_head": 0.6},
    ),
    "mt5": Case(
        "MT5ForConditionalGeneration",
        {**T5, "vocab_size": 96, "num_layers": 3, "num_decoder_layers": 1,
         "tie_word_embeddings": False}, seed=901, weight_std=0.5,
        std_of={"Attention.q": 0.15, "relative_attention_bias": 1.0, "shared": 0.8, "lm_head": 0.6},
    ),
    "umt5": Case(
        "UMT5ForConditionalGeneration",
        {**T5, "vocab_size": 96, "num_layers": 3, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu",
         "tie_word_embeddings": False}, seed=911, weight_std=0.5,
        std_of={"Attention.q": 0.15, "relative_attention_bias": 1.0, "shared": 0.8, "lm_head": 0.6},
    ),
    "bart": Case(
        "BartForConditionalGeneration", {**BART, "scale_embedding": False}, seed=908, weight_std=0.5,
        std_of={"shared": 0.2, "embed_positions": 0.6}, forced_bos=0,
    ),
    "mbart": Case(
        "MBartForConditionalGeneration", {**BART, "scale_embedding": True, "activation_function": "relu"}, seed=903,
        weight_std=0.5, std_of={"shared": 0.2, "embed_positions": 0.3},
    ),
    "marian": Case(
        "MarianMTModel",
        {**BART, "scale_embedding": True, "activation_function": "swish", "decoder_start_token_id": 95,
         "pad_token_id": 95, "eos_token_id": 0, "bad_words_ids": None}, seed=910, weight_std=0.5,
        std_of={"shared": 0.2},
    ),
    "m2m100": Case(
        "M2M100ForConditionalGeneration", {**BART, "activation_function": "relu"}, seed=902,
        weight_std=0.5, std_of={"shared": 0.2}, forced_bos=7,
    ),
}


ATTENTIONS = ("t5", "bart", "marian")


def store_attentions(folder, model_class, source, text):
    """Writes what the saved model attends to."""
    model = model_class.from_pretrained(folder, attn_implementation="eager").eval().double()
    with torch.no_grad():
        found = model(input_ids=source[:1], decoder_input_ids=text[:1], output_attentions=True, use_cache=False)
    names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    stored = {name: torch.cat(getattr(found, name)).half().contiguous() for name in names}
    for name, maps in stored.items():
        assert maps.float().std() > 0.02, f"{name} are nearly the same everywhere"
    save_file(stored, folder / "attentions.safetensors")


def make_tokenizer(words):
    """A tiny tokenizer of T5's kind: pieces with their log-probabilities, and an end of sequence behind each text."""
    pieces = sorted({piece for word in words for piece in ("▁" + word, word[:2], "▁" + word[:1])} - set(words))
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + ["▁", ".", ","]
    listed = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0}
    listed |= {piece: -2.0 - 0.25 * number for number, piece in enumerate(pieces)}
    listed |= {letter: -40.0 - number for number, letter in enumerate(letters) if letter not in listed}
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram(list(listed.items()), unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


def draw(generator, shape, std, mean=0.0):
    return torch.randn(shape, generator=generator, dtype=torch.float64) * std + mean


def draw_weights(model, case):
    generator = torch.Generator().manual_seed(case.seed)
    named = dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.named_buffers() if name == "final_logits_bias"
    }
    with torch.no_grad():
        for name, weight in named.items():
            is_norm = "norm" in name
            if name.endswith("embed_positions.weight") and case.architecture == "MarianMTModel":
                continue
            if weight.dim() == 1 or name == "final_logits_bias":
                mean, std = (1.0, 0.2) if is_norm and name.endswith("weight") else (0.0, 0.1)
            else:
                mean, std = 0.0, next((std for part, std in case.std_of.items() if part in name), case.weight_std)
            weight.copy_(draw(generator, weight.shape, std, mean).to(torch.float32))


def ids_of(case, vocab_size, start):
    generator = torch.Generator().manual_seed(case.seed + 1)
    source = torch.randint(3, vocab_size - 2, (BATCH, SOURCE_LEN), generator=generator)
    text = torch.randint(3, vocab_size - 2, (BATCH, SEQ_LEN), generator=generator)
    text[:, 0] = start
    return source, text


def run(model, source, text):
    encoded = model.get_encoder()(input_ids=source).last_hidden_state
    logits = model(input_ids=source, decoder_input_ids=text, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), text[:, 1:].flatten())
    return encoded, logits, loss


def make(name):
    case = CASES[name]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    fields = dict(case.config)
    tokenizer = make_tokenizer(case.words) if case.words else None
    if tokenizer:
        fields["vocab_size"] = len(tokenizer)
    model_class = getattr(transformers, case.architecture)
    config = model_class.config_class(**fields)
    model = model_class(config).eval()
    untied = fields.get("tie_word_embeddings") is False
    if untied:
        # As in released models: transformers ties new ones whatever their configuration says.
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(model.shared.weight.shape))
        model.config.tie_word_embeddings = False
    draw_weights(model, case)
    start = config.decoder_start_token_id
    source, text = ids_of(case, config.vocab_size, start)
    with torch.no_grad():
        single = run(model, source, text)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    double = model.double()
    encoded, logits, loss = run(double, source, text)
    loss.backward()
    spread = logits.std().item()
    far = ((single[1] - logits).abs().max() / spread).item()
    assert spread > 0.5, f"logits spread by {spread}"
    assert far < 5e-5, f"float32 and float64 differ by {far} spreads"
    gradients = {key: weight.grad for key, weight in double.named_parameters() if weight.grad is not None}
    model = model.float()
    model.load_state_dict(state)
    model.generation_config.forced_bos_token_id = case.forced_bos
    model.save_pretrained(folder)
    if untied:
        # What released files say.
        fields = json.loads((folder / "config.json").read_text())
        fields["tie_word_embeddings"] = False
        fields.pop("scale_decoder_outputs", None)
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    saved = load_file(folder / "model.safetensors")
    stored = {}
    for key in saved:
        grad = gradients.get(key)
        if grad is None and key not in ("final_logits_bias",):
            raise AssertionError(f"{key} has no gradient")
        if grad is not None:
            assert grad.norm() > 0, f"the gradient of {key} is zero"
            stored[f"grad.{key}"] = grad.float().contiguous()
    reopened = model_class.from_pretrained(folder).eval()
    with torch.no_grad():
        again = run(reopened, source, text)[1]
    assert torch.allclose(again, single[1], atol=1e-5), "reopened, the model computes something else"
    asked = {"max_new_tokens": 12, "do_sample": False}
    if tokenizer:
        tokenizer.save_pretrained(folder)
    first = source[:1]
    greedy = reopened.generate(first, **asked, output_scores=True, return_dict_in_generate=True)
    for scores in greedy.scores:
        top = scores[0].topk(2).values
        assert top[1] == -float("inf") or top[0] - top[1] > 1e-3, f"a greedy choice is unclear: {top}"
    beams = reopened.generate(first, **asked, num_beams=3, early_stopping=False)
    stored |= {
        "source_ids": source.int(), "input_ids": text.int(), "encoded": encoded.detach().float().contiguous(),
        "logits": logits.detach().float().contiguous(), "loss": loss.detach().float()[None],
        "generated": greedy.sequences[0, 1:].int(), "beams": beams[0, 1:].int(),
    }
    save_file(stored, folder / "seq2seq.safetensors")
    if name in ATTENTIONS:
        store_attentions(folder, model_class, source, text)
    if tokenizer:
        prompt = "the small cat sees a big green tree"
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        written = reopened.generate(ids, **asked)[0]
        best = reopened.generate(ids, **asked, num_beams=3, early_stopping=False)[0]
        expected = {
            "prompt": prompt, "source_ids": ids[0].tolist(), "generated": written[1:].tolist(),
            "text": tokenizer.decode(written, skip_special_tokens=True), "beams": best[1:].tolist(),
        }
        (folder / "expected.json").write_text(json.dumps(expected, indent=2, ensure_ascii=False) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, logits std {spread:.2f}, loss {loss.item():.3f}, float32 {far:.1e}, "
          f"greedy {greedy.sequences[0, 1:].tolist()}, beams {beams[0, 1:].tolist()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Makes the golden references of encoder-decoders.")
    parser.add_argument("case", nargs="*", help="cases to make (default: all)")
    wanted = parser.parse_args().case or list(CASES)
    torch.set_num_threads(2)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in wanted:
        try:
            make(name)
        except AssertionError as error:
            sys.exit(f"{name}: {error}")


if __name__ == "__main__":
    main()
