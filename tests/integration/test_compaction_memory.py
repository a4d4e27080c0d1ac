"""Compactions of large rows hold a few batches, however large a fragment is, and however many there are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lance
import pyarrow as pa

import lancekeep
from lancekeep.adapters.lance.batches import batch_rows
from lancekeep.domain.manifest_entry import CLUSTER_BY

MB = 1 << 20
FRAGMENT = 160
"""The rows of a fragment, which have 1 MB each."""

COLUMNS = pa.schema([("k", pa.int64()), ("t", pa.string())])

COMPACT = """
import sys
from pathlib import Path

import lancekeep
from lancekeep.adapters.lance import sorted_rewrite

def peak():
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024

sorted_rewrite.SORTED_BYTES = 16 << 20
catalog = lancekeep.connect(sys.argv[1])
catalog.open(sys.argv[2])
before = peak()
catalog.upkeep.compact(sys.argv[2])
print(peak() - before)
"""


READ = COMPACT.replace(
    "catalog.upkeep.compact(sys.argv[2])", "sum(each.num_rows for each in catalog.scan(sys.argv[2]).to_batches())"
)


def memory(script: str, root: Path, table: str) -> int:
    """Return the bytes that a process of its own needs for a table, besides those after it has opened the table."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(root), table],
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def rows(first: int) -> Iterator[pa.RecordBatch]:
    noise = os.urandom(MB // 2).hex()
    for number in range(first, first + FRAGMENT):
        text = f"{number:8}{noise[8 * number :]}{noise[: 8 * number - 8]}"
        yield pa.record_batch([pa.array([-number], pa.int64()), pa.array([text])], schema=COLUMNS)


def test_rows_of_a_megabyte_are_rewritten_in_few_batches(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    for first in (1, 1 + FRAGMENT):
        data = pa.RecordBatchReader.from_batches(COLUMNS, rows(first))
        catalog.write("t", data, "create" if first == 1 else "append")
    catalog.write("t", pa.table({"k": [0], "t": [""]}, schema=COLUMNS), "append")
    catalog.clone("t", "clustered")
    catalog.alter_table("clustered", {CLUSTER_BY: "k"})
    for table in ("t", "clustered"):
        assert memory(COMPACT, tmp_path, table) < 1.6 * FRAGMENT * MB  # the table has twice a fragment
        [fragment] = catalog.open(table).get_fragments()
        found = fragment.to_table(columns=["k"])["k"].to_pylist()
        assert sorted(found) == list(range(-2 * FRAGMENT, 1))
        runs = 1 + sum(one > next_one for one, next_one in pairwise(found))
        assert runs in (range(10, 30) if table == "clustered" else range(300, 322))  # of 16 MB


def test_rows_of_a_megabyte_that_are_alone_in_their_fragments_do_not_stay_in_memory(tmp_path: Path) -> None:
    """The engine keeps such a row as metadata of its file."""
    data = pa.RecordBatchReader.from_batches(COLUMNS, (row for at in range(3) for row in rows(1 + at * FRAGMENT)))
    lance.write_dataset(data, tmp_path / "t.lance", max_rows_per_file=1)
    for script in (READ, COMPACT):
        assert memory(script, tmp_path, "t") < 2 * FRAGMENT * MB  # the table has three times as much
    catalog = lancekeep.connect(str(tmp_path))
    assert len(catalog.open("t").get_fragments()) == 1
    found = catalog.open("t").to_table(columns=["k"])["k"].to_pylist()
    assert sorted(found) == list(range(-3 * FRAGMENT, 0))


def test_batches_have_rows_of_two_megabytes(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path))

    def size(*values: bytes) -> int:
        catalog.write("t", pa.table({"v": values}), "append" if catalog.list_tables("") else "create")
        return batch_rows(each.metadata for each in catalog.open("t").get_fragments())

    assert batch_rows([]) == 8192
    assert size(*[b"small"] * 20_000) == 8192
    assert size(os.urandom(4 * MB)) == 8192  # a batch does not reach into the next fragment
    assert size(*(os.urandom(1000) for _ in range(3000))) in range(2000, 2100)
    assert size(*(os.urandom(500_000) for _ in range(10))) == 4
    assert size(*(os.urandom(3 * MB) for _ in range(2))) == 1
