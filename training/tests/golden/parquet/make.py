"""Writes small Parquet files in every form that Hearth reads, all with the same rows, and some that it refuses.

Run from this folder with pyarrow installed: python make.py
Column `text` of row n is `text_of(n)`, and of every seventh row none where the column may be without values.
"""

import pyarrow
import pyarrow.parquet as parquet

N_ROWS = 60


def text_of(row):
    return f"row {row % 20} \u00e9\u65e5 " * (row % 5) + ("\n" if row % 3 else "")


def table(optional):
    texts = [None if optional and row % 7 == 0 else text_of(row) for row in range(N_ROWS)]
    field = pyarrow.field("text", pyarrow.string(), nullable=optional)
    nested = pyarrow.field("meta", pyarrow.struct([("text", pyarrow.int64()), ("tags", pyarrow.list_(pyarrow.string()))]))
    rows = {
        "meta": [{"text": row, "tags": ["a", "b"]} for row in range(N_ROWS)],
        "id": list(range(N_ROWS)),
        "text": texts,
    }
    schema = pyarrow.schema([nested, pyarrow.field("id", pyarrow.int64()), field])
    return pyarrow.table(rows, schema=schema)


def write(name, optional=True, **options):
    settings = {"row_group_size": 25, "data_page_size": 200, "write_batch_size": 8, **options}
    parquet.write_table(table(optional), f"{name}.parquet", **settings)


write("snappy")
write("snappy-required", optional=False, use_dictionary=False)
write("gzip-v2", compression="gzip", data_page_version="2.0")
write("zstd-plain-v2", compression="zstd", use_dictionary=False, data_page_version="2.0")
write("none-checksums", compression="none", write_page_checksum=True)
for encoding in ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]:
    write(encoding.lower().replace("_", "-"), use_dictionary=False, column_encoding={"text": encoding})
write("lz4", compression="lz4")
write("brotli", compression="brotli")


def conversations(path, **options):
    """Row n has n % 4 messages; every fifth row has none at all."""
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), ("name", pyarrow.string())])
    rows = [
        None if row % 5 == 4 else
        [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{row}.{n}" if n != 2 else None, "name": None} for n in range(row % 4)]
        for row in range(N_ROWS)
    ]
    columns = {"messages": pyarrow.array(rows, pyarrow.list_(message)), "id": list(range(N_ROWS))}
    settings = {"row_group_size": 25, "data_page_size": 100, "write_batch_size": 8, **options}
    parquet.write_table(pyarrow.table(columns), f"{path}.parquet", **settings)


def texts(path, **options):
    """Row n has n % 3 texts; every fourth row has none at all, and the second text of every fifth is missing."""
    rows = [
        None if row % 4 == 3 else [f"{row}.{n}" if n != 1 or row % 5 else None for n in range(row % 3)]
        for row in range(N_ROWS)
    ]
    columns = {"messages": pyarrow.array(rows, pyarrow.list_(pyarrow.string())), "prompt": [[row] for row in range(N_ROWS)]}
    parquet.write_table(pyarrow.table(columns), f"{path}.parquet", row_group_size=25, data_page_size=100, **options)


def kept(path):
    """The first row is a text, the second a text to keep; both columns are in every row."""
    rows = {"text": ["What is it?", None], "keep": [None, "It is a lamp."]}
    parquet.write_table(pyarrow.table(rows), f"{path}.parquet")


def nulls(path):
    """Columns that are null in all rows, which pyarrow gives the null type."""
    rows = [{"text": "What is it?", "keep": None, "tools": None}, {"text": "It is a lamp.", "keep": None, "tools": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), f"{path}.parquet")


def weighted(path, weights):
    """Messages that say whether they are trained."""
    messages = [{"role": "user", "content": "Hi", "weight": weights[0]}, {"role": "assistant", "content": "Ho", "weight": weights[1]}]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": messages}]), f"{path}.parquet")


weighted("weights", [None, 0])
weighted("null-weights", [None, None])
kept("keep")
nulls("nulls")
texts("texts")
columns = {"messages": [{"role": ["user"], "content": ["Hi"]}]}
parquet.write_table(pyarrow.table(columns), "object-of-lists.parquet")
conversations("messages")
conversations("messages-v2", data_page_version="2.0", compression="zstd", use_dictionary=False)


def flagged():
    """Flags that say what is trained: of a message by ms-swift's name, and of a completion in KTO's layout."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "loss": False}]
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), ("loss", pyarrow.bool_())])
    parquet.write_table(pyarrow.table({"messages": pyarrow.array([messages], pyarrow.list_(message))}), "loss.parquet")
    kto = {"prompt": ["Hi"], "completion": ["Ho"], "label": [False]}
    parquet.write_table(pyarrow.table(kto), "kto.parquet")


flagged()
