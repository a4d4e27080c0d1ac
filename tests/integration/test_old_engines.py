"""Older engines that hold tables open while Lancekeep commits, and then commit through their stale handles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from engines import ALL, Engine

import lancekeep
from lancekeep.format.table_version import TableVersion, parse_transaction

FIRST = range(6)


def rows(*ids: int) -> pa.Table:
    return pa.table({"i": pa.array(ids, pa.int64()), "s": [f"text {number}" for number in ids]})


def stored(uri: str) -> list[int]:
    """Return what plain pylance reads."""
    found: list[int] = lance.dataset(uri).to_table()["i"].to_pylist()
    return sorted(found)


@pytest.fixture(params=ALL)
def engine(request: pytest.FixtureRequest, engine_of: Callable[[str], Engine]) -> Engine:
    return engine_of(request.param)


@pytest.fixture(params=["none", "conditional-put", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.Catalog:
    stores = {"none": None, "conditional-put": "conditional-put://", "sqlite": f"sqlite://{tmp_path}/commits.db"}
    made = lancekeep.connect(str(tmp_path / "lake"), commit_store=stores[request.param])
    made.write("t", rows(0, 1, 2))
    made.write("t", rows(3, 4, 5), "append")
    return made


def test_stale_handles_append_after_group_commits(catalog: lancekeep.Catalog, engine: Engine) -> None:
    uri = catalog.describe_table("t").uri
    handles = [engine.open(uri) for _ in range(3)]
    for number in range(6, 10):
        catalog.write("t", rows(number), "append")
        if number < 9:
            handles[number - 6].append(rows(100 + number))
    assert stored(uri) == [*range(10), 106, 107, 108]
    require_transactions(uri)


def require_transactions(uri: str) -> None:
    """Require that each version names a transaction file that exists and is the transaction inside the manifest."""
    for manifest in Path(uri.removeprefix("file://"), "_versions").glob("*.manifest"):
        version = TableVersion.parse(manifest.read_bytes(), manifest.name)
        file = manifest.parent.parent / "_transactions" / version.manifest.transaction_file
        assert parse_transaction(file.read_bytes(), file.name) == version.transaction
