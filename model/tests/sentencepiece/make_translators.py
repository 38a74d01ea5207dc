"""Makes small tokenizers of translators, `marian/` and `m2m100/`, with `ids.json`: texts, the ids that transformers has for them,
and what it makes of these ids; and `fairseq.json`, the same of the classes that read the pieces of `marian/source.spm` without another
file.

Needs sentencepiece, protobuf and transformers.
"""

import io
import json
import tempfile
from pathlib import Path

import sentencepiece
import transformers
from make_models import texts
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

HERE = Path(__file__).resolve().parent


def train(lines, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, **options
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return model.getvalue(), [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


# Marian's languages, at the start of a text and elsewhere.
LANGUAGES = [
    ">>de<< The cat sat.", "The >>de<< cat.", " >>de<< The cat.", ">>xx<< The cat.", ">>de<<The", ">>de<<", ">> a << b", "a >> b", ">>de",
    ">>de<< >>de<< a",
]
FAIRSEQ = {"XLMRobertaTokenizer": {}, "MBartTokenizer": {"src_lang": "de_DE"}, "MBart50Tokenizer": {"src_lang": "sl_SI"}}


def cases(tokenizer, texts):
    for text in texts:
        ids = tokenizer(text).input_ids
        yield {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)}


def write(name, files, tokenizer_class, config, texts):
    target = HERE / name
    target.mkdir(exist_ok=True)
    for file, contents in files.items():
        data = contents if isinstance(contents, bytes) else (json.dumps(contents, ensure_ascii=False) + "\n").encode()
        (target / file).write_bytes(data)
    (target / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    write_ids(name, tokenizer_class, texts)


def write_ids(name, tokenizer_class, texts):
    tokenizer = tokenizer_class.from_pretrained(HERE / name)
    found = list(cases(tokenizer, texts))
    (HERE / name / "ids.json").write_text(json.dumps(found, ensure_ascii=True, indent=0) + "\n")
    print(name, len(tokenizer), found[2])


def write_fairseq(texts):
    found = {}
    for name, config in FAIRSEQ.items():
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "sentencepiece.bpe.model").write_bytes((HERE / "marian/source.spm").read_bytes())
            config = {"tokenizer_class": name, **config}
            (Path(scratch) / "tokenizer_config.json").write_text(json.dumps(config))
            tokenizer = getattr(transformers, name).from_pretrained(scratch)
            found[name] = {"config": config, "cases": list(cases(tokenizer, [*texts, "a <mask> b", "sl_SI x"]))}
    (HERE / "fairseq.json").write_text(json.dumps(found, ensure_ascii=True, indent=0) + "\n")


def main():
    root = HERE.parents[2]
    lines = [line for name in ("ARCHITECTURE.md", "CONTRIBUTING.md") for line in (root / name).read_text().splitlines() if line.strip()]
    german = ["Das Haus ist klein.", "Die Katze schläft über dem Fluss.", "Äpfel und Öl"] * 40
    # The library `tokenizers` normalizes a character with its accents as one.
    given = [text for text in texts(80) if "<" not in text and "\u0301" not in text]
    source, pieces = train(lines, vocab_size=420, model_type="unigram")
    target, others = train(
        german, vocab_size=60, model_type="unigram", hard_vocab_limit=False, normalization_rule_name="identity"
    )
    # As in released models: another order, pieces of both languages, and not all of the source's.
    vocab = ["</s>", "<unk>", ">>de<<"] + sorted(set(pieces[3:400]) | set(others[3:]), key=lambda piece: piece[::-1]) + ["<pad>"]
    numbers = {piece: number for number, piece in enumerate(vocab)}
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu"}
    files = {"source.spm": source, "target.spm": target, "vocab.json": numbers}
    write("marian", files, transformers.MarianTokenizer, config, given + ["Äpfel 日本語 x", *LANGUAGES])
    write_fairseq(given[:40])
    model, pieces = train(lines, vocab_size=420, model_type="bpe", normalization_rule_name="identity")
    vocab = ["<s>", "<pad>", "</s>", "<unk>"] + sorted(pieces[3:], key=len)
    numbers = {piece: number for number, piece in enumerate(vocab)}
    # As in released models.
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    config = {
        "tokenizer_class": "M2M100Tokenizer", "src_lang": "fr", "tgt_lang": "en", "additional_special_tokens": languages,
    }
    files = {"sentencepiece.bpe.model": model, "vocab.json": numbers}
    write("m2m100", files, transformers.M2M100Tokenizer, config, given + ["__en__ The cat sat.", "Äpfel 日本語 x"])


if __name__ == "__main__":
    main()
