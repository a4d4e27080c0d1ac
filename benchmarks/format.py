"""Measure the codecs of the table format beside upb alone and beside pylance.

    python benchmarks/format.py [--runs 5]

The manifests have 10, 1,000 and 100,000 fragments. upb decodes the manifest message and the transaction, and makes no
values. `lance.dataset` opens the same table without a cache; it also lists the directory. The index from row id to
address has 10 million rows in 100 fragments. Each figure is the least wall time of all runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import lance
import numpy as np
import pyarrow as pa
from results import record

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.format.manifest import message_at, section_at
from lancekeep.format.messages import MESSAGES, parse
from lancekeep.format.row_ids import RowIdIndex, decode_row_ids, encode_row_ids
from lancekeep.format.table_version import TableVersion

ROWS, FRAGMENTS = 10_000_000, 100


def least(runs: int, function: Callable[[], Any]) -> float:
    """Return the least time of a function in milliseconds."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


def with_upb(content: bytes) -> None:
    """Decode the messages of a manifest file, without values."""
    manifest = parse(MESSAGES["Manifest"], message_at(content))
    parse(MESSAGES["Transaction"], section_at(content, manifest.transaction_section))


def manifests(runs: int) -> None:
    """Measure manifests of several sizes."""
    print(
        f"{'fragments':>10}{'values':>10}{'upb':>10}{'lance':>10}{'values/upb':>12}{'lance/values':>14}{'inspect':>10}"
    )
    with tempfile.TemporaryDirectory() as directory:
        catalog = lancekeep.connect(directory)
        catalog.write("t", pa.table({"a": [1, 2]}))
        uri = services_of(catalog).uri(catalog.find_table("t")).removeprefix("file://")
        path = Path(uri, catalog.inspect("t")["file"])
        version = TableVersion.parse(path.read_bytes(), "m")
        [fragment] = version.manifest.fragments
        for count in (10, 1_000, 100_000):
            many = [attrs.evolve(fragment, id=number) for number in range(count)]
            changed = attrs.evolve(version.manifest, fragments=many, max_fragment_id=count - 1)
            content = attrs.evolve(version, manifest=changed).serialize()
            path.write_bytes(content)
            repeats = max(runs, 100_000 // count)  # the small ones take so little that most runs are disturbed
            values = least(repeats, lambda content=content: TableVersion.parse(content, "m"))  # type: ignore[misc]
            upb = least(repeats, lambda content=content: with_upb(content))  # type: ignore[misc]
            native = least(runs, lambda: lance.dataset(uri, metadata_cache_size_bytes=0))
            file = str(path.relative_to(uri))
            inspected = least(1, lambda file=file: catalog.inspect("t", file=file))  # type: ignore[misc]
            print(
                f"{count:>10,}{values:>10.2f}{upb:>10.2f}{native:>10.2f}{values / upb:>12.2f}{native / values:>14.1f}"
                f"{inspected:>10.1f}"
            )
            record("format", f"decode a manifest of {count:,} fragments", "ms", values, native, "lance.dataset")


def row_ids(runs: int) -> None:
    """Measure the index from row id to address."""
    size = ROWS // FRAGMENTS
    random = np.random.default_rng(1)
    ordered = np.arange(ROWS, dtype=np.uint64)
    holes = np.sort(random.choice(np.arange(ROWS * 11 // 10, dtype=np.uint64), ROWS, replace=False))
    for name, ids in (("ranges", ordered), ("ranges with holes", holes), ("shuffled", random.permutation(ordered))):
        encoded = [encode_row_ids(ids[at : at + size]) for at in range(0, ROWS, size)]

        def build(encoded: list[bytes] = encoded) -> None:
            RowIdIndex.build((number, decode_row_ids(each, size, "f"), None) for number, each in enumerate(encoded))

        took = least(runs, build)
        print(f"index of {ROWS:,} row ids, {name}: {took:.0f} ms")
        record("format", f"index of {ROWS:,} row ids, {name}", "ms", took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print(f"milliseconds, least of {runs} runs\n")
    manifests(runs)
    print()
    row_ids(min(runs, 3))


if __name__ == "__main__":
    main()
