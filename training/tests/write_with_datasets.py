"""Writes documents with `datasets` and `pyarrow`, for `hearth-train prepare` to read.

Usage: python write_with_datasets.py DIR DOCUMENT...
Writes the documents, a third each, as Parquet by `datasets`, as JSON lines by `datasets`, and as Parquet by `pyarrow` with
zstd, several row groups and a column of numbers before the text.
"""

import pathlib
import sys

import datasets
import pyarrow
import pyarrow.parquet

out = pathlib.Path(sys.argv[1])
out.mkdir()
texts = []
for name in sys.argv[2:]:
    with open(name, encoding="utf-8", newline="") as file:
        texts.append(file.read())
parts = [texts[start::3] for start in range(3)]
datasets.Dataset.from_dict({"text": parts[0]}).to_parquet(out / "0.parquet")
datasets.Dataset.from_dict({"text": parts[1]}).to_json(out / "1.jsonl")
table = pyarrow.table({"id": list(range(len(parts[2]))), "text": parts[2]})
pyarrow.parquet.write_table(table, out / "2.parquet", compression="zstd", row_group_size=2)
print(f"{len(texts)} documents written with datasets {datasets.__version__} and pyarrow {pyarrow.__version__}")
