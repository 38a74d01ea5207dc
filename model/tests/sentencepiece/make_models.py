"""Makes small SentencePiece models, `<name>/tokenizer.model`, and for each `<name>/ids.json`: texts, and the ids that
transformers has for them (`bpe`, as LlamaTokenizer), or the library `sentencepiece`. The two differ where a text begins with
a space: the library puts another one in front.

Needs sentencepiece, protobuf and transformers.
"""

import io
import json
import random
import tempfile
from pathlib import Path

import sentencepiece
import transformers

HERE = Path(__file__).resolve().parent
PIECES = ["the ", " the", "  ", "   ", "ing", "and", "\n", "\t", "é", "ß", "猫", "😀", "👩‍👩‍👧", "\u0301", "1", "23", "456", ".", ",",
          "'s", "\u00a0", "hello", "World", " a", "aa", "<", ">", "<s", "z", "Q", "한국", "ﬁ", "Å", "½", "ｱ"]
COMMON = {"vocab_size": 500, "user_defined_symbols": ["<user>"], "num_threads": 1, "minloglevel": 2}
MODELS = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False},
    "bpe-no-prefix": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                      "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "unigram": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity",
                "remove_extra_whitespaces": False},
    "unigram-trimmed": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity"},
}


def texts(n: int) -> list[str]:
    rng = random.Random(7)
    fixed = ["", "a", "The cat sat on the mat.", "naïve café", "3.14159 and 1,000", "x\n\ny", "aaaaaaaaaa", "a <user> b",
             "  two  spaces ", "ﬁve ½ Å ｱ"]
    return fixed + ["".join(rng.choice(PIECES) for _ in range(rng.randint(1, 16))) for _ in range(n - len(fixed))]


def main() -> None:
    corpus = "\n".join((HERE.parents[2] / name).read_text() for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))
    lines = [line for line in corpus.splitlines() if line.strip()]
    for name, options in MODELS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **COMMON, **options)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        cases = [{"text": text, "ids": processor.encode(text)} for text in texts(80)]
        target = HERE / name
        target.mkdir(exist_ok=True)
        (target / "tokenizer.model").write_bytes(model.getvalue())
        if name == "bpe":
            with tempfile.TemporaryDirectory() as scratch:
                (Path(scratch) / "tokenizer.model").write_bytes(model.getvalue())
                (Path(scratch) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
                tokenizer = transformers.AutoTokenizer.from_pretrained(scratch)
                of_library = [case["ids"] for case in cases]
                for case in cases:
                    case["ids"] = tokenizer.encode(case["text"], add_special_tokens=False)
                same = sum(case["ids"] == ids for case, ids in zip(cases, of_library))
                print(f"{name}: the library has the same ids for {same} of {len(cases)} texts")
        (target / "ids.json").write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
