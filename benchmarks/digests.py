"""The processor time of an append with and without the property `lancekeep.digests`.

    python benchmarks/digests.py [--appends 25] [--blocks 150] [--rows 10] [--stores conditional-put sqlite s3]

Two tables of one catalog receive the same appends in turn, in blocks; the commits of one of the two record digests. The
time is the time of the whole process, with the thread that writes the records once a second. The times are means
without the slowest tenth of the blocks. ``s3`` is a moto server in a process of its own; other files lie in memory, if
``/dev/shm`` exists.

Times belong to the machine. The ratio hardly does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from results import record
from s3 import bucket, s3_options, s3_server

import lancekeep

MEMORY = Path("/dev/shm")
TABLES = {"without": "false", "with": "true"}


@contextmanager
def opened(store: str) -> Iterator[lancekeep.Catalog]:
    if store == "s3":
        with s3_server() as endpoint:
            root, options = f"s3://{bucket(endpoint)}/lake", s3_options(endpoint)
            with lancekeep.connect(root, commit_store="conditional-put://", storage_options=options) as catalog:
                yield catalog
        return
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None) as directory:
        url = f"sqlite:///{directory}/rows.db" if store == "sqlite" else f"{store}://"
        with lancekeep.connect(str(Path(directory) / "lake"), commit_store=url) as catalog:
            yield catalog


def block(catalog: lancekeep.Catalog, table: str, rows: pa.Table, appends: int) -> float:
    """Return the seconds of processor time of each append of a block."""
    began = time.process_time()
    for _ in range(appends):
        catalog.write(table, rows, "append")
    return (time.process_time() - began) / appends


def measure(store: str, rows: pa.Table, appends: int, blocks: int) -> None:
    with opened(store) as catalog:
        names = {kind: f"{kind}_{uuid4().hex[:8]}" for kind in TABLES}
        for kind, name in names.items():
            catalog.write(name, rows, properties={"lancekeep.digests": TABLES[kind]})
            block(catalog, name, rows, appends)
        found: dict[str, list[float]] = {kind: [] for kind in TABLES}
        for at in range(blocks):
            for kind in TABLES if at % 2 else reversed(TABLES):
                found[kind].append(block(catalog, names[kind], rows, appends))
        [table] = lancekeep.verify(catalog, [names["with"]]).tables
        assert not table.undigested
        ordinary, recorded = (mean_of_most(found[kind]) * 1e6 for kind in TABLES)
        print(
            f"{store}: {ordinary:,.0f} µs without, {recorded:,.0f} µs with digests, {recorded / ordinary - 1:+.1%} "
            f"({table.fragments:,} fragments at the end)"
        )
        record("digests", store, "µs CPU", recorded, ordinary, "without digests")


def mean_of_most(times: list[float]) -> float:
    return statistics.mean(sorted(times)[: -(len(times) // 10) or None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=25, help="the appends of a block")
    parser.add_argument("--blocks", type=int, default=150, help="the blocks of each table")
    parser.add_argument("--rows", type=int, default=10, help="the rows of an append")
    parser.add_argument("--stores", nargs="+", default=["conditional-put", "sqlite", "s3"])
    arguments = parser.parse_args()
    numbers = range(arguments.rows)
    rows = pa.table({"number": numbers, "text": [f"row {number}" for number in numbers]})
    for store in arguments.stores:
        measure(store, rows, arguments.appends, arguments.blocks)


if __name__ == "__main__":
    main()
