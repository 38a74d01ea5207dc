#!/usr/bin/env python3
"""Gives two builds the small inputs of ../faults-2026-11.md and prints, row by row, what each does with them.

    python docs/lab/faults/compare.py OLD NEW [--only TEXT] [--markdown]

OLD and NEW are folders with `hearth` and `hearth-train`. For the tree before the faults were mended:

    git worktree add /tmp/before 32d616b && cd /tmp/before && cargo build --release --bins

Needs the packages torch, transformers, numpy, safetensors, jsonschema, pyarrow, zstandard and gguf. Takes some minutes.
Ends with status 1 if NEW does something wrong.
"""

import argparse
import pathlib
import sys
import tempfile
import traceback

import builds
import call_rows  # noqa: F401
import data_rows  # noqa: F401
import model_rows  # noqa: F401
import run_rows  # noqa: F401
import schema_rows  # noqa: F401
import server_rows  # noqa: F401


def observed(row, build):
    try:
        return row.observe(build)
    except builds.NoStart as error:
        return False, f"does not start: {error}"
    except Exception as error:  # What a build answers may be anything.
        traceback.print_exc()
        return False, f"{type(error).__name__}: {builds.short(error)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--markdown", action="store_true", help="rows of a table")
    options = parser.parse_args()
    n_wrong, n_right_before = 0, 0
    with tempfile.TemporaryDirectory() as work:
        both = [builds.Build(folder, pathlib.Path(work) / name) for name, folder in [("old", options.old), ("new", options.new)]]
        for row in builds.ROWS:
            if options.only not in f"{row.section} {row.kind}":
                continue
            (old_is_right, old), (new_is_right, new) = [observed(row, build) for build in both]
            n_wrong += not new_is_right
            n_right_before += old_is_right
            if options.markdown:
                print(f"| {row.kind} | {'right: ' if old_is_right else ''}{old} | {'' if new_is_right else 'WRONG: '}{new} |".replace("\n", " "), flush=True)
            else:
                print(f"{row.section} {row.kind}\n    old {'right' if old_is_right else 'wrong'}: {old}\n    new {'right' if new_is_right else 'WRONG'}: {new}", flush=True)
    print(f"{n_wrong} rows wrong in the new build, {n_right_before} right in the old one", file=sys.stderr)
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
