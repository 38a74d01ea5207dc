"""Reads a run's TensorBoard events with `tensorboard` and its metrics with `datasets`, and compares the two.

Usage: python check_run.py RUN
"""

import json
import pathlib
import sys

import datasets
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = pathlib.Path(sys.argv[1])
records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()

tags = {
    "train/loss": "loss",
    "train/epoch": "epoch",
    "train/tokens": "tokens",
    "train/lr": "lr",
    "train/grad_norm": "grad_norm",
    "speed/tok_per_sec": "tok_per_sec",
    "val/loss": "val_loss",
    "val/bits_per_byte": "val_bpb",
}
assert set(events.Tags()["scalars"]) == set(tags), events.Tags()
for tag, key in tags.items():
    found = [(event.step, event.value) for event in events.Scalars(tag)]
    expected = [(record["step"], record[key]) for record in records if key in record]
    assert len(found) == len(expected) > 0, f"{tag}: {len(found)} events, expected {len(expected)}"
    for (step, value), (expected_step, expected_value) in zip(found, expected):
        assert step == expected_step and abs(value - expected_value) <= 1e-6 * abs(expected_value), (tag, step, value)

[tag] = events.Tags()["tensors"]
samples = [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)]
assert len(samples) == sum("sample" in record for record in records) > 0, samples

table = datasets.load_dataset("json", data_files=str(run / "metrics.jsonl"), split="train")
assert table["step"] == [record["step"] for record in records]
print(f"{len(records)} records: tensorboard and datasets read them")
