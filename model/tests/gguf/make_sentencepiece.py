#!/usr/bin/env python3
"""Makes sentencepiece.gguf, a small SentencePiece tokenizer without a model, and sentencepiece.json: texts, and the ids
that the `sentencepiece` library has for them.

Usage:
    LLAMA_CPP=<checkout> python make_sentencepiece.py [N]      N texts in place of 150

Needs sentencepiece and what llama.cpp's converter needs.
"""

import io
import json
import os
import random
import sys
import tempfile
from pathlib import Path

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf
import sentencepiece
from conversion.base import TextModel

HERE = Path(__file__).resolve().parent
PIECES = ["the ", " the", "  ", "   ", "ing", "and", "\n", "\t", "é", "ß", "猫", "😀", "👩‍👩‍👧", "\u0301", "1", "23", "456", ".", ",",
          "'s", "\u00a0", "\u200b", "▁", "hello", "World", " a", "aa", "<", ">", "<s", "</s>"[:3], "z", "Q", "한국", "\r\n", "\x00", "�"]


def texts(n: int) -> list[str]:
    rng = random.Random(7)
    fixed = ["", " ", "  ", "a", " a", "a ", "The cat sat on the mat.", "naïve café", "3.14159 and 1,000", "\n\nx\n", "aaaaaaaaaa"]
    return fixed + ["".join(rng.choice(PIECES) for _ in range(rng.randint(1, 20))) for _ in range(n - len(fixed))]


def main() -> None:
    corpus = (HERE.parents[2] / "ARCHITECTURE.md").read_text() + (HERE.parents[2] / "CONTRIBUTING.md").read_text()
    model = io.BytesIO()
    lines = [line for line in corpus.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=700, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["<user>"], num_threads=1,
        minloglevel=2)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "tokenizer.model").write_bytes(model.getvalue())
        writer = gguf.GGUFWriter(HERE / "sentencepiece.gguf", "llama")
        reader = type("Reader", (), {"dir_model": Path(scratch), "find_hparam": lambda *_, **__: 700})()
        tokens, scores, kinds = TextModel._create_vocab_sentencepiece(reader)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    cases = [{"text": text, "ids": processor.encode(text)} for text in texts(int(sys.argv[1]) if len(sys.argv) > 1 else 150)]
    (HERE / "sentencepiece.json").write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
