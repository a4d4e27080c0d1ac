"""Measure the CPU time of ``import lancekeep``, of ``lancekeep --help``, and of commands that people type.

    python benchmarks/startup.py [--runs 15] [--tables 1000000] [--rows 10000000]

Every run is a process of its own. Each figure is the least CPU time, user plus system, of all runs: other load on the
machine can only add to it. The first line is the bare interpreter, which the other figures include. Commands read a
catalog of ten tables, a catalog of as many tables as ``--tables`` says, and a table of as many rows as ``--rows`` says.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pyarrow as pa
from catalog import seed
from results import record

import lancekeep

PROGRAMS = {
    "python": ["-c", "pass"],
    "import lancekeep": ["-c", "import lancekeep"],
    "lancekeep --help": ["-m", "lancekeep", "--help"],
    "lancekeep.connect": ["-c", "import lancekeep; lancekeep.connect"],
    "lancekeep fsck --help": ["-m", "lancekeep", "fsck", "--help"],
}
LIMITS = {
    "import lancekeep": 60,
    "lancekeep --help": 150,
    "lancekeep ls": 300,
    "lancekeep ls, many tables": 300,
    "lancekeep head, many rows": 600,
}


@contextmanager
def commands(tables: int, rows: int) -> Iterator[dict[str, list[str]]]:
    """Yield the arguments of commands by name."""
    with TemporaryDirectory() as directory:
        few, many = f"{directory}/few", f"{directory}/many"
        catalog = lancekeep.connect(few)
        for number in range(10):
            catalog.write(f"t{number}", pa.table({"a": [number]}))
        schema = pa.schema({"a": pa.int64()})
        batches = (
            pa.record_batch([pa.array(range(start, min(start + 100_000, rows)), pa.int64())], schema=schema)
            for start in range(0, rows, 100_000)
        )
        catalog.write("rows", pa.RecordBatchReader.from_batches(schema, batches))
        catalog.close()
        seed({"root": many}, tables)
        yield {
            "lancekeep ls": ["-m", "lancekeep", "ls", few],
            "lancekeep ls, many tables": ["-m", "lancekeep", "ls", many, "ns1"],
            "lancekeep head, many rows": ["-m", "lancekeep", "head", few, "rows"],
        }


def cpu_milliseconds(arguments: list[str]) -> float:
    """Run the interpreter once and return its CPU time."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python {' '.join(arguments)} failed with exit code {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--tables", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    print(f"CPU time, least of {given.runs} runs; {given.tables:,} tables, {given.rows:,} rows\n")
    with commands(given.tables, given.rows) as reading:
        for name, arguments in (PROGRAMS | reading).items():
            least = min(cpu_milliseconds(arguments) for _ in range(given.runs))
            limit = f"  (at most {LIMITS[name]} ms)" if name in LIMITS else ""
            print(f"{name:<28}{least:6.0f} ms{limit}", flush=True)
            record("startup", name, "ms CPU", least)


if __name__ == "__main__":
    main()
