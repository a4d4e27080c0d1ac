"""Measure the CPU time of ``import lancekeep``, of ``lancekeep --help``, of commands that people type, and of pages.

    python benchmarks/startup.py [--runs 15] [--tables 1000000] [--rows 10000000]

Every run is a process of its own. Each figure is the least CPU time, user plus system, of all runs: other load on the
machine can only add to it. The first line is the bare interpreter, which the other figures include. Commands read a
catalog of ten tables, a catalog of as many tables as ``--tables`` says, and a table of as many rows as ``--rows`` says.
Pages show the same catalog; their figures are the CPU time of its process during one request.
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
    "page, first": 100,
    "page, later": 50,
    "search, first": 50,
    "search, later": 50,
}
PAGES = """
import sys, time
import lancekeep
from starlette.testclient import TestClient
from lancekeep.entrypoints.page.app import Page

browser = TestClient(Page(lancekeep.connect(sys.argv[1])))
for name, address in (
    ("page, first", "/?namespace=ns1"),
    ("page, later", "/?namespace=ns1"),
    ("search, first", "/search?q=t00009"),
    ("search, later", "/search?q=t0000"),
):
    begin = time.process_time()
    assert browser.get(address).status_code == 200
    print(name, 1000 * (time.process_time() - begin), sep="\t")
"""
"""Prints the milliseconds of each request."""


@contextmanager
def commands(tables: int, rows: int) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the root of the catalog of many tables, and the arguments of commands by name."""
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
        yield (
            many,
            {
                "lancekeep ls": ["-m", "lancekeep", "ls", few],
                "lancekeep ls, many tables": ["-m", "lancekeep", "ls", many, "ns1"],
                "lancekeep head, many rows": ["-m", "lancekeep", "head", few, "rows"],
            },
        )


def cpu_milliseconds(arguments: list[str]) -> float:
    """Run the interpreter once and return its CPU time."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python {' '.join(arguments)} failed with exit code {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


def page_milliseconds(root: str) -> dict[str, float]:
    """Return the CPU time of requests to the page in a new process, by name."""
    done = subprocess.run([sys.executable, "-c", PAGES, root], capture_output=True, text=True, check=True)
    return {name: float(value) for name, _, value in (line.partition("\t") for line in done.stdout.splitlines())}


def show(name: str, least: float) -> None:
    """Print and keep a figure."""
    limit = f"  (at most {LIMITS[name]} ms)" if name in LIMITS else ""
    print(f"{name:<28}{least:6.0f} ms{limit}", flush=True)
    record("startup", name, "ms CPU", least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--tables", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    print(f"CPU time, least of {given.runs} runs; {given.tables:,} tables, {given.rows:,} rows\n")
    with commands(given.tables, given.rows) as (many, reading):
        for name, arguments in (PROGRAMS | reading).items():
            show(name, min(cpu_milliseconds(arguments) for _ in range(given.runs)))
        pages = [page_milliseconds(many) for _ in range(given.runs)]
        for name in pages[0]:
            show(name, min(page[name] for page in pages))


if __name__ == "__main__":
    main()
